"""The servers in a client's file: how each is started, and the change that guards it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, Protocol, cast

from rollcage_mcp.install.clients import Client
from rollcage_mcp.install.errors import ConfigInvalid
from rollcage_mcp.install.json_text import HIDDEN, JsonText, Place, inserted
from rollcage_mcp.install.toml_text import TomlText

__all__ = ["Config", "ServerEntry", "State", "Text"]

State = Literal["bare", "guarded", "left"]

_SECRET: Final = re.compile(
    r"key|token|secret|passw|credential|authorization|bearer|cookie|://[^/\s]*@", re.IGNORECASE
)


class Text(Protocol):
    """A document that is edited in place."""

    text: str

    @property
    def data(self) -> Any:
        """Return its content."""
        ...

    def raw(self, place: Place) -> str | None:
        """Return the text of a value; None without one."""
        ...

    def changed(self, changes: Mapping[Place, str | None]) -> str:
        """Return the document with other values; None removes one. Raises `ConfigInvalid`."""
        ...

    def quoted(self, text: str) -> str:
        """Return a text as a value."""
        ...

    def value_of(self, text: str) -> Any:
        """Return the value of a text."""
        ...

    def shown(self, kept: Mapping[Place, Any]) -> str:
        """Return the document with all values hidden except those at these places."""
        ...


@dataclasses.dataclass(frozen=True)
class ServerEntry:
    """A server in a client's file.

    Attributes:
        name: the client's name for it.
        place: its place.
        command: the place of its command.
        args: the place of its arguments; None if the command holds them.
        starts: the command and its arguments.
        state: whether it is guarded, is not, or can't be.
        why: why it can't be guarded; empty if it can.
    """

    name: str
    place: Place
    command: Place
    args: Place | None
    starts: tuple[str, ...]
    state: State
    why: str = ""

    @property
    def values(self) -> tuple[Place, ...]:
        """The places of the values that guarding it changes."""
        return (self.command,) if self.args is None else (self.command, self.args)

    @property
    def where(self) -> str:
        """Its part of the file; empty if there is only one."""
        return self.place[1] if self.place[0] == "projects" else ""


class Config:
    """The servers in a client's file.

    Args:
        client: its client.
        text: its content.

    Raises:
        ConfigInvalid: the file can't be read.
    """

    def __init__(self, client: Client, text: str) -> None:
        self.client = client
        self.text: Text = TomlText(text) if client.is_toml else JsonText(text)
        if not isinstance(self.text.data, dict):
            raise ConfigInvalid("it is not an object")
        self.entries = [
            _entry((*holder, name), each)
            for pattern in client.holders
            for holder, found in _at(self.text.data, pattern)
            for name, each in found.items()
            if not (pattern == ("mcp",) and _is_holder(name, each))
        ]

    def value(self, place: Place) -> Any:
        """Return a value; None without one."""
        return _get(self.text.data, place)

    def guarded(self, entry: ServerEntry, guard: Sequence[str]) -> dict[Place, str | None]:
        """Return the values that guard a server.

        Args:
            entry: the server.
            guard: `rollcage mcp run …`, including the `--`.
        """
        quoted = [self.text.quoted(each) for each in guard]
        own = self.text.raw(entry.command) or ""
        if entry.args is None:
            return {entry.command: inserted(own, quoted)}
        args = self.text.raw(entry.args) or "[]"
        return {entry.command: quoted[0], entry.args: inserted(args, [*quoted[1:], own])}

    def shown(self, chosen: Sequence[Place]) -> str:
        """Return the file for display, with only the commands of these servers.

        Args:
            chosen: the servers.
        """
        kept: dict[Place, Any] = {}
        for each in self.entries:
            if each.place in chosen:
                kept |= {place: value for place in each.values
                         if (value := _hidden(self.value(place))) is not None}  # fmt: skip
        return self.text.shown(kept)


def _at(data: Any, pattern: Sequence[str]) -> Iterator[tuple[Place, Mapping[str, Any]]]:
    """Yield the values that match a pattern of names."""
    if not isinstance(data, Mapping):
        return
    named = cast("Mapping[str, Any]", data)
    if not pattern:
        yield (), named
        return
    first, *rest = pattern
    for name in named if first == "*" else [first] if first in named else []:
        for place, found in _at(named[name], rest):
            yield (name, *place), found


def _get(data: Any, place: Place) -> Any:
    for name in place:
        data = data.get(name) if isinstance(data, Mapping) else None
    return data


def _is_holder(name: str, each: Any) -> bool:
    """Return whether a key is not a server of opencode, but its second version's container."""
    return name == "servers" and isinstance(each, Mapping) and "type" not in each


def _entry(place: Place, each: Any) -> ServerEntry:
    name, command, args = place[-1], (*place, "command"), (*place, "args")
    fields = cast("Mapping[str, Any]", each) if isinstance(each, Mapping) else {}
    own: Any = fields.get("command")
    given: Any = fields.get("args")
    if isinstance(own, Mapping):  # an older form of Zed
        command, args = (*command, "path"), (*command, "args")
        own, given = own.get("path"), own.get("args")
    if isinstance(own, list):
        starts: list[Any] = [*own]
        return _judged(ServerEntry(name, place, command, None, (), "left"), starts, given)
    starts = [own, *(given if isinstance(given, list) else [])]
    if own is None:
        why = "it is reached by HTTP" if _URLS & fields.keys() else "it names no command"
        return ServerEntry(name, place, command, args, (), "left", why)
    wrong = given if not isinstance(given, list | None) else None
    return _judged(ServerEntry(name, place, command, args, (), "left"), starts, wrong)


_URLS: Final = {"url", "httpUrl", "serverUrl", "serverURL"}


def _judged(entry: ServerEntry, starts: list[Any], wrong: Any) -> ServerEntry:
    """Return the server with its state."""
    words = [each for each in starts if isinstance(each, str)]
    entry = dataclasses.replace(entry, starts=tuple(words))
    if wrong is not None or not words or len(words) < len(starts) or not words[0]:
        return dataclasses.replace(entry, why="its command and arguments are not strings")
    head = words[: words.index("--")] if "--" in words else words
    ours = [at for at, each in enumerate(head) if Path(each).name == "rollcage"]
    if any(head[at + 1 : at + 3] == ["mcp", "run"] for at in ours):
        return dataclasses.replace(entry, state="guarded")
    if any(head[at + 1 : at + 2] == ["mcp"] for at in ours):
        return dataclasses.replace(entry, why="it is a server of Rollcage itself")
    if any(each.isspace() for each in words[0]) and not Path(words[0]).exists():
        return dataclasses.replace(
            entry, why="its command is a whole command line: move what follows the program to args"
        )
    return dataclasses.replace(entry, state="bare")


def _hidden(value: Any) -> Any:
    """Return a command or its arguments, without possible secrets."""
    if not isinstance(value, list):
        return value
    found: list[Any] = []
    follows = False
    for each in value:
        flag, equals, _ = each.partition("=") if isinstance(each, str) else ("", "", "")
        if follows:
            found.append(HIDDEN)
        elif isinstance(each, str) and _SECRET.search(each):
            is_flag = each.startswith("-")
            found.append(
                each if is_flag and not equals else f"{flag}={HIDDEN}" if is_flag else HIDDEN
            )
        else:
            found.append(each)
        follows = isinstance(each, str) and each.startswith("-") and not equals and bool(
            _SECRET.search(each) or each in ("-H", "--header", "-e", "--env")
        )  # fmt: skip
    return found
