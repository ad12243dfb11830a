"""Count what a run uses, and decide when a limit of the policy is reached.

One lock guards the meter: with any number of threads, exactly as many calls pass as a limit allows.
The meter fails closed: any error in it denies.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from typing import Final

from rollcage.gate import StepView, Verdict

from rollcage_policy.bounds import Bound, UsedUp, stricter
from rollcage_policy.circles import Circles, Seen
from rollcage_policy.limits import Limits
from rollcage_policy.prices import PICO, Price, Prices
from rollcage_policy.tally import Spent

__all__ = ["Meter", "Ticket"]

_CACHED: Final = 4096  # kinds of calls whose price and limits are cached
_FREE: Final = Price(0, 0, 0)


class _ClockFailed(Exception):
    """The clock raised, went backwards, or returned no time."""


class Ticket:
    """The reservation of a call under the limits; `Meter.end` releases the unused part.

    Attributes:
        verdict: the limits' verdict on the call; None: it is within all of them.
        paced: whether a limit bounds how many calls may begin within a time span.

    The other attributes are the meter's, under its lock.
    """

    __slots__ = ("_meter", "ended", "paced", "price", "seen", "start", "taken", "verdict", "view")

    def __init__(self, meter: Meter, view: StepView, verdict: Verdict | None) -> None:
        self.verdict = verdict
        self._meter = meter
        self.view = view
        self.taken: list[tuple[Bound, UsedUp]] = []
        self.price = _FREE
        self.paced = False
        self.seen: Seen | None = None
        self.start: int | None = None
        self.ended = False

    def over(self, verdict: Verdict) -> Verdict:
        """Combine the verdicts of the policy and the limits: deny over ask over allow."""
        own = self.verdict
        if own is None or verdict.decision == "deny":
            return verdict
        return own if own.decision == "deny" or verdict.decision == "allow" else verdict

    def pace(self) -> Verdict | None:
        """Return the rate limits' verdict on beginning the call now; None: it may begin.

        Call it only if the call will run: a replayed call does not count for rates.
        """
        return self._meter.pace(self)

    def end(
        self, *, made: bool, failed: bool = False, usage: Mapping[str, int] | None = None
    ) -> None:
        """See `Meter.end`."""
        self._meter.end(self, made=made, failed=failed, usage=usage)


class Meter:
    """Counts the calls of one session against the limits of its policy. Thread-safe.

    A session that resumes a run also counts replayed steps: it is one job, with one budget.

    Args:
        limits: the limits.
        prices: the prices of calls.
        clock: monotonic time in ns. If it raises or goes backwards, calls under a limit of time or
            rate are denied.
    """

    def __init__(self, limits: Limits, prices: Prices, clock: Callable[[], int]) -> None:
        self._bounds = tuple(Bound(each) for each in limits.rules)
        self._circles = Circles(limits.loops) if limits.loops else None
        self._prices = prices
        self._clock = clock
        self._lock = threading.Lock()
        self._last: int | None = None  # the last reading of the clock
        self._counts: dict[tuple[Bound, str], UsedUp] = {}
        self._concerned: OrderedDict[
            tuple[str, str, str], tuple[Price, bool, tuple[Bound, ...]]
        ] = OrderedDict()
        self._limits_nothing = not (limits or prices.calls or prices.models)
        self._calls = self._tokens = self._cost = 0
        self._opened: int | None = None
        if any(each.nanoseconds is not None for each in self._bounds):
            try:
                self._opened = self._now()
            except _ClockFailed:  # reported on each call that depends on the clock
                self._opened = None

    @property
    def spent(self) -> Spent:
        """Return the usage so far."""
        with self._lock:
            return Spent(self._calls, self._tokens, self._cost / PICO)

    @property
    def limits_nothing(self) -> bool:
        """Return whether there is neither a limit nor a price: calls are only tallied."""
        return self._limits_nothing

    def tally(self, calls: int, usage: Mapping[str, int] | None = None) -> None:
        """Count calls, and the usage of models, if nothing is limited; -1: a call was not made."""
        tokens = _FREE.of_tokens(usage)[0]
        with self._lock:
            self._calls += calls
            self._tokens += tokens

    def take(self, view: StepView, place: Hashable = None) -> Ticket:
        """Reserve a call's share of each limit: all of it, or nothing if a limit denies.

        Args:
            view: the call.
            place: identifies the call if a framework repeats it: a retry is not a loop.
        """
        try:
            with self._lock:
                return self._take(view, place)
        except _ClockFailed as failed:
            reason = f"the clock can't be read: {failed}"
            return Ticket(self, view, Verdict("deny", reason, "clock_error", "limits"))
        except Exception as error:  # noqa: BLE001 - whatever fails in here, the call must not run
            reason = f"the limits failed: {type(error).__name__}"
            return Ticket(self, view, Verdict("deny", reason, "limit_error", "limits"))

    def pace(self, ticket: Ticket) -> Verdict | None:
        """See `Ticket.pace`."""
        try:
            with self._lock:
                return self._pace(ticket)
        except _ClockFailed as failed:
            return Verdict("deny", f"the clock can't be read: {failed}", "clock_error", "limits")
        except Exception as error:  # noqa: BLE001 - whatever fails in here, the call must not run
            reason = f"the limits failed: {type(error).__name__}"
            return Verdict("deny", reason, "limit_error", "limits")

    def end(
        self,
        ticket: Ticket,
        *,
        made: bool,
        failed: bool = False,
        usage: Mapping[str, int] | None = None,
    ) -> None:
        """End a call and release its unused reservation; ending it twice has no effect.

        Args:
            ticket: the reservation.
            made: whether the call ran or was replayed; if it was refused or did not begin,
                everything is
                released.
            failed: whether the call raised.
            usage: a model's usage: `input_tokens` and `output_tokens`.
        """
        with self._lock:
            if ticket.ended:
                return
            ticket.ended = True
            if ticket.verdict is not None and ticket.verdict.decision == "deny":
                return
            self._end(ticket, usage, made=made, failed=failed)

    # --- with the lock ---------------------------------------------------------------------------

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

    def _concern(self, view: StepView) -> tuple[Price, bool, tuple[Bound, ...]]:
        """Return a call's price, the limits for it, and whether they look at the clock."""
        call = view.kind, view.name, view.agent
        found = self._concerned.get(call)
        if found is None:
            bounds = tuple(each for each in self._bounds if each.concerns(*call))
            price = self._prices.of(view.kind, view.name)
            found = price, any(each.timed for each in bounds), bounds
            self._concerned[call] = found
            while len(self._concerned) > _CACHED:
                self._concerned.popitem(last=False)
        return found

    def _count(self, bound: Bound, view: StepView) -> UsedUp:
        at = bound, bound.scope(view)
        count = self._counts.get(at)
        if count is None:
            count = self._counts[at] = UsedUp()
            if bound.limit.per == "run":
                count.began = self._opened
        return count

    def _take(self, view: StepView, place: Hashable) -> Ticket:
        price, timed, bounds = self._concern(view)
        now = self._now() if timed else 0
        verdict: Verdict | None = None
        taken: list[tuple[Bound, UsedUp]] = []
        for bound in bounds:
            count = self._count(bound, view)
            taken.append((bound, count))
            if bound.nanoseconds is not None and bound.limit.per == "run" and self._opened is None:
                raise _ClockFailed("the clock failed when the session was opened")
            verdict = stricter(verdict, bound.room(count, view, price, now))
        seen: Seen | None = None
        if self._circles is not None:
            loop, seen = self._circles.look(view, place)
            verdict = stricter(verdict, loop)
        ticket = Ticket(self, view, verdict)
        if verdict is not None and verdict.decision == "deny":
            return ticket
        for _, count in taken:
            count.calls += 1
            count.in_flight += 1
            count.cost += price.call
            if count.began is None and timed:
                count.began = now
        self._calls += 1
        self._cost += price.call
        if seen is not None and self._circles is not None:
            self._circles.note(view, seen)
        ticket.taken, ticket.price, ticket.seen = taken, price, seen
        ticket.paced = any(bound.rate is not None for bound, _ in taken) if taken else False
        return ticket

    def _pace(self, ticket: Ticket) -> Verdict | None:
        paced = [(bound, count) for bound, count in ticket.taken if bound.rate is not None]
        if not paced or ticket.start is not None:
            return None
        now = self._now()
        asked = None if ticket.verdict is None else ticket.verdict.rule
        for bound, count in paced:
            refusal = bound.pace(count, ticket.view, now)
            if refusal is not None and asked != bound.limit.id:
                return Verdict("deny", refusal.reason, refusal.code, refusal.rule, refusal.remedy)
        for _, count in paced:
            count.starts.append(now)
        ticket.start = now
        return None

    def _end(
        self, ticket: Ticket, usage: Mapping[str, int] | None, *, made: bool, failed: bool
    ) -> None:
        view, price = ticket.view, ticket.price
        tokens, cost = price.of_tokens(usage) if made else (0, 0)
        for bound, count in ticket.taken:
            count.in_flight -= 1
            count.tokens += tokens
            count.cost += cost
            if not made or (failed and bound.limit.failed == "free"):
                count.calls -= 1
                count.cost -= price.call
                if bound.rate is not None and ticket.start is not None:
                    with contextlib.suppress(ValueError):  # the call may have left the span
                        count.starts.remove(ticket.start)
            elif view.kind == "model" and usage is None and not failed:
                count.uncounted = view.name
        self._tokens += tokens
        self._cost += cost
        if not made:
            self._calls -= 1
            self._cost -= price.call
            if ticket.seen is not None and self._circles is not None:
                self._circles.forget(view, ticket.seen)
