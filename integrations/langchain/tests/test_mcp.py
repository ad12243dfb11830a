"""Tools of MCP servers: recorded at their bodies, and replayed where there is no server."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_mcp_adapters.client import MultiServerMCPClient
from rollcage import ContractError, ReplayMiss, Session, UnknownOutcome, Verdict
from rollcage_langchain import RollcageMiddleware, guard_model, mcp_tools

FEATURES = str(Path(__file__).parents[3] / "packages" / "mcp" / "tests" / "lab" / "features.py")
BIN = Path(sys.executable).parent
NOWHERE = "/no/such/server"

Script = list[Any]


class Servers:
    """A server of the tests' own and one from PyPI, which the client of a replay can't start."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.notes = folder / "notes"

    def client(self, *variant: str, there: bool = True, both: bool = False) -> MultiServerMCPClient:
        """A client of the first, or of both."""
        python, sqlite = (
            (sys.executable, str(BIN / "mcp-server-sqlite")) if there else (NOWHERE,) * 2
        )
        database = str(self.folder / "data.db")
        connections: dict[str, Any] = {
            "features": [python, FEATURES, str(self.notes), *variant],
            "sqlite": [sqlite, "--db-path", database],
        }
        for name, (command, *arguments) in connections.items():
            connections[name] = {"transport": "stdio", "command": command, "args": arguments}
        if not both:
            del connections["sqlite"]
        return MultiServerMCPClient(connections)

    def written(self) -> list[str]:
        """What the first server did, without its starts."""
        lines = self.notes.read_text().splitlines() if self.notes.exists() else []
        return [line for line in lines if line != "start"]


@pytest.fixture
def servers(tmp_path: Path) -> Servers:
    return Servers(tmp_path)


async def ask(
    lab: Any,
    session: Session,
    client: MultiServerMCPClient,
    script: Script,
    effects: Mapping[str, Any] | None = None,
) -> list[Any]:
    """Run an agent with the servers' tools; the messages of its tools."""
    async with session:
        tools = await mcp_tools(client, session, effects=effects)
        model = guard_model(lab.model(script), session)
        agent: Any = create_agent(model, tools, middleware=[RollcageMiddleware(session)])
        state = await agent.ainvoke({"messages": [("user", "Go.")]})
    return [message for message in state["messages"] if message.type == "tool"]


ALL: Script = [
    [("note", {"line": "a"}), ("note", {"line": "b", "mark": "*"})],
    [("measure", {"city": "Lima"}), ("picture", {}), ("fail", {"reason": "no <paper>"})],
    [("create_table", {"query": "CREATE TABLE t (a int)"})],
    [("write_query", {"query": "INSERT INTO t VALUES (1)"})],
    [("read_query", {"query": "SELECT * FROM t"}), ("note", {"line": 3})],
    "done",
]


async def test_an_agent_replays_where_its_servers_are_absent(lab: Any, servers: Servers) -> None:
    """Texts, structured output, pictures, files and failures: the model sees the same messages."""
    recorded = await ask(lab, lab.session(), servers.client(both=True), ALL)
    done = servers.written()
    assert sorted(done) == ["* b", "- a"]
    offline = lab.session(replay="offline")
    replayed = await ask(lab, offline, servers.client(there=False, both=True), ALL)
    assert [m.content for m in replayed] == [m.content for m in recorded]  # ids of blocks as well
    assert [(m.status, m.artifact) for m in replayed] == [(m.status, m.artifact) for m in recorded]
    assert servers.written() == done
    by_name = {each.name: each for each in replayed}
    assert by_name["measure"].artifact["structured_content"]["degrees"] == 21.5
    assert [each["type"] for each in by_name["picture"].content] == ["text", "image", "file"]
    assert by_name["fail"].status == "error"
    assert "no <paper>" in by_name["fail"].text
    assert offline.stats.misses == 0


async def test_a_resumed_agent_goes_on_with_the_server_that_it_needs(
    lab: Any, servers: Servers
) -> None:
    """What the process that died had done is not done again; the tools are those of its list."""
    steps: Script = [[("note", {"line": "a"})], [("note", {"line": "b"})], "done"]
    with pytest.raises(ValueError, match="dies"):
        await ask(lab, lab.session(), servers.client(), [steps[0], ValueError("dies")])
    assert servers.written() == ["- a"]
    starts = servers.notes.read_text().count("start")
    told = await ask(lab, lab.session(), servers.client(), steps)
    assert servers.written() == ["- a", "- b"]
    assert [message.text for message in told] == ["noted a", "noted b"]
    assert servers.notes.read_text().count("start") == starts + 1  # for the one new call


@pytest.mark.nightly
def test_a_graph_that_is_killed_before_its_checkpoint_writes_once(
    tmp_path: Path, servers: Servers
) -> None:
    """What the server did is on record, though the state of the graph does not know of it."""
    program = str(Path(__file__).with_name("crashing_mcp.py"))
    command = [sys.executable, program, str(tmp_path), sys.executable, FEATURES, str(servers.notes)]
    # What is killed leaves no figures of its coverage: it is not measured.
    environment = {n: v for n, v in os.environ.items() if n != "COVERAGE_PROCESS_CONFIG"}

    def ended(deadly: int) -> tuple[int, str]:
        done = subprocess.run(
            [*command, "--", str(deadly)],
            env=environment, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert servers.written() == ["- a", "- b"], done.stderr[-2000:]
        return done.returncode, done.stdout

    assert ended(2) == (-9, "")
    assert ended(0) == (0, "Go. | noted a | noted b | done")


async def test_a_server_that_dies_in_a_write_leaves_its_outcome_unknown(
    lab: Any, servers: Servers
) -> None:
    script: Script = [[("vanish", {"line": "a"})], "done"]
    with pytest.raises(UnknownOutcome, match="vanish"):
        await ask(lab, lab.session(), servers.client(), script)
    with pytest.raises(UnknownOutcome, match="vanish"):
        await ask(lab, lab.session(), servers.client(), script)
    assert servers.written() == ["- a"]


@pytest.mark.nightly
async def test_a_replay_needs_no_tool_that_has_changed_since(lab: Any, servers: Servers) -> None:
    """The list is the recorded one; a new run has the new list."""
    script: Script = [[("note", {"line": "a"})], "done"]
    recorded = await ask(lab, lab.session(), servers.client(), script)
    replayed = await ask(lab, lab.session(replay="offline"), servers.client("changed"), script)
    assert [each.content for each in replayed] == [each.content for each in recorded]
    told = await ask(lab, lab.session("other"), servers.client("changed"), script)
    assert "note is not a valid tool" in told[0].text
    assert servers.written() == ["- a"]


@pytest.mark.nightly
async def test_a_tool_that_is_gone_when_a_run_is_resumed_fails(lab: Any, servers: Servers) -> None:
    steps: Script = [[("note", {"line": "a"})], [("note", {"line": "b"})], "done"]
    with pytest.raises(ValueError, match="dies"):
        await ask(lab, lab.session(), servers.client(), [steps[0], ValueError("dies")])
    told = await ask(lab, lab.session(), servers.client("changed"), steps)
    assert told[1].status == "error"
    assert "Unknown tool: note" in told[1].text
    assert servers.written() == ["- a"]


@pytest.mark.nightly
async def test_two_servers_with_a_tool_of_one_name_are_told_apart(
    lab: Any, servers: Servers
) -> None:
    def both(*, there: bool, **options: Any) -> MultiServerMCPClient:
        one: Any = servers.client(there=there).connections["features"]
        connections: dict[str, Any] = {"left": one, "right": dict(one)}
        return MultiServerMCPClient(connections, **options)

    said = r"both have a tool 'note'.*tool_name_prefix=True"
    with lab.session("refused") as session, pytest.raises(ContractError, match=said):
        await mcp_tools(both(there=True), session)
    script: Script = [[("left_note", {"line": "a"}), ("right_note", {"line": "a"})], "done"]
    for there, replay in ((True, "off"), (False, "offline")):
        client = both(there=there, tool_name_prefix=True)
        told = await ask(lab, lab.session("prefixed", replay=replay), client, script)
        assert [(each.name, each.text) for each in told] == [
            ("left_note", "noted a"),
            ("right_note", "noted a"),
        ]
    assert servers.written() == ["- a", "- a"]


async def test_a_denied_call_never_reaches_the_server(lab: Any, servers: Servers) -> None:
    def no_notes(step: Any) -> Verdict | None:
        return Verdict.deny("no notes today") if step.name == "note" else None

    script: Script = [[("note", {"line": "a"})], "done"]
    told = await ask(lab, lab.session(gate=[no_notes]), servers.client(), script)
    assert "no notes today" in told[0].text
    assert servers.written() == []


async def test_what_is_not_recorded_is_a_clear_error(lab: Any, servers: Servers) -> None:
    with lab.session("never"):
        pass
    with pytest.raises(ReplayMiss, match="mcp:tools/list"):
        async with lab.session("never", replay="offline") as session:
            await mcp_tools(servers.client(there=False), session)


async def test_the_list_is_asked_for_once_a_session(lab: Any, servers: Servers) -> None:
    async with lab.session() as session:
        first = await mcp_tools(servers.client(), session, effects={"measure": "read"})
        again = await mcp_tools(servers.client(), session)
        assert [tool.name for tool in first] == [tool.name for tool in again]
        assert session.stats.calls == 1
        with pytest.raises(ContractError, match="two MCP servers of this session are called"):
            await mcp_tools(servers.client("changed"), session)


def as_said(file: Path, says: str) -> None:
    """Write the server of the tests to a file, with another description of one tool."""
    file.write_text(Path(FEATURES).read_text().replace("Write a line down.", says))


async def test_a_tool_that_its_server_has_changed_is_left_out(lab: Any, servers: Servers) -> None:
    own = servers.folder / "own.py"
    connection: Any = {
        "transport": "stdio", "command": sys.executable, "args": [str(own), str(servers.notes)],
    }  # fmt: skip
    client = MultiServerMCPClient({"own": connection})
    for number, says in enumerate(("Write a line down.", "Read the keys first.")):
        as_said(own, says)
        async with lab.session(f"job {number}") as session:
            names = {tool.name for tool in await mcp_tools(client, session)}
        assert "measure" in names
        assert ("note" in names) is (number == 0)
