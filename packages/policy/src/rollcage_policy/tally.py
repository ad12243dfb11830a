"""What a run has used of the limits of a policy, as its log says; and whether there is room.

A call counts by its fingerprint, from when it begins: made again, in a resume or after a failure,
it is the same call. What an attempt is given back by its recording takes nothing. The caller holds
the lock of the attempt.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson
from rollcage.gate import Spent, Verdict

from rollcage_policy.bounds import Asked, Bound, UsedUp
from rollcage_policy.circles import Circles, Seen
from rollcage_policy.limits import Limits
from rollcage_policy.prices import PICO, Price, Prices

if TYPE_CHECKING:
    from rollcage.heart.run import Step

__all__ = ["Made", "Tally"]

_NANO: Final = 10**9
_USAGE: Final = b'"usage":'


class Made(NamedTuple):
    """A call, as limits see it; see `Asked`."""

    kind: str
    name: str
    agent: str = ""
    branch: str = ""
    key: str = ""


class _ClockFailed(Exception):
    """The clock raised, went backwards, or returned no time."""


class _Charge:
    """What one call was charged: of which limits, and what was given back of it."""

    __slots__ = ("charged", "counts", "price", "seen", "start")

    def __init__(self, price: Price, counts: list[tuple[Bound, UsedUp]]) -> None:
        self.price, self.counts = price, counts
        self.charged = {bound: False for bound, _ in counts}
        self.start: int | None = None
        self.seen: Seen | None = None


class Tally:
    """Counts the calls of one session, and of those inside of it, against the limits of a policy.

    Args:
        limits: the limits.
        prices: what calls cost.
        clock: monotonic time in ns. If it raises or goes backwards, calls under a limit of time or
            rate are denied.
    """

    def __init__(self, limits: Limits, prices: Prices, clock: Callable[[], int]) -> None:
        self._bounds = tuple(Bound(each) for each in limits.rules)
        self._circles = Circles(limits.loops) if limits.loops else None
        self._prices, self._clock = prices, clock
        self._last: int | None = None  # the clock's, when it was looked at before
        self._counts: dict[tuple[Bound, str], UsedUp] = {}
        self._charges: dict[str, _Charge] = {}
        self._running: dict[object, list[UsedUp]] = {}
        self._concerned: dict[tuple[str, str, str], tuple[Price, bool, tuple[Bound, ...]]] = {}
        self._calls = self._tokens = self._cost = 0  # of this attempt, what was replayed included
        self._opened: int | None = None
        if any(each.nanoseconds is not None for each in self._bounds):
            with contextlib.suppress(_ClockFailed):  # said on each call that depends on the clock
                self._opened = self._now()

    @property
    def spent(self) -> Spent:
        """What this attempt has used so far, replayed steps included."""
        return Spent(self._calls, self._tokens, self._cost / PICO)

    # --- what is on record -----------------------------------------------------------------------

    def recorded(self, step: Step, wall: int) -> None:
        """Count a step that an earlier attempt has recorded.

        Args:
            step: the step.
            wall: the time now (Unix, µs): what began a while ago counts for a rate, too.
        """
        made = Made("model" if step.effect == "model" else "tool", step.name, step.agent)
        charge = self._charge(made, step.fingerprint)
        if any(bound.rate is not None for bound in charge.charged):
            with contextlib.suppress(_ClockFailed):
                charge.start = self._now() - max(0, wall - step.time) * 1000
                for bound, count in charge.counts:
                    if bound.rate is not None:
                        count.starts.append(charge.start)
        if step.outcome is not None:
            self._ended(made, charge, step.status, step.outcome)

    def caught_up(self) -> None:
        """Take note that all recorded steps were counted: bring their beginnings into order."""
        for count in self._counts.values():
            for at, start in enumerate(sorted(count.starts)):
                count.starts[at] = start

    # --- a call ----------------------------------------------------------------------------------

    def verdict(self, made: Asked, mark: str, *, runs: bool) -> Verdict | None:
        """Return the limits' verdict on a call; None: it is within all of them.

        Args:
            made: the call.
            mark: the fingerprint of the step at its place (hex); empty if there is none yet.
            runs: whether its body is to run; if not, a recorded step answers it.
        """
        try:
            verdict = None
            if self._circles is not None:
                verdict, _ = self._circles.look(made, mark or None)
            return _stronger(self._room(made, mark), verdict) if runs else verdict
        except _ClockFailed as failed:
            reason = f"the clock can't be read: {failed}"
            return Verdict("deny", reason, "clock_error", "limits")
        except Exception as error:  # noqa: BLE001 - whatever fails in here, the call must not run
            reason = f"the limits failed: {type(error).__name__}"
            return Verdict("deny", reason, "limit_error", "limits")

    def begins(self, call: object, made: Asked, mark: str) -> None:
        """Count a call whose body runs now."""
        charge = self._charge(made, mark)
        self._running[call] = running = [count for _, count in charge.counts]
        now = None
        if any(bound.timed for bound in charge.charged):
            with contextlib.suppress(_ClockFailed):  # `verdict` has just read it
                now = self._now()
        for count in running:
            count.in_flight += 1
            if count.began is None:
                count.began = now
        charge.start = now
        for bound, count in charge.counts:
            if bound.rate is not None and now is not None:
                count.starts.append(now)
        self._calls += 1
        self._cost += charge.price.call
        self._note(made, mark, charge)

    def given(self, made: Asked, mark: str, status: str, outcome: bytes, *, charge: bool) -> None:
        """Take note of a call that a recorded step has answered.

        Args:
            made: the call.
            mark: the step's fingerprint (hex).
            status: how the step ended.
            outcome: as recorded.
            charge: whether it counts from now on: it was recorded by the run of which this is a
                fork.
        """
        price, _, _ = self._concern(made)
        tokens, cost = _used(outcome, price)
        self._calls += 1
        self._tokens += tokens
        self._cost += price.call + cost
        known = self._charges.get(mark)
        if charge and known is None:
            known = self._charge(made, mark)
            self._ended(made, known, status, outcome)
        self._note(made, mark, known)

    def ended(self, call: object, made: Asked, mark: str, status: str, outcome: bytes) -> None:
        """Take note of how a call whose body ran has ended."""
        self._runs_no_more(call)
        charge = self._charges.get(mark)
        if charge is not None:
            tokens, cost = self._ended(made, charge, status, outcome)
            self._tokens += tokens
            self._cost += cost

    def never(self, call: object, made: Asked, mark: str) -> None:
        """Give back what a call took that did not happen after all."""
        if self._runs_no_more(call):
            self._calls -= 1
            self._cost -= self._concern(made)[0].call
        charge = self._charges.get(mark)
        if charge is not None:
            for bound, count in charge.counts:
                self._give_back(bound, count, charge)
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

    def _concern(self, made: Asked) -> tuple[Price, bool, tuple[Bound, ...]]:
        """A call's price, the limits that concern it, and whether they look at the clock."""
        call = made.kind, made.name, made.agent
        found = self._concerned.get(call)
        if found is None:
            bounds = tuple(each for each in self._bounds if each.concerns(*call))
            price = self._prices.of(made.kind, made.name)
            found = price, any(each.timed for each in bounds), bounds
            self._concerned[call] = found
        return found

    def _count(self, bound: Bound, made: Asked) -> UsedUp:
        at = bound, bound.scope(made)
        count = self._counts.get(at)
        if count is None:
            count = self._counts[at] = UsedUp()
            if bound.limit.per == "run":
                count.began = self._opened
        return count

    def _room(self, made: Asked, mark: str) -> Verdict | None:
        price, timed, bounds = self._concern(made)
        now = self._now() if timed else 0
        charge = self._charges.get(mark) if mark else None
        verdict: Verdict | None = None
        for bound in bounds:
            if bound.nanoseconds is not None and bound.limit.per == "run" and self._opened is None:
                raise _ClockFailed("the clock failed when the session was opened")
            count = self._count(bound, made)
            counted = charge is not None and charge.charged.get(bound, False)
            if counted:  # it is the same call: there is room for it
                count.calls -= 1
                count.cost -= price.call
            try:
                verdict = _stronger(verdict, bound.room(count, made, price, now))
                if bound.rate is not None and bound.limit.decision == "deny":
                    verdict = _stronger(verdict, bound.pace(count, made, now))
            finally:
                if counted:
                    count.calls += 1
                    count.cost += price.call
        return verdict

    def _charge(self, made: Asked, mark: str) -> _Charge:
        """Charge a call, unless it was."""
        charge = self._charges.get(mark)
        if charge is None:
            price, _, bounds = self._concern(made)
            counts = [(bound, self._count(bound, made)) for bound in bounds]
            charge = self._charges[mark] = _Charge(price, counts)
        for bound, count in charge.counts:
            if not charge.charged[bound]:
                charge.charged[bound] = True
                count.calls += 1
                count.cost += charge.price.call
        return charge

    @staticmethod
    def _give_back(bound: Bound, count: UsedUp, charge: _Charge) -> None:
        if charge.charged[bound]:
            charge.charged[bound] = False
            count.calls -= 1
            count.cost -= charge.price.call
            if bound.rate is not None and charge.start is not None:
                with contextlib.suppress(ValueError):  # it may be out of the span
                    count.starts.remove(charge.start)

    def _ended(self, made: Asked, charge: _Charge, status: str, outcome: bytes) -> tuple[int, int]:
        """Add what a call has used; returns its tokens, and their cost."""
        tokens, cost = _used(outcome, charge.price)
        for bound, count in charge.counts:
            count.tokens += tokens
            count.cost += cost
            if status == "error" and bound.limit.failed == "free":
                self._give_back(bound, count, charge)
            elif made.kind == "model" and status == "ok" and _USAGE not in outcome:
                count.uncounted = made.name
        return tokens, cost

    def _runs_no_more(self, call: object) -> bool:
        running = self._running.pop(call, None)
        for count in running or ():
            count.in_flight -= 1
        return running is not None

    def _note(self, made: Asked, mark: str, charge: _Charge | None) -> None:
        """Note a call for loop detection; one that a framework makes again is noted already."""
        if self._circles is not None:
            _, seen = self._circles.look(made, mark)
            if seen is not None:
                self._circles.note(made, seen)
                if charge is not None:
                    charge.seen = seen


def _used(outcome: bytes, price: Price) -> tuple[int, int]:
    """The tokens that a model used, and their cost (1/PICO)."""
    if _USAGE not in outcome:
        return 0, 0
    usage: Mapping[str, Any] = orjson.loads(outcome).get("usage") or {}
    read, written = (max(usage.get(name, 0), 0) for name in ("input_tokens", "output_tokens"))
    return read + written, read * (price.input or 0) + written * (price.output or 0)


def _stronger(one: Verdict | None, other: Verdict | None) -> Verdict | None:
    if one is None or other is None:
        return one or other
    return other if other.decision == "deny" != one.decision else one
