"""The arguments of a refused call, as the trace may show them: as they were requested."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, cast

import orjson

from rollcage.contract.contract import Contract
from rollcage.fingerprint.identity import jcs
from rollcage.values.codec import TAG, encode_result, tagged
from rollcage.values.hiding import Seal, hidden

__all__ = ["as_asked", "secret_names"]


def as_asked(
    arguments: Mapping[str, Any], seal: Seal, secret: Collection[str] = ()
) -> dict[str, Any]:
    """Unvalidated arguments, in tagged form.

    A secret is shown as its HMAC, a value that has no encoding by its type alone.
    """
    try:
        shown: Any = {name: _shown(each, seal, name in secret) for name, each in arguments.items()}
        if all(isinstance(name, str) for name in shown) and TAG not in shown:
            orjson.dumps(shown)
        else:
            shown = encode_result(shown, seal).value
        return cast("dict[str, Any]", hidden(shown, seal).value)
    except (TypeError, ValueError, RecursionError):  # too deep for JSON, or for us
        return {TAG: "opaque", "type": "builtins.dict", "value": None}


def _shown(value: Any, seal: Seal, secret: bool) -> Any:  # noqa: FBT001 - of one caller
    result = encode_result(value, seal)
    if not secret:
        return result.value
    encoded = result.value
    if isinstance(encoded, dict) and cast("dict[str, Any]", encoded).get(TAG) == "secret":
        return cast("dict[str, Any]", encoded)
    return tagged("secret", seal("value:" + jcs(encoded).decode()))


def secret_names(contract: Contract) -> frozenset[str]:
    """The names of a tool's arguments that hold a secret, or may hold one anywhere inside."""
    schema: dict[str, Any] = contract.json_schema
    properties = cast("dict[str, Any]", schema.get("properties") or {})
    inside = {name for name, each in properties.items() if _is_secret(each, schema, set())}
    return contract.takes.secret_names | inside


def _is_secret(says: Any, whole: dict[str, Any], seen: set[str]) -> bool:
    """Whether a part of a JSON Schema marks anything in it as a password."""
    if isinstance(says, list):
        return any(_is_secret(each, whole, seen) for each in cast("list[object]", says))
    if not isinstance(says, dict):
        return False
    part = cast("dict[str, Any]", says)
    if part.get("format") == "password" or part.get("writeOnly") is True:
        return True
    named = part.get("$ref")
    if isinstance(named, str) and named not in seen:
        seen.add(named)
        found: Any = whole
        for step in named.removeprefix("#/").split("/"):
            found = cast("dict[str, Any]", found).get(step) if isinstance(found, dict) else None
        if _is_secret(found, whole, seen):
            return True
    return any(_is_secret(each, whole, seen) for each in part.values())
