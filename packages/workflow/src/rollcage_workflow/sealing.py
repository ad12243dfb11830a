"""The format of commands and their results: changes need the store's key."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Any, Final, cast

import orjson
from rollcage import Store
from rollcage.trace.seal import StoreSeal

from rollcage_workflow.errors import CommandCorrupt

__all__ = ["opened", "sealed"]

_FORMAT: Final = "rollcage/command/1"


def sealed(store: Store, key: str, fields: Mapping[str, Any]) -> bytes:
    """Return the document of a command, or of its result, under its key."""
    document = {"format": _FORMAT, "key": key, "content": fields}
    return orjson.dumps({**document, "mac": _mac(store, document)})


def opened(store: Store, key: str, data: bytes) -> dict[str, Any]:
    """Return a document's content.

    Raises:
        CommandCorrupt: the document was not written under this key.
    """
    try:
        document = orjson.loads(data)
        mac = str(document.pop("mac"))
        whole = hmac.compare_digest(mac.encode(), _mac(store, document).encode())
        fine = whole and document["format"] == _FORMAT and document["key"] == key
        fields = cast("dict[str, Any]", document["content"])
    except (ValueError, TypeError, LookupError, AttributeError):
        fine, fields = False, {}
    if not fine:
        raise CommandCorrupt(f"the command {key} was changed, or is incomplete")
    return fields


def _mac(store: Store, document: Mapping[str, Any]) -> str:
    data = orjson.dumps(document, option=orjson.OPT_SORT_KEYS)
    return StoreSeal(store)("rollcage command" + data.decode())
