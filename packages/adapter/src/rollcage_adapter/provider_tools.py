"""Tools that a model's provider runs itself, such as its web search: no call of them is seen.

They are offered to the model beside the functions of the agent, and run before its answer comes
back. So a facade has to give them before the model is asked.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any, Final

from rollcage import Contract, Session

from rollcage_adapter.exposing import facades_of, refused_by
from rollcage_adapter.shapes import is_list, is_object, is_tuple

__all__ = ["expose_provider_tools", "provider_tool_contract"]

_FUNCTIONS: Final = ("function", "custom")  # types of tools that the agent runs, and a guard sees
_OF_FUNCTIONS: Final = frozenset(
    {"function", "input_schema", "toolSpec", "function_declarations", "functionDeclarations",
     "cachePoint"}
)  # fmt: skip


def provider_tool_contract(definition: Mapping[str, Any]) -> Contract:
    """Return the contract of a tool that a model's provider runs itself.

    Pass it to `rollcage_governance.Registry.propose`. Its name is `provider:` and the tool's type;
    the whole definition is a part of the approved form.

    Args:
        definition: as it is offered to the model: `{"type": "web_search_20250305", …}`.
    """
    return _contract(json.dumps(definition, sort_keys=True, default=str))


def expose_provider_tools(session: Session, tools: Any) -> None:
    """Refuse to offer a model its provider's own tools if the session's facade does not give them.

    Args:
        session: the session; without a facade, nothing is refused.
        tools: what the model is offered: one or several, as schemas in the form of any provider, or
            as a framework's tools, which can be called or have a name.

    Raises:
        ToolRefused: names the first refused tool, the reason, and the next step.
    """
    several = tools if is_list(tools) or is_tuple(tools) else [tools] if tools else []
    definitions = [_definition(each) for each in several if not _is_function(each)]
    facades = facades_of(session) if definitions else ()
    for each in definitions if facades else ():
        contract = provider_tool_contract(each)
        refused = refused_by(facades, contract)
        if refused is not None:
            session.refused(contract, {}, reason=str(refused), code=refused.verdict_code)
            raise refused


@functools.lru_cache(maxsize=256)
def _contract(text: str) -> Contract:
    definition: dict[str, Any] = json.loads(text)
    kind = definition.get("type") or next(iter(definition), "")
    return Contract(
        name=f"provider:{kind}",
        description="A tool that the provider of a model runs itself.",
        parameters={"type": "object", "properties": {}, "x-provider-tool": definition},
        effect="write",
    )


def _definition(tool: Any) -> Mapping[str, Any]:
    return tool if is_object(tool) else {"type": type(tool).__qualname__}


def _is_function(tool: Any) -> bool:
    """Return whether the agent runs a tool; an unknown form is the provider's."""
    if not is_object(tool):
        return callable(tool) or hasattr(tool, "name")
    kind = tool.get("type")
    if kind is not None:
        return kind in _FUNCTIONS
    return "name" in tool or (bool(tool) and tool.keys() <= _OF_FUNCTIONS)
