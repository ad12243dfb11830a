"""The usage of a policy's limits by a run, as its log says; and whether there is room.

A call counts by its fingerprint, from its beginning: repeated in a resume or after a failure,
it is the same call. Calls that the recording answers take nothing. The caller holds
the lock of the attempt.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

import orjson
from rollcage.gate import Verdict

from rollcage_policy.bounds import AskedCall, Bound, UsedUp, stricter
from rollcage_policy.circles import Circles, Seen
from rollcage_policy.limits import Limits
from rollcage_policy.prices import PICO, Price, Prices

if TYPE_CHECKING:
    from rollcage.trace.run import Step

__all__ = ["Made", "Spent", "Tally"]

_NANO: Final = 10**9
_USAGE: Final = b'"usage":'


class Spent(NamedTuple):
    """The usage of a run so far, replayed steps included; `cost` is by the policy's prices."""

    calls: int
    tokens: int
    cost: float


class Made(NamedTuple):
    """A call, as limits see it; see `AskedCall`."""

    kind: str
    name: str
    agent: str = ""
    branch: str = ""
    key: str = ""


class _ClockFailed(Exception):
    """The clock raised, went backwards, or returned no time."""


class _Kind(NamedTuple):
    """The limits and prices for the calls of one tool or model by one agent."""

    price: Price
    counts: list[tuple[Bound, UsedUp]]  # the limits, and how much of each is used up
    timed: bool  # whether a limit looks at the clock
    paced: bool  # whether a limit bounds how many calls may begin within a time span
    everything: int  # the charge of a call: a bit for each limit


class _Charge:
    """The charge of one call: which limits it was charged, and which charges were returned."""

    __slots__ = ("charged", "kind", "seen", "start")

    def __init__(self, kind: _Kind) -> None:
        self.kind = kind
        self.charged = 0  # a bit for each limit
        self.start: int | None = None
        self.seen: Seen | None = None


class Tally:
    """Counts the calls of a session, and of its inner sessions, against the limits of a policy.

    Args:
        limits: the limits.
        prices: the prices of calls.
        clock: monotonic time in ns. If it raises or goes backwards, calls under a limit of time or
            rate are denied.
    """

    def __init__(self, limits: Limits, prices: Prices, clock: Callable[[], int]) -> None:
        self._bounds = tuple(Bound(each) for each in limits.rules)
        self._circles = Circles(limits.loops) if limits.loops else None
        self._prices, self._clock = prices, clock
        self._last: int | None = None  # the last reading of the clock
        self._counts: dict[tuple[Bound, str], UsedUp] = {}
        self._charges: dict[str, _Charge] = {}
        self._running: dict[object, tuple[AskedCall, _Charge]] = {}
        self.limits_nothing = not limits
        self._kinds: dict[tuple[str, str, str], _Kind] = {}
        self._calls = self._tokens = self._cost = 0  # of this attempt, replayed calls included
        self._opened: int | None = None
        if any(each.nanoseconds is not None for each in self._bounds):
            with contextlib.suppress(_ClockFailed):  # reported on each call that needs the clock
                self._opened = self._now()

    @property
    def spent(self) -> Spent:
        """The usage of this attempt so far, replayed steps included."""
        return Spent(self._calls, self._tokens, self._cost / PICO)

    # --- recorded steps --------------------------------------------------------------------------

    def recorded(self, step: Step, wall: int) -> None:
        """Count a step that an earlier attempt has recorded.

        Args:
            step: the step.
            wall: the time now (Unix, µs): calls that began a while ago count for a rate, too.
        """
        made = Made("model" if step.effect == "model" else "tool", step.name, step.agent)
        charge = self._charge(made, step.fingerprint)
        if charge.kind.paced:
            with contextlib.suppress(_ClockFailed):
                charge.start = self._now() - max(0, wall - step.time) * 1000
                for bound, count in charge.kind.counts:
                    if bound.rate is not None:
                        count.starts.append(charge.start)
        if step.outcome is not None:
            self._ended(made, charge, step.status, step.outcome)

    def caught_up(self) -> None:
        """Sort the beginnings of all recorded steps, once they are counted."""
        for count in self._counts.values():
            for at, start in enumerate(sorted(count.starts)):
                count.starts[at] = start

    # --- a call ----------------------------------------------------------------------------------

    def verdict(self, made: AskedCall, mark: str, *, runs: bool) -> Verdict | None:
        """Return the limits' verdict on a call; None: the call is within all of them.

        Args:
            made: the call.
            mark: the fingerprint of the step at its place (hex); empty if there is none yet.
            runs: whether its body will run; if not, a recorded step answers the call.
        """
        try:
            verdict = None
            if self._circles is not None:
                verdict, _ = self._circles.look(made, mark or None)
            return stricter(self._room(made, mark), verdict) if runs else verdict
        except _ClockFailed as failed:
            reason = f"the clock can't be read: {failed}"
            return Verdict("deny", reason, "clock_error", "limits")
        except Exception as error:  # noqa: BLE001 - whatever fails in here, the call must not run
            reason = f"the limits failed: {type(error).__name__}"
            return Verdict("deny", reason, "limit_error", "limits")

    def begins(self, call: object, made: AskedCall, mark: str) -> None:
        """Count a call whose body runs now."""
        charge = self._charge(made, mark)
        self._running[call] = made, charge
        kind, now = charge.kind, None
        if kind.timed:
            with contextlib.suppress(_ClockFailed):  # `verdict` has just read it
                now = self._now()
        charge.start = now
        for bound, count in kind.counts:
            count.in_flight += 1
            if now is not None:
                if count.began is None:
                    count.began = now
                if bound.rate is not None:
                    count.starts.append(now)
        self._calls += 1
        self._cost += kind.price.call
        if self._circles is not None:
            self._note(made, mark, charge)

    def given(self, made: AskedCall, step: Step, status: str, outcome: bytes) -> None:
        """Note a call that a recorded step has answered.

        In a fork, a call of the original run counts from now on.
        """
        price = self._kind(made).price
        self._calls += 1
        self._cost += price.call
        if _USAGE in outcome:
            tokens, cost = price.of_tokens(_usage(outcome))
            self._tokens += tokens
            self._cost += cost
        if step.borrowed or self._circles is not None:
            mark = step.fingerprint
            known = self._charges.get(mark)
            if step.borrowed and known is None:
                known = self._charge(made, mark)
                self._ended(made, known, status, outcome)
            self._note(made, mark, known)

    def ended(self, call: object, status: str, outcome: bytes) -> None:
        """Note how a call whose body ran has ended."""
        running = self._stopped(call)
        if running is not None:
            made, charge = running
            tokens, cost = self._ended(made, charge, status, outcome)
            self._tokens += tokens
            self._cost += cost

    def never(self, call: object) -> None:
        """Return the charge of a call that did not happen."""
        running = self._stopped(call)
        if running is None:
            return
        made, charge = running
        self._calls -= 1
        self._cost -= charge.kind.price.call
        for at in range(len(charge.kind.counts)):
            self._give_back(charge, at)
        if charge.seen is not None and self._circles is not None:
            self._circles.forget(made, charge.seen)

    # --- counting --------------------------------------------------------------------------------

    def _now(self) -> int:
        try:
            now = self._clock()
        except Exception as error:  # noqa: BLE001 - the user's own clock
            raise _ClockFailed(f"the clock raised {type(error).__name__}") from None
        if type(now) is not int:
            raise _ClockFailed("the clock returned no time")
        if self._last is not None and now < self._last:
            raise _ClockFailed("the clock went backwards")
        self._last = now
        return now

    def _kind(self, made: AskedCall) -> _Kind:
        """Return the limits and prices for a call."""
        call = made.kind, made.name, made.agent
        found = self._kinds.get(call)
        if found is None:
            bounds = tuple(each for each in self._bounds if each.concerns(*call))
            found = self._kinds[call] = _Kind(
                self._prices.of(made.kind, made.name),
                [(bound, self._count(bound, made)) for bound in bounds],
                any(each.timed for each in bounds),
                any(each.rate is not None for each in bounds),
                (1 << len(bounds)) - 1,
            )
        return found

    def _count(self, bound: Bound, made: AskedCall) -> UsedUp:
        at = bound, bound.scope(made)
        count = self._counts.get(at)
        if count is None:
            count = self._counts[at] = UsedUp()
            if bound.limit.per == "run":
                count.began = self._opened
        return count

    def _room(self, made: AskedCall, mark: str) -> Verdict | None:
        kind = self._kind(made)
        price, now = kind.price, self._now() if kind.timed else 0
        charge = self._charges.get(mark) if mark else None
        charged = 0 if charge is None else charge.charged
        verdict: Verdict | None = None
        for at, (bound, count) in enumerate(kind.counts):
            if bound.nanoseconds is not None and bound.limit.per == "run" and self._opened is None:
                raise _ClockFailed("the clock failed when the session was opened")
            counted = charged >> at & 1
            if counted:  # the same call: there is room for it
                count.calls -= 1
                count.cost -= price.call
            try:
                verdict = stricter(verdict, bound.room(count, made, price, now))
                if bound.rate is not None and bound.limit.decision == "deny":
                    verdict = stricter(verdict, bound.pace(count, made, now))
            finally:
                if counted:
                    count.calls += 1
                    count.cost += price.call
        return verdict

    def _charge(self, made: AskedCall, mark: str) -> _Charge:
        """Charge a call, unless it is charged already."""
        charge = self._charges.get(mark)
        if charge is None:
            charge = self._charges[mark] = _Charge(self._kind(made))
        kind = charge.kind
        if charge.charged != kind.everything:
            for at, (_, count) in enumerate(kind.counts):
                if not charge.charged >> at & 1:
                    count.calls += 1
                    count.cost += kind.price.call
            charge.charged = kind.everything
        return charge

    @staticmethod
    def _give_back(charge: _Charge, at: int) -> None:
        """Return a call's charge under one limit."""
        if charge.charged >> at & 1:
            charge.charged &= ~(1 << at)
            bound, count = charge.kind.counts[at]
            count.calls -= 1
            count.cost -= charge.kind.price.call
            if bound.rate is not None and charge.start is not None:
                with contextlib.suppress(ValueError):  # the call may have left the span
                    count.starts.remove(charge.start)

    def _ended(
        self, made: AskedCall, charge: _Charge, status: str, outcome: bytes
    ) -> tuple[int, int]:
        """Add the usage of a call; return its tokens, and their cost."""
        counted = _USAGE in outcome
        tokens, cost = charge.kind.price.of_tokens(_usage(outcome)) if counted else (0, 0)
        is_silent = not counted and made.kind == "model" and status == "ok"
        for at, (bound, count) in enumerate(charge.kind.counts):
            if counted:
                count.tokens += tokens
                count.cost += cost
            if status == "error" and bound.limit.failed == "free":
                self._give_back(charge, at)
            elif is_silent:
                count.uncounted = made.name
        return tokens, cost

    def _stopped(self, call: object) -> tuple[AskedCall, _Charge] | None:
        running = self._running.pop(call, None)
        if running is not None:
            for _, count in running[1].kind.counts:
                count.in_flight -= 1
        return running

    def _note(self, made: AskedCall, mark: str, charge: _Charge | None) -> None:
        """Note a call for loop detection; a call that a framework repeats is noted already."""
        if self._circles is not None:
            _, seen = self._circles.look(made, mark)
            if seen is not None:
                self._circles.note(made, seen)
                if charge is not None:
                    charge.seen = seen


def _usage(outcome: bytes) -> Mapping[str, int] | None:
    usage: Mapping[str, int] | None = orjson.loads(outcome).get("usage")
    return usage
