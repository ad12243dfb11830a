"""The shape of recorded values: a trace is hostile input, so no shape is taken for granted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from rollcage.trace import TAG

__all__ = ["items_of", "mapping_of", "pairs_of", "tag_of"]


def mapping_of(encoded: Any) -> dict[str, Any] | None:
    """Return the value if it is a JSON object, plain or tagged."""
    return cast("dict[str, Any]", encoded) if isinstance(encoded, dict) else None


def items_of(encoded: Any) -> list[Any] | None:
    """Return the value if it is a JSON array."""
    return [*cast("Iterable[Any]", encoded)] if isinstance(encoded, list) else None


def tag_of(encoded: Any) -> str | None:
    """Return the tag of a tagged value; None for a plain one."""
    mapping = mapping_of(encoded)
    return None if mapping is None or TAG not in mapping else str(mapping[TAG])


def pairs_of(mapping: dict[str, Any]) -> list[tuple[Any, Any]]:
    """Return the pairs of a mapping, plain or tagged; none if it is not well formed."""
    if mapping.get(TAG) != "dict":
        return [(name, value) for name, value in mapping.items() if name != TAG]
    pairs = [items_of(pair) or [] for pair in items_of(mapping.get("value")) or []]
    return [(pair[0], pair[1]) for pair in pairs if len(pair) == 2]
