"""A run has one live writer: other processes, other sessions and forked children are told so."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rollcage import RunInUse, tool
from rollcage.session.session import Session
from rollcage.store import JsonlStore

Events = Callable[[str], list[dict[str, Any]]]
Python = Callable[..., subprocess.CompletedProcess[str]]

WRITER = """
import sys
from rollcage import tool
from rollcage.session.session import Session

write = tool(effect="write", name="write")(lambda number: number)
with Session("job", store="store") as session:
    write(number=1)
    print(session.run_id, flush=True)
    sys.stdin.read()
"""


@tool(effect="write")
def write(number: int) -> int:
    return number


@contextmanager
def writer(folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Another process that is in the middle of a run."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITER],
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()


def test_a_run_that_another_process_writes_is_in_use(store: JsonlStore, tmp_path: Path) -> None:
    with writer(tmp_path) as (_, run):
        path = store.root / "runs" / f"{run}.jsonl"
        for source in (None, run, path):
            with (
                pytest.raises(RunInUse, match=run),
                Session("job", store=store, source=source),
            ):
                pytest.fail("two sessions write one run")
        with Session("job", store=store, replay="offline", source=run):
            assert write(1) == 1  # looking is free
        with Session("job", store=store, replay="off") as fresh:
            write(2)
        with Session("other job", store=store):
            write(3)
    assert fresh.stats.misses == 1


def test_a_killed_writer_leaves_its_run_free(store: JsonlStore, tmp_path: Path) -> None:
    with writer(tmp_path) as (process, run):
        with pytest.raises(RunInUse), Session("job", store=store):
            pytest.fail("two sessions write one run")
        process.kill()
        process.wait()
        with Session("job", store=store) as session:
            assert write(1) == 1
    assert session.stats.hits == 1
    assert store.runs()[-1].source == run


def test_a_second_session_in_this_process_finds_the_run_in_use(store: JsonlStore) -> None:
    with Session("job", store=store) as first:
        for source in (None, first.run_id):
            with pytest.raises(RunInUse), Session("job", store=store, source=source):
                pytest.fail("two sessions write one run")
        assert write(1) == 1
    assert [info.run for info in store.runs()] == [first.run_id]


def test_a_run_is_resumed_once_at_a_time(store: JsonlStore) -> None:
    with pytest.raises(KeyError), Session("job", store=store) as first:
        write(1)
        raise KeyError
    with (
        Session("job", store=store, source=first.run_id),
        pytest.raises(RunInUse, match=first.run_id),
        Session("job", store=JsonlStore(store.root), source=first.run_id),
    ):
        pytest.fail("one run is resumed twice at once")
    with Session("job", store=store, source=first.run_id) as again:
        assert write(1) == 1
    assert again.stats.hits == 1


FORKED = """
    import os, sys, traceback
    from rollcage import Forked, tool
    from rollcage.session.session import Session

    ran = []

    @tool(effect="write")
    def write(number: int) -> int:
        ran.append(number)
        return number

    def in_child(what):
        child = os.fork()
        if child:
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        try:
            what()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)

    def refused():
        before = list(ran)
        for call in (lambda: write(2), lambda: session.call(write, number=2)):
            try:
                call()
            except Forked as error:
                assert session.run_id in str(error)
            else:
                sys.exit("a forked child wrote its parent's run")
        assert ran == before

    def leaves():
        try:
            refused()
        finally:
            session.__exit__(None, None, None)

    def own():
        with Session("child's own", store="store") as mine:
            write(7)
        assert mine.stats.misses == 1

    @tool(effect="write")
    def forks() -> int:
        child = os.fork()
        if not child:
            return 0  # the child comes out of the body: its end is not recorded
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
        return 1

    with Session("job", store="store") as session:
        write(1)
        for what in (refused, leaves, own):
            assert in_child(what) == 0, what
        try:
            assert forks() == 1
        except Forked:
            os._exit(9)
        write(3)
    print(session.run_id)
"""


def test_a_forked_child_leaves_its_parents_run_alone(
    python: Python, store: JsonlStore, events: Events
) -> None:
    parent = python(FORKED)
    assert parent.returncode == 0, parent.stderr
    recorded = events(parent.stdout.strip())
    asked = [e["args"] for e in recorded if e["event"] == "step.started"]
    assert asked == [{"number": 1}, {}, {"number": 3}]
    assert recorded[-1]["status"] == "ok"
    assert {info.name: info.status for info in store.runs()} == {"job": "ok", "child's own": "ok"}


LOCKED = """
    import os, signal, threading
    from rollcage import Contract, Forked, tool
    from rollcage.session.session import Session
    from rollcage.store import JsonlStore

    begun, let_go = threading.Event(), threading.Event()
    STREAM = Contract(name="stream", parameters={"type": "object"}, effect="read")

    class SlowStore(JsonlStore):
        def create(self, started, order=None):
            writer = super().create(started, order)
            append = writer.append

            def wait(event):
                if event.get("name") == "slow":
                    begun.set()
                    let_go.wait()
                append(event)

            writer.append = wait
            return writer

    @tool(effect="write")
    def slow() -> None:
        pass

    def entered(make):
        with make():
            pass

    with Session("job", store=SlowStore("store")) as session:
        thread = threading.Thread(target=session.call, args=(slow,))
        with session.branch("open"):
            thread.start()
            begun.wait()  # from now on that thread holds the session's lock
            child = os.fork()
            if not child:
                signal.alarm(20)  # or a failure would hang
                asked = 0
                for ask in (
                    lambda: session.call(slow),
                    lambda: entered(session.turn),
                    lambda: entered(lambda: session.branch("of the child")),
                    lambda: entered(lambda: session.place(turn=1)),
                    lambda: session.halt(ValueError()),
                    lambda: list(session.stream(STREAM, {}, iter)),
                ):
                    try:
                        ask()
                    except Forked:
                        asked += 1
            else:
                let_go.set()
                thread.join()
        if not child:  # it has left the branch too, and leaves the session
            session.__exit__(None, None, None)
            os._exit(100 + asked)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_child_never_waits_for_a_thread_of_its_parent(python: Python) -> None:
    parent = python(LOCKED)
    assert parent.returncode == 0, parent.stderr
    assert parent.stdout.strip() == "106"


ORPHAN = """
import os
from rollcage import tool
from rollcage.session.session import Session

write = tool(effect="write", name="write")(lambda number: number)
with Session("job", store="store"):
    write(number=1)
    ready, here = os.pipe()
    if not os.fork():
        os.write(here, b".")
        os.read(0, 1)  # lives on until it is told to end
        os._exit(0)
    os.read(ready, 1)
    os._exit(0)  # as in a crash: nobody leaves the session
"""


def test_the_locks_end_with_the_parent_though_its_child_lives(
    store: JsonlStore, tmp_path: Path
) -> None:
    def orphaned() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", ORPHAN], cwd=tmp_path, stdin=subprocess.PIPE)

    with orphaned() as first:
        assert first.wait() == 0
        with orphaned() as second:  # a resume: it holds its source's lock besides its own
            assert second.wait() == 0
            with Session("job", store=store) as session:  # while both children live
                assert write(1) == 1
    assert session.stats.hits == 1
    assert [info.mode for info in store.runs()] == ["record", "resume", "resume"]
