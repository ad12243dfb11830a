"""A run and all that it builds on: steps of unknown outcome, and orphaned effects."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from rollcage.errors import RollcageError
from rollcage.store import Reader, store_option
from rollcage.trace import LOG_FORMAT, Run, Step, read_run

from rollcage_views.text import counted, visible

__all__ = [
    "Effect",
    "LineageStatus",
    "is_log",
    "lineage_of",
    "resolve_commands",
    "standing",
    "words",
]

_LISTED = 5


class Effect(NamedTuple):
    """A write, by the run and step where it first ran."""

    run: str
    step: int
    name: str

    def __str__(self) -> str:
        return f"step {self.step} ({visible(self.name)}) of run {self.run}"


@dataclasses.dataclass(frozen=True, slots=True)
class LineageStatus:
    """The status of a run and of what it builds on.

    Attributes:
        sources: the runs that it builds on, oldest first, with their statuses.
        unknown: writes whose outcome is unknown.
        lost: writes that were performed, and whose result a replay can't give back.
        left: writes that were performed, and that a new one was let past.
        ahead: writes that its source performed, and that it has not asked for.
        unclear: writes that failed, and may have happened all the same.
    """

    sources: list[tuple[str, str]]
    unknown: list[Effect]
    lost: list[Effect]
    left: list[Effect]
    ahead: list[Effect]
    unclear: list[Effect] = dataclasses.field(default_factory=list["Effect"])

    def as_data(self) -> dict[str, Any]:
        """For machines."""
        return {
            "sources": [run for run, _ in self.sources],
            "unknown": [[each.run, each.step] for each in self.unknown],
            "not_replayable": [[each.run, each.step] for each in self.lost],
            "left_behind": [[each.run, each.step] for each in self.left],
            "not_asked_for": [[each.run, each.step] for each in self.ahead],
            "unclear": [[each.run, each.step] for each in self.unclear],
        }


def lineage_of(reader: Reader, seen: Run) -> list[Run]:
    """The run and those that it builds on, oldest first, as far as they are there."""
    runs = [seen]
    known = {seen.id}
    source = None if _is_fork(seen) or is_log(seen) else seen.started.get("source")
    while source is not None and source not in known:
        known.add(source)
        try:
            older = read_run(reader.read(source))
        except RollcageError:
            break  # gone, or damaged: reading that one reports it
        runs.append(older)
        source = None if _is_fork(older) else older.started.get("source")
    runs.reverse()
    return runs


def is_log(seen: Run) -> bool:
    """Return whether all attempts at the job are in one log."""
    return bool(seen.started["format"] == LOG_FORMAT)


def _is_fork(seen: Run) -> bool:
    """Whether it only began as another one: it says itself all that it was given of that."""
    return bool(seen.started["mode"] == "fork")


def standing(runs: Sequence[Run]) -> LineageStatus:
    """The status of the newest of these, given with what it builds on, oldest first."""
    if is_log(runs[-1]):
        return _of_log(runs[-1])
    effects: dict[tuple[str, int], Step] = {}
    unknown: dict[tuple[str, int], Step] = {}
    accepted: dict[tuple[str, int], None] = {}
    for seen in runs:
        run = seen.id
        for row in seen.steps:
            instead = row.supersedes or (row.origin[:2] if row.origin else None)
            if instead is not None and row.state not in ("unknown", "blocked"):
                unknown.pop((instead[0], instead[1]), None)
            if row.supersedes is not None and row.state != "blocked":
                effects.pop((row.supersedes[0], row.supersedes[1]), None)
            accepted |= dict.fromkeys((of[0], of[1]) for of in row.orphans or ())
            if row.origin is None and row.stays_done:
                (unknown if row.state == "unknown" else effects)[run, row.step] = row
        for of, status in seen.undone.items():
            if status in ("verified", "compensated"):
                effects.pop(of, None)
                unknown.pop(of, None)
    newest = runs[-1]
    if newest.started["mode"] == "imported":  # no run resumes it, and no effect is known
        return LineageStatus([], [], [], [], [])
    looks_back = newest.started["mode"] in ("offline", "verify", "fork")
    asked = set(() if looks_back else _asked(runs))
    ahead = [
        at
        for at in ({} if looks_back else effects)
        if at[0] != newest.id and at not in asked and at not in accepted
    ]
    return LineageStatus(
        [(seen.id, seen.status) for seen in runs[:-1]],
        _named(unknown, unknown),
        _named([at for at, row in effects.items() if row.unreplayable], effects),
        _named([at for at in accepted if at in effects], effects),
        _named(ahead, effects),
    )


def _of_log(seen: Run) -> LineageStatus:
    """The status of a run whose attempts are in one log."""
    done = {
        (seen.id, row.step): row
        for row in seen.steps
        if row.stays_done and not row.accepted and (row.origin is None or row.origin[0] == seen.id)
    }
    left = {at for at, row in done.items() if row.left_by is not None or row.gone == "left"}
    ahead = _not_asked(seen)
    return LineageStatus(
        sources=[],
        unknown=_named([at for at, row in done.items() if row.state == "unknown"], done),
        lost=_named([at for at, row in done.items() if row.unreplayable], done),
        left=_named(sorted(left), done),
        ahead=_named([at for at in done if at not in left and at[1] in ahead], done),
        unclear=_named([at for at, row in done.items() if row.unclear], done),
    )


def _not_asked(seen: Run) -> set[int]:
    """The steps of earlier attempts that the last one was given no answer by.

    One that undid steps looks at them without asking; of one that died, nobody knows what it was
    given last.
    """
    last = seen.attempts[-1] if seen.attempts else None
    if last is None or len(seen.attempts) == 1 or last.status not in ("partial", "halted", "error"):
        return set()
    asked = {n for span in last.replayed for n in range(span[0], span[1] + 1)} | {*last.steps}
    found: set[int] = set()
    for row in seen.steps:  # a body's calls come after its step
        if row.step in asked or (row.parent is not None and row.parent in asked):
            asked.add(row.step)
        else:
            found.add(row.step)
    return found


def _asked(runs: Sequence[Run]) -> Iterable[tuple[str, int]]:
    """The steps that the newest run was given back, with all that their bodies had called."""
    given = {(row.origin[0], row.origin[1]) for row in runs[-1].steps if row.origin}
    yield from given
    for seen in runs:
        run = seen.id
        inside: set[int] = {step for at, step in given if at == run}
        for row in seen.steps:  # a body's calls come after its step
            if row.parent in inside:
                inside.add(row.step)
                yield run, row.step


def _named(ats: Iterable[tuple[str, int]], rows: Mapping[tuple[str, int], Step]) -> list[Effect]:
    return [Effect(*at, rows[at].name) for at in ats]


def words(stands: LineageStatus, status: str, run: str, reader: Reader) -> list[str]:
    """Notes on a run, each a sentence or two with the command that helps.

    Args:
        stands: the status of its lineage.
        status: of the run.
        run: its id.
        reader: the store that holds it.
    """
    at = store_option(reader)
    texts = [
        f"{_begin(str(each))} has an unknown outcome. Find out whether it happened, then run: "
        f"{resolve_commands(each, at)}"
        for each in stands.unknown
    ]
    texts += [
        f"{_begin(str(each))} failed, and it may have happened: the same call again is not made. "
        f"Find out, then run: {resolve_commands(each, at)}"
        for each in stands.unclear
    ]
    texts += [
        f"{_begin(str(each))} was performed, and its result can't be replayed: a resume halts "
        f"there. Record its result: rollcage resolve {each.run} {each.step}{at} --happened "
        f"--result JSON"
        for each in stands.lost
    ]
    if stands.left:
        texts.append(f"Left behind by a new write, and still done: {_several(stands.left)}.")
    if stands.ahead and status in ("unfinished", "paused"):
        texts.append(f"Not asked for so far: {_several(stands.ahead)}.")
    elif stands.ahead:
        texts.append(
            f"Never asked for: {_several(stands.ahead)}. They stay done; to undo them: "
            f"rollcage undo {run}{at}; to keep them: rollcage abandon {run}{at}"
        )
    return texts


def resolve_commands(effect: Effect, at: str) -> str:
    """The two commands that record whether an effect of unknown outcome happened.

    Args:
        effect: which one.
        at: what a command line needs to find its store.
    """
    command = f"rollcage resolve {effect.run} {effect.step}{at}"
    return f"{command} --happened; or, if not: {command} --did-not-happen"


def _begin(text: str) -> str:
    return text[:1].upper() + text[1:]


def _several(effects: Sequence[Effect]) -> str:
    listed = ", ".join(map(str, effects[:_LISTED]))
    more = f" and {len(effects) - _LISTED} more" if len(effects) > _LISTED else ""
    return f"{counted(len(effects), 'effect')}, {listed}{more}"
