"""A policy in a session: its decisions, counts and labels."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from rollcage import Stage, refuse
from rollcage.calls.gate import RunSoFar
from rollcage.calls.stage import Work
from rollcage.errors import PolicyInvalid, SessionError
from rollcage.gate import ALLOWED, StepView, Verdict, stronger
from rollcage.trace import encode

from rollcage_policy.labelling import Labelling
from rollcage_policy.named import user_input_here
from rollcage_policy.policy import Policy
from rollcage_policy.tally import Made, Spent, Tally

if TYPE_CHECKING:
    from rollcage import Contract, Session
    from rollcage.replay.call import Call, Match
    from rollcage.trace.run import Event, Outcome, Step

__all__ = ["MeteredStage", "PolicyStage", "UserInput", "reload_policy", "spent"]

_SHADOW: Final = "verdict in shadow mode"


class UserInput(Stage):
    """The user's words, for conditions with `named(…)`; it stands in `gate=` next to a policy.

    Args:
        texts: one text or several, in the user's own words.
    """

    def __init__(self, *texts: str) -> None:
        self.texts = texts

    def describes(self, session: Session) -> Event:  # noqa: ARG002 - the same in every session
        """Return the texts, for the record."""
        return {"user_input": encode(list(self.texts), str)}


class PolicyStage(Labelling):
    """Decides about the calls of one session by a policy.

    Attributes:
        policy: the current policy.
    """

    def __init__(self, policy: Policy) -> None:
        super().__init__("value" if policy.flow == "off" else policy.flow, policy.labels)
        self.policy = policy
        self._session: Session | None = None
        self._refuses: Verdict | None = None  # for all calls: there is no usable policy
        self._said: tuple[str, ...] | None = None
        self.tally: Tally | None = None

    # --- the gate's questions --------------------------------------------------------------------

    @property
    def enforces(self) -> bool:
        """Whether it blocks anything."""
        return self.policy.mode != "shadow" or self._refuses is not None

    @property
    def strict(self) -> bool:
        """Whether arguments that would have to be coerced are refused."""
        return self.policy.strict and self.policy.mode == "enforce"

    @property
    def digest(self) -> str:
        """The identity of the policy, to which approvals are bound."""
        return self.policy.digest

    @property
    def approval_terms(self) -> tuple[float, frozenset[str] | None]:
        """How many seconds an approval counts, and who may approve."""
        return self.policy.approval_terms

    def describes(self, session: Session) -> Event:  # noqa: ARG002 - the same in every session
        """Return which policy decides, for the record."""
        return {"policy": _about(self.policy)}

    def opened(self, session: Session) -> None:
        """Learn the recorded labels, and the recorded usage of the limits."""
        self._session = session
        if self.policy.flow != "off":
            super().opened(session)
        said = [each.texts for each in session.gate.own if isinstance(each, UserInput)]
        said += [each.texts for each in session.stages if isinstance(each, UserInput)][:1]
        self._said = said[0] if said else None

    def decide(self, call: Call) -> Verdict | None:
        """Return the policy's verdict on a call; None if the call may run."""
        if self._refuses is not None:
            return self._refuses
        verdict = self._verdict(call)
        if self.policy.mode == "shadow":
            if verdict.decision != "allow" or (call.kept and _SHADOW in call.kept):
                call.keep(_SHADOW, verdict)
            return None
        if verdict.decision == "allow":
            return None
        return self.found(call).explain(verdict)

    def _verdict(self, call: Call) -> Verdict:
        policy = self.policy
        try:
            verdict = policy.foregone(call.contract, call.kind, call.place.agent)
            if verdict is not None:
                return verdict
            token = None if self._said is None else user_input_here.set(self._said)
            try:
                return policy.decide(cast("StepView", self._view(call)))
            finally:
                if token is not None:
                    user_input_here.reset(token)
        except Exception as error:  # noqa: BLE001 - whatever fails in here, the call must not run
            return Verdict("deny", f"the policy failed: {type(error).__name__}", "policy_error")

    def _view(self, call: Call) -> _Seen:
        assert self._session is not None
        seen = _Seen()
        seen.kind, seen.contract, seen.agent = call.kind, call.contract, call.place.agent
        seen.call, seen.data = call, call.arguments
        seen.session, seen.tally = self._session, self.tally
        seen.labels = self.found(call).labels
        return seen

    def reload(self, session: Session, policy: Policy | str | os.PathLike[str]) -> Policy:
        """Decide by another policy from now on; see `reload_policy`."""
        attempt = session.attempt
        try:
            loaded = policy if isinstance(policy, Policy) else Policy.load(Path(policy))
            field = self.policy.differs(loaded)
            if field:
                raise SessionError(
                    f"the new policy has other {field}, and a session keeps those that it began "
                    f"with. Load a policy with the same {field}, or open another session"
                )
        except (PolicyInvalid, SessionError, OSError) as error:
            name = type(error).__name__
            remedy = "Every call is denied until a policy is loaded that can be used."
            reason = f"the policy can't be used: {name}"
            with attempt.lock:
                self._refuses = Verdict("deny", reason, "policy_invalid", "policy", remedy)
                attempt.note({"event": "policy", "error": name})
            raise
        with attempt.lock:
            self.policy, self._refuses = loaded, None
            attempt.note({"event": "policy", "policy": _about(loaded)})
        return loaded

    def marks(self, call: Call) -> Event | None:
        """Return the policy's decision in shadow mode."""
        marks = super().marks(call)
        shadow: Verdict | None = (call.kept or {}).get(_SHADOW)
        if shadow is None or shadow.decision == "allow":
            return marks
        line: Event | None = getattr(call, "event", None)
        said: Mapping[str, Any] = (line or {}).get("verdict") or ALLOWED.as_data()
        return {**(marks or {}), "verdict": {**said, "shadow": shadow.as_data()}}


class _Seen:
    """The view of a call for conditions: the fields of a `StepView` that they use, made faster."""

    __slots__ = ("agent", "call", "contract", "data", "kind", "labels", "session", "tally")

    agent: str
    call: Call
    contract: Contract
    data: Mapping[str, Any]
    kind: str
    labels: frozenset[str]
    session: Session
    tally: Tally | None

    @property
    def name(self) -> str:
        """The tool's name."""
        return self.contract.name

    @property
    def effect(self) -> str:
        """The tool's declared effect."""
        return self.contract.effect

    @property
    def run(self) -> RunSoFar:
        """The run so far."""
        if self.tally is None:
            return RunSoFar(self.session, self.call)
        return _RunSpent(self.session, self.call, self.tally)

    @property
    def calls(self) -> int:
        """How many calls the session has made before."""
        return self.run.calls


class MeteredStage(PolicyStage):
    """A policy that limits or prices calls, or whose rules look at spending."""

    def opened(self, session: Session) -> None:
        """Learn the recorded usage of the limits."""
        super().opened(session)
        attempt, clock = session.attempt, session.options.clock
        self.tally = tally = Tally(self.policy.limits, self.policy.prices, clock.monotonic)
        home = session.place_here().branch if session.around is not None else ""
        wall = clock.wall() // 1000
        for step in attempt.run.steps.values():
            is_own = not home or attempt.run.within(step, home)
            if is_own and _counts(step) and not step.borrowed:
                tally.recorded(step, wall)
        tally.caught_up()

    def prepare(self, call: Call, match: Match) -> Work | None:
        """Refuse a call without room under a limit, or ask for approval."""
        tally = self.tally
        assert tally is not None
        if not tally.limits_nothing and not call.attempt.run.is_undoing(call.place.branch):
            step, runs = match.step, match.kind != "hit"
            mark = "" if step is None else step.fingerprint
            verdict = tally.verdict(_made(call), mark, runs=runs)
            if verdict is not None:
                self._say(call, match, verdict)
        return super().prepare(call, match)

    def _say(self, call: Call, match: Match, verdict: Verdict) -> None:
        if self.policy.mode == "shadow":
            shadow: Verdict | None = (call.kept or {}).get(_SHADOW)
            call.keep(_SHADOW, verdict if shadow is None else stronger(shadow, verdict))
        elif verdict.decision == "deny":
            if call.attempt.live or match.kind != "hit":  # offline, the recorded decision counts
                raise refuse(call, verdict)
        elif match.kind != "hit" and call.verdict is None:
            call.verdict = verdict
            call.keep("asked by", self._session)

    def marks(self, call: Call) -> Event | None:
        """Count a call that begins."""
        if call.supplied is None and not call.attempt.run.is_undoing(call.place.branch):
            assert self.tally is not None
            self.tally.begins(call, _made(call), call.event["fingerprint"])
        return super().marks(call)

    def settled(self, call: Call | None, outcome: Outcome, step: Step | None) -> Event | None:
        """Count the usage of a call."""
        tally = self.tally
        assert tally is not None
        if step is not None:
            if _counts(step):
                made = _recorded(step) if call is None else _made(call)
                tally.given(made, step, outcome.status, outcome.data)
        elif call is not None:
            tally.ended(call, outcome.status, outcome.data)
        return super().settled(call, outcome, step)

    def dropped(self, call: Call) -> Work | None:
        """Return the reservation of a call that did not begin."""
        assert self.tally is not None
        with call.attempt.lock:
            self.tally.never(call)
        return None


class _RunSpent(RunSoFar):
    """The run so far, with its usage by the policy's prices."""

    __slots__ = ("_tally",)

    def __init__(self, session: Session, call: Call, tally: Tally) -> None:
        super().__init__(session, call)
        self._tally = tally

    @property
    def tokens(self) -> int:
        """The tokens of this attempt's model calls, recorded ones included."""
        return self._tally.spent.tokens

    @property
    def cost(self) -> float:
        """The cost of this attempt's calls, recorded ones included."""
        return self._tally.spent.cost


# --- functions for sessions ----------------------------------------------------------------------


def spent(session: Session) -> Spent | None:
    """Return the usage of a session's attempt so far, replayed steps included.

    None if its policy neither limits nor prices anything, or there is no policy.
    """
    for each in session.gate.own:
        if isinstance(each, PolicyStage) and each.tally is not None:
            return each.tally.spent
    return None


def reload_policy(session: Session, policy: Policy | str | os.PathLike[str]) -> Policy:
    """Replace a session's policy from now on; if the new one can't be used, deny every call.

    Args:
        session: a session with a policy in its gate; its first policy is replaced.
        policy: the policy, or its file.

    Returns:
        the session's current policy.

    Raises:
        PolicyInvalid: the policy can't be used.
        SessionError: the policy has other limits, labels or prices, which hold for a whole session.
    """
    stage = next((each for each in session.gate.own if isinstance(each, PolicyStage)), None)
    if stage is None:
        raise SessionError(
            "the session was made without a policy, so it can load none: give one in gate="
        )
    return stage.reload(session, policy)


def _about(policy: Policy) -> Event:
    return {"name": policy.name, "digest": policy.digest, "mode": policy.mode}


def _made(call: Call) -> Made:
    """Return a call, as limits see it: a call in a body or a session has the enclosing branch."""
    place = call.place
    while True:
        around, entered_at = place.around, place.session.entered_at
        if around is not None and place.branch == "#" + around.event["fingerprint"]:
            place = around.place
        elif entered_at is not None and place.branch == place.session.home_branch:
            place = entered_at
        else:
            break
    return Made(call.kind, call.contract.name, call.place.agent, place.branch, call.key)


def _recorded(step: Step) -> Made:
    kind = "model" if step.effect == "model" else "tool"
    return Made(kind, step.name, step.agent, step.branch, step.key)


def _counts(step: Step) -> bool:
    """Return whether a recorded step is a call that has begun."""
    return (
        step.effect != "branch"
        and step.status != "waiting"
        and not step.answered
        and not step.compensates
        and not (step.once and step.once[0] != "mine")
    )
