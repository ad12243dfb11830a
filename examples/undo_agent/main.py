"""An agent tidies a folder and a database and breaks them; its effects are undone."""

import contextlib
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from rollcage import Session
from rollcage_langchain import RollcageMiddleware, as_tools
from rollcage_toolbox import Workspace
from rollcage_toolbox.sql import Database

Plan = Sequence[tuple[str, dict[str, Any]]]
USEFUL: Plan = [
    ("make_dir", {"path": "2029"}),
    ("move_file", {"source": "report-2029.md", "target": "2029/report.md"}),
]
HARMFUL: Plan = [
    ("delete_file", {"path": "report-2030.md"}),
    ("sql_delete", {"table": "task", "where": [{"id": 1}, {"id": 2}]}),
    ("sql_update", {"table": "task", "where": [{"id": 3}], "values": {"done": 1}}),
]


class ScriptedModel(BaseChatModel):
    """Asks for one call of its plan after the other. It stands in for a real chat model."""

    plan: Plan

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
        answer = AIMessage("done")
        if turn < len(self.plan):
            name, arguments = self.plan[turn]
            call = {"name": name, "args": arguments, "id": f"call-{turn}", "type": "tool_call"}
            answer = AIMessage("", tool_calls=[call])
        return ChatResult(generations=[ChatGeneration(message=answer)])


def open_tools() -> tuple[Workspace, Database]:
    """The folder and the database, as tools."""
    return Workspace("workspace"), Database("sqlite:///tasks.db")


def for_undo() -> list[Any]:
    """All tools, those that undo included: `rollcage undo` asks for them."""
    workspace, database = open_tools()
    return [*workspace, *database]


def run_agent(session: Session, plan: Plan) -> None:
    """The agent, as anybody would write it, with tools that are guarded by the session."""
    workspace, database = open_tools()
    tools = [*workspace.tools(), *database.tools()]
    model = ScriptedModel(plan=plan)
    agent: Any = create_agent(
        model, as_tools(tools, session), middleware=[RollcageMiddleware(session)]
    )
    state = agent.invoke({"messages": [{"role": "user", "content": "Tidy up."}]})
    assert state["messages"][-1].content == "done"
    database.close()


def noticed_in_time() -> None:
    """Undo in a session that is open: back to the last step that was good."""
    with Session("tidy up") as session:
        run_agent(session, USEFUL)
        good = session.stats.hits + session.stats.misses
        after_the_good = what_is_there()
        run_agent(session, HARMFUL)
        assert what_is_there() != after_the_good
        report = session.undo(to=good)
        for step in report.steps:
            print(f"  step {step.step} ({step.name}): {step.status}")
        assert report.complete
        assert what_is_there() == after_the_good
    print("  the report is in its folder, and nothing is missing")


def noticed_too_late() -> None:
    """Undo from the command line, when the agent's process is gone."""
    before = what_is_there()
    subprocess.run([sys.executable, __file__, "agent"], check=True)
    wrecked = what_is_there()
    assert wrecked != before

    notes = Path("workspace/report-2030.md")
    notes.write_text("mine\n", encoding="utf-8")
    meddled = what_is_there()
    print("somebody writes a file of that name, and undo refuses:", flush=True)
    assert undo() == 1
    assert what_is_there() == meddled
    notes.unlink()

    print("the file is put away again, and undo works:", flush=True)
    assert undo() == 0
    assert what_is_there() == before


def undo() -> int:
    """What somebody types in the folder."""
    command = [sys.executable, "-m", "rollcage", "undo", "latest", "--yes"]
    return subprocess.run(command, check=False).returncode


def prepare() -> None:
    """A folder with reports, a database with tasks, and where the tools are."""
    workspace = Path("workspace")
    workspace.mkdir()
    for year in (2029, 2030):
        (workspace / f"report-{year}.md").write_text(f"# {year}\n", encoding="utf-8")
    with closing(sqlite3.connect("tasks.db")) as database:
        database.execute("CREATE TABLE task (id INTEGER PRIMARY KEY, what TEXT, done INTEGER)")
        tasks = [(1, "call Ann", 0), (2, "pay Bob", 0), (3, "write to Cid", 0)]
        database.executemany("INSERT INTO task VALUES (?, ?, ?)", tasks)
        database.commit()
    Path("my_agent.py").symlink_to(__file__)
    Path("pyproject.toml").write_text('[tool.rollcage]\ntools = ["my_agent:for_undo"]\n')


def what_is_there() -> tuple[dict[str, str], list[Any]]:
    """Every file and every row."""
    files = [path for path in sorted(Path("workspace").rglob("*")) if path.is_file()]
    with closing(sqlite3.connect("tasks.db")) as database:
        rows = database.execute("SELECT * FROM task ORDER BY id").fetchall()
    return {str(path): path.read_text(encoding="utf-8") for path in files}, rows


def main() -> None:
    """Break things twice; have them back twice."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        prepare()
        print("an agent does something useful, then harm, and is stopped:")
        noticed_in_time()
        print("\nanother one does harm, and ends:")
        noticed_too_late()


if __name__ == "__main__":
    if sys.argv[1:] == ["agent"]:
        with Session("tidy more") as own:
            run_agent(own, HARMFUL)
    else:
        main()
