"""A worker without an engine's database: it takes what is open in the store, a few at a time."""

from __future__ import annotations

import asyncio
import random
import threading
from typing import Final

from rollcage.errors import StoreError

from rollcage_workflow.engine.board import Board
from rollcage_workflow.engine.worker import Worker

__all__ = ["serve_alone"]

_LOOK: Final = 0.05  # seconds between two looks at whether it is to end


def serve_alone(
    worker: Worker, stop: threading.Event, *, concurrency: int, every: float, grace: float
) -> None:
    """Take commands until `stop` is set; then attempts end at their next step.

    Args:
        worker: who does them.
        stop: ends it.
        concurrency: how many are taken at once.
        every: seconds between two looks for new ones.
        grace: seconds that those in flight have to end.
    """
    asyncio.run(_serve(worker, stop, concurrency, every, grace))


async def _serve(
    worker: Worker, stop: threading.Event, concurrency: int, every: float, grace: float
) -> None:
    board = Board(worker)
    flying: dict[str, asyncio.Task[str]] = {}
    while not stop.is_set():
        flying = {key: task for key, task in flying.items() if not task.done()}
        if len(flying) < concurrency:
            for key in await asyncio.to_thread(_due, board, worker, frozenset(flying)):
                if len(flying) == concurrency:
                    break
                flying[key] = asyncio.create_task(worker.take(key))
        await _wait(stop, every, flying)
    worker.end("the worker ends")
    if flying:
        await asyncio.wait(flying.values(), timeout=grace)


def _due(board: Board, worker: Worker, flying: frozenset[str]) -> list[str]:
    """What is due, in no order: several workers look at once."""
    try:
        due = [each.key for each in board.look(without=flying) if board.is_due(each)]
    except StoreError as error:
        worker.tell("", str(error))
        return []
    random.shuffle(due)
    return due


async def _wait(stop: threading.Event, every: float, flying: dict[str, asyncio.Task[str]]) -> None:
    """Until it is time to look again: when something has ended, at the latest after `every`."""
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
