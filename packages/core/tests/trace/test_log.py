"""The chain: what is damaged or forged is found, and the head moves with the record only."""

import itertools
import json
import re
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rollcage.errors import StoreError, TraceCorrupt, TraceUnwritable
from rollcage.trace.chain import FORMAT, ROOT, Chain, parse, verify


class InMemory:
    """A log in memory that fails as it is told."""

    where = "memory"
    bell = 0
    is_at_once = True

    def __init__(self) -> None:
        self.kept: list[bytes] = []
        self.last = b""
        self.before: BaseException | None = None
        self.after: BaseException | None = None

    def hear(self) -> None:
        return None

    def read(self) -> list[bytes]:
        return list(self.kept)

    def lines(self) -> Iterator[bytes]:
        yield from self.kept

    def append(self, line: bytes) -> None:
        if self.before:
            raise self.before
        self.kept.append(line)
        self.last = line
        if self.after:
            raise self.after

    def wait(self) -> None: ...

    async def settled(self) -> None: ...

    def replace(self, lines: Sequence[bytes]) -> None:
        self.kept = list(lines)
        self.last = lines[-1] if lines else b""

    def close(self) -> None: ...


def chained(*events: dict[str, Any], first: dict[str, Any] | None = None) -> list[bytes]:
    log = InMemory()
    chain = Chain(log)
    for event in ({"event": "run", "format": FORMAT} if first is None else first, *events):
        chain.append(event)
    return log.kept


LINES = chained(*({"event": "step", "n": n} for n in range(4)))


def test_a_line_is_the_event_and_a_hash_of_all_before_it() -> None:
    head = ROOT.decode()
    for line in LINES:
        event = json.loads(line)
        given_hash = event.pop("hash")
        plain = json.dumps(event, separators=(",", ":"))
        head = sha256((head + plain).encode()).hexdigest()
        assert given_hash == head
        assert line == f'{plain[:-1]},"hash":"{head}"}}\n'.encode()
    assert verify(LINES) == head.encode()


@pytest.mark.parametrize("cut", range(len(LINES) + 1))
def test_a_log_that_was_cut_is_whole(cut: int) -> None:
    """A chain does not say where it ends: what is left can be gone on with."""
    log = InMemory()
    log.kept = LINES[:cut]
    chain = Chain(log)
    assert len(chain.read()) == cut
    chain.append({"event": "step", "n": 9} if cut else {"event": "run", "format": FORMAT})
    assert len(parse(log.kept, "log")) == cut + 1


@given(data=st.data())
@settings(max_examples=settings().max_examples * 10)
def test_a_changed_byte_is_found(data: st.DataObject) -> None:
    number = data.draw(st.integers(0, len(LINES) - 1))
    at = data.draw(st.integers(0, len(LINES[number]) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda b: b != LINES[number][at]))
    changed = LINES[number][:at] + bytes([byte]) + LINES[number][at + 1 :]
    with pytest.raises(StoreError):
        parse([*LINES[:number], changed, *LINES[number + 1 :]], "log")


@pytest.mark.parametrize(
    "order", [o for o in itertools.permutations(range(4)) if o != (0, 1, 2, 3)]
)
def test_lines_in_another_order_are_found(order: tuple[int, ...]) -> None:
    with pytest.raises(TraceCorrupt):
        parse([LINES[n] for n in order], "log")


def test_a_line_that_is_missing_or_doubled_is_found() -> None:
    for number in range(1, 4):
        with pytest.raises(TraceCorrupt) as caught:
            parse(LINES[:number] + LINES[number + 1 :], "log")
        assert caught.value.line == number + 1
        with pytest.raises(TraceCorrupt) as caught:
            parse(LINES[: number + 1] + LINES[number:], "log")
        assert caught.value.line == number + 2


def test_an_error_names_the_log_the_line_and_the_way_out() -> None:
    with pytest.raises(TraceCorrupt, match=r'here/a\.jsonl, line 3: .*replay="off"') as caught:
        parse([*LINES[:2], LINES[1], *LINES[3:]], "here/a.jsonl")
    assert (caught.value.where, caught.value.line) == ("here/a.jsonl", 3)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"\n", "empty"),
        (b"\0" * 4096 + b"\n", "NUL"),
        (b"\xff\xfe{}\n", "no hash"),
        (b"[" * 100_000 + b"\n", "no hash"),
        (b"x" * 10_000_000 + b"\n", "no hash"),
    ],
    ids=["empty", "nul", "utf8", "deep", "huge"],
)
@pytest.mark.parametrize("place", [0, 2])
def test_a_damaged_line_is_described(line: bytes, said: str, place: int) -> None:
    with pytest.raises(TraceCorrupt, match=said) as caught:
        parse([*LINES[:place], line, *LINES[place:]], "log")
    assert caught.value.line == place + 1
    assert len(str(caught.value)) < 1000


def forged(bodies: list[bytes]) -> list[bytes]:
    """Lines with a chain that holds, around anything."""
    head, lines = ROOT, []
    for body in bodies:
        head = sha256(head + body).hexdigest().encode()
        lines.append(body[:-1] + b',"hash":"' + head + b'"}\n')
    return lines


@pytest.mark.parametrize(
    "body",
    [b"}", b'{"a":}', b'{"a":"\xff"}', b'{"a":"\0"}', b'{"a":' + b"[" * 5000 + b"}", b"{}{}"],
)
def test_a_line_that_is_not_json_is_found_also_where_the_chain_holds(body: bytes) -> None:
    first = b'{"event":"run","format":"rollcage/2"}'
    with pytest.raises(TraceCorrupt, match=r"line 2: .*not JSON"):
        parse(forged([first, body]), "log")
    with pytest.raises(TraceCorrupt, match=r"line 1: .*not JSON"):
        parse(forged([body, first]), "log")


@pytest.mark.parametrize(
    ("format_", "said"),
    [
        ("rollcage/3", "update it"),
        ("rollcage/12.5", "update it"),
        ("rollcage/1", "rollcage import"),
        ("other/2", "does not say its format"),
        ("rollcage/", "does not say its format"),
        (None, "does not say its format"),
        (2, "does not say its format"),
        (["rollcage/2"], "does not say its format"),
    ],
)
def test_another_format_is_refused(format_: Any, said: str) -> None:
    with pytest.raises(StoreError, match=re.escape(said)):
        parse(chained(first={"event": "run", "format": format_}), "log")


@pytest.mark.parametrize("version", [b"6", b"1", b"\xb2"])
def test_a_format_that_a_disk_changed_is_damage(version: bytes) -> None:
    """Its hash is the one of this format: it is no log of a newer version."""
    lines = [LINES[0].replace(b"rollcage/2", b"rollcage/" + version), *LINES[1:]]
    with pytest.raises(TraceCorrupt, match="line 1"):
        parse(lines, "log")


def test_a_newer_format_may_be_chained_otherwise() -> None:
    with pytest.raises(StoreError, match="update it") as caught:
        parse([b'{"event":"run","format":"rollcage/3","sum":"1"}\n'], "log")
    assert not isinstance(caught.value, TraceCorrupt)


def test_the_head_stays_where_a_line_is_not_on_record() -> None:
    log = InMemory()
    chain = Chain(log)
    chain.append({"event": "run", "format": FORMAT})
    for error in (TraceUnwritable("full"), KeyboardInterrupt()):
        log.before = error
        with pytest.raises(type(error)):
            chain.append({"n": 1})
    log.before = None
    chain.append({"n": 2})
    assert [event.get("n") for event in parse(log.kept, "log")] == [None, 2]


def test_the_head_moves_where_an_interrupted_line_is_on_record() -> None:
    log = InMemory()
    chain = Chain(log)
    chain.append({"event": "run", "format": FORMAT})
    log.after = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        chain.append({"n": 1})
    log.after = None
    chain.append({"n": 2})
    assert [event.get("n") for event in parse(log.kept, "log")] == [None, 1, 2]


def test_json_with_a_newline_is_refused() -> None:
    log = InMemory()
    chain = Chain(log)
    with pytest.raises(TypeError, match="newline"):
        chain.append({"a": orjson.Fragment(b'{\n"b":1}')})
    assert (log.kept, chain.head) == ([], ROOT)


def test_json_that_was_made_elsewhere_is_kept_as_it_is() -> None:
    lines = chained({"a": orjson.Fragment(b'{"b": 1.0,\r "c":[]}')})
    assert b'{"b": 1.0,\r "c":[]}' in lines[1]
    assert parse(lines, "log")[1]["a"] == {"b": 1.0, "c": []}


def test_events_come_one_by_one_and_the_head_is_known_at_once() -> None:
    log = InMemory()
    log.kept = list(LINES)
    chain = Chain(log)
    events = chain.events()
    assert next(events)["event"] == "run"
    chain.append({"event": "step", "n": 9})
    assert [event.get("n") for event in parse(log.kept, "log")][-1] == 9
    log.kept[2] = log.kept[2].replace(b'"n":1', b'"n":7')
    events = chain.events()
    assert [next(events)["event"], next(events)["n"]] == ["run", 0]
    with pytest.raises(TraceCorrupt, match="line 3"):
        next(events)
