"""Tools that were declared: what may be said of one, and the contract of each."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypedDict

from rollcage.contract.body import plain_body
from rollcage.contract.compensation import declared_tools
from rollcage.contract.contract import Contract, Effect, OnMiss, Source
from rollcage.contract.drift import OnDrift
from rollcage.errors import ContractError

__all__ = ["CONTRACT", "Declared", "contract_of", "declaration", "declared_contracts"]

CONTRACT: Final = "__rollcage_contract__"
"""The attribute of a declared function that holds its contract."""


class Declared(TypedDict, total=False):
    """What a tool may declare of itself; each field is described at `Contract`.

    One word or type stands for a list of one.
    """

    name: str
    version: str
    description: str
    effect: Effect
    idempotent: bool
    risk: str
    permissions: Sequence[str]
    raises: type[Exception] | Sequence[type[Exception]]
    unknown_on: type[Exception] | Sequence[type[Exception]]
    secret: Sequence[str]
    labels: Sequence[str]
    returns: Any
    strict: bool
    on_miss: OnMiss | None
    source: Source
    undo: Callable[..., Any] | None
    observe: Callable[[dict[str, Any]], Any] | None
    probe: Callable[..., Any] | None
    once: str
    on_drift: OnDrift | None
    json_output: Any
    allow_empty: bool
    max_output: int | None


def contract_of(function: object) -> Contract | None:
    """Return the contract that `@rollcage.tool` attached to a function; None if there is none."""
    found = getattr(function, CONTRACT, None)
    return found if isinstance(found, Contract) else None


def declared_contracts() -> Iterator[Contract]:
    """Yield the contracts of the tools that this process has declared."""
    for named in list(declared_tools.values()):
        for made in list(named.values()):
            found = contract_of(made())
            if found is not None:
                yield found


@functools.lru_cache(maxsize=4096)
def _undeclared(function: Callable[..., Any]) -> Contract:
    return Contract.of(function)


def declaration(function: Callable[..., Any]) -> tuple[Callable[..., Any], Contract]:
    """Return a tool's body and its contract."""
    contract = getattr(function, CONTRACT, None)
    if contract is not None:
        return plain_body(function), contract
    if not callable(function):
        raise ContractError(f"{function!r} can't be called, so it is not a tool")
    return function, _undeclared(function)
