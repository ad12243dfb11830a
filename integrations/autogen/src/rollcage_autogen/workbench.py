"""`RollcageWorkbench`: any AutoGen workbench, whose calls go through the session."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any, Final

from autogen_core import CancellationToken
from autogen_core.tools import (
    StaticStreamWorkbench,
    StaticWorkbench,
    ToolResult,
    ToolSchema,
    Workbench,
)
from rollcage import Contract, Session
from rollcage.errors import ContractError
from rollcage_adapter import (
    BodyForm,
    Declarations,
    Effect,
    check_names,
    declare,
    exposes,
    facades_of,
    guarding,
    refuse,
)

from rollcage_autogen.bare import before_question
from rollcage_autogen.endings import cancelled, instead_of
from rollcage_autogen.listed import ListedTool, ToolFailed, result_of, text_result
from rollcage_autogen.mcp import McpTools, is_mcp
from rollcage_autogen.private import error_text, listing, original_names, tools_of, with_tools
from rollcage_autogen.tools import guard_tools
from rollcage_autogen.turns import note_missing, placed
from rollcage_autogen.values import register_messages

__all__ = ["RollcageWorkbench", "ToolFailed"]

_NO_PARAMETERS: Final[dict[str, Any]] = {"type": "object", "properties": {}}


class RollcageWorkbench(StaticStreamWorkbench):
    """Guards a workbench: `AssistantAgent(..., workbench=RollcageWorkbench(inner, session))`.

    The tools of a static workbench are guarded at their own bodies, as in `guard_tools`. Tools of
    any other (such as an MCP server's) get a contract from their listed JSON Schema, and their
    `ToolResult` is recorded. Every end of a call is answered with a `ToolResult` that says why:
    AutoGen's agents would wait forever for anything else. Once the session is halted, the agent
    ends at its next request to the model, guarded or not.

    An MCP server's list is recorded, once a session (`reset` requests it again), and the server is
    started on the first request: never in a replay.

    (`AssistantAgent` accepts streams only from a `StaticStreamWorkbench`.)

    Args:
        workbench: any workbench, which is not changed.
        session: the session that guards the calls.
        effects: by a tool's own name, its effect; any other tool is a `write`.
        contracts: by a tool's own name, its `Contract`, or some fields of it.
        server: a name for an MCP server; required if the session has several.

    Raises:
        ContractError: no workbench, another MCP server of this name, or a declaration that can't
            be used; for tools that can only be listed later, then.
    """

    def __init__(
        self,
        workbench: Workbench,
        session: Session,
        *,
        effects: Mapping[str, Effect] | None = None,
        contracts: Declarations | None = None,
        server: str = "",
    ) -> None:
        super().__init__([])
        if not isinstance(workbench, Workbench):  # pyright: ignore[reportUnnecessaryIsInstance] - users may pass anything
            raise ContractError(
                f"{workbench!r} is not a workbench of AutoGen: tools go to guard_tools"
            )
        register_messages()
        self.session = session
        self._effects = effects or {}
        self._declared = contracts or {}
        self._listed: dict[str, ToolSchema] = {}
        self._contracts: dict[str, tuple[ToolSchema, Contract]] = {}
        self._static = _is_static(workbench)
        self._given = workbench
        self._inner: Any = workbench
        self._mcp = McpTools(workbench, session, server) if is_mcp(workbench) else None
        if self._static:
            tools = tools_of(workbench) or []
            guarded = guard_tools(tools, session, effects=effects, contracts=contracts)
            self._inner = with_tools(workbench, guarded)
            self._seen = {id(tool): tool for tool in tools}

    # --- its tools -------------------------------------------------------------------------------

    def _guard_later(self) -> None:
        """Guard the tools that a static workbench got since, including ones that are put in here.

        Raises:
            ToolRefused: the session's facade does not give one of them.
        """
        own = tools_of(self._inner) or []
        late = [tool for tool in (tools_of(self._given) or ()) if id(tool) not in self._seen]
        bare = [tool for tool in own if guarding(tool) is not self.session]
        if not late and not bare:
            return
        self._seen |= {id(tool): tool for tool in late}
        own[:] = guard_tools([*own, *(t for t in late if t not in own)], self.session)

    async def list_tools(self) -> list[ToolSchema]:
        """Return the tools of the workbench.

        Raises:
            SessionHalted: an agent is about to call its model, and the session is halted.
            ContractError: the declaration of a tool that does not exist.
        """
        purpose, _ = listing()
        if purpose == "question":
            before_question(self.session)
        if self._static:
            self._guard_later()
        try:
            schemas: list[ToolSchema] = await self._lists()
        except Exception:
            if purpose != "call":
                raise
            return list(self._listed.values())  # the call itself will report it
        if not self._listed and not self._static and purpose != "call":
            names = [self._own_name(schema["name"]) for schema in schemas]
            check_names(names, effects=self._effects, contracts=self._declared)
        self._listed = {schema["name"]: schema for schema in schemas}
        if purpose == "call":
            note_missing(self.session, self, self._listed)
        if self._static or not facades_of(self.session):
            return schemas
        return [each for each in schemas if exposes(self.session, self._contract_of(each))]

    async def _lists(self) -> list[ToolSchema]:
        if self._mcp is None:
            schemas: list[ToolSchema] = await self._inner.list_tools()
            return schemas
        schemas = await self._mcp.schemas()
        self._mcp.listing.claim(
            [self._contract_of(each).name for each in schemas],
            'declare it under another: contracts={"…": {"name": "…"}}',
        )
        return schemas

    def _own_name(self, name: str) -> str:
        """Return a tool's own name, if the workbench shows it to the model under another."""
        return original_names(self._inner).get(name, name)

    async def _contract(self, name: str) -> Contract | None:
        if name not in self._listed:
            await self.list_tools()
        schema = self._listed.get(name)
        return None if schema is None else self._contract_of(schema)

    def _contract_of(self, schema: ToolSchema) -> Contract:
        """Return the contract of a listed tool, made once."""
        name = schema["name"]
        known = self._contracts.get(name)
        if known is not None and known[0] == schema:
            return known[1]
        own = self._own_name(name)
        parameters: Any = schema.get("parameters") or _NO_PARAMETERS
        contract = declare(
            lambda: Contract(
                name=own, description=schema.get("description", ""), parameters=dict(parameters)
            ),
            framework="autogen",
            effect=self._effects.get(own),
            declared=self._declared.get(own),
            raises=(ToolFailed,),
        )
        self._contracts[name] = copy.deepcopy(schema), contract  # its own may be changed in place
        self.session.tools.add(contract)  # an undo may need it before the tool is called
        return contract

    # --- calls -----------------------------------------------------------------------------------

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        cancellation_token: CancellationToken | None = None,
        call_id: str | None = None,
    ) -> ToolResult:
        """Call a tool; the answer is always a result."""
        token = cancellation_token or CancellationToken()
        try:
            call = await self._call(name, arguments, token, call_id, "call_tool", "arun")
            result: ToolResult = await call(name, arguments, token, call_id)
            return result
        except BaseException as error:  # noqa: BLE001 - raised again
            return self._failed_result(name, error, token)

    async def call_tool_stream(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        cancellation_token: CancellationToken | None = None,
        call_id: str | None = None,
    ) -> AsyncGenerator[Any | ToolResult, None]:
        """Call a tool: yield its stream, then its result, also after an error."""
        token = cancellation_token or CancellationToken()
        if not self._streams:
            yield await self.call_tool(name, arguments, token, call_id)
            return
        try:
            call = await self._call(name, arguments, token, call_id, "call_tool_stream", "astream")
            async with contextlib.aclosing(call(name, arguments, token, call_id)) as stream:
                async for each in stream:
                    yield each
            return
        except BaseException as error:  # noqa: BLE001 - raised again
            result = self._failed_result(name, error, token)
        yield result

    @property
    def _streams(self) -> bool:
        return hasattr(self._inner, "call_tool_stream")  # the protocol for it is not public

    async def _call(
        self,
        name: str,
        arguments: Mapping[str, Any] | None,
        token: CancellationToken,
        call_id: str | None,
        method: str,
        form: BodyForm,
    ) -> Callable[..., Any]:
        """Make a call of the workbench, by its method of this name, guarded once."""
        if token.is_cancelled():
            raise cancelled(name)
        inside: Callable[..., Any] = getattr(self._inner, method)
        if self._static:
            self._guard_later()
            if any(tool.name == self._own_name(name) for tool in (tools_of(self._inner) or ())):
                return inside
        else:
            contract = await self._contract(name)
            if contract is not None:
                guard = ListedTool(self.session, contract, self._inner, streams=self._streams)
                return guard.function(inside, form)
        missing = ContractError(f"Tool {name} not found.")
        with placed(self.session, call_id or ""):
            refuse(self.session, name, arguments or {}, reason=str(missing))
        if not self._static:
            raise missing
        return inside  # it answers the call itself

    def _failed_result(
        self, name: str, error: BaseException, token: CancellationToken
    ) -> ToolResult:
        """Return a result that says why the tool gave none."""
        instead = instead_of(error, self.session, name, token)
        if isinstance(instead, ToolFailed):
            return result_of(name, instead.result)
        return text_result(name, error_text(self, instead), is_error=True)

    # --- the rest is the workbench's own ---------------------------------------------------------

    async def start(self) -> None:
        """Start the workbench; an MCP server is started on demand."""
        if self._mcp is None:
            await self._inner.start()

    async def stop(self) -> None:
        """Stop the workbench."""
        await (self._inner if self._mcp is None else self._mcp).stop()

    async def reset(self) -> None:
        """Reset the workbench; an MCP server's tools are listed again."""
        if self._mcp is not None:
            self._mcp.listing.forget()
        await self._inner.reset()

    async def save_state(self) -> Mapping[str, Any]:
        """Return the state of the workbench."""
        state: Mapping[str, Any] = await self._inner.save_state()
        return state

    async def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state of the workbench."""
        await self._inner.load_state(state)

    def _to_config(self) -> Any:
        raise ContractError(
            "a guarded workbench belongs to its session and can't be made anew from a "
            "configuration: dump the workbench inside of it"
        )


def _is_static(workbench: Workbench) -> bool:
    """Return whether it does nothing but call its own tools."""
    own: tuple[tuple[str, Callable[..., Any]], ...] = (
        ("call_tool", StaticWorkbench.call_tool),
        ("call_tool_stream", StaticStreamWorkbench.call_tool_stream),
    )
    if not isinstance(workbench, StaticWorkbench):
        return False
    return all(getattr(type(workbench), name, method) is method for name, method in own)
