"""Recorded values as text that can't command a terminal.

A trace is hostile input. `visible` removes the control characters of every displayed part.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from rollcage.trace import TAG

from rollcage_views.values import items_of, mapping_of

__all__ = [
    "arguments_text",
    "counted",
    "duration_text",
    "escape_json",
    "time_text",
    "utc_text",
    "value_text",
    "visible",
]

_DEEPEST: Final = 20  # levels of a value that are shown
_LONGEST: Final = 4000  # characters of one value that are read for a table

# C0 and C1 controls, characters that change the direction or hide in text, lone surrogates, tags.
_UNSAFE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e0fff]"
)
_NAMED: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def counted(number: int, noun: str) -> str:
    """Return a count with its noun: `1 run`, `2 runs`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def visible(text: str) -> str:
    """Return the text with every character that a terminal might act on as an escape."""
    return _UNSAFE.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    character = found.group()
    point = ord(character)
    if character in _NAMED:
        return _NAMED[character]
    return f"\\x{point:02x}" if point < 256 else f"\\u{{{point:x}}}"


def escape_json(text: str) -> str:
    """Return JSON with the same characters as `visible` in JSON's escapes: its meaning stays."""
    return _UNSAFE.sub(_json_escaped, text)


def _json_escaped(found: re.Match[str]) -> str:
    return json.dumps(found.group())[1:-1] if found.group() != "\x7f" else "\\u007f"


def time_text(microseconds: int) -> str:
    """Return a time as people in this time zone read it."""
    try:
        moment = datetime.fromtimestamp(microseconds / 1e6, tz=UTC).astimezone()
    except (OverflowError, ValueError, OSError):
        return "?"
    return moment.strftime("%Y-%m-%d %H:%M:%S")


def utc_text(microseconds: int) -> str:
    """Return a time in UTC, because a page is read in other time zones, too."""
    try:
        moment = datetime.fromtimestamp(microseconds // 1_000_000, tz=UTC)
    except (OverflowError, ValueError, OSError):
        return "?"
    return moment.strftime("%Y-%m-%d %H:%M:%SZ")


def duration_text(microseconds: int | None) -> str:
    """Return a duration, in the unit that people would use."""
    if microseconds is None:
        return ""
    if microseconds < 1000:
        return f"{microseconds} µs"
    if microseconds < 1_000_000:
        return f"{microseconds / 1e3:.1f} ms"
    return f"{microseconds / 1e6:.1f} s"


def arguments_text(arguments: Mapping[str, Any]) -> str:
    """Return a call's arguments as one line."""
    shown = (f"{visible(name)}={value_text(value)}" for name, value in arguments.items())
    return ", ".join(shown)


def value_text(encoded: Any, depth: int = 0) -> str:
    """Return a recorded value as one line of safe text; nothing of it is restored."""
    if depth > _DEEPEST:
        return "…"
    mapping, items = mapping_of(encoded), items_of(encoded)
    if mapping is not None:
        if TAG in mapping:
            return _tagged_text(mapping, depth)
        inside = (f"{visible(name)}: {value_text(v, depth + 1)}" for name, v in mapping.items())
        return f"{{{', '.join(inside)}}}"
    if items is not None:
        return f"[{', '.join(value_text(item, depth + 1) for item in items)}]"
    if isinstance(encoded, str):
        text = encoded if len(encoded) <= _LONGEST else f"{encoded[:_LONGEST]}…"
        return f'"{visible(text)}"'
    return visible(json.dumps(encoded))


def _tagged_text(encoded: Mapping[str, Any], depth: int) -> str:
    tag = visible(str(encoded[TAG]))
    if tag in ("secret", "redacted"):
        return f"<{tag}>"
    if tag == "blob":
        return (
            f"<{encoded.get('size', '?')} bytes in blob {visible(str(encoded.get('sha256')))[:12]}>"
        )
    if tag == "opaque":
        return f"<{visible(str(encoded.get('type', 'a value')))}, not recorded>"
    inner = value_text(encoded.get("value"), depth + 1)
    if tag in ("native", "model", "dataclass", "enum"):
        return f"{visible(str(encoded.get('type', tag)))}({inner})"
    return f"{tag}({inner})"
