"""A LangChain agent with somebody else's tools: killed in the middle, resumed, finished."""

import os
import signal
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any, Literal

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from rollcage import Session
from rollcage_langchain import RollcageMiddleware, guard_model, guard_tools

EFFECTS: dict[str, Literal["read"]] = {"read_file": "read", "list_directory": "read"}
PLAN: list[list[tuple[str, dict[str, Any]]]] = [
    [
        ("write_file", {"file_path": "notes/a.txt", "text": "alpha"}),
        ("write_file", {"file_path": "notes/b.txt", "text": "beta"}),
    ],
    [("list_directory", {"dir_path": "notes"})],
    [("copy_file", {"source_path": "notes/a.txt", "destination_path": "copy.txt"})],
    [("write_file", {"file_path": "log.txt", "text": "copied a\n", "append": True})],
    [("read_file", {"file_path": "log.txt"})],
]


class ScriptedModel(BaseChatModel):
    """Answers by the plan. It stands in for a real chat model, so that this runs offline."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        """Take the tools; the script knows them."""
        return self

    def _generate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        turn = sum(isinstance(message, AIMessage) for message in messages)
        print(f"  the model is asked for message {turn + 1}")
        if turn == 3 and "DIE" in os.environ:
            os.kill(os.getpid(), signal.SIGKILL)
        answer = AIMessage("done")
        if turn < len(PLAN):
            calls = enumerate(PLAN[turn])
            answer = AIMessage(
                "",
                tool_calls=[
                    {"name": name, "args": arguments, "id": f"call-{turn}-{slot}"}
                    for slot, (name, arguments) in calls
                ],
            )
        return ChatResult(generations=[ChatGeneration(message=answer)])


def run_agent() -> None:
    """The agent, as anybody would write it, and three lines that guard it."""
    with warnings.catch_warnings():  # on import, the package announces that it will be split up
        warnings.simplefilter("ignore", DeprecationWarning)
        from langchain_community.agent_toolkits import FileManagementToolkit

    tools = FileManagementToolkit(root_dir="workspace").get_tools()
    with Session("tidy up") as session:
        agent: Any = create_agent(
            guard_model(ScriptedModel(), session),
            guard_tools(tools, session, effects=EFFECTS),
            middleware=[RollcageMiddleware(session)],
        )
        state = agent.invoke({"messages": [{"role": "user", "content": "Tidy up."}]})
        assert state["messages"][-1].content == "done"
        print(f"  {session.stats.hits} steps replayed, {session.stats.misses} run")


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
        assert (workspace / "copy.txt").read_text(encoding="utf-8") == "alpha"
        assert (workspace / "log.txt").read_text(
            encoding="utf-8"
        ) == "copied a\n"  # once, not twice
        print("\nthe log says once that the file was copied")


if __name__ == "__main__":
    if sys.argv[1:] == ["agent"]:
        run_agent()
    else:
        main()
