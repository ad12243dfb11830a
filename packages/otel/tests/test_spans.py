"""Spans of sessions, as an SDK gets them."""

import asyncio
import contextlib
import contextvars
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.trace import NoOpTracerProvider, SpanKind, StatusCode
from pydantic import SecretStr
from rollcage import (
    Approval,
    ApprovalRequired,
    Blocked,
    ForkEnded,
    Halt,
    StepView,
    Verdict,
    compensate,
    tool,
)
from rollcage.adapter import Answer, model_contract
from rollcage.gate import QueueApprover
from rollcage.replay.fork import Fork
from rollcage.session.finished import undo_run
from rollcage.session.session import Session
from rollcage.store import Store
from rollcage.store import open_store as opened
from rollcage_otel import Spans, names
from rollcage_otel.export import spans_of

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
    answer: str = session.run(
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
    assert len(written.pop(names.WORLD)) == len(written.pop(names.FINGERPRINT)) == 64
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


async def test_bodies_of_all_kinds_stand_in_their_steps(kept: Any, store: Store) -> None:
    def inside() -> None:
        kept.tracer.start_span("GET").end()

    @tool(name="otel.sync", effect="read")
    def in_thread(n: int) -> int:
        inside()
        return n

    @tool(name="otel.async", effect="read")
    async def awaited(n: int) -> int:
        await asyncio.sleep(0)
        inside()
        return n

    @tool(name="otel.stream", effect="read")
    def chunks() -> Iterator[int]:
        inside()
        yield 1
        inside()

    @tool(name="otel.astream", effect="read")
    async def achunks() -> AsyncIterator[int]:
        inside()
        yield 1
        await asyncio.sleep(0)
        inside()

    async with Session("job", store=store, observers=[kept.spans]) as session:
        run = trace.get_current_span()
        with session.turn() as turn:

            async def one(slot: int) -> None:
                with turn.slot(slot):
                    await awaited(slot)

            await asyncio.gather(one(0), one(1))
        await session.acall(in_thread, n=2)
        for _ in chunks():
            assert trace.get_current_span() is run
        async for _ in achunks():
            assert trace.get_current_span() is run
    got = {"GET"}
    (job,) = kept.tree()
    assert [
        (name, {*below}) for step in job["invoke_agent job"] for name, below in step.items()
    ] == [
        ("execute_tool otel.async", got),
        ("execute_tool otel.async", got),
        ("execute_tool otel.sync", got),
        ("execute_tool otel.stream", got),
        ("execute_tool otel.astream", got),
    ]


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


def test_a_hit_is_a_point_that_links_to_where_it_ran(keeping: Any, store: Store) -> None:
    def job(session: Session) -> None:
        put("a")
        ask(session, "b")
        with pytest.raises(LookupError):
            look("nothing")

    first, second = keeping(content=True), keeping(content=True)
    with (
        pytest.raises(ValueError, match="out"),
        Session("job", store=store, observers=[first.spans]) as crashed,
    ):
        job(crashed)
        raise ValueError("out")
    with Session("job", store=store, observers=[second.spans], retry_failed=False) as session:
        job(session)
        put("c")
    *hits, new, run = second.ended
    for hit, origin in zip(hits, first.ended, strict=False):
        assert hit.name == origin.name
        assert hit.start_time == hit.end_time
        assert [link.context.span_id for link in hit.links] == [origin.context.span_id]
        assert [link.context.trace_id for link in hit.links] == [origin.context.trace_id]
        assert hit.attributes[names.STATE] == "hit"
        assert hit.attributes[names.ORIGIN_RUN] == crashed.run_id
        assert names.INPUT_TOKENS not in hit.attributes  # they were not used again
    assert "to b" in hits[1].attributes[names.OUTPUT_MESSAGES]
    assert not new.links
    (source,) = run.links
    assert source.context.span_id == first.ended[-1].context.span_id
    assert run.attributes[names.SOURCE] == crashed.run_id
    failed = first.named("execute_tool otel.look")
    assert (failed.status.status_code, failed.attributes[names.ERROR_TYPE]) == (
        StatusCode.ERROR, "LookupError",
    )  # fmt: skip
    assert first.ended[-1].attributes[names.ERROR_TYPE] == "ValueError"


def asks(step: StepView) -> Verdict | None:
    return Verdict.ask("sure?") if step.name == "otel.put" else None


def test_a_wait_for_approval_is_a_span(keeping: Any, store: Store) -> None:
    first, second, third = keeping(), keeping(), keeping()
    with (
        pytest.raises(ApprovalRequired),
        Session(
            "job",
            store=store,
            rules=[asks],
            observers=[first.spans],
            approver=QueueApprover(store),
        ),
    ):
        put("a")
    both = ["approval otel.put", "execute_tool otel.put"]
    assert first.tree() == [{"invoke_agent job": both}]
    waiting = first.named("execute_tool otel.put")
    assert attributes(waiting)[names.VERDICT_CODE] == "approval_required"
    assert waiting.status.status_code is StatusCode.UNSET
    pending = first.named("approval otel.put")
    assert attributes(pending)[names.STATE] == "pending"
    assert pending.status.status_code is StatusCode.UNSET
    run = first.named("invoke_agent job")
    assert attributes(run)[names.RUN_STATUS] == "paused"
    assert run.status.status_code is StatusCode.UNSET

    def say(approved: bool) -> Callable[..., Approval]:
        return lambda request: Approval(approved, by="ann")

    with Session("job", store=store, rules=[asks], observers=[second.spans], approver=say(True)):
        put("a")
    assert second.tree() == [{"invoke_agent job": both}]
    wait, step, _ = second.ended
    assert attributes(wait)[names.STATE] == "approved"
    assert attributes(step)[names.APPROVED_BY] == "ann"
    assert attributes(step)[names.APPROVAL] == attributes(wait)[names.APPROVAL]
    assert wait.end_time <= step.end_time
    with (
        Session("other", store=store, rules=[asks], observers=[third.spans], approver=say(False)),
        pytest.raises(Blocked),
    ):
        put("a")
    assert attributes(third.named("approval otel.put"))[names.STATE] == "rejected"
    blocked = third.named("execute_tool otel.put")
    assert (attributes(blocked)[names.STATE], blocked.status.status_code) == (
        "blocked", StatusCode.ERROR,
    )  # fmt: skip


def test_an_undo_is_a_span_around_its_compensating_calls(keeping: Any, store: Store) -> None:
    live, later = keeping(), keeping()
    with Session("job", store=store, observers=[live.spans]) as session:
        with contextlib.suppress(ValueError), session.transaction("both"):
            put("a")
            raise ValueError
        put("b")
    put_ = "execute_tool otel.put"
    undo = {"undo otel.put": ["execute_tool otel.take"]}
    assert live.tree() == [{"invoke_agent job": [put_, undo, put_]}]
    assert attributes(live.named("undo otel.put"))[names.UNDO_STATUS] == "compensated"
    undo_run(store, session.run_id, observers=[later.spans])
    assert later.tree() == [{"undo job": [undo]}]
    (link,) = later.named("undo job").links
    assert link.context.span_id == live.named("invoke_agent job").context.span_id
    (link,) = later.named("undo otel.put").links
    assert link.context.span_id == live.ended[-2].context.span_id


async def test_an_unknown_outcome_that_is_resolved_late(kept: Any, store: Store) -> None:
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
            go_on.set()
            await asyncio.wait_for(late.wait(), 10)
    step, resolved = kept.named("execute_tool otel.slow"), kept.named("resolve otel.slow")
    assert (attributes(step)[names.STATE], step.status.status_code) == ("unknown", StatusCode.ERROR)
    assert attributes(resolved)[names.STATE] == "ran"
    assert [link.context.span_id for link in resolved.links] == [step.context.span_id]
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
    with Session("job", store=store, observers=[kept.spans]) as session:
        log_in("ann", SecretStr("hunter2-hunter2"))
        ask(session, "you")
    step, model, _ = map(attributes, kept.ended)
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
    runs = {"invoke_agent job": ["theirs"]}
    assert kept.tree() == [runs, runs]
    ran, hit = [attributes(each) for each in kept.ended if each.name == "theirs"]
    assert (ran[names.STATE], hit[names.STATE]) == ("ran", "hit")
    assert hit[names.ORIGIN_RUN] == first.run_id
    (link,) = kept.ended[-2].links
    assert link.context.trace_id == kept.ended[0].context.trace_id


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
        session.run(
            model_contract("gpt", "test"), {"messages": []}, answer, kind="model",
            answer=lambda value: Answer(text=value, usage={"input_tokens": 3}),
        )  # fmt: skip
    steps = [{"step otel.look": ["theirs"]}, {"step gpt": ["chat gpt"]}]
    assert kept.tree() == [{"invoke_agent job": steps}]
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
    assert kept.tree() == [{"invoke_agent job": [{named: [named]}, {"theirs": [named]}]}]


def test_a_session_inside_of_a_step_is_inside_of_its_span(kept: Any, store: Store) -> None:
    @tool(name="otel.delegate", effect="scope")
    def delegate() -> str:
        with Session("inner", store=store, observers=[kept.spans]):
            return look("a")

    with Session("outer", store=store, observers=[kept.spans]):
        delegate()
    inner = {"invoke_agent inner": ["execute_tool otel.look"]}
    assert kept.tree() == [{"invoke_agent outer": [{"invoke_agent otel.delegate": [inner]}]}]


def test_what_stood_in_for_a_write_of_a_fork_is_no_write_that_ran(
    keeping: Any, store: Store
) -> None:
    with Session("job", store=store) as recorded:
        look("a")
        put("b")
    for answers, state in (({"otel.put": "as if"}, "simulated"), ({}, "blocked")):
        kept = keeping(content=True)
        fork = Fork(recorded.run_id, at=1, result="another", answers=answers)
        with (
            contextlib.suppress(ForkEnded),
            Session("job", store=store, fork=fork, observers=[kept.spans]) as session,
        ):
            put(look("a"))
        written = kept.named("execute_tool otel.put").attributes
        assert written[names.STATE] == state
        assert written.get(names.SIMULATED) == ("write" if answers else None)
        assert kept.named("execute_tool otel.look").attributes[names.STATE] == "simulated"
        exported = spans_of(store.read(session.run_id), content=True)
        (again,) = [each for each in exported if each.name == "execute_tool otel.put"]
        assert again.attributes == written


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
    assert kept.tree() == [{"invoke_agent job": ["execute_tool otel.look"]}]


def test_a_session_may_be_left_in_another_context(kept: Any, store: Store) -> None:
    session = Session("job", store=store, observers=[kept.spans])
    contextvars.copy_context().run(session.__enter__)
    session.call(look, thing="a")
    session.__exit__(None, None, None)
    assert kept.tree() == [{"invoke_agent job": ["execute_tool otel.look"]}]


def test_without_an_sdk_nothing_is_kept(store: Store) -> None:
    spans = Spans(NoOpTracerProvider())
    with Session("job", store=store, observers=[spans]):
        put("a")
    assert not spans._open
    assert trace.get_current_span() is trace.INVALID_SPAN


@pytest.mark.parametrize("url", ["{}/folder", "sqlite:///{}/runs.db"])
def test_no_span_stays_open_and_the_trace_gives_the_same_spans(
    keeping: Any, tmp_path: Path, files: Any, url: str
) -> None:
    """What was sent live is what an export sends: same ids, parents, links, times, attributes."""
    store, kept = opened(url.format(tmp_path)), keeping(content=True)

    @tool(name="otel.both", effect="scope")
    def both(thing: str) -> str:
        return put(thing) + look(thing)

    def job(session: Session) -> None:
        with session.turn():
            look("a")
            both("b")
        with session.branch("left"):
            put("c")
        ask(session, "d")
        with pytest.raises(LookupError):
            look("nothing")
        with pytest.raises(Blocked):
            wipe()

    def rule(step: StepView) -> Verdict | None:
        return Verdict.deny("no", code="no") if step.name == "otel.wipe" else None

    runs = []
    for last in (True, False):
        with (
            contextlib.suppress(ValueError),
            Session("job", store=store, observers=[kept.spans], rules=[rule]) as session,
        ):
            runs.append(session.run_id)
            job(session)
            if last:
                raise ValueError
            files.put_file(path=str(tmp_path / "file"), text="a")
            session.undo()
    assert not kept.spans._open
    assert not kept.spans._before
    recorded: list[Any] = []
    for run in runs:
        recorded += spans_of(store.read(run), content=True)
    assert len(recorded) == len(kept.ended)
    sent = {each.context.span_id: each for each in kept.ended}
    assert len(sent) == len(recorded)
    for span in recorded:
        live = sent[span.context.span_id]
        if span.name == "undo":  # of a step that is in the source's trace only
            assert live.name == "undo otel.put"
        else:
            assert span.name == live.name
        assert span.context.trace_id == live.context.trace_id
        assert (span.parent is None) == (live.parent is None)
        if live.parent is not None:
            assert span.parent.span_id == live.parent.span_id
        assert attributes(span) == attributes(live)
        assert [x.context.span_id for x in span.links] == [x.context.span_id for x in live.links]
        if span.parent is not None:
            assert (span.start_time, span.end_time) == (live.start_time, live.end_time)
