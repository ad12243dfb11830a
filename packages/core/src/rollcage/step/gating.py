"""All that a session asks before a call, in one place and in this order (DESIGN §5).

The facade (is the tool approved at all?), the policy and the session's rules, then budgets and
loops, around the flow of the call. What labels the arguments carry is found out first. Whatever
fails in here denies.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from rollcage.contract.contract import Contract
from rollcage.errors import PolicyInvalid, SessionError
from rollcage.gate import (
    ALLOWED,
    Ask,
    Facade,
    Labels,
    Named,
    Rule,
    RunView,
    StepView,
    Terms,
    Verdict,
    decide,
)
from rollcage.gate.verdict import stronger
from rollcage.replay.path import Entry
from rollcage.step.call import Call, Stats
from rollcage.step.labelled import labelled
from rollcage.step.metering import Start, limited
from rollcage.step.requests import Flow
from rollcage.values.decoding import decode
from rollcage.values.exceptions import decode_exception

if TYPE_CHECKING:
    from rollcage.gate import Meter, Policy

__all__ = ["Above", "Gate", "failed"]


class _Run(RunView):
    """The run so far, looked at when a condition asks."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._looking = threading.Lock()
        self._latest = 0  # the clock's, when somebody asked before

    @property
    def id(self) -> str:
        """See `RunView`."""
        return self._gate.run_id

    @property
    def name(self) -> str:
        """See `RunView`."""
        return self._gate.job

    @property
    def calls(self) -> int:
        """See `RunView`."""
        return self._gate.calls()

    @property
    def tokens(self) -> int:
        """See `RunView`."""
        return self._gate.meter.spent.tokens if self._gate.meter else 0

    @property
    def cost(self) -> float:
        """See `RunView`."""
        return self._gate.meter.spent.cost if self._gate.meter else 0.0

    @property
    def elapsed(self) -> float:
        """See `RunView`."""
        with self._looking:
            now = self._gate.clock()
            if now < max(self._latest, self._gate.opened):
                raise ValueError("the clock went backwards")
            self._latest = now
        return (now - self._gate.opened) / 1e9


class Gate:
    """Decides on the calls of one session; from any thread.

    Args:
        job: the session's name.
        policy: the policy, or the file that it is in.
        rules: rules in Python, beside it.
        said: the user's own words, for conditions that ask what was `named`.
        strict: refuse arguments that would have to be coerced.
        clock: monotonic time in ns.

    Raises:
        PolicyInvalid: the file can't be used.
    """

    def __init__(
        self,
        job: str,
        *,
        policy: Policy | str | os.PathLike[str] | None,
        rules: Sequence[Rule],
        said: str | Sequence[str] | None,
        strict: bool,
        clock: Callable[[], int],
    ) -> None:
        self.job = job
        self._strict = strict
        self.rules = tuple(rules)
        self.policy = policy = _policy(policy)
        self.facade: Facade | None = None
        self._above: Above | None = None
        self._inside: list[Gate] = []  # those of the sessions that are open in this one
        self._left = 0  # how many calls those made that were
        self.clock = clock
        self.opened = 0
        self.run_id = ""
        self.meter: Meter | None = None
        self.labels = _labels(policy, self.rules)
        self._knowing: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
        self.words = () if said is None else (said,) if isinstance(said, str) else tuple(said)
        if said is not None:
            from rollcage.gate import surroundings

            self._knowing = functools.partial(surroundings, said=Named(self.words))
        self._run = _Run(self)
        self._stats: Stats | None = None
        self._refuses: Verdict | None = None  # all calls: there is no policy that can be read
        self._reloading = threading.Lock()

    @property
    def asks(self) -> bool:
        """Whether there is anything to ask."""
        own = bool(self.rules) or self.policy is not None or self.facade is not None
        return own or (self._above is not None and self._above.gate.asks)

    def nest(self, above: Above) -> None:
        """The session is entered inside of another: what that one says holds here as well.

        Both decide on each call, deny over ask over allow, and the limits of both count it. What
        the policy around says is asked for anew each time, so one that is loaded there counts here.
        """
        self._above = above
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
        if self._above is not None:
            self._above.gate.left(self)

    def open(self, run: str, facade: Facade | None) -> None:
        """The session is entered."""
        self.run_id, self.facade, self.opened = run, facade, self.clock()
        if self.policy is not None:
            from rollcage.gate import Meter

            self.meter = Meter(self.policy.limits, self.policy.prices, self.clock)

    def counted_by(self, stats: Stats) -> None:
        """Whose calls these are."""
        self._stats = stats

    def calls(self) -> int:
        """How many calls the run has placed, those of sessions inside of it included."""
        own = 0 if self._stats is None else self._stats.calls + self._stats.seen
        return own + self._left + sum(each.calls() for each in [*self._inside])

    def reload(self, policy: Policy | str | os.PathLike[str]) -> Policy:
        """Decide by another policy from now on; where it can't be used, everything is denied.

        Raises:
            PolicyInvalid: it can't be used.
            SessionError: it has other limits, labels or prices: those stand for a whole session.
        """
        if self.policy is None:
            raise SessionError("the session was opened without a policy: there is none to reload")
        with self._reloading:
            try:
                loaded = _policy(policy)
                assert loaded is not None
                self._check_same(loaded)
            except (PolicyInvalid, SessionError, OSError) as error:
                said = f"the policy can't be used: {type(error).__name__}"
                remedy = "Somebody has to mend it; nothing can be called until then."
                self._refuses = Verdict("deny", said, "policy_invalid", "policy", remedy)
                raise
            self.policy, self._refuses = loaded, None
            return loaded

    def _check_same(self, new: Policy) -> None:
        old = self.policy
        for field in ("limits", "prices", "labels", "flow"):
            if getattr(old, field) != getattr(new, field):
                raise SessionError(
                    f"the new policy has other {field}: what was counted by the old ones can't be "
                    f"held against them. Open another session"
                )

    def terms(self, actor: str) -> Terms:
        """Under which approvals count."""
        own = Terms(actor)
        if self.policy is not None:
            said = self.policy.approval
            approvers = None if said.approvers is None else frozenset(said.approvers)
            own = Terms(actor, self.policy.digest, said.seconds, approvers)
        return own if self._above is None else own.within(self._above.terms())

    @property
    def strict(self) -> bool:
        """Whether arguments that would have to be coerced are refused, here or around."""
        policy = self.policy
        own = policy is not None and policy.strict and policy.mode == "enforce"
        return own or self._strict or (self._above is not None and self._above.gate.strict)

    # --- a call ----------------------------------------------------------------------------------

    def refuses(
        self, contract: Contract, body: Callable[..., Any] | None, *, kind: str, undo: bool
    ) -> Verdict | None:
        """What the facade says of a tool that may not run at all."""
        return (
            None if self.facade is None else self.facade.check(contract, body, kind=kind, undo=undo)
        )

    def decide(self, call: Call) -> Verdict:
        """What all of them say of a call: deny over ask over allow."""
        try:
            return self._decide(call)
        except Exception as error:  # noqa: BLE001 - whatever fails in here, the call must not run
            return failed(error)

    def _decide(self, call: Call) -> Verdict:
        if self.facade is not None:
            undo = call.undoes is not None
            refused = self.facade.check(call.contract, kind=call.kind, undo=undo)
            if refused is not None:
                return refused
        if self.labels is not None:
            call.found = self.labels.of(call.arguments.values)
        verdict, asks = self.said_of(call)
        if asks is not None:  # who may say yes to that is not this session's to choose
            call.ask = asks.ask
        return call.found.explain(verdict)

    def said_of(self, call: Call) -> tuple[Verdict, Above | None]:
        """What policies and rules say, of this session and of those around it.

        With the outermost of those around it that asks.
        """
        own = self._own(call)
        if self._above is None:
            return own, None
        above, asks = self._above.gate.said_of(call)
        if above.decision == "ask" and asks is None:
            asks = self._above
        return stronger(above, own), asks

    def _own(self, call: Call) -> Verdict:
        if self._refuses is not None:
            return self._refuses
        if self.policy is None and not self.rules:
            return ALLOWED
        view = self._view(call)
        with self._knowing():
            verdict = self._by_policy(view)
            if self.rules:
                verdict = stronger(verdict, decide(view, self.rules))
        return verdict

    def _by_policy(self, view: StepView) -> Verdict:
        policy = self.policy
        if policy is None:
            return ALLOWED
        try:
            verdict = policy.decide(view)
        except Exception as error:  # noqa: BLE001 - whatever fails in here, the call must not run
            verdict = Verdict("deny", f"the policy failed: {type(error).__name__}", "policy_error")
        return ALLOWED.beside(verdict) if policy.mode == "shadow" else verdict

    def flow(
        self,
        call: Call,
        verdict: Verdict,
        start: Start,
        run: str,
        *,
        streamed: bool,
    ) -> Flow:
        """The flow of a call of `run`, with what is counted and noted around it."""
        flow = self.counted(call, verdict, start, run)
        if self.labels is None or call.undoes is not None:
            return flow
        return labelled(flow, call, self.labels, streamed=streamed)

    def counted(
        self,
        call: Call,
        verdict: Verdict,
        start: Start,
        run: str,
        asked: Callable[[], None] | None = None,
    ) -> Flow:
        """The flow of a call of `run`, in the limits of this session and of those around it.

        `asked` is called where a limit of this one asks.
        """
        if self._above is not None:
            start = functools.partial(self._counted_above, self._above, start, run)
        meter, policy = self.meter, self.policy
        if meter is None or policy is None or call.undoes is not None:
            return start(call, verdict)
        if policy.mode == "shadow":
            return self._shadowed(call, verdict, meter, start, run)
        return limited(call, self._view(call), verdict, meter, start, run, asked)

    def _counted_above(
        self, above: Above, start: Start, run: str, call: Call, verdict: Verdict
    ) -> Flow:
        def asked() -> None:
            call.ask = above.ask

        return above.gate.counted(call, verdict, start, run, asked)

    def remember(self, number: int, entry: Entry) -> None:
        """A step was seen: it counts, and its result has its labels, as if it had been asked for.

        Args:
            number: of its event.
            entry: as it is recorded.
        """
        contract = Contract(name=entry.name, version=entry.version, parameters={})
        self.count(entry, contract)
        if self.labels is not None:
            labels = self.labels.declared(contract).union(entry.labels)
            self.labels.note(number, entry.name, labels, _given(entry))

    def count(self, entry: Entry, contract: Contract) -> None:
        """Count a step that was seen, here and around."""
        if self.meter is not None:
            view = StepView(
                entry.kind, contract, {}, entry.agent, entry.branch, self.calls(), {}, entry.key
            )
            usage, failed = entry.outcome.get("usage"), entry.status == "error"
            self.meter.end(self.meter.take(view), made=True, failed=failed, usage=usage)
        if self._above is not None:
            self._above.gate.count(entry, contract)

    def _shadowed(self, call: Call, verdict: Verdict, meter: Meter, start: Start, run: str) -> Flow:
        before = call.pace

        def anyway(call: Call, said: Verdict) -> Flow:
            call.pace = before
            return start(call, verdict.beside(stronger(verdict.shadow or ALLOWED, said)))

        if verdict.decision == "deny":
            return start(call, verdict)
        return limited(call, self._view(call), ALLOWED, meter, anyway, run)

    def _view(self, call: Call) -> StepView:
        values: Mapping[str, Any] = MappingProxyType(call.arguments.values)
        return StepView(
            call.kind,
            call.contract,
            values,
            call.agent,
            call.branch,
            self.calls(),
            call.arguments.canonical,
            call.key.hex(),
            self._run,
            call.found.labels,
        )


class Above(NamedTuple):
    """What a session inside of another one takes over from it.

    Attributes:
        gate: decides on each call, too.
        ask: who is asked where that asks.
        terms: under which an approval counts there.
        step: the number of the step whose body has opened the session; 0 outside of any.
    """

    gate: Gate
    ask: Ask | None
    terms: Callable[[], Terms]
    step: int


def _given(entry: Entry) -> object:
    """What a recorded step gave, to look for it in later calls; where nobody can tell, anything."""
    try:
        if entry.status == "error":
            return decode_exception(entry.outcome["error"])
        return decode(entry.outcome["value"])
    except Exception:  # noqa: BLE001 - a large value, one of a framework that is not here, ...
        return object()


def failed(error: Exception) -> Verdict:
    """What is said of a call where the gate itself failed; the error's words may hold anything."""
    return Verdict("deny", f"the gate failed: {type(error).__name__}", "gate_error", "gate")


def _policy(given: Policy | str | os.PathLike[str] | None) -> Policy | None:
    if not isinstance(given, str | os.PathLike):
        return given
    from rollcage.gate import Policy

    return Policy.load(Path(given))


def _labels(policy: Policy | None, rules: Sequence[Rule]) -> Labels | None:
    if policy is not None:
        return None if policy.flow == "off" else Labels(policy.flow, policy.labels)
    return Labels() if rules else None
