"""Calls of MCP tools that one framework recorded are replayed by the others, without the server."""

import asyncio
import sys
import warnings
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from rollcage import Session

FEATURES = str(Path(__file__).parents[1] / "packages" / "mcp" / "tests" / "lab" / "features.py")


class Told(NamedTuple):
    """What a framework made of a result."""

    text: str
    failed: bool


Call = Callable[..., Awaitable[Told]]
Using = Callable[[Session, str, Path, Callable[[Call], Awaitable[None]]], Awaitable[None]]


async def langchain(session: Session, python: str, notes: Path, story: Any) -> None:
    from langchain_mcp_adapters.client import MultiServerMCPClient
    from rollcage_langchain import mcp_tools

    command: Any = {"transport": "stdio", "command": python, "args": [FEATURES, str(notes)]}
    client = MultiServerMCPClient({"features": command})
    tools = {tool.name: tool for tool in await mcp_tools(client, session)}

    async def call(name: str, **arguments: Any) -> Told:
        asked = {"type": "tool_call", "id": "1", "name": name, "args": arguments}
        message = await tools[name].ainvoke(asked)
        return Told(message.text, message.status == "error")

    await story(call)


async def autogen(session: Session, python: str, notes: Path, story: Any) -> None:
    from autogen_ext.tools.mcp import McpWorkbench, StdioServerParams
    from rollcage_autogen import RollcageWorkbench

    params = StdioServerParams(command=python, args=[FEATURES, str(notes)], read_timeout_seconds=30)
    async with RollcageWorkbench(McpWorkbench(params), session, server="features") as bench:

        async def call(name: str, **arguments: Any) -> Told:
            result = await bench.call_tool(name, arguments)
            return Told(result.to_text(), result.is_error)

        await story(call)


async def autogen_tools(session: Session, python: str, notes: Path, story: Any) -> None:
    from autogen_core import CancellationToken
    from autogen_ext.tools.mcp import StdioServerParams
    from rollcage_autogen import mcp_tools

    params = StdioServerParams(command=python, args=[FEATURES, str(notes)], read_timeout_seconds=30)
    tools = {each.name: each for each in await mcp_tools(params, session, server="features")}

    async def call(name: str, **arguments: Any) -> Told:
        tool = tools[name]
        try:
            value = await tool.run_json(arguments, CancellationToken(), "1")
        except Exception as error:  # noqa: BLE001 - what an agent makes of it
            return Told(str(error), failed=True)
        return Told(tool.return_value_as_string(value), failed=False)

    await story(call)


async def crewai(session: Session, python: str, notes: Path, story: Any) -> None:
    from crewai.tools.tool_failure import ToolFailure
    from mcp import StdioServerParameters
    from rollcage_crewai import mcp_tools

    params = StdioServerParameters(command=python, args=[FEATURES, str(notes)])
    with mcp_tools(params, session, server="features") as found:
        tools = {tool.name: tool for tool in found}

        async def call(name: str, **arguments: Any) -> Told:
            value = tools[name].run(**arguments)
            failed = isinstance(value, ToolFailure)
            return Told(value.message if failed else str(value), failed)

        await story(call)


FRAMEWORKS: dict[str, Using] = {
    "langchain": langchain,
    "autogen": autogen,
    "autogen tools": autogen_tools,
    "crewai": crewai,
}


@pytest.fixture(scope="module", autouse=True)
def frameworks(matrix_command: ModuleType) -> Iterator[None]:
    """Skip unless all frameworks are installed, and keep their environment to this block."""
    with matrix_command.apart(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in ("langchain", "autogen", "crewai"):
            found = matrix_command.party(name)
            if isinstance(found, str):
                pytest.skip(found)
        pytest.importorskip("langchain_mcp_adapters")
        __import__("crewai_tools")  # it imports what CrewAI has deprecated itself
        yield


def play(using: Using, folder: Path, python: str, replay: Any) -> tuple[Session, list[Told]]:
    """Play the story of these tests in a framework."""
    session = Session("job", store=folder / "store", replay=replay)
    told: list[Told] = []

    async def story(call: Call) -> None:
        told.append(await call("note", line="a"))
        told.append(await call("note", line="b", mark="*", often=2))
        told.append(await call("measure", city="Lima"))
        told.append(await call("picture"))
        told.append(await call("fail", reason="no <paper>"))
        told.append(await call("note", line="a"))

    async def within() -> None:
        async with session:
            await using(session, python, folder / "notes", story)

    asyncio.run(within())
    return session, told


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return where a framework has recorded the story; each records it once."""
    made: dict[str, Path] = {}

    def of(name: str) -> Path:
        if name not in made:
            folder = made[name] = tmp_path_factory.mktemp(name.replace(" ", "-"))
            play(FRAMEWORKS[name], folder, sys.executable, "off")
        return made[name]

    return of


@pytest.mark.parametrize("recorder", ["langchain", "autogen", "crewai"])
@pytest.mark.parametrize("replayer", FRAMEWORKS)
def test_tools_of_a_server_cross(
    recorded: Callable[[str], Path], recorder: str, replayer: str
) -> None:
    folder = recorded(recorder)
    wrote = (folder / "notes").read_text()
    session, told = play(FRAMEWORKS[replayer], folder, "/no/such/server", "offline")
    assert (folder / "notes").read_text() == wrote
    assert (session.stats.hits, session.stats.misses) == (7, 0)  # the list of tools, and six calls
    assert [each.failed for each in told] == [False] * 4 + [True, False]
    first, second, measured, picture, failed, last = (each.text for each in told)
    assert "noted a" in first
    assert "noted b" in second
    assert "noted a" in last
    assert "21.5" in measured
    assert "look <b>" in picture
    assert "no <paper>" in failed
