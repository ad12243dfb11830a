"""Runs that build on one another: what is kept when one is killed, and when one is gone."""

import logging
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
from rollcage import RunInUse, RunNotFound, SourceMissing, TraceCorrupt, tool
from rollcage.session.session import Session
from rollcage.store import JsonlStore, Store, TraceFile
from rollcage.store.url import open_store

Events = Callable[[str], list[dict[str, Any]]]
Python = Callable[..., subprocess.CompletedProcess[str]]

STEPS = 10
JOB = """
    import os, signal, sys
    from rollcage import tool
    from rollcage.session.session import Session

    stop, effects = int(sys.argv[1]), os.open("effects", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    @tool(effect="write")
    def write(number: int) -> str:
        os.write(effects, b"%d\\n" % number)
        return f"wrote {number}"

    with Session("job", store="store") as session:
        for number in range(10):
            if number == stop:
                os.kill(os.getpid(), signal.SIGKILL)
            assert write(number) == f"wrote {number}"
        print(session.stats.hits, session.stats.misses)
"""


@tool(effect="write")
def write(number: int) -> str:
    return f"wrote {number}"


@tool(effect="read")
def load(size: int) -> str:
    return "x" * size


def record(store: Store, steps: int, *, ends: bool = True) -> str:
    """A run of some writes, left by an exception unless it `ends`."""
    session = Session("job", store=store)
    try:
        with session:
            for number in range(steps):
                write(number)
            if not ends:
                raise InterruptedError
    except InterruptedError:
        pass
    return session.run_id


def test_a_resume_killed_five_times_over_keeps_all_that_was_committed(
    python: Python, store: JsonlStore, events: Events, tmp_path: Path
) -> None:
    for stop in (8, 3, 1, 0, 5, 8):  # the first records, five are resumes that die
        assert python(JOB, str(stop)).returncode == -signal.SIGKILL
    finished = python(JOB, "-1")
    assert finished.stdout.split() == ["8", "2"], finished.stderr
    assert (tmp_path / "effects").read_text().split() == [str(n) for n in range(STEPS)]
    first, *later = store.runs()
    assert {run.status for run in [first, *later[:-1]]} == {None}
    assert [run.source for run in later] == [run.run for run in [first, *later[:-1]]]
    assert {events(run.run)[0]["root"] for run in later} == {first.run}


def test_a_finished_run_replays_without_its_source(store: JsonlStore) -> None:
    gone = record(store, 3, ends=False)
    with Session("job", store=store) as session:
        assert [write(n) for n in range(4)] == [f"wrote {n}" for n in range(4)]
    (store.root / "runs" / f"{gone}.jsonl").unlink()
    modes: tuple[Literal["resume", "offline"], ...] = ("offline", "resume")
    for mode in modes:
        with Session("job", store=store, replay=mode, source=session.run_id) as again:
            assert [write(n) for n in range(4)] == [f"wrote {n}" for n in range(4)]
        assert (again.stats.hits, again.stats.misses) == (4, 0)


def test_an_unfinished_run_without_its_source_is_refused(store: JsonlStore) -> None:
    gone = record(store, 3, ends=False)
    unfinished = record(store, 2, ends=False)
    (store.root / "runs" / f"{gone}.jsonl").unlink()
    before = store.runs()
    with pytest.raises(SourceMissing, match=gone), Session("job", store=store):
        pytest.fail("a session without its past was entered")
    assert store.runs() == before
    with Session("job", store=store, replay="offline", source=unfinished):  # looking back may
        assert [write(n) for n in range(2)] == ["wrote 0", "wrote 1"]


def test_a_source_that_is_gone_itself_is_refused(store: JsonlStore) -> None:
    gone = record(store, 3, ends=False)
    (store.root / "runs" / f"{gone}.jsonl").unlink()
    for source in (None, gone, store.root / "runs" / f"{gone}.jsonl"):
        with pytest.raises(RunNotFound, match=gone), Session("job", store=store, source=source):
            pytest.fail("a session without its source was entered")


def test_the_index_is_what_knows_of_runs(store: JsonlStore) -> None:
    with pytest.raises(RunNotFound, match="job"), Session("job", store=store, replay="offline"):
        pytest.fail("there is nothing to replay")


def test_a_replay_keeps_its_own_copy_of_large_values(tmp_path: Path) -> None:
    big = 100_000
    old = JsonlStore(tmp_path / "old")
    with Session("job", store=old) as session:
        load(big)
    source = old.root / "runs" / f"{session.run_id}.jsonl"
    new = JsonlStore(tmp_path / "new")
    with Session("job", store=new, replay="resume", source=source) as copied:
        assert load(big) == "x" * big
        assert copied.stats.hits == 1
    shutil.rmtree(old.root)
    with Session("job", store=new, replay="offline") as again:
        assert load(big) == "x" * big
        assert again.stats.hits == 1


def test_a_trace_is_replayed_from_wherever_it_lies(store: JsonlStore, tmp_path: Path) -> None:
    run = record(store, 3)
    lone = tmp_path / "sent" / f"{run}.jsonl"
    lone.parent.mkdir()
    shutil.copy(store.root / "runs" / lone.name, lone)
    with Session("job", store=tmp_path / "other", replay="offline", source=lone) as session:
        assert [write(n) for n in range(3)] == ["wrote 0", "wrote 1", "wrote 2"]
    assert session.stats.hits == 3
    assert TraceFile(lone.parent).read(run).info is None
    renamed = lone.rename(lone.with_name("report.jsonl"))
    with Session("job", store=tmp_path / "third", replay="offline", source=renamed) as session:
        assert [write(n) for n in range(3)] == ["wrote 0", "wrote 1", "wrote 2"]
    assert session.stats.hits == 3


@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize("mode", ["offline", "resume"])
def test_a_run_of_another_store_is_the_source(
    tmp_path: Path, mode: Literal["offline", "resume"], *, opened: bool
) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    run = record(open_store(url), 3, ends=False)
    source = (open_store(url) if opened else url, run)
    with Session("job", store=tmp_path / "other", replay=mode, source=source) as session:
        assert [write(n) for n in range(3)] == ["wrote 0", "wrote 1", "wrote 2"]
        if mode == "resume":
            with pytest.raises(RunInUse):
                open_store(url).lock(run)
    assert session.stats.hits == 3
    with (
        pytest.raises(RunNotFound),
        Session("job", store=url, replay=mode, source=(tmp_path / "other", run)),
    ):
        pytest.fail("it is not in that one")
    with Session("job", store=url, replay=mode, source=(url, run)):
        assert write(0) == "wrote 0"


@pytest.mark.damaged
@pytest.mark.parametrize("line", [1, 2, 4])
def test_a_corrupt_source_is_refused_and_never_taken_for_an_absent_one(
    store: JsonlStore, line: int
) -> None:
    run = record(store, 3, ends=False)
    path = store.root / "runs" / f"{run}.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    changed = lines[line - 1].replace(b'"time":1', b'"time":2', 1)
    assert changed != lines[line - 1]
    path.write_bytes(b"".join([*lines[: line - 1], changed, *lines[line:]]))
    before = store.runs()
    for _ in range(2):
        with pytest.raises(TraceCorrupt) as caught, Session("job", store=store):
            pytest.fail("a session over a corrupt trace was entered")
        assert caught.value.line == line
        assert caught.value.where == str(path)
    assert store.runs() == before


def test_a_torn_last_line_is_reported_and_set_aside(
    store: JsonlStore, caplog: pytest.LogCaptureFixture
) -> None:
    run = record(store, 3, ends=False)
    path = store.root / "runs" / f"{run}.jsonl"
    torn = b'{"event":"step.started","ti'
    with path.open("ab") as file:
        file.write(torn)
    with caplog.at_level(logging.WARNING, "rollcage"), Session("job", store=store) as session:
        assert [write(n) for n in range(4)] == [f"wrote {n}" for n in range(4)]
    assert session.stats.hits == 3
    assert any("torn" in message and run in message for message in caplog.messages)
    assert path.with_suffix(".torn").read_bytes() == torn + b"\n"
    assert path.read_bytes().endswith(b"}\n")


@pytest.mark.damaged  # looking back changes nothing, a torn line included
def test_looking_back_leaves_a_torn_line_where_it_is(
    store: JsonlStore, caplog: pytest.LogCaptureFixture
) -> None:
    run = record(store, 3, ends=False)
    path = store.root / "runs" / f"{run}.jsonl"
    with path.open("ab") as file:
        file.write(b'{"event":')
    before = path.read_bytes()
    with (
        caplog.at_level(logging.WARNING, "rollcage"),
        Session("job", store=store, replay="offline", source=run),
    ):
        assert [write(n) for n in range(3)] == ["wrote 0", "wrote 1", "wrote 2"]
    assert path.read_bytes() == before
    assert any("torn" in message for message in caplog.messages)
