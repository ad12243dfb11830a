"""Sessions of processes that die, freeze, fork, or race for a run."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest
from rollcage import (
    Options,
    Session,
    Store,
    UnknownOutcome,
    list_runs,
    open_store,
    resolve_step,
    run_info,
    tool,
    undo_run,
)
from rollcage.errors import Forked, RunInUse

from rollcage_conformance.stores.base import StoreBase, events_of, store_note

__all__ = ["HOLD", "CrashSuite"]

_JOB: Final = """
import asyncio, os, signal, sys
from rollcage import Session, tool

url, world, at, when, how = sys.argv[1], sys.argv[2], int(sys.argv[3]), *sys.argv[4:]

def die(number, moment):
    if (number, moment) == (at, when):
        os.kill(os.getpid(), signal.SIGKILL)

def put(number):
    die(number, "before")
    with open(world, "a") as file:
        file.write(f"{number}\\n")
    die(number, "after")
    return number

async def tasks():
    @tool(effect="write", name="store_add")
    async def add(number: int) -> int:
        return put(number)

    async with Session("job", store=url):
        for number in range(5):
            await add(number)
            die(number, "between")

if how == "tasks":
    asyncio.run(tasks())

@tool(effect="write", name="store_add")
def add(number: int) -> int:
    return put(number)

with Session("job", store=url):
    for number in range(5):
        add(number)
        die(number, "between")
"""
_UNDO: Final = """
import os, signal, sys
from rollcage import compensate, tool, undo_run

url, world, run, at = *sys.argv[1:4], int(sys.argv[4])

@tool(effect="write", name="store_remove", idempotent=True)
def remove(number: int) -> None:
    with open(world, "a") as file:
        file.write(f"-{number}\\n")
    if number == at:
        os.kill(os.getpid(), signal.SIGKILL)

undo_run(url, run, tools=[remove])
"""
HOLD: Final = """
import sys
from rollcage import Session, tool

@tool(effect="write")
def store_note(text: str) -> str:
    if text == "two":
        print("two ran", flush=True)
    return text

with Session("held", store=sys.argv[1]) as session:
    store_note("one")
    print(session.run_id, flush=True)
    sys.stdin.readline()
    store_note("two")
"""
"""A session that makes one call, tells its run, and waits for a line before the next call."""


class CrashSuite(StoreBase):
    """Processes that die, freeze, fork, or race for a run."""

    @pytest.mark.parametrize("when", ["before", "after", "between"])
    @pytest.mark.parametrize(("at", "how"), [(0, "thread"), (2, "tasks"), (4, "thread")])
    def test_a_killed_process_loses_and_doubles_nothing(
        self, store: Store, url: str, tmp_path: Path, start: Any, at: int, how: str, when: str
    ) -> None:
        world = tmp_path / "world"
        world.write_text("")
        process = start(_JOB, str(world), str(at), when, how)
        assert process.wait(60) == -signal.SIGKILL, process.communicate()

        @tool(effect="write", name="store_add")
        def add(number: int) -> int:
            with world.open("a") as file:
                file.write(f"{number}\n")
            return number

        def job() -> None:
            with Session("job", store=url):
                for number in range(5):
                    add(number)

        if when != "between":
            with pytest.raises(UnknownOutcome) as unknown:
                job()
            run, step = unknown.value.run, unknown.value.step
            if when == "after":
                resolve_step(store, run, step, happened=True, result=at)
            else:
                resolve_step(store, run, step, happened=False)
        job()
        assert world.read_text().split() == ["0", "1", "2", "3", "4"]
        assert [(info.status, info.last) for info in list_runs(store)] == [("ok", "ended")]

    @pytest.mark.parametrize("at", [0, 1])
    def test_an_undo_that_was_killed_is_finished_by_the_next(
        self, store: Store, tmp_path: Path, start: Any, at: int
    ) -> None:
        world = tmp_path / "world"
        world.write_text("")

        def note(text: str) -> None:
            with world.open("a") as file:
                file.write(f"{text}\n")

        @tool(effect="write", name="store_remove", idempotent=True)
        def remove(number: int) -> None:
            note(f"-{number}")

        @tool(effect="write", name="store_put", undo=_removed)
        def put(number: int) -> None:
            note(f"{number}")

        with Session("job", store=store) as session:
            for number in range(3):
                put(number)
        process = start(_UNDO, str(world), session.run_id, str(at))
        assert process.wait(60) == -signal.SIGKILL, process.communicate()
        report = undo_run(store, session.run_id, tools=[remove])
        assert report.complete
        assert dict.fromkeys(world.read_text().split()[3:]) == dict.fromkeys(["-2", "-1", "-0"])

    def test_two_resumes_at_once(self, store: Store, url: str, start: Any) -> None:
        holder = start(HOLD)
        run = holder.stdout.readline().strip()
        with pytest.raises(RunInUse), Session("held", store=url):
            pytest.fail("two sessions resume one run")
        with pytest.raises(RunInUse):
            undo_run(store, run)
        holder.kill()
        holder.wait()
        with Session("held", store=url) as session:  # free at once
            store_note("one")
            with pytest.raises(RunInUse):
                store.open(run)
            store_note("two")
        assert (session.run_id, session.stats.hits) == (run, 1)
        store.open(run).close()

    def test_sessions_that_open_at_once_are_one(self, store: Store, url: str) -> None:
        with Session("job", store=url, options=_TAKES) as first, pytest.raises(KeyError):
            store_note("one")
            raise KeyError
        ready, tried = threading.Barrier(4), threading.Barrier(4)

        def job() -> bool:
            ready.wait(30)
            try:
                with Session("job", store=open_store(url), replay="continue"):
                    store_note("one")
                    tried.wait(30)
            except RunInUse:
                tried.wait(30)
                return False
            return True

        with ThreadPoolExecutor(4) as pool:
            won = [pool.submit(job) for _ in range(4)]
        assert sum(each.result() for each in won) == 1
        assert [info.run for info in list_runs(store)] == [first.run_id]

    def test_jobs_that_begin_at_once_share_a_run_or_have_one_each(
        self, store: Store, url: str
    ) -> None:
        """A search for the newest run of the job never finds a missing run."""
        ready = threading.Barrier(4)

        def job(_: int) -> str:
            ready.wait(30)
            with contextlib.suppress(RunInUse), Session("new", store=open_store(url)) as session:
                store_note("one")
                return session.run_id
            return ""

        with ThreadPoolExecutor(4) as pool:
            runs = {each for each in pool.map(job, range(4)) if each}
        assert runs
        assert {info.run for info in list_runs(store)} >= runs
        assert {run_info(store, run).status for run in runs} == {"ok"}
        with Session("new", store=url, replay="continue") as again:
            assert store_note("one") == "one"
        assert again.run_id in runs
        assert again.stats.hits == 1

    def test_a_frozen_session_is_refused_before_its_next_body(
        self, store: Store, url: str, start: Any
    ) -> None:
        holder = start(HOLD)
        run = holder.stdout.readline().strip()
        os.kill(holder.pid, signal.SIGSTOP)
        assert os.WIFSTOPPED(os.waitpid(holder.pid, os.WUNTRACED)[1])
        with pytest.raises(RunInUse), Session("held", store=url):
            pytest.fail("its writer lives")
        with Session("held", store=url, options=_TAKES) as session:
            store_note("one")
            store_note("two")
        assert (session.run_id, session.stats.hits) == (run, 1)
        os.kill(holder.pid, signal.SIGCONT)
        said, error = holder.communicate("\n", timeout=60)
        assert said == ""
        assert "Fenced" in error
        assert run_info(store, run).status == "ok"
        written = [each["args"]["text"] for each in events_of(store, run) if "args" in each]
        assert written == ["one", "two"]

    def test_a_forked_child_leaves_the_run_alone(self, store: Store, url: str) -> None:
        with Session("job", store=url) as session:
            store_note("one")
            child = os.fork()
            if not child:
                code = 1
                try:
                    store_note("in the child")
                except Forked:
                    code = 0
                finally:
                    os._exit(code)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            with pytest.raises(RunInUse):
                store.open(session.run_id)
            store_note("two")
        lines = events_of(store, session.run_id)
        assert [each["args"]["text"] for each in lines if "args" in each] == ["one", "two"]


def _removed(args: Any) -> list[Any]:
    from rollcage import compensate

    return [compensate("store_remove", number=args["number"])]


_TAKES: Final = Options(take=True)
_Start = Callable[..., Any]
