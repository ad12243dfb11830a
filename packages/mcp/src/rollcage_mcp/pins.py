"""A server's words to a model, pinned when the server is first used.

Without a facade, nobody has approved what a server's tools say about themselves. The tools and the
instructions that the server gives when it is first used count as accepted; whatever it gives
later is kept from the model until a person has accepted it (`rollcage mcp accept`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, cast

import pydantic
from rollcage import Store
from rollcage.errors import StoreError
from rollcage.trace.store import every_key, store_option

__all__ = ["Pinned", "ServerPins", "identity", "pinned_servers"]

_KIND: Final = "servers"  # of the store's values
_MOST_WAITING: Final = 1_000  # changed tools that are kept for a person; others are refused as well
_FIELDS: Final = ("title", "description", "inputSchema", "outputSchema", "annotations")


class Pinned(pydantic.BaseModel):
    """What is accepted of a server, and what waits for a person.

    Attributes:
        name: the server's name in the user's configuration.
        whole: whether its list of tools was read to its end: a later tool is a change.
        tools: by name, the accepted definitions as canonical JSON, the newest last.
        instructions: the accepted instructions, the newest last; empty text: the server gave none.
        new_tools: by name, the definition that waits.
        new_instructions: the instructions that wait; None: none do.
    """

    model_config = pydantic.ConfigDict(extra="forbid")

    name: str
    whole: bool = False
    tools: dict[str, list[str]] = {}
    instructions: list[str] = []
    new_tools: dict[str, str] = {}
    new_instructions: str | None = None

    def accept(self) -> None:
        """Accept everything that waits."""
        for name, text in self.new_tools.items():
            self.tools.setdefault(name, []).append(text)
        self.new_tools = {}
        if self.new_instructions is not None:
            self.instructions.append(self.new_instructions)
        self.new_instructions = None


class ServerPins:
    """The pins of one server, in a store.

    Args:
        store: the store.
        key: the server's key, as `identity` gives it.
        name: the server's name in the user's configuration.
    """

    def __init__(self, store: Store, key: str, name: str) -> None:
        self._store = store
        self._name = name
        self._pinned = Pinned(name=name)
        self.key = key

    @property
    def pinned(self) -> Pinned:
        """Read the pins.

        Raises:
            StoreError: they can't be read, or are damaged.
        """
        return self._read()[1]

    def listed(self, definitions: Iterable[Mapping[str, Any]], *, is_whole: bool) -> None:
        """Pin the tools of a list that is read for the first time; note the changes of a later one.

        Args:
            definitions: the tools of a page.
            is_whole: whether the list has no further page.

        Raises:
            StoreError: the pins can't be read or written.
        """
        texts = [(str(each["name"]), _text(each)) for each in definitions]

        def note(pinned: Pinned) -> None:
            for name, text in texts:
                known = pinned.tools.get(name)
                if known is None and not pinned.whole:
                    pinned.tools[name] = [text]
                elif known is not None and text in known:
                    pinned.new_tools.pop(name, None)
                elif name in pinned.new_tools or len(pinned.new_tools) < _MOST_WAITING:
                    pinned.new_tools[name] = text
            pinned.whole = pinned.whole or is_whole

        self.update(note)

    def greeted(self, instructions: str) -> None:
        """Pin the instructions of the first greeting; note the changes of a later one.

        Raises:
            StoreError: the pins can't be read or written.
        """

        def note(pinned: Pinned) -> None:
            if not pinned.instructions:
                pinned.instructions.append(instructions)
            given = instructions in pinned.instructions
            pinned.new_instructions = None if given else instructions

        self.update(note)

    def accepts(self, definition: Mapping[str, Any]) -> bool:
        """Return whether a tool's definition is accepted, as the pins were read last."""
        return _text(definition) in self._pinned.tools.get(str(definition["name"]), ())

    def change_of(self, name: str, definition: Mapping[str, Any] | None) -> str:
        """Return why a tool is not called, for a model; empty if its definition is accepted.

        The text names the changed fields, and quotes nothing that the server wrote in them.

        Args:
            name: the tool.
            definition: its definition in the server's list; None if the list does not have it.

        Raises:
            StoreError: the pins can't be read.
        """
        if definition is not None and self.accepts(definition):
            return ""
        self._pinned = self.pinned  # a person may have accepted it since
        known = self._pinned.tools.get(name)
        if definition is None:
            return f"the server lists {name} no more: it is not called" if known else ""
        if self.accepts(definition):
            return ""
        if not known:
            return f"{name} was no tool of the server when it was first used. {self._remedy}"
        changed = _changed(json.loads(known[-1]), definition)
        return f"{name} was changed by the server ({', '.join(changed)}). {self._remedy}"

    def change_of_instructions(self, instructions: str) -> str:
        """Return why the server's instructions are withheld; empty if they are accepted."""
        if instructions in self._pinned.instructions:
            return ""
        return f"the server's instructions to the model were changed. {self._remedy}"

    def update(self, change: Callable[[Pinned], None]) -> Pinned:
        """Change the pins, and return them.

        Args:
            change: may be called again, if another process changes them meanwhile.

        Raises:
            StoreError: they can't be read or written, or are damaged.
        """
        while True:
            was, pinned = self._read()
            change(pinned)
            new = pinned.model_dump_json().encode()
            if new == was or self._store.swap(_KIND, self.key, was, new):
                self._pinned = pinned
                return pinned

    def _read(self) -> tuple[bytes | None, Pinned]:
        data = self._store.get(_KIND, self.key)
        if data is None:
            return None, Pinned(name=self._name)
        try:
            return data, Pinned.model_validate_json(data)
        except pydantic.ValidationError:
            raise StoreError(
                f"the pins of the MCP server {self.key} in {self._store.url} are damaged: put them "
                f"back from a backup"
            ) from None

    @property
    def _remedy(self) -> str:
        command = f"rollcage mcp accept {self.key}{store_option(self._store)}"
        return f"It is withheld until a person has seen the change and accepted it: {command}"


def identity(command: Sequence[str], url: str, cwd: Path | None) -> str:
    """Return the key of a server, by the way in which it is reached.

    A relative path in its command is made absolute: in another folder, it is another server.

    Args:
        command: the program and its arguments, for a server that is started.
        url: its endpoint, for a server that is reached by HTTP.
        cwd: its working directory; None: this process's.
    """
    folder = Path.cwd() if cwd is None else cwd
    parts = [str((folder / each).resolve()) if _is_in(folder, each) else each for each in command]
    return sha256(json.dumps([parts, url]).encode()).hexdigest()[:12]


def _is_in(folder: Path, part: str) -> bool:
    try:
        return bool(part) and not Path(part).is_absolute() and (folder / part).exists()
    except (OSError, ValueError):  # too long for a path, or with a NUL
        return False


def pinned_servers(store: Store) -> list[ServerPins]:
    """Return the pins of all servers that were used with a store, ordered by key."""
    return [ServerPins(store, key, "") for key in every_key(store, _KIND)]


def _text(definition: Mapping[str, Any]) -> str:
    return json.dumps(definition, sort_keys=True, separators=(",", ":"))


def _changed(old: object, new: Mapping[str, Any]) -> list[str]:
    """Return the names of the fields that differ; other names are the server's own text."""
    was = cast("Mapping[str, Any]", old) if isinstance(old, dict) else {}
    names = [name for name in {**was, **new} if was.get(name) != new.get(name)]
    known: list[str] = [name for name in _FIELDS if name in names]
    return known if len(known) == len(names) else [*known, "other fields"]
