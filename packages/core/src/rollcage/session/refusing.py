"""Calls that are refused before they become steps: what the log holds of them; nothing runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rollcage.contract.asked import as_asked, secret_names
from rollcage.contract.contract import Contract
from rollcage.errors import ArgumentsInvalid
from rollcage.gate.verdict import Verdict
from rollcage.replay.call import refusal
from rollcage.session.declare import declared_contracts
from rollcage.trace.keys import writable

if TYPE_CHECKING:
    from rollcage.calls.attempt import Attempt
    from rollcage.replay.call import Place

__all__ = ["put_on_record"]


def put_on_record(
    attempt: Attempt,
    place: Place,
    tool: Contract | str,
    arguments: Mapping[str, Any],
    *,
    reason: str,
    code: str,
    kind: str,
    call_id: str = "",
    rule: str = "",
) -> None:
    """Write that a call was refused, and why; nothing, once the attempt has halted or ended.

    Args:
        attempt: the attempt in which it was asked for.
        place: the place of the refused call.
        tool: its contract, or the name of a tool that does not exist.
        arguments: as they were asked for.
        reason: see `Session.refused`, as the rest.
        code: the same.
        kind: the same.
        call_id: the same.
        rule: the guard that refused it.
    """
    if attempt.closed or attempt.halted is not None:
        return
    contract = None if isinstance(tool, str) else tool
    hidden = frozenset[str]().union(
        *map(secret_names, declared_contracts() if contract is None else [contract])
    )
    name = writable(tool) if isinstance(tool, str) else tool.name
    if contract is not None and not code:
        why = contract.takes.why_not(arguments, attempt.seal)
        reason, code = why or reason, ArgumentsInvalid.code if why else "refused"
    reason = writable(reason) or (
        f"there is no tool called {name!r}" if contract is None else f"{name} was refused"
    )
    shown = as_asked(arguments, attempt.seal, hidden)
    verdict = Verdict("deny", reason, code or "tool_missing", rule)
    if call_id:
        place = dataclasses.replace(place, call_id=writable(call_id))
    with attempt.lock:
        turn = 0 if place.turn is None else place.turn.n
        if rule:
            attempt.stats.blocked += 1
        else:
            attempt.stats.refused += 1
        attempt.note(
            refusal(contract or name, kind, shown, verdict, place, turn=turn, slot=place.slot)
        )
