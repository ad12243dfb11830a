"""MCP servers used through a framework's own client: listing their tools is a step, so it replays.

The calls of their tools are guarded like all others. Without a recorded list of tools, a replay
would still need the server: so the list is requested once a session, and recorded as a read.

Without a facade, the tools that a server lists when it is first used with a store are pinned. A
tool that is changed or added later is left out, until a person accepts it (`rollcage mcp accept`).
"""

from __future__ import annotations

import asyncio
import logging
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final

from rollcage import Contract, Session
from rollcage.errors import ContractError, ReplayedError
from rollcage.session.adapters import here, native_of

from rollcage_adapter.exposing import facades_of, refused_by
from rollcage_adapter.pins import ServerPins, server_key
from rollcage_adapter.shapes import is_list, is_object, is_tuple

__all__ = [
    "McpListing",
    "mcp_blocks",
    "mcp_content",
    "mcp_definition",
    "mcp_definitions",
    "mcp_failure",
]

_log: Final = logging.getLogger("rollcage")

Definition = dict[str, Any]
"""A tool, as in the result of `tools/list`."""

_FAILURES: Final = {
    "langchain_mcp_adapters.tools._MCPToolExecutionError",
    "rollcage_autogen.listed.ToolFailed",
    "rollcage_mcp.errors.ServerError",
}
_PAGES: Final = 1_000
_NAMED: Final = "mcp:tools/list"  # the same name as in the proxy of rollcage-mcp
_SERVER: Final = {"server": {"type": "string"}}


class McpListing:
    """The tools of one server in a session: requested once, recorded, and replayed.

    Each branch, and each step whose body lists them, requests the list itself: which of them runs
    first, and whether a body runs, may differ in a replay.

    Args:
        session: the session that records them.
        server: the name of the server in this session; empty for a single one.
        pins: the accepted definitions of the server's tools.

    See `of`, which finds the listing that a session has already.

    Attributes:
        contract: the contract of the read, for a policy; a facade has to give it, like a tool.
    """

    contract: ClassVar[Contract] = Contract(
        name=_NAMED,
        description="What the server answers to tools/list.",
        parameters={"type": "object", "properties": _SERVER},
        effect="read",
    )

    def __init__(self, session: Session, server: str, pins: ServerPins) -> None:
        self.session = session
        self.server = server
        self._pins = pins
        self._found: dict[str, list[Definition]] = {}
        self._lock = threading.Lock()
        self._asking = asyncio.Lock()

    @staticmethod
    def of(session: Session, server: str, asked: Any, *, form: str = "") -> McpListing:
        """Return the listing of a server, made at the first call.

        Args:
            session: the session.
            server: the server's name in it.
            asked: the parameters by which it is reached; they distinguish servers. Its `command`,
                `args` and `cwd`, or its `url`, as attributes or by these names, are the key of its
                pins.
            form: the form of its definitions, if it is not the form of the protocol.

        Raises:
            ContractError: another server of the session has this name.
        """
        with _LOCK:
            servers = _SERVERS.setdefault(session, _Servers())
            if server not in servers.listings:
                pins = _pins(session, server, asked, form)
                servers.listings[server] = asked, McpListing(session, server, pins)
            own, listing = servers.listings[server]
        if own != asked:
            called = f"called {server!r}" if server else "without a name"
            raise ContractError(
                f"two MCP servers of this session are {called}, and their recorded tools could not "
                f"be told apart: name each with server="
            )
        return listing

    def tools(self, ask: Callable[[], Iterable[Definition]]) -> list[Definition]:
        """Return the definitions of the server's tools; call `ask` if none are recorded.

        Raises:
            ReplayMiss: the session replays offline, and none are recorded.
            Blocked: the policy refuses the read `mcp:tools/list`.
            ToolRefused: the session's facade does not give it.
        """
        self._expose()
        with self._lock:
            place = _place()
            if place not in self._found:
                value = self.session.run_call(
                    self.contract,
                    self._arguments(),
                    lambda **_: self._noted(self._accepted(ask())),
                )
                self._found[place] = _listed(value)
            return list(self._found[place])

    async def atools(self, ask: Callable[[], Awaitable[Iterable[Definition]]]) -> list[Definition]:
        """Do the same as `tools`, for an async client."""

        async def body(**_: Any) -> Any:
            definitions = [*await ask()]
            return self._noted(await asyncio.to_thread(self._accepted, definitions))

        self._expose()
        async with self._asking:
            place = _place()
            if place not in self._found:
                value = await self.session.arun_call(self.contract, self._arguments(), body)
                self._found[place] = _listed(value)
            return list(self._found[place])

    def claim(self, names: Iterable[str], otherwise: str) -> None:
        """Note the names of the server's tools, because a call has to name its server.

        Args:
            names: the names of the tools, as in their contracts.
            otherwise: how to give one of them another name, for the error.

        Raises:
            ContractError: a tool of another server of the session has this name.
        """
        with _LOCK:
            owners = _SERVERS[self.session].owners
            for name in names:
                owner = owners.setdefault(name, self.server)
                if owner != self.server:
                    raise ContractError(
                        f"the MCP servers {owner!r} and {self.server!r} both have a tool {name!r}, "
                        f"and a recorded call would not say which one it was: {otherwise}"
                    )

    def forget(self) -> None:
        """Request the list again next time, as a new step: the tools may have changed."""
        self._found.clear()

    def _accepted(self, definitions: Iterable[Definition]) -> list[tuple[Definition, str]]:
        """Return the tools, each with the reason why it is withheld; empty if it is not.

        A facade decides by itself.
        """
        found = [*definitions]
        if facades_of(self.session):
            return [(each, "") for each in found]
        self._pins.listed(found, is_whole=True)
        return [(each, self._pins.change_of(str(each["name"]), each)) for each in found]

    def _noted(self, found: Iterable[tuple[Definition, str]]) -> dict[str, Any]:
        """Return the value to record; record the refusal of each withheld tool."""
        tools: list[Definition] = []
        for each, why in found:
            if not why:
                tools.append(each)
                continue
            _log.warning("left out a tool: %s", why)
            self.session.refused(str(each["name"]), {}, reason=why, code="tool_changed")
        return {"result": {"tools": tools}}

    def _expose(self) -> None:
        refused = refused_by(facades_of(self.session), self.contract)
        if refused is not None:
            raise refused

    def _arguments(self) -> dict[str, Any]:
        return {"server": self.server} if self.server else {}


def _place() -> str:
    """Return the branch in which a list is a step of its own; a body has one, too."""
    place = here.get()
    return "" if place is None else place.branch


class _Servers:
    """The servers that a session knows."""

    def __init__(self) -> None:
        self.listings: dict[str, tuple[Any, McpListing]] = {}
        self.owners: dict[str, str] = {}


_LOCK: Final = threading.Lock()
_SERVERS: Final[weakref.WeakKeyDictionary[Session, _Servers]] = weakref.WeakKeyDictionary()


async def mcp_definitions(client: Any) -> list[Definition]:
    """Return all tools of a server, page by page.

    Args:
        client: an `mcp.ClientSession` that is initialized.

    Raises:
        ContractError: there is no end of pages.
    """
    found: list[Definition] = []
    cursor: str | None = None
    for _ in range(_PAGES):
        page = await client.list_tools(cursor=cursor)
        found += map(mcp_definition, page.tools)
        cursor = page.nextCursor
        if not cursor:
            return found
    raise ContractError(f"the MCP server lists its tools in more than {_PAGES} pages")


def mcp_definition(tool: Any) -> Definition:
    """Return a tool of the protocol's own library, as data."""
    found: Definition = tool.model_dump(mode="json", by_alias=True, exclude_none=True)
    return found


def mcp_content(value: Any, failed: Callable[[str], Exception]) -> list[Mapping[str, Any]]:
    """Return the content blocks of a tool's result; any other value is one text block.

    Args:
        value: a step's value, from any framework.
        failed: makes the error of this framework, from the text of the tool's failure.

    Raises:
        Exception: this error, if the tool failed.
    """
    failure = mcp_failure(value)
    if failure is not None:
        raise failed(failure)
    blocks = mcp_blocks(value)
    return [{"type": "text", "text": str(value)}] if blocks is None else blocks


def mcp_blocks(value: Any) -> list[Mapping[str, Any]] | None:
    """Return the content blocks of a tool's result, from any framework; None without any.

    Each has a `type`: `text` with its `text`, `image` with its `data` and `mime_type`, or another
    type of the protocol, unchanged.
    """
    value = _plain(value)
    if is_object(value):
        value = value.get("content")
    if _is_pair(value):  # from LangChain: content and artifact
        value = value[0]
    if not is_list(value) or not value:
        return None
    if not all(is_object(each) and isinstance(each.get("type"), str) for each in value):
        return None
    return [_block(each) for each in value]


def mcp_failure(given: Any) -> str | None:
    """Return the text of a tool's failure, if its server reports one (`isError`); else None.

    Args:
        given: a step's value or exception, from any framework.
    """
    if isinstance(given, ReplayedError):
        return given.message if given.type_name in _FAILURES else None
    given = _plain(given)
    if not is_object(given):
        return None
    if given.get("reason") == "mcp_error" and is_object(given.get("details")):  # from CrewAI
        return str(given.get("message", ""))
    if given.get("isError") is True:
        texts = [str(each["text"]) for each in mcp_blocks(given) or () if "text" in each]
        return "\n".join(texts)
    return None


def _plain(value: Any) -> Any:
    """Return a value in the form for other frameworks; of the proxy's value, only the result."""
    native = native_of(type(value))
    data = value if native is None else native.project(value)
    return data["result"] if is_object(data) and is_object(data.get("result")) else data


def _is_pair(value: Any) -> bool:
    return (is_tuple(value) or is_list(value)) and len(value) == 2 and is_list(value[0])


def _block(block: Mapping[str, Any]) -> Mapping[str, Any]:
    if block["type"] != "image":
        return block
    data = block.get("data", block.get("base64"))
    kind = block.get("mime_type", block.get("mimeType"))
    return {"type": "image", "data": data, "mime_type": kind} if data else block


def _pins(session: Session, server: str, asked: Any, form: str) -> ServerPins:
    """Return the pins of a server, in the session's store."""

    def parameter(name: str) -> Any:
        return asked.get(name) if is_object(asked) else getattr(asked, name, None)

    program, url, cwd = parameter("command"), str(parameter("url") or ""), parameter("cwd")
    command = [str(program), *map(str, parameter("args") or ())] if program else []
    key = server_key(command, url, Path(cwd) if cwd else None, form=form)
    return ServerPins(
        session.store, key, server or (command[0] if command else url.split("?", maxsplit=1)[0])
    )


def _listed(value: Any) -> list[Definition]:
    result: Any = value.get("result") if is_object(value) else None
    tools: Any = result.get("tools") if is_object(result) else None
    if not is_list(tools) or not all(is_object(each) for each in tools):
        raise ContractError(f"the recorded result of {_NAMED} is not a list of tools")
    return tools
