"""Finds what is recorded of a call, and says what becomes of it; nothing is changed by that.

What it finds is taken when the call is admitted: until then, whatever had to be done first, it is
found anew.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple, Protocol

from rollcage.contract.contract import Contract
from rollcage.contract.drift import flaw_of
from rollcage.replay.matching import MatchCase, MatchRule, Probed, Way, matched
from rollcage.replay.orphans import Orphans
from rollcage.replay.path import Entry, Path
from rollcage.replay.recording import Recording
from rollcage.replay.world import Branch, Turn

__all__ = ["NEW", "Finder", "Match", "ProbeResult", "Sought", "StandIn"]


class ProbeResult(NamedTuple):
    """What was found out about a recorded step of unknown outcome.

    Attributes:
        happened: None if that is unknown.
        outcome: where it happened, as the trace holds it, and its digest (hex).
        undo: what that adds to what stands of its undo.
        why: why that is unknown.
    """

    happened: bool | None
    outcome: dict[str, Any] | None = None
    digest: str = ""
    undo: dict[str, Any] | None = None
    why: str = ""


class Sought(Protocol):
    """A call that has arrived, as it is looked for."""

    @property
    def kind(self) -> str:
        """`tool` or `model`."""
        ...

    @property
    def contract(self) -> Contract:
        """Of its tool."""
        ...

    @property
    def key(self) -> str:
        """Its content identity (hex)."""
        ...

    @property
    def asked_key(self) -> str:
        """That of the call as it was asked for, before its arguments were changed (hex)."""
        ...

    @property
    def args(self) -> Mapping[str, Any]:
        """Its canonical arguments, as the trace holds them."""
        ...

    @property
    def branch(self) -> Branch:
        """Where it stands."""
        ...

    @property
    def turn(self) -> Turn:
        """In which it was issued."""
        ...

    @property
    def slot(self) -> int:
        """Its place in that."""
        ...

    @property
    def checkpoint(self) -> str:
        """Its place in a framework's memory; empty without one."""
        ...

    @property
    def placed(self) -> bool:
        """Whether it has a place among reads and writes."""
        ...

    @property
    def advances(self) -> bool:
        """Whether it moves the world on where it runs."""
        ...

    @property
    def compensates(self) -> bool:
        """Whether it undoes a step."""
        ...

    @property
    def asks(self) -> bool:
        """Whether somebody is asked about it today, and has not approved."""
        ...

    @property
    def probe_result(self) -> ProbeResult | None:
        """The result of its probe for the recorded step."""
        ...

    def is_beside(self, entry: Entry) -> bool:
        """Whether a recorded step is of work that a framework does at once with this call's."""
        ...


class StandIn(NamedTuple):
    """What a fork was given in place of a tool.

    Attributes:
        given: a function of the arguments; or data, as the tool gives them.
        is_called: whether it is a function.
        error: is raised instead.
    """

    given: Any = None
    is_called: bool = False
    error: BaseException | None = None


class Match(NamedTuple):
    """What becomes of a call.

    Attributes:
        way: see `Way`.
        why: the name of the row, or of the check, that says so.
        entry: the recorded step that stands for it; of a call that is refused, the one that it is
            refused for.
        given: the same, as a probe has it by now.
        past: recorded steps before that one that hold no longer.
        orphans: the recorded effects that it would leave behind, where it runs.
        assumed: the recorded step is of another world: in a fork.
        stand_in: what stands for the call: in a fork.
    """

    way: Way
    why: str
    entry: Entry | None = None
    given: Entry | None = None
    past: tuple[Entry, ...] = ()
    orphans: tuple[Entry, ...] = ()
    assumed: bool = False
    stand_in: StandIn | None = None


NEW: Final = Match("run new", "new")


class Finder:
    """Finds the recorded steps that stand for the calls of a run.

    Args:
        recording: what is recorded; None where nothing is.
        live: whether what is not recorded may run.
        branches: those of the run that are open, by name.

    Attributes:
        orphans: the recorded effects that nobody has asked for.
    """

    def __init__(
        self, recording: Recording | None, branches: Mapping[str, Branch], *, live: bool
    ) -> None:
        self._recording = recording
        self._live = live
        self.orphans = Orphans(recording, branches)

    def find(self, sought: Sought, start: int) -> Match:
        """What becomes of a call whose turn started at position `start` of its branch's path."""
        past: tuple[Entry, ...] = ()
        while True:
            entry = self._candidate(sought, start, past)
            if entry is None:
                return self._nothing(sought, past)
            if entry.status == "ok" and entry.flaw is None:  # the table says nothing else of it
                return Match("give back", "recorded", entry, entry, past)
            given = _given(entry, sought.probe_result)
            row = self._row(sought, given)
            if row.way != "pass over":
                orphans: tuple[Entry, ...] = ()
                if row.way == "run again":
                    orphans = tuple(_orphans_of_failure(sought, given))
                return Match(row.way, row.name, entry, given, past, orphans)
            past += (entry,)

    # --- which recorded step ---------------------------------------------------------------------

    def _candidate(self, sought: Sought, start: int, past: Collection[Entry]) -> Entry | None:
        """The first recorded step that may stand for a call, but for those that are past."""
        recording, path, key = self._recording, sought.branch.path, sought.key
        if sought.compensates:  # what earlier undos did
            return None if path is None else path.find(key, start, sought.slot)
        if recording is None or sought.contract.source == "live":
            return None
        if sought.kind == "model":
            return recording.next_answer(key, past)
        if not sought.placed:
            entry = recording.pure.get(key)
            if entry is not None and entry not in past:
                return entry
        if path is None:
            return None
        entry = None
        if sought.branch.may_follow(sought.turn):
            entry = path.find(key, start, sought.slot, past)
        entry = entry or path.find_at(key, sought.checkpoint, past)
        if not sought.placed and self._live and entry is not None and entry.status != "blocked":
            return None
        return entry

    def _row(self, sought: Sought, entry: Entry) -> MatchRule:
        contract = sought.contract
        probed: Probed = "never"
        if entry.status == "unknown" and self._live:
            probed = _probed(sought, entry)
        return matched(
            MatchCase(
                entry.status,
                self._live,
                contract.effect,
                contract.on_miss or "undeclared",
                entry.has_effect,
                entry.effect in ("write", "scope"),
                entry.frontier,
                entry.flaw is not None,
                contract.idempotent,
                probed,
                sought.asks,
            )
        )

    # --- nothing stands for it -------------------------------------------------------------------

    def _nothing(self, sought: Sought, past: tuple[Entry, ...]) -> Match:
        """What becomes of a call that nothing recorded stands for."""
        recording, contract = self._recording, sought.contract
        if recording is None:
            return NEW
        if contract.source != "live":
            on_miss = contract.on_miss or "undeclared"
            row = matched(MatchCase("nothing", self._live, contract.effect, on_miss))
            if row.way == "refuse":
                return Match(row.way, row.name, past=past)
        path = sought.branch.path
        if path is None:
            return Match("run new", "new", past=past)
        other = self._other_effect(sought, recording, path)
        if other is not None:
            return Match("refuse", "another effect", other, other, past)
        changes = sought.advances and contract.effect in ("write", "scope")
        if not changes or sought.compensates:
            return Match("run new", "new", past=past)
        if path.ahead and contract.on_miss != "live":
            other = path.other_version(contract.name, sought.args, contract.version)
            if other is not None:
                return Match("refuse", "another version", other, other, past)
        if path.was_undone:
            return Match("refuse", "undone", past=past)
        return Match("run new", "new", past=past, orphans=tuple(self._orphans_of(sought, path)))

    def _other_effect(self, sought: Sought, recording: Recording, path: Path) -> Entry | None:
        """The same call, recorded when its tool declared another effect."""
        contract = sought.contract
        if contract.on_miss == "live" or sought.kind != "tool":
            return None
        other = path.effect_of(sought.key) if contract.effect == "pure" else None
        if contract.effect in ("write", "scope"):
            other = recording.pure.get(sought.key)
        return other if other is not None and other.status == "ok" else None

    # --- what it would leave behind --------------------------------------------------------------

    def _orphans_of(self, sought: Sought, path: Path) -> Iterable[Entry]:
        """The recorded effects that a new write would leave behind.

        Not those that other calls of its own turn may still ask for: a turn whose last calls were
        never recorded goes on, whoever of it comes first.
        """
        left = path.left() if path.ahead else []
        if left and sought.branch.may_follow(sought.turn):
            at, slot = path.position, sought.slot
            left = [e for e in left if e.abandoned or e.since > at or e.slot == slot]
        left += self.orphans.after(sought.branch.name)
        left += self.orphans.in_ended_bodies()
        if not path.entries:
            left += self.orphans.unopened(sought.branch.name)
        return (each for each in left if each.abandoned or not sought.is_beside(each))


def _orphans_of_failure(sought: Sought, entry: Entry) -> Iterable[Entry]:
    """The recorded effects after an earlier failure that is run again."""
    path = sought.branch.path
    if path is None or sought.compensates or entry.kind != "tool" or entry.status != "error":
        return ()
    if not (sought.branch.following and path.advances(entry)):
        return ()
    return (each for each in path.later(entry) if each.has_effect)


def _probed(sought: Sought, entry: Entry) -> Probed:
    """The probe result of a step of unknown outcome, or whether it can be asked."""
    result = sought.probe_result
    if result is not None:
        return "nobody knows" if result.happened is None else "did not happen"
    contract = sought.contract
    if contract.effect != "write":
        return "never"
    known = entry.undo is not None and "before" in entry.undo
    can_tell = contract.probe is not None or (contract.observe is not None and known)
    return "can be" if can_tell else "never"


def _given(entry: Entry, result: ProbeResult | None) -> Entry:
    """A recorded step as its probe has it: one of unknown outcome that has happened."""
    if result is None or not result.happened or entry.status != "unknown":
        return entry
    assert result.outcome is not None
    given = copy.copy(entry)
    given.status, given.outcome, given.digest = "ok", result.outcome, result.digest
    given.flaw = flaw_of(result.outcome)
    given.probed = True
    if result.undo:
        given.undo = {**(entry.undo or {}), **result.undo}
    return given
