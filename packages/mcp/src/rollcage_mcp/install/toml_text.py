"""TOML that is edited in place, by tomlkit: comments and formatting stay."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, cast

import tomlkit
import tomlkit.exceptions

from rollcage_mcp.install.errors import ConfigInvalid
from rollcage_mcp.install.json_text import HIDDEN, Place

__all__ = ["TomlText"]

_COMMENT: Final = re.compile(r"^\s*#.*$", re.MULTILINE)


class TomlText:
    """A TOML document.

    Args:
        text: its whole text.

    Raises:
        ConfigInvalid: the text is not TOML.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        try:
            self.data: dict[str, Any] = self._parsed().unwrap()
        except (tomlkit.exceptions.TOMLKitError, ValueError, RecursionError) as error:
            raise ConfigInvalid(f"it is not TOML: {str(error) or type(error).__name__}") from None

    def _parsed(self) -> tomlkit.TOMLDocument:
        return tomlkit.parse(self.text)

    def raw(self, place: Place) -> str | None:
        """Return the text of a value; None without one."""
        found: Any = self._parsed()
        for name in place:
            if not isinstance(found, Mapping) or name not in found:
                return None
            found = cast("Any", found)[name]
        return str(found.as_string())

    def changed(self, changes: Mapping[Place, str | None]) -> str:
        """Return the document with other values; None removes one."""
        document = self._parsed()
        for place, text in changes.items():
            holder: Any = document
            for name in place[:-1]:
                holder = holder[name]
            if text is None:
                holder.pop(place[-1], None)
            else:
                holder[place[-1]] = cast("Any", tomlkit.parse(f"value = {text}"))["value"]
        return tomlkit.dumps(document)

    def quoted(self, text: str) -> str:
        """Return a text as a value."""
        return tomlkit.string(text).as_string()

    def value_of(self, text: str) -> Any:
        """Return the value of a text."""
        return TomlText(f"value = {text}").data["value"]

    def shown(self, kept: Mapping[Place, Any]) -> str:
        """Return the document with all comments, and all other values, hidden."""
        document = self._parsed()
        _hide(document, (), kept)
        return _COMMENT.sub("#…", tomlkit.dumps(document))


def _hide(holder: Any, place: Place, kept: Mapping[Place, Any]) -> None:
    names: list[Any] = list(holder) if hasattr(holder, "keys") else [*range(len(holder))]
    for name in names:
        inner = (*place, str(name))
        value = holder[name]
        if inner in kept:
            holder[name] = kept[inner]
        elif isinstance(value, Mapping | list):
            _hide(value, inner, kept)
        elif not isinstance(value, bool):
            holder[name] = HIDDEN
