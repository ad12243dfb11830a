"""A trace shows every change: bytes, lines, order and end, and says which line it is."""

import dataclasses
import functools
import json
import tempfile
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import jsonschema
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rollcage import TraceCorrupt, UnknownOutcome, tool
from rollcage.gate import StepView, Verdict
from rollcage.session.session import Session
from rollcage.store import JsonlStore, RunTrace, check_attested
from rollcage.trace import check_events, json_schema, read_events, seal_line, split_tail

Events = Callable[[str], list[dict[str, Any]]]


@tool(effect="write")
def write(number: int) -> str:
    return f"wrote {number}"


@functools.cache
def finished() -> RunTrace:
    """A small finished run, as its store gives it."""
    with tempfile.TemporaryDirectory(prefix="rollcage-trace-") as folder:
        store = JsonlStore(folder)
        with Session("job", store=store) as session:
            write(1)
            write(2)
        return store.read(session.run_id)


def check(data: bytes) -> None:
    """What `rollcage verify` holds a trace against."""
    trace = finished()
    whole, torn = split_tail(data)
    check_events(whole, "trace")
    check_attested(RunTrace(trace.run, "trace", whole, torn, trace.info))


def test_the_trace_as_it_was_written_passes() -> None:
    check(finished().data)
    assert finished().data.count(b"\n") == 6


def test_every_byte_counts() -> None:
    data = finished().data
    for place in range(len(data)):
        line = data.count(b"\n", 0, place) + 1
        for flip in (0x01, 0x20, 0x80):  # a digit, a letter's case, no ASCII any more
            changed = bytearray(data)
            changed[place] ^= flip
            with pytest.raises(TraceCorrupt) as caught:
                check(bytes(changed))
            assert caught.value.line in (line, line - 1), "a lost newline shows a line early"


@given(st.data())
def test_every_other_byte_in_its_place_is_found(draw: st.DataObject) -> None:
    data = bytearray(finished().data)
    place = draw.draw(st.integers(0, len(data) - 1))
    data[place] = draw.draw(st.integers(0, 255).filter(lambda byte: byte != data[place]))
    with pytest.raises(TraceCorrupt):
        check(bytes(data))


@given(st.data())
def test_bytes_put_in_or_taken_out_are_found(draw: st.DataObject) -> None:
    data = finished().data
    start = draw.draw(st.integers(0, len(data)))
    end = draw.draw(st.integers(start, min(len(data), start + 400)))
    inserted = draw.draw(st.binary(max_size=40))
    changed = data[:start] + inserted + data[end:]
    if changed == data or split_tail(changed)[0] == data:  # a torn rest is told apart, not trace
        return
    with pytest.raises(TraceCorrupt):
        check(changed)


def lines() -> list[bytes]:
    return finished().data.splitlines(keepends=True)


@pytest.mark.parametrize("gone", range(6))
def test_a_removed_line_is_found(gone: int) -> None:
    rest = lines()
    del rest[gone]
    with pytest.raises(TraceCorrupt) as caught:
        check(b"".join(rest))
    assert caught.value.line == min(gone + 1, 5)


@pytest.mark.parametrize(("first", "second"), [(a, b) for a in range(6) for b in range(a + 1, 6)])
def test_swapped_lines_are_found(first: int, second: int) -> None:
    swapped = lines()
    swapped[first], swapped[second] = swapped[second], swapped[first]
    with pytest.raises(TraceCorrupt) as caught:
        check(b"".join(swapped))
    assert caught.value.line == first + 1


def test_a_repeated_line_is_found() -> None:
    for at in range(6):
        with pytest.raises(TraceCorrupt) as caught:
            check(b"".join([*lines()[: at + 1], *lines()[at:]]))
        assert caught.value.line == at + 2


def test_every_truncation_of_a_finished_run_is_found() -> None:
    data = finished().data
    for size in range(len(data)):
        with pytest.raises(TraceCorrupt):
            check(data[:size])


def test_a_line_added_to_a_finished_run_is_found() -> None:
    last = orjson.loads(lines()[-1])
    head = bytes.fromhex(last.pop("hash"))
    line, _ = seal_line(last, head)  # a right hash does not help
    with pytest.raises(TraceCorrupt, match="another end"):
        check(finished().data + line)


def resolved(step: int, head: bytes) -> tuple[bytes, bytes]:
    """The line of somebody's word on a step, behind a line with the hash `head`."""
    outcome = {"status": "not_started"}
    digest = sha256(orjson.dumps(outcome)).hexdigest()
    word = {"event": "step.resolved", "time": 1, "step": step, "by": "operator"}
    return seal_line({**word, "outcome": outcome, "digest": digest}, head)


def test_a_word_on_a_step_may_stand_behind_the_attested_end() -> None:
    """Whoever says it may be killed between the trace and the index."""
    end = bytes.fromhex(orjson.loads(lines()[-1])["hash"])
    word, head = resolved(1, end)
    check(finished().data + word)
    check(finished().data + word + resolved(2, head)[0])
    for wrong in (
        resolved(1, bytes(32))[0],  # from nowhere
        word + resolved(2, end)[0],
        word + lines()[-1],
        word + seal_line({"event": "run.finished", "time": 1, "status": "ok", "steps": 0}, head)[0],
    ):
        with pytest.raises(TraceCorrupt):
            check_attested(dataclasses.replace(finished(), data=finished().data + wrong))


def test_a_truncation_shows_though_a_word_stands_behind_it() -> None:
    for gone in range(1, 7):
        rest = lines()[:-gone]
        head = bytes.fromhex(orjson.loads(rest[-1])["hash"]) if rest else bytes(32)
        words = b""
        for step in range(1, gone + 2):  # as many lines as there were, and one more
            word, head = resolved(step, head)
            words += word
            with pytest.raises(TraceCorrupt, match="another end"):
                check_attested(dataclasses.replace(finished(), data=b"".join(rest) + words))


def test_a_line_of_another_format_is_found_though_its_hash_is_right() -> None:
    first = orjson.loads(lines()[0])
    head = bytes.fromhex(first["hash"])
    bad, _ = seal_line({"event": "step.invented", "time": 1}, head)
    with pytest.raises(TraceCorrupt) as caught:
        check_events(lines()[0] + bad, "trace")
    assert caught.value.line == 2
    wrong: list[Any] = [[1], {"event": "run.finished", "time": 1, "status": "ok", "steps": 0}]
    for event in wrong:
        line, _ = seal_line(event, bytes(32))
        with pytest.raises(TraceCorrupt) as caught:
            list(read_events(line, "trace"))
        assert caught.value.line == 1


@pytest.mark.damaged
@pytest.mark.parametrize("missing", ["position", "key", "outcome", "digest"])
def test_a_resume_refuses_an_event_without_its_fields(store: JsonlStore, missing: str) -> None:
    with pytest.raises(InterruptedError), Session("job", store=store) as session:
        write(1)
        raise InterruptedError
    path = store.root / "runs" / f"{session.run_id}.jsonl"
    head, told = bytes(32), b""
    for line in path.read_bytes().splitlines()[:3]:
        event = orjson.loads(line)
        del event["hash"]
        event.pop(missing, None)
        sealed, head = seal_line(event, head)
        told += sealed
    path.write_bytes(told)
    index = [json.loads(line) for line in (store.root / "index.jsonl").read_text().splitlines()]
    begun = [json.dumps(line) + "\n" for line in index if "name" in line]  # as after a crash
    (store.root / "index.jsonl").write_text("".join(begun))
    with pytest.raises(TraceCorrupt) as caught, Session("job", store=store):
        pytest.fail("a session over an incomplete event was entered")
    assert caught.value.line in (2, 3)


def test_each_kind_of_event_passes_the_published_schema(store: JsonlStore, events: Events) -> None:
    """The schema as it is published, by a validator that is not ours."""

    def refuse(step: StepView) -> Verdict | None:
        return Verdict.deny("not here") if step.args.get("number") == 13 else None

    @tool(effect="write", secret="password")
    def log_in(password: str) -> None:
        raise PermissionError(13, "no", "file")

    @tool(effect="write")
    def outer() -> str:
        return write(7)

    with Session("job", store=store, rules=[refuse]) as first:
        write(1)
        outer()
        for call in (lambda: write(13), lambda: log_in("hunter2")):
            with pytest.raises(Exception, match=r"not here|no"):
                call()
        with first.branch("side") as side:
            side.call(write, number=2)
        first.call(write, number=9)
    with Session("job", store=store, replay="offline") as second:
        write(1)
    validator = jsonschema.Draft202012Validator(json_schema())
    seen = set()
    for run in (first.run_id, second.run_id):
        for event in events(run):
            validator.validate(event)
            seen.add(event["event"])
    assert seen == {
        "run.started", "run.finished", "step.started", "step.finished", "step.replayed",
        "step.blocked", "branch.forked", "branch.joined",
    }  # fmt: skip


def test_a_late_word_keeps_a_finished_trace_whole(
    store: JsonlStore, events: Events, resolve: Callable[[str, int, dict[str, Any]], None]
) -> None:
    @tool(effect="write")
    def hang() -> str:
        raise TimeoutError

    session = Session("job", store=store)
    with pytest.raises(UnknownOutcome), session:
        hang()
    resolve(session.run_id, 1, {"status": "ok", "value": "it did"})
    check_attested(store.read(session.run_id))
    assert events(session.run_id)[-1]["event"] == "step.resolved"
    with Session("job", store=store) as again:
        assert hang() == "it did"
    assert again.stats.hits == 1


def test_what_is_no_trace_is_refused() -> None:
    with pytest.raises(TraceCorrupt, match="empty"):
        check_events(b"", "trace")
    with pytest.raises(TraceCorrupt, match="not a line"):
        check_events(b"{}\n", "trace")


def test_a_word_whose_speaker_was_killed_counts(store: JsonlStore) -> None:
    """The run goes on where it would have gone on, and the next word is taken too."""

    @tool(effect="write")
    def hang(number: int) -> str:
        raise TimeoutError

    first = Session("job", store=store)
    with pytest.raises(UnknownOutcome), first:
        hang(1)
    writer = store.reopen(first.run_id)
    outcome = {"status": "ok", "value": "it did"}
    digest = sha256(orjson.dumps(outcome)).hexdigest()
    word = {"event": "step.resolved", "time": 1, "step": 1, "by": "operator"}
    writer.append({**word, "outcome": outcome, "digest": digest})
    writer.close()  # killed: no word of it in the index
    check_attested(store.read(first.run_id))
    with Session("job", store=store) as again:
        assert hang(1) == "it did"
    assert again.stats.hits == 1
