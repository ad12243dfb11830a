"""A run has one live writer: other processes, other sessions and forked children are told so."""

import contextvars
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rollcage import RunInUse, Session, list_runs, tool
from rollcage.trace.chain import parse
from rollcage.trace.folder import Folder

Python = Callable[..., subprocess.CompletedProcess[str]]

WRITER = """
import sys
from rollcage import Session, tool

write = tool(effect="write", name="write")(lambda number: number)
with Session("job", store="store") as session:
    write(number=1)
    print(session.run_id, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def store(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "store")


@pytest.fixture
def python(tmp_path: Path) -> Python:
    """Run code in another process."""

    def run(code: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", textwrap.dedent(code)]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    return run


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


def test_a_run_that_another_process_writes_is_in_use(store: Folder, tmp_path: Path) -> None:
    with writer(tmp_path) as (_, run):
        for known in (None, run):
            with (
                pytest.raises(RunInUse, match=run),
                Session("job", store=store, run=known),
            ):
                pytest.fail("two sessions write one run")
        with Session("job", store=store, replay="offline", source=run):
            assert write(1) == 1  # looking is free
        with Session("job", store=store, replay="off") as fresh:
            write(2)
        with Session("other job", store=store):
            write(3)
    assert fresh.stats.misses == 1


def test_a_killed_writer_leaves_its_run_free(store: Folder, tmp_path: Path) -> None:
    with writer(tmp_path) as (process, run):
        with pytest.raises(RunInUse), Session("job", store=store):
            pytest.fail("two sessions write one run")
        process.kill()
        process.wait()
        with Session("job", store=store) as session:
            assert write(1) == 1
    assert (session.stats.hits, session.run_id) == (1, run)


def test_a_second_session_in_this_process_finds_the_run_in_use(store: Folder) -> None:
    with Session("job", store=store) as first:
        here = contextvars.Context()  # where no session is

        def second() -> None:
            for known in (None, first.run_id):
                session = Session("job", store=Folder(store.root), run=known)
                with pytest.raises(RunInUse), session:
                    pytest.fail("two sessions write one run")

        here.run(second)
        assert write(1) == 1
    assert [info.run for info in list_runs(store)] == [first.run_id]


FORKED = """
    import os, sys, traceback
    from rollcage import Session, tool
    from rollcage.errors import Forked

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
        refused()
        try:
            session.__exit__(None, None, None)
        except Forked:
            pass

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


def test_a_forked_child_leaves_its_parents_run_alone(python: Python, store: Folder) -> None:
    parent = python(FORKED)
    assert parent.returncode == 0, parent.stderr
    recorded = list(parse(store.read(parent.stdout.strip()), "the run"))
    asked = [each["args"] for each in recorded if each["event"] == "step"]
    assert asked == [{"number": 1}, {}, {"number": 3}]
    assert recorded[-1]["status"] == "ok"
    assert {info.name: info.status for info in list_runs(store)} == {
        "job": "ok",
        "child's own": "ok",
    }


ORPHAN = """
import os
from rollcage import Session, tool

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
    store: Folder, tmp_path: Path
) -> None:
    def orphaned() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", ORPHAN], cwd=tmp_path, stdin=subprocess.PIPE)

    with orphaned() as first:
        assert first.wait() == 0
        with orphaned() as second:  # it goes on in the same run
            assert second.wait() == 0
            with Session("job", store=store) as session:  # while both children live
                assert write(1) == 1
    assert session.stats.hits == 1
    assert [info.attempts for info in list_runs(store)] == [3]
