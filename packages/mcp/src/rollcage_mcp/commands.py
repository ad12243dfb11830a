"""`rollcage mcp`: proxies between MCP clients and servers."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Annotated, Any

import typer
from rollcage import QueueApprover, Session
from rollcage_cli.errors import UsageError
from rollcage_cli.options import DEFAULT_STORE, OFF, StoreOption

from rollcage_mcp.approving import ClientApprover
from rollcage_mcp.conversation import Declared
from rollcage_mcp.stdio import serve_stdio
from rollcage_mcp.upstream import Connection, ServerProcess

__all__ = ["mcp"]

mcp = typer.Typer(
    name="mcp",
    help="Guard MCP servers: record, gate, replay and undo what clients do with them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@mcp.callback()
def _group() -> None:
    """Hold the commands."""


@mcp.command()
def run(
    command: Annotated[
        list[str],
        typer.Argument(metavar="COMMAND...", help="The server, after --.", show_default=False),
    ],
    name: Annotated[
        str | None,
        typer.Option(
            help="The job; the same name goes on with a job that was cut off. By default each "
            "conversation is a job of its own."
        ),
    ] = None,
    replay: Annotated[str, typer.Option(help="auto, off, resume, offline or continue.")] = "auto",
    source: Annotated[str | None, typer.Option(metavar="RUN", help="What to replay.")] = None,
    policy: Annotated[str | None, typer.Option(metavar="FILE")] = None,
    trust: Annotated[
        bool,
        typer.Option("--trust-annotations", help="The server says which tools only read."),
    ] = OFF,
    wait: Annotated[
        float | None,
        typer.Option(
            help="Approvals: look for them in the store's queue for so many seconds, in place "
            "of asking in the client's dialog."
        ),
    ] = None,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Run a server behind a guard, for one client at standard input and output."""
    logging.basicConfig(stream=sys.stderr, format="rollcage: %(message)s")
    asks = ClientApprover()
    settings: dict[str, Any] = {"approver": QueueApprover(store, wait=wait)} if wait else {}
    session = Session(
        name or _own_name(command),
        store=store,
        replay=replay,  # type: ignore[arg-type] # the session says what it can be
        source=source,
        policy=policy,
        **{"approver": asks, **settings},
    )

    async def connect() -> Connection:
        return await ServerProcess.start(command)

    offline = replay == "offline"
    asyncio.run(
        serve_stdio(
            session,
            None if offline else connect,
            declared=Declared(trust=trust),
            met=asks.met,
        )
    )


def _own_name(command: list[str]) -> str:
    """A name that no other conversation has."""
    import uuid

    if not command:
        raise UsageError("name the server's command, after --")
    return f"mcp {command[0]} {uuid.uuid4()}"
