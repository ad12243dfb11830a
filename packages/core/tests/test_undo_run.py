"""Undo of a run that is not live: in this process or another, after its end or a crash."""

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rollcage import (
    Diverged,
    RunInUse,
    RunNotFound,
    SessionError,
    SourceMissing,
    ToolMissing,
    compensate,
    tool,
)
from rollcage.session.finished import aplan_undo, aundo_run, plan_undo, undo_run
from rollcage.session.session import Session
from rollcage.store import JsonlStore

Events = Callable[[str], list[dict[str, Any]]]
Python = Callable[..., Any]
HERE = Path(__file__).parent


def content(disk: Path) -> dict[str, str]:
    """The texts of the files in it."""
    return {p.name: p.read_text() for p in disk.iterdir() if p.name != "effects"}


def put(files: Any, disk: Path, *names: str) -> None:
    for name in names:
        files.put_file(path=str(disk / name), text=name)


CRASHES = """
import os, sys
sys.path.insert(0, sys.argv[1])
import file_tools
from rollcage.session.session import Session

with Session("job", store="store") as session:
    for name in "abc":
        file_tools.put_file(path=f"disk/{name}", text=name)
    print(session.run_id, flush=True)
    os._exit(9)
"""
UNDOES = """
import sys
sys.path.insert(0, sys.argv[1])
import file_tools
from rollcage.session.finished import plan_undo, undo_run

run = sys.argv[2]
plan = plan_undo("store", run, to=1)
print(*(f"{step.name}:{step.state}:{step.calls[0].name}" for step in plan.steps))
report = undo_run("store", run, to=1)
print(*(each.status for each in report.steps), report.complete)
"""


def test_in_another_process_after_a_crash(
    python: Python, store: JsonlStore, disk: Path, files: Any, events: Events
) -> None:
    crashed = python(CRASHES, str(HERE))
    assert crashed.returncode == 9, crashed.stderr
    run = crashed.stdout.strip()
    undone = python(UNDOES, str(HERE), run)
    assert undone.returncode == 0, undone.stderr
    planned, done = undone.stdout.splitlines()
    assert planned == " ".join(["put_file:reversible:restore_file"] * 2)
    assert done == "verified verified True"
    assert content(disk) == {"a": "a"}
    assert [e["event"] for e in events(run)][-1] == "run.rewound"


def test_a_finished_run_is_resumed_from_its_save_point(
    store: JsonlStore, files: Any, disk: Path
) -> None:
    with Session("job", store=store) as session:
        put(files, disk, "a", "b", "c")
    assert undo_run(store, session.run_id, to=1).complete
    assert store.runs()[-1].status == "undone"
    with Session("job", store=store) as session:
        put(files, disk, "a", "b", "c")
        assert (session.stats.hits, session.stats.misses) == (1, 2)
    with Session("job", store=store) as session:
        assert session.stats.hits == 0, "that one finished: this is a fresh one"


async def test_async(store: JsonlStore, files: Any, disk: Path) -> None:
    async with Session("job", store=store) as session:
        await files.aput_file(path=str(disk / "a"), text="a")
    assert [s.state for s in (await aplan_undo(store, session.run_id)).steps] == ["reversible"]
    assert content(disk) == {"a": "a"}
    assert (await aundo_run(store, session.run_id)).complete
    assert content(disk) == {}


def test_a_plan_changes_and_writes_nothing(store: JsonlStore, files: Any, disk: Path) -> None:
    with Session("job", store=store) as session:
        put(files, disk, "a", "b")
        files.mail(to="ann")
    (disk / "a").write_text("theirs")
    (disk / "b").unlink()
    trace = store.root / "runs" / f"{session.run_id}.jsonl"
    before = trace.read_bytes(), content(disk)
    plan = plan_undo(store, session.run_id)
    assert [(step.name, step.state) for step in plan.steps] == [
        ("mail", "irreversible"), ("put_file", "nothing"), ("put_file", "conflict"),
    ]  # fmt: skip
    assert plan.steps[2].differs == {f"file:{disk / 'a'}": ["text"]}
    assert plan.conflicts
    assert not plan.complete
    assert (trace.read_bytes(), content(disk)) == before


def test_twice_is_once(store: JsonlStore, files: Any, disk: Path) -> None:
    with Session("job", store=store) as session:
        put(files, disk, "a")
    assert len(undo_run(store, session.run_id).steps) == 1
    assert undo_run(store, session.run_id).steps == ()
    assert plan_undo(store, session.run_id).steps == ()


def test_the_effects_of_its_source_too(store: JsonlStore, files: Any, disk: Path) -> None:
    with pytest.raises(KeyError), Session("job", store=store) as first:
        put(files, disk, "a", "b", "c")
        raise KeyError
    with pytest.raises(KeyError), Session("job", store=store) as second:
        put(files, disk, "a")
        raise KeyError
    with pytest.raises(SessionError, match=f"run {second.run_id} builds on"):
        undo_run(store, first.run_id)
    report = undo_run(store, second.run_id)
    assert [(each.run, each.step) for each in report.steps] == [
        (first.run_id, 3), (first.run_id, 2), (first.run_id, 1),
    ]  # fmt: skip
    assert content(disk) == {}
    with Session("job", store=store) as third:
        put(files, disk, "a", "b", "c")
        assert third.stats.hits == 0
    assert content(disk) == {"a": "a", "b": "b", "c": "c"}


def test_what_it_builds_on_is_gone(store: JsonlStore, files: Any, disk: Path) -> None:
    with pytest.raises(KeyError), Session("job", store=store) as first:
        put(files, disk, "a", "b")
        raise KeyError
    with pytest.raises(KeyError), Session("job", store=store) as second:
        put(files, disk, "a")
        raise KeyError
    (store.root / "runs" / f"{first.run_id}.jsonl").unlink()
    with pytest.raises(SourceMissing, match=first.run_id):
        undo_run(store, second.run_id)


def test_a_look_back_is_no_run_to_undo(store: JsonlStore, files: Any, disk: Path) -> None:
    with Session("job", store=store) as first:
        put(files, disk, "a")
    with Session("job", store=store, replay="offline") as offline:
        put(files, disk, "a")
    with pytest.raises(SessionError, match=f"undo the run that it replayed, {first.run_id}"):
        undo_run(store, offline.run_id)
    assert undo_run(store, first.run_id).complete


def test_a_live_run_is_left_alone(store: JsonlStore, files: Any, disk: Path) -> None:
    with Session("job", store=store) as session:
        put(files, disk, "a")
        with pytest.raises(RunInUse):
            undo_run(store, session.run_id)
    assert content(disk) == {"a": "a"}


def test_a_run_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(RunNotFound):
        undo_run(tmp_path / "nowhere", "01a1fd42-024b-7930-99ac-d6a8ee306f29")
    assert not (tmp_path / "nowhere").exists()
    with pytest.raises(SessionError, match="steps count from 1"):
        undo_run(tmp_path, "01a1fd42-024b-7930-99ac-d6a8ee306f29", to=0)


def test_tools_that_are_missing_or_others(store: JsonlStore, files: Any, disk: Path) -> None:
    with Session("job", store=store) as session:
        put(files, disk, "a")

    @tool(effect="write", name="restore_file", version="2")
    def restore(path: str, text: str | None) -> None: ...

    blind = dataclasses.replace(files.put_file.__rollcage_contract__, observe=None)
    run = session.run_id
    for tools, said in [
        ([], "no tool named 'put_file' is declared"),
        ([files.put_file], "no tool named 'restore_file' is declared"),
        ([files.put_file, restore], "restore_file' is declared as version '2', not ''"),
        ([blind, files.restore_file], "declares no observe any more"),
    ]:
        with pytest.raises(ToolMissing, match=said):
            undo_run(store, run, tools=tools)
    assert content(disk) == {"a": "a"}
    assert plan_undo(store, run, tools=[files.put_file, ...]).complete
    assert plan_undo(store, run, tools=[files.put_file, restore, ...]).complete
    named = {"put_file": files.put_file.__rollcage_contract__, "restore_file": files.restore_file}
    assert undo_run(store, run, tools=named).complete


def test_a_crash_in_the_middle_is_continued(
    python: Python,
    store: JsonlStore,
    files: Any,
    disk: Path,
    events: Events,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(disk.parent)  # the paths are what they were
    run = python(CRASHES, str(HERE)).stdout.strip()
    code = """
        import os, sys
        sys.path.insert(0, sys.argv[1])
        import file_tools
        from rollcage.session.finished import undo_run

        def dies(what, path):
            if path.endswith("b"):
                os._exit(9)

        file_tools.note = dies
        undo_run("store", sys.argv[2])
    """
    assert python(code, str(HERE), run).returncode == 9
    assert content(disk) == {"a": "a"}
    report = undo_run(store, run, tools=_here(files))
    assert [each.step for each in report.steps] == [2, 1]
    assert report.complete
    assert content(disk) == {}
    finished = [e["of"][1] for e in events(run) if e["event"] == "undo.finished"]
    assert finished == [3, 2, 1]


def _here(files: Any) -> list[Any]:
    return [files.put_file, files.restore_file]


def test_a_finished_run_stays_attested(store: JsonlStore, files: Any, disk: Path) -> None:
    with Session("job", store=store) as session:
        put(files, disk, "a", "b")
    index = store.root / "index.jsonl"
    attested = index.read_bytes()
    undo_run(store, session.run_id, to=1)
    index.write_bytes(attested)  # killed before the index was written
    assert undo_run(store, session.run_id).complete
    trace = store.root / "runs" / f"{session.run_id}.jsonl"
    info = store.read(session.run_id).info
    assert info is not None
    assert info.count == len(trace.read_bytes().splitlines())


def test_the_process_declares_two_of_that_name(store: JsonlStore, disk: Path) -> None:
    def declare() -> Any:
        @tool(effect="write", name="test_undo_run.twin")
        def one() -> None: ...

        @tool(effect="write", name="test_undo_run.twin")
        def other() -> None: ...

        return one, other

    one, _other = declare()

    @tool(effect="write", undo=lambda: [compensate(one)])
    def give() -> None: ...

    with Session("job", store=store) as session:
        give()
    with pytest.raises(ToolMissing, match="this process has 2 tools named"):
        undo_run(store, session.run_id)
    assert asyncio.run(aundo_run(store, session.run_id, tools=[one])).complete


@pytest.mark.parametrize("in_branch", [False, True])
def test_what_an_agent_did_that_stays_is_not_done_again(
    store: JsonlStore, *, in_branch: bool
) -> None:
    sent: list[str] = []

    def nothing() -> list[Any]:
        return []

    @tool(effect="write", name="test_undo_run.draft", undo=nothing)
    def draft() -> None: ...

    @tool(effect="write", name="test_undo_run.send")
    def send(to: str) -> None:
        sent.append(to)

    @tool(effect="scope", name="test_undo_run.agent")
    def agent() -> None:
        send(to="ann")

    def job(session: Session) -> None:
        draft()
        with session.branch("b") if in_branch else contextlib.nullcontext():
            agent()

    with Session("job", store=store) as session:
        job(session)
    report = undo_run(store, session.run_id, tools=[draft, send, agent])
    assert [each.status for each in report.steps] == ["irreversible", "compensated"]
    agent_stays = pytest.raises(Diverged, match=r"step 2 \(test_undo_run.agent\)")
    with agent_stays, Session("job", store=store) as session:
        job(session)
    assert sent == ["ann"]
