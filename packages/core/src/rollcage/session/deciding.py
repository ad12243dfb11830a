"""What is decided on the calls of an open run: by its gate, those of sessions around and inside."""

from __future__ import annotations

import os

from rollcage.errors import PolicyInvalid, SessionError
from rollcage.gate import ALLOWED, Ask, FacadeGuard, PolicyGuard, Terms, Verdict
from rollcage.session.means import Means
from rollcage.session.scope import Enclosing, Scope, scope_of
from rollcage.step.call import Progress
from rollcage.step.driver import Driver
from rollcage.step.gating import Gate, failed
from rollcage.trace import constructors as make
from rollcage.undo.compensation import Tool
from rollcage.values.exceptions import encode_exception

__all__ = ["Decisions", "check_approved", "policy_data"]


class Decisions:
    """Who decides on a call of an open run, and what they say, without the secrets it may quote.

    Args:
        job: the name of the run's job.
        calls: those of the run.
        means: what they are made with.
    """

    def __init__(self, job: str, calls: Enclosing, means: Means) -> None:
        self._actor = means.actor or job
        self._calls = calls
        self._gate = means.gate
        self._means = means

    def gate_of(self, scope: Scope) -> Gate:
        """What decides on a call: that of a session inside of this one asks this one's, too."""
        return self._gate if scope.inside is None else scope.inside.above.gate

    def ask_of(self, scope: Scope) -> Ask | None:
        """Who is asked to approve a call, unless that is up to a session around."""
        inside = None if scope.inside is None else scope.inside.above.ask
        return inside or scope.ask or self._means.ask

    def decide(self, progress: Progress) -> Verdict:
        """The verdict on a call that is made in this context."""
        return self.verdict(self.gate_of(scope_of(self._calls)), progress)

    def verdict(self, gate: Gate, progress: Progress) -> Verdict:
        """The verdict of a gate on a call."""
        verdict = gate.decide(progress)
        if verdict is ALLOWED:
            return verdict
        try:
            return self._means.seal.verdict(verdict)
        except Exception as error:  # noqa: BLE001 - its message may hold a secret
            return failed(error)

    def terms(self) -> Terms:
        """The terms under which approvals count in this session."""
        return self._gate.terms(self._actor)

    def terms_here(self) -> Terms:
        """The terms under which an approval of a call in this context counts."""
        inside = scope_of(self._calls).inside
        return self.terms() if inside is None else inside.above.terms()

    def allow(self, tool: Tool) -> None:
        """Refuse a tool that undoes something, and was never approved.

        Raises:
            ToolRefused: there is a facade, and that gives no such tool.
        """
        check_approved(self._means.facade, tool)

    def load_policy(self, policy: PolicyGuard | str | os.PathLike[str], driver: Driver) -> None:
        """Decide by another policy from now on; that is recorded, whether it can be used or not.

        Raises:
            PolicyInvalid: it can't be used.
            SessionError: it has other limits, labels or prices.
        """
        driver.check_process()
        loaded = failure = None
        try:
            loaded = policy_data(self._gate.reload(policy))
        except (PolicyInvalid, SessionError, OSError) as error:
            failure = encode_exception(error, self._means.seal)
            raise
        finally:
            now = self._means.clock.wall() // 1000
            with driver.lock:
                driver.append(make.policy_loaded(time=now, policy=loaded, error=failure))


def check_approved(facade: FacadeGuard | None, tool: Tool) -> None:
    """Refuse a tool that undoes something, and was never approved.

    Raises:
        ToolRefused: there is a facade, and that gives no such tool.
    """
    verdict = None if facade is None else facade.check(tool.contract, tool.body, undo=True)
    if facade is not None and verdict is not None:
        raise facade.refusal(tool.contract, verdict)


def policy_data(policy: PolicyGuard) -> dict[str, str]:
    """What the trace holds of a policy."""
    return {"name": policy.name, "digest": policy.digest, "mode": policy.mode}
