"""Which servers there are: a file that names them, and how each is reached."""

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
    """A server, and what is declared of it.

    Attributes:
        command: the program and its arguments, of one that is started.
        url: the endpoint of one that is reached by HTTP, in its place.
        headers: what is sent with each request to it; `${NAME}` stands for a variable of this
            process's environment, so that no token has to be in the file.
        env: variables beside those of this process.
        cwd: its working directory.
        pack: what is declared of its tools: the name of a pack that comes with the package, or a
            file, looked for beside the file that names it.
        trust_annotations: whether its own word about effects counts.
        openapi: an OpenAPI document, looked for beside the file that names it: its operations are
            the tools, and `url` is where they are called, if not at the document's own server.
        operations: the names of the operations that are taken; all, where it is empty.
        secrets: by the document's security schemes, the variables of this process's environment
            with what is sent.
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
                raise ValueError("with openapi go url, operations, secrets and pack alone")
            return self
        if self.operations or self.secrets:
            raise ValueError("operations and secrets are of an OpenAPI document: say openapi")
        if bool(self.command) is bool(self.url):
            raise ValueError("say either its command or its url, or openapi")
        return self

    async def connect(self) -> Transport:
        """Start it, or connect to it.

        Raises:
            ServerGone: it can't be started.
            ServersInvalid: a variable of its headers is not set, or what speaks HTTP is missing.
        """
        if self.url:
            return self._by_http()
        return await ServerProcess.start(self.command, env=self.env, cwd=self.cwd)

    def check(self) -> None:
        """Find what is wrong with how it is reached, without reaching it.

        Raises:
            ServersInvalid: a variable of its headers is not set, or what speaks HTTP is missing.
        """
        if self.openapi:
            raise ServersInvalid(
                f"{self.openapi} is an OpenAPI document, and no MCP server: its operations are "
                f"served by rollcage mcp tools --tools FILE --facade NAME"
            )
        if self.url:
            self._by_http()

    def load_operations(self) -> Operations:
        """The operations of its OpenAPI document.

        Raises:
            OpenAPIInvalid: it can't be used, or what reads it is missing.
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
                f"{self.url!r} is no URL: it has to begin with http:// or https://"
            )
        try:
            headers = {n: Template(v).substitute(os.environ) for n, v in self.headers.items()}
        except (KeyError, ValueError) as error:
            raise ServersInvalid(
                f"{self.url}: the variable {error} that its headers name is not set"
            ) from None
        return HttpServer(self.url, headers)

    def load_pack(self) -> Pack | None:
        """Its pack; None where it has none. Raises `PackInvalid`."""
        return Pack.load(self.pack) if self.pack else None


def load_servers(path: str | Path) -> dict[str, ServerConfig]:
    """The servers that a file names, each by its name.

    A TOML file has a table `[servers.NAME]` with the fields of `ServerConfig` for each. A JSON file
    is that of many clients: `{"mcpServers": {NAME: {"command": …, "args": […], "env": {…}}}}`.

    Raises:
        ServersInvalid: it can't be read, or used; names each place that is wrong.
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
    """A client's own file in the form of ours; what the client alone needs is left out."""
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
    """What a server's fields are, seen from the file that names it."""
    found: dict[str, str] = {}
    for word, named in (("pack", server.pack), ("openapi", server.openapi)):
        if named and (path.parent / named).is_file():
            found[word] = str(path.parent / named)
    return found
