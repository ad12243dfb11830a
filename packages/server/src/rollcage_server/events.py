"""Live runs: one follower a run, whose news go to all its viewers."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final, Literal

import orjson
from rollcage import Store, order_of
from rollcage.errors import RollcageError, RunNotFound
from rollcage.stages.orders import Order
from rollcage_views import Following, Step, Viewer
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from rollcage_server.errors import TooMany
from rollcage_server.orders import order_key, told_order

__all__ = ["EventStream", "Hub", "News", "message"]

_EVERY: Final = 0.4  # seconds between two looks at a run
_ALIVE: Final = 15.0  # seconds between two signs of life to a viewer
_KEPT: Final = 2000  # of the newest news of a run, for viewers that were away for a moment
_QUEUED: Final = 32  # messages that wait for one viewer; a slower viewer is dropped

Form = Literal["html", "json"]


@dataclasses.dataclass(frozen=True, slots=True)
class News:
    """The news of a run for a viewer.

    Attributes:
        run: its id.
        after: the last line that the viewer knew.
        line: the last line that the viewer knows now.
        steps: each step that began or ended, in its current state, by its number.
        events: the other events.
        status: the status of the run; empty before its end.
        total: how many steps the run has now.
    """

    run: str
    after: int
    line: int
    steps: Sequence[Step]
    events: Sequence[dict[str, Any]]
    status: str
    total: int


Render = Callable[[News, Form, bool], bytes]
"""Makes a message from news: in a form, and with values or without."""


def message(event: str, data: str, line: int | None = None) -> bytes:
    """Return a message as a Server-Sent Event."""
    head = f"event: {event}\n" + ("" if line is None else f"id: {line}\n")
    return (head + "".join(f"data: {each}\n" for each in data.splitlines() or [""]) + "\n").encode()


@dataclasses.dataclass(eq=False, slots=True)
class _Viewer:
    form: Form
    values: bool
    line: int
    order: str
    queue: asyncio.Queue[bytes]
    dropped: bool = False

    def give(self, data: bytes) -> None:
        try:
            self.queue.put_nowait(data)
        except asyncio.QueueFull:
            self.dropped = True


class _Follower:
    """Follows one run as long as it has viewers."""

    def __init__(self, store: Callable[[], Store], run: str, render: Render) -> None:
        self._store = store
        self._run = run
        self._render = render
        self._following: Following | None = None
        self._kept: deque[tuple[int, Step | dict[str, Any]]] = deque(maxlen=_KEPT)
        self._line = 0
        self._total = 0
        self._floor = 0  # the line of the newest news that is no longer kept
        self._stale = ""
        self._order: Order | None = None
        self.viewers: set[_Viewer] = set()
        self.task: asyncio.Task[None] | None = None

    async def follow(self) -> None:
        while True:
            try:
                await run_in_threadpool(self._look)
                text = ""
            except RunNotFound:
                text = "this run is gone"
            except RollcageError as error:
                text = f"this page is stale: {error.code}"
            if text != self._stale:
                self._stale = text
                for viewer in self.viewers:
                    viewer.give(message("stale", text))
            await self._send()
            if not text:
                self._tell_order()
            await asyncio.sleep(_EVERY)

    def _look(self) -> None:
        if self._following is None:
            self._following = Following(self._store(), self._run, begun=True)
        for event in self._following.news():
            if len(self._kept) == _KEPT:
                self._floor = self._kept[0][0]
            self._kept.append((self._following.line, event))
            if isinstance(event, Step):
                self._total = max(self._total, event.step)  # steps are counted from 1
        self._line = self._following.lines
        self._order = order_of(self._store(), self._run)

    def _tell_order(self) -> None:
        """Tell that the run was stopped, paused or unpaused: the page is loaded again."""
        key = order_key(self._order)
        for viewer in self.viewers:
            if viewer.order == key:
                continue
            viewer.order = key
            if viewer.form == "html":
                viewer.give(message("reset", str(self._line)))
            else:
                order = told_order(self._order, Viewer(values=viewer.values))
                viewer.give(message("order", orjson.dumps(order).decode()))

    async def _send(self) -> None:
        behind = [each for each in self.viewers if each.line < self._line]
        made: dict[tuple[Form, bool, int], bytes] = {}
        for viewer in behind:
            at = viewer.form, viewer.values, viewer.line
            if at not in made:
                made[at] = await run_in_threadpool(self._message, *at)
            viewer.give(made[at])
            viewer.line = self._line

    def _message(self, form: Form, values: bool, after: int) -> bytes:  # noqa: FBT001 - a key
        if after < self._floor:
            return message("reset", str(self._line), self._line)
        kept = [each for line, each in self._kept if line > after]
        steps = {each.step: each for each in kept if isinstance(each, Step)}
        ended = self._following.finished if self._following is not None else None
        news = News(
            self._run,
            after,
            self._line,
            list(steps.values()),
            [each for each in kept if not isinstance(each, Step)],
            "" if ended is None else str(ended.get("status", "abandoned")),
            self._total,
        )
        return self._render(news, form, values)


class Hub:
    """All viewers of live runs.

    Args:
        store: gives the store.
        render: makes messages.
        most: how many viewers are served at once.
    """

    def __init__(self, store: Callable[[], Store], render: Render, *, most: int = 500) -> None:
        self._store = store
        self._render = render
        self._most = most
        self._followers: dict[str, _Follower] = {}

    @property
    def viewers(self) -> int:
        """Return how many viewers there are."""
        return sum(len(each.viewers) for each in self._followers.values())

    @property
    def followers(self) -> int:
        """Return how many runs are followed."""
        return len(self._followers)

    def check_room(self) -> None:
        """Refuse one more viewer if the cap is reached.

        Raises:
            TooMany: the cap is reached.
        """
        if self.viewers >= self._most:
            raise TooMany(f"{self._most} viewers follow runs already; load the page again later")

    @contextlib.contextmanager
    def _looking(self, run: str, form: Form, line: int, order: str, *, values: bool) -> Any:
        self.check_room()
        follower = self._followers.get(run)
        if follower is None:
            follower = self._followers[run] = _Follower(self._store, run, self._render)
            follower.task = asyncio.create_task(follower.follow())
        viewer = _Viewer(form, values, line, order, asyncio.Queue(_QUEUED))
        follower.viewers.add(viewer)
        try:
            yield viewer
        finally:
            follower.viewers.discard(viewer)
            if not follower.viewers:
                self._followers.pop(run, None)
                if follower.task is not None:
                    follower.task.cancel()

    async def stream(
        self,
        run: str,
        form: Form,
        after: int,
        order: str = "",
        *,
        values: bool,
        still: Callable[[], bool],
    ) -> AsyncIterator[bytes]:
        """Yield the messages for one viewer, until it falls behind, or loses its access.

        Args:
            run: the run.
            form: the form of the messages.
            after: the last line that the viewer knows.
            order: the order that stops or pauses the run, as far as the viewer knows.
            values: whether the viewer sees values.
            still: whether the viewer still has access; asked now and then.

        Raises:
            TooMany: the cap is reached.
        """
        with self._looking(run, form, after, order, values=values) as viewer:
            yield b"retry: 2000\n\n"
            asked = time.monotonic()
            while not viewer.dropped:
                try:
                    async with asyncio.timeout(_ALIVE):
                        data: bytes = await viewer.queue.get()
                except TimeoutError:
                    data = b": alive\n\n"
                if time.monotonic() - asked >= _ALIVE:
                    asked = time.monotonic()
                    if not await run_in_threadpool(still):
                        return
                yield data


class EventStream(Response):
    """A response of Server-Sent Events that ends when its reader is gone, or too slow.

    Args:
        messages: the messages.
        patience: seconds for one message; a slower reader is dropped.
    """

    def __init__(self, messages: AsyncIterator[bytes], *, patience: float = 10.0) -> None:
        super().__init__(media_type="text/event-stream")
        self._messages = messages
        self._patience = patience

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Serve the request."""
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"),
                   (b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")]  # fmt: skip
        gone = asyncio.create_task(_gone(receive))
        sending = asyncio.create_task(self._send(send, headers))
        try:
            await asyncio.wait((gone, sending), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (gone, sending):
                task.cancel()
            await asyncio.gather(gone, sending, return_exceptions=True)
            closing: Any = self._messages
            await closing.aclose()

    async def _send(self, send: Send, headers: list[tuple[bytes, bytes]]) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async for data in self._messages:
            async with asyncio.timeout(self._patience):
                await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
