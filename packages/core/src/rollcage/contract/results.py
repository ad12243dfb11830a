"""Encode a body's result for the trace, and restore it.

Each result is decoded again as soon as it is recorded, which reveals at once a result that can't be
replayed.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from typing import Any, Final

from rollcage.contract.contract import Contract
from rollcage.errors import NotReplayableWarning
from rollcage.values.codec import TAG, encode_result, same_encoding
from rollcage.values.decoding import Strange, decode, decode_result
from rollcage.values.hiding import Seal
from rollcage.values.registered import Types

__all__ = ["given_back", "recorded", "warn_of"]

_NAMING: Final = frozenset({"enum", "model", "dataclass", "subclass", "url"})


def recorded(contract: Contract, value: Any, seal: Seal, types: Types) -> dict[str, Any]:
    """Return the fields of an outcome with a value, and whether it can be replayed."""
    result = encode_result(value, seal, typed=contract.typed, types=types)
    flaws = result.flaws
    if result.needs_type and not flaws:
        flaws = _shown(contract, result.value, seal, types)
        if flaws and contract.typed:  # the class that the return type does not restore
            flaws = encode_result(value, seal, types=types).flaws or flaws
    if flaws and contract.returns is str and isinstance(value, str):
        return recorded(contract, str.__str__(value), seal, types)  # the text is the result
    if flaws:
        return {"value": result.value, "lossy": "; ".join(flaws[:5])}
    return {"value": result.value, "typed": True} if result.needs_type else {"value": result.value}


def given_back(contract: Contract, outcome: Mapping[str, Any], encoded: Any, types: Types) -> Any:
    """Return the value of an outcome; `encoded` is its encoding, if kept as a blob.

    Raises:
        Exception: the value can't be restored: hostile data, or a class's own validation.
    """
    try:
        return decode_result(encoded, types, framework=contract.framework)
    except Strange:
        if not (outcome.get("typed") and contract.typed):
            raise
        plain = decode(encoded, framework=contract.framework)
        value = contract.revive(plain)
        # Any other type takes plain data too, and gives them back as they are.
        again = encode_result(value, str, typed=True).value
        if not same_encoding(_outline(again), _outline(encoded)):
            raise
        return value


def warn_of(contract: Contract, outcome: Mapping[str, Any]) -> NotReplayableWarning | None:
    """Warn that a recorded write's result can't be replayed.

    The warning is returned if the program's filters turn warnings into errors: it is then raised
    after the step's end, never in place of it.
    """
    if contract.effect not in ("write", "scope"):
        return None  # it just runs again
    # Without the step's number, so that Python shows it once for each tool and place in the code.
    text = (
        f"{contract.name} was performed, but its result can't be replayed: {outcome['lossy']}. A "
        f"resume halts at it until its result is recorded: "
        f"rollcage resolve RUN STEP --happened --result JSON"
    )
    try:
        warnings.warn(NotReplayableWarning(text, contract.name), stacklevel=_outside())
    except NotReplayableWarning as warning:
        return warning
    return None


def _outside() -> int:
    """Return the stack level of the calling code outside of Rollcage."""
    frame, level = sys._getframe(1), 1  # noqa: SLF001 - as warnings.warn does itself
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("rollcage"):
        frame, level = frame.f_back, level + 1
    return level


def _shown(contract: Contract, encoded: Any, seal: Seal, types: Types) -> list[str]:
    """Check that a value is restored unchanged."""
    try:
        value = given_back(contract, {"typed": True}, encoded, types)
        again = encode_result(value, seal, typed=True, types=types)
    except Exception as error:  # noqa: BLE001 - validators are the user's own
        return [f"$: its class refuses the recorded fields: {type(error).__name__}"]
    if not again.flaws and same_encoding(again.value, encoded):
        return []
    return ["$: it does not decode to an equal value"]


def _outline(encoded: Any) -> Any:
    """Return an encoding with its classes' names, but not their modules."""
    if isinstance(encoded, list):
        return [_outline(each) for each in encoded]
    if not isinstance(encoded, dict):
        return encoded
    if encoded.get(TAG) in _NAMING:
        encoded = {name: encoded.get(name) for name in (TAG, "type", "value")}
    return {name: _outline(each) for name, each in encoded.items()}
