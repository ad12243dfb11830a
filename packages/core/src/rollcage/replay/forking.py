"""Finds what stands for the calls of a fork: the record, the change, or what it was given.

Up to the step that is changed, the program has to make the recorded calls. After it, a call is
given what is recorded of it, in another world too: then that is an assumption, and marked so. What
is not recorded runs where it changes nothing. Nothing is changed by finding it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rollcage.errors import SessionError
from rollcage.replay.finding import Finder, Match, Sought, StandIn
from rollcage.replay.fork import Fork
from rollcage.replay.path import Entry, Path
from rollcage.replay.recording import Recording
from rollcage.replay.steps import around
from rollcage.replay.world import Branch

__all__ = ["Forking", "is_gone"]

_HARMLESS: Final = ("pure", "read", "scope")


class Forking(Finder):
    """Finds what stands for the calls of a fork.

    Args:
        fork: what was asked for.
        recording: of the run that it is a fork of.
        branches: those of the fork's run that are open, by name.
        run: the name of that run, in messages.

    Raises:
        SessionError: the step can't be changed like that.
    """

    def __init__(
        self, fork: Fork, recording: Recording, branches: Mapping[str, Branch], run: str
    ) -> None:
        super().__init__(recording, branches, live=True)
        self._recorded = recording
        self.fork = fork
        self._replaced = fork.replaced
        self.at = None if fork.at is None else _step_of(recording, fork.at, run)
        self.entered: tuple[Entry, ...] = ()
        self.passed = self.at is None  # what comes now is after the change
        self._given: list[Entry] = []  # of the steps that the run took back itself
        self._before = 0  # of a pure step: how many of its kind are asked for before it
        if self.at is not None:
            bodies = {entry.fingerprint: entry for entry in recording.entries}
            self.entered = tuple(around(self.at, bodies))
            self._check(self.at, run)
            same = [e for e in recording.entries if e.key == self.at.key and e.kind == "tool"]
            self._before = same.index(self.at) if self.at in same else 0

    def _check(self, at: Entry, run: str) -> None:
        name = f"step {at.number} of run {run} ({at.name})"
        if at.kind == "branch":
            raise SessionError(f"{name} is how a branch came back: fork at a call")
        if at.kind == "model" and self.fork.change in ("args", "error"):
            raise SessionError(
                f"{name} is a call of a model: change the result of a tool that it saw, or the "
                f"model with model="
            )
        body = next((e for e in self.entered if e.effect == "write"), None)
        if body is not None and not self.fork.live:
            raise SessionError(
                f"{name} was called in the body of step {body.number} ({body.name}), a write, and "
                f"that body would run again. Fork at step {body.number}, or perform writes: live"
            )

    # --- what becomes of a call ------------------------------------------------------------------

    def find(self, sought: Sought, start: int) -> Match:
        """See `Finder.find`."""
        if sought.compensates:  # what the fork did itself is undone
            return super().find(sought, start)
        if sought.asked_key != sought.key and self._is_changed(sought):
            return self._unrecorded(sought, self.at)
        entry, assumed = self._recorded_of(sought, start)
        if entry is not None and entry in self.entered and not self.passed:
            return Match("run again", "entered again", entry, entry)
        if entry is not None and entry is self.at and not self.passed:
            return self._changed(sought, entry)
        return self._after_change(sought, entry, assumed=assumed, passed=self.passed)

    @property
    def missed(self) -> Entry | None:
        """The step that was to be changed, as long as nobody has asked for it."""
        return None if self.passed else self.at

    def gave(self, entry: Entry) -> None:
        """A recorded step was asked for; where that is the one that is changed, it is passed."""
        if is_gone(entry):
            self._given.append(entry)
        if entry is self.at:
            self.passed = True
        elif self.at is not None and self.at.key == entry.key:
            self._before -= 1

    def _is_changed(self, sought: Sought) -> bool:
        """Whether a call is the one whose arguments were changed."""
        return not self.passed and self.at is not None and self.at.key == sought.asked_key

    def _changed(self, sought: Sought, entry: Entry) -> Match:
        """What becomes of the call at the step that is changed."""
        fork = self.fork
        if fork.change == "result":
            return Match("stand in", "changed", entry, entry, stand_in=StandIn(fork.result))
        if fork.change == "error":
            error = fork.error
            raised = RuntimeError(error) if isinstance(error, str) else error
            return Match("stand in", "changed", entry, entry, stand_in=StandIn(error=raised))
        if fork.change == "args":
            return Match("edit", "changed", entry, entry)
        return self._after_change(sought, entry, assumed=False, passed=True)

    def _after_change(
        self, sought: Sought, entry: Entry | None, *, assumed: bool, passed: bool
    ) -> Match:
        """What becomes of a call; `passed`: it is after the change."""
        contract = sought.contract
        if passed and sought.kind == "tool" and contract.name in self._replaced:
            replaced = self._replaced[contract.name]
            if replaced.contract.effect in _HARMLESS:
                given = StandIn(replaced.function, is_called=True)
                return Match("stand in", "replaced", entry, entry, stand_in=given)
            return self._unrecorded(sought, entry)
        if passed and sought.kind == "model" and self.fork.change == "model":
            return Match("run new", "new", entry)
        if entry is None:
            if not passed and sought.kind == "tool":  # a model may be asked in other words
                return Match("refuse", "missing")
            return self._unrecorded(sought, None)
        if entry.status == "blocked":
            rejected = entry.decided is not None and "rejected_by" in entry.decided
            if not passed or (rejected and sought.asks):
                return Match("refuse", "blocked", entry, entry)
            return self._unrecorded(sought, entry)
        if _is_usable(entry):
            return Match("give back", "recorded", entry, entry, assumed=assumed)
        return self._unrecorded(sought, entry)

    def _unrecorded(self, sought: Sought, entry: Entry | None) -> Match:
        """What becomes of a call that nothing recorded can answer, whatever `entry` is of it."""
        contract, fork = sought.contract, self.fork
        if sought.kind == "tool" and contract.name in fork.answers:
            given = fork.answers[contract.name]
            answer = StandIn(given, is_called=callable(given))
            return Match("stand in", "answered", entry, entry, stand_in=answer)
        if contract.effect in _HARMLESS or sought.kind == "model":
            if contract.on_miss in ("fail", "error_result") and entry is None:
                missing = "missing" if contract.on_miss == "fail" else "missing, as an error"
                return Match("refuse", missing)
            return Match("run new", "new", entry)
        if not fork.live:
            return Match("refuse", "would write", entry, entry)
        if entry is not None and entry.status == "unknown":
            return Match("refuse", "unknown", entry, entry)  # it may be done already
        return Match("run new", "new", entry)

    # --- what is recorded of it ------------------------------------------------------------------

    def _recorded_of(self, sought: Sought, start: int) -> tuple[Entry | None, bool]:
        """The recorded step that stands for a call, and whether that is assumed to hold here."""
        recording, branch = self._recorded, sought.branch
        key, path = sought.asked_key, branch.path
        if sought.kind == "model":
            return recording.next_answer(sought.key), False
        if not sought.placed:
            if self.at is not None and not self.passed and self.at.key == key and not self._before:
                return self.at, False
            entry = recording.pure.get(key)
            if entry is not None:
                return entry, False
        if path is not None:
            if branch.may_follow(sought.turn):
                entry = path.find(key, start, sought.slot) or path.find_at(key, sought.checkpoint)
                if entry is not None:
                    return entry, False
            entry = self._elsewhere(branch, key) if self.passed else None
            return entry or self._undone_in_the_run(path, key), True
        return None, False

    def _undone_in_the_run(self, path: Path, key: str) -> Entry | None:
        """The first recorded step of this call that the run itself took back, or left behind."""
        gone = (e for e in path.entries if is_gone(e) and e.key == key and e not in self._given)
        return next(filter(_is_usable, gone), None)

    def _elsewhere(self, branch: Branch, key: str) -> Entry | None:
        """The first recorded step of this very call that nobody has asked for, in another world.

        In its own branch; of a body or a branch that nothing is recorded of, in any that is.
        """
        recorded, paths = branch.path, self._recorded.paths
        if recorded is not None and recorded.entries:
            return _first(recorded, key)
        own = branch.name.startswith("#")
        same = (paths[name] for name in paths if name and name.startswith("#") == own)
        return next((e for path in same if (e := _first(path, key)) is not None), None)


def _first(path: Path, key: str) -> Entry | None:
    used = path.taken.used
    own = (e for e in path.entries if e.key == key and e.kind != "branch")
    return next((e for e in own if e not in used and not is_gone(e) and _is_usable(e)), None)


def is_gone(entry: Entry) -> bool:
    """Whether a step is on no path any more."""
    return entry.undone or entry.abandoned


def _is_usable(entry: Entry) -> bool:
    """Whether what became of a step can be given back."""
    return entry.status in ("ok", "error") and entry.flaw is None


def _step_of(recording: Recording, number: int, run: str) -> Entry:
    """The step of this number in the newest of the traces that were read.

    Raises:
        SessionError: it has none, or it was left behind.
    """
    newest = max((entry.generation for entry in recording.entries), default=0)
    own = [entry for entry in recording.entries if entry.generation == newest]
    found = next((entry for entry in own if entry.number == number), None)
    if found is None:
        last = max((entry.number for entry in own), default=0)
        raise SessionError(
            f"run {run} has no step {number} that a fork could begin at; "
            f"{f'its last one is {last}' if last else 'it has none'}"
        )
    return found
