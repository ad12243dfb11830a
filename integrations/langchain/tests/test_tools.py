"""Any existing tool, guarded: the same type, the same behaviour, its body run once."""

import asyncio
import functools
import gc
import inspect
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import pytest
from langchain_core.callbacks import CallbackManagerForToolRun
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import (
    ArgsSchema,
    BaseTool,
    StructuredTool,
    Tool,
    tool,
)
from pydantic import BaseModel, Field, PrivateAttr
from rollcage import Blocked, Contract, StepView, Verdict, current_step
from rollcage.errors import ContractError, SessionHalted
from rollcage_adapter import guarded_contract
from rollcage_langchain import guard_tools

Call = Callable[..., dict[str, Any]]
"""Makes a tool call as LangChain hands it to a tool."""


# --- kinds of tools ------------------------------------------------------------------------------


class Point(BaseModel):
    """Two numbers."""

    x: int
    y: int = 2


class Adder(BaseTool):
    """A tool as libraries write them."""

    name: str = "adder"
    description: str = "Adds."
    args_schema: ArgsSchema | None = Point
    offset: int = 0
    ran: list[str] = Field(default_factory=list)

    def _run(self, x: int, y: int, run_manager: CallbackManagerForToolRun | None = None) -> int:
        self.ran.append("sync" if run_manager is not None else "bare")
        return x + y + self.offset


class BothWays(Adder):
    """Its coroutine calls its other body, as many do."""

    async def _arun(self, x: int, y: int, run_manager: Any = None) -> int:
        return self._run(x, y, run_manager=run_manager.get_sync())


class AsyncOnly(Adder):
    """Has no sync body."""

    def _run(self, x: int, y: int, run_manager: Any = None) -> int:
        raise NotImplementedError("await it")

    async def _arun(self, x: int, y: int, run_manager: Any = None) -> int:
        self.ran.append("async")
        return x + y


def told(point: "Point", config: RunnableConfig, *, often: "int" = 1) -> str:
    """Tell it."""
    return f"{point.x} {often} {config.get('tags')}"


def test_a_guarded_body_tells_what_it_takes_and_what_is_injected(lab: Any) -> None:
    original = StructuredTool.from_function(told)
    with lab.session() as session:
        (guarded,) = guard_tools([original], session)
        assert guarded.func is not None
        taken = inspect.signature(guarded.func).parameters
        assert list(taken) == ["point", "config", "often"]
        assert [each.annotation for each in taken.values()] == [Point, RunnableConfig, int]
        assert taken["often"].default == 1
        assert guarded.args == original.args
        answer = guarded.invoke({"point": {"x": 3}}, {"tags": ["here"]})
        assert answer == "3 1 ['here']" == original.invoke({"point": {"x": 3}}, {"tags": ["here"]})


def test_a_tool_that_is_made_for_one_request_leaves_nothing_behind(lab: Any) -> None:
    def schemas() -> list[weakref.ref[Any]]:
        kept: list[weakref.ref[Any]] = []
        for _ in range(3):
            original = StructuredTool.from_function(told)
            with lab.session() as session:
                (guarded,) = guard_tools([original], session)
                assert guarded.invoke({"point": {"x": 3}}, {"tags": ["here"]}) == "3 1 ['here']"
            kept += [weakref.ref(original.tool_call_schema), weakref.ref(original.args_schema)]
        return kept

    kept = schemas()
    for _ in range(3):
        gc.collect()
    assert [each() for each in kept] == [None] * 6


def test_a_tool_is_guarded_anew_where_its_schema_has_changed(lab: Any) -> None:
    original = StructuredTool.from_function(told)
    with lab.session() as session:
        (first,) = guard_tools([original], session)
    original.description = "Tell it to somebody else."
    with lab.session() as session:
        (second,) = guard_tools([original], session)
    contracts = [guarded_contract(each) for each in (first, second)]
    found = [each and each.description for each in contracts]
    assert found == ["Tell it.", "Tell it to somebody else."]


class Untold(BaseTool):
    """Declares no schema: LangChain reads its signature."""

    name: str = "untold"
    description: str = "Adds, too."

    def _run(self, x: int, y: int = 2) -> int:
        return int(x) + int(y)


class OwnRun(StructuredTool):
    """A structured tool with a body of its own around its function."""

    def _run(self, *args: Any, config: RunnableConfig, **kwargs: Any) -> Any:
        return f"<{super()._run(*args, config=config, **kwargs)}>"


def add(x: int, y: int = 2) -> int:
    """Add two numbers."""
    return x + y


async def aadd(x: int, y: int = 2) -> int:
    """Add two numbers."""
    return x + y


SCHEMA = {
    "type": "object",
    "properties": {"x": {"type": "integer"}, "y": {"type": "integer", "default": 2}},
    "required": ["x"],
}
SYNC: dict[str, Any] = {
    "structured": lambda: StructuredTool.from_function(add),
    "both": lambda: StructuredTool.from_function(add, aadd),
    "decorated": lambda: tool(add),
    "dict schema": lambda: StructuredTool(name="add", args_schema=SCHEMA, func=add),
    "subclass": Adder,
    "both ways": BothWays,
    "untold": Untold,
    "own run": lambda: OwnRun.from_function(add),
    "partial": lambda: StructuredTool(
        name="add", args_schema=Point, func=functools.partial(add, y=5)
    ),
}
ASYNC: dict[str, Any] = {
    **SYNC,
    "async": lambda: StructuredTool.from_function(coroutine=aadd),
    "async only": AsyncOnly,
    "mcp": lambda: StructuredTool(name="add", args_schema=SCHEMA, coroutine=mcp_call),
}
KEPT = (
    "name", "description", "args_schema", "args", "return_direct", "verbose", "callbacks", "tags",
    "metadata", "handle_tool_error", "handle_validation_error", "response_format", "extras",
)  # fmt: skip


async def mcp_call(runtime: Any = None, **arguments: Any) -> int:
    """As the MCP adapter writes its bodies: all arguments as they come, and the runtime."""
    return int(arguments["x"]) + int(arguments.get("y", 2))


@pytest.mark.parametrize("kind", ASYNC)
def test_a_guarded_tool_is_of_the_same_type_and_keeps_its_attributes(kind: str, lab: Any) -> None:
    original: BaseTool = ASYNC[kind]()
    before = {name: getattr(original, name) for name in KEPT}
    (guarded,) = guard_tools([original], lab.session())
    assert isinstance(guarded, type(original))
    assert type(guarded).__name__ == type(original).__name__
    assert guarded is not original
    assert {name: getattr(guarded, name) for name in KEPT} == before
    schemas: list[Any] = [each.tool_call_schema for each in (guarded, original)]
    one, other = [s if isinstance(s, dict) else s.model_json_schema() for s in schemas]
    assert one == other
    inputs: list[Any] = [each.get_input_schema() for each in (guarded, original)]
    assert inputs[0].model_json_schema() == inputs[1].model_json_schema()


@pytest.mark.parametrize("kind", SYNC)
def test_a_sync_tool_replays(kind: str, lab: Any, call: Call) -> None:
    plain = SYNC[kind]().invoke(call(x=1))
    for replay in ("auto", "offline"):
        with lab.session(replay=replay) as session:
            (guarded,) = guard_tools([SYNC[kind]()], session)
            message = guarded.invoke(call(x=1))
            assert message == plain
        assert session.stats.hits == (replay == "offline")
        assert session.stats.calls == 1


@pytest.mark.parametrize("kind", ASYNC)
async def test_an_async_call_replays(kind: str, lab: Any, call: Call) -> None:
    plain = await ASYNC[kind]().ainvoke(call(x=1))
    for replay in ("auto", "offline"):
        async with lab.session(replay=replay) as session:
            (guarded,) = guard_tools([ASYNC[kind]()], session)
            assert await guarded.ainvoke(call(x=1)) == plain
        assert session.stats.hits == (replay == "offline")
        assert session.stats.calls == 1


@pytest.mark.parametrize("kind", [*SYNC])
def test_all_forms_of_a_call_have_one_key(kind: str, lab: Any, call: Call) -> None:
    with lab.session() as session:
        (guarded,) = guard_tools([SYNC[kind]()], session)
        guarded.invoke(call(x=1))
        guarded.invoke(call(y=2, x=1))
        guarded.invoke({"x": 1, "y": 2})
        if kind != "dict schema":  # LangChain does not validate those
            guarded.invoke(call(x="1"))
    expected = {"x": 1, "y": 2}
    assert all(args == expected for args in lab.args(session)), lab.args(session)


def test_a_tool_of_one_text(lab: Any, call: Call) -> None:
    def shout(text: str) -> str:
        return text.upper()

    with lab.session() as session:
        (guarded,) = guard_tools([Tool("shout", shout, "Shouts.")], session)
        assert guarded.invoke("hey") == "HEY"
        assert guarded.invoke(call(__arg1="hey")).content == "HEY"
    assert lab.args(session) == [{"tool_input": "hey"}] * 2


def test_a_text_for_a_structured_tool_is_its_first_argument(lab: Any, call: Call) -> None:
    @tool
    def shout(text: str) -> str:
        """Shout."""
        return text.upper()

    with lab.session() as session:
        (guarded,) = guard_tools([shout], session)
        assert guarded.invoke("hey") == "HEY"
        assert guarded.invoke(call(text="hey")).content == "HEY"
    assert lab.args(session) == [{"text": "hey"}] * 2


def test_a_call_past_langchain_is_guarded_too(lab: Any) -> None:
    with lab.session() as session:
        guarded: Any = guard_tools([StructuredTool.from_function(add)], session)[0]
        assert guarded.func(1, y=3) == 4
    assert lab.args(session) == [{"x": 1, "y": 3}]


def test_a_copy_of_a_guarded_tool_has_its_own_fields(lab: Any) -> None:
    with lab.session() as session:
        (guarded,) = guard_tools([Adder()], session)
        assert guarded.model_copy(update={"offset": 10}).invoke({"x": 1}) == 13
    assert session.stats.calls == 1


def test_the_original_is_as_it_was(lab: Any) -> None:
    originals = [Adder(), StructuredTool.from_function(add)]
    with lab.session() as session:
        for guarded in guard_tools(originals, session):
            guarded.invoke({"x": 1})
    assert [each.invoke({"x": 1}) for each in originals] == [3, 3]
    assert session.stats.calls == 2


def test_what_a_tool_keeps_of_its_calls_stays_its_own(lab: Any) -> None:
    class Counter(BaseTool):
        name: str = "count"
        description: str = "Counts."
        _count: int = PrivateAttr(default=0)

        def _run(self) -> int:
            self._count += 1
            return self._count

    with lab.session() as session:
        (guarded,) = guard_tools([Counter()], session)
        assert [guarded.invoke({}) for _ in range(3)] == [1, 2, 3]
    with lab.session(replay="offline") as session:
        (guarded,) = guard_tools([Counter()], session)
        assert [guarded.invoke({}) for _ in range(3)] == [1, 2, 3]


# --- the session ---------------------------------------------------------------------------------


def test_a_denied_call_raises_and_runs_nothing(lab: Any) -> None:
    def no(step: StepView) -> Verdict:
        return Verdict.deny(f"no {step.name}")

    adder = Adder()
    with lab.session(gate=[no]) as session:
        (guarded,) = guard_tools([adder], session)
        with pytest.raises(Blocked, match="no adder"):
            guarded.invoke({"x": 1})
    assert adder.ran == []


def test_effects_and_contracts_are_what_rules_see(lab: Any) -> None:
    seen: list[StepView] = []
    with lab.session(gate=[seen.append]) as session:
        tools = [Adder(), Untold(), StructuredTool.from_function(add)]
        guarded = guard_tools(
            tools,
            session,
            effects={"adder": "read"},
            contracts={
                "untold": {"idempotent": True, "risk": "high", "secret": "y", "version": "2"},
                "add": Contract(name="math.add", parameters=Point, effect="pure"),
            },
        )
        for each in guarded:
            each.invoke({"x": 1})
    assert [view.effect for view in seen] == ["read", "write", "pure"]
    assert [view.name for view in seen] == ["adder", "untold", "math.add"]
    assert seen[1].contract.idempotent
    assert (seen[1].contract.risk, seen[1].contract.version) == ("high", "2")
    assert lab.args(session)[1]["y"]["$rollcage"] == "secret"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"effects": {"adderr": "read"}}, "effects= names adderr; the tools are: adder"),
        ({"contracts": {"x": {}}}, "contracts= names x; the tools are: adder"),
        ({"effects": {"adder": "reed"}}, "effect='reed'"),
        ({"contracts": {"adder": {"efect": "read"}}}, "'efect'"),
    ],
)
def test_a_declaration_that_fits_nothing_is_refused(lab: Any, options: Any, said: str) -> None:
    with pytest.raises(ContractError, match=said.replace("(", r"\(")):
        guard_tools([Adder()], lab.session(), **options)


def test_what_is_no_tool_is_refused(lab: Any) -> None:
    wrong: Any = [add]
    with pytest.raises(ContractError, match="not a tool of LangChain"):
        guard_tools(wrong, lab.session())
    with pytest.raises(ContractError, match="nothing to guard"):
        guard_tools([StructuredTool(name="empty", args_schema=Point)], lab.session())
    with pytest.raises(ContractError, match="no signature"):
        guard_tools([StructuredTool(name="odd", args_schema=Point, func=dict)], lab.session())


@pytest.mark.parametrize("make", [Adder, lambda: StructuredTool.from_function(add)])
def test_a_guarded_tool_is_not_guarded_twice(lab: Any, make: Any) -> None:
    with lab.session() as session:
        (guarded,) = guard_tools([make()], session)
        assert guard_tools([guarded], session) == [guarded]
        assert guard_tools([guarded], session)[0] is guarded
        with pytest.raises(ContractError, match="guarded by this session already"):
            guard_tools([guarded], session, effects={guarded.name: "read"})
        with pytest.raises(ContractError, match="guarded by another session"):
            guard_tools([guarded], lab.session("other"))
        guarded.invoke({"x": 1})
    assert session.stats.calls == 1


def test_a_tool_of_a_halted_session_does_not_run(lab: Any) -> None:
    adder = Adder()
    session = lab.session()
    with pytest.raises(ValueError, match="enough"), session:
        (guarded,) = guard_tools([adder], session)
        session.halt(ValueError("enough"))
        with pytest.raises(SessionHalted):
            guarded.invoke({"x": 1})
    assert adder.ran == []


def test_a_coroutine_that_calls_its_own_other_body_is_one_step(lab: Any) -> None:
    async def go() -> None:
        async with lab.session() as session:
            (guarded,) = guard_tools([BothWays()], session)
            assert await guarded.ainvoke({"x": 1}) == 3
        assert session.stats.calls == 1

    asyncio.run(go())


async def test_a_coroutine_that_awaits_itself_is_one_step(lab: Any) -> None:
    class Retries(BaseTool):
        name: str = "retries"
        description: str = "Tries twice."

        def _run(self, attempt: int = 1) -> str:
            raise NotImplementedError

        async def _arun(self, attempt: int = 1) -> str:
            return await self._arun(2) if attempt == 1 else "second"

    async with lab.session() as session:
        (guarded,) = guard_tools([Retries()], session)
        assert await guarded.ainvoke({"attempt": 1}) == "second"
    assert session.stats.calls == 1


def test_a_tool_that_invokes_itself_makes_nested_steps(lab: Any) -> None:
    class Countdown(BaseTool):
        name: str = "countdown"
        description: str = "Counts down."

        def _run(self, start: int) -> str:
            return f"{start} {self.invoke({'start': start - 1})}" if start else "0"

    with lab.session() as session:
        (guarded,) = guard_tools([Countdown()], session)
        assert guarded.invoke({"start": 2}) == "2 1 0"
    steps = [e["step"] for e in lab.steps(session)]
    assert lab.parents(session) == [None, *steps[:-1]]


async def test_contextvars_reach_a_sync_body_under_await(lab: Any) -> None:
    who: ContextVar[str] = ContextVar("who", default="nobody")
    seen: list[Any] = []

    def look() -> str:
        """Look around."""
        seen.append((who.get(), current_step() is not None))
        return "seen"

    async with lab.session() as session:
        (guarded,) = guard_tools([StructuredTool.from_function(look)], session)
        who.set("ann")
        await guarded.ainvoke({})
    assert seen == [("ann", True)]
