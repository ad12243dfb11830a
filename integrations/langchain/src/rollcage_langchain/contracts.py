"""LangChain's knowledge of a tool, as a contract; and the call's own arguments of a body."""

from __future__ import annotations

import inspect
import typing
import warnings
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Final, cast, get_args, get_origin

import pydantic
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, InjectedToolArg, InjectedToolCallId, Tool, ToolException
from rollcage import Contract
from rollcage.errors import ContractError
from rollcage_adapter import (
    Signature,
    Validated,
    declare_tool,
    is_model_class,
    is_object,
    type_hints,
)

__all__ = ["BodySignature", "contract_for", "parameters_of"]

AnyParameters = type[pydantic.BaseModel] | Mapping[str, Any]
_MANAGERS: Final = frozenset({"run_manager", "callbacks"})  # LangChain's own, in any tool


# --- parameters ----------------------------------------------------------------------------------


class CallParameters(pydantic.BaseModel):
    """The base of tools' call schemas: LangChain has validated the arguments."""

    # Further arguments of the body are a part of the call too.
    model_config = pydantic.ConfigDict(
        extra="allow", arbitrary_types_allowed=True, protected_namespaces=()
    )


# The parameters by a tool's call schema, of which LangChain makes one for each tool: a service
# guards its tools for each request, and building a model takes longer than everything else.
_MODELS: Final = weakref.WeakKeyDictionary[type[pydantic.BaseModel], type[CallParameters]]()


def parameters_of(tool: BaseTool) -> AnyParameters:
    """Return the tool's parameters without the ones that the framework injects."""
    if isinstance(tool, Tool) and tool.args_schema is None:
        return {"type": "object", "properties": tool.args, "required": list(tool.args)}
    schema: Any = tool.tool_call_schema
    if is_object(schema):
        return schema
    if not is_model_class(schema):  # a Pydantic v1 model, which LangChain accepts as well
        return cast("dict[str, Any]", schema.schema())
    model = _MODELS.get(schema)
    if model is None:
        fields: dict[str, Any] = {n: (f.annotation, f) for n, f in schema.model_fields.items()}
        with warnings.catch_warnings():  # a parameter may be named `copy` or `json`
            warnings.simplefilter("ignore", UserWarning)
            model = _MODELS[schema] = pydantic.create_model(
                schema.__name__, __base__=CallParameters, __doc__=schema.__doc__, **fields
            )
    return model


def _names(parameters: AnyParameters) -> frozenset[str]:
    if isinstance(parameters, Mapping):
        return frozenset(parameters.get("properties") or ())
    return frozenset(parameters.model_fields)


# --- the parameters of a body --------------------------------------------------------------------


class BodySignature(Signature):
    """How one body of a tool is called.

    Attributes:
        hints: the body's annotations, resolved.
        with_artifact: whether it returns content for the model, and an artifact for the program.
        is_mcp: whether it calls a tool of an MCP server.
    """

    def __init__(
        self, tool: BaseTool, body: Callable[..., Any], call_parameters: AnyParameters
    ) -> None:
        schema: Any = tool.args_schema
        self.with_artifact = tool.response_format == "content_and_artifact"
        self.is_mcp = self.with_artifact and body.__module__ == "langchain_mcp_adapters.tools"
        parameters = [p for p in _signature(tool, body) if p.name != "self"]
        annotations: dict[str, Any] = {p.name: p.annotation for p in parameters}
        self.hints = type_hints(body)
        annotations |= self.hints
        visible = _names(call_parameters)
        hidden: set[str] = set()
        self._validated = is_model_class(schema)
        if is_model_class(schema):
            fields = schema.model_fields
            hidden.update(fields.keys() - visible)
            annotations |= {name: field.rebuild_annotation() for name, field in fields.items()}
        hidden.update(name for name, each in annotations.items() if _is_injected(each))
        # LangGraph injects by this name, too.
        hidden.update((_MANAGERS | {"runtime"} & annotations.keys()) - visible)
        self._call_ids = [n for n, each in annotations.items() if _marks(each, InjectedToolCallId)]
        by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        positional = [p.name for p in parameters if p.kind in by_place]
        one_text = isinstance(tool, Tool) and schema is None
        super().__init__(list(visible) if one_text else positional, frozenset(hidden))

    def arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of the call, by name, without injected values."""
        named = self.named(args, kwargs)
        return Validated(named, CallParameters) if self._validated and not args else named

    def call_id(self, kwargs: Mapping[str, Any]) -> str:
        """Return the id of the call if the body gets it; else an empty text."""
        for name in self._call_ids:
            if isinstance(kwargs.get(name), str):
                return cast("str", kwargs[name])
        for name in self.injected:
            found = getattr(kwargs.get(name), "tool_call_id", None)
            if isinstance(found, str):
                return found
        return ""


def _signature(tool: BaseTool, body: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(body).parameters.values())
    except (TypeError, ValueError) as error:  # LangChain can't call it either
        raise ContractError(f"{tool.name}: its body has no signature: {error}") from error


def _is_injected(annotation: Any) -> bool:
    if annotation is RunnableConfig or _marks(annotation, InjectedToolArg):
        return True
    from langgraph.prebuilt import ToolRuntime

    cls = get_origin(annotation) or annotation
    return isinstance(cls, type) and issubclass(cls, ToolRuntime)


def _marks(annotation: Any, marker: type) -> bool:
    """Return whether `Annotated[…]` holds this marker, as an instance or a class."""
    if get_origin(annotation) is not typing.Annotated:
        return False
    return any(
        isinstance(each, marker) or (isinstance(each, type) and issubclass(each, marker))
        for each in get_args(annotation)[1:]
    )


# --- contracts -----------------------------------------------------------------------------------


def contract_for(
    tool: BaseTool,
    body: Callable[..., Any],
    parameters: AnyParameters,
    effect: Any = None,
    declared: Contract | Mapping[str, Any] | None = None,
) -> Contract:
    """Return the contract of a LangChain tool: its own, overridden by the declaration.

    Raises:
        ContractError: the declaration can't be used.
    """
    return declare_tool(
        tool,
        body,
        lambda _: parameters,
        framework="langchain",
        effect=effect,
        declared=declared,
        raises=(ToolException,),  # an exception for the model is restored
    )
