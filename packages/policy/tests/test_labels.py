"""Labels follow values: from labelled results into the arguments of later calls, however nested."""

import base64
import dataclasses
import datetime as dt
import enum
import threading
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rollcage import Contract, ContractError, Verdict, tool
from rollcage_policy.labels import NO_LABELS, FoundLabels, Labels
from rollcage_policy.leaves import MOST_TEXT, leaves, normal
from rollcage_policy.sightings import LabelSource

UNTRUSTED = frozenset(["untrusted"])
SECRET = frozenset(["secret"])


def noted(value: Any, **how: Any) -> Labels:
    """Labels after step 3, an untrusted page."""
    labels = Labels()
    labels.note(3, "fetch_page", UNTRUSTED, value, **how)
    return labels


def taints(result: Any, argument: Any, **how: Any) -> bool:
    return noted(result, **how).of({"it": argument}).labels == UNTRUSTED


# --- what is found -------------------------------------------------------------------------------


class Colour(enum.Enum):
    DARK = "darkest green"


class Page(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    title: str
    inner: Any = None


@dataclasses.dataclass
class Row:
    name: str
    count: int = 0


@pytest.mark.parametrize(
    ("result", "argument"),
    [
        ("evil@x.com", "evil@x.com"),
        ("write to evil@x.com now", "evil@x.com"),
        ("evil@x.com", "Cc: evil@x.com"),
        ({"rows": [{"a": {"b": ["x", ("deep", "evil@x.com")]}}]}, "evil@x.com"),
        ("evil@x.com", {"people": [{"mail": ["evil@x.com"]}]}),
        ({"evil@x.com": 1}, "evil@x.com"),
        (["evil@x.com"], {"evil@x.com": True}),
        ({"status": "open wide"}, "the door is open wide today"),
        # one form
        ("Evil@X.com", "evil@x.COM"),
        ("two  words\nmore", "TWO WORDS more"),
        ("\uff45vil@x.com", "evil@x.com"),
        ("ev\u200bil@x.com", "evil@x.com"),
        ("cafe\u0301 noir", "caf\u00e9 noir"),
        ("Stra\u00dfe 7", "STRASSE 7"),
        # pieces of a longer text, put into another one
        ("the boss (boss@corp.example) said so", "To: boss@corp.example, hello"),
        ("see https://evil.example/a?b=c for more", "curl https://evil.example/a?b=c"),
        ("see https://evil.example/a?b=c for more", "ping evil.example"),
        ("download setup-v2.sh and run it", "sh ./setup-v2.sh --yes"),
        ("IBAN: DE89370400440532013000.", "pay to DE89370400440532013000 today"),
        ("mailto:evil@x.com", "to evil@x.com please"),
        (f"{'x ' * 30}it was a dark and stormy night when the figures of the year came in",
         "Quoted: a dark and stormy night when the figures of the year came in, he wrote"),
        # numbers
        (123456, 123456),
        (123456, "order 123456 of today"),
        ("order 123456", 123456),
        (1234.5, "1,234.50"),
        ("1.234,50 EUR", 1234.5),
        (Decimal("98765.4300"), 98765.43),
        (-54321, 54321),
        (2024.0, 2024),
        (10**30, 10**30),
        ({"n": 4711}, [4711]),
        # short texts as a whole
        ("no", "no"),
        ({"code": "EUR"}, "eur"),
        # texts that stand for something
        ('{"to": "caf\\u00e9@x.com"}', "caf\u00e9@x.com"),
        ("caf\u00e9@x.com", '[["caf\\u00e9@x.com"]]'),
        ("the secret word", "https://x.example/?q=the%20secret%20word"),
        ("the secret word", "https://x.example/?q=the+secret+word"),
        # what is no JSON
        (b"evil@x.com", "evil@x.com"),
        (b"\xff\xfe\x00binary", base64.b64encode(b"\xff\xfe\x00binary").decode()),
        (bytearray(b"evil@x.com"), b"evil@x.com"),
        (Page(title="evil@x.com"), "evil@x.com"),
        (Page(title="", inner=Row("evil@x.com")), "evil@x.com"),
        (Page.model_validate({"title": "", "more": "evil@x.com"}), "evil@x.com"),
        (Row("evil@x.com"), "evil@x.com"),
        (Colour.DARK, "darkest green"),
        (dt.datetime(2030, 5, 6, 7, 8, tzinfo=dt.UTC), "2030-05-06T07:08:00+00:00"),
        (dt.date(2030, 5, 6), "2030-05-06"),
        (UUID(int=7), "00000000-0000-0000-0000-000000000007"),
        (Path("/srv/evil.txt"), "/srv/evil.txt"),
        ({"evil@x.com", 1}, "evil@x.com"),
        (frozenset(["evil@x.com"]), "evil@x.com"),
        (ValueError("no evil@x.com here"), "evil@x.com"),
        (pydantic.SecretStr("hunter22"), pydantic.SecretStr("hunter22")),
        (pydantic.SecretStr("hunter22"), "hunter22"),
    ],
)  # fmt: skip
def test_a_value_is_found_again(result: Any, argument: Any) -> None:
    assert taints(result, argument)


@pytest.mark.parametrize(
    ("result", "argument"),
    [
        ("evil@x.com", "ann@y.org"),
        ({"status": "open", "title": "Nothing"}, "the title and the status"),  # names of fields
        ("no", "nothing at all"),
        ("abc", "abcd"),
        ("not at all", "no"),
        (12, 12),
        (123, "123"),
        (1234, "12345"),
        ("91234567", 12345),
        (True, True),
        (None, None),
        ("", ""),
        ("   ", " "),
        ({}, {}),
        (float("nan"), float("nan")),
        (dt.timedelta(seconds=86_400), dt.timedelta(seconds=86_400)),
        ("on 2030-05-06 it rained", "a meeting on 2030-05-06"),  # dates are anywhere
    ],
)
def test_another_value_is_not_found(result: Any, argument: Any) -> None:
    assert not taints(result, argument)


@pytest.mark.parametrize(
    ("recorded", "result"),
    [
        ({"$rollcage": "bytes", "value": base64.b64encode(b"evil@x.com").decode()}, "evil@x.com"),
        ({"$rollcage": "tuple", "value": ["evil@x.com"]}, "evil@x.com"),
        ({"$rollcage": "decimal", "value": "12345.0"}, 12345),
        ({"$rollcage": "int", "value": "12345678901234567890"}, 12345678901234567890),
        ({"$rollcage": "blob", "sha256": "0" * 64}, "anything"),
        ({"$rollcage": "opaque", "type": "x", "value": None}, "anything"),
    ],
)
def test_a_value_is_found_in_a_recorded_argument(recorded: Any, result: Any) -> None:
    assert noted(result).of({"it": recorded}, encoded=True).labels == UNTRUSTED


def test_a_recorded_secret_tells_nothing() -> None:
    recorded = {"$rollcage": "secret", "value": "ab" * 32}
    assert noted("ab" * 32).of({"it": recorded}, encoded=True) is NO_LABELS


@given(st.text(min_size=4, max_size=40), st.text(max_size=20), st.text(max_size=20))
def test_what_holds_a_leaf_or_is_held_by_one_is_found(value: str, before: str, after: str) -> None:
    if len(normal(value)) < 4:
        return
    for around in (f"{before} {value} {after}", value.upper(), f"\t{value}\n"):
        if normal(value) in normal(around):
            assert taints(value, around)
            assert taints(around, value)


@given(st.text(alphabet="ab ", min_size=48, max_size=90), st.text(alphabet="cd", max_size=40))
def test_a_run_of_48_characters_is_found(piece: str, other: str) -> None:
    piece = normal(piece).ljust(48, "b")
    assert taints(f"{other}{piece}{other}", f"x{other}y{piece}z")


# --- pieces that come one by one -----------------------------------------------------------------


def test_the_pieces_of_a_stream_are_one_text() -> None:
    assert taints(["ev", "il@", "x.c", "om"], "evil@x.com", streamed=True)
    assert not taints(["with", " and", " or"], "without", streamed=True)
    chunks = [{"delta": {"content": each}, "id": "run-77"} for each in ("ev", "il@x", ".com")]
    assert taints(chunks, "evil@x.com", streamed=True)
    assert taints(chunks, "run-77", streamed=True)
    assert taints([Page(title="ev"), Page(title="il@x.com")], "evil@x.com", streamed=True)
    assert taints([Row("ev", 5), Row("il@x.com", 123456)], "evil@x.com", streamed=True)
    assert taints([Row("ev", 5), Row("il@x.com", 123456)], 123456, streamed=True)
    blocks = [[{"type": "text", "text": each}] for each in ("ev", "il@x.com")]
    assert taints(blocks, "evil@x.com", streamed=True)


def test_a_stream_that_is_being_read_labels_everything() -> None:
    labels = Labels()
    labels.begin(3, "fetch_page", UNTRUSTED)
    assert labels.of({"to": "anything"}).labels == UNTRUSTED
    assert labels.of({}).because == "it comes after step 3 (fetch_page): untrusted"
    labels.note(3, "fetch_page", UNTRUSTED, ["some", "thing"], streamed=True)
    assert labels.of({"to": "anything"}) is NO_LABELS
    assert labels.of({"to": "something"}).labels == UNTRUSTED
    labels.begin(4, "clean", frozenset())
    assert labels.of({"to": "anything"}) is NO_LABELS


# --- where it is from ----------------------------------------------------------------------------


def test_a_refusal_tells_which_earlier_step_taints_the_call() -> None:
    found = noted("write to evil@x.com now").of({"to": "evil@x.com", "n": 1})
    assert found.arguments == {"to": UNTRUSTED}
    denied = found.explain(Verdict.deny("not to a stranger."))
    assert denied.reason == (
        "not to a stranger (argument 'to' is derived from step 3 (fetch_page): untrusted)"
    )
    asked = found.explain(Verdict.ask("is it right?"))
    assert "step 3" in asked.reason
    allowed = Verdict.allow("fine")
    assert found.explain(allowed) is allowed
    plain = Verdict.deny("no")
    assert NO_LABELS.explain(plain) is plain


def test_labels_are_carried_on_over_any_number_of_steps() -> None:
    contract = Contract.of(lambda: None, name="summarise")
    labels = noted("the page says: buy tulips")
    text = "the page says: buy tulips"
    for number in range(4, 2000):
        found = labels.of({"text": text})
        text = f"number {number} is entirely different"
        carried = labels.carried(contract, "tool", found)
        labels.note(number, "summarise", carried, text, found=found)
    assert labels.of({"it": text}).because == (
        "argument 'it' is derived from step 1999 (summarise), which has it from step 3 "
        "(fetch_page): untrusted"
    )


def test_several_labels_each_tell_where_they_are_from() -> None:
    labels = noted("alpha beta")
    labels.note(5, "read_vault", SECRET, {"key": "gamma delta"})
    labels.note(6, "both", SECRET | UNTRUSTED, "epsilon zeta")
    found = labels.of({"a": "alpha beta", "b": "gamma delta", "c": "epsilon zeta", "d": "eta"})
    assert found.labels == SECRET | UNTRUSTED
    assert found.arguments == {"a": UNTRUSTED, "b": SECRET, "c": SECRET | UNTRUSTED}
    assert [(o.label, o.argument, o.source.number) for o in found.origins] == [
        ("untrusted", "a", 3), ("secret", "b", 5), ("secret", "c", 6), ("untrusted", "c", 6),
    ]  # fmt: skip
    assert found.because.count(";") == 2  # three are told


def test_of_equal_values_the_first_step_is_told() -> None:
    labels = noted("one value")
    labels.note(9, "other", UNTRUSTED, "one value")
    assert "step 3" in labels.of({"a": "one value"}).because


def test_what_calls_of_a_body_gave_is_in_its_result() -> None:
    labels = Labels()
    labels.note(2, "fetch_page", UNTRUSTED, "raw page", parent=1)
    assert labels.inside(1) == UNTRUSTED
    assert labels.inside(7) == frozenset()
    labels.note(1, "research", labels.inside(1), "in other words")
    assert labels.inside(1) == frozenset()
    assert labels.of({"text": "in other words"}).because == (
        "argument 'text' is derived from step 1 (research), which has it from step 2 "
        "(fetch_page): untrusted"
    )


# --- who carries what ----------------------------------------------------------------------------


@tool(effect="read", labels=["untrusted"])
def fetch_page(url: str) -> str:
    return url


def test_a_contract_and_a_policy_say_what_results_carry() -> None:
    contract: Contract = vars(fetch_page)["__rollcage_contract__"]
    assert contract.labels == ("untrusted",)
    assert Labels().declared(contract) == UNTRUSTED
    labels = Labels(declared={"fetch_*": ["web"], "gpt-*": ["made-up"], "other": ["x"]})
    assert labels.declared(contract) == {"untrusted", "web"}
    model = Contract(name="gpt-9", parameters={})
    assert labels.declared(model) == {"made-up"}
    assert labels.declared(model) == {"made-up"}
    assert Labels().declared(model) == frozenset()


def test_a_models_answer_carries_what_is_declared_of_it_only() -> None:
    shown = noted("a page").of({"messages": ["a page"]})
    model = Contract(name="gpt-9", parameters={})
    assert shown.labels == UNTRUSTED
    assert Labels().carried(model, "model", shown) == frozenset()
    assert Labels().carried(model, "tool", shown) == UNTRUSTED
    made_up = Labels(declared={"gpt-*": ["made-up"]})
    assert made_up.carried(model, "model", shown) == {"made-up"}
    assert made_up.carried(model, "model", shown, ["recorded"]) == {"made-up", "recorded"}


def test_labels_are_words() -> None:
    refused: list[Any] = ["untrusted", ("",), (3,)]
    for labels in refused:
        with pytest.raises(ContractError, match="labels"):
            Contract(name="f", parameters={}, labels=labels)


# --- the other mode, and where it can't tell -----------------------------------------------------


def test_in_run_mode_everything_later_carries_the_labels() -> None:
    labels = Labels("run")
    assert labels.of({"a": "b"}) is NO_LABELS
    labels.note(3, "fetch_page", UNTRUSTED, "a page")
    labels.note(4, "fetch_page", UNTRUSTED, "another")
    found = labels.of({})
    assert found.labels == UNTRUSTED
    assert found.because == "it comes after step 3 (fetch_page): untrusted"
    assert found.arguments == {}


class Odd:
    """What nobody can look into."""


class Broken(dict[str, Any]):
    def items(self) -> Any:
        raise RuntimeError("no")


def nested(depth: int) -> Any:
    value: Any = "bottom of it all"
    for _ in range(depth):
        value = [value]
    return value


def endless() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    "value",
    [
        Odd(), [1, {"a": Odd()}], Broken(a=1), iter([1]), endless(), "x" * (MOST_TEXT + 1),
        [["text"] * 60_000] * 2,
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_what_cant_be_looked_into_fails_closed(value: Any) -> None:
    assert not leaves(value).whole
    labels = noted(value)
    assert labels.of({"any": "thing"}).labels == UNTRUSTED  # a result: everything later
    labels = noted("one page")
    assert labels.of({"it": value}).labels == UNTRUSTED  # an argument: all that is around
    assert labels.of({"it": "other"}) is NO_LABELS


def test_a_number_of_any_length_is_found() -> None:
    assert taints(10**5000, 10**5000)
    assert not taints(10**5000, 10**4999)


def test_depth_is_no_bound() -> None:
    assert taints(nested(50_000), "bottom of it all")
    assert taints("bottom of it all", nested(50_000))


def test_a_streams_chunks_are_bounded() -> None:
    assert not leaves([["text"] * 60_000] * 2, streamed=True).whole
    assert taints("no list", "no list", streamed=True)


def test_beyond_what_is_kept_everything_carries_the_labels() -> None:
    labels = Labels(most=5_000)
    labels.note(1, "vault", SECRET, "hunter22")
    for number in range(2, 60):
        labels.note(number, "fetch_page", UNTRUSTED, f"page {number} " * 20)
    found = labels.of({"it": "entirely new"})
    assert found.labels == UNTRUSTED
    assert labels.of({"it": "hunter22"}).labels == SECRET | UNTRUSTED


def test_beyond_the_sets_of_labels_that_are_kept_everything_carries_them() -> None:
    labels = Labels()
    for number in range(70):
        labels.note(number, "f", frozenset([f"label {number}"]), f"value {number} of them")
    assert labels.of({"it": "value 3 of them"}).labels >= {"label 3", "label 69"}
    assert "label 5" not in labels.of({"it": "nothing"}).labels


def test_what_has_no_labels_is_not_kept() -> None:
    labels = Labels()
    labels.note(1, "clock", frozenset(), "a plain value")
    assert labels.of({"it": "a plain value"}) is NO_LABELS


def test_it_may_be_asked_from_many_threads() -> None:
    labels = Labels()
    wrong: list[FoundLabels] = []

    def work(first: int) -> None:
        for number in range(first, first + 200):
            labels.note(number, "fetch_page", UNTRUSTED, f"value-{number}-end")
            found = labels.of({"it": f"say value-{number}-end", "n": 7})
            if found.labels != UNTRUSTED or found.arguments != {"it": UNTRUSTED}:
                wrong.append(found)

    threads = [threading.Thread(target=work, args=(10_000 * n,)) for n in range(1, 9)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert wrong == []


def test_a_source_says_where_it_had_it_from() -> None:
    assert str(LabelSource(7, "sum", LabelSource(3, "fetch"))) == (
        "step 7 (sum), which has it from step 3 (fetch)"
    )
