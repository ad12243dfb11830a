"""The file of servers, and the way to reach each."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any, Final, Self

import orjson
import pydantic

from rollcage_mcp.errors import OpenAPIInvalid, ServersInvalid
from rollcage_mcp.pack import Pack
from rollcage_mcp.upstream import ServerProcess, Transport

if TYPE_CHECKING:
    from rollcage_mcp.openapi.calling import Operations

__all__ = ["ServerConfig", "load_servers"]


class ServerConfig(pydantic.BaseModel):
    """A server, and its declarations.

    Attributes:
        command: the program and its arguments, for a server that is started.
        url: the endpoint, for a server that is reached by HTTP.
        headers: sent with each request; `${NAME}` stands for a variable of this
            process's environment, so that no token has to be in the file.
        env: variables besides those of this process.
        cwd: its working directory.
        pack: the declaration of its tools: the name of a pack that comes with the package, or a
            file, relative to the file that names it.
        trust_annotations: whether its own statement about effects counts.
        openapi: an OpenAPI document, relative to the file that names it: its operations are
            the tools, and `url` is their base URL, if not the document's own server.
        operations: the names of the used operations; empty: all.
        secrets: by the document's security schemes, the variables of this process's environment
            with the secrets.
    """

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    command: tuple[str, ...] = ()
    url: str = ""
    headers: dict[str, str] = {}
    env: dict[str, str] = {}
    cwd: Path | None = None
    pack: str = ""
    trust_annotations: bool = False
    openapi: str = ""
    operations: tuple[str, ...] = ()
    secrets: dict[str, str] = {}

    @pydantic.model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.openapi:
            of_servers = (self.command, self.headers, self.env, self.cwd, self.trust_annotations)
            if any(of_servers):
                raise ValueError("only url, operations, secrets and pack go with openapi")
            return self
        if self.operations or self.secrets:
            raise ValueError("operations and secrets are of an OpenAPI document: say openapi")
        if bool(self.command) is bool(self.url):
            raise ValueError("say either its command or its url, or openapi")
        return self

    async def connect(self) -> Transport:
        """Start it, or connect to it.

        Raises:
            ServerGone: the server can't be started.
            ServersInvalid: a variable of its headers is not set, or the library for HTTP is
                missing.
        """
        if self.url:
            return self._by_http()
        return await ServerProcess.start(self.command, env=self.env, cwd=self.cwd)

    def check(self) -> None:
        """Check the way to reach it, without reaching it.

        Raises:
            ServersInvalid: a variable of its headers is not set, or the library for HTTP is
                missing.
        """
        if self.openapi:
            raise ServersInvalid(
                f"{self.openapi} is an OpenAPI document, not an MCP server: its operations are "
                f"served by rollcage mcp tools --tools FILE --facade NAME"
            )
        if self.url:
            self._by_http()

    def load_operations(self) -> Operations:
        """Load the operations of its OpenAPI document.

        Raises:
            OpenAPIInvalid: the document can't be used, or the library that reads it is missing.
            PackInvalid: the pack does not fit it.
        """
        try:
            from rollcage_mcp.openapi.calling import Operations
        except ModuleNotFoundError as error:
            raise OpenAPIInvalid(
                f"{self.openapi} needs {error.name}: pip install 'rollcage-mcp[openapi]'"
            ) from None
        return Operations(
            Path(self.openapi),
            url=self.url,
            only=self.operations,
            secrets=self.secrets,
            pack=self.load_pack(),
        )

    def _by_http(self) -> Transport:
        try:
            from rollcage_mcp.http_upstream import HttpServer
        except ModuleNotFoundError:
            raise ServersInvalid(
                "a server that is reached by HTTP needs pip install 'rollcage-mcp[http]'"
            ) from None
        if not self.url.startswith(("http://", "https://")):
            raise ServersInvalid(
                f"{self.url!r} is not a URL: it has to begin with http:// or https://"
            )
        try:
            headers = {n: Template(v).substitute(os.environ) for n, v in self.headers.items()}
        except (KeyError, ValueError) as error:
            raise ServersInvalid(
                f"{self.url}: the variable {error} that its headers name is not set"
            ) from None
        return HttpServer(self.url, headers)

    def load_pack(self) -> Pack | None:
        """Load its pack; return None if it has none. Raises `PackInvalid`."""
        return Pack.load(self.pack) if self.pack else None


def load_servers(path: str | Path) -> dict[str, ServerConfig]:
    """Load the servers in a file, each by its name.

    A TOML file has a table `[servers.NAME]` with the fields of `ServerConfig` for each. A JSON file
    has the form of many clients: `{"mcpServers": {NAME: {"command": …, "args": […], "env": {…}}}}`.

    Raises:
        ServersInvalid: the file can't be read, or used; names each problem.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
        data: Any = orjson.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise ServersInvalid(f"{path} can't be read: {error}") from None
    try:
        servers = _File.model_validate(_as_toml(data) if path.suffix == ".json" else data).servers
    except pydantic.ValidationError as error:
        listed = "".join(
            f"\n  {'.'.join(map(str, each['loc']))}: {each['msg']}"
            for each in error.errors(include_url=False, include_input=False)
        )
        raise ServersInvalid(f"{path} can't be used:{listed}") from None
    return {name: each.model_copy(update=_beside(each, path)) for name, each in servers.items()}


class _File(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")

    servers: dict[str, ServerConfig]


_OF_CLIENTS: Final = ("command", "args", "env", "cwd", "url", "headers")


def _as_toml(data: Any) -> Any:
    """Return a client's own file in our form, without the client's own fields."""
    named = data.get("mcpServers") if isinstance(data, dict) else None
    if not isinstance(named, dict):
        return {"servers": data}
    servers: dict[str, Any] = {}
    for name, each in named.items():
        if not isinstance(each, dict) or not isinstance(each.get("args", []), list):
            servers[name] = each
            continue
        kept = {word: each[word] for word in _OF_CLIENTS if word in each}
        more = kept.pop("args", [])
        if "command" in kept:
            kept["command"] = [kept["command"], *more]
        servers[name] = kept
    return {"servers": servers}


def _beside(server: ServerConfig, path: Path) -> Mapping[str, Any]:
    """Return a server's fields, with paths relative to the file that names it."""
    found: dict[str, str] = {}
    for word, named in (("pack", server.pack), ("openapi", server.openapi)):
        if named and (path.parent / named).is_file():
            found[word] = str(path.parent / named)
    return found
