"""An AutoGen agent that runs code: killed in the middle, resumed, finished."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.messages import ToolCallExecutionEvent
from autogen_core import FunctionCall
from autogen_core.models import AssistantMessage, CreateResult, ModelFamily, ModelInfo, RequestUsage
from autogen_ext.code_executors.local import LocalCommandLineCodeExecutor
from autogen_ext.models.replay import ReplayChatCompletionClient
from autogen_ext.tools.code_execution import PythonCodeExecutionTool
from rollcage import Session
from rollcage_autogen import guard_model, guard_tools

LEDGER = "from pathlib import Path\nledger = Path('ledger.txt')\n"
PLAN: list[list[str]] = [
    [LEDGER + "ledger.write_text('paid 10\\n')\nprint('opened')"],
    [
        LEDGER + "with ledger.open('a') as file: file.write('paid 20\\n')\nprint('paid 20')",
        "print(6 * 7)",
    ],
    [LEDGER + "with ledger.open('a') as file: file.write('paid 30\\n')\nprint('paid 30')"],
    [LEDGER + "print(ledger.read_text().count('paid'), 'payments')"],
]


class ScriptedModel(ReplayChatCompletionClient):
    """Answers by the plan. It stands in for a real model client, so that this runs offline."""

    async def create(self, messages: Sequence[Any], **_: Any) -> CreateResult:
        turn = sum(isinstance(message, AssistantMessage) for message in messages)
        print(f"  the model is asked for message {turn + 1}", flush=True)
        if turn == 3 and "DIE" in os.environ:
            os.kill(os.getpid(), signal.SIGKILL)
        content: str | list[FunctionCall] = "done"
        if turn < len(PLAN):
            content = [
                FunctionCall(f"call-{turn}-{slot}", json.dumps({"code": code}), "CodeExecutor")
                for slot, code in enumerate(PLAN[turn])
            ]
        reason: Any = "stop" if content == "done" else "function_calls"
        return CreateResult(
            finish_reason=reason, content=content, usage=RequestUsage(10, 5), cached=False
        )


def make_model() -> ScriptedModel:
    """A client that says it can call tools."""
    return ScriptedModel(
        [],
        ModelInfo(
            vision=False,
            function_calling=True,
            json_output=False,
            family=ModelFamily.UNKNOWN,
            structured_output=False,
        ),
    )


async def run_agent() -> None:
    """The agent, as anybody would write it, and two lines that guard it."""
    with warnings.catch_warnings():  # it warns that this code runs outside of a container
        warnings.simplefilter("ignore", UserWarning)
        executor = LocalCommandLineCodeExecutor(work_dir="workspace")
    async with executor, Session("bookkeeping") as session:
        agent = AssistantAgent(
            "bookkeeper",
            guard_model(make_model(), session),
            tools=[*guard_tools([PythonCodeExecutionTool(executor)], session)],
            max_tool_iterations=10,
        )
        ended = await agent.run(task="Keep the books.")
        print(f"  {session.stats.hits} steps replayed, {session.stats.misses} run")
    assert ended.messages[-1].to_text() == "done"
    *_, read = (each for each in ended.messages if isinstance(each, ToolCallExecutionEvent))
    assert "3 payments" in read.to_text()


def start_agent(folder: str, **environment: str) -> int:
    """Run the agent in a process of its own; how it ended."""
    command = [sys.executable, __file__, "agent"]
    environment = {**os.environ, **environment}
    return subprocess.run(command, cwd=folder, env=environment, check=False).returncode


def main() -> None:
    """Kill the agent while its model thinks about the fourth message, then start it again."""
    with tempfile.TemporaryDirectory() as folder:
        workspace = Path(folder) / "workspace"
        workspace.mkdir()
        print("first process:", flush=True)
        assert start_agent(folder, DIE="yes") == -signal.SIGKILL
        print("killed\n\nsecond process:", flush=True)
        assert start_agent(folder) == 0
        books = (workspace / "ledger.txt").read_text(encoding="utf-8")
        assert books == "paid 10\npaid 20\npaid 30\n"  # each once
        print("\neach payment is in the books once")


if __name__ == "__main__":
    if sys.argv[1:] == ["agent"]:
        asyncio.run(run_agent())
    else:
        main()
