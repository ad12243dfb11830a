"""The kit that adapters share: `rollcage.adapter`."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, Literal

import orjson
import pydantic
import pytest
from rollcage import Contract, ContractError, ReplayMiss, SessionError, TraceCorrupt, tool
from rollcage.adapter import (
    GUARD,
    Answer,
    CallNumbers,
    GuardedCall,
    GuardedTool,
    RecordedAnswers,
    Running,
    ToolRequest,
    check_names,
    declare,
    declared_contract,
    guard_each,
    model_contract,
    model_request,
    swapped,
    type_hints,
)
from rollcage.session.session import Session

MODEL = model_contract("chat-1", "test")


def ask(session: Session, answer: Answer, **request: Any) -> Any:
    """A model's call that gives this answer."""
    arguments = model_request([{"role": "user", "content": "go"}], options=request)
    return session.run(
        MODEL, arguments, lambda **_: "native", kind="model", answer=lambda _: answer
    )


def record(store: Path, *answers: Answer, agent: str = "") -> Session:
    """A run in which the model gave these answers."""
    with Session("job", store=store, replay="off") as session:
        for n, answer in enumerate(answers):
            with session.place(agent=agent):
                ask(session, answer, n=n)
    return session


def trace_of(session: Session, store: Path) -> Path:
    return store / "runs" / f"{session.run_id}.jsonl"


TWO = (
    Answer("", "hm", (ToolRequest("send_mail", '{"to":  "a"}', "c1"),), "tool_calls", "r1"),
    Answer("done", usage={"input_tokens": 3, "output_tokens": 4}),
)


# --- answers -------------------------------------------------------------------------------------


def test_an_answer_stands_beside_the_frameworks_own_value(tmp_path: Path) -> None:
    session = record(tmp_path, *TWO)
    lines = [orjson.loads(x) for x in trace_of(session, tmp_path).read_bytes().splitlines()]
    outcomes = [line["outcome"] for line in lines if line["event"] == "step.finished"]
    assert outcomes == [
        {
            "status": "ok",
            "value": "native",
            "answer": {
                "reasoning": "hm",
                "finish_reason": "tool_calls",
                "response_id": "r1",
                "tool_calls": [{"name": "send_mail", "arguments": '{"to":  "a"}', "id": "c1"}],
            },
        },
        {
            "status": "ok",
            "value": "native",
            "answer": {"text": "done"},
            "usage": {"input_tokens": 3, "output_tokens": 4},
        },
    ]


def test_recorded_answers_come_one_by_one(tmp_path: Path) -> None:
    session = record(tmp_path, *TWO)
    answers = RecordedAnswers(trace_of(session, tmp_path))
    assert (len(answers), answers.run) == (2, session.run_id)
    assert [answers.next(), answers.next(), answers.next()] == [*TWO, None]
    with pytest.raises(ReplayMiss, match=rf"run {session.run_id} holds 2 answers, all are given"):
        _ = answers.live


def test_a_session_knows_the_answers_of_the_run_that_it_replays(tmp_path: Path) -> None:
    recorded = record(tmp_path, *TWO)
    with Session("job", store=tmp_path, replay="offline") as session:
        answers = RecordedAnswers(session)
        assert (answers.run, answers.next()) == (recorded.run_id, TWO[0])


def test_a_session_that_replays_nothing_has_no_answers(tmp_path: Path) -> None:
    with (
        Session("job", store=tmp_path, replay="off") as session,
        pytest.raises(SessionError, match="replays no run"),
    ):
        RecordedAnswers(session)


def test_replayed_answers_are_answers_too(tmp_path: Path) -> None:
    record(tmp_path, *TWO)
    with Session("job", store=tmp_path, replay="offline") as again:
        for n, answer in enumerate(TWO):
            ask(again, answer, n=n)
    answers = RecordedAnswers(trace_of(again, tmp_path))
    assert [answers.next(), answers.next()] == list(TWO)


def test_answers_of_one_agent_and_of_models_inside_of_tools(tmp_path: Path) -> None:
    outer, inner = Answer("outer"), Answer("inner")

    @tool(effect="scope")
    def team() -> str:
        """An agent as a tool."""
        with session.place(agent="critic"):
            ask(session, inner)
        return "said"

    with Session("job", store=tmp_path, replay="off") as session:
        with session.place(agent="writer"):
            ask(session, outer)
        team()
    trace = trace_of(session, tmp_path)
    assert [RecordedAnswers(trace).next(), RecordedAnswers(trace, agent="critic").next()] == [
        outer,
        inner,
    ]
    nobody = RecordedAnswers(trace, agent="nobody")
    assert len(nobody) == 0
    with pytest.raises(ReplayMiss, match="0 answers of agent 'nobody'"):
        _ = nobody.live


def test_a_failed_model_call_has_no_answer(tmp_path: Path) -> None:
    def body(**_: Any) -> str:
        raise ConnectionError("no model")

    with Session("job", store=tmp_path, replay="off") as session:
        with pytest.raises(ConnectionError):
            session.run(MODEL, model_request([], options={}), body, kind="model")
        ask(session, TWO[1])
    answers = RecordedAnswers(trace_of(session, tmp_path))
    assert [answers.next(), answers.next()] == [TWO[1], None]


def test_a_recorded_tool_goes_by_the_name_that_the_framework_gives_it(tmp_path: Path) -> None:
    trace = trace_of(record(tmp_path, *TWO), tmp_path)
    found = RecordedAnswers(trace).next(["Send Mail", "other"])
    assert found is not None
    assert [call.name for call in found.tool_calls] == ["Send Mail"]
    exact = RecordedAnswers(trace).next(["Send Mail", "send_mail"])
    assert exact == TWO[0]


@pytest.mark.parametrize("offered", [["look"], [], ["Send Mail", "send-mail"]])
def test_a_recorded_tool_that_the_agent_lacks_is_a_miss(tmp_path: Path, offered: list[str]) -> None:
    answers = RecordedAnswers(trace_of(record(tmp_path, *TWO), tmp_path))
    for _ in range(2):  # asking again does not get past it
        with pytest.raises(ReplayMiss, match="asks for the tool 'send_mail', which this agent"):
            answers.next(offered)


def test_a_large_answer_is_kept_beside_the_trace(tmp_path: Path) -> None:
    large = Answer("word " * 20_000)
    session = record(tmp_path, large)
    trace = trace_of(session, tmp_path)
    assert trace.stat().st_size < 10_000
    assert RecordedAnswers(trace).next() == large


@pytest.mark.damaged
def test_a_changed_answer_is_a_corrupt_trace(tmp_path: Path) -> None:
    trace = trace_of(record(tmp_path, TWO[0]), tmp_path)
    trace.write_bytes(trace.read_bytes().replace(b'"reasoning":"hm"', b'"reasoning":"ha"'))
    with pytest.raises(TraceCorrupt, match="line 3"):
        RecordedAnswers(trace)


BAD: list[Any] = [[], {"text": 1}, {"tool_calls": {}}, {"tool_calls": [1]}]


@pytest.mark.parametrize("data", [*BAD, {"tool_calls": [{"name": "t", "arguments": {}}]}])
def test_an_answer_of_another_form_is_refused(data: Any) -> None:
    with pytest.raises(ValueError, match="recorded answer"):
        Answer.from_data(data)


def test_an_answer_that_can_not_be_read_loses_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def read(_: Any) -> Answer:
        raise KeyError("oops")

    with Session("job", store=tmp_path, replay="off") as session:
        request = model_request([], options={})
        session.run(MODEL, request, lambda **_: "native", kind="model", answer=read)
    assert "the answer of chat-1 can't be read" in caplog.text
    with Session("job", store=tmp_path, replay="offline") as session:
        assert session.run(MODEL, request, lambda **_: "live", kind="model") == "native"


def test_an_answer_holds_no_lone_surrogates() -> None:
    data = Answer("a\ud800", tool_calls=(ToolRequest("t", '"\udfff"'),)).as_data()
    assert data == {"text": "a?", "tool_calls": [{"name": "t", "arguments": '"?"', "id": ""}]}


# --- requests ------------------------------------------------------------------------------------


def test_a_request_holds_what_is_asked() -> None:
    class Reply(pydantic.BaseModel):
        text: str

    request = model_request(["m"], stop=["x"], options={"a": None, "b": {"c": [Reply]}})
    assert request == {
        "messages": ["m"],
        "stop": ["x"],
        "options": {"b": {"c": [Reply.model_json_schema()]}},
    }
    assert model_request([], options={}) == {"messages": []}


def test_ids_of_calls_become_numbers() -> None:
    calls = CallNumbers()
    assert [calls.of(each) for each in ("x", "y", "x", None)] == [0, 1, 0, 2]
    assert calls.within([{"id": "y", "text": "y"}, {"tool_use_id": "?"}]) == [
        {"id": 1, "text": "y"},
        {"tool_use_id": "?"},
    ]


def test_a_model_that_replays_is_asked_in_any_mode(tmp_path: Path) -> None:
    contract = model_contract("replay", "test", replays=True)
    request = model_request([], options={})
    modes: dict[str, Literal["off", "offline"]] = {"one": "off", "two": "offline"}
    for answer, replay in modes.items():
        with Session("job", store=tmp_path, replay=replay) as session:
            value = session.run(contract, request, lambda said=answer, **_: said, kind="model")
        assert value == answer


# --- declarations --------------------------------------------------------------------------------


def said() -> Contract:
    return Contract(name="send", parameters={"properties": {"pin": {}}})


def test_declared_fields_are_added_to_what_a_tool_says() -> None:
    contract = declare(
        said,
        framework="test",
        effect="read",
        declared={"secret": "pin", "raises": [KeyError], "permissions": ["net:a"]},
        raises=(OSError,),
    )
    assert (contract.effect, contract.framework) == ("read", "test")
    assert (set(contract.secret), contract.permissions) == ({"pin"}, ("net:a",))
    assert (contract.raises, contract.known_errors) == ((KeyError,), (KeyError, OSError))


def test_a_whole_contract_stands_for_what_a_tool_says() -> None:
    own = Contract(name="mine", parameters={})
    contract = declare(lambda: pytest.fail("asked"), framework="test", declared=own)
    assert (contract.name, contract.effect, contract.framework) == ("mine", "write", "test")


@pytest.mark.parametrize("field", ["efect", "framework"])
def test_a_field_that_can_not_be_declared_is_named(field: str) -> None:
    with pytest.raises(ContractError, match=rf"send: \['{field}'\] are not options of a tool"):
        declare(said, framework="test", declared={field: "x"})


def test_declarations_of_unknown_tools_are_refused() -> None:
    check_names(["a", "b"], effects={"a": "read"}, contracts={})
    with pytest.raises(ContractError, match="effects= names x, y; the tools are: a, b"):
        check_names(["b", "a"], effects={"y": 1, "x": 1})
    with pytest.raises(ContractError, match="contracts= names x; the tools are: none"):
        check_names([], contracts={"x": {}})


def test_a_functions_declaration_is_found() -> None:
    @tool(effect="pure")
    def double(x: int) -> int:
        """Twice."""
        return 2 * x

    found = declared_contract(double)
    assert found is not None
    assert found.name == "double"
    assert declared_contract(len) is None


def test_hints_that_can_not_be_resolved_are_left_out() -> None:
    def body(a: int, b: Nowhere) -> str:  # type: ignore[name-defined] # noqa: F821 # pyright: ignore[reportUndefinedVariable] - what is shown
        raise NotImplementedError

    assert type_hints(body) == {"a": int, "return": str}

    class Body:
        def __call__(self, x: int) -> str:
            raise NotImplementedError

    assert type_hints(Body()) == {"x": int, "return": str}


# --- other bodies --------------------------------------------------------------------------------


class Plain:
    """An object that is no Pydantic model."""

    word = "hi"

    def say(self) -> str:
        return self.word


class Model(pydantic.BaseModel):
    """One that is."""

    word: str = "hi"

    def say(self) -> str:
        return self.word


@pytest.mark.parametrize("make", [Plain, Model])
def test_a_swapped_object_differs_in_its_body_only(make: type[Any]) -> None:
    original = make()
    twin = swapped(
        original,
        {"say": lambda self: f"guarded {self.word}"},
        update={"word": "you"},
        hidden=("shout", "__doc__"),
    )
    assert (original.say(), twin.say()) == ("hi", "guarded you")
    assert isinstance(twin, make)
    assert type(twin).__name__ == type(original).__name__
    assert not hasattr(twin, "shout")
    assert copy.copy(twin).say() == "guarded you"


def test_a_body_that_calls_its_own_tool_is_running(tmp_path: Path) -> None:
    around: list[object] = [object()]
    running = Running(lambda: around[0])
    seen: list[bool] = []

    @tool
    def work() -> None:
        """Look around."""
        seen.append(running.here)
        with running.body():
            seen.append(running.here)
            around[0] = object()  # the framework has called anew
            seen.append(running.here)
        seen.append(running.here)

    assert not running.here
    with Session("job", store=tmp_path):
        work()
    assert seen == [False, True, False, False]


# --- guarding each -------------------------------------------------------------------------------


class Native:
    """A tool of a framework."""

    def __init__(self, name: str, owner: Session | None = None) -> None:
        self.name = name
        self.declared: Any = None
        if owner is not None:
            contract = Contract(name=name, parameters={"properties": {}})
            setattr(self, GUARD, Guard(owner, contract))


class Guard(GuardedTool):
    """What guards one; it is never called here."""

    def call(self, owner: Any, args: Any, kwargs: Any) -> GuardedCall:
        raise AssertionError


def guarded(tools: list[Any], session: Session, effects: Any = None, contracts: Any = None) -> Any:
    def guard(tool: Native, effect: Any, declared: Any) -> Native:
        twin = Native(tool.name, session)
        twin.declared = effect, declared
        return twin

    return guard_each(
        tools,
        session,
        effects,
        contracts,
        framework="Test",
        kinds=Native,
        instead="make one",
        guard=guard,
    )


def test_each_tool_is_guarded_with_what_is_declared_of_it(tmp_path: Path) -> None:
    session = Session("job", store=tmp_path)
    tools = [Native("a"), Native("b"), Native("c", session)]
    first, second, third = guarded(tools, session, {"a": "read"}, {"b": {"risk": "low"}})
    assert (first.declared, second.declared) == (("read", None), (None, {"risk": "low"}))
    assert third is tools[2]


@pytest.mark.parametrize(
    ("tool", "effects", "said"),
    [
        ("a", {}, "'a' is not a tool of Test: make one"),
        (Native("a"), {"b": "read"}, "effects= names b; the tools are: a"),
        (Native("a", Session("other")), {}, "a is guarded by another session already"),
    ],
    ids=["no tool", "no such tool", "another session's"],
)
def test_what_can_not_be_guarded_is_named(
    tmp_path: Path, tool: Any, effects: Any, said: str
) -> None:
    with pytest.raises(ContractError, match=said):
        guarded([tool], Session("job", store=tmp_path), effects)


def test_a_guarded_tool_is_not_declared_anew(tmp_path: Path) -> None:
    session = Session("job", store=tmp_path)
    with pytest.raises(ContractError, match="a is guarded by this session already"):
        guarded([Native("a", session)], session, {"a": "read"})


def test_a_swapped_model_builds_no_schema_of_its_own() -> None:
    """A service guards a model for each request."""

    class Thing(pydantic.BaseModel):
        size: int

        def body(self) -> str:
            return f"size {self.size}"

    twin = swapped(Thing(size=3), {"body": lambda self: f"guarded {self.size}"})
    assert type(twin).__pydantic_validator__ is Thing.__pydantic_validator__
    assert twin.body() == "guarded 3"
    assert twin.model_dump() == {"size": 3}
    assert type(twin).model_validate({"size": "4"}).size == 4
