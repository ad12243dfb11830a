"""Which tools a session's facade lets an agent see: the same for every framework."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, Final, Protocol, runtime_checkable

from rollcage import Contract, Session, Verdict
from rollcage.errors import ContractError, ToolRefused

from rollcage_adapter.guards import GuardedTool, guard_of

__all__ = ["expose", "exposes", "facades_of", "guarded_contract", "refused_by"]

_log: Final = logging.getLogger("rollcage")


def guarded_contract(tool: Any) -> Contract | None:
    """The contract by which an adapter guards a framework's tool; None where none does.

    It is what `rollcage_governance.Registry.propose` takes for a tool that a framework made itself.
    """
    guard = guard_of(tool)
    return guard.contract if isinstance(guard, GuardedTool) else None


class Granted(Protocol):
    """The tools that an agent is granted, as `rollcage_governance.FacadeSnapshot` says them."""

    def check(self, contract: Contract, *, undo: bool = False) -> Verdict | None:
        """Return a denial of a tool that it does not give.

        Args:
            contract: the tool's.
            undo: ask what an undo may call: any tool that was ever approved.
        """
        ...

    def refusal(self, contract: Contract, verdict: Verdict) -> ToolRefused:
        """Return the error for who tries to give an agent this tool, with what to do next."""
        ...


@runtime_checkable
class Grants(Protocol):
    """What stands in a session's gate and grants tools to its agent."""

    def granted(self, session: Session) -> Granted:
        """Return the facade that holds in a session, or would hold if it were entered now."""
        ...


def facades_of(session: Session) -> list[Granted]:
    """Return the facades in a session's gate, and in those around: a tool needs all of them."""
    deciding: tuple[object, ...] = session.gate.entries
    return [each.granted(session) for each in deciding if isinstance(each, Grants)]


def expose(session: Session, tools: Iterable[Any]) -> None:
    """Refuse to give guarded tools to an agent where the session's facade does not.

    Raises:
        ToolRefused: the first that it does not give, why, and what to do next.
        ContractError: an adapter's tool that does not say its contract.
    """
    facades = facades_of(session)
    for tool in tools if facades else ():
        contract = guarded_contract(tool)
        if contract is None:
            raise ContractError(f"{tool!r} has no contract, so no facade can give it")
        refused = refused_by(facades, contract)
        if refused is not None:
            raise refused


def exposes(session: Session, contract: Contract) -> bool:
    """Whether an agent gets to see a tool that a server lists by itself; one left out is logged."""
    refused = refused_by(facades_of(session), contract)
    if refused is not None:
        _log.warning("the agent does not get to see a tool: %s", refused)
    return refused is None


def refused_by(facades: Iterable[Granted], contract: Contract) -> ToolRefused | None:
    """Return the first facade's refusal of a tool; None if all give it."""
    for facade in facades:
        verdict = facade.check(contract)
        if verdict is not None:
            return facade.refusal(contract, verdict)
    return None
