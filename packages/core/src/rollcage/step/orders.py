"""Orders to stop or to pause a run, and a halt: what they keep from beginning."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any, Protocol

from rollcage.errors import Halt, RunStopped, SessionError, SessionHalted
from rollcage.step.call import Call, OpenStep
from rollcage.step.ledger import Ledger
from rollcage.step.pausing import Pausing
from rollcage.step.requests import Raised
from rollcage.store.jobs import store_option
from rollcage.store.protocol import StopOrder, Store, Writer
from rollcage.trace import constructors as make

__all__ = ["Ordered", "Orders"]


class Ordered(Protocol):
    """What orders need of the driver of a run: see `Driver`."""

    @property
    def ledger(self) -> Ledger:
        """The state of the run."""
        ...

    @property
    def writer(self) -> Writer:
        """Of its trace; it has the orders."""
        ...

    @property
    def store(self) -> Store:
        """Where the run is kept."""
        ...

    @property
    def lock(self) -> AbstractContextManager[Any, bool | None]:
        """The session's."""
        ...

    @property
    def closed(self) -> bool:
        """Whether the session was left."""
        ...

    @property
    def around(self) -> Ordered | None:
        """The driver of the session around, whose orders hold here too."""
        ...

    def append(self, event: dict[str, Any]) -> None:
        """Write an event."""
        ...

    def check_process(self) -> None:
        """Refuse a forked child."""
        ...


class Orders:
    """Looks for orders to stop or to pause a run, and says which of its calls may not go on.

    Args:
        driver: of the run.
        wall: the time, in ns since 1970.
    """

    def __init__(self, driver: Ordered, wall: Callable[[], int]) -> None:
        self._driver = driver
        self._wall = wall
        self._pausing = Pausing(driver.lock, lambda: self._pause() is not None)

    def refusal(self, step: OpenStep) -> Raised | None:
        """Why a body must not begin any more: it may have waited for the disk, or for a thread."""
        if step.cleared:
            step.cleared = False  # for this once
        else:
            self._look_again(step.call)
        ledger = self._driver.ledger
        halted = ledger.halted
        if halted is not None and ledger.stops(step.call):
            error: Exception = SessionHalted(f"the session was halted: {halted}")
            error.__cause__ = halted
            return Raised(error, began=False)
        if self._driver.closed:
            return Raised(SessionError("the session was left before this call began"), began=False)
        return None

    def _look_again(self, call: Call) -> None:
        """Halt the session if the run has an order to stop since a call was admitted."""
        driver = self._driver
        try:
            ordered = (
                driver.around is not None or driver.writer.stop_order(closely=True) is not None
            )
        except Halt:  # nobody could stop it any more
            ordered = True
        if ordered:
            with driver.lock:
                if not driver.closed:
                    self.look(call, closely=True)

    def holds_back(self, call: Call) -> SessionHalted | Future[None] | None:
        """Why a call of the session around must not be made from inside of this one, or not yet."""
        driver = self._driver
        driver.check_process()
        with driver.lock:
            order = None if driver.closed else self.look(call)
            pause = None if order is None else self.waits_for(call)
        halted = driver.ledger.halted
        if halted is None or not driver.ledger.stops(call):
            return pause
        error = SessionHalted(f"the session inside of this one was halted: {halted}")
        error.__cause__ = halted
        return error

    def look(self, call: Call, *, closely: bool = False) -> StopOrder | None:
        """Halt the session if the run has an order to stop, or could be given none any more.

        The caller has the lock. A call that undoes a step goes on: a stopped run can be undone.

        Returns:
            The order to pause, if there is one.
        """
        own, paused = self._driver, None
        ledger = own.ledger
        if ledger.halted is not None or call.undoes is not None:
            return None
        driver: Ordered | None = own
        while driver is not None:
            try:
                order = None if driver.closed else driver.writer.stop_order(closely=closely)
            except Halt as error:
                ledger.halted = error
                return None
            if order is not None and order.is_pause:
                paused = paused or order
            elif order is not None:
                run, store = order.run or driver.writer.run, store_option(driver.store)
                ledger.halted = RunStopped(run, order.by, order.reason, store)
                now = self._wall() // 1000
                own.append(
                    make.run_stopped(
                        time=now, run=run, by=order.by, reason=order.reason, ordered=order.time
                    )
                )
                return None
            halted = None if driver is own else driver.ledger.halted
            if halted is not None:
                message = f"the session around this one was halted: {halted}"
                ledger.halted = SessionHalted(message)
                ledger.halted.__cause__ = halted
                return None
            driver = driver.around
        return paused

    def _pause(self) -> StopOrder | None:
        """The order to pause that holds, as long as nothing ends the session; with the lock."""
        found: StopOrder | None = None
        driver: Ordered | None = None if self._driver.closed else self._driver
        while driver is not None:
            try:
                order = None if driver.closed else driver.writer.stop_order()
            except Exception:  # noqa: BLE001 - the calls that wait find out, each for itself
                return None
            if driver.ledger.halted is not None or (order is not None and not order.is_pause):
                return None
            found = found or order
            driver = driver.around
        return found

    def waits_for(self, call: Call) -> Future[None] | None:
        """What a call of a paused run waits for; none that is made in order to undo a step."""
        inside = call.parent
        while inside is not None and inside.call.undoes is None:
            inside = inside.call.parent
        return self._pausing.over() if inside is None else None

    @property
    def held(self) -> float:
        """For how many seconds calls have waited because the run was paused."""
        return self._pausing.seconds
