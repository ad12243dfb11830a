"""Guarded tools are the tools that they were, and each call of them is a step."""

import asyncio
import datetime as dt
from collections.abc import AsyncGenerator, Mapping
from typing import Annotated, Any

import pytest
import rollcage
from autogen_agentchat.base import TaskResult
from autogen_agentchat.messages import TextMessage
from autogen_agentchat.tools import AgentTool
from autogen_core import CancellationToken
from autogen_core.tools import BaseStreamTool, BaseTool, BaseToolWithState, FunctionTool
from pydantic import BaseModel, BeforeValidator, Field
from rollcage import ContractError, ReplayedError, current_step
from rollcage_autogen import as_tools, guard_tools

TOKEN = CancellationToken()


def add(x: int, y: int = 2) -> int:
    """Add two numbers."""
    return x + y


async def call(tool: Any, **arguments: Any) -> Any:
    """Call a tool as an agent does."""
    return await tool.run_json(arguments, TOKEN, call_id="call-1")


# --- the same tools ------------------------------------------------------------------------------


async def test_a_guarded_tool_is_of_the_same_type_and_looks_the_same(lab: Any) -> None:
    original = FunctionTool(add, "Adds.", name="plus")
    with lab.session() as session:
        (guarded,) = guard_tools([original], session)
        assert isinstance(guarded, FunctionTool)
        assert guarded.schema == original.schema
        assert guarded.name == "plus"
        assert guarded.args_type() is original.args_type()
        assert guarded.return_type() is int
        assert guarded.return_value_as_string([1]) == "[1]"
        assert await call(guarded, x="1") == 3
        assert await call(original, x=1) == 3
        assert guard_tools([guarded], session) == [guarded]
    (step,) = lab.steps(session)
    assert (step["name"], step["args"], step["call_id"]) == ("plus", {"x": 1, "y": 2}, "call-1")
    assert step["outcome"] == {"status": "ok", "value": 3}


def hold(at: dt.date, *, often: Annotated[int, "How often."] = 1) -> str:
    """Hold it."""
    return f"{at} {often}"


class Node(BaseModel):
    """A type that refers to itself: AutoGen's schema of it does, too."""

    inner: "Node | None" = None


def grow(node: Node) -> None:
    """Grow it."""


async def test_its_schema_is_kept_and_yet_whoever_reads_it_may_change_it(
    lab: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = [FunctionTool(add, "Adds."), FunctionTool(hold, "Holds.")]
    with lab.session() as session:
        for original, guarded in zip(tools, guard_tools(tools, session), strict=True):
            for _ in range(3):
                found: Any = guarded.schema
                assert found == original.schema
                found["description"] = "Something else."
                found["parameters"]["properties"].clear()
        (guarded,) = guard_tools(tools[:1], session)
        wanted, built = guarded.schema, []
        monkeypatch.setattr(guarded.args_type(), "model_json_schema", lambda: built.append(1))
        assert guarded.schema == wanted
        assert built == []


async def test_a_schema_that_json_can_not_hold_is_the_same(lab: Any) -> None:
    original = FunctionTool(grow, "Grows.")
    with lab.session() as session:
        guarded = guard_tools([original], session)[0]
        for _ in range(2):
            assert repr(guarded.schema) == repr(original.schema)


async def test_a_schema_of_its_own_is_asked_for_each_time(lab: Any) -> None:
    class Moody(FunctionTool):
        asked = 0

        @property
        def schema(self) -> Any:
            self.asked += 1
            return {"name": "add", "description": f"Asked {self.asked} times."}

    with lab.session() as session:
        guarded: Any = guard_tools([Moody(add, "Adds.")], session)[0]
        first = guarded.schema["description"]
        assert guarded.schema["description"] != first


async def test_it_can_be_run_without_an_agent(lab: Any) -> None:
    with lab.session() as session:
        (guarded,) = guard_tools([FunctionTool(add, "Adds.")], session)
        assert await guarded.run(guarded.args_type()(x=5), TOKEN) == 7
        assert session.stats.misses == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"effects": {"other": "read"}}, "effects= names other; the tools are: add"),
        ({"contracts": {"add": {"colour": "red"}}}, "'colour'"),
        ({"effects": {"add": "purple"}}, "purple"),
    ],
)
def test_a_declaration_that_can_not_be_used(lab: Any, arguments: Any, said: str) -> None:
    with lab.session() as session, pytest.raises(ContractError, match=said):
        guard_tools([FunctionTool(add, "Adds.")], session, **arguments)


def test_what_is_no_tool_is_refused_with_a_way_out(lab: Any) -> None:
    tools: Any = [add]
    with lab.session() as session, pytest.raises(ContractError, match="as_tools makes one"):
        guard_tools(tools, session)


def test_a_tool_is_guarded_once(lab: Any) -> None:
    with lab.session("one") as one, lab.session("two", inner=True) as two:
        guarded = guard_tools([FunctionTool(add, "Adds.")], one)
        with pytest.raises(ContractError, match="another session"):
            guard_tools(guarded, two)
        with pytest.raises(ContractError, match="this session"):
            guard_tools(guarded, one, effects={"add": "read"})


def test_a_declared_function_brings_its_contract(lab: Any) -> None:
    @rollcage.tool(effect="pure", version="7")
    def twice(x: int) -> int:
        """Double a number."""
        return 2 * x

    with lab.session() as session:
        (guarded,) = guard_tools([FunctionTool(twice, "Doubles.")], session)
        assert asyncio.run(call(guarded, x=4)) == 8
    (step,) = lab.steps(session)
    assert (step["effect"], step["version"]) == ("pure", "7")


async def test_state_is_saved_and_loaded(lab: Any) -> None:
    class Count(BaseModel):
        count: int = 0

    class NoArgs(BaseModel):
        pass

    class Counter(BaseToolWithState[NoArgs, Count, Count]):
        def __init__(self) -> None:
            super().__init__(NoArgs, Count, Count, "count", "Count.")
            self.state = Count()

        async def run(self, args: NoArgs, cancellation_token: CancellationToken) -> Count:
            self.state.count += 1
            return self.state.model_copy()

        def save_state(self) -> Count:
            return self.state

        def load_state(self, state: Count) -> None:
            self.state = state

    with lab.session() as session:
        (guarded,) = guard_tools([Counter()], session)
        await guarded.load_state_json({"count": 4})
        assert await call(guarded) == Count(count=5)
        assert await guarded.save_state_json() == {"count": 5}
    with lab.session(replay="offline") as session:
        (guarded,) = guard_tools([Counter()], session)
        assert await call(guarded) == Count(count=5)


# --- arguments -----------------------------------------------------------------------------------


async def test_a_token_is_injected_and_no_part_of_the_call(lab: Any) -> None:
    seen: list[CancellationToken] = []

    def sync(x: int, cancellation_token: CancellationToken) -> str:
        seen.append(cancellation_token)
        return f"sync {x}"

    async def asynchronous(x: int, cancellation_token: CancellationToken) -> str:
        seen.append(cancellation_token)
        return f"async {x}"

    originals = [FunctionTool(sync, ""), FunctionTool(asynchronous, "")]
    for replay in ("off", "offline"):
        with lab.session(replay=replay) as session:
            tools = guard_tools(originals, session)
            assert [await call(tool, x=1) for tool in tools] == ["sync 1", "async 1"]
        assert [step["args"] for step in lab.steps(session)] == [{"x": 1}] * 2
    assert seen == [TOKEN, TOKEN]


async def test_arguments_are_validated_once(lab: Any) -> None:
    """Validating them twice would fail, or change them."""

    def opened(value: Any) -> Any:
        assert isinstance(value, str)
        return {"text": value}

    class Args(BaseModel):
        box: Annotated[dict[str, str], BeforeValidator(opened)]
        count: int = Field(alias="howMany")

    class Boxes(BaseTool[Args, Any]):
        def __init__(self) -> None:
            super().__init__(Args, str, "boxes", "Open a box.")

        async def run(self, args: Args, cancellation_token: CancellationToken) -> str:
            return f"{args.count} x {args.box['text']}"

    with lab.session() as session:
        (guarded,) = guard_tools([Boxes()], session)
        assert await call(guarded, box="b", howMany="2") == "2 x b"
    assert lab.steps(session)[0]["args"] == {"box": {"text": "b"}, "count": 2}


async def test_a_secret_argument_stays_out_of_the_trace(lab: Any) -> None:
    def log_in(user: str, password: str) -> str:
        return f"hello {user}"

    for replay in ("off", "offline"):
        with lab.session(replay=replay) as session:
            declared = {"log_in": {"secret": "password"}}
            (guarded,) = guard_tools([FunctionTool(log_in, "")], session, contracts=declared)
            assert await call(guarded, user="ann", password="hunter2") == "hello ann"
        assert "hunter2" not in repr(lab.lines(session))


# --- bodies --------------------------------------------------------------------------------------


@pytest.mark.parametrize("replay", ["off", "resume"])
async def test_sync_and_async_bodies_know_their_step(lab: Any, replay: Any) -> None:
    @rollcage.tool(effect="write")
    def note(line: str) -> str:
        """Write a line."""
        return f"noted {line}"

    def sync(x: int) -> str:
        step = current_step()
        assert step is not None
        return f"{step.name}: {note(line=str(x))}"

    async def asynchronous(x: int) -> str:
        step = current_step()
        assert step is not None
        return f"{step.name}: {note(line=str(x))}"

    with lab.session(replay="off") as session:
        tools = guard_tools([FunctionTool(sync, ""), FunctionTool(asynchronous, "")], session)
        found = [await call(tool, x=1) for tool in tools]
    assert found == ["sync: noted 1", "asynchronous: noted 1"]
    steps = lab.steps(session)
    assert [(step["name"], step.get("parent")) for step in steps] == [
        ("sync", None),
        ("note", 0),
        ("asynchronous", None),
        ("note", 2),
    ]


async def test_a_body_of_a_tool_that_overrides_run_json_is_guarded(lab: Any) -> None:
    class Args(BaseModel):
        x: int

    ran: list[Mapping[str, Any]] = []

    class Own(BaseTool[Args, Any]):
        def __init__(self) -> None:
            super().__init__(Args, str, "own", "A body of its own.")

        async def run(self, args: Args, cancellation_token: CancellationToken) -> str:
            return "by run"

        async def run_json(
            self,
            args: Mapping[str, Any],
            cancellation_token: CancellationToken,
            call_id: str | None = None,
        ) -> Any:
            ran.append(args)
            return "by run_json, and " + await self.run(Args(**args), cancellation_token)

    for replay in ("off", "offline"):
        with lab.session(replay=replay) as session:
            (guarded,) = guard_tools([Own()], session)
            assert await call(guarded, x="1") == "by run_json, and by run"
        assert [step["args"] for step in lab.steps(session)] == [{"x": 1}]
    assert ran == [{"x": "1"}]


# --- results -------------------------------------------------------------------------------------


class Found(BaseModel):
    name: str
    places: list[str] = []


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ([1, "a", None], list[Any]),
        ({"b": 1.5}, dict[str, Any]),
        (None, type(None)),
        ((1, 2), tuple[int, int]),
        (Found(name="é", places=["x"]), Found),
        ([Found(name="a")], list[Found]),
    ],
)
async def test_results_come_back_as_they_were_and_read_the_same(
    lab: Any, value: Any, kind: Any
) -> None:
    def give() -> Any:
        return value

    give.__annotations__["return"] = kind
    original = FunctionTool(give, "Give.")
    for replay in ("off", "offline"):
        with lab.session(replay=replay) as session:
            (guarded,) = guard_tools([original], session)
            given = await call(guarded)
            assert given == value
            assert type(given) is type(value)
            live = original.return_value_as_string(value)
            assert guarded.return_value_as_string(given) == live


async def test_an_error_of_an_unknown_type_reads_the_same_in_replay(lab: Any) -> None:
    class Odd(Exception):
        pass

    def fail() -> str:
        raise Odd("it is odd")

    with lab.session() as session:
        (guarded,) = guard_tools([FunctionTool(fail, "")], session)
        with pytest.raises(Odd, match=r"^it is odd$"):
            await call(guarded)
    with lab.session(replay="offline") as session:
        (guarded,) = guard_tools([FunctionTool(fail, "")], session)
        with pytest.raises(ReplayedError, match=r"^it is odd$") as replayed:
            await call(guarded)
    assert replayed.value.type_name.endswith("Odd")


async def test_what_was_recorded_elsewhere_replays_here(lab: Any, results: Any) -> None:
    def look(place: str, often: int = 1) -> list[str]:
        """Look at a place."""
        return [f"saw {place}"] * often

    with lab.session() as session:  # plain Python
        assert session.call(look, place="a") == ["saw a"]
    with lab.session(replay="offline") as session:
        client = lab.client([("look", {"place": "a", "often": "1"})], "end")
        agent = lab.agent(client, tools=guard_tools([FunctionTool(look, "")], session))
        ended = await agent.run(task="Go.")
    assert results(ended) == [("['saw a']", False)]
    assert session.stats.hits == 1


# --- streams -------------------------------------------------------------------------------------


class Words(BaseModel):
    text: str


class Step(BaseModel):
    word: str


class Total(BaseModel):
    words: int


class Counting(BaseStreamTool[Words, Step, Total]):
    """Gives each word, and then how many there were."""

    ran = 0

    def __init__(self) -> None:
        super().__init__(Words, Total, "counting", "Count words.")

    async def run(self, args: Words, cancellation_token: CancellationToken) -> Total:
        last: Any = None
        async for each in self.run_stream(args, cancellation_token):
            last = each
        assert isinstance(last, Total)
        return last

    async def run_stream(
        self, args: Words, cancellation_token: CancellationToken
    ) -> AsyncGenerator[Step | Total, None]:
        type(self).ran += 1
        for word in args.text.split():
            yield Step(word=word)
        yield Total(words=len(args.text.split()))


class Told(BaseStreamTool[Words, Any, Any]):
    """Gives texts only."""

    def __init__(self) -> None:
        super().__init__(Words, str, "told", "Tell.")

    async def run(self, args: Words, cancellation_token: CancellationToken) -> str:
        return "all"

    async def run_stream(
        self, args: Words, cancellation_token: CancellationToken
    ) -> AsyncGenerator[str, None]:
        yield "some"
        yield "all"


async def stream(tool: Any, **arguments: Any) -> list[Any]:
    return [each async for each in tool.run_json_stream(arguments, TOKEN, call_id="call-1")]


async def test_a_stream_replays_in_its_pieces_and_answers_a_plain_call(lab: Any) -> None:
    with lab.session() as session:
        (guarded,) = guard_tools([Told()], session)
        assert await stream(guarded, text="x") == ["some", "all"]
    for ask, expected in ((stream, ["some", "all"]), (call, "all")):
        with lab.session(replay="offline") as session:
            (guarded,) = guard_tools([Told()], session)
            assert await ask(guarded, text="x") == expected
        (step,) = lab.steps(session)
        assert step["call_id"] == "call-1"


async def test_a_plain_call_answers_a_stream(lab: Any) -> None:
    with lab.session() as session:
        (guarded,) = guard_tools([Counting()], session)
        assert await call(guarded, text="a b") == Total(words=2)
        assert session.stats.calls == 1  # that it streams inside of itself is no step of its own
    with lab.session(replay="offline") as session:
        (guarded,) = guard_tools([Counting()], session)
        assert await stream(guarded, text="a b") == [Total(words=2)]


async def test_a_tool_recorded_elsewhere_answers_a_plain_call_of_a_stream(lab: Any) -> None:
    def told(text: str) -> str:
        return "all of it"

    with lab.session() as session:
        session.call(told, text="x")
    with lab.session(replay="offline") as session:
        (guarded,) = guard_tools([Told()], session)
        assert await call(guarded, text="x") == "all of it"


async def test_an_agent_as_a_tool_is_a_scope_and_its_events_replay(lab: Any) -> None:
    inner_ran: list[str] = []

    def send(text: str) -> str:
        inner_ran.append(text)
        return f"sent {text}"

    async def play(session: Any, *, stream: bool) -> tuple[TaskResult, Any, Any]:
        inner = lab.client([("send", {"text": "a"})], "written")
        writer = lab.agent(
            inner, session, name="writer", tools=guard_tools([FunctionTool(send, "")], session)
        )
        client = lab.client([("writer", {"task": "Write."})], "end")
        tools = guard_tools(
            [AgentTool(writer, return_value_as_last_message=True)],
            session,
            effects={"writer": "scope"},
        )
        agent = lab.agent(client, session, tools=tools, model_client_stream=stream)
        return await agent.run(task="Go."), client, inner

    with lab.session() as session:
        recorded, _, _ = await play(session, stream=False)
    names = [(step["name"], step.get("parent")) for step in lab.steps(session)]
    assert [name for name, _ in names] == ["writer", "send"]
    assert names[1][1] is not None
    for streamed in (False, True):
        with lab.session(replay="offline") as session:
            replayed, client, inner = await play(session, stream=streamed)
        assert (client.asked, inner.asked, inner_ran) == ([], [], ["a"])
        assert [m.to_text() for m in replayed.messages] == [m.to_text() for m in recorded.messages]
        assert [type(m) for m in replayed.messages] == [type(m) for m in recorded.messages]
    assert any(isinstance(m, TextMessage) and m.source == "writer" for m in recorded.messages)


# --- declared functions --------------------------------------------------------------------------


@rollcage.tool(effect="read")
def shout(text: str, *, loud: Annotated[int, Field(ge=1)] = 1) -> str:
    """Shout a text."""
    step = current_step()
    return text.upper() + "!" * loud + ("" if step is None else f" ({step.name})")


@rollcage.tool(effect="pure")
async def whisper(text: str) -> str:
    """Whisper a text."""
    return text.lower()


async def test_declared_functions_are_native_tools(lab: Any) -> None:
    tools = as_tools([shout, whisper])
    assert [type(tool).__mro__[1] for tool in tools] == [FunctionTool] * 2
    assert [(tool.name, tool.description) for tool in tools] == [
        ("shout", "Shout a text."),
        ("whisper", "Whisper a text."),
    ]
    assert await call(tools[0], text="a") == "A!"  # no session around: it runs plainly
    with lab.session() as session:
        assert await call(tools[0], text="a", loud="2") == "A!! (shout)"
        assert await call(tools[1], text="B") == "b"
        assert session.stats.calls == 2
    with lab.session("other") as session:
        (bound,) = as_tools([shout], session)
        assert await call(bound, text="a") == "A! (shout)"
    (step,) = lab.steps(session)
    assert (step["args"], step["effect"]) == ({"text": "a", "loud": 1}, "read")


def test_an_undeclared_function_is_refused() -> None:
    with pytest.raises(ContractError, match=r"decorate it with @rollcage.tool"):
        as_tools([add])


async def test_whatever_can_be_declared_is_a_tool(lab: Any) -> None:
    @rollcage.tool
    def odd(x, **more: int) -> str:  # type: ignore[no-untyped-def] # AutoGen's own would refuse it
        return f"{x} {more}"

    for session in (None, lab.session()):
        with session or lab.session("unused"):
            (tool,) = as_tools([odd], session)
            assert await call(tool, x=1, y="2") == "1 {'y': 2}"


# --- calls by other code than an agent's ---------------------------------------------------------


async def test_a_timeout_around_a_call_is_a_timeout(lab: Any) -> None:
    begun = asyncio.Event()

    async def wait() -> str:
        begun.set()
        await asyncio.Event().wait()
        return "never"

    with lab.session() as session:
        (guarded,) = guard_tools([FunctionTool(wait, "")], session, effects={"wait": "read"})
        running = asyncio.ensure_future(call(guarded))
        await begun.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await call(guarded)


async def test_a_stream_that_is_left_early_is_cut(lab: Any) -> None:
    with lab.session() as session:
        (guarded,) = guard_tools([Told()], session, effects={"told": "read"})
        pieces: Any = guarded.run_json_stream({"text": "x"}, TOKEN)
        assert await anext(pieces) == "some"
        await pieces.aclose()
    assert lab.steps(session)[0]["outcome"]["cut"] is True


async def test_a_guarded_tool_in_the_body_of_another_is_nested_in_it(lab: Any) -> None:
    with lab.session() as session:
        (inner,) = guard_tools([FunctionTool(add, "")], session)

        async def outer(x: int) -> int:
            first = await call(inner, x=x)
            second: int = await inner.run(inner.args_type()(x=first), TOKEN)
            return second

        agent = lab.agent(
            lab.client([("outer", {"x": 1})], "end"),
            session,
            tools=guard_tools([FunctionTool(outer, "")], session),
        )
        await agent.run(task="Go.")
    steps = lab.steps(session)
    assert [(step["name"], step.get("parent")) for step in steps] == [
        ("outer", None),
        ("add", 0),
        ("add", 0),
    ]
    assert [step["turn"] for step in steps] == [0, 0, 1]


async def test_strict_refuses_what_autogen_would_coerce(lab: Any, within: Any) -> None:
    ran: list[int] = []

    def count(n: int) -> str:
        ran.append(n)
        return "counted"

    tool = FunctionTool(count, description="Count.")
    script = [[("count", {"n": "3"}), ("count", {"n": 3})], "end"]
    keys = set()
    for strict in (True, False):
        async with lab.session(strict=strict, replay="off") as session:
            (guarded,) = guard_tools([tool], session)
            agent = lab.agent(lab.client(*script), session, tools=[guarded])
            await within(agent.run(task="Go."))
        keys |= {step["key"] for step in lab.steps(session)}
        lines = [e for e in lab.lines(session) if e["event"] == "refused"]
        assert [e["args"] for e in lines] == ([{"n": "3"}] if strict else [])
    assert ran == [3, 3, 3]
    assert len(keys) == 1
