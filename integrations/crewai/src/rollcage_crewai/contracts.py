"""CrewAI's knowledge of a tool, as a contract; the arguments of a call, by the tool's schema."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, Final

import pydantic
from crewai.tools.agent_tools.add_image_tool import AddImageTool
from crewai.tools.agent_tools.base_agent_tools import BaseAgentTool
from crewai.tools.agent_tools.read_file_tool import ReadFileTool
from crewai.tools.memory_tools import RecallMemoryTool
from rollcage import Contract
from rollcage_adapter import (
    Effect,
    Instead,
    Signature,
    Validated,
    declare_tool,
    held_by,
    is_model_class,
)

__all__ = ["arguments_of", "contract_for", "instead_of"]

# The default effects of CrewAI's own tools. Agents as tools act only by guarded calls.
_OWN: Final[tuple[tuple[type, Effect], ...]] = (
    (BaseAgentTool, "scope"),
    (AddImageTool, "pure"),
    (ReadFileTool, "read"),
    (RecallMemoryTool, "read"),
)
_ANYTHING: Final[Mapping[str, Any]] = {"type": "object", "properties": {}}


def contract_for(
    tool: Any,
    body: Callable[..., Any],
    effect: Effect | None,
    declared: Contract | Mapping[str, Any] | None,
) -> Contract:
    """Return the contract of a CrewAI tool: its own, overridden by the declaration.

    Raises:
        ContractError: the declaration can't be used.
    """
    if effect is None and declared is None:
        effect = next((own for kind, own in _OWN if isinstance(tool, kind)), None)

    def parameters(own: Contract | None) -> Any:
        return own.parameters if own and not own.parameter_names else _parameters(tool.args_schema)

    return declare_tool(
        tool, body, parameters, framework="crewai", effect=effect, declared=declared
    )


def arguments_of(
    schema: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return the arguments of a call, by name, in the types of the tool's schema.

    CrewAI validates them, and passes the dumped model to the body: by name, nested models as dicts.
    So they are validated once more; the contract refuses arguments that fail then.
    """
    named = Signature([*schema.model_fields] if _has_fields(schema) else []).named(args, kwargs)
    if _has_fields(schema):
        # validators are the user's own, and may raise anything
        with contextlib.suppress(Exception):
            return Validated.of(schema.model_validate(named, by_alias=True, by_name=True))
    return named


def instead_of(schema: Any, call: Callable[..., Any], args: tuple[Any, ...]) -> Instead:
    """Return the forms for edits and answers of a call.

    The body gets edited arguments in CrewAI's form: by name, nested models as dicts.
    """

    def edited(**values: Any) -> Any:
        if _has_fields(schema):
            values = held_by(schema, values).model_dump()
        return call(**values)

    named = not args or _has_fields(schema)  # otherwise it is unknown which one is which
    return Instead(edited if named else None, lambda value: value)


def _has_fields(schema: Any) -> bool:
    return is_model_class(schema) and bool(schema.model_fields)


def _parameters(schema: Any) -> type[pydantic.BaseModel] | Mapping[str, Any]:
    return schema if _has_fields(schema) else _ANYTHING  # CrewAI lets everything through as well
