"""Which tools a session's facade lets an agent see: the same for every framework."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, Final

from rollcage import Contract
from rollcage.errors import ContractError
from rollcage.gate import FacadeGuard
from rollcage.heart import Session

from rollcage_adapter.guards import GuardedTool, guard_of

__all__ = ["expose", "exposes", "facade_of", "guarded_contract"]

_log: Final = logging.getLogger("rollcage")


def guarded_contract(tool: Any) -> Contract | None:
    """The contract by which an adapter guards a framework's tool; None where none does.

    It is what `rollcage_governance.Registry.propose` takes for a tool that a framework made itself.
    """
    guard = guard_of(tool)
    return guard.contract if isinstance(guard, GuardedTool) else None


def facade_of(session: Session) -> FacadeGuard | None:
    """Return the facade among what decides on a session's calls; None if there is none."""
    deciding: tuple[object, ...] = session.gate.entries
    return next((each for each in deciding if isinstance(each, FacadeGuard)), None)


def expose(session: Session, tools: Iterable[Any]) -> None:
    """Refuse to give guarded tools to an agent where the session's facade does not.

    Raises:
        ToolRefused: the first that it does not give, why, and what to do next.
        ContractError: an adapter's tool that does not say its contract.
    """
    facade = facade_of(session)
    if facade is None:
        return
    for tool in tools:
        contract = guarded_contract(tool)
        if contract is None:
            raise ContractError(f"{tool!r} has no contract, so no facade can give it")
        verdict = facade.check(contract)
        if verdict is not None:
            raise facade.refusal(contract, verdict)


def exposes(session: Session, contract: Contract) -> bool:
    """Whether an agent gets to see a tool that a server lists by itself; one left out is logged."""
    facade = facade_of(session)
    verdict = None if facade is None else facade.check(contract)
    if facade is None or verdict is None:
        return True
    _log.warning("the agent does not get to see a tool: %s", facade.refusal(contract, verdict))
    return False
