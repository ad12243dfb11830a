"""Spans of attempts at runs: live, and out of its finished logs."""

import asyncio
import contextlib
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import StatusCode, get_current_span
from rollcage import (
    Approval,
    ApprovalRequired,
    Blocked,
    QueueApprover,
    Session,
    StepView,
    Verdict,
    compensate,
    open_store,
    tool,
    undo_run,
)
from rollcage_otel import Spans, names
from rollcage_otel.export import spans_of

shelf: list[str] = []


@pytest.fixture(autouse=True)
def _empty() -> None:
    shelf.clear()


@tool(name="hotel.take", idempotent=True)
def take(thing: str) -> None:
    shelf.remove(thing)


@tool(name="hotel.put", undo=lambda args: [compensate("hotel.take", **args)])
def put(thing: str) -> str:
    shelf.append(thing)
    return thing


@tool(name="hotel.look", effect="read")
def look(thing: str) -> str:
    if thing == "nothing":
        raise LookupError(thing)
    return thing


def attributes(span: Any) -> dict[str, Any]:
    return dict(span.attributes)


def test_an_attempt_its_steps_and_what_bodies_do_nest(kept: Any, tmp_path: Path) -> None:
    @tool(name="hotel.outer", effect="scope")
    def outer(thing: str) -> str:
        with kept.tracer.start_as_current_span("GET"):
            return look(thing)

    with (
        kept.tracer.start_as_current_span("request"),
        Session("job", store=tmp_path, observers=[kept.spans]) as session,
    ):
        with session.place(agent="ann", call_id="c1"):
            put("a")
        outer("b")
    assert trace.get_current_span() is trace.INVALID_SPAN
    inside = {"GET": ["execute_tool hotel.look"]}
    steps = ["execute_tool hotel.put", {"invoke_agent hotel.outer": [inside]}]
    assert kept.tree() == [{"request": [{"invoke_agent job": steps}]}]
    written = attributes(kept.named("execute_tool hotel.put"))
    assert len(written.pop(names.FINGERPRINT)) == 64
    assert written == {
        names.RUN: session.run_id,
        names.STEP: 1,
        names.KIND: "tool",
        names.EFFECT: "write",
        names.STATE: "ran",
        names.OPERATION: "execute_tool",
        names.TOOL_NAME: "hotel.put",
        names.TOOL_TYPE: "function",
        names.CALL_ID: "c1",
        names.AGENT_NAME: "ann",
    }
    run = attributes(kept.named("invoke_agent job"))
    assert (run[names.MODE], run[names.RUN_STATUS]) == ("record", "ok")
    assert run[names.ATTEMPT] == session.attempt.run.attempt


async def test_bodies_of_all_kinds_stand_in_their_steps(kept: Any, tmp_path: Path) -> None:
    def inside() -> None:
        kept.tracer.start_span("GET").end()

    @tool(name="hotel.sync", effect="read")
    def in_thread(n: int) -> int:
        inside()
        return n

    @tool(name="hotel.async", effect="read")
    async def awaited(n: int) -> int:
        await asyncio.sleep(0)
        inside()
        return n

    @tool(name="hotel.stream", effect="read")
    def chunks() -> Iterator[int]:
        inside()
        yield 1
        inside()

    @tool(name="hotel.astream", effect="read")
    async def achunks() -> AsyncIterator[int]:
        inside()
        yield 1
        await asyncio.sleep(0)
        inside()

    async with Session("job", store=tmp_path, observers=[kept.spans]) as session:
        attempt = trace.get_current_span()
        with session.turn() as turn:

            async def one(slot: int) -> None:
                with turn.slot(slot):
                    await awaited(slot)

            await asyncio.gather(one(0), one(1))
        await session.acall(in_thread, n=2)
        for _ in chunks():
            assert trace.get_current_span() is attempt
        async for _ in achunks():
            assert trace.get_current_span() is attempt
    ((run,),) = (each.values() for each in kept.tree())
    (job,) = run
    assert [
        (name, {*below}) for step in job["invoke_agent job"] for name, below in step.items()
    ] == [
        (f"execute_tool hotel.{name}", {"GET"})
        for name in ("async", "async", "sync", "stream", "astream")
    ]


def test_attempts_stand_in_their_run_and_hits_are_linked(keeping: Any, tmp_path: Path) -> None:
    first, second = keeping(content=True), keeping(content=True)

    def job(**how: Any) -> Session:
        session = Session("job", store=tmp_path, **how)
        with session:
            put("a")
            with pytest.raises(LookupError):
                look("nothing")
            put("b")
            if how["observers"] == [first.spans]:
                raise ValueError("out")
            put("c")
        return session

    with pytest.raises(ValueError, match="out"):
        job(observers=[first.spans])
    session = job(observers=[second.spans])
    hits, ran = second.ended[:3], second.ended[3]
    for hit, origin in zip(hits, first.ended, strict=False):
        assert hit.name == origin.name
        assert hit.start_time == hit.end_time
        assert hit.context.span_id != origin.context.span_id
        assert [link.context.span_id for link in hit.links] == [origin.context.span_id]
        assert hit.attributes[names.STATE] == "hit"
    assert (ran.name, ran.links) == ("execute_tool hotel.put", ())
    failed = first.named("execute_tool hotel.look")
    assert failed.status.status_code is StatusCode.ERROR
    assert "run job" not in [each.name for each in first.ended], "it may be resumed"
    run = second.named("run job")
    attempts = [each.named("invoke_agent job") for each in (first, second)]
    assert {each.parent.span_id for each in attempts} == {run.context.span_id}
    traces = {each.context.trace_id for each in (*first.ended, *second.ended)}
    assert traces == {int(session.run_id.replace("-", ""), 16)}
    assert run.start_time <= attempts[0].start_time
    assert run.end_time >= attempts[1].end_time


def asks(step: StepView) -> Verdict | None:
    return Verdict.ask("sure?") if step.name == "hotel.put" else None


def test_a_wait_for_approval_is_a_span(keeping: Any, tmp_path: Path) -> None:
    store = open_store(tmp_path)
    first, second = keeping(), keeping()
    halted = Session(
        "job", store=store, gate=[asks], observers=[first.spans], approver=QueueApprover(store)
    )
    with pytest.raises(ApprovalRequired), halted:
        put("a")
    assert attributes(first.named("approval hotel.put"))[names.STATE] == "pending"
    assert attributes(first.named("invoke_agent job"))[names.RUN_STATUS] == "paused"

    def no(request: Any) -> Approval:
        return Approval.reject("no", by="ann")

    def yes(request: Any) -> Approval:
        return Approval(True, by="ann")

    with Session("other", store=store, gate=[asks], observers=[second.spans], approver=yes):
        put("a")
    wait, step = second.named("approval hotel.put"), second.named("execute_tool hotel.put")
    assert attributes(wait)[names.STATE] == "approved"
    assert attributes(step)[names.APPROVED_BY] == "ann"
    assert attributes(step)[names.APPROVAL] == attributes(wait)[names.APPROVAL]
    third = keeping()
    denied = Session("no", store=store, gate=[asks], observers=[third.spans], approver=no)
    with denied, pytest.raises(Blocked):
        put("a")
    assert attributes(third.named("approval hotel.put"))[names.STATE] == "rejected"
    assert attributes(third.named("execute_tool hotel.put"))[names.STATE] == "blocked"


def test_an_undo_is_a_span_around_compensating_calls(keeping: Any, tmp_path: Path) -> None:
    live, later = keeping(), keeping()
    with Session("job", store=tmp_path, observers=[live.spans]) as session:
        with contextlib.suppress(ValueError), session.transaction("both"):
            put("a")
            raise ValueError
        put("b")
    put_, undo = "execute_tool hotel.put", {"undo hotel.put": ["execute_tool hotel.take"]}
    assert live.tree() == [{"run job": [{"invoke_agent job": [put_, undo, put_]}]}]
    assert attributes(live.named("undo hotel.put"))[names.UNDO_STATUS] == "compensated"
    undo_run(tmp_path, session.run_id, observers=[later.spans])
    assert later.tree() == [{"invoke_agent job": [undo]}]
    assert attributes(later.named("invoke_agent job"))[names.RUN_STATUS] == "undone"


def test_a_run_that_was_killed_loses_no_span(tmp_path: Path) -> None:
    code = """
        import os, signal
        from rollcage import Session, tool

        @tool(effect="scope")
        def outer():
            done()
            cut()

        @tool
        def done(): pass

        @tool
        def cut(): os.kill(os.getpid(), signal.SIGKILL)

        with Session("job", store="store"):
            outer()
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=tmp_path, check=False, timeout=60
    )
    assert ended.returncode == -signal.SIGKILL
    store = open_store(tmp_path / "store")
    run = (store.get("names", "job") or b"").decode()
    by_name: dict[str, Any] = {span.name: span for span in spans_of(store.read(run))}
    states = {name: span.attributes.get(names.STATE) for name, span in by_name.items()}
    assert states == {
        "execute_tool done": "ran",
        "execute_tool cut": "unknown",
        "invoke_agent outer": "cut_off",
        "invoke_agent job": None,
        "run job": None,
    }
    for name in ("run job", "invoke_agent job"):
        assert by_name[name].attributes[names.RUN_STATUS] == "unfinished"
    cut, outer = by_name["execute_tool cut"], by_name["invoke_agent outer"]
    assert cut.parent.span_id == outer.context.span_id


def test_a_finished_log_gives_the_same_spans(keeping: Any, tmp_path: Path) -> None:
    """What was sent live is what an export sends: same ids, parents, links, times, attributes."""
    kept = keeping(content=True)

    @tool(name="hotel.both", effect="scope")
    def both(thing: str) -> str:
        return put(thing) + look(thing)

    def rule(step: StepView) -> Verdict | None:
        return Verdict.deny("no", code="no") if step.args == {"thing": "z"} else None

    run = ""
    for last in (False, True):
        session = Session("job", store=tmp_path, observers=[kept.spans], gate=[rule])
        with contextlib.suppress(ValueError), session:
            run = session.run_id
            with session.turn():
                look("a")
                both("b")
            with session.branch("left"):
                put("c")
            with pytest.raises(LookupError):
                look("nothing")
            with pytest.raises(Blocked):
                put("z")
            if not last:
                raise ValueError
            put("d")
            with contextlib.suppress(ZeroDivisionError), session.transaction():
                put("e")
                raise ZeroDivisionError
    assert not kept.spans._open
    assert not kept.spans._before
    exported: list[Any] = spans_of(open_store(tmp_path).read(run), content=True)
    again: list[Any] = spans_of(open_store(tmp_path).read(run), content=True)
    assert [each.context.span_id for each in exported] == [each.context.span_id for each in again]
    sent = {each.context.span_id: each for each in kept.ended}
    found = {each.context.span_id: each for each in exported}
    assert len(exported) == len(kept.ended)
    for span_id, live in sent.items():
        span = found[span_id]
        assert span.name == live.name
        assert span.context.trace_id == live.context.trace_id
        assert (span.parent is None) == (live.parent is None)
        if live.parent is not None:
            assert span.parent.span_id == live.parent.span_id
        assert attributes(span) == attributes(live)
        assert [x.context.span_id for x in span.links] == [x.context.span_id for x in live.links]
        if live.attributes.get(names.STATE) != "hit" and not live.name.startswith("invoke_agent j"):
            assert (span.start_time, span.end_time) == (live.start_time, live.end_time)


async def test_the_span_of_an_attempt_is_current_in_async_sessions(tmp_path: Path) -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    async with Session("job", store=tmp_path, observers=[Spans(provider)]) as session:
        current = get_current_span()
    assert getattr(current, "name", "") == f"invoke_agent {session.name}"
    assert current.get_span_context().is_valid
