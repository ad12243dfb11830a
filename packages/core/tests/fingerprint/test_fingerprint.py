"""Canonical JSON is RFC 8785 whichever way it is made, and hashes say what DESIGN §2 defines."""

import math
import struct
from hashlib import sha256
from typing import Any
from uuid import UUID

import pytest
import rfc8785
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rollcage.fingerprint.identity import (
    child_world,
    fingerprint,
    idempotency_key,
    jcs,
    jcs_of_plain,
    jcs_of_scalars,
    key_digest,
    key_head,
    next_uuid7,
    next_world,
    uuid7,
    world_zero,
)
from rollcage.trace.run import Step
from rollcage.values.survey import CANONICAL, FOREIGN, PLAIN, survey

EXACT = 2**53 - 1

text = st.text(st.characters(exclude_categories=["Cs"]))
floats = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.floats(-1e-4, 1e-4),  # around the two places where an exponent is written
    st.floats(1e15, 1e23),
    st.integers(-EXACT, EXACT).map(float),
    st.sampled_from([-0.0, 5e-324, 2.2250738585072014e-308, 1e-5, 9.999999999999999e-6, 1e21]),
)
# Keys around U+E000, where the order of UTF-16 is another one than that of code points.
keys = st.one_of(text, st.text(st.sampled_from("az\x80\u20ac\ud7ff\ue000\ufb33\uffff😀\U00010000")))
scalars = st.one_of(st.none(), st.booleans(), st.integers(-EXACT, EXACT), floats, text)
anything = st.recursive(
    scalars, lambda inner: st.lists(inner) | st.dictionaries(keys, inner), max_leaves=25
)


@settings(max_examples=5 * settings().max_examples)
@given(anything)
@example({"\ue000": 1, "\U00010000": 2})
@example({"a": [1.0, -0.0, 1e-7, {"$rollcage": 5e-324}]})
def test_canonical_bytes_are_those_of_the_reference_library(value: Any) -> None:
    assert jcs(value) == rfc8785.dumps(value)


_SCALAR = st.one_of(
    st.none(),
    st.booleans(),
    st.text(),
    st.integers(-(2**54), 2**54),
    st.sampled_from([2**53 - 1, 2**53, -(2**53), 1.0, 0.5, "\ud800", b"", [], {}]),
)


@given(st.dictionaries(st.text(st.characters(codec="ascii")), _SCALAR, max_size=4))
def test_the_short_way_for_scalars_gives_the_same_bytes_or_none(values: dict[str, Any]) -> None:
    plain = jcs_of_scalars(values)
    assert plain is None or plain == rfc8785.dumps(values)


def test_the_short_way_is_for_scalars_that_need_no_detour() -> None:
    plain: dict[str, Any] = {"b": "é", "a": True, "d": None, "c": 2**53 - 1}
    assert jcs_of_scalars(plain) == rfc8785.dumps(plain)
    others: list[Any] = [2**53, 0.5, "\ud800", [], {}, b""]
    for odd in others:
        assert jcs_of_scalars({"a": odd}) is None


@settings(max_examples=5 * settings().max_examples)
@given(floats)
def test_each_float_is_written_as_the_reference_library_writes_it(value: float) -> None:
    assert jcs([value]) == rfc8785.dumps([value])


@settings(max_examples=5 * settings().max_examples)
@given(text)
def test_each_string_is_written_as_the_reference_library_writes_it(value: str) -> None:
    assert jcs(value) == rfc8785.dumps(value)


@given(st.floats(1e-5, 1e15).filter(lambda v: not v.is_integer()) | st.integers(0, EXACT))
def test_ordinary_numbers_stay_on_the_fast_path(value: float) -> None:
    assert survey({"price": [value, -value]}) == CANONICAL


@pytest.mark.parametrize(
    ("value", "level"),
    [
        ({"a": [None, True, 1, "é", 0.5, {}]}, CANONICAL),
        (9.999999999999999e-6, PLAIN),
        ({"é": 1}, PLAIN),
        (1.0, FOREIGN),
        (-0.0, FOREIGN),
        (1e300, FOREIGN),
        (math.nan, FOREIGN),
        (-math.inf, FOREIGN),
        (2**53, FOREIGN),
        (-(2**53), FOREIGN),
        ((1,), FOREIGN),
        ({1: 2}, FOREIGN),
        ({"$rollcage": 1}, FOREIGN),
        ([{"é": 1}, {"a": (1,)}], FOREIGN),
    ],
)
def test_what_the_fast_path_may_not_take_is_known(value: Any, level: int) -> None:
    assert survey(value) == level
    assert survey([value, 1]) == level


@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        math.inf,
        2**53,
        "\ud800",
        {"\ud800": 1},
        {"\ud800": 1, "é": 2},
        [1.0, "\ud800"],
        {1: 2},
        object(),
    ],
)
def test_what_json_does_not_hold_is_refused(value: Any) -> None:
    with pytest.raises(rfc8785.CanonicalizationError):
        jcs(value)


def test_what_is_deeper_than_the_fast_path_goes_is_still_canonical() -> None:
    deep: Any = 0.5
    for _ in range(300):
        deep = [deep]
    assert jcs(deep) == b"[" * 300 + b"0.5" + b"]" * 300


# --- the vectors of RFC 8785 ---------------------------------------------------------------------


def test_rfc_8785_section_3_2_2_sample() -> None:
    sample = {
        "numbers": [333333333.33333329, 1e30, 4.50, 2e-3, 0.000000000000000000000000001],
        "string": "\u20ac$\u000f\u000aA'\u0042\u0022\u005c\\\"/",
        "literals": [None, True, False],
    }
    expected = bytes.fromhex(  # section 3.2.4
        "7b 22 6c 69 74 65 72 61 6c 73 22 3a 5b 6e 75 6c 6c 2c 74 72"
        "75 65 2c 66 61 6c 73 65 5d 2c 22 6e 75 6d 62 65 72 73 22 3a"
        "5b 33 33 33 33 33 33 33 33 33 2e 33 33 33 33 33 33 33 2c 31"
        "65 2b 33 30 2c 34 2e 35 2c 30 2e 30 30 32 2c 31 65 2d 32 37"
        "5d 2c 22 73 74 72 69 6e 67 22 3a 22 e2 82 ac 24 5c 75 30 30"
        "30 66 5c 6e 41 27 42 5c 22 5c 5c 5c 5c 5c 22 2f 22 7d"
    )
    assert jcs(sample) == expected


def test_rfc_8785_section_3_2_3_sorting_of_properties() -> None:
    sample = {
        "\u20ac": "Euro Sign",
        "\r": "Carriage Return",
        "\ufb33": "Hebrew Letter Dalet With Dagesh",
        "1": "One",
        "\U0001f600": "Emoji: Grinning Face",
        "\u0080": "Control",
        "\u00f6": "Latin Small Letter O With Diaeresis",
    }
    written = jcs(sample).decode()
    order = sorted(sample.values(), key=written.index)
    assert order == [
        "Carriage Return",
        "One",
        "Control",
        "Latin Small Letter O With Diaeresis",
        "Euro Sign",
        "Emoji: Grinning Face",
        "Hebrew Letter Dalet With Dagesh",
    ]


@pytest.mark.parametrize(
    ("bits", "written"),
    [
        ("0000000000000000", "0"),
        ("8000000000000000", "0"),
        ("0000000000000001", "5e-324"),
        ("8000000000000001", "-5e-324"),
        ("7fefffffffffffff", "1.7976931348623157e+308"),
        ("ffefffffffffffff", "-1.7976931348623157e+308"),
        ("4340000000000000", "9007199254740992"),
        ("c340000000000000", "-9007199254740992"),
        ("4430000000000000", "295147905179352830000"),
        ("44b52d02c7e14af5", "9.999999999999997e+22"),
        ("44b52d02c7e14af6", "1e+23"),
        ("44b52d02c7e14af7", "1.0000000000000001e+23"),
        ("444b1ae4d6e2ef4e", "999999999999999700000"),
        ("444b1ae4d6e2ef4f", "999999999999999900000"),
        ("444b1ae4d6e2ef50", "1e+21"),
        ("3eb0c6f7a0b5ed8c", "9.999999999999997e-7"),
        ("3eb0c6f7a0b5ed8d", "0.000001"),
        ("41b3de4355555553", "333333333.3333332"),
        ("41b3de4355555554", "333333333.33333325"),
        ("41b3de4355555555", "333333333.3333333"),
        ("41b3de4355555556", "333333333.3333334"),
        ("41b3de4355555557", "333333333.33333343"),
        ("becbf647612f3696", "-0.0000033333333333333333"),
        ("43143ff3c1cb0959", "1424953923781206.2"),
    ],
)
def test_rfc_8785_appendix_b_numbers(bits: str, written: str) -> None:
    (value,) = struct.unpack(">d", bytes.fromhex(bits))
    assert jcs(value) == written.encode()


@pytest.mark.parametrize("bits", ["7fffffffffffffff", "7ff0000000000000"])
def test_rfc_8785_appendix_b_refuses_what_is_no_number(bits: str) -> None:
    (value,) = struct.unpack(">d", bytes.fromhex(bits))
    with pytest.raises(rfc8785.CanonicalizationError):
        jcs(value)


# --- keys, worlds, fingerprints ------------------------------------------------------------------


@given(text, text, text, st.dictionaries(keys, scalars, max_size=3))
def test_a_key_is_the_hash_of_the_canonical_call(
    kind: str, name: str, version: str, args: dict[str, Any]
) -> None:
    whole = rfc8785.dumps(["rollcage/1", kind, name, version, args])
    assert key_digest(kind, name, version, jcs(args)) == sha256(whole).digest()


def test_names_versions_and_arguments_do_not_run_into_each_other() -> None:
    calls = [("tool", "ab", ""), ("tool", "a", "b"), ("tool", "", "ab"), ("model", "ab", "")]
    assert len({key_digest(*call, b"{}") for call in calls}) == len(calls)


def test_a_world_depends_on_the_writes_and_not_on_who_finished_first() -> None:
    zero = world_zero("")
    one, two = b"f" * 32, b"g" * 32
    assert next_world(zero, [one, two]) == next_world(zero, [two, one])
    assert next_world(zero, [one, two]) != next_world(next_world(zero, [one]), [two])


def test_a_changed_result_changes_the_worlds_after_it() -> None:
    step = Step({
        "step": 1, "name": "a", "key": "0" * 64, "effect": "write", "branch": "", "start": 0,
        "pos": 0, "turn": 1, "slot": 0, "fingerprint": "f" * 64, "time": 0,
    })  # fmt: skip
    links: list[bytes] = []
    for step.outcome in (None, b'{"status":"ok","value":1}', b'{"status":"ok","value":2}'):
        links.append(step.link())
    assert len(set(links)) == len(links)


def test_each_kind_of_world_is_its_own() -> None:
    zero = world_zero("")
    worlds = [zero, world_zero("x"), child_world(zero), next_world(zero, [zero])]
    assert len(set(worlds)) == len(worlds)
    assert {len(each) for each in worlds} == {32}


@given(st.integers(0, 2**32), st.integers(0, 2**32), st.integers(0, 2**32))
def test_each_part_of_an_occurrence_is_part_of_a_fingerprint(
    rank: int, slot: int, again: int
) -> None:
    key, world = b"k" * 32, b"w" * 32
    made = fingerprint(key, world, rank, slot, again)
    assert made == fingerprint(key, world, rank, slot, again)
    assert made not in (
        fingerprint(key, world, rank + 1, slot, again),
        fingerprint(key, world, rank, slot + 1, again),
        fingerprint(key, world, rank, slot, again + 1),
    )


def test_the_first_call_of_a_slot_has_the_fingerprint_it_always_had() -> None:
    """What was recorded from the first day on replays, under the same keys."""
    made = fingerprint(b"k" * 32, b"w" * 32, 1, 2)
    assert made == sha256(b"k" * 32 + b"w" * 32 + (1).to_bytes(8) + (2).to_bytes(8)).digest()


def test_an_idempotency_key_is_of_one_run_branch_and_step() -> None:
    one = idempotency_key("run", "branch", "ff")
    assert len(one) == 64
    assert one == idempotency_key("run", "branch", "ff")
    assert len({one, idempotency_key("runb", "ranch", "ff"), idempotency_key("run", "", "ff")}) == 3


@given(st.integers(0, 2**48 - 1), st.binary(min_size=10, max_size=10))
def test_run_ids_are_uuid_version_7_and_sort_by_time(milliseconds: int, random: bytes) -> None:
    made = uuid7(milliseconds, random)
    assert str(UUID(made)) == made
    assert made[14] == "7"
    assert made[19] in "89ab"
    assert int(made.replace("-", "")[:12], 16) == milliseconds


@given(st.integers(0, 2**48 - 2), st.binary(min_size=10, max_size=10), st.binary(max_size=6))
@example(5, b"\xff" * 10, b"")
def test_the_next_run_id_is_greater_and_of_its_millisecond(
    milliseconds: int, random: bytes, grows: bytes
) -> None:
    before = uuid7(milliseconds, random)
    after = next_uuid7(before, grows)
    assert str(UUID(after)) == after
    assert UUID(after).version == 7
    assert after > before
    assert after[:13] == before[:13] or random[1] == 0xFF  # it overflows


@given(st.dictionaries(keys, anything, max_size=4))
@example({"a": "\ud800"})
@example({"messages": [{"$rollcage": "bytes"}]})
@example({"number": 1.0})
def test_plain_values_are_written_as_jcs_or_not_at_all(values: dict[str, Any]) -> None:
    plain = jcs_of_plain(values)
    if plain is not None:
        assert plain == rfc8785.dumps(values)
    assert (plain is None) == (survey(values) != CANONICAL or "\ud800" in values.values())


def test_plain_values_are_not_nested_without_end() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert jcs_of_plain({"deep": deep}) is None


@pytest.mark.parametrize("length", [0, 1 << 13, 1 << 14, 1 << 17])
def test_a_key_is_one_hash_of_any_length(length: int) -> None:
    arguments = jcs({"messages": ["x" * length]})
    whole = key_head("model", "gpt", "1") + arguments + b"]"
    assert key_digest("model", "gpt", "1", arguments) == sha256(whole).digest()
