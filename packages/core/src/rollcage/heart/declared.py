"""What was declared of a function: its contract."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

from rollcage.contract.body import plain_body
from rollcage.contract.contract import Contract
from rollcage.errors import ContractError

__all__ = ["CONTRACT", "declaration"]

CONTRACT: Final = "__rollcage_contract__"
"""The attribute of a declared function that holds its contract."""


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
