"""Spans of sessions, as an SDK gets them."""

import asyncio
import contextlib
import contextvars
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.trace import NoOpTracerProvider, SpanKind, StatusCode
from pydantic import SecretStr
from rollcage import (
    ForkEnded,
    Halt,
    Session,
    Store,
    compensate,
    tool,
)
from rollcage.stages.secrets import Secrets
from rollcage_adapter import Answer, model_contract
from rollcage_fork import Fork
from rollcage_otel import Spans, names

shelf: list[str] = []


@pytest.fixture(autouse=True)
def _empty() -> None:
    shelf.clear()


@tool(name="otel.take", idempotent=True)
def take(thing: str) -> None:
    shelf.remove(thing)


@tool(name="otel.put", undo=lambda args: [compensate("otel.take", **args)])
def put(thing: str) -> str:
    shelf.append(thing)
    return thing


@tool(name="otel.look", effect="read")
def look(thing: str) -> str:
    if thing == "nothing":
        raise LookupError(thing)
    return thing


@tool(name="otel.wipe")
def wipe() -> None:
    raise AssertionError("it is denied")


def ask(session: Session, text: str) -> str:
    """A call of a model, as an adapter makes it."""
    answer: str = session.run_call(
        model_contract("gpt", "test"),
        {"messages": [{"role": "user", "content": text}]},
        lambda **_: f"to {text}",
        kind="model",
        answer=lambda value: Answer(text=value, usage={"input_tokens": 3, "output_tokens": 4}),
    )
    return answer


def attributes(span: Any) -> dict[str, Any]:
    return dict(span.attributes)


def test_a_run_its_steps_and_what_their_bodies_do_nest(kept: Any, store: Store) -> None:
    @tool(name="otel.outer", effect="scope")
    def outer(thing: str) -> str:
        with kept.tracer.start_as_current_span("GET"):
            return look(thing)

    with (
        kept.tracer.start_as_current_span("request"),
        Session("job", store=store, observers=[kept.spans]) as session,
    ):
        with session.place(agent="ann", call_id="c1"):
            put("a")
        outer("b")
        ask(session, "c")
    assert trace.get_current_span() is trace.INVALID_SPAN
    inside = {"GET": ["execute_tool otel.look"]}
    steps = ["execute_tool otel.put", {"invoke_agent otel.outer": [inside]}, "chat gpt"]
    assert kept.tree() == [{"request": [{"invoke_agent job": steps}]}]
    written = attributes(kept.named("execute_tool otel.put"))
    assert len(written.pop(names.FINGERPRINT)) == 64
    assert written == {
        names.RUN: session.run_id,
        names.STEP: 1,
        names.KIND: "tool",
        names.EFFECT: "write",
        names.STATE: "ran",
        names.OPERATION: "execute_tool",
        names.TOOL_NAME: "otel.put",
        names.TOOL_TYPE: "function",
        names.CALL_ID: "c1",
        names.AGENT_NAME: "ann",
    }
    model = kept.named("chat gpt")
    said = attributes(model)
    assert model.kind is SpanKind.CLIENT
    assert (said[names.MODEL], said[names.INPUT_TOKENS], said[names.OUTPUT_TOKENS]) == ("gpt", 3, 4)
    assert not {names.ARGUMENTS, names.RESULT, names.INPUT_MESSAGES} & said.keys()
    run = attributes(kept.named("invoke_agent job"))
    assert (run[names.MODE], run[names.RUN_STATUS]) == ("record", "ok")


def test_threads_without_a_context_stand_in_the_run(kept: Any, store: Store) -> None:
    """And those with an older context: what was current before the session is not around it."""
    with kept.tracer.start_as_current_span("request"):
        before = contextvars.copy_context()
        with Session("job", store=store, observers=[kept.spans]) as session:
            bound = session.tool(look)
            with ThreadPoolExecutor(2) as pool:
                pool.submit(bound, "a").result()
                pool.submit(before.run, bound, "b").result()
            with session.branch("left"):
                put("c")
    looks = ["execute_tool otel.look", "execute_tool otel.look", "execute_tool otel.put"]
    assert kept.tree() == [{"request": [{"invoke_agent job": looks}]}]
    assert attributes(kept.named("execute_tool otel.put"))[names.BRANCH] == "left"


def test_a_replayed_model_used_no_tokens_again(keeping: Any, store: Store) -> None:
    first, second = keeping(content=True), keeping(content=True)
    with Session("job", store=store, observers=[first.spans]) as recorded:
        ask(recorded, "b")
    with Session("job", store=store, observers=[second.spans], replay="offline") as session:
        ask(session, "b")
    ran, hit = first.named("chat gpt"), second.named("chat gpt")
    assert ran.attributes[names.INPUT_TOKENS] == 3
    assert names.INPUT_TOKENS not in hit.attributes
    assert "to b" in hit.attributes[names.OUTPUT_MESSAGES]
    assert [link.context.span_id for link in hit.links] == [ran.context.span_id]
    assert hit.attributes[names.ORIGIN_RUN] == recorded.run_id


async def test_an_outcome_that_comes_late_ends_its_span(kept: Any, store: Store) -> None:
    began, go_on, late = threading.Event(), threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    @tool(name="otel.slow", effect="write")
    def slow() -> str:
        began.set()
        go_on.wait(10)
        return "done"

    def observe(event: Any) -> None:
        if event.status == "ok":
            loop.call_soon_threadsafe(late.set)

    session = Session("job", store=store, observers=[kept.spans, observe])
    with pytest.raises(Halt):
        async with session:
            task = asyncio.create_task(session.acall(slow))
            await asyncio.to_thread(began.wait, 10)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert not kept.ended
            go_on.set()
            await asyncio.wait_for(late.wait(), 10)
    step = kept.named("execute_tool otel.slow")
    assert (attributes(step)[names.STATE], step.status.status_code) == ("ran", StatusCode.UNSET)
    assert attributes(kept.named("invoke_agent job"))[names.RUN_STATUS] == "halted"


@pytest.mark.parametrize(
    ("switch", "on"),
    [("", False), ("false", False), ("no_content", False), ("event_only", False),
     ("TRUE", True), ("span_only", True), ("SPAN_AND_EVENT", True)],
)  # fmt: skip
def test_content_is_in_spans_where_it_is_switched_on_and_secrets_never(
    keeping: Any, store: Store, monkeypatch: pytest.MonkeyPatch, switch: str, *, on: bool
) -> None:
    @tool(name="otel.log_in", effect="read", secret=["password"])
    def log_in(user: str, password: SecretStr) -> str:
        return f"{user} with {password.get_secret_value()}"

    monkeypatch.setenv(names.CAPTURE_CONTENT, switch)
    kept = keeping()
    with Session("job", store=store, observers=[kept.spans], stages=[Secrets()]) as session:
        log_in("ann", SecretStr("hunter2-hunter2"))
        ask(session, "you")
    step, model, *_ = map(attributes, kept.ended)
    assert (names.ARGUMENTS in step, names.RESULT in step) == (on, on)
    assert "hunter2" not in str((step, model))
    if on:
        assert '"user":"ann"' in step[names.ARGUMENTS]
        assert model[names.INPUT_MESSAGES] == (
            '[{"role":"user","parts":[{"type":"text","content":"you"}]}]'
        )
        assert '"content":"to you"' in model[names.OUTPUT_MESSAGES]


FRAMEWORKS = [
    {names.OPERATION: "execute_tool", names.TOOL_NAME: "otel.look"},
    {"openinference.span.kind": "TOOL", "tool.name": "otel.look"},
]


@pytest.mark.parametrize("given", FRAMEWORKS)
def test_a_frameworks_span_around_a_call_replaces_ours(
    kept: Any, store: Store, given: dict[str, str]
) -> None:
    def job() -> None:
        with kept.tracer.start_as_current_span("theirs", attributes=given):
            look("a")

    with Session("job", store=store, observers=[kept.spans]) as first:
        job()
    with Session("job", store=store, observers=[kept.spans], replay="offline"):
        job()
    attempt = {"invoke_agent job": ["theirs"]}
    assert kept.tree() == [{"run job": [attempt, attempt]}]
    ran, hit = [attributes(each) for each in kept.ended if each.name == "theirs"]
    assert (ran[names.STATE], hit[names.STATE]) == ("ran", "hit")
    assert hit[names.ORIGIN_RUN] == first.run_id
    (link,) = kept.ended[-2].links
    assert link.context.trace_id == kept.ended[0].context.trace_id
    assert len({each.context.span_id for each in kept.ended}) == len(kept.ended)


@pytest.mark.parametrize("given", FRAMEWORKS)
def test_a_frameworks_span_inside_of_a_call_is_the_only_one_that_says_so(
    kept: Any, store: Store, given: dict[str, str]
) -> None:
    chat = {names.OPERATION: "chat", names.INPUT_TOKENS: 3}

    @tool(name="otel.look", effect="read")
    def looking() -> None:
        with kept.tracer.start_as_current_span("theirs", attributes=given):
            pass

    def answer(**_: object) -> str:
        with kept.tracer.start_as_current_span("chat gpt", attributes=chat):
            return "hello"

    with Session("job", store=store, observers=[kept.spans]) as session:
        looking()
        session.run_call(
            model_contract("gpt", "test"), {"messages": []}, answer, kind="model",
            answer=lambda value: Answer(text=value, usage={"input_tokens": 3}),
        )  # fmt: skip
    steps = [{"step otel.look": ["theirs"]}, {"step gpt": ["chat gpt"]}]
    assert kept.tree() == [{"run job": [{"invoke_agent job": steps}]}]
    for name in ("step otel.look", "step gpt"):
        said = attributes(kept.named(name))
        assert said[names.STATE] == "ran"
        assert not [each for each in said if each.startswith("gen_ai")]


def test_a_tool_that_calls_itself_has_a_span_for_each(kept: Any, store: Store) -> None:
    @tool(name="otel.down", effect="read")
    def down(n: int) -> int:
        return n and down(n - 1)

    given = {names.OPERATION: "execute_tool", names.TOOL_NAME: "otel.down"}
    with Session("job", store=store, observers=[kept.spans]):
        down(1)
        with kept.tracer.start_as_current_span("theirs", attributes=given):
            down(1)
    named = "execute_tool otel.down"
    assert kept.tree() == [
        {"run job": [{"invoke_agent job": [{named: [named]}, {"theirs": [named]}]}]}
    ]


def test_a_session_inside_of_a_step_is_inside_of_its_span(kept: Any, store: Store) -> None:
    @tool(name="otel.delegate", effect="scope")
    def delegate() -> str:
        with Session("inner", store=store, observers=[kept.spans]):
            return look("a")

    with Session("outer", store=store, observers=[kept.spans]):
        delegate()
    inside = {"invoke_agent otel.delegate": ["execute_tool otel.look"]}
    assert kept.tree() == [{"run outer": [{"invoke_agent outer": [inside]}]}]


def test_a_call_that_ends_a_dry_fork_did_not_run(keeping: Any, store: Store) -> None:
    with Session("job", store=store) as recorded:
        look("a")
        put("b")
    kept = keeping(content=True)
    fork = Fork(recorded.run_id, 1, {"outcome": {"status": "ok", "value": "another"}})
    session = Session("what-if", store=store, stages=[fork], observers=[kept.spans])
    with contextlib.suppress(ForkEnded), session:
        put(look("a"))
    changed = attributes(kept.named("execute_tool otel.look"))
    assert (changed[names.STATE], changed[names.RESULT]) == ("hit", '"another"')
    assert (changed[names.ORIGIN_RUN], changed[names.ORIGIN_STEP]) == (recorded.run_id, 1)
    assert "execute_tool otel.put" not in [each.name for each in kept.ended]
    assert attributes(kept.named("invoke_agent what-if"))[names.RUN_STATUS] == "would_write"


def test_the_child_of_a_fork_ends_no_span(kept: Any, store: Store) -> None:
    with Session("job", store=store, observers=[kept.spans]) as session:
        child = os.fork()
        if not child:
            with contextlib.suppress(BaseException):
                look("a")
            with contextlib.suppress(BaseException):
                session.__exit__(None, None, None)
            os._exit(len(kept.ended))
        _, status = os.waitpid(child, 0)
        look("b")
    assert os.waitstatus_to_exitcode(status) == 0
    assert kept.tree() == [{"run job": [{"invoke_agent job": ["execute_tool otel.look"]}]}]


def test_a_session_may_be_left_in_another_context(kept: Any, store: Store) -> None:
    session = Session("job", store=store, observers=[kept.spans])
    contextvars.copy_context().run(session.__enter__)
    session.call(look, thing="a")
    session.__exit__(None, None, None)
    assert kept.tree() == [{"run job": [{"invoke_agent job": ["execute_tool otel.look"]}]}]


def test_without_an_sdk_nothing_is_kept(store: Store) -> None:
    spans = Spans(NoOpTracerProvider())
    with Session("job", store=store, observers=[spans]):
        put("a")
    assert not spans._open
    assert trace.get_current_span() is trace.INVALID_SPAN
