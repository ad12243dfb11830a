"""The tools that the steps of a plan call, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from rollcage import Contract

from rollcage_workflow.errors import PlanFinding, PlanInvalid

__all__ = ["Tools", "contract_of", "declared_in", "tools_by_name"]

Tools = Iterable[Callable[..., Any]] | Mapping[str, Callable[..., Any]]
"""Functions declared with `@rollcage.tool`, or any others: an undeclared one is a write."""


def tools_by_name(tools: Tools) -> dict[str, Callable[..., Any]]:
    """Return the tools by the names under which a plan calls them.

    Raises:
        ContractError: an object is not a tool, or two have the same name.
    """
    if isinstance(tools, Mapping):
        return dict(cast("Mapping[str, Callable[..., Any]]", tools))
    found: dict[str, Callable[..., Any]] = {}
    for tool in tools:
        name = contract_of(tool).name
        if found.setdefault(name, tool) is not tool:
            raise PlanInvalid(
                [PlanFinding("<tools>", 0, "", "doubled_tool", f"two tools are called {name!r}")]
            )
    return found


def declared_in(tools: Iterable[Callable[..., Any]]) -> list[Callable[..., Any]]:
    """Return the declared tools: undeclared ones take no part in an undo."""
    return [each for each in tools if _declared(each) is not None]


def contract_of(tool: Callable[..., Any]) -> Contract:
    """Return a tool's contract; an undeclared function has the contract of a write."""
    return _declared(tool) or Contract.of(tool)


def _declared(tool: Callable[..., Any]) -> Contract | None:
    """Return the contract that `@rollcage.tool` attached to a function."""
    found = getattr(tool, "__rollcage_contract__", None)
    return found if isinstance(found, Contract) else None
