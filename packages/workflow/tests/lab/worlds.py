"""A world that workflows change, and stores in which their runs are cut anywhere."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cuts import cut_log
from rollcage import DidNotHappen, Happened, compensate, current_step, list_runs, open_store, tool
from rollcage_workflow import Execution, run
from rollcage_workflow.signals import Signals


@dataclasses.dataclass(frozen=True)
class Deed:
    """An effect, or what took one back: in which run, behind which line of its trace."""

    run: str
    line: int
    label: str
    key: str
    sign: int


class World:
    """What was done out there, in order, and the tools that do it."""

    def __init__(self, store: Path, deeds: tuple[Deed, ...] = ()) -> None:
        self.store = store
        self.deeds = [*deeds]
        self.reads: list[str] = []
        self.tools = self._tools()

    @property
    def standing(self) -> Counter[str]:
        """What stands, by label, and how often."""
        found = Counter[str]()
        for deed in self.deeds:
            found[deed.label] += deed.sign
        return +found

    @property
    def most(self) -> int:
        """How often any one call stands."""
        found = Counter[str]()
        for deed in self.deeds:
            found[deed.key] += deed.sign
        return max(found.values(), default=0)

    def _do(self, label: str, key: str, sign: int) -> None:
        step = current_step()
        assert step is not None
        trace = self.store / "logs" / f"{step.run}.jsonl"
        self.deeds.append(Deed(step.run, trace.read_bytes().count(b"\n"), label, key, sign))

    def _tools(self) -> list[Any]:
        world = self

        def stands(key: str) -> bool:
            return sum(deed.sign for deed in world.deeds if deed.key == key) > 0

        def probe(key: str) -> Any:
            done = [deed for deed in world.deeds if deed.key == key]
            return Happened(f"{done[-1].label}#{key}") if stands(key) else DidNotHappen()

        @tool(effect="write", name="world.take_back", idempotent=True)
        async def take_back(token: str) -> None:
            label, _, key = token.partition("#")
            if stands(key):
                world._do(label, key, -1)

        def undo(result: str) -> Any:
            return [compensate(take_back, token=result)]

        @tool(effect="write", name="put", undo=undo, probe=probe)
        async def put(what: str, *, fails: bool = False) -> str:
            await asyncio.sleep(0)
            if fails:
                raise ValueError(f"{what} failed")
            step = current_step()
            assert step is not None
            world._do(what, step.idempotency_key, 1)
            return f"{what}#{step.idempotency_key}"

        @tool(effect="read", name="look")
        async def look(what: str = "", *, fails: bool = False) -> list[str]:
            await asyncio.sleep(0)
            world.reads.append(what)
            if fails:
                raise ValueError(f"no {what}")
            return [f"{what}{number}" for number in range(3)]

        @tool(effect="scope", name="agent")
        async def agent(task: str) -> str:
            found = await look(what=task)
            for each in found[:2]:
                await put(what=each)
            return task.upper()

        return [take_back, put, look, agent, *_of_random_plans(put, look, undo, probe)]

    async def attempt(
        self, plan: Any, inputs: Mapping[str, Any] | None = None, **how: Any
    ) -> Execution:
        how.setdefault("id", "job")
        return await run(plan, inputs, store=self.store, tools=self.tools, **how)

    def signal(self, name: str, data: Any) -> None:
        Signals(open_store(self.store), "job").send(name, data, by="a test")

    def runs(self) -> list[str]:
        return [info.run for info in reversed(list_runs(self.store))]

    def moments(self) -> Iterator[tuple[str, int]]:
        """Each line of each run behind which the process may have died."""
        for each in self.runs():
            lines = (self.store / "logs" / f"{each}.jsonl").read_bytes().splitlines()
            yield from ((each, line) for line in range(1, len(lines) + 1))

    def back(self, run: str, line: int, store: Path, chance: random.Random) -> World:
        """The world and the store as they were when the process died behind a line of a run."""
        before = self.runs()[: self.runs().index(run)]
        shutil.rmtree(store, ignore_errors=True)
        shutil.copytree(self.store, store)
        for each in self.runs():
            trace = store / "logs" / f"{each}.jsonl"
            if each == run:
                cut_log(trace, line)
            elif each not in before:
                trace.unlink()
        done = [d for d in self.deeds if d.run in before or (d.run == run and d.line < line)]
        flying = [d for d in self.deeds if d.run == run and d.line == line]
        done += flying[: chance.randint(0, len(flying))]
        return World(store, tuple(done))


def _of_random_plans(put: Any, look: Any, undo: Any, probe: Any) -> list[Any]:
    """The tools that random plans call."""

    @tool(effect="write", name="mark", undo=undo, probe=probe)
    async def mark(where: str, what: str) -> str:
        del where
        marked: str = await put.__wrapped__(what)
        return marked

    @tool(effect="read", name="breaks")
    async def breaks(*, fails: bool) -> bool:
        await look.__wrapped__(fails=fails)
        return fails

    return [mark, breaks]
