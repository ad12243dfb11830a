"""A worker without an engine's database: it takes open commands from the store, a few at a time."""

from __future__ import annotations

import asyncio
import itertools
import threading
from typing import Final

from rollcage.errors import StoreError

from rollcage_workflow.engine.board import Board
from rollcage_workflow.engine.worker import Worker

__all__ = ["serve_alone"]

_LOOK: Final = 0.05  # seconds between two checks for the end


def serve_alone(
    worker: Worker,
    stop: threading.Event,
    *,
    concurrency: int,
    every: float,
    grace: float,
    once: bool = False,
) -> None:
    """Take commands until `stop` is set; then attempts end at their next step.

    Args:
        worker: carries out the commands.
        stop: ends it.
        concurrency: how many commands are taken at once.
        every: seconds between two looks for new commands.
        grace: seconds for attempts in flight to end.
        once: end when nothing is due that this worker can do.
    """
    asyncio.run(_serve(worker, stop, concurrency, every, grace, once=once))


async def _serve(
    worker: Worker,
    stop: threading.Event,
    concurrency: int,
    every: float,
    grace: float,
    *,
    once: bool,
) -> None:
    board = Board(worker)
    flying: dict[str, asyncio.Task[str]] = {}
    stuck: set[str] = set()  # commands without a result
    while not stop.is_set():
        for key in [key for key, task in flying.items() if task.done()]:
            if not flying.pop(key).result() and once:
                stuck.add(key)
        due: list[str] = []
        if len(flying) < concurrency:
            room, known = concurrency - len(flying), frozenset(stuck | flying.keys())
            due = await asyncio.to_thread(_due, board, worker, known, room)
            flying |= {key: asyncio.create_task(worker.take(key)) for key in due}
        if once and not due and not flying:
            return
        await _wait(stop, every, flying)
    worker.end("the worker ends")
    if flying:
        _, late = await asyncio.wait(flying.values(), timeout=grace)
        for task in late:  # one by one, and not all tasks at once: each attempt ends as a whole
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)


def _due(board: Board, worker: Worker, known: frozenset[str], room: int) -> list[str]:
    """Return due commands, as many as there is room for."""
    try:
        due = (each.key for each in board.look(without=known) if board.is_due(each))
        return list(itertools.islice(due, room))
    except StoreError as error:
        worker.warn("", str(error))
        return []


async def _wait(stop: threading.Event, every: float, flying: dict[str, asyncio.Task[str]]) -> None:
    """Wait until a command has ended, at most for `every` seconds."""
    left = every
    while left > 0 and not stop.is_set():
        step = min(left, _LOOK)
        if flying:
            ended, _ = await asyncio.wait(
                flying.values(), timeout=step, return_when=asyncio.FIRST_COMPLETED
            )
            if ended:
                return
        else:
            await asyncio.sleep(step)
        left -= step
