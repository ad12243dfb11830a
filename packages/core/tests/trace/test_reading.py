"""A log is folded as it is read: what the run says is the same, and no line is kept."""

import gc
import tracemalloc
from pathlib import Path

import pytest
from rollcage import Session, open_store, resolve_step, tool
from rollcage.errors import TraceCorrupt, UnknownOutcome
from rollcage.trace.chain import Chain, chained, parse
from rollcage.trace.recorded import trace_of, verify_trace
from rollcage.trace.run import Fold, Run, fold_lines, fold_log


@tool(effect="write", name="test_reading.write")
def read_write(value: object) -> object:
    if value == "lost":
        raise TimeoutError("lost")
    if value == "failed":
        raise ValueError(',"outcome":{"status":"ok"}')
    return value


VALUES: list[object] = [
    "x", ',"outcome":{"status":"error"}', {"outcome": {"status": "error"}, "a": 1.0}, [1e300, -0.0],
    None, '\n\\"', "failed", {"$rollcage": "mine"}, "é😀",
]  # fmt: skip


def recorded(store: Path) -> str:
    with pytest.raises(UnknownOutcome), Session("a", store=store) as session:
        for value in VALUES:
            try:
                read_write(value)
            except ValueError:
                continue
        read_write("lost")
    return session.run_id


def said(run: Run) -> list[tuple[object, ...]]:
    return [
        (s.n, s.name, s.status, s.outcome, s.unclear, s.marks, s.undo, s.link(), s.pos)
        for s in run.steps.values()
    ]


def test_a_run_is_the_same_from_lines_and_from_events(tmp_path: Path) -> None:
    run = recorded(tmp_path)
    resolve_step(tmp_path, run, len(VALUES) + 1, happened=True, result={"outcome": 1}, by="ann")
    store = open_store(tmp_path)
    lines = store.read(run)
    heard: list[list[object]] = [[], []]
    folds: list[dict[str, list[Fold]]] = [{"outcome": [each.append]} for each in heard]
    one = fold_log(lines, run, folds[0])
    other = fold_lines(parse(lines, run), run, folds[1])
    assert said(one) == said(other)
    assert heard[0] == heard[1]
    log = store.open(run)
    streamed = fold_log(Chain(log).lines(), run, {})
    log.close()
    assert said(streamed) == said(one)


def test_the_bytes_of_an_outcome_are_those_of_its_line(tmp_path: Path) -> None:
    lines = open_store(tmp_path).read(recorded(tmp_path))
    run = fold_log(lines, "a", {})
    for step in run.steps.values():
        assert step.outcome is None or any(step.outcome in line for line in lines)


def test_a_line_that_fits_no_run_is_named() -> None:
    first = {"event": "run", "format": "rollcage/2", "run": "r"}
    for wrong in (
        {"event": "outcome", "step": 1, "duration": 1, "outcome": {"status": "ok", "value": 1}},
        {"event": "outcome", "step": 1, "duration": 1, "outcome": {"value": 1}},
        {"event": "outcome", "step": 1, "duration": 1, "outcome": None},
        {"event": "step", "step": 1},
    ):
        for collects in (True, False):
            gc.enable() if collects else gc.disable()
            try:
                with pytest.raises(TraceCorrupt, match="line 2: the line does not fit"):
                    fold_log(chained([first, wrong]), "the log", {})
                assert gc.isenabled() == collects
            finally:
                gc.enable()


def test_a_verified_trace_tells_its_lines_and_its_head(tmp_path: Path) -> None:
    run = recorded(tmp_path)
    lines = open_store(tmp_path).read(run)
    found = verify_trace(trace_of(tmp_path, run))
    assert (found.lines, found.is_ended) == (len(lines), True)
    assert found.head.encode() in lines[-1]


def test_no_line_of_a_long_log_is_kept(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    with Session("a", store=store) as session:
        for n in range(2000):
            session.call(read_write, value=n)
    log = Chain(store.open(session.run_id))
    size = sum(map(len, store.read(session.run_id)))
    tracemalloc.start()
    try:
        run = fold_log(log.lines(), "a", {})
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    log.close()
    assert len(run.steps) == 2000
    assert peak < 1.6 * size + (1 << 20)  # a chunk of the file
