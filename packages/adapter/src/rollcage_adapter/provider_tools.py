"""Tools that a model's provider runs itself, such as its web search: no call of them is seen.

They are offered to the model beside the functions of the agent, or set in the model's own settings,
and run before its answer comes back. So a facade has to give them before the model is asked.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pydantic
from rollcage import Contract, Session

from rollcage_adapter.exposing import facades_of, refused_by
from rollcage_adapter.shapes import is_list, is_object, is_tuple

__all__ = ["expose_provider_tools", "expose_settings", "provider_tool_contract"]

_FUNCTIONS: Final = ("function", "custom")  # types of tools that the agent runs, and a guard sees
_OF_FUNCTIONS: Final = frozenset(
    {"function", "input_schema", "toolSpec", "function_declarations", "functionDeclarations",
     "cachePoint"}
)  # fmt: skip
_TOOLS: Final = frozenset({"tools", "builtin_tools"})  # settings that list tools
_FEATURES: Final = frozenset(
    {
        "compound_custom",  # Groq: a model that searches and runs code
        "connectors",  # Cohere
        "enable_search",  # DashScope
        "mcp_servers",  # Anthropic: remote servers that it calls
        "plugins",  # OpenRouter
        "search_parameters",  # xAI
        "web_search_options",  # OpenAI, Chat Completions
    }
)
"""Settings that have a provider run something, although they list no tool."""

_NOT_READ: Final = frozenset({"metadata", "default_headers", "default_query"})
_OF_SCHEMAS: Final = ("properties", "$defs", "definitions")  # fields of a JSON Schema


def provider_tool_contract(definition: Mapping[str, Any]) -> Contract:
    """Return the contract of a tool that a model's provider runs itself.

    Pass it to `rollcage_governance.Registry.propose`. Its name is `provider:` and the tool's type;
    the whole definition is a part of the approved form.

    Args:
        definition: as the model gets it: `{"type": "web_search_20250305", …}`.
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
    facades = facades_of(session)
    for each in _several(tools) if facades else ():
        if _is_function(each):
            continue
        contract = provider_tool_contract(_definition(each))
        refused = refused_by(facades, contract)
        if refused is not None:
            session.refused(contract, {}, reason=str(refused), code=refused.verdict_code)
            raise refused


def expose_settings(session: Session, *settings: Any, models: tuple[str, ...] = ()) -> None:
    """Refuse a model whose settings have its provider run a tool that the facade does not give.

    Tools are found at any depth (`model_kwargs`, `extra_body`, `additional_params`, …), and so are
    other settings that have a provider run something, such as `web_search_options`: the definition
    is `{"type": "web_search_options", "web_search_options": …}` then.

    Args:
        session: the session; without a facade, nothing is refused.
        *settings: models, whose attributes are read, and options of a request.
        models: methods of a model; an attribute with one of them is a model inside of a model.

    Raises:
        ToolRefused: names the first refused tool, the reason, and the next step.
    """
    if not facades_of(session):
        return
    seen: set[int] = set()
    for each in settings:
        inside = each if is_object(each) else _attributes(each)
        expose_provider_tools(session, [*_set_in(inside, models, seen)])


def _set_in(settings: Any, models: tuple[str, ...], seen: set[int]) -> Iterator[Any]:
    """Yield the tools that settings offer to a model."""
    if id(settings) in seen:
        return
    seen.add(id(settings))
    if is_object(settings):
        if any(is_object(settings.get(word)) for word in _OF_SCHEMAS):
            return
        for name, each in settings.items():
            folded = name.casefold()
            if folded in _TOOLS:
                yield from _several(each)
            elif each and (folded in _FEATURES or _is_stored_prompt(folded, each)):
                yield {"type": folded, folded: each}
            elif folded not in _NOT_READ:
                yield from _set_in(each, models, seen)
    elif is_list(settings) or is_tuple(settings):
        for each in settings:
            yield from _set_in(each, models, seen)
    elif isinstance(settings, pydantic.BaseModel) or any(
        hasattr(type(settings), each) for each in models
    ):
        yield from _set_in(_attributes(settings), models, seen)


def _attributes(model: Any) -> dict[str, Any]:
    """Return the attributes of an object, with extra and private ones of Pydantic."""
    found: dict[str, Any] = dict(getattr(model, "__dict__", {}))
    for more in ("__pydantic_extra__", "__pydantic_private__"):
        found |= getattr(model, more, None) or {}
    return found


def _is_stored_prompt(name: str, value: Any) -> bool:
    """Return whether a setting names a prompt that OpenAI keeps, perhaps with tools."""
    return name == "prompt" and is_object(value) and "id" in value


def _several(tools: Any) -> list[Any]:
    if is_list(tools) or is_tuple(tools):
        return [*tools]
    return [tools] if tools else []


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
    if isinstance(tool, str):  # CrewAI names built-in tools so
        return {"type": tool}
    return tool if is_object(tool) else {"type": type(tool).__qualname__}


def _is_function(tool: Any) -> bool:
    """Return whether the agent runs a tool; an unknown form is the provider's."""
    if not is_object(tool):
        return callable(tool) or hasattr(tool, "name")
    kind = tool.get("type")
    if kind is not None:
        return kind in _FUNCTIONS
    return "name" in tool or (bool(tool) and tool.keys() <= _OF_FUNCTIONS)
