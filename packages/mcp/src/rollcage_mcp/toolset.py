"""A server's tools as functions, without a client: for `rollcage undo`, in another process."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import itertools
import logging
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from rollcage import Contract, Store
from rollcage_adapter import ServerPins, server_key

from rollcage_mcp.contracts import (
    READS,
    instructions_contract,
    read_contract,
    tool_contract,
    tool_function,
)
from rollcage_mcp.errors import ServerError, ServersInvalid
from rollcage_mcp.messages import Message, as_failure, as_notification, as_request, result_of
from rollcage_mcp.pack import Pack
from rollcage_mcp.servers import ServerConfig, load_servers
from rollcage_mcp.upstream import Upstream

__all__ = ["ServerTools", "accepted_tools", "tools_of"]

_log: Final = logging.getLogger("rollcage.mcp")

T = TypeVar("T")

_HANDSHAKE: Final = "2025-11-25"  # the newest version that begins with a handshake
_STATELESS: Final = "2026-07-28"
_VERSION: Final = "io.modelcontextprotocol/protocolVersion"
_CAPABILITIES: Final = "io.modelcontextprotocol/clientCapabilities"
_INFO: Final = {"name": "rollcage", "version": "0.1.0"}
_PAGES: Final = 1_000
_SERVER: Final = "__rollcage_mcp_server__"
"""Marks a server's tool with the server's key and name."""


def tools_of(path: str | Path, only: str = "") -> list[Callable[..., Any]]:
    """Return the tools of all servers in a file, as functions: `--tools FILE.toml[:SERVER]`.

    The reads of a client are among them, and the server's instructions to the model: a facade gives
    them like a tool. Each server is started, asked for its tools, and ended with this process.

    Args:
        path: the file.
        only: one of its servers; empty: all of them.

    Raises:
        ServersInvalid: the file can't be used, has no such server, or two of its servers have a
            tool of the same name, which an undo could not tell apart.
        PackInvalid: a pack does not fit its server.
        ServerGone: a server can't be started.
    """
    servers = load_servers(path)
    if only and only not in servers:
        raise ServersInvalid(f"{path} names no server {only!r}: it has {', '.join(servers)}")
    found: dict[str, Callable[..., Any]] = {}
    having: dict[str, str] = {}
    has_reads = False
    for named in [only] if only else servers:
        own = _functions(servers[named], named)
        has_reads = has_reads or not servers[named].openapi
        for name, function in own.items():
            if name in found:
                raise ServersInvalid(
                    f"the servers {having[name]!r} and {named!r} of {path} both have a tool "
                    f"{name!r}: say which is meant, as {path}:{named}"
                )
            found[name], having[name] = function, named
    reads = [read_contract(method) for method in sorted(READS)] if has_reads else []
    return [*found.values(), *map(_reading, reads)]


def accepted_tools(
    functions: Iterable[Callable[..., Any]], store: Store
) -> list[Callable[..., Any]]:
    """Return the functions without the tools that their servers have changed since first used.

    Those are logged, and left out until a person has accepted them; see `ServerPins`.

    Args:
        functions: of `tools_of`, whole servers, or any others.
        store: keeps the pins.

    Raises:
        StoreError: the pins can't be read or written.
    """
    functions = list(functions)
    servers: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for each in functions:
        server = getattr(each, _SERVER, None)
        if server is not None:
            servers.setdefault(server, []).append(_definition(each))
    pins = {server: ServerPins(store, *server) for server in servers}
    for server, definitions in servers.items():
        pins[server].listed(definitions, is_whole=True)
    found: list[Callable[..., Any]] = []
    for each in functions:
        server = getattr(each, _SERVER, None)
        why = "" if server is None else pins[server].change_of(each.__name__, _definition(each))
        if why:
            _log.warning("left out a tool: %s", why)
        else:
            found.append(each)
    return found


def _definition(function: Callable[..., Any]) -> Mapping[str, Any]:
    contract: Contract = vars(function)["__rollcage_contract__"]
    definition: Mapping[str, Any] = contract.json_schema["x-mcp-tool"]
    return definition


def _functions(server: ServerConfig, named: str) -> dict[str, Callable[..., Any]]:
    """Return a server's tools by name; the operations of an OpenAPI document."""
    if server.openapi:
        return server.load_operations().functions()
    tools = ServerTools(server)
    found = {name: tools.function(name) for name in tools.start()}
    key = server_key(server.command, server.url, server.cwd)
    for function in found.values():
        vars(function)[_SERVER] = (key, named)
    if tools.instructions is not None:
        found[tools.instructions.name] = _reading(tools.instructions)
    return found


def _reading(contract: Contract) -> Callable[..., Any]:
    """Return a client's read, as a function with its contract: for a registry only."""

    async def body(**_: Any) -> Any:
        raise ServerError(-32601, f"{contract.name} is for a client of the server")

    vars(body)["__rollcage_contract__"] = contract
    return body


class ServerTools:
    """Starts a server, and calls its tools from any thread and event loop.

    Args:
        server: how it is started.

    Attributes:
        instructions: its instructions to a model; None without any.
    """

    def __init__(self, server: ServerConfig) -> None:
        self.instructions: Contract | None = None
        self._server = server
        self._pack: Pack | None = server.load_pack()
        self._loop = asyncio.new_event_loop()
        self._ids = itertools.count(1)
        self._meta: dict[str, Any] = {}
        self._contracts: dict[str, Contract] = {}
        self._upstream = Upstream(server.connect, self._ignore)

    def start(self) -> list[str]:
        """Start the server; return the names of its tools. Raises the errors of `tools_of`."""
        threading.Thread(target=self._loop.run_forever, name="rollcage-mcp", daemon=True).start()
        atexit.register(self.stop)
        definitions = self._wait(self._listed())
        if self._pack is not None:
            self._pack.check(definitions)
        for name, each in definitions.items():
            more = {} if self._pack is None else self._pack.declared(name, self)
            trust = self._server.trust_annotations
            plans = {} if self._pack is None else self._pack.plans(name)
            self._contracts[name] = tool_contract(each, trust=trust, declared=more, plans=plans)
        return list(definitions)

    def stop(self) -> None:
        """End the server."""
        atexit.unregister(self.stop)
        if self._loop.is_running():
            self._wait(self._upstream.close())
            self._loop.call_soon_threadsafe(self._loop.stop)

    def function(self, name: str) -> Callable[..., Any]:
        """Return a tool as a function with its contract."""
        return tool_function(self._contracts[name], name, self)

    async def look(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the result of a tool. Raises `ServerError` and `ServerGone`."""
        asked = self._ask("tools/call", {"name": name, "arguments": dict(arguments)})
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asked, self._loop))

    # --- in the thread ---------------------------------------------------------------------------

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _listed(self) -> dict[str, dict[str, Any]]:
        """Return the definitions of its tools, by name."""
        await self._upstream.start()
        await self._greet()
        found: dict[str, dict[str, Any]] = {}
        cursor: Any = None
        for _ in range(_PAGES):
            page = await self._ask("tools/list", {} if cursor is None else {"cursor": cursor})
            found |= {str(each["name"]): each for each in page.get("tools", ())}
            cursor = page.get("nextCursor")
            if cursor is None:
                break
        return found

    async def _greet(self) -> None:
        """Begin as this server requires: with a handshake, or with a version in each request."""
        hello = {"protocolVersion": _HANDSHAKE, "capabilities": {}, "clientInfo": _INFO}
        try:
            greeting = await self._ask("initialize", hello)
        except ServerError:
            self._meta = {"_meta": {_VERSION: _STATELESS, _CAPABILITIES: {}}}
            greeting = {}
            # a server without the method has no instructions
            with contextlib.suppress(ServerError):
                greeting = await self._ask("server/discover", {})
        else:
            await self._upstream.send(as_notification("notifications/initialized"))
        self.instructions = instructions_contract(greeting)

    async def _ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        request = as_request(next(self._ids), method, {**params, **self._meta})
        return result_of(await self._upstream.request(request))

    async def _ignore(self, message: Message) -> None:
        if message.kind == "request":
            refused = as_failure(message.id, -32601, "nobody is here to answer")
            await self._upstream.send(refused)
