"""An MCP server's words to a model, pinned when the server is first used.

Without a facade, nobody has approved what a server says about its tools, prompts and resources.
Their definitions and the instructions that the server gives when it is first used count as
accepted; a later definition is kept from the model until a person has accepted it
(`rollcage mcp accept`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Literal, cast

import pydantic
from rollcage import Store
from rollcage.errors import StoreError
from rollcage.trace.store import every_key, store_option

__all__ = ["ListedKind", "Pinned", "PinnedList", "ServerPins", "pinned_servers", "server_key"]

ListedKind = Literal["tool", "prompt", "resource", "template"]
"""What a server lists; a `template` is a resource template."""

_KIND: Final = "servers"  # of the store's values
_MOST_WAITING: Final = 1_000  # changes of a list that are kept for a person; others are refused too
_FIELDS: Final = (
    "title", "description", "inputSchema", "outputSchema", "annotations", "arguments", "uri",
    "uriTemplate", "mimeType", "name",
)  # fmt: skip
_TIME: Final = re.compile(r"[\dTZ:.+-]{1,40}", re.ASCII)
_NAMED: Final[Mapping[ListedKind, str]] = {
    "tool": "name", "prompt": "name", "resource": "uri", "template": "uriTemplate",
}  # fmt: skip


class PinnedList(pydantic.BaseModel):
    """The accepted definitions of one list of a server, and the changes that wait for a person.

    Attributes:
        whole: whether the list was read to its end: a later entry is a change.
        known: by name, the accepted definitions as canonical JSON, the newest last. A resource and
            a template are named by their URI.
        new: by name, the definition that waits.
    """

    model_config = pydantic.ConfigDict(extra="forbid")

    whole: bool = False
    known: dict[str, list[str]] = {}
    new: dict[str, str] = {}


class Pinned(pydantic.BaseModel):
    """The accepted definitions of a server, and the changes that wait for a person.

    Attributes:
        name: the server's name in the user's configuration.
        lists: what the server lists, by kind.
        instructions: the accepted instructions, the newest last; empty text: the server gave none.
        new_instructions: the instructions that wait; None: none do.
    """

    model_config = pydantic.ConfigDict(extra="forbid")

    name: str
    lists: dict[ListedKind, PinnedList] = {}
    instructions: list[str] = []
    new_instructions: str | None = None

    def of(self, kind: ListedKind) -> PinnedList:
        """Return the list of this kind, to be changed."""
        return self.lists.setdefault(kind, PinnedList())

    @property
    def waiting(self) -> tuple[dict[ListedKind, dict[str, str]], str | None]:
        """Return what waits for a person: entries of lists by kind, and the instructions."""
        new: dict[ListedKind, dict[str, str]] = {
            kind: dict(each.new) for kind, each in self.lists.items() if each.new
        }
        return new, self.new_instructions

    def accept(self) -> None:
        """Accept everything that waits."""
        for each in self.lists.values():
            for name, text in each.new.items():
                each.known.setdefault(name, []).append(text)
            each.new = {}
        if self.new_instructions is not None:
            self.instructions.append(self.new_instructions)
        self.new_instructions = None


class ServerPins:
    """The pins of one server, in a store.

    Args:
        store: the store.
        key: the server's key: see `server_key`.
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

    def listed(
        self, definitions: Iterable[Mapping[str, Any]], *, is_whole: bool, kind: ListedKind = "tool"
    ) -> None:
        """Pin the entries of a list at its first reading; note the changes of a later one.

        Args:
            definitions: the entries of a page.
            is_whole: whether the list has no further page.
            kind: the kind of the definitions.

        Raises:
            StoreError: the pins can't be read or written.
        """
        texts = [(str(each[_NAMED[kind]]), _text(each, kind)) for each in definitions]

        def note(pinned: Pinned) -> None:
            found = pinned.of(kind)
            for name, text in texts:
                known = found.known.get(name)
                if known is None and not found.whole:
                    found.known[name] = [text]
                elif known is not None and text in known:
                    found.new.pop(name, None)
                elif name in found.new or len(found.new) < _MOST_WAITING:
                    found.new[name] = text
            found.whole = found.whole or is_whole

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

    def accepts(self, definition: Mapping[str, Any], kind: ListedKind = "tool") -> bool:
        """Return whether a definition is accepted, as the pins were read last."""
        known = self._pinned.of(kind).known.get(str(definition[_NAMED[kind]]), ())
        return _text(definition, kind) in known

    def change_of(
        self, name: str, definition: Mapping[str, Any] | None, kind: ListedKind = "tool"
    ) -> str:
        """Return why a tool is not called, for a model; empty if its definition is accepted.

        The text names the changed fields, and quotes nothing that the server wrote in them.

        Args:
            name: the tool, or another entry of a list.
            definition: its definition in the server's list; None if the list does not have it.
            kind: the kind of the definition.

        Raises:
            StoreError: the pins can't be read.
        """
        if definition is not None and self.accepts(definition, kind):
            return ""
        self._pinned = self.pinned  # a person may have accepted it since
        known = self._pinned.of(kind).known.get(name)
        if definition is None:
            return f"the server lists {name} no more: it is not called" if known else ""
        if self.accepts(definition, kind):
            return ""
        if not known:
            return f"{name} was no {kind} of the server when it was first used. {self._remedy}"
        changed = _changed(json.loads(known[-1]), _worded(definition, kind))
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


def server_key(
    command: Sequence[str] = (), url: str = "", cwd: Path | None = None, *, form: str = ""
) -> str:
    """Return the key of a server, by the way in which it is reached.

    A relative path in its command is made absolute: in another folder, it is another server.

    Args:
        command: the program and its arguments, for a server that is started.
        url: its endpoint, for a server that is reached by HTTP.
        cwd: its working directory; None: this process's.
        form: the form of the definitions, if it is not the form of the protocol.
    """
    folder = Path.cwd() if cwd is None else cwd
    parts = [str((folder / each).resolve()) if _is_in(folder, each) else each for each in command]
    way = [parts, url, form] if form else [parts, url]
    return sha256(json.dumps(way).encode()).hexdigest()[:12]


def _is_in(folder: Path, part: str) -> bool:
    try:
        return bool(part) and not Path(part).is_absolute() and (folder / part).exists()
    except (OSError, ValueError):  # too long for a path, or with a NUL
        return False


def pinned_servers(store: Store) -> list[ServerPins]:
    """Return the pins of all servers that were used with a store, ordered by key."""
    return [ServerPins(store, key, "") for key in every_key(store, _KIND)]


def _text(definition: Mapping[str, Any], kind: ListedKind) -> str:
    return json.dumps(_worded(definition, kind), sort_keys=True, separators=(",", ":"))


def _worded(definition: Mapping[str, Any], kind: ListedKind) -> Mapping[str, Any]:
    """Return a definition without the size and the time of a resource, which have no words."""
    if kind != "resource":
        return definition
    found = dict(definition)
    if type(found.get("size")) is int:
        del found["size"]
    notes: Any = found.get("annotations")
    if isinstance(notes, dict):
        time: Any = cast("Mapping[str, Any]", notes).get("lastModified")
        if isinstance(time, str) and _TIME.fullmatch(time):
            found["annotations"] = {**notes}
            del found["annotations"]["lastModified"]
    return found


def _changed(old: object, new: Mapping[str, Any]) -> list[str]:
    """Return the names of the fields that differ; other names are the server's own text."""
    was = cast("Mapping[str, Any]", old) if isinstance(old, dict) else {}
    names = [name for name in {**was, **new} if was.get(name) != new.get(name)]
    known: list[str] = [name for name in _FIELDS if name in names]
    return known if len(known) == len(names) else [*known, "other fields"]
