"""Guarded tools: each call is recorded and replayed at the tool's own body, with native values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from autogen_core.tools import BaseTool, FunctionTool
from rollcage import Session
from rollcage_adapter import Declarations, Effect, guard_each

from rollcage_autogen.contracts import AnyTool
from rollcage_autogen.declared import DeclaredTool
from rollcage_autogen.guards import guarded
from rollcage_autogen.values import register_messages

__all__ = ["as_tools", "guard_tools"]

T = TypeVar("T", bound=AnyTool)


def guard_tools(
    tools: Sequence[T],
    session: Session,
    *,
    effects: Mapping[str, Effect] | None = None,
    contracts: Declarations | None = None,
) -> list[T]:
    """Return AutoGen tools of the same types, whose calls go through the session.

    The originals are not changed. A tool that this session guards already is returned itself. Every
    end of a call (a refusal, a halted session, a cancellation, an exit) reaches the agent as an
    error result, because it would otherwise wait forever.

    Args:
        tools: any `BaseTool`: function tools, subclasses, streaming ones, agents and teams as
            tools. Declare an agent as a tool with `effects={"its_name": "scope"}`.
        session: the session that guards the calls; it must be entered before the first one.
        effects: by a tool's name, its effect; any other tool is a `write`.
        contracts: by a tool's name, its `Contract`, or some fields of it:
            `{"send_mail": {"idempotent": True, "secret": "password"}}`.

    Raises:
        ContractError: an unknown name, a declaration that can't be used, an object that is
            no tool, or a tool that another session guards.
        ToolRefused: a tool that the session's facade does not give.
    """
    register_messages()
    return guard_each(
        tools,
        session,
        effects,
        contracts,
        framework="AutoGen",
        kinds=BaseTool,
        instead="as_tools makes one of a function declared with @rollcage.tool, "
        "FunctionTool(function, description=...) of any other; a workbench goes into "
        "RollcageWorkbench",
        guard=lambda tool, effect, declared: guarded(tool, session, effect, declared),
    )


def as_tools(
    functions: Iterable[Callable[..., Any]], session: Session | None = None
) -> list[FunctionTool]:
    """Return AutoGen tools for functions declared with `@rollcage.tool`, sync or async.

    Args:
        functions: the declared functions.
        session: the session that guards the calls; by default, the open one around each call.

    Raises:
        ContractError: a function without a declaration.
    """
    tools: list[FunctionTool] = [DeclaredTool(function) for function in functions]
    return tools if session is None else guard_tools(tools, session)
