"""The bases that adapters extend: one flow around a body, however it is called."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import pydantic
import pytest
from rollcage import (
    Approval,
    ApprovalRequest,
    Blocked,
    Contract,
    ContractError,
    Halt,
    ReplayMiss,
    Session,
    SessionHalted,
    StepView,
    Verdict,
    tool,
)
from rollcage.trace.chain import parse
from rollcage_adapter import (
    GUARD,
    Answer,
    BodyForm,
    GuardedCall,
    GuardedModel,
    GuardedTool,
    Instead,
    LateTools,
    ModelCall,
    Parts,
    RecordedAnswers,
    Signature,
    ToolRequest,
    as_object,
    as_written,
    declare_tool,
    gathered,
    guard_of,
    guarding,
    model_request,
    offered,
    plain_body,
    refuse_bare,
    register_parts,
    slot_of,
    subclass,
)

ECHO = Contract(name="echo", parameters={"properties": {"text": {"type": "string"}}}, effect="read")


class Call(GuardedCall):
    """A call of a framework that writes results in capitals, and hands around a token."""

    answered = (Blocked,)

    def __init__(self, session: Session, text: str) -> None:
        super().__init__(session, ECHO, {"text": text})

    def instead(self, inside: Callable[..., Any]) -> Instead:
        return Instead(gathered(lambda values: inside(values["text"])), lambda value: value)

    def kept(self, value: Any) -> Any:
        return {"kept": value}

    def given(self, value: Any) -> Any:
        return value["kept"].upper()

    def kept_piece(self, piece: Any) -> Any:
        return [piece]

    def given_piece(self, piece: Any) -> Any:
        return piece[0].upper()

    def refusal(self, error: Exception) -> str:
        return f"refused: {error}"


class Guard(GuardedTool):
    def call(self, owner: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call:
        return Call(self.session, *args, **kwargs)


class Bodies:
    """The same body in each form, which says in which thread it ran."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.threads: list[int] = []

    def _ran(self, text: str) -> str:
        self.ran.append(text)
        self.threads.append(threading.get_ident())
        return text

    def run(self, text: str) -> str:
        return self._ran(text)

    async def arun(self, text: str) -> str:
        return self._ran(text)

    thread = run

    def stream(self, text: str) -> Iterator[str]:
        self._ran(text)
        yield from text

    async def astream(self, text: str) -> AsyncIterator[str]:
        self._ran(text)
        for piece in text:
            yield piece


def call(guard: GuardedTool, bodies: Any, form: BodyForm, text: str) -> Any:
    """Call a guarded body as its form is called; of a stream, its pieces in one."""
    guarded = guard.function(getattr(bodies, form), form)

    async def acall() -> Any:
        if form == "astream":
            return "".join([piece async for piece in guarded(text)])
        return await guarded(text)

    if form in ("arun", "thread", "astream"):
        return asyncio.run(acall())
    return guarded(text) if form == "run" else "".join(guarded(text))


REPLAYS: Sequence[Literal["off", "offline"]] = ("off", "offline")
FORMS: Sequence[BodyForm] = ("run", "arun", "thread", "stream", "astream")


@pytest.mark.parametrize("form", FORMS)
def test_a_body_is_recorded_and_replayed_in_each_form(tmp_path: Path, form: BodyForm) -> None:
    bodies = Bodies()
    for replay in REPLAYS:
        with Session("job", store=tmp_path, replay=replay) as session:
            assert call(Guard(session, ECHO), bodies, form, "hey") == "HEY"
    assert bodies.ran == ["hey"]
    assert (bodies.threads == [threading.get_ident()]) is (form != "thread")


@pytest.mark.parametrize("form", FORMS)
def test_a_refusal_is_answered_where_the_framework_can_be(tmp_path: Path, form: BodyForm) -> None:
    def deny(step: StepView) -> Verdict:
        return Verdict.deny(f"no {step.name} here")

    bodies = Bodies()
    with Session("job", store=tmp_path, gate=[deny]) as session:
        if form in ("stream", "astream"):
            with pytest.raises(Blocked, match="no echo here"):
                call(Guard(session, ECHO), bodies, form, "hey")
        else:
            said = call(Guard(session, ECHO), bodies, form, "hey")
            assert said.startswith("refused: ")
    assert bodies.ran == []


@pytest.mark.parametrize("form", ["run", "arun", "thread"])
def test_an_edited_call_reaches_the_body_in_the_frameworks_own_form(
    tmp_path: Path, form: BodyForm
) -> None:
    def ask(_: StepView) -> Verdict:
        return Verdict.ask("may it?")

    def edit(_: ApprovalRequest) -> Approval:
        return Approval.edit({"text": "edited"}, by="ann")

    bodies = Bodies()
    with Session("job", store=tmp_path, gate=[ask], approver=edit) as session:
        assert call(Guard(session, ECHO), bodies, form, "hey") == "EDITED"
    assert bodies.ran == ["edited"]


@pytest.mark.parametrize("form", FORMS)
def test_a_body_that_calls_its_own_goes_on_in_its_step(tmp_path: Path, form: BodyForm) -> None:
    bodies = Bodies()

    class Inner(Bodies):
        def run(self, text: str) -> str:
            return str(guard.function(bodies.run)(text))

        thread = run

        async def arun(self, text: str) -> str:
            return str(await guard.function(bodies.arun)(text))

        def stream(self, text: str) -> Iterator[str]:
            yield from guard.function(bodies.stream, "stream")(text)

        async def astream(self, text: str) -> AsyncIterator[str]:
            async for piece in guard.function(bodies.astream, "astream")(text):
                yield piece

    with Session("job", store=tmp_path) as session:
        guard = Guard(session, ECHO)
        assert call(guard, Inner(), form, "hey") == "HEY"
        assert session.stats.misses == 1
    assert bodies.ran == ["hey"]


@pytest.mark.parametrize("form", ["stream", "astream"])
def test_a_stream_that_is_left_early_closes_its_body(tmp_path: Path, form: BodyForm) -> None:
    closed: list[str] = []

    def letters(text: str) -> Iterator[str]:
        try:
            yield from text
        finally:
            closed.append(text)

    async def aletters(text: str) -> AsyncIterator[str]:
        try:
            for each in text:
                yield each
        finally:
            closed.append(text)

    async def afirst(pieces: Any) -> str:
        async with contextlib.aclosing(pieces):
            return str(await anext(pieces))

    with Session("job", store=tmp_path) as session:
        guard = Guard(session, ECHO)
        if form == "stream":
            pieces = guard.function(letters, form)("hey")
            assert next(pieces) == "H"
            pieces.close()
        else:
            assert asyncio.run(afirst(guard.function(aletters, form)("hey"))) == "H"
        assert closed == ["hey"]


def test_a_guarded_method_keeps_its_name_and_knows_its_owner(tmp_path: Path) -> None:
    seen: list[Any] = []

    class Owned(Guard):
        def call(self, owner: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call:
            seen.append(owner)
            return super().call(owner, args, kwargs)

    with Session("job", store=tmp_path) as session:
        guard = Owned(session, ECHO)
        members = {GUARD: guard, "run": guard.method(Bodies.run, "run")}
        twin = subclass(Bodies, members)()
        assert twin.run("hey") == "HEY"
        assert (type(twin).__name__, twin.run.__name__) == ("Bodies", "run")
        assert seen == [twin]
        assert (guard_of(twin), guarding(twin), guarding(Bodies())) == (guard, session, None)


# --- models --------------------------------------------------------------------------------------


class Chat:
    """A model of a framework."""

    name = "chat-1"

    def ask(self, messages: list[str]) -> str:
        return "".join(self.pieces(messages))

    def pieces(self, messages: list[str]) -> Iterator[str]:
        yield from ("you said: ", messages[-1])


class ChatCall(ModelCall):
    def answer(self, value: list[str]) -> Answer:
        return Answer("".join(value))

    def given(self, value: list[str]) -> str:
        return "".join(value)


class GuardedChat(GuardedModel):
    framework = "test"
    forms: ClassVar[Mapping[str, BodyForm]] = {"ask": "run", "pieces": "stream"}

    def call(self, owner: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> ChatCall:
        request = model_request([{"content": each} for each in args[0]], options=kwargs)
        return ChatCall(self.session, self.contract_of(owner.name), request)


def test_a_recorded_answer_serves_a_stream_and_a_whole_call(tmp_path: Path) -> None:
    with Session("job", store=tmp_path, replay="off") as session:
        chat = GuardedChat(session).guarded(Chat())
        assert chat.ask(["hi"]) == "you said: hi"  # it streams to itself: one step
        assert list(chat.pieces(["there"])) == ["you said: ", "there"]
        assert session.stats.misses == 2
    answers = RecordedAnswers(tmp_path / "logs" / f"{session.run_id}.jsonl")
    assert [answers.next(), answers.next()] == [Answer("you said: hi"), Answer("you said: there")]
    with Session("job", store=tmp_path, replay="offline") as session:
        chat = GuardedChat(session).guarded(Chat())
        assert list(chat.pieces(["hi"])) == ["you said: hi"]
        assert chat.ask(["there"]) == "you said: there"


def test_a_model_is_guarded_once(tmp_path: Path) -> None:
    session, other = Session("job", store=tmp_path), Session("other", store=tmp_path)
    chat = GuardedChat(session).guarded(Chat())
    assert GuardedChat(session).guarded(chat) is chat
    with pytest.raises(ContractError, match="Chat is guarded by another session already"):
        GuardedChat(other).guarded(chat)


def test_a_recorded_answer_has_ids_and_a_live_model_behind_it(tmp_path: Path) -> None:
    asks = Answer(tool_calls=(ToolRequest("look", ""), ToolRequest("look", "{}", "own")))
    with Session("job", store=tmp_path, replay="off") as session:
        session.run_call(ECHO, {}, lambda **_: "", kind="model", answer=lambda _: asks)
    trace = tmp_path / "logs" / f"{session.run_id}.jsonl"
    found = RecordedAnswers(trace).next()
    assert found is not None
    assert [(c.arguments, c.id) for c in found.tool_calls] == [("{}", "call-0-0"), ("{}", "own")]
    assert RecordedAnswers(trace, then="live").live == "live"
    with pytest.raises(ReplayMiss, match="Give ReplayModel a live model"):
        _ = RecordedAnswers(trace).live


def test_offered_tools_are_named_by_schemas_and_objects() -> None:
    class Named:
        name = "c"

    tools = [{"name": "a"}, {"type": "function", "function": {"name": "b"}}, Named()]
    assert offered(tools) == ["a", "b", "c"]
    assert offered(None) == []


# --- what else adapters share --------------------------------------------------------------------


def test_what_a_framework_injects_is_no_part_of_a_call_and_stays_in_an_edited_one() -> None:
    signature = Signature(["state", "text"], frozenset({"state", "config"}))
    kwargs = {"config": "c", "times": 2}
    assert signature.named(("s", "hey"), kwargs) == {"text": "hey", "times": 2}
    assert signature.named(("s", "hey", 1), {}) == {"text": "hey", "args": [1]}

    def body(*args: Any, **kwargs: Any) -> Any:
        return args, kwargs

    edited = signature.edited(body, ("s", "hey"), kwargs)
    assert edited is not None
    assert edited(text="you", times=3) == (("s", "you"), {"config": "c", "times": 3})
    assert signature.edited(body, ("s", "hey", 1), {}) is None


@pytest.mark.parametrize(
    ("call_id", "issued", "slot"),
    [("b", ["a", "b"], 1), ("c", ["a", "b"], None), ("a", ["a", "a"], None), ("a", [], None)],
    ids=["one", "none", "two", "no calls"],
)
def test_a_slot_is_told_by_the_call_id(call_id: str, issued: list[str], slot: int | None) -> None:
    assert slot_of(call_id, issued) == slot


def test_a_halted_session_says_so(tmp_path: Path) -> None:
    with pytest.raises(Halt), Session("job", store=tmp_path) as session:
        session.check()
        session.halt(Halt("enough"))
        with pytest.raises(SessionHalted, match="the session was halted: enough") as raised:
            session.check()
        assert raised.value.__cause__ is session.halted


class Named:
    """A tool of a framework."""

    description = "Says it."

    def __init__(self, name: str) -> None:
        self.name = name


def test_a_tool_that_comes_later_is_guarded_once(tmp_path: Path) -> None:
    session, made = Session("job", store=tmp_path), []

    def guard(tools: Sequence[Any], _: Session, /, *, effects: Any, contracts: Any) -> list[Any]:
        made.append((tools[0].name, effects, contracts))
        twin = Named(tools[0].name)
        setattr(twin, GUARD, Guard(session, ECHO))
        return [twin]

    late = LateTools(session, guard, {"a": "read", "never": "pure"}, {"b": {"risk": "low"}})
    first, second = Named("a"), Named("b")
    assert late.guarded(first) is late.guarded(first)
    assert late.guarded(late.guarded(second)) is late.guarded(second)
    assert made == [("a", {"a": "read"}, {}), ("b", {}, {"b": {"risk": "low"}})]
    other = LateTools(Session("other", store=tmp_path), guard)
    with pytest.raises(ContractError, match="b is guarded by another session than its agent"):
        other.guarded(late.guarded(second))


def test_a_tool_around_a_function_says_what_it_takes(tmp_path: Path) -> None:
    @tool(effect="read", risk="low")
    def declared(text: str) -> str:
        """Say it."""
        return text

    def bare(text: str) -> int:
        return len(text)

    schema = {"properties": {"text": {"type": "string"}}}
    own = declare_tool(Named("x"), declared, lambda _: schema, framework="test", effect="pure")
    assert (own.name, own.effect, own.risk) == ("declared", "pure", "low")
    said = declare_tool(Named("x"), bare, lambda _: schema, framework="test")
    assert (said.name, said.description, said.returns, said.function) == (
        "x",
        "Says it.",
        int,
        bare,
    )
    assert said.framework == "test"


def test_a_users_wrapper_around_a_declared_function_stays() -> None:
    @tool
    def send(text: str) -> str:
        """Send it."""
        return text

    @functools.wraps(send)
    def shouting(text: str) -> str:
        return send(text.upper())

    assert plain_body(send)("a") == "a"
    assert plain_body(send) is not send
    assert plain_body(shouting) is shouting


@pytest.mark.parametrize(
    ("written", "read", "recorded"),
    [
        ({"a": 1}, {"a": 1}, {"a": 1}),
        ('{"a": 1}', {"a": 1}, {"a": 1}),
        ("{}", {}, {}),
        ("[1]", None, {"arguments": "[1]"}),
        ("{cut", None, {"arguments": "{cut"}),
        (None, None, {"arguments": None}),
    ],
)
def test_arguments_are_read_as_a_model_writes_them(
    written: Any, read: dict[str, Any] | None, recorded: dict[str, Any]
) -> None:
    assert as_object(written) == read
    assert as_written(written) == recorded
    assert as_written(written) is not written, "what a framework adds later is not on record"


def test_a_bare_tool_is_refused_and_on_record(tmp_path: Path) -> None:
    with (
        Session("job", store=tmp_path) as session,
        pytest.raises(Blocked, match="nobody guards it") as refused,
    ):
        refuse_bare(session, "send", {"text": "a"}, "nobody guards it")
    assert refused.value.verdict_code == "unguarded"
    lines = parse(session.store.read(session.run_id), "the log")
    (event,) = [line for line in lines if line["event"] == "refused"]
    assert (event["name"], event["args"]) == ("send", {"text": "a"})
    assert (event["verdict"]["code"], event["verdict"]["reason"]) == (
        "unguarded",
        "nobody guards it",
    )


class Point:
    """A value of a framework."""

    def __init__(self, x: int, label: str | None = None) -> None:
        self.x, self.label = x, label


def test_a_value_of_few_parts_comes_back(tmp_path: Path) -> None:
    native = Parts("test.point", lambda p: {"x": p.x, "label": p.label}, Point)
    register_parts({Point: native})
    contract = dataclasses.replace(ECHO, framework="test")
    for replay in REPLAYS:
        with Session("job", store=tmp_path, replay=replay) as session:
            point = session.run_call(contract, {"text": "a"}, lambda **_: Point(3))
            assert (type(point), point.x, point.label) == (Point, 3, None)
    assert native.project(Point(3)) == {"x": 3}
    hostile: Any
    for hostile in ([], {"y": 1}, "x"):
        with pytest.raises(ValueError, match=r"test\.point"):
            native.revive(hostile)


def test_parts_are_named_as_readers_know_them_whatever_the_attributes_are_called() -> None:
    attributes = {"across": "x", "label": "label", "name": "missing"}
    native = Parts.of_attributes("test.point", Point, attributes)
    assert native.project(Point(3, "a")) == {"across": 3, "label": "a"}
    point = native.revive({"across": 3})
    assert (point.x, point.label) == (3, None)
    hostile: Any
    for hostile in ([], {"x": 3}, {"across": 3, "down": 1}, {}):
        with pytest.raises(ValueError, match=r"test\.point"):
            native.revive(hostile)


class Size(pydantic.BaseModel):
    """A model of a framework."""

    width: int
    unit: str | None = None


def test_a_model_validates_its_own_parts() -> None:
    native = Parts.of_model("test.size", Size, exclude_none=True)
    assert native.project(Size(width=3)) == {"width": 3}
    assert native.revive({"width": 3}) == Size(width=3)
    with pytest.raises(ValueError, match="valid integer"):
        native.revive({"width": "wide"})
