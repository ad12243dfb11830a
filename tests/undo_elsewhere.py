"""Undo the effects of a LangChain agent in an environment without LangChain.

    python tests/undo_elsewhere.py record FOLDER    # where LangChain is installed
    python tests/undo_elsewhere.py undo FOLDER      # where no framework is

The first lets an agent change files and rows in a new folder. The second runs `rollcage undo` and
looks itself at the folder and the database. Both are started by `nox -s undo`.
"""

import hashlib
import importlib
import json
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel

FRAMEWORKS: Final = (
    "langchain", "langchain_core", "langgraph", "autogen_core", "autogen_agentchat", "crewai",
    "rollcage_langchain", "rollcage_autogen", "rollcage_crewai",
)  # fmt: skip

# What both environments have beside the folder: the tools, by name.
TOOLS: Final = """
from pathlib import Path
from rollcage_toolbox import Workspace
from rollcage_toolbox.sql import Database

here = Path(__file__).parent
workspace = Workspace(here / "workspace")
database = Database(f"sqlite:///{here / 'shop.db'}")
ALL = [*workspace, *database]
"""

Call = tuple[str, dict[str, Any]]
# The calls of one message have a slot each, and may run at the same time.
MESSAGES: Final[Sequence[Sequence[Call]]] = (
    [("list_dir", {})],
    [
        ("write_file", {"path": "prices.csv", "content": "gone"}),
        ("make_dir", {"path": "archive/old", "parents": True}),
        ("sql_update", {"table": "item", "where": [{"id": 1}], "values": {"price": 0}}),
    ],
    [("move_file", {"source": "notes.txt", "target": "archive/old/notes.txt"})],
    [
        ("append_file", {"path": "archive/old/notes.txt", "content": "tidied\n"}),
        ("delete_file", {"path": "logo.bin"}),
        ("sql_delete", {"table": "item", "where": [{"id": 2}]}),
    ],
    [("sql_insert", {"table": "item", "rows": [{"id": 9, "name": "hat", "price": 1}]})],
)


def record(folder: Path) -> int:
    """Let an agent of LangChain change a folder and a database, and end."""
    prepare(folder)
    (folder / "before.json").write_text(json.dumps(digests(folder)), encoding="utf-8")
    run_agent(folder)
    changed = [what for what, was in known(folder).items() if digests(folder)[what] != was]
    print(f"an agent of LangChain changed {' and '.join(changed)}")
    return 0 if len(changed) == 2 else 1


def prepare(folder: Path) -> None:
    """Make the folder and database that the agent finds."""
    workspace = folder / "workspace"
    workspace.mkdir(parents=True)
    (workspace / "prices.csv").write_text("tea,3\ncup,5\n", encoding="utf-8")
    (workspace / "notes.txt").write_text("do not lose this\n", encoding="utf-8")
    (workspace / "notes.txt").chmod(0o600)
    (workspace / "logo.bin").write_bytes(bytes(range(256)) * 1000)  # goes into a blob
    with closing(sqlite3.connect(folder / "shop.db")) as database:
        database.execute("CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT, price NUMERIC)")
        database.executemany("INSERT INTO item VALUES (?, ?, ?)", [(1, "tea", 3), (2, "cup", 5.5)])
        database.commit()
    (folder / "agent_tools.py").write_text(TOOLS, encoding="utf-8")


def run_agent(folder: Path) -> None:
    """Run the agent; its model's answers are recorded too, in LangChain's own types."""
    from langchain.agents import create_agent
    from rollcage import Session
    from rollcage_langchain import RollcageMiddleware, as_tools, guard_model

    sys.path.insert(0, str(folder))
    agent_tools: Any = importlib.import_module("agent_tools")
    given = [*agent_tools.workspace.tools(), *agent_tools.database.tools()]
    with Session("tidy up", store=folder / ".rollcage") as session:
        agent: Any = create_agent(
            guard_model(scripted_model(), session),
            as_tools(given, session),
            middleware=[RollcageMiddleware(session)],
        )
        state = agent.invoke({"messages": [{"role": "user", "content": "Tidy up."}]})
        heard = [message.status for message in state["messages"] if message.type == "tool"]
        assert heard == ["success"] * sum(map(len, MESSAGES)), state["messages"]


def scripted_model() -> "BaseChatModel":
    """Return a chat model that knows its answers beforehand."""
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage, BaseMessage, ToolCall
    from langchain_core.outputs import ChatGeneration, ChatResult

    class ScriptedModel(BaseChatModel):
        @property
        def _llm_type(self) -> str:
            return "scripted"

        def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
            return self

        def _generate(self, messages: list[BaseMessage], *_args: Any, **_kwargs: Any) -> ChatResult:
            turn = sum(isinstance(message, AIMessage) for message in messages)
            asked = MESSAGES[turn] if turn < len(MESSAGES) else ()
            calls = [
                ToolCall(name=name, args=args, id=f"{turn}-{slot}")
                for slot, (name, args) in enumerate(asked)
            ]
            answer = AIMessage("" if calls else "done", tool_calls=calls)
            return ChatResult(generations=[ChatGeneration(message=answer)])

    return ScriptedModel()


def undo(folder: Path) -> int:
    """Undo the run, where no framework may be installed."""
    here = [name for name in FRAMEWORKS if importable(name)]
    print(f"frameworks here: {', '.join(here) or 'none'}", flush=True)
    if here:
        return 1
    wrecked = digests(folder)
    command = [sys.executable, "-m", "rollcage", "undo", "latest", "--yes"]
    command += ["--tools", "agent_tools:ALL"]
    code = subprocess.run(command, cwd=folder, check=False).returncode
    was, now = known(folder), digests(folder)
    for what, digest in now.items():
        print(f"{what}: {was[what][:16]} -> {wrecked[what][:16]} -> {digest[:16]}")
    brought_back = code == 0 and now == was != wrecked
    print("both are as they were" if brought_back else f"NOT as they were (exit code {code})")
    return 0 if brought_back else 1


def importable(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def known(folder: Path) -> dict[str, str]:
    """Return the digests from before the agent came."""
    found: dict[str, str] = json.loads((folder / "before.json").read_text(encoding="utf-8"))
    return found


def digests(folder: Path) -> dict[str, str]:
    """Return the digests of the folder and database: paths, permissions, contents, tables, rows."""
    files = [
        (str(path.relative_to(folder)), path.stat().st_mode, path.is_file() and path.read_bytes())
        for path in sorted((folder / "workspace").rglob("*"))
    ]
    with closing(sqlite3.connect(folder / "shop.db")) as database:
        rows = list(database.iterdump())
    told = {"the folder": files, "the database": rows}
    return {what: hashlib.sha256(repr(each).encode()).hexdigest() for what, each in told.items()}


if __name__ == "__main__":
    act = {"record": record, "undo": undo}[sys.argv[1]]
    sys.exit(act(Path(sys.argv[2]).resolve()))
