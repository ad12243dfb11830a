"""Functions that are declared with `@rollcage.tool`, as AutoGen tools."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable
from typing import Any

from autogen_core import CancellationToken
from autogen_core.tools import FunctionTool
from rollcage_adapter import guarding, plain_body, required_contract

from rollcage_autogen.contracts import AnyTool
from rollcage_autogen.endings import Answering, linked
from rollcage_autogen.private import function_of, parameters_of, set_function

__all__ = ["DeclaredTool", "function_call"]


class DeclaredTool(FunctionTool):
    """A tool for a declared function: the session around a call is around its body, too."""

    component_provider_override = "autogen_core.tools.FunctionTool"

    def __init__(self, function: Callable[..., Any]) -> None:
        contract = required_contract(function)
        arguments, returns = contract.parameters, contract.returns
        set_function(self, function, arguments, returns, contract.name, contract.description)

    async def run(self, args: Any, cancellation_token: CancellationToken) -> Any:
        """Call the function; a sync one in a thread with this context."""
        call = function_call(self, args, cancellation_token)
        if inspect.iscoroutinefunction(function_of(self)):
            return await call()
        return await linked(asyncio.to_thread(call), cancellation_token)

    def run_json(
        self, args: Any, cancellation_token: CancellationToken, call_id: str | None = None
    ) -> Any:
        """Call it for an agent, which gets every end of the call as a result."""
        call = super().run_json(args, cancellation_token, call_id)
        return Answering(call, None, self.name, cancellation_token)


def function_call(tool: AnyTool, args: Any, token: CancellationToken) -> functools.partial[Any]:
    """Return the function that a `FunctionTool` calls; the plain one of a guarded tool."""
    function: Any = function_of(tool)
    if guarding(tool) is not None:
        function = plain_body(function)
    names = parameters_of(tool)
    arguments = {name: getattr(args, name) for name in names if hasattr(args, name)}
    arguments |= args.__pydantic_extra__ or {}  # if it takes any further keyword
    if "cancellation_token" in names:
        arguments["cancellation_token"] = token
    return functools.partial(function, **arguments)
