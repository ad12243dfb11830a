"""The tools that a session's facade shows to an agent, the same for every framework."""

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
    """Return the contract by which an adapter guards a framework's tool; None for others.

    Pass it to `rollcage_governance.Registry.propose` for a tool that a framework made itself.
    """
    guard = guard_of(tool)
    return guard.contract if isinstance(guard, GuardedTool) else None


class Granted(Protocol):
    """The tools that an agent is granted, as in `rollcage_governance.FacadeSnapshot`."""

    def check(self, contract: Contract, *, undo: bool = False) -> Verdict | None:
        """Return a denial of a tool that the facade does not give.

        Args:
            contract: the tool's contract.
            undo: whether an undo calls it, which may call any tool that was ever approved.
        """
        ...

    def refusal(self, contract: Contract, verdict: Verdict) -> ToolRefused:
        """Return the error for code that gives an agent this tool, with the next step."""
        ...


@runtime_checkable
class Grants(Protocol):
    """An entry of a session's gate that grants tools to its agent."""

    def granted(self, session: Session) -> Granted:
        """Return the facade that holds in a session, or would hold if it were entered now."""
        ...


def facades_of(session: Session) -> list[Granted]:
    """Return the facades in the gates of a session and of the sessions around it.

    All of them must give a tool.
    """
    deciding: tuple[object, ...] = session.gate.entries
    return [each.granted(session) for each in deciding if isinstance(each, Grants)]


def expose(session: Session, tools: Iterable[Any]) -> None:
    """Refuse to give guarded tools to an agent if the session's facade does not.

    Raises:
        ToolRefused: names the first refused tool, the reason, and the next step.
        ContractError: an adapter's tool without a contract.
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
    """Return whether an agent sees a tool of a server's list; log an omitted one."""
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
