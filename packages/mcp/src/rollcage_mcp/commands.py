"""`rollcage mcp`: proxies between MCP clients and servers."""

from __future__ import annotations

import asyncio
import logging
import sys
import uuid
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rollcage import QueueApprover, Session
from rollcage_cli.errors import UsageError
from rollcage_cli.options import DEFAULT_STORE, OFF, StoreOption

from rollcage_mcp.approving import ClientApprover
from rollcage_mcp.conversation import Declared
from rollcage_mcp.servers import Server, load_servers
from rollcage_mcp.stdio import serve_stdio

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
        list[str] | None,
        typer.Argument(metavar="COMMAND...", help="The server, after --.", show_default=False),
    ] = None,
    servers: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A file that names servers: .toml, or a client's .json with mcpServers.",
        ),
    ] = None,
    server: Annotated[
        str | None, typer.Option(metavar="NAME", help="Which server of that file.")
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            help="The job: one that was cut off is gone on with. By default each conversation is "
            "a job of its own.",
            show_default=False,
        ),
    ] = None,
    replay: Annotated[
        str, typer.Option(help="auto, continue, resume, off; offline: without the server.")
    ] = "auto",
    source: Annotated[
        str | None, typer.Option(metavar="RUN", help="What to replay.", show_default=False)
    ] = None,
    policy: Annotated[
        str | None, typer.Option(metavar="FILE", help="What decides on each call.")
    ] = None,
    pack: Annotated[
        str | None,
        typer.Option(help="What its tools do, and how that is undone: a file, or a known server."),
    ] = None,
    trust: Annotated[
        bool, typer.Option("--trust-annotations", help="Believe it which tools only read.")
    ] = OFF,
    queue: Annotated[
        float | None,
        typer.Option(
            "--queue",
            metavar="SECONDS",
            help="Wait so long for an approval in the store's queue, in place of the client's "
            "dialog.",
            show_default=False,
        ),
    ] = None,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Run a server behind a guard, for one client at standard input and output."""
    logging.basicConfig(stream=sys.stderr, format="rollcage: %(message)s")
    wanted = _server(command, servers, server)
    if pack is not None:
        wanted = wanted.model_copy(update={"pack": pack})
    declared = Declared(wanted.load_pack(), trust or wanted.trust_annotations)
    asks = ClientApprover()
    session = Session(
        name or f"mcp {server or wanted.command[0]} {uuid.uuid4()}",
        store=store,
        replay=cast("Any", replay),  # the session says what it can be
        source=source,
        policy=policy,
        approver=asks if queue is None else QueueApprover(store, wait=queue),
    )
    connect = None if replay == "offline" else wanted.connect
    asyncio.run(serve_stdio(session, connect, declared=declared, met=asks.met))


def _server(command: list[str] | None, file: Path | None, name: str | None) -> Server:
    """The server that is meant.

    Raises:
        UsageError: none is, or more than one.
    """
    if file is None:
        if not command or name is not None:
            raise UsageError("name the server's command after --, or a file with --servers")
        return Server(command=tuple(command))
    if command:
        raise UsageError("name the server's command after --, or a file with --servers, not both")
    found = load_servers(file)
    if name is None and len(found) == 1:
        return next(iter(found.values()))
    if name not in found:
        listed = ", ".join(sorted(found)) or "none"
        raise UsageError(f"say which server of {file} with --server: it has {listed}")
    return found[name]
