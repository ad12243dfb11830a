"""The known clients: the places of their files, and the form of their servers."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from rollcage_mcp.install.errors import ConfigInvalid

__all__ = ["CLIENTS", "Client", "client_of"]


@dataclasses.dataclass(frozen=True)
class Client:
    """A client of MCP servers.

    Attributes:
        name: its name in commands.
        title: its makers' name for it.
        files: the user's files, of which the first existing one is used; a beginning in capitals is
            a
            variable, or its default below.
        project: the file of a project, below its folder; empty without a project's file.
        holders: the places of servers in a file; `*` is any name.
        again: how to make it read a changed file.
    """

    name: str
    title: str
    files: tuple[str, ...]
    project: tuple[str, ...] = ()
    holders: tuple[tuple[str, ...], ...] = (("mcpServers",),)
    again: str = "restart it"

    @property
    def is_toml(self) -> bool:
        """Whether its files are TOML, not JSON."""
        return self.files[0].endswith(".toml")

    def file(self, project: Path | None = None) -> Path:
        """Return its file: the user's, or a project's; without any, the first possible one.

        Raises:
            ConfigInvalid: it has no file in projects.
        """
        if project is None:
            places = [_expanded(each) for each in self.files]
        else:
            places = [project.absolute() / each for each in self.project]
        if not places:
            raise ConfigInvalid(f"{self.title} has no file of servers in projects")
        return next((each for each in places if each.is_file()), places[0])


def client_of(name: str) -> Client:
    """Return the client with a name. Raises `ConfigInvalid`."""
    if name not in CLIENTS:
        raise ConfigInvalid(f"no client {name!r} is known, but: {', '.join(CLIENTS)}")
    return CLIENTS[name]


def _expanded(path: str) -> Path:
    first, _, rest = path.partition("/")
    default = _DEFAULTS[first]
    return Path(os.environ.get(first) or Path.home() / default) / rest


_DEFAULTS: Final = {
    "HOME": "", "XDG_CONFIG_HOME": ".config", "CLAUDE_CONFIG_DIR": "", "CODEX_HOME": ".codex",
}  # fmt: skip
_CODE: Final = "XDG_CONFIG_HOME/Code/User"
_STORAGE: Final = f"{_CODE}/globalStorage"

_ALL: Final = (
    Client(
        "claude-desktop", "Claude Desktop",
        ("XDG_CONFIG_HOME/Claude/claude_desktop_config.json",),
    ),
    Client(
        "claude-code", "Claude Code", ("CLAUDE_CONFIG_DIR/.claude.json",), (".mcp.json",),
        holders=(("mcpServers",), ("projects", "*", "mcpServers")),
        again="end it before, as it writes this file itself, and start it again",
    ),
    Client("cursor", "Cursor", ("HOME/.cursor/mcp.json",), (".cursor/mcp.json",)),
    Client(
        "vscode", "VS Code", (f"{_CODE}/mcp.json",), (".vscode/mcp.json",), holders=(("servers",),)
    ),
    Client("windsurf", "Windsurf", ("HOME/.codeium/windsurf/mcp_config.json",)),
    Client(
        "zed", "Zed", ("XDG_CONFIG_HOME/zed/settings.json",), (".zed/settings.json",),
        holders=(("context_servers",),), again="it reads the file by itself",
    ),
    Client(
        "codex", "Codex", ("CODEX_HOME/config.toml",), (".codex/config.toml",),
        holders=(("mcp_servers",),),
    ),
    Client("gemini", "Gemini CLI", ("HOME/.gemini/settings.json",), (".gemini/settings.json",)),
    Client(
        "cline", "Cline",
        (f"{_STORAGE}/saoudrizwan.claude-dev/settings/cline_mcp_settings.json",),
    ),
    Client(
        "roo", "Roo Code", (f"{_STORAGE}/rooveterinaryinc.roo-cline/settings/mcp_settings.json",),
        (".roo/mcp.json",),
    ),
    Client(
        "opencode", "opencode",
        ("XDG_CONFIG_HOME/opencode/opencode.json", "XDG_CONFIG_HOME/opencode/opencode.jsonc"),
        ("opencode.json", "opencode.jsonc"), holders=(("mcp",), ("mcp", "servers")),
    ),
    Client("amazon-q", "Amazon Q", ("HOME/.aws/amazonq/mcp.json",), (".amazonq/mcp.json",)),
    Client("lm-studio", "LM Studio", ("HOME/.lmstudio/mcp.json",)),
)  # fmt: skip

CLIENTS: Final[Mapping[str, Client]] = {each.name: each for each in _ALL}
"""All known clients, by name."""
