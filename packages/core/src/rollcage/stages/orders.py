"""Obey orders from outside: stop a run, or let it wait.

An order is a value in the store, `orders`, under the id of the run; giving or lifting an order
rings the store's bell. A session looks at the bell before each body: behind the wait for a write's
intent, which has read the bell already, so the look costs nothing; and before a body that needs no
intent. So an order given before a body began is seen before it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Literal

import orjson

from rollcage.calls.stage import Stage, Work
from rollcage.errors import ControlLost, OrderRefused, RunStopped, StoreError, TraceCorrupt
from rollcage.trace.endings import OVER, check_here, ended_as
from rollcage.trace.keys import writable
from rollcage.trace.store import Store, open_store, store_option
from rollcage.trace.threads import in_thread

if TYPE_CHECKING:
    from rollcage.calls.attempt import Attempt
    from rollcage.replay.call import Call, Match
    from rollcage.session.session import Session
    from rollcage.trace.run import Event

__all__ = [
    "Order", "Orders", "lift_order", "lift_stop", "order_of", "pause_run", "stop_run",
    "unpause_run",
]  # fmt: skip

Kind = Literal["stop", "pause"]
_OFTEN: Final = 0.01  # seconds in which hits do not look again
_LOOK: Final = 0.1  # seconds between two looks of a run that is paused


@dataclasses.dataclass(frozen=True, slots=True)
class Order:
    """Hold an order to a run.

    Attributes:
        kind: `stop`: nothing more runs; `pause`: calls wait.
        by: the person who gave the order.
        reason: why.
        time: when (Unix, µs).
    """

    kind: Kind
    by: str = ""
    reason: str = ""
    time: int = 0


def stop_run(
    store: str | os.PathLike[str] | Store, run: str, *, by: str = "", reason: str = ""
) -> Order:
    """Stop a run: nothing more runs in it, nor in a resume of it, until the stop is lifted.

    Running bodies are not interrupted. A stopped run can be undone.

    Returns:
        The order; it replaces an earlier order.

    Raises:
        RunNotFound: there is no such run.
        OrderRefused: the run is over, or was imported.
        RunElsewhere: the run goes on in another store: give the order there.
    """
    own = open_store(store)
    ended = ended_as(own, run)
    if ended in OVER:
        raise OrderRefused(
            f"run {run} can't be stopped: it ended as {ended!r}, and nothing runs in it any more. "
            f"To undo what it did: rollcage undo {run}{store_option(own)}"
        )
    return _give(own, run, "stop", by, reason)


def pause_run(
    store: str | os.PathLike[str] | Store, run: str, *, by: str = "", reason: str = ""
) -> Order:
    """Let the calls of a run wait until the pause is lifted.

    Returns:
        The order; it replaces an earlier pause, but no stop.

    Raises:
        RunNotFound: there is no such run.
        OrderRefused: the run is over, is stopped, or was imported.
        RunElsewhere: as in `stop_run`.
    """
    own = open_store(store)
    ended = ended_as(own, run)
    if ended in OVER:
        raise OrderRefused(
            f"run {run} can't be paused: it ended as {ended!r}, and makes no more calls"
        )
    return _give(own, run, "pause", by, reason)


def lift_stop(store: str | os.PathLike[str] | Store, run: str) -> Order:
    """Let a stopped run be resumed; return the lifted order.

    Raises:
        RunNotFound: there is no such run.
        OrderRefused: the run is not stopped.
    """
    return _lifted(open_store(store), run, "stop")


def unpause_run(store: str | os.PathLike[str] | Store, run: str) -> Order:
    """Let the calls of a paused run go on; return the lifted order.

    Raises:
        RunNotFound: there is no such run.
        OrderRefused: the run is not paused.
    """
    return _lifted(open_store(store), run, "pause")


def _lifted(store: Store, run: str, kind: Kind) -> Order:
    store.read(run, -1)  # of a run that is not there, that is said
    order = order_of(store, run)
    if order is not None and order.kind == kind and lift_order(store, run, kind=kind):
        return order
    lift_order(store, run, kind=kind)  # rings: the lifting process may have died before its bell
    if order is None or order.kind == kind:
        done = "stopped" if kind == "stop" else "paused"
        raise OrderRefused(f"run {run} is not {done}: there is nothing to lift")
    raise _other(store, run, order, "not stopped but" if kind == "stop" else "not paused but")


def _other(store: Store, run: str, order: Order, what: str) -> OrderRefused:
    """Return the refusal of an order that conflicts with the run's order."""
    at = store_option(store)
    by = f" by {order.by}" if order.by else ""
    done, helps = "stopped", f"rollcage stop {run} --lift{at}"
    if order.kind == "pause":
        done, helps = "paused", f"rollcage unpause {run}{at}"
    return OrderRefused(f"run {run} is {what} {done}{by}. To let it go on: {helps}")


def lift_order(
    store: str | os.PathLike[str] | Store, run: str, *, kind: Kind | None = None
) -> bool:
    """Lift the order of a run; tell whether there was one.

    Args:
        store: the store of the run.
        run: the run's id.
        kind: lift only an order of this kind.
    """
    where = open_store(store)
    while True:
        seen = where.get("orders", run)
        if seen is None:
            where.swap("orders", run, None, None)  # rings: a lift may have died before its bell
            return False
        if kind not in (None, _read(seen).kind):
            return False
        if where.swap("orders", run, seen, None):
            return True


def order_of(store: str | os.PathLike[str] | Store, run: str) -> Order | None:
    """Return the order of a run; None without one."""
    seen = open_store(store).get("orders", run)
    return None if seen is None else _read(seen)


def _give(store: Store, run: str, kind: Kind, by: str, reason: str) -> Order:
    check_here(store, run)
    try:
        first = orjson.loads(store.ends(run).first)
    except orjson.JSONDecodeError as error:
        raise TraceCorrupt(f"run {run}", 1, f"it is no JSON: {error}") from None
    if "imported" in first:
        raise OrderRefused(
            f"there is nothing to {kind} in run {run}: it was imported, and nothing runs in it"
        )
    order = Order(kind, writable(by), writable(reason), time.time_ns() // 1000)
    data = orjson.dumps(dataclasses.asdict(order) | {"nonce": os.urandom(8).hex()})
    while True:
        seen = store.get("orders", run)
        if kind == "pause" and seen is not None and (found := _read(seen)).kind == "stop":
            raise _other(store, run, found, "not paused: it was")
        if store.swap("orders", run, seen, data):
            check_here(store, run)  # it may have been moved meanwhile, without this order
            return order


def _read(data: bytes) -> Order:
    """Read an order; an unreadable order is an order to stop."""
    try:
        fields = orjson.loads(data)
        kind: Kind = "pause" if fields["kind"] == "pause" else "stop"
        return Order(kind, str(fields["by"]), str(fields["reason"]), int(fields["time"]))
    except (ValueError, TypeError, KeyError):
        return Order("stop", reason="the order can't be read")


class Orders(Stage):
    """Make a run obey its orders."""

    def __init__(self) -> None:
        self._bell: int | None = None
        self._told = -1  # what the log told without I/O, in an async session
        self._next = 0.0
        self._order: Order | None = None
        self._obeyed: Order | None = None
        self._held = 0.0
        self._waiting = 0  # how many calls wait now
        self._line: list[Call] = []  # the calls that wait, or look in a thread
        self._since = 0.0
        self._around: tuple[Attempt, ...] = ()  # the runs around it, if it is of another one

    @property
    def held(self) -> float:
        """Return the seconds in which calls waited; calls that waited together count once."""
        return self._held + (time.monotonic() - self._since if self._waiting else 0.0)

    def opening(self, session: Session) -> None:
        """Look at the bell before the run is there: an order to a new run rings later."""
        self._bell = session.store.bell()

    def resuming(self, session: Session, run: str) -> None:
        """Refuse to resume a run that was stopped, unless it is to be undone.

        Raises:
            RunStopped: nothing runs in it.
            ControlLost: its order can't be read.
        """
        store = session.store
        try:
            bell = store.bell()
            self._order, self._bell = order_of(store, run), bell
        except StoreError as error:
            raise ControlLost(run, str(error)) from error
        order = self._order
        if order is not None and order.kind == "stop" and session.finishes_undo:
            raise RunStopped(run, order.by, order.reason, store_option(store))

    def opened(self, session: Session) -> None:
        """Note the runs around; without I/O for its calls, look whether the bell was rung."""
        found: dict[int, Attempt] = {}
        around = session.around
        while around is not None:
            found[id(around.attempt)] = around.attempt
            around = around.around
        self._around = tuple(found.values())
        attempt = session.attempt
        told = None if attempt.is_at_once or attempt.log is None else attempt.log.log.hear()
        if told is not None:
            self._told = told()  # first, so that every later ring leads to a look
            self._listen(attempt, attempt.store.bell)

    def prepare(self, call: Call, match: Match) -> Work | None:
        """Hold back a call of a stopped or paused run."""
        attempt = call.attempt
        if attempt.log is None:
            return None
        runs = self._around and match.kind != "hit" and not _takes_back(call)
        if runs and not (call.kept is not None and call.kept.pop("looked around", False)):
            return self._look_around(call)
        if match.kind == "hit":  # nothing runs: it is enough that it is looked at often
            looks = time.monotonic() >= self._next
        else:  # a write is looked at once its intent is on record
            looks = not call.changes or call.verdict is not None
        if call.kept is not None and call.kept.pop("looked", False):
            looks = False  # it was just now
        if looks and call.is_async:
            told = attempt.log.log.hear()
            if told is None or told() != self._told:
                return self._look(call)
            looks = False
        if looks:
            self._next = time.monotonic() + _OFTEN
            self._listen(attempt, attempt.store.bell)
        if (self._order is None and not self._is_behind(call)) or _takes_back(call):
            return None
        return self._wait(call) if self._order is None else self._obey(call, self._order)

    def _look(self, call: Call) -> Work:
        """Look in a thread; the call is then decided anew, and begins unless it has to wait."""
        attempt = call.attempt
        assert attempt.log is not None
        told = attempt.log.log.hear()
        number = 0 if told is None else told()
        self._line.append(call)
        try:
            yield _outside(call, lambda: self._listen(attempt, attempt.store.bell))
        finally:
            self._line.remove(call)
        self._told = number
        self._next = time.monotonic() + _OFTEN
        call.keep("looked", True)

    def _look_around(self, call: Call) -> Work:
        """Obey the orders to outer runs; the call is then decided anew."""
        own = call.attempt
        sleep: Callable[[float], Any] = asyncio.sleep if call.is_async else time.sleep
        for attempt in self._around:
            get = functools.partial(order_of, attempt.store, attempt.run.id)
            look = functools.partial(in_thread, get) if call.is_async else get
            while not (own.closed or own.halted):
                try:
                    order: Order | None = yield look
                except StoreError as error:
                    raise own.halt(ControlLost(attempt.run.id, str(error))) from error
                if order is None or attempt.closed:
                    break
                self._note(own, order)
                if order.kind == "stop":
                    at = store_option(attempt.store)
                    raise own.halt(RunStopped(attempt.run.id, order.by, order.reason, at))
                yield lambda: sleep(_LOOK)
        call.keep("looked around", True)

    def begun(self, call: Call) -> Work | None:
        """Look in a thread, in an async session, if the bell was rung before the intent."""
        attempt = call.attempt
        if not call.is_async or attempt.log is None:
            return None
        log = attempt.log.log
        return None if log.bell == self._bell else self._look_again(call, lambda: log.bell)

    def _look_again(self, call: Call, bell_of: Callable[[], int]) -> Work:
        yield _outside(call, lambda: self._listen(call.attempt, bell_of))

    def ready(self, call: Call) -> bool:
        """Tell whether no order was given before the intent was on record."""
        if call.attempt.log is not None and not call.is_async:  # else `begun` has looked
            log = call.attempt.log.log
            try:
                is_rung = log.bell != self._bell
            except StoreError:
                is_rung = True  # the look below says why
            if is_rung:
                self._listen(call.attempt, lambda: log.bell)
        return self._order is None or _takes_back(call)

    def _listen(self, attempt: Attempt, bell_of: Callable[[], int]) -> None:
        """Read the order if the bell was rung; later rings are heard the next time.

        Raises:
            ControlLost: the bell can't be read, so the run could not be stopped any more.
        """
        try:
            bell = bell_of()
            if bell != self._bell:
                with attempt.lock:
                    data = attempt.store.get("orders", attempt.run.id)
                    self._order = None if data is None else _read(data)
                    self._bell = bell
        except StoreError as error:
            raise attempt.halt(ControlLost(attempt.run.id, str(error))) from error

    def _obey(self, call: Call, order: Order) -> Work | None:
        attempt = call.attempt
        self._note(attempt, order)
        if order.kind == "stop":
            at = store_option(attempt.store)
            raise attempt.halt(RunStopped(attempt.run.id, order.by, order.reason, at))
        return self._wait(call)

    def _note(self, attempt: Attempt, order: Order) -> None:
        """Put on record that an order was seen, once."""
        if order != self._obeyed:
            self._obeyed = order
            line: Event = {"event": "ordered", "order": order.kind, "by": order.by}
            attempt.note({**line, "reason": order.reason, "given": order.time})

    def _wait(self, call: Call) -> Work:
        """Wait until the order changes, or the session ends.

        Tasks go on in the order in which their calls arrived, as they would have without a pause.
        """
        attempt = call.attempt
        sleep: Callable[[float], Any] = asyncio.sleep if call.is_async else time.sleep
        self._waits(attempt, 1)
        self._line.append(call)
        try:
            while not (attempt.closed or attempt.halted):
                yield lambda: sleep(_LOOK)
                yield _outside(call, lambda: self._listen(attempt, attempt.store.bell))
                is_over = self._order is None or self._order.kind != "pause"
                if is_over and not self._is_behind(call):
                    call.keep("looked", True)
                    return
        finally:
            self._line.remove(call)
            self._waits(attempt, -1)

    def _is_behind(self, call: Call) -> bool:
        """Tell whether the call of a task that arrived earlier waits, or looks, as well."""
        line = self._line
        return bool(line) and call.is_async and any(c.before < call.before for c in tuple(line))

    def _waits(self, attempt: Attempt, more: int) -> None:
        """Count the waiting calls, and the time in which any call waits."""
        with attempt.lock:
            now = time.monotonic()
            if self._waiting:
                self._held += now - self._since
            self._since = now
            self._waiting += more


def _outside(call: Call, function: Callable[[], None]) -> Callable[[], Any]:
    """Return a function that does I/O, sync or async as the session is."""
    return (lambda: in_thread(function)) if call.is_async else function


def _takes_back(call: Call) -> bool:
    """Tell whether a call is made to undo a step: a stopped run can be undone."""
    branch, run = call.place.branch, call.attempt.run
    while branch[:1] != "-":
        owner = run.owner(branch)
        if owner is None:
            return False
        branch = owner.branch
    return True
