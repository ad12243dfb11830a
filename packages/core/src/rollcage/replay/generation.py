"""One trace of a lineage, read over what the older ones left.

A step stands where it last ran or was replayed; what was undone holds no longer, nor does what
came after it. Nothing here does I/O.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from rollcage.replay.path import Entry
from rollcage.replay.reading import TURNS, began, ended, link, put_undo
from rollcage.replay.steps import Origin, TraceSteps, branches_below
from rollcage.replay.undone import Undone, UndoneSteps, holds_anywhere, outermost

__all__ = ["Generation"]

_JOIN: Final[dict[str, Any]] = {
    "kind": "branch", "version": "", "args": {}, "effect": "write",
}  # fmt: skip

_OF_SOURCE: Final = 100_000  # batches that were undone where a fork begins, which is read alone
_NO_STEPS: Final = frozenset(
    {
        "run.stopped",
        "call.refused",
        "run.abandoned",
        "policy.loaded",
        "approval.requested",
        "approval.decided",
    }
)


class Generation:
    """One trace, event by event; then `merged` says what of it and of the older ones holds."""

    def __init__(
        self, number: int, older: dict[Origin, Entry], undone: Undone, forked: dict[str, int]
    ) -> None:
        self.opened: dict[str, tuple[str, str]] = {}  # branches: see `Recording`
        self.after: dict[str, tuple[str, ...]] = {}
        self._forked_in = forked  # the turn of each, of the trace that has opened it first
        self.settings: dict[str, Any] = {}
        self.waits = ""  # for what, where it ended like that and was not undone since
        self._steps = TraceSteps(number, older)
        self._undone = undone
        self._undone_steps = UndoneSteps(self._steps, undone)
        self._replaced: set[int] = set()  # own steps, by number, that own ones stand in place of
        # Branches that have left the older path: at which position, in which turn and step.
        self._left: dict[str, tuple[int, int, int]] = {}
        self._off: set[str] = set()  # branches that were forked after that, and those below them
        # Reads, pure and model calls that just run again: the new ones stand in their places.
        self._unfinished: dict[tuple[str, str], deque[Origin]] = {}
        self._of_branch: dict[str, list[Entry]] = {}  # older ones, until it is written to
        for at, entry in older.items():
            self._of_branch.setdefault(entry.branch, []).append(entry)
            if entry.effect not in ("pure", "read") or entry.undone:
                continue
            if entry.status not in ("ok", "blocked") or "cut" in entry.outcome:
                self._unfinished.setdefault((entry.branch, entry.key), deque()).append(at)

    @property
    def run(self) -> str:
        """The run whose trace it is."""
        return self._steps.run

    def read(self, event: dict[str, Any]) -> None:
        """Take an event in. Raises LookupError, TypeError or ValueError where it is none."""
        kind = event["event"]
        if kind == "step.finished":
            entry = self._steps.by_number[event["step"]]
            ended(entry, event)
            if "after" in event or "plan" in event:
                put_undo(entry, event)
        elif kind == "step.started":
            self._started(event)
        elif kind == "step.replayed":
            self._replayed(event)
        elif kind == "step.blocked":
            entry = self._entry(event)
            entry.status, entry.outcome = "blocked", event["verdict"]
            if "supersedes" in event:
                run, step = event["supersedes"]
                known = self._replace(entry, (run, step), undone=True)
                entry.undone = known is not None and known.undone  # is given back as it was
        elif kind == "step.resolved":
            self._resolved(event)
        elif kind in ("branch.forked", "branch.joined"):
            self._branch(event)
        elif kind == "run.started":
            self.settings, self._steps.run = event, event["run"]
        elif kind == "run.finished":
            self.waits = _waits(event)
        elif kind not in _NO_STEPS:
            self._undo(event)

    def _resolved(self, event: dict[str, Any]) -> None:
        entry = self._steps.by_number[event["step"]]
        was = entry.digest if entry.status == "ok" else None
        ended(entry, {"duration": entry.duration, **event})
        if was is not None:
            link(entry, was)
        if "after" in event or "plan" in event:
            put_undo(entry, event)

    def _replayed(self, event: dict[str, Any]) -> None:
        entry = self._entry(event)
        entry.run, entry.step, entry.turn = event["origin"]
        ended(entry, event)
        if "linked" in event:
            link(entry, event["linked"])
        put_undo(entry, event)
        origin = entry.run, entry.step
        known = self._steps.older.get(
            origin
        )  # it is given back as it was, though what it did is gone
        elsewhere = known is not None and known.branch != entry.branch and holds_anywhere(entry)
        gone = known is not None and known.undone and not elsewhere
        entry.undone = origin in self._undone.done or gone
        self._steps.replays[origin] = entry
        self._replace(entry, origin, undone=True)  # of a branch that is given back as it was

    def _branch(self, event: dict[str, Any]) -> None:
        if event["event"] == "branch.forked":
            place = event.get("conversation", ""), event.get("checkpoint", "")
            self.opened[event["name"]] = place
            if "after" in event:
                self.after[event["name"]] = tuple(map(str, event["after"]))
            after = self.after.get(event["name"], ())
            self._forked(event["name"], event.get("branch", ""), event["turn"], after)
            return
        entry = self._entry({**_JOIN, **event})
        entry.status, entry.digest = "ok", event["digest"]
        self._steps.joins[entry.name] = entry
        if "origin" in event:
            entry.run, entry.step, entry.turn = event["origin"]
            known = self._replace(entry, (entry.run, entry.step), undone=True)
            entry.undone = known is not None and known.undone
        elif entry.branch in self._of_branch:
            self._begun_anew(entry.branch)
        if "leaves" in event:
            self._left[entry.branch] = entry.position, entry.group, entry.number

    def _forked(self, name: str, parent: str, turn: int, after: tuple[str, ...]) -> None:
        """A branch was opened: off what has left the older path, it begins anew, whatever it was.

        Not by a call of the very turn that has left it.
        """
        left, era = self._left.get(parent), self._steps.number * TURNS + turn
        self._forked_in.setdefault(name, era)  # beside it: whatever came after that, in any trace
        follows = left is None or left[1] == era
        other = any(each in self._off or each in self._left for each in after)
        if follows and parent not in self._off and not other:
            return
        self._off.add(name)
        if not any(each == name or each.startswith(f"{name}/") for each in self._of_branch):
            return
        names = branches_below(name, self._steps.older.values()) or set()
        self._off |= names
        self._undone_steps.begun_anew(names)
        for each in self._steps.older.values():
            if each.branch in names and not (each.has_effect or holds_anywhere(each)):
                each.past = True

    def _undo(self, event: dict[str, Any]) -> None:
        """Take an event of an undo in. Raises ValueError where it is none."""
        kind = event["event"]
        if kind in ("undo.started", "undo.finished"):
            self.waits = ""
            if self._undone.read(event):
                self._undone_steps.mark_undone((event["of"][0], event["of"][1]))
        elif kind == "run.rewound":
            again, branch = bool(event.get("again")), event.get("branch", "")
            self._undone_steps.rewind(event["to"], branch, again=again)
            self._undone.rewinds += not branch
        else:
            raise ValueError(f"no event is called {kind!r}")

    def _started(self, event: dict[str, Any]) -> None:
        entry = self._entry(event)
        self._steps.by_number[entry.step] = entry
        if "reversible" in event or "before" in event:
            put_undo(entry, event)
        replaced = event.get("supersedes")
        if replaced is None and entry.effect in ("pure", "read"):
            again = self._unfinished.get((entry.branch, entry.key))
            replaced = again.popleft() if again else None
        if replaced is not None:
            self._replace(entry, (replaced[0], replaced[1]))
        if entry.branch in self._of_branch and entry.effect in ("write", "scope"):
            self._begun_anew(entry.branch)
        if "leaves" in event:
            self._left[entry.branch] = entry.position, entry.group, entry.number
        for run, step in event.get("orphans") or ():
            self._accept(run, step, by=(entry.run, entry.step))

    def _accept(self, run: str, step: int, *, by: Origin) -> None:
        """An effect was left behind on purpose, by that write: only an undo asks for it any more.

        Where a branch had come back, or a body had called others, so was all that was done there.
        """
        orphan = self._steps.older.get((run, step))
        if orphan is None:
            return
        below = orphan.name if orphan.kind == "branch" else f"#{orphan.fingerprint}"
        names = branches_below(below, self._steps.older.values()) or set()
        for each in self._steps.older.values():
            if each is orphan or each.branch in names:
                each.abandoned, each.accepted = True, by

    def _begun_anew(self, branch: str) -> None:
        """A branch is run again from where it was undone: what that was no longer counts.

        With all that was undone in one with it.
        """
        names, rolled = {branch}, self._undone.rolled
        branch = outermost(branch, rolled)
        steps = self._of_branch.get(branch, ())
        gone = [each.era for each in steps if each.undone and not each.past]
        if branch in rolled:
            names |= branches_below(branch, self._steps.older.values()) or set()
        elif gone:  # an undo of it was cut off: it is run again from there on, with its forks
            names |= self._forked_after(branch, min(gone))
        while (join := self._undone_join(branch)) is not None:  # nor does what came after that
            last = max(each.era for each in (join, *self._of_branch.get(branch, ())))
            branch = join.branch
            names |= self._forked_after(branch, last)
        self._undone_steps.begun_anew(names)
        for name in names:
            for each in self._of_branch.pop(name, ()):
                nothing = each.undone or (each.abandoned and not each.has_effect)
                failed = name != branch and each.status == "error"
                each.past = each.past or nothing or failed

    def _undone_join(self, branch: str) -> Entry | None:
        """How a branch had come back, where that was undone: its parent is run again from there."""
        for each in self._of_branch.get(branch.rpartition("/")[0], ()):
            if each.kind == "branch" and each.name == branch and each.undone and not each.past:
                return each
        return None

    def _forked_after(self, branch: str, era: int) -> set[str]:
        """The branches that were forked off this one, or those, after a turn."""
        inside = f"{branch}/" if branch else ""
        return {
            name
            for name, steps in self._of_branch.items()
            if name.startswith(inside) and name != branch and ("/" in name or name[:1] != "#")
            if all(each.era >= era for each in steps if not each.past)
        }

    def _replace(self, entry: Entry, older: Origin, *, undone: bool = False) -> Entry | None:
        """A step stands in the place of an older one, which it gives; None where that is gone."""
        if older[0] == self._steps.run:  # an undo that is continued
            self._replaced.add(older[1])
        known = self._steps.older.get(older)
        if known is None or (known.undone and not undone):
            return None
        entry.era, entry.seat = known.era, known.seat
        return self._steps.older.pop(older)

    def _entry(self, event: dict[str, Any]) -> Entry:
        """The step that an event is about, as one of this trace."""
        steps = self._steps
        entry = began(event, run=steps.run, generation=steps.number)
        known = len(steps.by_number) + len(steps.own) + len(steps.older)
        if self.settings.get("mode") == "fork":
            known += _OF_SOURCE
        if entry.position > known:
            raise ValueError(f"position {entry.position} is beyond all that was written")
        if entry.undoes is None:
            self._undone_steps.cut()
        steps.own.append(entry)
        return entry

    def merged(self) -> list[Entry]:
        """This trace's steps, then what the older ones left and still holds."""
        for origin in self._undone.done:  # replayed before that, in another run
            self._undone_steps.mark_undone(origin)
        self._undone_steps.cut()
        if self._replaced:
            self._steps.own = [
                e for e in self._steps.own if e.number not in self._replaced or e.undoes is None
            ]
        last: dict[str, int] = {}
        for entry in self._steps.own:
            since = self._left.get(entry.branch, (0, 0, 0))[2]  # what was seen before has new turns
            if entry.kind != "model" and entry.status != "blocked" and entry.number >= since:
                last[entry.branch] = max(last.get(entry.branch, 0), entry.group)
        self._undone_steps.mark_calls()
        for entry in self._steps.older.values():
            left = self._left.get(entry.branch)
            gone = left is not None and entry.effect != "pure" and entry.kind == "tool"
            gone = gone or (entry.branch in self._off and not holds_anywhere(entry))
            if left is not None and entry.since <= left[0] <= entry.position:
                if gone and last[entry.branch] == left[1]:
                    gone = False  # of the turn that left, which was cut off in its middle
                    entry.group, entry.position = left[1], left[0]
                entry.end = max(entry.end, entry.position)
            entry.abandoned = entry.abandoned or (gone and not entry.undone)
            if not gone or entry.has_effect or entry.undone or entry.half_done:
                self._steps.own.append(entry)
        self._continue_turns()
        return self._steps.own

    def _continue_turns(self) -> None:
        """New steps in a turn that an older trace has begun are of that turn, as its own are."""
        begun: dict[tuple[str, int], int] = {}
        for entry in self._steps.own:
            if entry.era < entry.group:
                turn = entry.branch, entry.group
                begun[turn] = max(begun.get(turn, 0), entry.era)
        for entry in self._steps.own if begun else ():
            if entry.era == entry.group:
                entry.era = begun.get((entry.branch, entry.group), entry.era)


def _waits(event: dict[str, Any]) -> str:
    """For what a run waits that ends with this event; empty: for nothing."""
    return str(event.get("reason") or "an approval") if event["status"] == "paused" else ""
