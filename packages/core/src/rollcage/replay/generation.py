"""One trace of a lineage, read over what the older ones left.

A step stands where it last ran or was replayed; what was undone holds no longer, nor does what
came behind it. Nothing here does I/O.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Any, Final, cast

from rollcage.contract.drift import flaw_of, raised
from rollcage.replay.path import DECIDED, UNKNOWN, UNKNOWN_DIGEST, Entry

__all__ = ["Generation", "Origin", "Undone", "around", "branches_below"]

_TURNS: Final = 1 << 40  # turns of one generation: more than any run has
_STATUSES: Final = frozenset({"ok", "error", "unknown", "not_started"})
_JOIN: Final[dict[str, Any]] = {
    "kind": "branch", "version": "", "args": {}, "effect": "write",
}  # fmt: skip

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

Origin = tuple[str, int]
"""A step by where it first ran: run and step."""

Seat = tuple[int, int]
"""Where a step was recorded last: by the trace, the newest first, and by the turn in it."""


class Undone:
    """What a lineage says of undos, by the steps that they were to undo.

    Attributes:
        done: they were undone.
        begun: an undo of them began and has not come to an end, or failed on its way.
        attempts: how often their undo was carried out and did not bring back what was before.
        rolled: the branches that were undone whole, as a transaction that raises is.
    """

    def __init__(self) -> None:
        self.done: set[Origin] = set()
        self.begun: set[Origin] = set()
        self.attempts: dict[Origin, int] = {}
        self.rolled: set[str] = set()

    def read(self, event: dict[str, Any]) -> bool:
        """Take an event of an undo in; whether it says that a step was undone."""
        run, step = event["of"]
        if event["event"] == "undo.started":
            self.begun.add((run, step))
            return False
        if event["status"] in ("verified", "compensated"):
            self.done.add((run, step))
            return True
        if event["status"] == "failed" and event.get("differs") is not None:
            self.attempts[run, step] = self.attempts.get((run, step), 0) + 1
            self.begun.discard((run, step))
        return False


class Generation:
    """One trace, event by event; then `merged` says what of it and of the older ones holds."""

    def __init__(self, number: int, older: dict[Origin, Entry], undone: Undone) -> None:
        self.number = number
        self.undone = undone
        # Branches in which steps were undone, and the position of the first of those.
        self.cuts: dict[str, int] = {}
        self.cut_at: dict[str, Seat] = {}  # the same, by when the first of those was recorded last
        self.reopened: list[Entry] = []  # scopes in whose bodies steps were undone
        self.replaced: set[int] = set()  # own steps, by number, that own ones stand in place of
        self.older = older
        # By the branch, as it came back last.
        self.joins = {e.name: e for e in older.values() if e.kind == "branch" and not e.undone}
        self.entries: list[Entry] = []
        self.by_step: dict[int, Entry] = {}
        self.replays: dict[Origin, Entry] = {}
        # Branches that have left the older path: at which position, in which turn and step.
        self.left: dict[str, tuple[int, int, int]] = {}
        self.off: set[str] = set()  # branches that were forked behind that, and those below them
        self.opened: dict[str, tuple[str, str]] = {}  # branches: see `Recording`
        self.after: dict[str, tuple[str, ...]] = {}
        self.settings: dict[str, Any] = {}
        self.run = ""
        self.waits = ""  # for what, where it ended like that and was not undone since
        # Reads, pure and model calls that just run again: the new ones stand in their places.
        self.unfinished: dict[tuple[str, str], deque[tuple[str, int]]] = {}
        self.of_branch: dict[str, list[Entry]] = {}  # older ones, until it is written to
        for at, entry in older.items():
            self.of_branch.setdefault(entry.branch, []).append(entry)
            if entry.effect not in ("pure", "read") or entry.undone:
                continue
            if entry.status not in ("ok", "blocked") or "cut" in entry.outcome:
                self.unfinished.setdefault((entry.branch, entry.key), deque()).append(at)

    def read(self, event: dict[str, Any]) -> None:
        """Take an event in. Raises LookupError, TypeError or ValueError where it is none."""
        kind = event["event"]
        if kind == "step.finished":
            entry = self.by_step[event["step"]]
            self._outcome(entry, event)
            if "after" in event or "plan" in event:
                _put_undo(entry, event)
        elif kind == "step.started":
            self._started(event)
        elif kind == "step.replayed":
            self._replayed(event)
        elif kind == "step.blocked":
            entry = self._entry(event)
            entry.status, entry.outcome = "blocked", event["verdict"]
            if "supersedes" in event:
                run, step = event["supersedes"]
                self._replace(entry, (run, step))
        elif kind == "step.resolved":
            self._resolved(event)
        elif kind in ("branch.forked", "branch.joined"):
            self._branch(event)
        elif kind == "run.started":
            self.settings, self.run = event, event["run"]
        elif kind == "run.finished":
            self.waits = _waits(event)
        elif kind not in _NO_STEPS:
            self._undo(event)

    def _resolved(self, event: dict[str, Any]) -> None:
        entry = self.by_step[event["step"]]
        was = entry.digest if entry.status == "ok" else None
        self._outcome(entry, {"duration": entry.duration, **event})
        if was is not None:  # what came behind it was recorded on its first word
            entry.digest, entry.resolved = was, entry.digest
        if "after" in event or "plan" in event:
            _put_undo(entry, event)

    def _replayed(self, event: dict[str, Any]) -> None:
        entry = self._entry(event)
        entry.run, entry.step, entry.turn = event["origin"]
        self._outcome(entry, event)
        if "linked" in event:
            bytes.fromhex(event["linked"])
            entry.digest, entry.resolved = event["linked"], entry.digest
        _put_undo(entry, event)
        origin = entry.run, entry.step
        known = self.older.get(origin)  # it is told as it was, though what it did is gone
        elsewhere = known is not None and known.branch != entry.branch and _holds_anywhere(entry)
        gone = known is not None and known.undone and not elsewhere
        entry.undone = origin in self.undone.done or gone
        self.replays[origin] = entry
        self._replace(entry, origin, undone=True)  # of a branch that is told as it was

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
        self.joins[entry.name] = entry
        if "origin" in event:
            entry.run, entry.step, entry.turn = event["origin"]
            known = self._replace(entry, (entry.run, entry.step), undone=True)
            entry.undone = known is not None and known.undone
        elif entry.branch in self.of_branch:
            self._begun_anew(entry.branch)
        if "leaves" in event:
            self.left[entry.branch] = entry.position, entry.group, entry.number

    def _forked(self, name: str, parent: str, turn: int, after: tuple[str, ...]) -> None:
        """A branch was opened: off what has left the older path, it begins anew, whatever it was.

        Not by a call of the very turn that has left it.
        """
        left = self.left.get(parent)
        follows = left is None or left[1] == self.number * _TURNS + turn
        other = any(each in self.off or each in self.left for each in after)
        if follows and parent not in self.off and not other:
            return
        self.off.add(name)
        if not any(each == name or each.startswith(f"{name}/") for each in self.of_branch):
            return
        names = branches_below(name, self.older.values()) or set()
        self.off |= names
        self.undone.rolled -= names
        for each in self.older.values():
            if each.branch in names and not (each.has_effect or _holds_anywhere(each)):
                each.past = True

    def _undo(self, event: dict[str, Any]) -> None:
        """Take an event of an undo in. Raises ValueError where it is none."""
        kind = event["event"]
        if kind in ("undo.started", "undo.finished"):
            self.waits = ""
            if self.undone.read(event):
                self._take_back((event["of"][0], event["of"][1]))
        elif kind == "run.rewound":
            self._rewind(event["to"], event.get("branch", ""))
        else:
            raise ValueError(f"no event is called {kind!r}")

    def _started(self, event: dict[str, Any]) -> None:
        entry = self._entry(event)
        self.by_step[entry.step] = entry
        if "reversible" in event or "before" in event:
            _put_undo(entry, event)
        replaced = event.get("supersedes")
        if replaced is None and entry.effect in ("pure", "read"):
            again = self.unfinished.get((entry.branch, entry.key))
            replaced = again.popleft() if again else None
        if replaced is not None:
            self._replace(entry, (replaced[0], replaced[1]))
        if entry.branch in self.of_branch and entry.effect in ("write", "scope"):
            self._begun_anew(entry.branch)
        if "leaves" in event:
            self.left[entry.branch] = entry.position, entry.group, entry.number
        for run, step in event.get("orphans") or ():
            self._accept(run, step, by=(entry.run, entry.step))

    def _accept(self, run: str, step: int, *, by: Origin) -> None:
        """An effect was left behind on purpose, by that write: only an undo asks for it any more.

        Where a branch had come back, so was all that was done in it.
        """
        orphan = self.older.get((run, step))
        if orphan is None:
            return
        names: set[str] = set()
        if orphan.kind == "branch":
            names = branches_below(orphan.name, self.older.values()) or names
        for each in self.older.values():
            if each is orphan or each.branch in names:
                each.abandoned, each.accepted = True, by

    def _begun_anew(self, branch: str) -> None:
        """A branch is run again from where it was undone: what that was is told no longer.

        With all that was undone in one with it.
        """
        names, rolled = {branch}, self.undone.rolled
        branch = _outermost(branch, rolled)
        steps = self.of_branch.get(branch, ())
        gone = [each.era for each in steps if each.undone and not each.past]
        if branch in rolled:
            names |= branches_below(branch, self.older.values()) or set()
        elif gone:  # an undo of it was cut off: it is run again from there on, with its forks
            names |= self._forked_behind(branch, min(gone))
        while (join := self._undone_join(branch)) is not None:  # nor does what came after that
            last = max(each.era for each in (join, *self.of_branch.get(branch, ())))
            branch = join.branch
            names |= self._forked_behind(branch, last)
        rolled -= names
        for name in names:
            for each in self.of_branch.pop(name, ()):
                nothing = each.undone or (each.abandoned and not each.has_effect)
                failed = name != branch and each.status == "error"
                each.past = each.past or nothing or failed

    def _undone_join(self, branch: str) -> Entry | None:
        """How a branch had come back, where that was undone: its parent is run again from there."""
        for each in self.of_branch.get(branch.rpartition("/")[0], ()):
            if each.kind == "branch" and each.name == branch and each.undone and not each.past:
                return each
        return None

    def _forked_behind(self, branch: str, era: int) -> set[str]:
        """The branches that were forked off this one, or those, behind a turn."""
        inside = f"{branch}/" if branch else ""
        return {
            name
            for name, steps in self.of_branch.items()
            if name.startswith(inside) and name != branch and ("/" in name or name[:1] != "#")
            if all(each.era >= era for each in steps if not each.past)
        }

    def _replace(self, entry: Entry, older: Origin, *, undone: bool = False) -> Entry | None:
        """A step stands in the place of an older one, which it gives; None where that is gone."""
        if older[0] == self.run:  # an undo that is continued
            self.replaced.add(older[1])
        known = self.older.get(older)
        if known is None or (known.undone and not undone):
            return None
        entry.era, entry.seat = known.era, known.seat
        return self.older.pop(older)

    def _entry(self, event: dict[str, Any]) -> Entry:
        get = event.get
        entry = Entry()
        entry.run = self.run
        entry.step = entry.number = event["step"]
        entry.turn = turn = event["turn"]
        entry.generation = self.number
        entry.group = entry.era = self.number * _TURNS + turn
        entry.slot = entry.seat = event["slot"]
        entry.branch = get("branch", "")
        entry.agent = get("agent", "")
        entry.call_id = get("call_id", "")
        entry.conversation = get("conversation", "")
        entry.checkpoint = get("checkpoint", "")
        entry.kind = event["kind"]
        entry.name = event["name"]
        entry.version = event["version"]
        entry.args = event["args"]
        entry.effect = event["effect"]
        entry.key = event["key"]
        entry.fingerprint = get("fingerprint", "")
        entry.world = get("world", "")
        entry.position = position = event["position"]
        entry.since = get("since", position)
        entry.joined = get("joined", False)
        for number in (entry.step, turn, entry.slot, position, entry.since):
            if type(number) is not int or number < 0:
                raise ValueError(f"{number!r} is no number of a place")
        if position > len(self.by_step) + len(self.entries) + len(self.older):
            raise ValueError(f"position {position} is beyond all that was written")
        for digest in (entry.fingerprint, entry.world):
            bytes.fromhex(digest)  # or it is refused here
        entry.end = position + entry.joined
        entry.status = "unknown"
        entry.outcome = UNKNOWN
        entry.digest = UNKNOWN_DIGEST
        entry.duration = 0
        entry.flaw = None
        entry.frontier = entry.used = entry.abandoned = entry.undone = entry.probed = False
        entry.past = False
        entry.resolved = None
        entry.labels = ()
        entry.undo = entry.undoes = entry.decided = entry.accepted = None
        if "approval" in event or "asked" in event:
            entry.decided = _decided(event)
        if "undoes" in event:
            run, step = event["undoes"]
            entry.undoes = run, step
        elif self.cuts:
            self._cut()
        self.entries.append(entry)
        return entry

    @staticmethod
    def _outcome(entry: Entry, event: dict[str, Any]) -> None:
        outcome = event["outcome"]
        usage = outcome.get("usage")
        if type(event["duration"]) is not int or outcome["status"] not in _STATUSES:
            raise ValueError("an outcome of another form")
        if usage is not None and not all(type(each) is int for each in usage.values()):
            raise ValueError("tokens are counted in integers")
        bytes.fromhex(event["digest"])
        entry.outcome = outcome
        entry.status = outcome["status"]
        entry.digest = event["digest"]
        entry.duration = event["duration"]
        entry.flaw = outcome.get("lossy")
        if "labels" in event:
            entry.labels = _labels(event["labels"]) or entry.labels
        if "drift" in outcome:
            entry.flaw = flaw_of(outcome)
            if entry.effect != "write" and raised(outcome) is not None:
                entry.status = "error"  # as any failure of a tool that changes nothing

    # --- what was undone ---------------------------------------------------------------------

    def _take_back(self, origin: Origin) -> None:
        """A step was undone: it holds no longer, nor does what came behind it in its branch."""
        entry = self.older.get(origin) or self.replays.get(origin)
        if entry is None and origin[0] == self.run:
            entry = self.by_step.get(origin[1])
        if entry is None or entry.undone:  # None: of a run that is not read
            return
        bodies = [each for each in around(entry, self._bodies()) if each.is_settled]
        while entry is not None and not entry.undone:
            entry.undone = True
            self._cut_at(entry)
            entry = self.joins.get(entry.branch)  # it came back with what is gone: nor does that
        for body in bodies:  # it had ended with what is gone
            self._cut_at(body)
            if body.effect == "scope":
                self.reopened.append(body)
            else:
                _let_go(body)

    def _cut_at(self, entry: Entry) -> None:
        first = self.cuts.get(entry.branch, entry.position)
        self.cuts[entry.branch] = min(first, entry.position)
        seat = _recorded(entry)
        self.cut_at[entry.branch] = min(self.cut_at.get(entry.branch, seat), seat)

    def _standing(self) -> set[str]:
        """The fingerprints of the steps in whose bodies something was changed that stands."""
        bodies = self._bodies()
        found: set[str] = set()
        for entry in bodies.values():
            writes = (entry.kind, entry.effect) == ("tool", "write") and entry.undoes is None
            if not (writes and entry.has_effect and entry.branch):
                continue
            outers = list(around(entry, bodies))
            if not any(outer.undone and self._was_undone(outer) for outer in outers):
                found.update(outer.fingerprint for outer in outers)
        return found

    def _was_undone(self, entry: Entry) -> bool:
        """Whether a step was undone itself, and all that its body had called with it."""
        return (entry.run, entry.step) in self.undone.done

    def _bodies(self) -> dict[str, Entry]:
        """The steps by their fingerprints."""
        return {e.fingerprint: e for e in (*self.older.values(), *self.entries)}

    def _take_back_calls(self) -> None:
        """What the body of a step had called is undone with it: its plan stands for that."""
        if not self.undone.done:
            return
        bodies = self._bodies()
        taken = {f for f, e in bodies.items() if e.undone and self._was_undone(e)}
        for entry in (*self.older.values(), *self.entries):
            if any(outer.fingerprint in taken for outer in around(entry, bodies)):
                entry.undone, entry.abandoned = True, False

    def _cut(self, *, whole: bool = False) -> None:
        """Let go what was recorded so far behind the steps that were undone.

        `whole`: their undo came to its end; else it was cut off, and the blocks that were undone
        behind them before that are told no longer.
        """
        cuts, self.cuts = self.cuts, {}
        seats, self.cut_at = self.cut_at, {}
        forgotten = set[str]() if whole else self._forgotten(seats)
        came_back: set[str] = set()  # behind what was undone: not what had been forked before that
        for join in self.joins.values():
            at = cuts.get(join.branch)
            if at is not None and join.since > at:
                came_back |= self._below(join.name) or set()

        def behind(entry: Entry) -> bool:
            at = cuts.get(entry.branch)
            return entry.branch in came_back or (at is not None and entry.position > at)

        came_back |= forgotten
        self._let_go(behind, self.entries, list(self.older.values()))
        self.undone.rolled -= forgotten
        for entry in (*self.older.values(), *self.entries) if forgotten else ():
            entry.past = entry.past or (entry.undone and entry.branch in forgotten)
        standing = self._standing()
        for scope in self.reopened:
            if scope.fingerprint in standing and not scope.abandoned:  # it is entered again
                scope.status, scope.outcome, scope.digest = "unknown", UNKNOWN, UNKNOWN_DIGEST
            else:
                _let_go(scope, standing)
        self.reopened.clear()

    def _forgotten(self, seats: Mapping[str, Seat]) -> set[str]:
        """The branches in which nothing stands that were begun behind what was undone around them.

        `seats` say, by branch, where the first step stands that was undone there.
        """
        began: dict[str, Seat] = {}
        stands: set[str] = set()
        for entry in (*self.older.values(), *self.entries) if seats else ():
            if entry.undoes is not None or entry.past:
                continue
            branch, seat = entry.branch, _recorded(entry)
            while "/" in branch or branch[:1] not in ("", "#"):
                began[branch] = min(began.get(branch, seat), seat)
                if entry.kind == "tool" and entry.has_effect:
                    stands.add(branch)
                branch = branch.rpartition("/")[0]
        names: set[str] = set()
        for branch, seat in began.items():
            cut = seats.get(branch.rpartition("/")[0])
            if cut is not None and seat > cut and branch not in stands:
                names |= self._below(branch) or set()
        return names

    def _rewind(self, to: int, branch: str) -> None:
        """What was recorded so far behind step `to`, or in a branch, holds no longer."""
        self._cut(whole=True)
        names = self._below(branch)
        if names is None:
            self._forget_blocks(to)
        else:
            self.undone.rolled |= names
        bodies = self._bodies()
        kept = {e.fingerprint for e in self.entries if e.number <= to and e.is_settled}

        def behind(entry: Entry) -> bool:
            if names is not None and entry.branch not in names:
                return False
            return not any(outer.fingerprint in kept for outer in around(entry, bodies))

        # What this run never came to lies behind all that it did.
        own = [entry for entry in self.entries if entry.number > to and behind(entry)]
        rest = [entry for entry in self.older.values() if behind(entry)]
        self._let_go(lambda _: True, own, rest)
        if names is None:  # the run stops there: of what was undone behind it nothing is told
            for entry in (*own, *rest):
                entry.past = entry.past or (entry.undone and entry.undoes is None)

    def _forget_blocks(self, to: int) -> None:
        """What was undone whole behind step `to` is told no longer: the run stops before it."""
        own = {entry.branch for entry in self.entries}
        behind = {entry.branch for entry in self.entries if entry.number > to}
        behind |= {entry.branch for entry in self.older.values() if entry.branch not in own}
        rolled = self.undone.rolled
        tops = {_outermost(name, rolled) for name in behind & rolled}
        gone = {name for name in rolled if _outermost(name, rolled) in tops}
        rolled -= gone
        for entry in (*self.entries, *self.older.values()):
            if entry.branch in gone and entry.undone:
                entry.past = True

    def _below(self, branch: str) -> set[str] | None:
        """The names of a branch, of those forked off it, and of the calls inside; None for all."""
        return branches_below(branch, [*self.older.values(), *self.entries])

    def _let_go(
        self, behind: Callable[[Entry], bool], own: list[Entry], older: list[Entry]
    ) -> None:
        """Of what holds no longer, effects are left behind; the rest is as if undone."""
        standing = self._standing()
        for entry in (*own, *older):
            if entry.undone or entry.undoes is not None or not behind(entry):
                continue
            if entry.kind == "tool" and entry.effect == "pure":
                continue
            _let_go(entry, standing)

    def merged(self) -> list[Entry]:
        """This trace's steps, then what the older ones left and still holds."""
        for origin in self.undone.done:  # replayed before that, in another run
            entry = self.older.get(origin) or self.replays.get(origin)
            if entry is not None and not entry.undone:
                self._take_back(origin)
        self._cut()
        if self.replaced:
            self.entries = [
                e for e in self.entries if e.number not in self.replaced or e.undoes is None
            ]
        last: dict[str, int] = {}
        for entry in self.entries:
            since = self.left.get(entry.branch, (0, 0, 0))[2]  # what was seen before has new turns
            if entry.kind != "model" and entry.status != "blocked" and entry.number >= since:
                last[entry.branch] = max(last.get(entry.branch, 0), entry.group)
        self._take_back_calls()
        for entry in self.older.values():
            left = self.left.get(entry.branch)
            gone = left is not None and entry.effect != "pure" and entry.kind == "tool"
            gone = gone or (entry.branch in self.off and not _holds_anywhere(entry))
            if left is not None and entry.since <= left[0] <= entry.position:
                if gone and last[entry.branch] == left[1]:
                    gone = False  # of the turn that left, which was cut off in its middle
                    entry.group, entry.position = left[1], left[0]
                entry.end = max(entry.end, entry.position)
            entry.abandoned = entry.abandoned or (gone and not entry.undone)
            if not gone or entry.has_effect or entry.undone or entry.half_done:
                self.entries.append(entry)
        return self.entries


def _recorded(entry: Entry) -> Seat:
    """Where a step stands in the order of what was recorded last.

    What the newest trace did not come to again lies behind all that it did.
    """
    return -entry.generation, entry.group


def _outermost(branch: str, rolled: set[str]) -> str:
    """The block that a branch was undone with."""
    while (outer := branch.rpartition("/")[0]) in rolled:
        branch = outer
    return branch


def _holds_anywhere(entry: Entry) -> bool:
    """Whether a step may be given back in any world."""
    return entry.kind == "model" or (entry.kind == "tool" and entry.effect == "pure")


def _let_go(entry: Entry, standing: Container[str] = ()) -> None:
    """A step holds no longer: its effect, its own or of a call in its body, is left behind.

    `standing` are the fingerprints of the steps in whose bodies such calls were made.
    """
    writes = entry.kind == "tool" and (entry.effect == "write" or entry.fingerprint in standing)
    if (writes and entry.has_effect) or entry.half_done:
        entry.abandoned = True
    else:
        entry.undone = True


def _labels(said: object) -> tuple[str, ...]:
    """The labels that an event says of a result."""
    if not isinstance(said, list):
        raise ValueError("labels are a list")
    labels = cast("list[object]", said)
    if not all(isinstance(each, str) for each in labels):
        raise ValueError("labels are words")
    return tuple(cast("list[str]", labels))


_OF_UNDO: Final = ("before", "plan", "after", "reversible")


def _waits(event: dict[str, Any]) -> str:
    """For what a run waits that ends with this event; empty: for nothing."""
    return str(event.get("reason") or "an approval") if event["status"] == "paused" else ""


def _put_undo(entry: Entry, event: dict[str, Any]) -> None:
    """Take in what an event says of a step's undo."""
    said: dict[str, Any] = {field: event[field] for field in _OF_UNDO if field in event}
    if said:
        entry.undo = {**(entry.undo or {}), **said}
    entry.probed = entry.probed or "probed" in event


def _decided(event: dict[str, Any]) -> dict[str, Any]:
    """What an event says of an approval."""
    said: dict[str, Any] = {field: event[field] for field in DECIDED if field in event}
    if "asked" in said:
        bytes.fromhex(said["asked"])
    return said


def around(entry: Entry, bodies: Mapping[str, Entry]) -> Iterator[Entry]:
    """The steps in whose bodies a step was called, from the innermost on.

    `bodies` are steps by their fingerprints.
    """
    branch = entry.branch
    while branch.startswith("#"):
        outer = bodies.get(branch[1:65])
        if outer is None:
            return
        yield outer
        branch = outer.branch


def branches_below(branch: str, entries: Iterable[Entry]) -> set[str] | None:
    """The names of a branch, of those forked off it, and of the calls inside; None for all."""
    if not branch:
        return None
    names = {branch}
    for entry in entries:  # in order: what a body calls comes behind its step
        at = entry.branch
        inside = at.startswith("#") and at.partition("/")[0] in names
        if at in names or inside or at.startswith(f"{branch}/"):
            names |= {at, f"#{entry.fingerprint}"}
    return names
