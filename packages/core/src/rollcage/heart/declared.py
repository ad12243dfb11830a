"""What was declared of a function: its contract; and the tools that this process has declared."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

from rollcage.contract.body import plain_body
from rollcage.contract.contract import Contract
from rollcage.errors import ContractError
from rollcage.undo.compensation import Declarations

__all__ = ["CONTRACT", "declaration", "declared_tools"]

CONTRACT: Final = "__rollcage_contract__"
"""The attribute of a declared function that holds its contract."""

declared_tools: Final[Declarations] = {}
"""Every function that was declared with `rollcage.heart.tool`, by name, then by place in the
source; the core beside has its own."""


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
