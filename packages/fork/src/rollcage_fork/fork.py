"""Fork a recorded run: change one thing, and see the consequences.

The log of a fork is a copy of the run's log, then `forked`, the `changed` parts, and an attempt.
`forked` makes all steps so far *borrowed*: they answer calls, but this run must not take them back.
`changed` sets another outcome or other arguments for a step, and reopens the calls around it; or
names the steps that do not answer, because another model or tool is asked.

A dry fork ends before its first new write, even when resumed. A live fork writes, with its own
keys, claims and undo. A fork can be forked again.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson
from rollcage import Contract, ForkEnded, SessionError, Stage
from rollcage.session.adapters import Turn, miss, plain_body

from rollcage_fork import standing
from rollcage_fork.lines import HARMLESS, UNCHANGED, begin, check_same

if TYPE_CHECKING:
    from rollcage import Session
    from rollcage.calls.stage import Work
    from rollcage.replay.call import Call, Match
    from rollcage.session.adapters import Look, RunSource
    from rollcage.trace.run import Event, Run

__all__ = ["Fork", "Replacement", "fork_of"]

_log: Final = logging.getLogger("rollcage")


_CHANGES: Final = ("change", "result", "error", "args", "model", "policy", "tools")
_OF_A_STEP: Final = ("change", "result", "error", "args")


class Replacement(NamedTuple):
    """Hold a function that replaces a recorded tool."""

    contract: Contract
    function: Callable[..., Any]


@dataclasses.dataclass(frozen=True, eq=False)
class Fork(Stage):
    """Describe a what-if: a recorded run with one change, for `Session(stages=[Fork(...)])`.

    Recorded steps answer calls up to the changed step, and after it wherever the same call is made.
    Unrecorded reads and models run; an unrecorded write is answered by `answers`, or ends the fork.

    Args:
        run: the run: its id, the path of its log, or `(store, id)`.
        at: the changed step; or the step from which another model or other tools are used. 0: from
            the start.
        change: the change in the form of the log, in place of the following arguments: `{"outcome":
            {"status": "ok", "value": …}}`, or `{"args": {…}}` with all arguments.
        live: whether new writes are performed, and approvals requested.
        result: another result of the step, as data in the form of the tool's result.
        error: an error of the step; a text is raised as a `RuntimeError`.
        args: other arguments of the step; arguments that are not named stay.
        model: the name of another model. The program reads it (`fork_of`) and makes that model;
            each call of it runs.
        policy: the policy that decides from the start, in place of the gate's entry of its class:
            any entry of a gate.
        tools: functions declared with `@rollcage.tool`: each runs in place of the tool of its name,
            unless it is a write.
        answers: by name of a tool, the answer to an unrecorded call: a value, or a function of the
            arguments.

    Raises:
        SessionError: more than one change is given; `at` is missing, or no step.
    """

    run: RunSource
    at: int = 0
    change: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    live: bool = False
    _: dataclasses.KW_ONLY
    result: Any = UNCHANGED
    error: BaseException | str | None = None
    args: Mapping[str, Any] | None = None
    model: str = ""
    policy: Any = None
    tools: Iterable[Callable[..., Any]] = ()
    answers: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        object.__setattr__(self, "tools", tuple(self.tools))
        object.__setattr__(self, "answers", dict(self.answers))
        if type(self.at) is not int or self.at < 0:
            raise SessionError(f"at={self.at!r} is not a step; steps count from 1")
        changed = self._changed()
        if len(changed) > 1:
            raise SessionError(
                f"a fork changes one thing, not {' and '.join(changed)}: fork the fork to change "
                f"another one"
            )
        if changed and changed[0] in _OF_A_STEP and not self.at:
            raise SessionError(f"{changed[0]}= changes one step: say which with at=")
        if self.at and not changed:
            raise SessionError(f"at={self.at} names a step: say what changes there")
        if self.policy is not None and self.at:
            raise SessionError("another policy decides from the start: leave at= out")
        _ = self.replaced

    def _changed(self) -> list[str]:
        has: dict[str, bool] = {name: bool(getattr(self, name)) for name in _CHANGES}
        has |= {"result": self.result is not UNCHANGED, "args": self.args is not None}
        has |= {"error": self.error is not None, "policy": self.policy is not None}
        return [name for name in _CHANGES if has[name]]

    @property
    def changes(self) -> str:
        """Return the kind of the change: `result`, `args` and so on; `code`: only the program."""
        changed = (self._changed() or ["code"])[0]
        if changed != "change":
            return changed
        outcome = self.change.get("outcome")
        return (
            "args" if outcome is None else {"error": "error"}.get(outcome.get("status"), "result")
        )

    @property
    def changes_a_step(self) -> bool:
        """Tell whether a step is changed."""
        return self.changes in ("result", "error", "args")

    @functools.cached_property
    def replaced(self) -> Mapping[str, Replacement]:
        """Return the functions of `tools`, by the names of the tools that they replace.

        Raises:
            SessionError: a function is not declared.
        """
        found: dict[str, Replacement] = {}
        for each in self.tools:
            contract = getattr(each, "__rollcage_contract__", None)
            if not isinstance(contract, Contract):
                raise SessionError(
                    f"{getattr(each, '__name__', each)!r} is not a tool: declare it with "
                    f"@rollcage.tool"
                )
            found[contract.name] = Replacement(contract, plain_body(each))
        return found

    @property
    def copies(self) -> RunSource:
        """Return the run to copy."""
        return self.run

    def gating(self, entries: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the entries of a session's gate in this fork, with its policy."""
        if self.policy is None:
            return entries
        kind = type(self.policy)
        return (*(each for each in entries if type(each) is not kind), self.policy)

    def copied(self, session: Session, run: Run, lines: list[Event]) -> list[Event]:
        """Return the first lines of the fork, and mark the copy as dry or live, for lists of runs.

        Raises:
            SessionError: the step does not exist, or can't be changed like this.
        """
        return begin(self, run, lines, session.seal)

    def resuming(self, session: Session, run: str) -> None:
        """Refuse to go on with another fork than this one.

        Raises:
            SessionError: the run was begun as another fork.
        """
        lines = [orjson.loads(line) for line in session.store.read(run)]
        check_same(self, run, lines, session.seal)

    def prepare(self, call: Call, match: Match) -> Work | None:
        """Supply an answer to a call that no recorded step answers.

        Raises:
            ReplayMiss: the program does not make the recorded calls before the changed step.
        """
        if match.kind == "hit" or call.simulates or call.supplied is not None:
            return None
        if call.kind == "tool":
            stand_in = self._stand_in(call)
            if stand_in is not None:
                return stand_in
        if match.step is not None or match.kind != "new":
            return None
        step = standing.assumed(call, match.look)
        if step is not None:
            return standing.assume(call, step)
        if call.kind != "tool" or (call.effect == "write" and not self.live):
            return None  # a new write ends a dry fork, wherever it stands
        if not self._is_reached(call.attempt.run) and not self._is_beside(call, match.look):
            raise call.attempt.halt(miss(call.attempt, call))
        return None

    def _stand_in(self, call: Call) -> Work | None:
        name = call.contract.name
        replaced = self.replaced.get(name)
        if replaced is not None and replaced.contract.effect in HARMLESS:
            if call.effect in HARMLESS:
                return standing.replace(call, replaced.function)
            return standing.supply(call, replaced.function)
        if replaced is None and name in self.answers:
            return standing.supply(call, self.answers[name])
        return None

    def marks(self, call: Call) -> Event | None:
        """Mark the step as simulated."""
        return standing.marks(call)

    def closed(self, session: Session, error: BaseException | None) -> str | None:
        """Report that the program never reached the changed step."""
        attempt = session.outermost.attempt
        ended = attempt.halted if isinstance(attempt.halted, ForkEnded) else None
        if error is not ended or attempt.halted is not ended or self._is_reached(attempt.run):
            return None
        _log.warning(
            "the fork never reached step %s (%s), so nothing was changed in it",
            self.at, attempt.run.steps[self.at].name,
        )  # fmt: skip
        return "partial" if ended is None else None

    def _is_reached(self, run: Run) -> bool:
        """Tell whether the changed step was asked for, or a call around it was answered.

        True for a fork without a changed step.
        """
        if not self.changes_a_step:
            return True
        step = run.steps[self.at]
        return step.taken or bool(step.gone) or step.claimed or run.is_consumed(step)

    def _is_beside(self, call: Call, look: Look | None) -> bool:
        """Tell whether a call and the changed step belong to parts of one turn, made at once."""
        run, branch = call.attempt.run, call.branch
        pos = branch.pos if look is None else branch.pos + look.move
        place = {level.branch: level for level in run.lineage(branch.name, pos)}
        for its in run.lineage_of(run.steps[self.at]):
            mine = place.get(its.branch)
            if mine is None or its.step is None:
                continue
            slot, turn = call.place.slot, call.turn
            if mine.step is not None:
                walk = call.attempt.branches.get(mine.step.inner)
                turn = Turn() if walk is None or walk.opened_in is None else walk.opened_in
                slot = mine.step.slot if mine.step.declared else None
            if its.turn in (mine.turn, turn.n, *turn.follows):
                return True
            is_slot = slot is not None and its.step.declared and its.step.slot != slot
            return is_slot and its.step.start <= mine.pos <= its.step.until
        return False

    def as_data(self) -> Event:
        """Return the fork in the form of the log, without the changes to steps."""
        data: Event = {"change": self.changes}
        if self.at:
            data["at"] = self.at
        named = {
            "model": self.model,
            "policy": str(getattr(self.policy, "name", "") or type(self.policy).__name__),
            "tools": ", ".join(self.replaced),
        }
        if to := named.get(self.changes):
            data["to"] = to
        if self.answers:
            data["answers"] = sorted(self.answers)
        return data


def fork_of(session: Session) -> Fork | None:
    """Return the fork of a session, given by the program or the environment; None without one.

    A program reads its `model`, and makes that model.
    """
    return session.copier if isinstance(session.copier, Fork) else None
