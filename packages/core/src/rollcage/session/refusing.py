"""Calls that are refused before they are made: what the trace holds of them; nothing runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from rollcage.contract.arguments import Arguments
from rollcage.contract.asked import as_asked, secret_names
from rollcage.contract.contract import Contract
from rollcage.errors import ArgumentsInvalid
from rollcage.gate import FacadeGuard, Sealing
from rollcage.session.declare import declared_contracts
from rollcage.session.scope import Scope, asked
from rollcage.step.capture import on_record
from rollcage.step.driver import Driver
from rollcage.trace.constructors import call_refused
from rollcage.values.hiding import Seal
from rollcage.values.names import writable

__all__ = ["bind_refused", "put_on_record"]


def put_on_record(
    driver: Driver,
    seal: Sealing,
    scope: Scope,
    tool: Contract | str,
    arguments: Mapping[str, Any],
    *,
    reason: str,
    code: str,
    kind: Literal["tool", "model"],
    call_id: str,
) -> None:
    """Write that a call was refused, and why: see `Session.refused`.

    Args:
        driver: of the run.
        seal: hides what is secret in it.
        scope: where the call was made.
        tool: its contract, or the name of a tool that does not exist.
        arguments: as they were asked for.
        reason: see `Session.refused`, as the rest.
        code: the same.
        kind: the same.
        call_id: the same.
    """
    driver.check_process()
    if driver.closed or driver.ledger.halted is not None:
        return  # nothing is recorded any more
    if (framework := asked.get()) is not None:
        framework.reached = True
    contract = None if isinstance(tool, str) else tool
    known = [contract] if contract is not None else [*declared_contracts()]
    hidden = frozenset[str]().union(*map(secret_names, known))
    named = seal.hide_in_name(writable(tool)) if isinstance(tool, str) else tool.name
    if contract is not None and not code:
        why = contract.takes.why_not(arguments, seal)
        reason, code = why or reason, ArgumentsInvalid.code if why else "refused"
    event = call_refused(
        kind=kind,
        name=named,
        version="" if contract is None else contract.version,
        args=as_asked(arguments, seal, hidden),
        code=code or "tool_missing",
        reason=writable(reason) or f"there is no tool called {named!r}",
        branch=scope.branch,
        turn=None if scope.turn is None else scope.turn.number,
        slot=scope.slot,
        agent=seal.hide_in_name(scope.agent),
        call_id=seal.hide_in_name(writable(call_id) or scope.call_id),
        parent=None if scope.step is None else scope.step.number,
    )
    driver.run(on_record(event))
    with driver.lock:
        driver.ledger.stats.refused += 1


def bind_refused(
    facade: FacadeGuard | None,
    contract: Contract,
    given: Mapping[str, Any],
    seal: Seal,
    *,
    kind: Literal["tool", "model"],
) -> Arguments:
    """The arguments of a call that must not be made, for the trace.

    The validators of a tool that was never approved are not called either: its arguments are taken
    as they were given.

    Raises:
        ArgumentsInvalid: they do not pass the schema of a tool that was approved once.
    """
    if facade is not None and facade.check(contract, kind=kind, undo=True) is None:
        return contract.bind(given, seal)
    plain = Contract(name=contract.name, parameters={}, secret=contract.secret)
    try:
        return plain.bind(given, seal)
    except ArgumentsInvalid:
        return plain.bind({}, seal)
