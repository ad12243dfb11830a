"""Combine everything that decides on the calls of a session, outer sessions included."""

from __future__ import annotations

import dataclasses
import inspect
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from rollcage.calls.stage import Guard, OfSession, Stage, overridden
from rollcage.errors import SessionError
from rollcage.gate.verdict import UNTRACKED, Rule, StepView, Verdict, rule_name
from rollcage.gate.verdict import decide as decide_by_rules
from rollcage.values.exceptions import describe_error
from rollcage.values.hiding import Hiding, Seal

if TYPE_CHECKING:
    from rollcage.contract.contract import Contract
    from rollcage.replay.call import Call
    from rollcage.session.session import Session
    from rollcage.trace.run import Event, Outcome, Step

__all__ = ["Entry", "Gate", "RunSoFar", "view_of"]

_log: Final = logging.getLogger("rollcage")

Entry = Rule | Guard | Stage | OfSession
"""An entry of `Session(gate=[…])`."""

_Decide = Callable[["Call"], Verdict | None]
_Settled = Callable[["Call | None", "Outcome", "Step | None"], None]
_ScreenUndo = Callable[["Contract"], Verdict | None]
_Screen = Callable[["Contract", Callable[..., Any] | None, str], Verdict | None]


class Gate:
    """Decide on the calls of one session; deny over ask over allow.

    Attributes:
        entries: all entries, the outermost session first.
        stages: the stages among the own entries, which surround the calls of the session.
        decides: the guards and rules, by the names under which verdicts are recorded.
        settles: the guards to notify of ended calls.
        screens: the guards that examine a tool before the arguments of a call are bound.
        undo_screens: the guards that examine a tool before an undo uses it or a plan names it.
        strict: whether arguments that need coercion are refused.

    Raises:
        SessionError: an entry is no guard.
    """

    def __init__(self, given: Iterable[Entry], session: Session) -> None:
        self._session = session
        self.own = self.entries = tuple(map(_own, given))
        self.stages: tuple[Stage, ...] = ()
        self.decides: tuple[tuple[str, _Decide], ...] = ()
        self.settles: tuple[_Settled, ...] = ()
        self.screens: tuple[tuple[str, _Screen], ...] = ()
        self.undo_screens: tuple[_ScreenUndo, ...] = ()
        self.strict = False
        for each in self.own:
            self.strict = self.strict or getattr(each, "strict", False)
            self._take(each)

    def _take(self, each: Rule | Guard | Stage) -> None:
        if not isinstance(each, (Guard, Stage)):
            self.decides += ((rule_name(each), _by_rule(each, self._session)),)
            return
        if isinstance(each, Stage):
            self.stages += (each,)
        decide, screen = overridden(each, "decide", Guard), overridden(each, "screen", Guard)
        screen_undo = overridden(each, "screen_undo", Guard)
        settled = None if isinstance(each, Stage) else overridden(each, "settled", Guard)
        if settled is not None:
            watch = _Watched(self._session, type(each).__qualname__, decide, settled)
            decide = watch.decide
            self.settles += (watch.settled,)
        if decide is not None:
            self.decides += ((type(each).__qualname__, decide),)
        if screen is not None:
            self.screens += ((type(each).__qualname__, screen),)
        if screen_undo is not None:
            self.undo_screens += (screen_undo,)

    def within(self, around: Gate) -> None:
        """Apply the gate of the outer session to these calls as well."""
        self.entries = (*around.entries, *self.own)
        self.decides = (*around.decides, *self.decides)
        self.settles = (*around.settles, *self.settles)
        self.screens = (*around.screens, *self.screens)
        self.undo_screens = (*around.undo_screens, *self.undo_screens)
        self.strict = self.strict or around.strict

    @property
    def enforces(self) -> bool:
        """Tell whether any entry blocks calls."""
        return any(getattr(each, "enforces", True) for each in self.entries)

    def describe(self, session: Session) -> list[Event]:
        """Return the descriptions of the session's own entries, for the attempt's line."""
        found: list[Event] = []
        for each in self.own:
            if not isinstance(each, (Guard, Stage)):
                found.append({"rule": rule_name(each)})
            elif (described := each.describes(session)) is not None:
                found.append(described)
        return found

    def screen(
        self, contract: Contract, body: Callable[..., Any] | None, kind: str
    ) -> Verdict | None:
        """Return the first denial of a tool with any arguments; None if it may be called."""
        for name, screen in self.screens:
            try:
                verdict = _checked_screen(screen(contract, body, kind))
            except Exception as error:  # noqa: BLE001 - whatever it raises, the call must not run
                verdict = _failed(error)
            if verdict is not None and verdict.decision == "deny":
                verdict = verdict if verdict.rule else dataclasses.replace(verdict, rule=name)
                return _without_secrets(verdict, self._session.attempt.seal)
        return None

    def check_undo(self, contract: Contract) -> None:
        """Refuse a tool that an undo would use.

        Raises:
            SessionError: a guard denies the tool, or failed to decide.
        """
        for screen in self.undo_screens:
            try:
                verdict = _checked_screen(screen(contract))
            except Exception as error:  # noqa: BLE001 - whatever it raises, the tool is not used
                verdict = _failed(error)
            if verdict is not None and verdict.decision == "deny":
                raise SessionError(f"an undo must not use it: {verdict.reason}")

    def decide(self, call: Call) -> Verdict | None:
        """Return the combined verdict on a call; None if it may run. A guard that raises denies."""
        found: Verdict | None = None
        call.view = None  # the view may be outdated since the last round
        for name, decide in self.decides:
            try:
                verdict = _checked(decide(call))
            except Exception as error:  # noqa: BLE001 - whatever it raises, the call must not run
                verdict = _failed(error)
            if verdict is None or verdict.decision == "allow":
                continue
            if not verdict.rule:
                verdict = dataclasses.replace(verdict, rule=name)
            if verdict.decision == "deny":
                return _without_secrets(verdict, call.attempt.seal)
            found = found or verdict
        return None if found is None else _without_secrets(found, call.attempt.seal)


class _Watched:
    """Wrap a guard that counts ended calls, and deny once a notification has failed."""

    def __init__(
        self, session: Session, name: str, decide: _Decide | None, settled: _Settled
    ) -> None:
        self._session, self._name = session, name
        self._decide, self._settled = decide, settled
        self._lost: Verdict | None = None

    def decide(self, call: Call) -> Verdict | None:
        if self._lost is not None or self._decide is None:
            return self._lost
        return self._decide(call)

    def settled(self, call: Call | None, outcome: Outcome, step: Step | None) -> None:
        try:
            self._settled(call, outcome, step)
        except Exception as error:  # noqa: BLE001 - whatever it is, it can count no longer
            reason = f"a guard lost count: {type(error).__name__}"
            self._lost = Verdict("deny", reason, "guard_failed", self._name)
            said = describe_error(error, self._session.attempt.seal)
            _log.error("guard %s failed on how a call ended: %s", self._name, said)


class RunSoFar:
    """Describe the run so far to rules; each value is computed when read."""

    __slots__ = ("_call", "_session")

    def __init__(self, session: Session, call: Call) -> None:
        self._session, self._call = session, call

    @property
    def id(self) -> str:
        """Return the run's id."""
        return self._session.run_id

    @property
    def name(self) -> str:
        """Return the name of the job."""
        return self._session.name

    @property
    def calls(self) -> int:
        """Return how many calls, replayed ones included, the session has made in this attempt."""
        session, call = self._session, self._call
        if call.attempt is session.attempt:
            return call.before - session.calls_before
        stats = session.attempt.stats  # the call is of a run inside of it
        return stats.calls + stats.seen - session.calls_before + call.before

    @property
    def tokens(self) -> int:
        """Return the tokens of the model calls; 0 if no stage counts them."""
        return 0

    @property
    def cost(self) -> float:
        """Return the cost of the calls; 0 if no stage counts it."""
        return 0.0

    @property
    def elapsed(self) -> float:
        """Return how long the session has been open (seconds).

        Raises:
            ValueError: the clock went backwards.
        """
        return self._session.elapsed() / 1e9


def view_of(call: Call, session: Session | None = None) -> StepView:
    """Return a call as rules see it; `session`: the session with the rule in its gate."""
    run = RunSoFar(session or call.session, call)
    shown: dict[str, Any] = {"run": run, "labels": UNTRACKED}
    for shows in call.hooks.shows:
        shown.update(shows(call) or ())
    values, arguments = call.shown()
    return StepView(
        kind=call.kind, contract=call.contract, args=values, agent=call.place.agent,
        branch=call.place.branch, calls=run.calls, data=arguments, key=call.key, **shown,
    )  # fmt: skip


def _own(given: Entry) -> Rule | Guard | Stage:
    """Return this session's instance of a gate entry.

    Raises:
        SessionError: the entry is no guard.
    """
    if not isinstance(given, type):
        each = given.of_session() if isinstance(given, OfSession) else given
        if isinstance(each, (Guard, Stage)) or callable(each):
            return each
    raise SessionError(
        f"{given!r} is not a guard: gate= takes policies, facades, functions of a StepView, and "
        f"guards"
    )


def _by_rule(rule: Rule, session: Session) -> _Decide:
    """Turn a rule into a decision on calls."""

    def decide(call: Call) -> Verdict | None:
        if session is not call.session:  # it sees the facts of its own session
            verdict = decide_by_rules(view_of(call, session), (rule,))
        else:
            if call.view is None:
                call.view = view_of(call)
            verdict = decide_by_rules(call.view, (rule,))
        return None if verdict.decision == "allow" else verdict

    return decide


def _checked(given: object) -> Verdict | None:
    """Return a guard's result after checking its type."""
    if given is None or (isinstance(given, Verdict) and given.is_whole):
        return given
    if inspect.iscoroutine(given):
        given.close()
        return Verdict("deny", "a guard is async: make it a plain method", "rule_invalid")
    return Verdict("deny", "a guard returned no verdict", "rule_invalid")


def _checked_screen(given: object) -> Verdict | None:
    """Return the answer of a screen: nobody can approve what it asks, for there is no call yet."""
    verdict = _checked(given)
    if verdict is not None and verdict.decision == "ask":
        return Verdict("deny", "a screen can't ask, only deny", "rule_invalid")
    return verdict


def _failed(error: Exception) -> Verdict:
    """Return the denial of a guard that raised, without the text of its error."""
    return Verdict("deny", f"a guard failed: {type(error).__name__}", "rule_error")


def _without_secrets(verdict: Verdict, seal: Seal) -> Verdict:
    """Replace the secrets that a verdict quotes: models and readers of logs see it.

    Where they can't be looked for, it denies, and quotes nothing.
    """
    if not isinstance(seal, Hiding) or seal.idle:
        return verdict
    try:
        reason, remedy = seal.hide(verdict.reason).value, seal.hide(verdict.remedy).value
        shadow = verdict.shadow and _without_secrets(verdict.shadow, seal)
    except Exception as error:  # noqa: BLE001 - whatever it raises, the call must not run
        why = f"its reason can't be looked through for secrets: {type(error).__name__}"
        return Verdict("deny", why, "gate_error", verdict.rule)
    return dataclasses.replace(verdict, reason=reason, remedy=remedy, shadow=shadow)
