"""AutoGen's knowledge of a tool, as a contract."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Mapping
from typing import Annotated, Any

import pydantic
from autogen_core.tools import BaseStreamTool, BaseTool
from rollcage import Contract
from rollcage_adapter import declare_tool, is_list

from rollcage_autogen.mcp_values import is_mcp_tool, register_content
from rollcage_autogen.private import function_of
from rollcage_autogen.values import Piece

__all__ = ["AnyTool", "contract_for"]

AnyTool = BaseTool[Any, Any]


def contract_for(
    tool: AnyTool, effect: Any = None, declared: Contract | Mapping[str, Any] | None = None
) -> Contract:
    """Return the contract of an AutoGen tool: its own, overridden by the declaration.

    Raises:
        ContractError: the declaration can't be used.
    """
    contract = declare_tool(
        tool,
        function_of(tool) or type(tool).run,
        lambda _: tool.args_type(),
        framework="autogen",
        effect=effect,
        declared=declared,
        returns=lambda: _returns(tool),
    )
    if isinstance(tool, BaseStreamTool):
        returns = pydantic.PlainValidator(functools.partial(_pieces, _adapter(contract.returns)))
        contract = dataclasses.replace(contract, returns=Annotated[list[Any], returns])
    return contract


def _returns(tool: AnyTool) -> Any:
    """Return the type of a tool's results; its adapter for MCP does not tell it."""
    if is_mcp_tool(tool):
        register_content()
        blocks: Any = sys.modules["mcp.types"].ContentBlock
        return list[blocks]
    return tool.return_type()


def _adapter(returns: Any) -> pydantic.TypeAdapter[Any] | None:
    try:
        return pydantic.TypeAdapter(returns)
    except pydantic.PydanticUserError:
        return None  # a type that Pydantic can't build restores nothing


def _pieces(adapter: pydantic.TypeAdapter[Any] | None, value: Any) -> Any:
    """Return a recorded stream, with its result in the tool's declared type."""
    if not is_list(value) or not value or adapter is None:
        return value
    *before, last = value
    return [*before, Piece(adapter.validate_python(last.value, by_alias=False, by_name=True))]
