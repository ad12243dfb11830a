"""Any existing tool, guarded: the same type, the same behaviour, its body run once."""

import asyncio
import functools
import sys
from contextvars import ContextVar
from typing import TYPE_CHECKING, Annotated, Any

import pytest
import rollcage
from langchain_core.callbacks import BaseCallbackHandler, CallbackManagerForToolRun
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import (
    ArgsSchema,
    BaseTool,
    InjectedToolArg,
    InjectedToolCallId,
    StructuredTool,
    Tool,
    ToolException,
    tool,
)
from langgraph.prebuilt import ToolRuntime
from pydantic import Base64Bytes, BaseModel, Field, Json, PrivateAttr
from rollcage import Blocked, Contract, Session, StepView, Verdict, current_step
from rollcage.errors import ArgumentsInvalid, ContractError, ReplayedError, SessionHalted
from rollcage_langchain import as_tools, guard_tools


def call(**args: Any) -> dict[str, Any]:
    """A tool call as LangChain hands it to a tool."""
    name = args.pop("name", "t")
    return {"name": name, "args": args, "id": "call-1", "type": "tool_call"}


def args_of(lab: Any, session: Session) -> list[Any]:
    """The recorded arguments of each step."""
    events = lab.events(session.run_id)
    return [e["args"] for e in events if e["event"] in ("step.started", "step.replayed")]


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
def test_a_sync_tool_replays(kind: str, lab: Any) -> None:
    plain = SYNC[kind]().invoke(call(x=1))
    for replay in ("auto", "offline"):
        with lab.session(replay=replay) as session:
            (guarded,) = guard_tools([SYNC[kind]()], session)
            message = guarded.invoke(call(x=1))
            assert message == plain
        assert session.stats.hits == (replay == "offline")
        assert session.stats.calls == 1


@pytest.mark.parametrize("kind", ASYNC)
async def test_an_async_call_replays(kind: str, lab: Any) -> None:
    plain = await ASYNC[kind]().ainvoke(call(x=1))
    for replay in ("auto", "offline"):
        async with lab.session(replay=replay) as session:
            (guarded,) = guard_tools([ASYNC[kind]()], session)
            assert await guarded.ainvoke(call(x=1)) == plain
        assert session.stats.hits == (replay == "offline")
        assert session.stats.calls == 1


@pytest.mark.parametrize("kind", [*SYNC])
def test_all_forms_of_a_call_have_one_key(kind: str, lab: Any) -> None:
    with lab.session() as session:
        (guarded,) = guard_tools([SYNC[kind]()], session)
        guarded.invoke(call(x=1))
        guarded.invoke(call(y=2, x=1))
        guarded.invoke({"x": 1, "y": 2})
        if kind != "dict schema":  # LangChain does not validate those
            guarded.invoke(call(x="1"))
    expected = {"x": 1, "y": 2}
    assert all(args == expected for args in args_of(lab, session)), args_of(lab, session)


def test_a_tool_of_one_text(lab: Any) -> None:
    def shout(text: str) -> str:
        return text.upper()

    with lab.session() as session:
        (guarded,) = guard_tools([Tool("shout", shout, "Shouts.")], session)
        assert guarded.invoke("hey") == "HEY"
        assert guarded.invoke(call(__arg1="hey")).content == "HEY"
    assert args_of(lab, session) == [{"tool_input": "hey"}] * 2


def test_a_text_for_a_structured_tool_is_its_first_argument(lab: Any) -> None:
    @tool
    def shout(text: str) -> str:
        """Shout."""
        return text.upper()

    with lab.session() as session:
        (guarded,) = guard_tools([shout], session)
        assert guarded.invoke("hey") == "HEY"
        assert guarded.invoke(call(text="hey")).content == "HEY"
    assert args_of(lab, session) == [{"text": "hey"}] * 2


def test_a_call_past_langchain_is_guarded_too(lab: Any) -> None:
    with lab.session() as session:
        guarded: Any = guard_tools([StructuredTool.from_function(add)], session)[0]
        assert guarded.func(1, y=3) == 4
    assert args_of(lab, session) == [{"x": 1, "y": 3}]


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


# --- arguments -----------------------------------------------------------------------------------


def test_validated_arguments_are_not_validated_twice(lab: Any) -> None:
    given: list[Any] = []

    @tool
    def take(data: Base64Bytes, what: Json[Any]) -> str:
        """Take things that are another form after validation."""
        given.append((data, what))
        return "taken"

    with lab.session() as session:
        (guarded,) = guard_tools([take], session)
        assert guarded.invoke(call(data="aGk=", what='{"a": 1}')).content == "taken"
    assert given == [(b"hi", {"a": 1})]


def test_injected_arguments_reach_the_body_and_are_no_part_of_the_call(lab: Any) -> None:
    given: list[Any] = []

    @tool
    def ask(
        question: str,
        who: Annotated[str, InjectedToolArg],
        call_id: Annotated[str, InjectedToolCallId],
        config: RunnableConfig,
    ) -> str:
        """Ask somebody."""
        given.append((who, call_id, config.get("metadata", {})["trace"]))
        return "answer"

    for replay in ("auto", "offline"):
        with lab.session(replay=replay) as session:
            (guarded,) = guard_tools([ask], session)
            config: RunnableConfig = {"metadata": {"trace": replay}}
            message = guarded.invoke(call(question="why", who=replay), config)
            assert message.content == "answer"
        assert args_of(lab, session) == [{"question": "why"}]
    assert given == [("auto", "call-1", "auto")]


def test_arguments_that_a_dict_schema_does_not_name_are_part_of_the_call(lab: Any) -> None:
    @tool(args_schema={"type": "object", "properties": {"x": {"type": "integer"}}})
    def loose(**more: Any) -> str:
        """Take anything."""
        return str(more)

    with lab.session() as session:
        (guarded,) = guard_tools([loose], session)
        guarded.invoke(call(x=1, z=2))
        guarded.invoke(call(x=1, z=3))
    assert args_of(lab, session) == [{"x": 1, "z": 2}, {"x": 1, "z": 3}]


def test_arguments_that_a_model_lets_pass_are_part_of_the_call(lab: Any) -> None:
    class Open(BaseModel, extra="allow"):
        x: int

    def take(**arguments: Any) -> str:
        return str(sorted(arguments))

    opened = StructuredTool(name="take", args_schema=Open, func=take)
    with lab.session() as session:
        (guarded,) = guard_tools([opened], session)
        assert guarded.invoke(call(x=1, z=2)).content == "['x', 'z']"
    assert args_of(lab, session) == [{"x": 1, "z": 2}]


def test_an_argument_without_an_encoding_is_refused_before_anything_happens(lab: Any) -> None:
    ran: list[Any] = []

    def take(x: Any) -> str:
        """Take it."""
        ran.append(x)
        return "taken"

    with lab.session() as session:
        (guarded,) = guard_tools([StructuredTool.from_function(take)], session)
        with pytest.raises(ArgumentsInvalid, match="x"):
            guarded.invoke({"x": object()})
    assert ran == []


# LangChain warns of it, guarded or not.
@pytest.mark.filterwarnings("ignore:Field name:UserWarning")
def test_parameters_may_be_called_as_pydantic_calls_its_own(lab: Any) -> None:
    class Names(BaseTool):
        name: str = "names"
        description: str = "Takes odd names."

        def _run(self, json: str, copy: int = 1) -> str:
            return f"{json} {copy}"

    with lab.session() as session:
        (guarded,) = guard_tools([Names()], session)
        assert guarded.invoke({"json": "a"}) == "a 1"
    assert args_of(lab, session) == [{"json": "a", "copy": 1}]


if TYPE_CHECKING:
    from decimal import Decimal as Unknown  # known to type checkers only


def half_known(place: str, runtime: ToolRuntime, more: "Unknown | None" = None) -> str:
    """Look."""
    return f"{place} {more}"


half_known.__annotations__["runtime"] = "ToolRuntime"


def test_an_annotation_that_can_not_be_resolved_hides_no_other(lab: Any) -> None:
    schema = {"type": "object", "properties": {"place": {"type": "string"}}}
    original = StructuredTool(name="look", args_schema=schema, func=half_known)
    with lab.session() as session:
        (guarded,) = guard_tools([original], session)
        assert guarded.invoke({"place": "here", "runtime": object()}) == "here None"
    assert args_of(lab, session) == [{"place": "here"}]


class Scale:
    """An object that can be called."""

    def __call__(self, x: int, *more: int) -> int:
        return x * 2 + sum(more)


def test_an_object_that_can_be_called_is_a_body(lab: Any) -> None:
    original = StructuredTool(name="scale", args_schema=Point, func=Scale())
    with lab.session() as session:
        guarded: Any = guard_tools([original], session)[0]
        assert guarded.func(1, 2, 3) == 7
    assert args_of(lab, session)[0]["args"] == [2, 3]


def test_a_builtin_that_tells_no_signature_is_a_body(lab: Any) -> None:
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}}
    original = StructuredTool(name="make", args_schema=schema, func=dict)
    with lab.session() as session:
        (guarded,) = guard_tools([original], session)
        assert guarded.invoke({"x": 1}) == {"x": 1}
    assert args_of(lab, session) == [{"x": 1}]


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="Pydantic v1 ends with Python 3.13")
def test_a_schema_of_pydantic_v1_works(lab: Any) -> None:
    from pydantic import v1

    class Old(v1.BaseModel):
        x: int
        y: int = 2

    old: Any = Old
    original = StructuredTool(name="add", args_schema=old, func=add)
    with lab.session() as session:
        (guarded,) = guard_tools([original], session)
        assert guarded.invoke(call(x="1")).content == "3"
    assert args_of(lab, session) == [{"x": 1, "y": 2}]


# --- errors, artifacts, callbacks ----------------------------------------------------------------


class Flaky(Exception):
    """An error of a tool's own."""


@pytest.mark.parametrize(
    ("error", "declared", "replayed"),
    [
        (ToolException("not now"), (), ToolException),
        (ValueError("no"), (), ValueError),
        (Flaky("oh"), (Flaky,), Flaky),
        (Flaky("oh"), (), ReplayedError),
    ],
)
def test_a_tool_error_is_itself_live_and_in_replay(
    lab: Any, error: Exception, declared: Any, replayed: type[Exception]
) -> None:
    def fail() -> str:
        """Fail."""
        raise error

    seen: list[BaseException] = []
    for replay in ("auto", "offline"):
        with lab.session(replay=replay) as session:
            failing, fine = guard_tools(
                [StructuredTool.from_function(fail), StructuredTool.from_function(add)],
                session,
                contracts={"fail": {"raises": declared}},
            )
            with pytest.raises(Exception) as caught:  # noqa: PT011 - its type is what is tested
                failing.invoke({})
            seen.append(caught.value)
            fine.invoke({"x": 1})
    assert seen[0] is error
    assert type(seen[1]) is replayed
    assert str(error) in str(seen[1])


def test_handle_tool_error_handles_a_replayed_one_too(lab: Any) -> None:
    def fail() -> str:
        """Fail."""
        raise ToolException("not now")

    for replay in ("auto", "offline"):
        with lab.session(replay=replay) as session:
            original = StructuredTool.from_function(fail, handle_tool_error=lambda e: f"sorry: {e}")
            (guarded,) = guard_tools([original], session)
            message = guarded.invoke(call())
            assert (message.content, message.status) == ("sorry: not now", "error")


def test_an_artifact_comes_back(lab: Any) -> None:
    @tool(response_format="content_and_artifact")
    def look(place: str) -> tuple[str, dict[str, Any]]:
        """Look."""
        return f"saw {place}", {"raw": (1, b"2")}

    messages = []
    for replay in ("auto", "offline"):
        with lab.session(replay=replay) as session:
            (guarded,) = guard_tools([look], session)
            messages.append(guarded.invoke(call(place="here")))
    assert messages[0] == messages[1]
    assert messages[1].artifact == {"raw": (1, b"2")}


def test_a_result_of_a_declared_type_comes_back_as_that_type(lab: Any) -> None:
    @tool
    def point() -> Point:
        """Give a point."""
        return Point(x=1)

    for replay in ("auto", "offline"):
        with lab.session(replay=replay) as session:
            (guarded,) = guard_tools([point], session)
            assert guarded.invoke({}) == Point(x=1)


class Heard(BaseCallbackHandler):
    """Notes what it hears of tools."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []

    def on_tool_start(self, serialized: Any, input_str: str, **kwargs: Any) -> None:
        self.events.append(("start", (kwargs["tags"], kwargs["metadata"]["team"])))

    def on_tool_end(self, output: Any, **kwargs: Any) -> None:
        self.events.append(("end", output.content))

    def on_tool_error(self, error: BaseException, **kwargs: Any) -> None:
        self.events.append(("error", type(error)))


def test_callbacks_hear_of_live_and_replayed_calls_alike(lab: Any) -> None:
    heard: list[Any] = []
    for replay in ("auto", "offline"):
        handler = Heard()
        original = StructuredTool.from_function(
            add, callbacks=[handler], tags=["sums"], metadata={"team": "red"}
        )
        with lab.session(replay=replay) as session:
            (guarded,) = guard_tools([original], session)
            guarded.invoke(call(x=1))
        heard.append(handler.events)
    assert heard[0] == heard[1] == [("start", (["sums"], "red")), ("end", "3")]


def test_a_body_still_gets_its_run_manager_and_callbacks(lab: Any) -> None:
    given: list[Any] = []

    def work(x: int, callbacks: Any = None) -> int:
        """Work."""
        given.append(callbacks)
        return x

    subclass = Adder()
    with lab.session() as session:
        one, two = guard_tools([StructuredTool.from_function(work), subclass], session)
        one.invoke({"x": 1})
        two.invoke({"x": 1})
    assert given[0] is not None
    assert subclass.ran == ["sync"]
    assert args_of(lab, session) == [{"x": 1}, {"x": 1, "y": 2}]


# --- the session ---------------------------------------------------------------------------------


def test_a_denied_call_raises_and_runs_nothing(lab: Any) -> None:
    def no(step: StepView) -> Verdict:
        return Verdict.deny(f"no {step.name}")

    adder = Adder()
    with lab.session(rules=[no]) as session:
        (guarded,) = guard_tools([adder], session)
        with pytest.raises(Blocked, match="no adder"):
            guarded.invoke({"x": 1})
    assert adder.ran == []


def test_effects_and_contracts_are_what_rules_see(lab: Any) -> None:
    seen: list[StepView] = []
    with lab.session(rules=[seen.append]) as session:
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
    assert args_of(lab, session)[1]["y"]["$rollcage"] == "secret"


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
    with pytest.raises(ContractError, match="no tool of LangChain"):
        guard_tools(wrong, lab.session())
    with pytest.raises(ContractError, match="nothing to guard"):
        guard_tools([StructuredTool(name="empty", args_schema=Point)], lab.session())


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
    started = [e for e in lab.events(session.run_id) if e["event"] == "step.started"]
    steps = [e["step"] for e in started]
    assert [e.get("parent") for e in started] == [None, *steps[:-1]]


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


# --- as_tools ------------------------------------------------------------------------------------


@rollcage.tool(effect="read", raises=[Flaky])
def fetch(city: str, days: int = 1) -> str:
    """Look at the weather."""
    return f"{city} {days} {current_step() is not None}"


@rollcage.tool
async def post(text: str) -> str:
    """Post it."""
    return f"posted {text}"


def test_declared_functions_become_tools_with_their_contracts_schema() -> None:
    one, two = as_tools([fetch, post])
    assert (one.name, one.description) == ("fetch", "Look at the weather.")
    assert set(one.args) == {"city", "days"}
    assert (one.func is None, one.coroutine is None) == (False, True)
    assert (two.func is None, two.coroutine is None) == (True, False)


def test_they_are_guarded_by_the_session_around_them(lab: Any) -> None:
    (made, _) = as_tools([fetch, post])
    assert made.invoke({"city": "Lima"}) == "Lima 1 False"
    with lab.session() as session:
        assert made.invoke({"city": "Lima", "days": "2"}) == "Lima 2 True"
    assert args_of(lab, session) == [{"city": "Lima", "days": 2}]


async def test_they_are_guarded_once_by_the_session_that_is_given(lab: Any) -> None:
    for replay in ("auto", "offline"):
        async with lab.session(replay=replay) as session:
            one, two = as_tools([fetch, post], session)
            assert await two.ainvoke({"text": "hi"}) == "posted hi"
            assert await one.ainvoke({"city": "Lima"}) == "Lima 1 True"
        started = [e for e in lab.events(session.run_id) if "effect" in e]
        assert [e["name"] for e in started] == ["post", "fetch"]
        assert session.stats.calls == 2


def test_a_declared_function_in_an_existing_tool_keeps_its_contract(lab: Any) -> None:
    with lab.session() as session:
        (guarded,) = guard_tools([StructuredTool.from_function(fetch)], session)
        guarded.invoke({"city": "Lima"})
    (started,) = [e for e in lab.events(session.run_id) if e["event"] == "step.started"]
    assert started["effect"] == "read"


def test_a_function_without_a_declaration_is_refused() -> None:
    with pytest.raises(ContractError, match=r"@rollcage\.tool"):
        as_tools([add])


def test_the_runtime_is_no_part_of_the_call(lab: Any) -> None:
    @tool
    def look(place: str, runtime: ToolRuntime) -> str:
        """Look."""
        return f"{place} {runtime.tool_call_id}"

    runtime: Any = ToolRuntime(
        state={}, context=None, config={}, stream_writer=print, tool_call_id="call-1", store=None
    )
    with lab.session() as session:
        (guarded,) = guard_tools([look], session)
        message = guarded.invoke(call(place="here", runtime=runtime))
        assert message.content == "here call-1"
    assert args_of(lab, session) == [{"place": "here"}]
