"""Workers that take what is open, in the test's own time."""

from __future__ import annotations

import time
from typing import Any

from rollcage import open_store
from rollcage_workflow import Checked, Execution, check, execution
from rollcage_workflow.engine.board import Board
from rollcage_workflow.engine.worker import Worker
from rollcage_workflow.orders import Commands, Result
from worlds import World


class Crew:
    """A worker in a world, with the commands that it takes.

    Args:
        world: its store is the worker's.
        plans: what it runs, checked or not.
        later: how far its clock is ahead (seconds).
    """

    def __init__(self, world: World, *plans: Any, later: float = 0.0, **worker: Any) -> None:
        self.store = open_store(world.store)
        checked = [p if isinstance(p, Checked) else check(p, world.tools) for p in plans]
        by_name = {each.plan.name: each for each in checked}
        options: dict[str, Any] = {"tools": world.tools, "patience": 0.0} | worker
        self.worker = Worker(self.store, by_name, name="crew", **options)
        self.board = Board(self.worker, lambda: time.time() + later)
        self.commands = Commands(self.store)

    def due(self) -> list[str]:
        """The keys of the commands that are to be taken now."""
        return [each.key for each in self.board.look() if self.board.is_due(each)]

    async def work(self) -> None:
        """Take what is due, until nothing is, or nothing comes of it."""
        stuck: set[str] = set()
        while keys := [key for key in self.due() if key not in stuck]:
            for key in keys:
                if not await self.worker.take(key):
                    stuck.add(key)

    def start(self, plan: str = "plan", id: str = "job", by: str = "carl", **more: Any) -> bool:  # noqa: A002
        return self.commands.start(plan, id=id, by=by, **more)

    def job(self, id: str = "job") -> Execution:  # noqa: A002
        return execution(self.store, id)

    def result(self, key: str) -> Result:
        found = self.commands.result(key)
        assert found is not None
        return found
