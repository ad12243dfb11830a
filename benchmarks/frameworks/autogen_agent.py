"""Measure AutoGen: an `AssistantAgent` over a function tool, `run` after `run`."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path
from typing import Any

from autogen_agentchat.agents import AssistantAgent
from autogen_core import FunctionCall
from autogen_core.models import CreateResult, ModelFamily, ModelInfo, RequestUsage
from autogen_core.tools import FunctionTool
from autogen_ext.models.replay import ReplayChatCompletionClient
from rollcage import Session
from rollcage_autogen import guard_tools

from benchmarks.timing import cpu_of_agents, messages
from benchmarks.workload import asend_mail

INFO = ModelInfo(
    vision=False,
    function_calling=True,
    json_output=False,
    family=ModelFamily.UNKNOWN,
    structured_output=False,
)


def agents(calls: int, folder: Path, together: int = 1) -> dict[str, float]:
    """Measure an agent of the bare tool, and an agent of the guarded, recorded tool."""
    tool = FunctionTool(asend_mail, "Send nothing.", name="send_mail")
    with Session("bench", store=folder) as session:
        offered = {"bare_us": [tool], "guarded_us": guard_tools([tool], session)}
        runs = {name: partial(_agent, tools, together) for name, tools in offered.items()}
        return cpu_of_agents(runs, calls)


def _agent(tools: list[Any], together: int, first: int) -> None:
    asyncio.run(_run(tools, messages(first, together)))


async def _run(tools: list[Any], asked: list[Any]) -> None:
    usage = RequestUsage(0, 0)
    script = [
        CreateResult(
            finish_reason="function_calls",
            content=[
                FunctionCall(id=f"{turn}-{slot}", name="send_mail", arguments=json.dumps(args))
                for slot, args in enumerate(calls)
            ],
            usage=usage,
            cached=False,
        )
        for turn, calls in enumerate(asked)
    ]
    last = CreateResult(finish_reason="stop", content="done", usage=usage, cached=False)
    agent = AssistantAgent(
        "sender",
        ReplayChatCompletionClient([*script, last], model_info=INFO),
        tools=tools,
        max_tool_iterations=len(script) + 1,
    )
    told = await agent.run(task="Go.")
    assert told.messages[-1].to_text() == "done"
