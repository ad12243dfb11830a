"""The state that a client returns with its answer: the question's call, sealed."""

from __future__ import annotations

import base64
import binascii
import hmac
import secrets
from typing import Final

import orjson
from rollcage import ApprovalRequest

__all__ = ["is_ours", "is_sealed_for", "once", "sealed"]

_PREFIX: Final = "rollcage1."


def sealed(request: ApprovalRequest, key: bytes) -> str:
    """Return the `requestState` of a question about a call: it can't be made without the key."""
    data = orjson.dumps([request.idempotency_key, request.key, request.policy])
    text = base64.urlsafe_b64encode(_mac(data, key) + data).decode()
    return _PREFIX + text


def once() -> str:
    """Return the `requestState` of a question that only the asking process can continue."""
    return _PREFIX + secrets.token_urlsafe(32)


def is_ours(state: object) -> bool:
    """Return whether a state looks like ours: others are the server's own."""
    return isinstance(state, str) and state.startswith(_PREFIX)


def is_sealed_for(state: object, request: ApprovalRequest, key: bytes) -> bool:
    """Return whether a state is intact, and of this very call under this policy."""
    if not isinstance(state, str):
        return False
    try:
        raw = base64.urlsafe_b64decode(state.removeprefix(_PREFIX))
    except (ValueError, binascii.Error):
        return False
    wanted = base64.urlsafe_b64decode(sealed(request, key).removeprefix(_PREFIX))
    return hmac.compare_digest(raw, wanted)


def _mac(data: bytes, key: bytes) -> bytes:
    return hmac.digest(key, b"rollcage mcp approval" + data, "sha256")
