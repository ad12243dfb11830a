"""Measure LangChain: `create_agent` over a structured tool, `invoke` after `invoke`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import StructuredTool
from rollcage import Session
from rollcage_langchain import RollcageMiddleware, guard_tools

from benchmarks.timing import AGENT_CALLS, cpu_of_agents, messages
from benchmarks.workload import send_mail


class Scripted(BaseChatModel):
    """Ask for the calls, then end."""

    script: list[Any] = []  # noqa: RUF012 - Pydantic copies a default

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        """Return the model itself: the script knows the tools."""
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        turn = sum(isinstance(message, AIMessage) for message in messages)
        message = AIMessage("done")
        if turn < len(self.script):
            calls = [
                {"name": "send_mail", "args": dict(args), "id": f"{turn}-{slot}"}
                for slot, args in enumerate(self.script[turn])
            ]
            message = AIMessage("", tool_calls=calls)
        return ChatResult(generations=[ChatGeneration(message=message)])


def agents(calls: int, folder: Path, together: int = 1) -> dict[str, float]:
    """Measure an agent of the bare tool, and an agent of the guarded, recorded tool."""
    tool = StructuredTool.from_function(send_mail)
    with Session("bench", store=folder) as session:
        guarded = _agent(guard_tools([tool], session), [RollcageMiddleware(session)], together)
        return cpu_of_agents(
            {"bare_us": _agent([tool], [], together), "guarded_us": guarded}, calls
        )


def _agent(tools: list[Any], middleware: list[Any], together: int) -> Callable[[int], None]:
    model = Scripted()
    agent: Any = create_agent(model, tools, middleware=middleware)

    def run(first: int) -> None:
        model.script = messages(first, together)
        state = agent.invoke({"messages": [("user", "Go.")]}, {"recursion_limit": 100})
        assert len(state["messages"]) == AGENT_CALLS + AGENT_CALLS // together + 2

    return run
