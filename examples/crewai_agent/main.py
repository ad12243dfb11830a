"""A crew with somebody else's tools: killed in the middle, resumed, finished."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any, Literal

WRITE = "File Writer Tool"
LIST = "List files in directory"
READ = "Read a file's content"
EFFECTS: dict[str, Literal["read"]] = {READ: "read", LIST: "read"}


def written(name: str, text: str) -> dict[str, Any]:
    """The arguments of the writing tool."""
    return {"filename": name, "directory": "workspace", "content": text, "overwrite": True}


PLAN: list[list[tuple[str, dict[str, Any]]]] = [
    [(WRITE, written("a.txt", "alpha")), (WRITE, written("b.txt", "beta"))],
    [(LIST, {"directory": "workspace"})],
    [(READ, {"file_path": "workspace/a.txt"})],
    [(WRITE, written("report.txt", "a.txt says alpha"))],
    [(READ, {"file_path": "workspace/report.txt"})],
]


def scripted_model() -> Any:
    """A model that answers by the plan. It stands in for a real one, so that this runs offline."""
    from crewai.llms.base_llm import BaseLLM

    class ScriptedModel(BaseLLM):
        def supports_function_calling(self) -> bool:
            """Calls are given as such, not as text."""
            return True

        def get_context_window_size(self) -> int:
            """Enough for the plan, in tokens."""
            return 1_000_000

        def get_input_tokens_count(self, *_: Any, **__: Any) -> int:
            """Nobody counts."""
            return 0

        def call(self, messages: Any, *_: Any, **__: Any) -> Any:
            """The next message of the plan."""
            turn = sum(message["role"] == "assistant" for message in messages)
            print(f"  the model is asked for message {turn + 1}")
            if turn == 3 and "DIE" in os.environ:
                os.kill(os.getpid(), signal.SIGKILL)
            if turn == len(PLAN):
                return "done"
            return [
                {
                    "id": f"call-{turn}-{slot}",
                    "type": "function",
                    "function": {"name": name, "arguments": json.dumps(arguments)},
                }
                for slot, (name, arguments) in enumerate(PLAN[turn])
            ]

    return ScriptedModel(model="scripted")


def run_crew() -> None:
    """The crew, as anybody would write it, and two calls that guard it."""
    warnings.simplefilter("ignore")  # CrewAI warns of what it does itself
    from crewai import Agent, Crew, Task
    from crewai_tools import DirectoryReadTool, FileReadTool, FileWriterTool
    from rollcage import Session
    from rollcage_crewai import guard_crew, guard_model

    with Session("tidy up") as session:
        clerk = Agent(
            role="clerk",
            goal="tidy up",
            backstory="A clerk.",
            llm=guard_model(scripted_model(), session),
            tools=[FileWriterTool(), DirectoryReadTool(), FileReadTool()],
        )
        task = Task(description="Tidy up.", expected_output="A word.", agent=clerk)
        crew = Crew(agents=[clerk], tasks=[task], tracing=False)
        output = guard_crew(crew, session, effects=EFFECTS).kickoff()
        assert str(output) == "done"
        print(f"  {session.stats.hits} steps replayed, {session.stats.misses} run")


def start_crew(folder: str, **environment: str) -> int:
    """Run the crew in a process of its own; how it ended."""
    command = [sys.executable, __file__, "crew"]
    quiet = {"CREWAI_DISABLE_TELEMETRY": "true", "CREWAI_TESTING": "true"}
    own = {"HOME": folder, "XDG_DATA_HOME": folder}  # where CrewAI keeps its database
    environment = {**os.environ, **quiet, **own, **environment}
    return subprocess.run(command, cwd=folder, env=environment, check=False).returncode


def main() -> None:
    """Kill the crew while its model thinks about the fourth message, then start it again."""
    with tempfile.TemporaryDirectory() as folder:
        workspace = Path(folder) / "workspace"
        workspace.mkdir()
        print("first process:", flush=True)
        assert start_crew(folder, DIE="yes") == -signal.SIGKILL
        (workspace / "b.txt").unlink()  # so that a second writing of it would show
        print("killed\n\nsecond process:", flush=True)
        assert start_crew(folder) == 0
        report = (workspace / "report.txt").read_text(encoding="utf-8")
        assert report == "a.txt says alpha"
        assert not (workspace / "b.txt").exists()
        print("\nwhat was written before the crash was not written again")


if __name__ == "__main__":
    if sys.argv[1:] == ["crew"]:
        run_crew()
    else:
        main()
