"""`rollcage mcp`: proxies between MCP clients and servers."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rollcage import Contract, QueueApprover, Session, open_store
from rollcage.trace.seal import StoreSeal
from rollcage_adapter import ServerPins, server_key
from rollcage_cli.errors import UsageError
from rollcage_cli.options import DEFAULT_STORE, OFF, StoreOption, who
from rollcage_cli.tools import load_tools

from rollcage_mcp.accepting import accept
from rollcage_mcp.approving import ClientApprover
from rollcage_mcp.contracts import NEEDS_FACADE
from rollcage_mcp.conversation import GRACE, Conversation, Send, ServerDeclarations
from rollcage_mcp.errors import PackInvalid, ServersInvalid
from rollcage_mcp.exposed import exposed_tools
from rollcage_mcp.guards import named_guards
from rollcage_mcp.install.commands import install, uninstall
from rollcage_mcp.logs import log_to_stderr
from rollcage_mcp.ops import SCOPES, Scope, ops_tools
from rollcage_mcp.servers import ServerConfig, load_servers
from rollcage_mcp.serving import ToolServer
from rollcage_mcp.stdio import Connect, serve_stdio
from rollcage_mcp.toolset import accepted_tools

__all__ = ["mcp"]

mcp = typer.Typer(
    name="mcp",
    help="Guard MCP servers: record, gate, replay and undo calls.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


mcp.command()(install)
mcp.command()(uninstall)
mcp.command()(accept)


@mcp.callback()
def _group() -> None:
    """Hold the commands."""


CommandArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="COMMAND...", help="The server, after --.", show_default=False),
]
UpstreamOption = Annotated[
    str | None,
    typer.Option(metavar="URL", help="A server that is reached by HTTP.", show_default=False),
]
ServersOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="A file that names servers: .toml, or a client's .json with mcpServers.",
        show_default=False,
    ),
]
ServerOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Which server of the file.", show_default=False),
]
NameOption = Annotated[
    str | None,
    typer.Option(
        help="The job: its cut-off run is resumed. By default each conversation is a job "
        "of its own.",
        show_default=False,
    ),
]
ReplayOption = Annotated[
    str, typer.Option(help="auto, continue, resume, off; offline: without the server.")
]
SourceOption = Annotated[
    str | None, typer.Option(metavar="RUN", help="What to replay.", show_default=False)
]
PolicyOption = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="What decides on each call.", show_default=False),
]
FacadeOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Give only the tools of this facade of the registry, as approved.",
        show_default=False,
    ),
]
PackOption = Annotated[
    str | None,
    typer.Option(
        help="What its tools do, and how each is undone: a file, or filesystem, git, memory, "
        "sqlite.",
        show_default=False,
    ),
]
TrustOption = Annotated[
    bool,
    typer.Option("--trust-annotations", help="Believe the server about which tools only read."),
]
QueueOption = Annotated[
    float | None,
    typer.Option(
        "--queue",
        metavar="SECONDS",
        help="Wait this long for an approval in the store's queue, instead of the client's dialog.",
        show_default=False,
    ),
]


@dataclasses.dataclass(frozen=True)
class _Guard:
    """The guard of conversations with a server."""

    server: ServerConfig
    label: str
    name: str | None
    replay: str
    source: str | None
    policy: str | None
    facade: str | None
    trust: bool
    queue: float | None
    store: str

    @property
    def connect(self) -> Connect | None:
        """Return a connection to the server; None if no server is needed."""
        return None if self.replay == "offline" else self.server.connect

    @functools.cached_property
    def declared(self) -> ServerDeclarations:
        """Return the declarations of its tools."""
        trust = self.trust or self.server.trust_annotations
        return ServerDeclarations(self.server.load_pack(), trust, self.label, self._pins())

    def _pins(self) -> ServerPins | None:
        if self.facade is not None or self.connect is None:
            return None
        key = server_key(self.server.command, self.server.url, self.server.cwd)
        return ServerPins(open_store(self.store), key, self.label)

    def check(self) -> None:
        """Find problems before a client comes.

        Raises:
            ServersInvalid: the server can't be reached as declared.
            PackInvalid: its pack can't be used.
            StoreInvalid: the URL names no store.
        """
        open_store(self.store)
        if self.connect is not None:
            self.server.check()
        _ = self.declared

    def session(self, asks: ClientApprover) -> Session:
        """Return the session of one conversation."""
        queue = None if self.queue is None else QueueApprover(self.store, wait=self.queue)
        return Session(
            self.name or f"mcp {self.label} {uuid.uuid4()}",
            store=self.store,
            replay=cast("Any", self.replay),  # the session lists the valid values
            source=self.source,
            gate=named_guards(policy=self.policy, facade=self.facade),
            approver=asks if queue is None else queue,
        )


@mcp.command()
def run(
    command: CommandArgument = None,
    upstream: UpstreamOption = None,
    servers: ServersOption = None,
    server: ServerOption = None,
    name: NameOption = None,
    replay: ReplayOption = "auto",
    source: SourceOption = None,
    policy: PolicyOption = None,
    facade: FacadeOption = None,
    pack: PackOption = None,
    trust: TrustOption = OFF,
    queue: QueueOption = None,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Run a server behind a guard, for one client at stdin and stdout."""
    log_to_stderr()
    asks = ClientApprover(lambda: _key_of(store))

    def opening() -> tuple[Session, Connect | None, ServerDeclarations]:
        with _as_usage():
            found, label = _server(command, upstream, servers, server, pack)
            guard = _Guard(found, label, name, replay, source, policy, facade, trust, queue, store)
            guard.check()
        return guard.session(asks), guard.connect, guard.declared

    asyncio.run(serve_stdio(opening, met=asks.met))


@mcp.command()
def serve(
    command: CommandArgument = None,
    upstream: UpstreamOption = None,
    servers: ServersOption = None,
    server: ServerOption = None,
    replay: ReplayOption = "auto",
    source: SourceOption = None,
    policy: PolicyOption = None,
    facade: FacadeOption = None,
    pack: PackOption = None,
    trust: TrustOption = OFF,
    queue: QueueOption = None,
    port: Annotated[int, typer.Option(min=0, max=65535)] = 8321,
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Holds what clients send as a bearer token.", show_default=False
        ),
    ] = None,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Guard a server for clients that connect by HTTP.

    It listens on loopback: http://127.0.0.1:PORT/mcp.
    """
    log_to_stderr()
    try:
        from rollcage_mcp.http_proxy import serve_http
    except ModuleNotFoundError as error:
        raise UsageError(
            f"rollcage mcp serve needs {error.name}: pip install 'rollcage-mcp[http]'"
        ) from None
    with _as_usage():
        found, label = _server(command, upstream, servers, server, pack)
        guard = _Guard(found, label, None, replay, source, policy, facade, trust, queue, store)
        guard.check()

    @contextlib.asynccontextmanager
    async def talk(send: Send) -> AsyncIterator[Conversation]:
        asks = ClientApprover(lambda: _key_of(store))
        async with guard.session(asks) as session:
            conversation = Conversation(session, guard.connect, send, declared=guard.declared)
            asks.met(conversation)
            try:
                yield conversation
            finally:
                await conversation.close(GRACE)

    asyncio.run(serve_http(talk, port=port, token=_token(token_file)))


@mcp.command()
def ops(
    allow: Annotated[
        list[str] | None,
        typer.Option(help="A scope: read (by default), undo, approve, resolve. May be repeated."),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Who is asked (this user, by default)."),
    ] = None,
    tools: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODULE[:ATTRIBUTE]", help="What an undo calls; a file of servers, too."
        ),
    ] = None,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Serve runs, undo and approvals as tools, at stdin and stdout.

    The person at the client decides about approvals, resolutions and undos, in the client's own
    dialog. Without a dialog, none is made.
    """
    scopes: list[Scope] = [each for each in SCOPES if each in (allow or ["read"])]
    unknown = sorted({*(allow or [])} - {*SCOPES})
    if unknown:
        raise UsageError(f"--allow {unknown[0]}: the scopes are {', '.join(SCOPES)}")
    name = who(by) if {"approve", "resolve"} & {*scopes} else None
    open_store(store)  # refused before a client comes
    served = ops_tools(scopes, store=store, by=name, tools=tools or ())
    asyncio.run(ToolServer("rollcage ops", served).serve_stdio())


@mcp.command(name="tools")
def serve_tools(
    tools: Annotated[
        list[str] | None,
        typer.Option(
            "--tools",
            metavar="MODULE[:ATTRIBUTE]",
            help="The module with the tools; by default tool.rollcage.tools in pyproject.toml.",
            show_default=False,
        ),
    ] = None,
    plans: Annotated[
        list[str] | None,
        typer.Option(
            "--plans",
            metavar="MODULE[:NAME]|FILE",
            help="Plans of workflows, each as a tool start.NAME that has a worker start it. Alone, "
            "no other tools are served.",
            show_default=False,
        ),
    ] = None,
    facade: FacadeOption = None,
    policy: PolicyOption = None,
    name: NameOption = None,
    queue: QueueOption = None,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Serve functions declared with @rollcage.tool, guarded.

    At standard input and output.
    """
    log_to_stderr()
    own = load_tools(tools) if tools or not plans else []
    functions = [each for each in own if not isinstance(each, Contract)]
    if facade is None:
        functions = accepted_tools(functions, open_store(store))
    functions += _starters(plans, tools, store) if plans else []
    if not functions:
        raise UsageError("no tools: name the module of yours with --tools")
    proposed = next((each for each in functions if NEEDS_FACADE in vars(each)), None)
    if proposed is not None and facade is None:
        raise UsageError(
            f"{proposed.__name__} is an operation of an OpenAPI document, and a proposal until "
            f"somebody approves it: rollcage tools propose FILE, then name a facade with --facade"
        )
    approver = None if queue is None else QueueApprover(store, wait=queue)
    label = name or f"mcp tools {uuid.uuid4()}"
    gate = named_guards(policy=policy, facade=facade)
    more: dict[str, Any] = {"gate": gate, "approver": approver}

    async def serve() -> None:
        async with Session(label, store=store, **more) as session:
            await ToolServer("rollcage tools", exposed_tools(functions, session)).serve_stdio()

    asyncio.run(serve())


def _starters(plans: list[str], tools: list[str] | None, store: str) -> list[Callable[..., Any]]:
    """Return a tool for each plan, which starts it. Raises `UsageError`."""
    try:
        from rollcage_workflow.commands.worker import load_plans
        from rollcage_workflow.served import orders
    except ModuleNotFoundError as error:
        raise UsageError(f"--plans needs {error.name}: pip install rollcage-workflow") from None
    return orders(load_plans(plans, tools)[0], open_store(store), by=who(None))


def _key_of(store: str) -> bytes:
    """Return the key that seals questions to clients, derived from the store's key."""
    return StoreSeal(open_store(store))("rollcage mcp approval").encode()


@contextlib.contextmanager
def _as_usage() -> Iterator[None]:
    """Report a problem of a named file as a problem of the command."""
    try:
        yield
    except (PackInvalid, ServersInvalid) as error:
        raise UsageError(str(error)) from None


def _token(file: Path | None) -> str | None:
    """Return the bearer token that clients send. Raises `UsageError`."""
    if file is None:
        return None
    try:
        token = file.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise UsageError(f"--token-file {file} can't be read: {error}") from None
    if not token:
        raise UsageError(f"--token-file {file} is empty")
    return token


def _server(
    command: list[str] | None,
    upstream: str | None,
    file: Path | None,
    name: str | None,
    pack: str | None,
) -> tuple[ServerConfig, str]:
    """Return the chosen server, and its name.

    Raises:
        UsageError: no server is chosen, or more than one.
    """
    if [command or None, upstream, file].count(None) != 2:
        raise UsageError(
            "name one server: its command after --, its URL with --upstream, or a file with "
            "--servers"
        )
    more = {} if pack is None else {"pack": pack}
    if file is None and name is not None:
        raise UsageError("--server names a server of the file that --servers names")
    if command:
        return ServerConfig(command=tuple(command)).model_copy(update=more), command[0]
    if upstream is not None:
        return ServerConfig(url=upstream).model_copy(update=more), upstream
    assert file is not None
    found = load_servers(file)
    chosen = next(iter(found)) if name is None and len(found) == 1 else name
    if chosen is None or chosen not in found:
        listed = ", ".join(sorted(found)) or "none"
        raise UsageError(f"say which server of {file} with --server: it has {listed}")
    return found[chosen].model_copy(update=more), chosen
