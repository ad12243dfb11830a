"""The open problems of a run: steps with an unknown outcome, and effects no longer requested."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from rollcage_views.runs import Run, Step
from rollcage_views.text import counted, visible

__all__ = ["Effect", "Standing", "resolve_commands", "standing", "words"]

_LISTED = 5
# statuses of an attempt that lists its replayed steps
_TOLD = ("partial", "paused", "halted", "error")


class Effect(NamedTuple):
    """A write, by the run and step where it first ran."""

    run: str
    step: int
    name: str

    def __str__(self) -> str:
        return f"step {self.step} ({visible(self.name)}) of run {self.run}"


@dataclasses.dataclass(frozen=True, slots=True)
class Standing:
    """The open problems of a run.

    Attributes:
        unknown: writes whose outcome is unknown.
        lost: performed writes whose result can't be replayed.
        left: performed writes that a new write left behind.
        ahead: writes of earlier attempts that the last attempt did not request.
        unclear: failed writes that may have happened.
    """

    unknown: list[Effect]
    lost: list[Effect]
    left: list[Effect]
    ahead: list[Effect]
    unclear: list[Effect] = dataclasses.field(default_factory=list["Effect"])

    def as_data(self) -> dict[str, Any]:
        """Return the problems for machines."""
        return {
            "unknown": [[each.run, each.step] for each in self.unknown],
            "not_replayable": [[each.run, each.step] for each in self.lost],
            "left_behind": [[each.run, each.step] for each in self.left],
            "not_asked_for": [[each.run, each.step] for each in self.ahead],
            "unclear": [[each.run, each.step] for each in self.unclear],
        }


def standing(seen: Run) -> Standing:
    """Return the open problems of a run; none are known for an imported run."""
    if seen.started.get("imported"):
        return Standing([], [], [], [])
    done = {
        (seen.id, row.step): row
        for row in seen.steps
        if row.stays_done and not row.accepted and (row.origin is None or row.origin[0] == seen.id)
    }
    left = {at for at, row in done.items() if row.left_by is not None or row.gone == "left"}
    ahead = _not_asked(seen)
    return Standing(
        unknown=_named([at for at, row in done.items() if row.state == "unknown"], done),
        lost=_named([at for at, row in done.items() if row.unreplayable], done),
        left=_named(sorted(left), done),
        ahead=_named([at for at in done if at not in left and at[1] in ahead], done),
        unclear=_named([at for at, row in done.items() if row.unclear], done),
    )


def _not_asked(seen: Run) -> set[int]:
    """Return the steps of earlier attempts that the last attempt did not replay.

    An attempt that undid steps looks at them without requesting them; the last requests of an
    attempt that died are unknown.
    """
    last = seen.attempts[-1] if seen.attempts else None
    if last is None or len(seen.attempts) == 1 or last.status not in _TOLD:
        return set()
    asked = last.answers | {*last.steps}
    found: set[int] = set()
    for row in seen.steps:  # a body's calls come after its step
        if row.step in asked or (row.parent is not None and row.parent in asked):
            asked.add(row.step)
        else:
            found.add(row.step)
    return found


def _named(ats: Iterable[tuple[str, int]], rows: Mapping[tuple[str, int], Step]) -> list[Effect]:
    return [Effect(*at, rows[at].name) for at in ats]


def words(stands: Standing, status: str, run: str, at: str) -> list[str]:
    """Return notes on a run, each a sentence or two with the command that helps.

    Args:
        stands: its open problems.
        status: its status.
        run: its id.
        at: its store for a command line.
    """
    texts = [
        f"{_begin(str(each))} has an unknown outcome. Find out whether it happened, then run: "
        f"{resolve_commands(each, at)}"
        for each in stands.unknown
    ]
    texts += [
        f"{_begin(str(each))} failed, and it may have happened: the same call is not made again. "
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
    """Return the two commands that record whether an effect with an unknown outcome happened.

    Args:
        effect: the effect.
        at: its store for a command line.
    """
    command = f"rollcage resolve {effect.run} {effect.step}{at}"
    return f"{command} --happened; or, if not: {command} --did-not-happen"


def _begin(text: str) -> str:
    return text[:1].upper() + text[1:]


def _several(effects: Sequence[Effect]) -> str:
    listed = ", ".join(map(str, effects[:_LISTED]))
    more = f" and {len(effects) - _LISTED} more" if len(effects) > _LISTED else ""
    return f"{counted(len(effects), 'effect')}, {listed}{more}"
