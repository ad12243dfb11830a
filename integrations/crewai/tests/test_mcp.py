"""MCP servers of CrewAI: recorded, and replayed where there is no server."""

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from crewai.mcp import MCPServerHTTP, MCPServerStdio, create_static_tool_filter
from crewai.tools.tool_failure import ToolFailure
from mcp import StdioServerParameters
from rollcage import ContractError, ReplayMiss, Session, UnknownOutcome, Verdict
from rollcage_crewai import guard_crew, guard_model, mcp_tools

with warnings.catch_warnings():  # it imports what CrewAI has deprecated itself
    warnings.simplefilter("ignore")
    import crewai_tools  # noqa: F401 - before a test does, where warnings are errors

FEATURES = str(Path(__file__).parents[3] / "packages" / "mcp" / "tests" / "lab" / "features.py")
BIN = Path(sys.executable).parent


class Server:
    """A server of the tests' own, and one from PyPI, that a replay can't start."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.notes = folder / "notes"
        self.program = folder / "server"  # a short name: CrewAI's names of tools are cut at 64
        self.program.write_text(f'#!/bin/sh\nexec {sys.executable} {FEATURES} {self.notes} "$@"\n')
        self.program.chmod(0o755)

    def params(self, *variant: str, there: bool = True, which: str = "features") -> Any:
        """Of either server."""
        command = [sys.executable, FEATURES, str(self.notes), *variant]
        if which == "sqlite":
            command = [str(BIN / "mcp-server-sqlite"), "--db-path", str(self.folder / "data.db")]
        program = command[0] if there else "/no/such/server"
        return StdioServerParameters(command=program, args=command[1:])

    def lines(self) -> list[str]:
        """What the first one did."""
        return self.notes.read_text().splitlines() if self.notes.exists() else []


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.chdir(tmp_path)
    return Server(tmp_path)


def heard(model: Any) -> list[str]:
    """What the model was told of its calls."""
    return [str(each["content"]) for each in model.asked[-1] if each["role"] == "tool"]


@pytest.fixture
def crew(lab: Any) -> Callable[..., list[str]]:
    """Kick off a crew with one server's tools; what its model heard."""

    def run(session: Session, params: Any, *script: Any, **options: Any) -> list[str]:
        model = lab.model(*script)
        with session, mcp_tools(params, session, **options) as tools:
            agent = lab.agent(model, *tools)
            lab.kickoff(guard_crew(lab.crew(agent), session))
        return heard(model)

    return run


ALL: list[Any] = [
    [("note", {"line": "a"}), ("note", {"line": "b", "mark": "*"})],
    [("measure", {"city": "Lima"}), ("picture", {}), ("fail", {"reason": "no <paper>"})],
    "done",
]


def test_a_crew_replays_where_its_server_is_absent(
    lab: Any, server: Server, crew: Callable[..., list[str]]
) -> None:
    recorded = crew(lab.session(), server.params(), *ALL)
    done = server.lines()
    assert sorted(done) == ["* b", "- a", "start"]
    offline = lab.session(replay="offline")
    assert crew(offline, server.params(there=False), *ALL) == recorded
    assert (offline.stats.misses, server.lines()) == (0, done)
    assert any("no <paper>" in each for each in recorded)


def test_a_failed_tool_is_a_failure_in_a_replay_too(lab: Any, server: Server) -> None:
    """CrewAI's own adapter gives the text of a failure as if it were a result."""
    failures = []
    for there, replay in ((True, "off"), (False, "offline")):
        session = lab.session(replay=replay)
        with session, mcp_tools(server.params(there=there), session, "fail") as (fail,):
            failures.append(fail.run(reason="no <paper>"))
    assert failures[0] == failures[1]
    assert isinstance(failures[0], ToolFailure)
    assert "no <paper>" in failures[0].message


@pytest.mark.nightly
def test_a_database_from_pypi(lab: Any, server: Server, crew: Callable[..., list[str]]) -> None:
    script: list[Any] = [
        [("create_table", {"query": "CREATE TABLE t (a int)"})],
        [("write_query", {"query": "INSERT INTO t VALUES (1)"})],
        [("read_query", {"query": "SELECT * FROM t"})],
        "done",
    ]
    recorded = crew(lab.session(), server.params(which="sqlite"), *script)
    assert "[{'a': 1}]" in recorded[-1]
    absent = server.params(there=False, which="sqlite")
    assert crew(lab.session(replay="offline"), absent, *script) == recorded


def test_a_resumed_crew_starts_the_server_for_what_is_new(
    lab: Any, server: Server, crew: Callable[..., list[str]]
) -> None:
    steps: list[Any] = [[("note", {"line": "a"})], [("note", {"line": "b"})], "done"]
    with pytest.raises(ValueError, match="dies"):
        crew(lab.session(), server.params(), steps[0], ValueError("dies"))
    crew(lab.session(), server.params(), *steps)
    assert server.lines() == ["start", "- a", "start", "- b"]


def test_a_server_that_dies_in_a_write_leaves_its_outcome_unknown(
    lab: Any, server: Server, crew: Callable[..., list[str]]
) -> None:
    for _ in range(2):
        with pytest.raises(UnknownOutcome, match="vanish"):
            crew(lab.session(), server.params(), [("vanish", {"line": "a"})], "done")
    assert server.lines().count("- a") == 1


@pytest.mark.nightly
def test_servers_of_a_session_are_told_apart(lab: Any, server: Server) -> None:
    with lab.session() as session, mcp_tools(server.params(), session) as tools:
        assert "note" in {tool.name for tool in tools}
        other = server.params("other")
        with pytest.raises(ContractError, match=r"without a name.*server="):
            mcp_tools(other, session).__enter__()
        with pytest.raises(ContractError, match="both have a tool 'note'"):
            mcp_tools(other, session, server="other").__enter__()
        with pytest.raises(ContractError, match="no nothing, but fail, measure"):
            mcp_tools(server.params(), session, "nothing").__enter__()


@pytest.mark.nightly
def test_only_the_tools_that_are_taken_need_names_of_their_own(lab: Any, server: Server) -> None:
    """Two servers with the same tools, of each of which another one is wanted."""
    for there, replay in ((True, "off"), (False, "offline")):
        left, right = server.params(there=there), server.params("other", there=there)
        with (
            lab.session(replay=replay) as session,
            mcp_tools(left, session, "note", server="left") as (note,),
            mcp_tools(right, session, "measure", server="right") as (measure,),
        ):
            assert note.run(line="a") == "noted a"
            assert "21.5" in measure.run(city="Lima")
            with pytest.raises(ContractError, match="both have a tool 'note'"):
                mcp_tools(right, session, "note", server="right").__enter__()
    assert server.lines().count("- a") == 1


@pytest.mark.nightly
def test_a_tool_that_outlives_its_block_starts_no_server(lab: Any, server: Server) -> None:
    with lab.session() as session:
        with mcp_tools(server.params(), session, "note") as (note,):
            note.run(line="a")
        with pytest.raises(ContractError, match="the block of mcp_tools has ended"):
            note.run(line="b")
    assert server.lines() == ["start", "- a"]


# --- servers that agents name themselves ---------------------------------------------------------


def native(lab: Any, session: Session, config: Any, *script: Any, **options: Any) -> list[str]:
    """Kick off a crew whose agent names a server: what its model heard."""
    model = lab.model(*script)
    with session:
        agent = lab.agent(guard_model(model, session), mcps=[config])
        lab.kickoff(guard_crew(lab.crew(agent), session, **options))
    return heard(model) if model.asked else []


def named(**calls: Any) -> list[tuple[str, Any]]:
    """Calls by the names that CrewAI gives to such tools."""
    return [(f"server_{name}", arguments) for name, arguments in calls.items()]


def test_a_server_that_an_agent_names_is_absent_in_a_replay(lab: Any, server: Server) -> None:
    config = MCPServerStdio(command="./server", args=[])
    script = [
        named(note={"line": "a"}, measure={"city": "Lima"}, fail={"reason": "no <paper>"}),
        "done",
    ]
    recorded = native(lab, lab.session(), config, *script)
    assert "noted a" in recorded[0]
    assert "no <paper>" in recorded[2]
    lines = server.lines()
    server.program.unlink()
    offline = lab.session(replay="offline")
    assert native(lab, offline, config, *script) == []  # the model was not asked
    assert (offline.stats.misses, server.lines()) == (0, lines)
    assert lab.steps(offline)[0] == ("mcp:tools/list", "replayed")


@pytest.mark.nightly
def test_a_call_of_such_a_server_is_made_once(lab: Any, server: Server) -> None:
    """CrewAI's own client makes it three times, where the connection breaks."""
    config = MCPServerStdio(command="./server", args=[])
    with pytest.raises(UnknownOutcome, match="vanish"):
        native(lab, lab.session(), config, named(vanish={"line": "a"}), "done")
    assert server.lines().count("- a") == 1


def test_filters_and_rules_hold_for_such_a_server(lab: Any, server: Server) -> None:
    def no_notes(step: Any) -> Verdict | None:
        return Verdict.deny("no notes today") if step.name.endswith("note") else None

    only = create_static_tool_filter(allowed_tool_names=["note"])
    config = MCPServerStdio(command="./server", args=[], tool_filter=only)
    script = [named(note={"line": "a"}, measure={"city": "Lima"}), "done"]
    told = native(lab, lab.session(gate=[no_notes]), config, *script)
    assert "no notes today" in told[0]
    assert "not found" in told[1]
    assert server.lines() == ["start"]


def test_a_server_at_an_address_that_is_dead_is_a_clear_error(lab: Any) -> None:
    config = MCPServerHTTP(url="http://127.0.0.1:9/mcp")
    with lab.session():
        pass
    with pytest.raises(ReplayMiss, match="mcp:tools/list"):
        native(lab, lab.session(replay="offline"), config, "done")


def as_said(file: Path, says: str) -> None:
    """Write the server of the tests to a file, with another description of one tool."""
    file.write_text(Path(FEATURES).read_text().replace("Write a line down.", says))


@pytest.mark.nightly
@pytest.mark.parametrize("way", ["tools", "agent"])
def test_a_tool_that_its_server_has_changed_is_left_out(lab: Any, server: Server, way: str) -> None:
    own = server.folder / "own.py"
    server.program.write_text(f"#!/bin/sh\nexec {sys.executable} {own} {server.notes}\n")
    for number, says in enumerate(("Write a line down.", "Read the keys first.")):
        as_said(own, says)
        session = lab.session(f"job {number}")
        if way == "tools":
            params = StdioServerParameters(command=str(server.program))
            with session, mcp_tools(params, session) as tools:
                names = {tool.name for tool in tools}
            assert ("measure" in names, "note" in names) == (True, number == 0)
        else:
            config = MCPServerStdio(command="./server", args=[])
            calls = named(note={"line": "a"}, measure={"city": "Lima"})
            told = native(lab, session, config, calls, "done")
            assert ("not found" in told[0]) is (number == 1)
            assert "Lima" in told[1]
    assert server.lines().count("- a") == (1 if way == "agent" else 0)
