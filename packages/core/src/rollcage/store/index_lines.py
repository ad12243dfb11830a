"""The lines of the directory store's index: what they say, and how they are put in order.

Each ends with a check of what stands before that, so that a flipped bit shows, which would make
another name or another end of it.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Iterable, Mapping
from typing import Any, Final

import orjson

from rollcage.errors import TraceCorrupt
from rollcage.store.protocol import Pruned, RunInfo, is_run_id
from rollcage.trace.reader import read_events, tail_of

__all__ = [
    "STARTED",
    "IndexedRun",
    "end_of_pruned",
    "fields_of",
    "first_of",
    "in_order",
    "info_of",
    "known_of",
    "line_at",
    "line_of",
    "lines_of",
    "lines_with",
    "parse",
    "start_of",
    "unchecked",
]  # fmt: skip

STARTED: Final = ("run", "name", "mode", "source", "time")  # and its input, where it has one
_ENDED: Final = {"run", "status", "count", "head", "size", "pruned"}
_CHECK: Final = b',"check":"'
_CHECK_LENGTH: Final = len(_CHECK) + len('01234567"}')


@dataclasses.dataclass(slots=True)
class IndexedRun:
    """The lines of one run, as they stand in the index."""

    started: dict[str, Any] | None = None
    ended: dict[str, Any] | None = None

    @property
    def run(self) -> str:
        """Whose they are; empty where there are none."""
        return str((self.started or self.ended or {}).get("run", ""))


def lines_of(known: IndexedRun) -> Iterable[bytes]:
    """The lines of a run as they are written."""
    return (line_of(fields) for fields in (known.started, known.ended) if fields)


def line_of(fields: Mapping[str, Any]) -> bytes:
    """A line that says this, with its check."""
    line = orjson.dumps(fields)
    return b'%b%b%08x"}\n' % (line[:-1], _CHECK, zlib.crc32(line))


def fields_of(line: bytes) -> dict[str, Any]:
    """What a line says, without its end; of an old one, which has no check, what it seems to say.

    Raises:
        ValueError: it is damaged.
    """
    fields: dict[str, Any]
    if line[-_CHECK_LENGTH:].startswith(_CHECK):
        whole = line[:-_CHECK_LENGTH] + b"}"
        if line[-10:] != b'%08x"}' % zlib.crc32(whole):
            raise ValueError("its check is another one")
        fields = orjson.loads(whole)
        return fields
    fields = orjson.loads(line)
    if not fields.keys() <= _ENDED and not fields.keys() <= {*STARTED, "input"}:
        raise ValueError("nobody writes such a line")
    if orjson.dumps(fields) != line:  # spelled otherwise: `newest` looks for our bytes
        raise ValueError("somebody else has written it")
    return fields


def unchecked(data: bytes) -> bool:
    """Whether old lines are among these: they have no check."""
    return data.count(_CHECK) != data.count(b"\n")


def lines_with(data: bytes, text: str) -> bytes:
    """The whole lines in which this stands."""
    lines: list[bytes] = []
    wanted, at = text.encode(), 0
    while (at := data.find(wanted, at)) >= 0:
        lines.append(line_at(data, at))
        at = data.find(b"\n", at) + 1 or len(data)
    return b"".join(lines)


def info_of(known: IndexedRun, status: str | None) -> RunInfo:
    """What the lines of a run say of it, but for its status."""
    assert known.started is not None
    end = known.ended or {}
    return RunInfo(
        **{name: known.started[name] for name in STARTED},
        status=status,
        count=end.get("count"),
        head=end.get("head"),
        input=known.started.get("input"),
        pruned=Pruned(**end["pruned"]) if "pruned" in end else None,
    )


def known_of(info: RunInfo) -> IndexedRun:
    """The lines of a run that was pruned, by what is left of it."""
    assert info.pruned is not None
    started = {name: getattr(info, name) for name in STARTED}
    started |= {} if info.input is None else {"input": info.input}
    return IndexedRun(started, end_of_pruned(info, b""))


def end_of_pruned(info: RunInfo, skeleton: bytes) -> dict[str, Any]:
    """The line of the end of a run that was pruned, with the skeleton that is in its place."""
    assert info.pruned is not None
    end: dict[str, Any] = {
        "run": info.run,
        "status": info.status,
        "pruned": dataclasses.asdict(info.pruned),
    }
    if skeleton:
        tail = tail_of(skeleton)
        end |= {"count": tail.lines, "head": tail.head.hex(), "size": tail.size}
    return end


def line_at(data: bytes, at: int) -> bytes:
    """The whole line in which this place is; nothing where it has no end."""
    return data[data.rfind(b"\n", 0, at) + 1 : data.find(b"\n", at) + 1]


def parse(data: bytes) -> tuple[dict[str, IndexedRun], tuple[int, ...]]:
    """What lines of the index say of each run; the numbers of those that are damaged."""
    known: dict[str, IndexedRun] = {}
    damaged: list[int] = []
    for number, line in enumerate(data.split(b"\n")[:-1], start=1):
        try:
            _take(known, fields_of(line))
        except (AttributeError, KeyError, TypeError, ValueError):
            damaged.append(number)
    return known, tuple(damaged)


def _take(known: dict[str, IndexedRun], line: dict[str, Any]) -> None:
    run = line["run"]
    if not is_run_id(run):
        raise ValueError(run)
    if "name" in line:
        _check(line, name=str, mode=str, source=str | None, time=int)
        _check({"input": None, **line}, input=str | None)
        known.setdefault(run, IndexedRun()).started = line
    else:
        _check({"size": None, "pruned": None, **line}, status=str, size=int | None)
        if line.get("pruned") is not None:
            _check(line["pruned"], time=int, by=str, count=int, head=str)
        if "count" in line:
            _check(line, count=int, head=str)
        known.setdefault(run, IndexedRun()).ended = line


def _check(line: dict[str, Any], **types: Any) -> None:
    for name, type_ in types.items():
        if not isinstance(line[name], type_):
            raise TypeError(name)


def start_of(started: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept here of a `run.started`."""
    line = {name: started[name] for name in STARTED}
    return line | ({"input": started["input"]["digest"]} if "input" in started else {})


def first_of(trace: bytes, where: str) -> dict[str, Any] | None:
    """What the first line of a trace says of its run.

    None where its writer was killed before that line was whole: nothing ran in it.

    Raises:
        TraceCorrupt: the line is damaged.
    """
    if not trace:
        return None
    try:
        _, event = next(read_events(trace, where))
        return start_of(event)
    except (TraceCorrupt, KeyError, TypeError) as error:
        why = error.reason if isinstance(error, TraceCorrupt) else f"a run without {error}"
        raise TraceCorrupt(
            where,
            1,
            f"{why}; the index does not know either which job it belongs to: restore it from a "
            f"backup, or move it out of the store",
        ) from None


def in_order(whole: dict[str, IndexedRun], lost: dict[str, IndexedRun]) -> dict[str, IndexedRun]:
    """Both together: the lost ones by their time, and no run before the one that it builds on."""
    waiting = sorted(lost, key=lambda run: (_time(lost[run]), run), reverse=True)
    merged: dict[str, IndexedRun] = {}
    for run, each in whole.items():
        while waiting and _time(lost[waiting[-1]]) < _time(each):
            earlier = waiting.pop()
            merged[earlier] = lost[earlier]
        merged[run] = each
    merged |= {run: lost[run] for run in reversed(waiting)}
    ordered: dict[str, IndexedRun] = {}
    for run in merged:
        path: list[str] = []
        source: str | None = run
        while source in merged and source not in ordered and source not in path:
            path.append(source)
            source = (merged[source].started or {}).get("source")
        ordered |= {each: merged[each] for each in reversed(path)}
    return ordered


def _time(known: IndexedRun) -> int:
    assert known.started is not None
    time: int = known.started["time"]
    return time
