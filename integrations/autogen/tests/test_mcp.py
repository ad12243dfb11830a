"""MCP servers of AutoGen: recorded, and replayed where there is no server."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from autogen_core import CancellationToken
from autogen_core.tools import ToolOverride
from autogen_ext.tools.mcp import McpWorkbench, StdioServerParams, StreamableHttpServerParams
from rollcage import Contract, ContractError, ReplayMiss, Session
from rollcage_autogen import RollcageWorkbench, mcp_tools

FEATURES = str(Path(__file__).parents[3] / "packages" / "mcp" / "tests" / "lab" / "features.py")
BIN = Path(sys.executable).parent


class Server:
    """A server of the tests' own, and one from PyPI, that a replay can't start."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.notes = folder / "notes"

    def params(self, *variant: str, there: bool = True, which: str = "features") -> Any:
        """Of either server."""
        python = sys.executable if there else "/no/such/server"
        command = [python, FEATURES, str(self.notes), *variant]
        if which == "sqlite":
            program = str(BIN / "mcp-server-sqlite") if there else "/no/such/server"
            command = [program, "--db-path", str(self.folder / "data.db")]
        return StdioServerParams(command=command[0], args=command[1:], read_timeout_seconds=30)

    def lines(self) -> list[str]:
        """What the first one did."""
        return self.notes.read_text().splitlines() if self.notes.exists() else []


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path)


@pytest.fixture
def seen(results: Any) -> Callable[..., Any]:
    """Run an agent with servers as workbenches: what its model saw of the calls."""

    async def run(lab: Any, session: Session, script: list[Any], **servers: Any) -> Any:
        async with session:
            benches = [
                RollcageWorkbench(McpWorkbench(params), session, server=name)
                for name, params in servers.items()
            ]
            for bench in benches:
                await bench.start()
            agent = lab.agent(lab.client(*script), session, workbench=benches)
            try:
                return results(await agent.run(task="Go."))
            finally:
                for bench in benches:
                    await bench.stop()

    return run


ALL: list[Any] = [
    [("note", {"line": "a"}), ("note", {"line": "b", "mark": "*"})],
    [("measure", {"city": "Lima"}), ("picture", {}), ("fail", {"reason": "no <paper>"})],
    [("create_table", {"query": "CREATE TABLE t (a int)"})],
    [("write_query", {"query": "INSERT INTO t VALUES (1)"})],
    [("read_query", {"query": "SELECT * FROM t"}), ("note", {"line": 3})],
    "done",
]


async def test_an_agent_replays_where_its_servers_are_absent(
    lab: Any, server: Server, seen: Callable[..., Any]
) -> None:
    there = {"notes": server.params(), "data": server.params(which="sqlite")}
    recorded = await seen(lab, lab.session(), ALL, **there)
    done = server.lines()
    assert sorted(done) == ["* b", "- a", "start"]
    absent = {
        "notes": server.params(there=False),
        "data": server.params(there=False, which="sqlite"),
    }
    offline = lab.session(replay="offline")
    assert await seen(lab, offline, ALL, **absent) == recorded
    assert (offline.stats.misses, server.lines()) == (0, done)
    failed = [text for text, is_error in recorded if is_error]
    assert any("no <paper>" in text for text in failed)


async def test_a_resumed_agent_starts_the_server_for_what_is_new(
    lab: Any, server: Server, seen: Callable[..., Any]
) -> None:
    steps: list[Any] = [[("note", {"line": "a"})], [("note", {"line": "b"})], "done"]
    with pytest.raises(ValueError, match="dies"):
        await seen(lab, lab.session(), [steps[0], ValueError("dies")], notes=server.params())
    assert await seen(lab, lab.session(), steps, notes=server.params()) == [
        ("noted a", False),
        ("noted b", False),
    ]
    assert server.lines() == ["start", "- a", "start", "- b"]


@pytest.mark.nightly
async def test_a_replay_needs_no_tool_that_has_changed_since(
    lab: Any, server: Server, seen: Callable[..., Any]
) -> None:
    script: list[Any] = [[("note", {"line": "a"})], "done"]
    recorded = await seen(lab, lab.session(), script, notes=server.params())
    offline = lab.session(replay="offline")
    assert await seen(lab, offline, script, notes=server.params("changed")) == recorded
    told = await seen(lab, lab.session("other"), script, notes=server.params("changed"))
    assert told[0][1]
    assert "note" in told[0][0]
    assert server.lines().count("- a") == 1


@pytest.mark.nightly
async def test_servers_of_a_session_are_told_apart(lab: Any, server: Server) -> None:
    """By their names; and a tool that two of them have gets another name in its contract."""
    other = StdioServerParams(command=sys.executable, args=[FEATURES, str(server.notes) + "2"])
    called = {"note": {"name": "other.note"}}
    async with lab.session() as session:
        left = RollcageWorkbench(McpWorkbench(server.params()), session)
        with pytest.raises(ContractError, match=r"without a name.*server="):
            RollcageWorkbench(McpWorkbench(other), session)
        overrides = {"note": ToolOverride(name="other_note")}
        inner = McpWorkbench(other, tool_overrides=overrides)
        right = RollcageWorkbench(inner, session, server="other")
        await left.list_tools()
        with pytest.raises(ContractError, match=r"both have a tool 'note'.*contracts="):
            await right.list_tools()
        await left.stop()
        await right.stop()
    async with lab.session("one") as session:
        right = RollcageWorkbench(inner, session, server="other", contracts=called)
        assert (await right.call_tool("other_note", {"line": "x"})).to_text() == "noted x"
        await right.stop()
    (step,) = [each for each in lab.steps(session) if each["name"] != "mcp:tools/list"]
    assert step["name"] == "other.note"


@pytest.mark.nightly
async def test_tools_without_a_workbench_replay_too(lab: Any, server: Server) -> None:
    """`mcp_tools` in place of AutoGen's `mcp_server_tools`."""
    given: list[Any] = []
    for there, replay in ((True, "off"), (False, "offline")):
        async with lab.session("tools", replay=replay) as session:
            tools = await mcp_tools(server.params(there=there), session)
            named = {tool.name: tool for tool in tools}
            values = [
                await named["measure"].run_json({"city": "Lima"}, CancellationToken(), "1"),
                await named["picture"].run_json({}, CancellationToken(), "2"),
            ]
            given.append([named["picture"].return_value_as_string(value) for value in values])
            with pytest.raises(Exception) as failed:  # noqa: PT011 - AutoGen raises a group
                await named["fail"].run_json({"reason": "no <paper>"}, CancellationToken(), "3")
            given[-1].append(str(failed.value))
    assert given[0] == given[1]
    assert "image/png" in given[0][1]


async def test_a_server_at_an_address_is_not_asked_in_a_replay(lab: Any, server: Server) -> None:
    dead = StreamableHttpServerParams(url="http://127.0.0.1:9/mcp", timeout=1)
    async with lab.session() as session:
        await mcp_tools(server.params(), session, server="notes")
    with pytest.raises(ReplayMiss, match="mcp:tools/list"):
        async with lab.session(replay="offline") as session:
            await mcp_tools(dead, session, server="others")
    async with lab.session(replay="offline") as session:
        tools = await mcp_tools(dead, session, server="notes")
        assert "note" in {tool.name for tool in tools}


async def test_each_branch_and_each_body_lists_for_itself(lab: Any, server: Server) -> None:
    """In a replay another branch may be first, and a body that is a hit does not run."""
    names: list[set[str]] = []

    async def listed(session: Session) -> str:
        tools = await mcp_tools(server.params(), session)
        names.append({tool.name for tool in tools})
        return "listed"

    outer = Contract(name="outer", parameters={"type": "object"}, effect="write")
    for replay, order in (("off", ("left", "right")), ("offline", ("right", "left"))):
        async with lab.session("branches", replay=replay) as session:
            for name in order:
                with session.branch(name):
                    await listed(session)
            said = await session.arun_call(outer, {}, lambda **_: listed(session))
            assert said == "listed"
            await listed(session)
    assert len(names) == 4 + 3
    assert all(each == names[0] for each in names)


async def test_reset_asks_the_server_again(lab: Any, server: Server) -> None:
    for replay in ("off", "offline"):
        async with lab.session("reset", replay=replay) as session:
            bench = RollcageWorkbench(McpWorkbench(server.params()), session)
            assert await bench.list_tools() == await bench.list_tools()
            await bench.reset()
            await bench.list_tools()
            await bench.stop()
        assert [each["name"] for each in lab.steps(session)] == ["mcp:tools/list"] * 2
    assert server.lines() == ["start"]


def as_said(file: Path, says: str) -> None:
    """Write the server of the tests to a file, with another description of one tool."""
    file.write_text(Path(FEATURES).read_text().replace("Write a line down.", says))


@pytest.mark.parametrize("way", ["tools", "workbench"])
async def test_a_tool_that_its_server_has_changed_is_left_out(
    lab: Any, server: Server, way: str
) -> None:
    own = server.folder / "own.py"
    params = StdioServerParams(command=sys.executable, args=[str(own), str(server.notes)])
    for number, says in enumerate(("Write a line down.", "Read the keys first.")):
        as_said(own, says)
        async with lab.session(f"job {number}") as session:
            if way == "tools":
                names = {tool.name for tool in await mcp_tools(params, session)}
            else:
                bench = RollcageWorkbench(McpWorkbench(params), session)
                names = {each["name"] for each in await bench.list_tools()}
                if number == 1:
                    answer = await bench.call_tool("note", {"line": "a"})
                    assert answer.is_error
                await bench.stop()
        assert "measure" in names
        assert ("note" in names) is (number == 0)
    assert "- a" not in server.lines()
