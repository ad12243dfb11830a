"""A server of the line 2.x, for tests: at standard input and output, or by HTTP at a port.

`python new_server.py [PORT]`
"""

import os
import sys
from pathlib import Path
from typing import Annotated

import anyio
from mcp.server.mcpserver import Context, Elicit, ListRoots, MCPServer, Resolve, Sample
from mcp_types import (
    CreateMessageResult,
    ListRootsResult,
    SamplingMessage,
    TextContent,
)
from pydantic import BaseModel

server = MCPServer("two")


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
async def work(steps: int, context: Context) -> str:  # type: ignore[type-arg]
    """Work, and tell of it."""
    for step in range(steps):
        await context.report_progress(step + 1, steps)
    return "done"


@server.tool()
def fail() -> str:
    """Fail."""
    raise ValueError("it does not work")


@server.tool()
async def hang(context: Context) -> str:  # type: ignore[type-arg]
    """Work until it is cancelled."""
    mark("began")
    await context.report_progress(1, 2)
    try:
        await anyio.sleep(60)
    except BaseException:
        mark("cancelled")
        raise
    return "done"


def mark(text: str) -> None:
    """Put down what happened here."""
    with Path(os.environ["MARKS"]).open("a") as file:
        file.write(text + "\n")


class Sure(BaseModel):
    """What a person answers."""

    sure: bool


def a_person(what: str) -> Elicit[Sure]:
    """Ask the person at the client, in the way of the protocol's era."""
    return Elicit(f"Are you sure of {what}?", Sure)


def a_model(what: str) -> Sample:
    """Ask the client's model."""
    said = SamplingMessage(role="user", content=TextContent(type="text", text=what))
    return Sample([said], max_tokens=10)


def folders() -> ListRoots:
    """Ask for the client's folders."""
    return ListRoots()


@server.tool()
async def consult(
    what: str,
    person: Annotated[Sure, Resolve(a_person)],
    model: Annotated[CreateMessageResult, Resolve(a_model)],
    roots: Annotated[ListRootsResult, Resolve(folders)],
) -> str:
    """Ask the client for all that a server may ask for."""
    text = model.content.text if isinstance(model.content, TextContent) else ""
    return f"{what}: {person.sure}, {text}, {[str(each.uri) for each in roots.roots]}"


@server.resource("note://{name}")
def note(name: str) -> str:
    """A note."""
    return f"the note {name}"


@server.prompt()
def ask(what: str) -> str:
    """Ask something."""
    return f"What is {what}?"


if len(sys.argv) > 1:
    server.run("streamable-http", port=int(sys.argv[1]))
else:
    server.run("stdio")
