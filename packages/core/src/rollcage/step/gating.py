"""All that decides on a call before it runs, in this order (DESIGN §5).

The facade and the guards that screen (may the tool be called at all?); the labels of the arguments;
policy, rules and guards; limits, around the flow of the call. Whatever fails in here denies.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

from rollcage.contract.contract import Contract
from rollcage.errors import PolicyInvalid, SessionError
from rollcage.gate import (
    ALLOWED,
    Ask,
    FacadeGuard,
    Given,
    Labels,
    PolicyGuard,
    Settled,
    Settles,
    StepView,
    Terms,
    Verdict,
    WithLimits,
    decide,
    guards_of,
    policy_of,
    screened,
    user_input_here,
)
from rollcage.gate.verdict import stronger
from rollcage.step.call import Progress
from rollcage.step.metering import Start, limited
from rollcage.step.requests import Flow
from rollcage.step.run_so_far import RunSoFar
from rollcage.step.settling import settling
from rollcage.step.stats import Stats

__all__ = ["Above", "Gate", "Unguarded", "failed"]

_log: Final = logging.getLogger("rollcage")

Unguarded = Literal["warn", "refuse"]
"""What is done if a tool is called without any session while one is open."""


class Gate:
    """Decides on the calls of one session; from any thread.

    Args:
        job: the session's name.
        given: its guards, its policy and its facade among them.
        user_input: one text or several, for conditions with `named(…)`; None if none is given.
        strict: refuse arguments that would have to be coerced.
        clock: monotonic time in ns.

    Raises:
        SessionError: something given is no guard, or there are two policies or facades.
    """

    def __init__(
        self,
        job: str,
        given: Iterable[Given],
        *,
        user_input: str | Sequence[str] | None,
        strict: bool,
        clock: Callable[[], int],
    ) -> None:
        self._strict = strict
        self.guards = guards_of(given)
        self.policy = policy = self.guards.policy
        self.facade: FacadeGuard | None = None
        self._asks = bool(self.guards.names) or policy is not None
        self.above: Above | None = None
        self._inside: list[Gate] = []  # those of the sessions that are open in this one
        self._left = 0  # how many calls those made that were left
        self._clock = clock
        self.meter: WithLimits | None = None
        self.labels: Labels | None = None
        if policy is not None:
            self.labels = policy.labelling()
        elif self.guards.decides:
            self.labels = Labels()
        self._has_user_input = user_input is not None  # though it may be empty
        texts = (user_input,) if isinstance(user_input, str) else user_input
        self.user_input = () if texts is None else tuple(texts)
        self._run = RunSoFar(job, self.calls, clock)
        self._stats: Stats | None = None
        self._refuses: Verdict | None = None  # all calls: there is no policy that can be read
        self._lost: Verdict | None = None  # all calls: a guard has lost count
        self._reloading = threading.Lock()

    @property
    def asks(self) -> bool:
        """Whether there is anything to ask."""
        return self._asks or (self.above is not None and self.above.gate.asks)

    @property
    def unguarded(self) -> Unguarded:
        """What becomes of calls past the session if that is not said: no gate is gone around.

        A policy in shadow mode blocks nothing, so that it can be tried.
        """
        policy = self.policy
        enforced = policy is not None and (policy.mode != "shadow" or self._refuses is not None)
        any_other = bool(self.guards.names) or self.guards.facade is not None
        return "refuse" if enforced or any_other else "warn"

    def nest(self, above: Above) -> None:
        """The session is entered inside of another, whose gate holds here as well.

        Both decide on each call, deny over ask over allow, and the limits of both count it. The
        policy around is asked each time, so one that is loaded there counts here.
        """
        self.above = above
        above.gate.entered(self)
        around = above.gate.labels
        if around is not None:
            self.labels = (self.labels or Labels(around.mode)).within(around, above.step)

    def entered(self, inner: Gate) -> None:
        """A session was entered inside of this one."""
        self._inside.append(inner)

    def left(self, inner: Gate) -> None:
        """One was left; its calls still count."""
        if inner in self._inside:
            self._inside.remove(inner)
            self._left += inner.calls()

    def close(self) -> None:
        """The session is left."""
        if self.above is not None:
            self.above.gate.left(self)

    def open(self, run: str, facade: FacadeGuard | None) -> None:
        """The session is entered."""
        self.facade = facade
        self._asks = self._asks or facade is not None
        if self.policy is not None:
            self.meter = self.policy.metered(self._clock)
        self._run.begin(run, self.meter)

    def counted_by(self, stats: Stats) -> None:
        """Whose calls these are."""
        self._stats = stats

    def calls(self) -> int:
        """How many calls the run has placed, those of sessions inside of it included."""
        own = 0 if self._stats is None else self._stats.calls + self._stats.seen
        if self._inside:
            own += sum(each.calls() for each in [*self._inside])
        return own + self._left

    def reload(self, policy: PolicyGuard | str | os.PathLike[str]) -> PolicyGuard:
        """Decide by another policy from now on; if it can't be used, everything is denied.

        Raises:
            PolicyInvalid: it can't be used.
            SessionError: it has other limits, labels or prices: those hold for a whole session.
        """
        if self.policy is None:
            raise SessionError(
                "the session was opened without a policy, so it can load none: pass policy= to "
                "Session"
            )
        with self._reloading:
            try:
                loaded = policy_of(policy)
                field = self.policy.differs(loaded)
                if field:
                    raise SessionError(
                        f"the new policy has other {field}, and a session keeps those that it "
                        f"began with. Load a policy with the same {field}, or open another session"
                    )
            except (PolicyInvalid, SessionError, OSError) as error:
                message = f"the policy can't be used: {type(error).__name__}"
                remedy = "Every call is denied until a policy is loaded that can be used."
                self._refuses = Verdict("deny", message, "policy_invalid", "policy", remedy)
                raise
            self.policy, self._refuses = loaded, None
            return loaded

    def terms(self, actor: str) -> Terms:
        """The terms under which approvals count."""
        own = Terms(actor)
        if self.policy is not None:
            own = Terms(actor, self.policy.digest, *self.policy.approval_terms)
        return own if self.above is None else own.within(self.above.terms())

    @property
    def strict(self) -> bool:
        """Whether arguments that would have to be coerced are refused, here or around."""
        policy = self.policy
        own = policy is not None and policy.strict and policy.mode == "enforce"
        return own or self._strict or (self.above is not None and self.above.gate.strict)

    # --- a call ----------------------------------------------------------------------------------

    def refuses(
        self, contract: Contract, body: Callable[..., Any] | None, *, kind: str, undo: bool
    ) -> Verdict | None:
        """The refusal, by the facade or a guard that screens, of a tool that may not run at all."""
        refusal = None
        if self.facade is not None:
            refusal = self.facade.check(contract, body, kind=kind, undo=undo)
        if refusal is None and (self.guards.screens or self.above is not None):
            return self.screens(contract)
        return refusal

    def screens(self, contract: Contract) -> Verdict | None:
        """The refusal of a tool by the guards that screen, here and around."""
        refusal = screened(contract, self.guards.screens) if self.guards.screens else None
        if refusal is None and self.above is not None:
            return self.above.gate.screens(contract)
        return refusal

    def decide(self, progress: Progress) -> Verdict:
        """The verdict of all of them on a call: deny over ask over allow."""
        call = progress.call
        try:
            if self.facade is not None:
                undo = call.undoes is not None
                refused = self.facade.check(call.contract, kind=call.kind, undo=undo)
                if refused is not None:
                    return refused
            if self.labels is not None:
                progress.found = self.labels.of(call.arguments.values)
            if self.above is None:
                verdict = self._own(progress)
            else:
                verdict, asks = self.verdict_of(progress)
                if asks is not None:  # this session does not choose who may approve that
                    progress.ask = asks.ask
            return verdict if verdict.decision == "allow" else progress.found.explain(verdict)
        except Exception as error:  # noqa: BLE001 - whatever fails in here, the call must not run
            return failed(error)

    def verdict_of(self, progress: Progress) -> tuple[Verdict, Above | None]:
        """The verdict of policies and rules, of this session and of those around it.

        With it comes the outermost of those around that asks.
        """
        own = self._own(progress)
        if self.above is None:
            return own, None
        above, asks = self.above.gate.verdict_of(progress)
        if above.decision == "ask" and asks is None:
            asks = self.above
        return stronger(above, own), asks

    def _own(self, progress: Progress) -> Verdict:
        refused = self._refuses or self._lost
        if refused is not None:
            return refused
        verdict = ALLOWED
        token = user_input_here.set(self.user_input) if self._has_user_input else None
        try:
            for rule in self.guards.decides:
                if rule is None:
                    decided = self._by_policy(progress)
                else:
                    decided = decide(self._view(progress), (rule,))
                verdict = decided if verdict is ALLOWED else stronger(verdict, decided)
        finally:
            if token is not None:
                user_input_here.reset(token)
        return verdict

    def _by_policy(self, progress: Progress) -> Verdict:
        policy, call = self.policy, progress.call
        if policy is None:
            return ALLOWED
        try:
            verdict = policy.foregone(call.contract, call.kind, call.agent)
            if verdict is None:
                verdict = policy.decide(self._view(progress))
        except Exception as error:  # noqa: BLE001 - whatever fails in here, the call must not run
            verdict = Verdict("deny", f"the policy failed: {type(error).__name__}", "policy_error")
        return ALLOWED.with_shadow(verdict) if policy.mode == "shadow" else verdict

    def flow(
        self, progress: Progress, verdict: Verdict, start: Start, run: str, *, streamed: bool
    ) -> Flow:
        """The flow of a call of `run`, with what is counted and noted around it."""
        if progress.call.undoes is None:
            progress.labels, progress.streamed = self.labels, streamed
        flow = self.counted(progress, verdict, start, run)
        if self.is_settling:
            flow = settling(flow, self._view(progress), verdict, self.settled)
        return flow

    @property
    def is_settling(self) -> bool:
        """Whether a guard is notified how calls end, here or around."""
        own = bool(self.guards.settles)
        return own or (self.above is not None and self.above.gate.is_settling)

    def settled(self, details: Settled) -> None:
        """A call has ended: notify the guards, here and around."""
        for each in self.guards.settles:
            self._settle(each, details)
        if self.above is not None:
            self.above.gate.settled(details)

    def _settle(self, guard: Settles, details: Settled) -> None:
        try:
            guard.settled(details)
        except Exception as error:  # noqa: BLE001 - whatever it is, it can count no longer
            _log.exception("a guard failed on how a call of %s ended", details.view.name)
            message = f"a guard lost count: {type(error).__name__}"
            self._lost = Verdict("deny", message, "guard_failed", type(guard).__qualname__)

    def counted(
        self,
        progress: Progress,
        verdict: Verdict,
        start: Start,
        run: str,
        asked: Callable[[], None] | None = None,
    ) -> Flow:
        """The flow of a call of `run`, in the limits of this session and of those around it.

        `asked` is called if a limit of this one asks.
        """
        if self.above is not None:
            start = functools.partial(self._counted_above, self.above, start, run)
        meter, policy = self.meter, self.policy
        if meter is None or policy is None or progress.call.undoes is not None:
            return start(progress, verdict)
        if meter.limits_nothing and verdict.decision != "deny":
            progress.tallied_by += (meter,)
            return start(progress, verdict)
        if policy.mode == "shadow":
            return self._shadowed(progress, verdict, meter, start, run)
        return limited(progress, self._view(progress), verdict, meter, start, run, asked)

    def _counted_above(
        self, above: Above, start: Start, run: str, progress: Progress, verdict: Verdict
    ) -> Flow:
        def asked() -> None:
            progress.ask = above.ask

        return above.gate.counted(progress, verdict, start, run, asked)

    def _shadowed(
        self, progress: Progress, verdict: Verdict, meter: WithLimits, start: Start, run: str
    ) -> Flow:
        before = progress.pace

        def anyway(progress: Progress, shadow: Verdict) -> Flow:
            progress.pace = before
            return start(progress, verdict.with_shadow(stronger(verdict.shadow or ALLOWED, shadow)))

        if verdict.decision == "deny":
            return start(progress, verdict)
        return limited(progress, self._view(progress), ALLOWED, meter, anyway, run)

    def _view(self, progress: Progress) -> StepView:
        call, labels = progress.call, progress.found.labels
        if progress.view is not None:
            shown_to, shown, view = progress.view
            if shown_to is self and shown is call and view.labels is labels:
                return view
        view = StepView(
            call.kind,
            call.contract,
            MappingProxyType(call.arguments.values),
            call.agent,
            call.branch,
            self.calls(),
            call.arguments.canonical,
            call.key.hex(),
            self._run,
            labels,
        )
        progress.view = self, call, view
        return view


class Above(NamedTuple):
    """What a session inside of another one takes over from it.

    Attributes:
        gate: decides on each call, too.
        ask: who is asked if that asks.
        terms: under which an approval counts there.
        step: the number of the step whose body has opened the session; 0 outside of any.
    """

    gate: Gate
    ask: Ask | None
    terms: Callable[[], Terms]
    step: int


def failed(error: Exception) -> Verdict:
    """The verdict if the gate itself failed; its error's text may hold anything."""
    return Verdict("deny", f"the gate failed: {type(error).__name__}", "gate_error", "gate")
