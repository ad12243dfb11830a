"""What a lineage of traces holds, kept in a form that is read in a fraction of the time.

It is derived: a file next to a trace, made where that trace was read as a source, and made again
where it is missing, damaged, or not of the trace that lies there. It is bound to the bytes of that
trace, and signed with the key of its store, so that nobody can put one there who could not have
put a trace there. Of what it says nothing is run, and a step's values are decoded when they are
asked for: most of a long run's never are, or one after the other.

A line of JSON with the signature, one with what is not a step's, one with a column for each field
that finding steps takes, then the other fields of the steps, some hundred of them to a block.
"""

from __future__ import annotations

import hmac
import zlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from operator import attrgetter
from typing import Any, Final, NamedTuple, cast

import orjson

from rollcage.replay.path import LAZY, Entry, LazyFields
from rollcage.replay.recording import Lineage
from rollcage.replay.steps import Origin
from rollcage.replay.undone import Undone

__all__ = ["Saved", "TraceEnd", "dump", "load_saved"]

_FORMAT: Final = "rollcage-steps/4"
_BLOCK: Final = 256  # steps
_LARGEST: Final = 1 << 28  # bytes of a block, whole
_HOT: Final = 2  # blocks that are kept whole
_LEVEL: Final = 1  # of zlib
_TEXTS: Final = ("kind", "branch", "effect", "status", "run")
_NUMBERS: Final = (
    "step", "number", "turn", "group", "era", "slot", "seat", "position", "since", "end",
    "generation", "joined", "abandoned", "undone", "past", "probed",
)  # fmt: skip
_ORIGINS: Final = ("undoes", "accepted")
_LATER: Final = attrgetter(*LAZY)


class TraceEnd(NamedTuple):
    """One trace of a lineage, as it was when it was read.

    Attributes:
        run: its id.
        head: the hash of its last line (hex).
        settings: of its `run.started`, what a session that resumes it must have, too.
    """

    run: str
    head: str
    settings: dict[str, Any]


class Saved(NamedTuple):
    """What was kept of a lineage.

    Attributes:
        lineage: all that its traces hold.
        traces: these, oldest first.
        last_time: when the newest was last written to (Unix, µs).
    """

    lineage: Lineage
    traces: list[TraceEnd]
    last_time: int


class Blocks:
    """The fields of steps that are decoded when they are asked for."""

    def __init__(self, blocks: Sequence[bytes]) -> None:
        self._blocks = blocks
        self._hot: dict[int, list[bytes]] = {}

    def fill(self, entry: Entry, row: int) -> None:
        """Set what a step was loaded without."""
        number, at = divmod(row, _BLOCK)
        lines = self._hot.get(number)
        if lines is None:
            whole = zlib.decompressobj().decompress(self._blocks[number], _LARGEST)
            lines = whole.split(b"\n")
            if len(self._hot) >= _HOT:
                self._hot.pop(next(iter(self._hot)))
            self._hot[number] = lines
        kept: list[Any] = orjson.loads(lines[at])
        for name, value in zip(LAZY, kept, strict=True):
            setattr(entry, name, value)
        entry.labels = tuple(entry.labels)


def dump(saved: Saved, digest: str, key: bytes) -> bytes:
    """The bytes that keep a lineage, whose newest trace has this SHA-256, signed with a key."""
    lineage = saved.lineage
    undone = lineage.undone
    columns: dict[str, Any] = {}
    numbers: dict[str, list[Any]] = {}
    entries = lineage.entries
    columns["key"] = [entry.key for entry in entries]
    for name in _TEXTS:
        columns[name] = _texts(list(map(attrgetter(name), entries)))
    for name in _NUMBERS:
        values = list(map(int, map(attrgetter(name), entries)))
        same = next((other for other, known in numbers.items() if known == values), None)
        numbers[name] = values
        columns[name] = _one(values) if same is None else same
    for name in (*_ORIGINS, "decided"):
        columns[name] = _one(list(map(attrgetter(name), entries)))
    fields = orjson.dumps(columns)
    blocks = [_block(entries[at : at + _BLOCK]) for at in range(0, len(entries), _BLOCK)]
    head = {
        "format": _FORMAT,
        "trace": digest,
        "traces": [[*each] for each in saved.traces],
        "last_time": saved.last_time,
        "steps": len(entries),
        "blocks": [len(block) for block in blocks],
        "columns": len(fields),
        "undone": {
            "done": sorted(undone.done),
            "begun": sorted(undone.begun),
            "attempts": [[*origin, count] for origin, count in undone.attempts.items()],
            "rolled": sorted(undone.rolled),
            "rewinds": undone.rewinds,
        },
        "runs": lineage.runs,
        "settings": lineage.settings,
        "last_step": lineage.last_step,
        "last_turn": lineage.last_turn,
        "waits": lineage.waits,
        "opened": lineage.opened,
        "after": lineage.after,
        "forked": lineage.forked,
    }
    body = b"\n".join((orjson.dumps(head), fields, b"".join(blocks)))
    return _signature(key, body) + b"\n" + body


def load_saved(data: bytes, digest: str, key: bytes) -> Saved | None:
    """What was kept of a lineage; None where it is damaged, or not of a trace of this SHA-256."""
    signed = data.find(b"\n") + 1
    first = data.find(b"\n", signed) + 1
    second = data.find(b"\n", first) + 1
    whole = memoryview(data)
    if not hmac.compare_digest(data[: max(signed - 1, 0)], _signature(key, whole[signed:])):
        return None
    head: dict[str, Any] = orjson.loads(whole[signed : first - 1])
    if head["format"] != _FORMAT or head["trace"] != digest:
        return None
    blocks: list[bytes] = []
    for size in head["blocks"]:
        blocks.append(data[second : second + size])
        second += size
    columns = orjson.loads(whole[first : first + head["columns"]])
    undos = head["undone"]
    undone = Undone()
    undone.done = _origins(undos["done"])
    undone.begun = _origins(undos["begun"])
    undone.attempts = {(run, step): count for run, step, count in undos["attempts"]}
    undone.rolled = set(undos["rolled"])
    undone.rewinds = undos["rewinds"]
    lineage = Lineage(
        _entries(columns, head["steps"], Blocks(blocks)),
        undone,
        head["runs"],
        head["settings"],
        head["last_step"],
        head["last_turn"],
        head["waits"],
        {name: (place[0], place[1]) for name, place in head["opened"].items()},
        {name: tuple(others) for name, others in head["after"].items()},
        head["forked"],
    )
    return Saved(lineage, [TraceEnd(*each) for each in head["traces"]], head["last_time"])


def _signature(key: bytes, body: bytes | memoryview) -> bytes:
    signed = hmac.new(key, b"rollcage steps", "sha256")
    signed.update(body)
    return signed.hexdigest().encode()


def _origins(pairs: Iterable[list[Any]]) -> set[Origin]:
    return {(run, step) for run, step in pairs}


# --- columns -------------------------------------------------------------------------------------


def _one(values: list[Any]) -> Any:
    """A column: what all have, in a list of its own, or a list of them."""
    if not values or values.count(values[0]) != len(values):
        return {"each": values}
    return {"all": values[0]}


def _texts(values: list[str]) -> dict[str, Any]:
    """A column of few different texts."""
    known: dict[str, int] = {}
    places = [known.setdefault(value, len(known)) for value in values]
    return {"texts": [*known], **_one(places)}


def _block(entries: Sequence[Entry]) -> bytes:
    rows = map(orjson.dumps, map(_LATER, entries))
    return zlib.compress(b"\n".join(rows), _LEVEL)


def _column(columns: Mapping[str, Any], name: str) -> Iterable[Any]:
    kept = columns[name]
    if isinstance(kept, str):
        return _column(columns, kept)
    texts = cast("dict[str, Any]", kept).get("texts")
    if "all" in kept:
        return repeat(kept["all"] if texts is None else texts[kept["all"]])
    each = cast("list[Any]", kept["each"])
    return each if texts is None else [texts[at] for at in each]


def _pairs(values: Iterable[Any]) -> Iterable[Any]:
    if isinstance(values, repeat):
        value = next(values)
        return repeat(value if value is None else tuple(value))
    return [None if value is None else tuple(value) for value in values]


def _entries(columns: Mapping[str, Any], count: int, rows: LazyFields) -> list[Entry]:
    """The steps, without what is decoded when it is asked for."""
    kinds, branches, effects, statuses, runs = (_column(columns, name) for name in _TEXTS)
    undoes, accepted = (_pairs(_column(columns, name)) for name in _ORIGINS)
    entries: list[Entry] = []
    add, make = entries.append, Entry
    for (
        row, key, kind, branch, effect, status, run, step, number, turn, group, era, slot, seat,
        position, since, end, generation, joined, abandoned, undone, past, probed, undoing,
        accepting, decided,
    ) in zip(
        range(count), columns["key"], kinds, branches, effects, statuses, runs,
        *(_column(columns, name) for name in _NUMBERS),
        undoes, accepted, _column(columns, "decided"), strict=False,
    ):  # fmt: skip
        entry = make()
        entry.rows = rows
        entry.row = row
        entry.key = key
        entry.kind = kind
        entry.branch = branch
        entry.effect = effect
        entry.status = status
        entry.run = run
        entry.step = step
        entry.number = number
        entry.turn = turn
        entry.group = group
        entry.era = era
        entry.slot = slot
        entry.seat = seat
        entry.position = position
        entry.since = since
        entry.end = end
        entry.generation = generation
        entry.joined = bool(joined)
        entry.abandoned = bool(abandoned)
        entry.undone = bool(undone)
        entry.past = bool(past)
        entry.probed = bool(probed)
        entry.undoes = undoing
        entry.accepted = accepting
        entry.decided = decided
        entry.frontier = False
        add(entry)
    return entries
