"""Measure a service: 100 requests at once, each with an agent and a session of its own.

The service defines its tool and its model once. Each request makes its agent: a bare one, one with
a middleware that does nothing (what LangChain itself takes for any middleware), and a guarded one,
whose model is guarded as well.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.tools import StructuredTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from rollcage import Session
from rollcage_langchain import RollcageMiddleware, guard_model, guard_tools

from benchmarks.frameworks.langchain_agent import Scripted
from benchmarks.timing import messages
from benchmarks.workload import send_mail

TOGETHER: Final = 100  # requests
CALLS: Final = 3  # calls of its tool that a request makes

Request = Callable[[int], Awaitable[None]]


class Bound(Scripted):
    """Format the tools for its provider, as a real model does."""

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        """Format the tools; the script knows them already."""
        for tool in tools:
            convert_to_openai_tool(tool)
        return self


class Nothing(AgentMiddleware[Any, Any, Any]):
    """Have the same hooks as our middleware, which do nothing."""

    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
        """Call the tool."""
        return await handler(request)

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        """Call the model."""
        return await handler(request)


def requests(calls: int, folder: Path) -> dict[str, float]:
    """Measure the CPU (µs) of a request of each kind, timed over at least two rounds."""
    return asyncio.run(_measured(max(2, calls // (TOGETHER * CALLS)), folder))


async def _measured(rounds: int, folder: Path) -> dict[str, float]:
    tool, model = StructuredTool.from_function(send_mail), Bound(script=messages(0, 1)[:CALLS])

    async def bare(number: int) -> None:
        await _answer(create_agent(model, [tool]), number)

    async def nothing(number: int) -> None:
        await _answer(create_agent(model, [tool], middleware=[Nothing()]), number)

    async def guarded(number: int) -> None:
        async with Session(f"request {number}", store=folder) as session:
            tools, middleware = guard_tools([tool], session), RollcageMiddleware(session)
            agent: Any = create_agent(guard_model(model, session), tools, middleware=[middleware])
            await _answer(agent, number)

    kinds: dict[str, Request] = {"bare_us": bare, "nothing_us": nothing, "guarded_us": guarded}
    took = dict.fromkeys(kinds, 0.0)
    for number in range(1 + rounds):  # the first is a warm-up
        for name, request in kinds.items():
            cpu = await _cpu(request, number * TOGETHER)
            took[name] += cpu if number else 0.0
    return {name: each / rounds / TOGETHER for name, each in took.items()}


async def _cpu(request: Request, first: int) -> float:
    """Return the microseconds that the requests took."""
    gc.collect()
    start = time.process_time_ns()
    await asyncio.gather(*(request(first + number) for number in range(TOGETHER)))
    return (time.process_time_ns() - start) / 1000


async def _answer(agent: Any, number: int) -> None:
    state = await agent.ainvoke({"messages": [("user", f"Go {number}.")]})
    assert len(state["messages"]) == 2 + 2 * CALLS
