"""Remove credentials from displayed values: undeclared ones, which a detector finds."""

from __future__ import annotations

import base64
import functools
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from rollcage.errors import DetectorMissing
from rollcage.trace import TAG

from rollcage_views.text import arguments_text, value_text, visible
from rollcage_views.values import items_of, mapping_of, pairs_of

_IS_COMPLETE: Final = find_spec("rollcage_policy") is not None
"""Whether credentials can be found. Code that reads runs and shows no value does without."""

if TYPE_CHECKING or _IS_COMPLETE:
    from rollcage_policy.credentials import detect, hide_secrets, names_secret

__all__ = ["Screen"]

_LONGEST: Final = 2000  # characters of one field that are shown
_SHORT: Final = 200  # characters of a text that is remembered as clean
_READ: Final = 8000  # characters of one text that are searched for it: nothing hides at the edge
_WHOLE: Final = 32_000  # characters of all the texts of one field that are searched
_IN_BASE64: Final = ("bytes", "bytearray", "str")
_DEEPEST: Final = 20  # levels, as many as are shown


class Screen:
    """Convert a trace's values into lines that are safe to print, to send and to keep.

    Attributes:
        found: how many credentials were removed, by kind.

    Raises:
        DetectorMissing: the package that finds credentials is not installed.
    """

    def __init__(self) -> None:
        if not _IS_COMPLETE:
            raise DetectorMissing(
                "values are shown without credentials, and the package that finds these is not "
                "installed: pip install 'rollcage-views[audit]'"
            )
        self.found: dict[str, int] = {}

    def value(self, encoded: Any) -> Any:
        """Return a recorded value, with long parts cut."""
        return self._value(encoded, 0, _WHOLE)[0]

    def fields(self, mapping: Mapping[str, Any]) -> dict[str, Any]:
        """Return recorded values by name, each like `value`; a name may mark a credential."""
        return {name: self._named(name, value, 0, _WHOLE)[0] for name, value in mapping.items()}

    def words_of(self, text: str) -> str:
        """Return a text, with its lines."""
        return self._screened(text[:_READ])

    def text(self, text: str) -> str:
        """Return a text as one line."""
        return _cut(visible(self._screened(text[:_READ])))

    def arguments(self, arguments: Mapping[str, Any]) -> str:
        """Return a call's arguments as one line."""
        shown, _ = self._fields(arguments, 0, _WHOLE)
        return _cut(arguments_text(shown))

    def words(self, value: Any) -> str:
        """Return the user input as one line."""
        texts = items_of(value)
        if texts is None:
            return _cut(value_text(value))
        shown, _ = self._value(texts, 0, _WHOLE)
        return _cut(" / ".join(visible(str(each)) for each in shown))

    def outcome(self, outcome: Mapping[str, Any]) -> str:
        """Return the result of a call, or its error, as one line."""
        if outcome.get("error"):
            error = mapping_of(outcome["error"]) or {}
            return self.text(f"{error.get('type')}: {error.get('message')}")
        if outcome.get("status") == "ok":
            lossy = outcome.get("lossy")
            mark = f"not replayable: {self.text(lossy)}; " if lossy else ""
            return _cut(mark + value_text(self._value(outcome.get("value"), 0, _WHOLE)[0]))
        return ""

    def _screened(self, text: str) -> str:
        return text if _is_clean(text) else hide_secrets(text, self._stand_in)

    def _stand_in(self, kind: str, _credential: str) -> str:
        self.found[kind] = self.found.get(kind, 0) + 1
        return f"<{kind}>"

    def _value(self, encoded: Any, depth: int, left: int) -> tuple[Any, int]:
        """Return a recorded value without credentials, and how much may still be read."""
        if left <= 0 or depth > _DEEPEST:
            return "…", 0
        if isinstance(encoded, str):
            cut = "…" if len(encoded) > _READ else ""
            return f"{self._screened(encoded[:_READ])}{cut}", left - len(encoded)
        mapping, items = mapping_of(encoded), items_of(encoded)
        if mapping is not None:
            return self._fields(mapping, depth, left)
        if items is None:
            return encoded, left - 8
        kept: list[Any] = []
        for item in items:
            value, left = self._value(item, depth + 1, left)
            kept.append(value)
            if left <= 0:
                break
        return kept, left

    def _fields(
        self, mapping: Mapping[str, Any], depth: int, left: int
    ) -> tuple[dict[str, Any], int]:
        tag = mapping.get(TAG)
        if tag == "dict":
            shown, left = self._pairs(mapping, depth, left)
            return {TAG: "dict", "value": shown}, left
        if tag in _IN_BASE64 and isinstance(mapping.get("value"), str):
            return self._bytes(mapping), left - len(mapping["value"])
        kept: dict[str, Any] = {}
        for name, value in mapping.items():
            if left <= 0:
                break
            if tag is None:
                kept[self._screened(name[:_READ])], left = self._named(name, value, depth, left)
            else:
                kept[name], left = self._value(value, depth + 1, left)
        return kept, left

    def _pairs(
        self, mapping: Mapping[str, Any], depth: int, left: int
    ) -> tuple[list[list[Any]], int]:
        kept: list[list[Any]] = []
        for name, value in pairs_of(dict(mapping)):
            if left <= 0:
                break
            key, left = self._value(name, depth + 1, left)
            shown, left = self._named(name, value, depth, left)
            kept.append([key, shown])
        return kept, left

    def _named(self, name: Any, value: Any, depth: int, left: int) -> tuple[Any, int]:
        """Return a value under a name, which may mark a credential."""
        if isinstance(name, str) and isinstance(value, str) and value and names_secret(name):
            return self._stand_in("Secret Keyword", value), left - len(value)
        return self._value(value, depth + 1, left - 8)

    def _bytes(self, mapping: Mapping[str, Any]) -> dict[str, Any]:
        """Return bytes unchanged, or a stand-in if they hold a credential."""
        try:
            held = base64.b64decode(mapping["value"][:_READ]).decode("utf-8", "replace")
        except ValueError:  # a trace is hostile input
            held = mapping["value"]
        found = detect(held)
        value = self._stand_in(found[0].kind, held) if found else mapping["value"][:_READ]
        return {TAG: mapping[TAG], "value": value}


def _is_clean(text: str) -> bool:
    """Return whether there is nothing to remove.

    Names, and other short texts, are remembered because they repeat.
    """
    return not detect(text) if len(text) > _SHORT else _is_short_clean(text)


@functools.lru_cache(maxsize=4096)
def _is_short_clean(text: str) -> bool:
    return not detect(text)


def _cut(text: str) -> str:
    """Cut a line for display, and remove credentials that show only in the cut form."""
    text = text if _is_clean(text) else hide_secrets(text, lambda kind, _: f"<{kind}>")
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
