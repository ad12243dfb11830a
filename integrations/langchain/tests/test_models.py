"""Guarded models: recorded by what is asked, answered whole or in pieces, and never asked twice."""

import asyncio
from typing import Any

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.globals import set_llm_cache
from langchain_core.language_models import BaseChatModel
from langchain_core.language_models.chat_models import agenerate_from_stream, generate_from_stream
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    ChatMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.rate_limiters import BaseRateLimiter
from langchain_core.tools import tool
from pydantic import BaseModel
from rollcage import Blocked, ReplayMiss, Session, StepView, Verdict
from rollcage.errors import ArgumentsInvalid, ContractError
from rollcage_langchain import guard_model

KINDS = ["plain", "streaming", "async"]
CALLS: Any = [("look", {"place": "here"}), ("look", {"place": "there"})]
ANSWERS: dict[str, Any] = {"text": "one two three", "calls": CALLS}


@tool
def look(place: str) -> str:
    """Look at a place."""
    return place


class Answer(BaseModel):
    """An answer."""

    value: int


def steps(lab: Any, session: Session) -> list[dict[str, Any]]:
    """The steps of a run, live or replayed."""
    steps: list[dict[str, Any]] = lab.steps(session)
    return steps


@pytest.fixture(params=["invoke", "ainvoke", "stream", "astream"])
def ask(request: pytest.FixtureRequest) -> Any:
    """Ask a model, in each of the ways; the messages that come."""

    async def gather(model: Any, *args: Any, **kwargs: Any) -> list[Any]:
        return [each async for each in model.astream(*args, **kwargs)]

    async def wait(model: Any, *args: Any, **kwargs: Any) -> list[Any]:
        return [await model.ainvoke(*args, **kwargs)]

    ways: dict[str, Any] = {
        "invoke": lambda model, *args, **kwargs: [model.invoke(*args, **kwargs)],
        "stream": lambda model, *args, **kwargs: list(model.stream(*args, **kwargs)),
        "ainvoke": lambda *args, **kwargs: asyncio.run(wait(*args, **kwargs)),
        "astream": lambda *args, **kwargs: asyncio.run(gather(*args, **kwargs)),
    }
    return ways[request.param]


def bare(messages: list[Any]) -> list[Any]:
    """Messages without the ids that LangChain makes up itself."""
    return [
        m.model_copy(update={"id": None}) if str(m.id).startswith("lc_run") else m for m in messages
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("answer", ANSWERS)
def test_an_answer_replays_in_its_pieces(lab: Any, ask: Any, kind: str, answer: str) -> None:
    model = lab.model([ANSWERS[answer]], kind)
    with lab.session() as session:
        live = ask(guard_model(model, session).bind_tools([look]), "go")
    with lab.session(replay="offline") as session:
        replayed = ask(guard_model(lab.model([], kind), session).bind_tools([look]), "go")
    assert bare(replayed) == bare(live)
    assert replayed[0].id == live[0].id
    assert len(model.seen) == 1
    assert session.stats.hits == 1
    assert session.stats.tokens_saved == 15
    whole = live[0]
    for piece in live[1:]:
        whole += piece
    assert whole.usage_metadata["input_tokens"] == 10
    assert whole.response_metadata["finish_reason"] == "stop"


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_streamed_answer_answers_a_call_that_is_not(lab: Any, answer: str) -> None:
    with lab.session() as session:
        streamed = list(
            guard_model(lab.model([ANSWERS[answer]], "streaming"), session).stream("go")
        )
    with lab.session(replay="offline") as session:
        whole = guard_model(lab.model([], "streaming"), session).invoke("go")
    joined = streamed[0]
    for piece in streamed[1:]:
        joined += piece
    assert whole.content == joined.content
    assert whole.tool_calls == joined.tool_calls
    assert whole.usage_metadata == joined.usage_metadata
    assert type(whole) is AIMessage


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_whole_answer_answers_a_call_that_is_streamed(lab: Any, answer: str) -> None:
    with lab.session() as session:
        whole = guard_model(lab.model([ANSWERS[answer]], "streaming"), session).invoke("go")
    with lab.session(replay="offline") as session:
        (piece,) = guard_model(lab.model([], "streaming"), session).stream("go")
    assert isinstance(piece, AIMessageChunk)
    assert (piece.content, piece.tool_calls) == (whole.content, whole.tool_calls)
    assert (piece.id, piece.usage_metadata) == (whole.id, whole.usage_metadata)
    assert piece.response_metadata == whole.response_metadata


@pytest.mark.parametrize("kind", KINDS)
def test_a_guarded_model_is_of_the_same_type_and_keeps_its_attributes(lab: Any, kind: str) -> None:
    model = lab.model(["x"], kind)
    model.tags = ["mine"]
    guarded = guard_model(model, lab.session())
    assert isinstance(guarded, type(model))
    assert type(guarded).__name__ == type(model).__name__
    assert guarded.model_dump() == model.model_dump()
    assert guarded._get_ls_params() == model._get_ls_params()
    assert guarded._llm_type == model._llm_type
    assert guarded.tags == ["mine"]


def test_bind_tools_binds_what_the_model_binds(lab: Any) -> None:
    model = lab.model([CALLS])
    with lab.session() as session:
        guarded = guard_model(model, session).bind_tools([look], tool_choice="any")
        assert guarded.kwargs == model.bind_tools([look], tool_choice="any").kwargs
        guarded.invoke("go")
    (step,) = steps(lab, session)
    assert step["args"]["options"]["tool_choice"] == "any"
    assert step["args"]["options"]["tools"][0]["function"]["name"] == "look"
    assert (step["name"], step["effect"]) == ("scripted-1", "model")


def test_structured_output_works_live_and_in_replay(lab: Any) -> None:
    model = lab.model([[("Answer", {"value": 3})]])
    for replay in ("auto", "offline"):
        with lab.session(replay=replay) as session:
            guarded = guard_model(model, session).with_structured_output(Answer)
            assert guarded.invoke("go") == Answer(value=3)
    assert len(model.seen) == 1


def test_a_call_is_what_is_asked(lab: Any) -> None:
    history: list[Any] = [
        SystemMessage("be kind", id="s"),
        HumanMessage("go", id="h", name="ann"),
        AIMessage(
            [{"type": "tool_use", "id": "toolu_7", "name": "look", "input": {}}],
            id="a",
            tool_calls=[{"name": "look", "args": {}, "id": "toolu_7"}],
            response_metadata={"at": "noon"},
            usage_metadata={"input_tokens": 1, "output_tokens": 1, "total_tokens": 2},
        ),
        ToolMessage("no", tool_call_id="toolu_7", status="error", artifact=object(), id="t"),
        ChatMessage(content="well", role="critic"),
    ]
    with lab.session() as session:
        guarded = guard_model(lab.model(["x", "y"]), session)
        guarded.invoke(history, stop=["\n"], temperature=0.5, stream=False)
    (step,) = steps(lab, session)
    assert step["args"] == {
        "messages": [
            {"role": "system", "content": "be kind"},
            {"role": "user", "name": "ann", "content": "go"},
            {
                "role": "assistant",
                "tool_calls": [{"name": "look", "args": {}, "call": 0}],
                "content": [{"type": "tool_use", "id": 0, "name": "look", "input": {}}],
            },
            {"role": "tool", "call": 0, "status": "error", "content": "no"},
            {"role": "critic", "content": "well"},
        ],
        "stop": ["\n"],
        "options": {"temperature": 0.5},
    }


def test_ids_and_metadata_do_not_tell_calls_from_each_other(lab: Any) -> None:
    def history(mark: str) -> list[Any]:
        call: Any = {"name": "look", "args": {}, "id": f"call-{mark}"}
        return [
            HumanMessage("go", id=mark),
            AIMessage("", id=mark, tool_calls=[call], response_metadata={"at": mark}),
            ToolMessage("seen", tool_call_id=f"call-{mark}", id=mark),
        ]

    model = lab.model(["", "first"])
    with lab.session() as session:
        guard_model(model, session).invoke(history("a"))
    with lab.session(replay="offline") as session:
        assert guard_model(model, session).invoke(history("b")).content == "first"


def test_an_offline_miss_says_what_differs(lab: Any) -> None:
    with lab.session() as session:
        guard_model(lab.model(["x"]), session).invoke("go")
    with pytest.raises(ReplayMiss, match="messages"), lab.session(replay="offline") as session:
        guard_model(lab.model([]), session).invoke("something else")


def test_a_class_as_an_option_is_its_schema(lab: Any) -> None:
    with lab.session() as session:
        guarded = guard_model(lab.model(["x"]), session)
        guarded.invoke("go", response_format={"schema": [Answer]})
        with pytest.raises(ArgumentsInvalid, match="options"):
            guarded.invoke("go", hook=print)
    (step,) = steps(lab, session)
    schema = step["args"]["options"]["response_format"]["schema"][0]
    assert schema == Answer.model_json_schema()


def test_identical_questions_get_their_answers_in_order(lab: Any) -> None:
    class Counting(BaseChatModel):
        asked: list[int] = []  # noqa: RUF012 - Pydantic copies a default

        @property
        def _llm_type(self) -> str:
            return "counting"

        def _generate(
            self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
        ) -> ChatResult:
            self.asked.append(1)
            return ChatResult(
                generations=[ChatGeneration(message=AIMessage(f"answer {len(self.asked)}"))]
            )

    for replay in ("auto", "offline"):
        with lab.session(replay=replay) as session:
            guarded = guard_model(Counting(), session)
            texts = [guarded.invoke("go").content for _ in range(3)]
        assert texts == ["answer 1", "answer 2", "answer 3"]
        assert steps(lab, session)[0]["name"] == "Counting"


def test_a_model_that_streams_within_its_answer_is_asked_once(lab: Any) -> None:
    class Inner(type(lab.model([], "streaming"))):  # type: ignore[misc]  # a class made at run time
        def _generate(
            self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
        ) -> ChatResult:
            return generate_from_stream(self._stream(messages, stop, run_manager, **kwargs))

    with lab.session() as session:
        assert guard_model(Inner(script=["one two"]), session).invoke("go").content == "one two"
    assert session.stats.calls == 1


async def test_so_is_one_that_answers_from_its_own_other_ways(lab: Any) -> None:
    class Inner(type(lab.model([], "async"))):  # type: ignore[misc]  # a class made at run time
        async def _agenerate(
            self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
        ) -> ChatResult:
            if "again" not in kwargs:
                return await self._agenerate(messages, stop, run_manager, again=True)
            return await agenerate_from_stream(self._astream(messages, stop, run_manager))

    with_stream: Any = Inner(script=["one two"])
    async with lab.session() as session:
        assert (await guard_model(with_stream, session).ainvoke("go")).content == "one two"
    assert session.stats.calls == 1


def test_streaming_handlers_still_hear_each_word(lab: Any) -> None:
    class Heard(BaseCallbackHandler):
        def __init__(self) -> None:
            self.words: list[str] = []

        def on_llm_new_token(self, token: Any, **kwargs: Any) -> None:
            self.words.append(token)

    heard = []
    for replay in ("auto", "offline"):
        handler = Heard()
        with lab.session(replay=replay) as session:
            model = guard_model(lab.model(["one two"], "streaming"), session)
            list(model.stream("go", {"callbacks": [handler]}))
        heard.append(handler.words)
    assert heard[0] == heard[1]
    assert heard[0][:2] == ["one ", "two"]


def test_an_events_stream_is_guarded_too(lab: Any) -> None:
    class Native(type(lab.model([], "streaming"))):  # type: ignore[misc]  # a class made at run time
        def _stream_chat_model_events(self, *args: Any, **kwargs: Any) -> Any:
            raise AssertionError("unguarded")

    with lab.session() as session:
        guarded = guard_model(Native(script=["one two"]), session)
        assert guarded._stream_chat_model_events is None
        assert guarded.invoke("go").content == "one two"
    assert session.stats.calls == 1


def test_a_model_error_is_itself_and_runs_again_on_resume(lab: Any) -> None:
    with pytest.raises(TimeoutError), lab.session() as session:
        guard_model(lab.model([TimeoutError("busy")]), session).invoke("go")
    with lab.session() as session:
        assert guard_model(lab.model(["fine"]), session).invoke("go").content == "fine"
    assert session.stats.misses == 1


def test_a_stream_that_is_left_early_replays_as_far_as_it_was_read(lab: Any) -> None:
    for replay in ("auto", "offline"):
        model = lab.model(["one two three"], "streaming")
        with lab.session(replay=replay) as session:
            stream = guard_model(model, session).stream("go")
            assert [next(stream).content for _ in range(2)] == ["one ", "two "]
            stream.close()
        assert len(model.seen) == (replay == "auto")


def test_an_agent_that_died_in_the_middle_of_a_stream_asks_again(lab: Any) -> None:
    with pytest.raises(KeyError), lab.session() as session:
        stream = guard_model(lab.model(["one two three"], "streaming"), session).stream("go")
        assert next(stream).content == "one "
        stream.close()
        raise KeyError("crash")
    with lab.session() as session:
        model = lab.model(["one two three"], "streaming")
        pieces = list(guard_model(model, session).stream("go"))
    assert "".join(str(piece.content) for piece in pieces) == "one two three"
    assert len(model.seen) == 1


def test_rules_see_model_calls_and_can_deny_them(lab: Any) -> None:
    def no_models(step: StepView) -> Verdict | None:
        return Verdict.deny("enough is spent") if step.kind == "model" else None

    model = lab.model(["x"])
    with lab.session(gate=[no_models]) as session, pytest.raises(Blocked, match="enough"):
        guard_model(model, session).invoke("go")
    assert model.seen == []


def test_what_can_not_be_guarded_is_refused(lab: Any) -> None:
    with lab.session() as session:
        guarded = guard_model(lab.model(["x"]), session)
        assert guard_model(guarded, session) is guarded
        with pytest.raises(ContractError, match="another session"):
            guard_model(guarded, lab.session("other"))
        bound: Any = lab.model(["x"]).bind_tools([look])
        with pytest.raises(ContractError, match="not a chat model"):
            guard_model(bound, session)


def test_the_original_model_is_as_it_was(lab: Any) -> None:
    model = lab.model(["x"])
    with lab.session() as session:
        guard_model(model, session)
        assert model.invoke("go").content == "x"
    assert session.stats.calls == 0


def test_langchains_own_cache_answers_no_guarded_call(lab: Any) -> None:
    set_llm_cache(InMemoryCache())
    try:
        lab.model(["cached"]).invoke("go")
        with lab.session() as session:
            assert guard_model(lab.model(["asked"]), session).invoke("go").content == "asked"
    finally:
        set_llm_cache(None)
    with lab.session(replay="offline") as session:
        assert guard_model(lab.model([]), session).invoke("go").content == "asked"


class Limiter(BaseRateLimiter):
    """Counts who asks."""

    def __init__(self) -> None:
        self.asked = 0

    def acquire(self, *, blocking: bool = True) -> bool:
        self.asked += 1
        return True

    async def aacquire(self, *, blocking: bool = True) -> bool:
        self.asked += 1
        return True


def test_a_replayed_answer_needs_no_rate_limit(lab: Any, ask: Any) -> None:
    limiter = Limiter()
    for replay in ("auto", "offline"):
        model = lab.model(["x"], "async")
        model.rate_limiter = limiter
        with lab.session(replay=replay) as session:
            ask(guard_model(model, session), "go")
        assert limiter.asked == 1
