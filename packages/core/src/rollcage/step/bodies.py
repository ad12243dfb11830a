"""Runs the bodies of tools, each in its own context: in this thread, in a task, or in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable, Generator
from types import CoroutineType
from typing import Any

from rollcage.errors import SessionError
from rollcage.step.call import OpenStep
from rollcage.step.requests import Execute, Raised, Returned
from rollcage.step.watch import calls_body

__all__ = ["Bodies"]


class Bodies:
    """Runs the bodies of one run.

    Args:
        enter: called before a body, in its own context, with its step.
        leave: called after it, with what that gave.
        refusal: why a body must not begin any more, if it must not.
        late: records the end of a body that outlived its cancelled call.
        closed: whether the session was left.
    """

    def __init__(
        self,
        enter: Callable[[OpenStep], Any],
        leave: Callable[[Any], None],
        refusal: Callable[[OpenStep], Raised | None],
        late: Callable[[OpenStep, Returned | Raised], None],
        closed: Callable[[], bool],
    ) -> None:
        self._enter = enter
        self._leave = leave
        self._refusal = refusal
        self._late = late
        self._closed = closed

    @contextlib.contextmanager
    def inside(self, step: OpenStep) -> Generator[None]:
        """Be in the body of a step."""
        token = self._enter(step)
        try:
            yield
        finally:
            self._leave(token)

    @calls_body
    def execute(self, effect: Execute) -> Returned | Raised:
        """Run a body in this thread; what it raises is data, for the flow to decide on."""
        refused = self._refusal(effect.step)
        if refused is not None:
            return refused
        token = self._enter(effect.step)
        try:
            value = effect.body(**effect.step.call.passed)
            if type(value) is CoroutineType:
                value.close()  # it has not begun: nothing happened
                name = effect.step.call.contract.name
                return Raised(SessionError(f"{name} is async: await session.acall(...) it"))
            return Returned(value)
        except BaseException as error:  # noqa: BLE001 - the flow decides; it is raised again
            return Raised(error)
        finally:
            self._leave(token)

    @calls_body
    async def aexecute(self, effect: Execute, *, is_async: bool) -> Returned | Raised:
        """Run a body in this task, or a sync one in a thread that has the context of this one.

        `is_async` is what it is, if the effect does not say.
        """
        if not (is_async if effect.is_async is None else effect.is_async):
            return await self._in_thread(effect)
        refused = self._refusal(effect.step)
        if refused is not None:
            return refused
        token = self._enter(effect.step)
        try:
            return Returned(await effect.body(**effect.step.call.passed))
        except BaseException as error:  # noqa: BLE001 - the flow decides; it is raised again
            return Raised(error)
        finally:
            self._leave(token)

    async def _in_thread(self, effect: Execute) -> Returned | Raised:
        effect.step.cleared = False
        context = contextvars.copy_context()
        loop = asyncio.get_running_loop()
        ticket = threading.Lock()  # taken once: by the body to begin, or so that it never does

        def begin() -> Returned | Raised | None:
            return self.execute(effect) if ticket.acquire(blocking=False) else None

        body = loop.run_in_executor(None, context.run, begin)
        try:
            answer = await asyncio.shield(body)
            assert answer is not None
            return answer
        except asyncio.CancelledError as error:
            if ticket.acquire(blocking=False):  # it was waiting for a free thread
                return Raised(error, began=False)
            # The body goes on in its thread; its outcome is recorded when it is known.
            body.add_done_callback(lambda done: self._outlived(effect, done))
            return Raised(error)

    def _outlived(self, effect: Execute, done: asyncio.Future[Returned | Raised | None]) -> None:
        if done.cancelled() or not effect.step.world_effect or self._closed():
            return
        answer = done.result()
        if answer is not None:
            with contextlib.suppress(BaseException):  # what the body raised is recorded, not raised
                self._late(effect.step, answer)
