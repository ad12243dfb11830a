"""The limits of a policy, prepared for counting: how much is used up, how much is left."""

from __future__ import annotations

from collections import deque
from fnmatch import fnmatchcase
from typing import Final, Protocol

from rollcage.gate import Verdict

from rollcage_policy.limits import Limit, Rate
from rollcage_policy.prices import PICO, Price

__all__ = ["AskedCall", "Bound", "UsedUp", "stricter"]

_NANO: Final = 10**9


class AskedCall(Protocol):
    """The fields of a call that limits use: a `StepView`, or a recorded call."""

    @property
    def kind(self) -> str:
        """`tool` or `model`."""
        ...

    @property
    def name(self) -> str:
        """The name of the tool or model."""
        ...

    @property
    def agent(self) -> str:
        """The agent's name; empty if the framework does not provide it."""
        ...

    @property
    def branch(self) -> str:
        """The branch of the run."""
        ...

    @property
    def key(self) -> str:
        """The call's content identity (64 hex digits)."""
        ...


class UsedUp:
    """How much of one limit is used up, by the run, or by one tool or agent."""

    __slots__ = ("began", "calls", "cost", "in_flight", "starts", "tokens", "uncounted")

    def __init__(self) -> None:
        self.calls = 0
        self.in_flight = 0
        self.cost = 0  # 1/PICO
        self.tokens = 0
        self.began: int | None = None  # monotonic, ns
        self.starts: deque[int] = deque()  # when calls began, within the rate's span
        self.uncounted = ""  # a model that did not report its usage


class Bound:
    """A limit, prepared for counting."""

    __slots__ = ("cost", "limit", "nanoseconds", "of_tools", "rate", "timed")

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self.rate = None if limit.rate is None else Rate.parse(limit.rate)
        self.cost = None if limit.cost is None else round(limit.cost * PICO)
        self.nanoseconds = None if limit.seconds is None else round(limit.seconds * _NANO)
        self.timed = self.rate is not None or self.nanoseconds is not None
        self.of_tools = "" if limit.tools == ("*",) else f" of {', '.join(limit.tools)}"

    def concerns(self, kind: str, name: str, agent: str) -> bool:
        """Return whether the limit counts calls of this tool or model by this agent."""
        limit = self.limit
        return (
            kind in limit.kinds
            and any(fnmatchcase(name, glob) for glob in limit.tools)
            and any(fnmatchcase(agent, glob) for glob in limit.agents)
        )

    def scope(self, view: AskedCall) -> str:
        """Return the group in which the limit counts a call: the run, or one tool or agent."""
        if self.limit.per == "run":
            return ""
        return f"{view.kind} {view.name}" if self.limit.per == "tool" else view.agent

    def room(self, count: UsedUp, view: AskedCall, price: Price, now: int) -> Verdict | None:
        """Return the limit's verdict if one more call would exceed it; None if there is room."""
        limit = self.limit
        whose = {"run": "this run", "tool": view.name}.get(limit.per) or (
            f"agent {view.agent}" if view.agent else "this agent"
        )
        if limit.calls is not None and count.calls >= limit.calls:
            reason = f"{whose} may make {limit.calls} calls{self.of_tools}, and has made them"
            return self.verdict("limit_calls", reason)
        if limit.concurrency is not None and count.in_flight >= limit.concurrency:
            reason = (
                f"{whose} may have {limit.concurrency} calls{self.of_tools} at once, and has them"
            )
            return self.verdict("limit_concurrency", reason, "Call it again when one has ended.")
        if (limit.tokens is not None or self.cost is not None) and view.kind == "model":
            unknown = self._unknown(count, view, price)
            if unknown is not None:
                return unknown
        if limit.tokens is not None and count.tokens >= limit.tokens:
            reason = (
                f"{whose} may use {limit.tokens} tokens{self.of_tools}; {count.tokens} are used"
            )
            return self.verdict("limit_tokens", reason)
        if self.cost is not None and self._is_spent(count, price):
            reason = (
                f"{whose} may spend {_amount(self.cost)}{self.of_tools}; {_amount(count.cost)} is "
                f"spent, and this call costs {_amount(price.call) if price.call else 'more'}"
            )
            return self.verdict("limit_cost", reason)
        began = now if count.began is None else count.began
        if self.nanoseconds is not None and now - began >= self.nanoseconds:
            reason = f"{whose} had {limit.seconds:g} s{self.of_tools}, and the time is up"
            return self.verdict("limit_time", reason)
        if self.rate is not None and limit.decision == "ask":
            return self.pace(count, view, now)
        return None

    def pace(self, count: UsedUp, view: AskedCall, now: int) -> Verdict | None:
        """Return the limit's verdict if too many calls began within its time span; None if not."""
        assert self.rate is not None
        span = self.rate.seconds * _NANO
        while count.starts and now - count.starts[0] >= span:
            count.starts.popleft()
        if len(count.starts) < self.rate.calls:
            return None
        wait = -(-(count.starts[0] + span - now) // _NANO)
        of = f" of {view.name}" if self.limit.per == "tool" else self.of_tools
        reason = f"no more than {self.rate.calls} calls{of} may begin within {self.rate.seconds} s"
        return self.verdict("limit_rate", reason, f"Call it again in {wait} s.")

    def _is_spent(self, count: UsedUp, price: Price) -> bool:
        """Return whether the cost limit can't pay for a call.

        A model's tokens count when the call has ended.
        """
        assert self.cost is not None
        if price.input or price.output:
            return count.cost >= self.cost or count.cost + price.call > self.cost
        return price.call > 0 and count.cost + price.call > self.cost

    def _unknown(self, count: UsedUp, view: AskedCall, price: Price) -> Verdict | None:
        """Deny a call whose usage or price can't be counted, because it can't be limited."""
        if self.cost is not None and price.input is None:
            reason = f"what {view.name} costs is not known, and it may spend {_amount(self.cost)}"
            remedy = f'The policy needs a price: [prices.models."{view.name}"].'
            return Verdict("deny", reason, "price_unknown", self.limit.id, remedy)
        if count.uncounted and (self.limit.tokens is not None or price.input or price.output):
            reason = (
                f"{count.uncounted} does not report how many tokens it used: they can't be limited"
            )
            return Verdict("deny", reason, "usage_unknown", self.limit.id)
        return None

    def verdict(
        self, code: str, reason: str, remedy: str = "Finish with what you have."
    ) -> Verdict:
        """Return the verdict on a call without room, in the policy's own words if it has any."""
        limit = self.limit
        return Verdict(
            limit.decision, limit.reason or reason, code, limit.id, limit.remedy or remedy
        )


def _amount(pico: int) -> str:
    return f"{pico / PICO:.6g}"


def stricter(one: Verdict | None, other: Verdict | None) -> Verdict | None:
    """Return the stricter verdict of two limits, the first of equals; None: within both."""
    if one is None or other is None:
        return one or other
    return other if other.decision == "deny" != one.decision else one
