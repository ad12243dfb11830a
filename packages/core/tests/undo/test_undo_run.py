"""Undo of a run that is not live: in this process or another, after its end or a crash."""

import asyncio
import contextlib
import dataclasses
import importlib
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import undo_tools as files
from cuts import cut_log
from rollcage import (
    Contract,
    DidNotHappen,
    Diverged,
    Guard,
    Options,
    RunInUse,
    RunNotFound,
    Session,
    SessionError,
    Stage,
    StepNotFound,
    Store,
    ToolMissing,
    UndoPlan,
    UnknownOutcome,
    Verdict,
    abandon_run,
    aplan_undo,
    aundo_run,
    compensate,
    current_step,
    open_store,
    plan_undo,
    resolve_step,
    tool,
    undo_run,
)
from rollcage.errors import CaptureFailed, PlanChanged, StepNotUnknown
from rollcage.undo.report import PlannedStep
from undo_tools import content, events, put

LAB = Path(files.__file__).parent


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(tmp_path / "store")


def job(store: Store, disk: Path, *names: str) -> str:
    with Session("job", store=store) as session:
        put(disk, *names)
    return session.run_id


def test_a_write_that_happened_as_a_person_says_is_taken_back(
    store: Store, disk: Path, tmp_path: Path
) -> None:
    path = disk / "a"
    path.write_text("old")
    with Session("job", store=store) as session:
        files.append_file(path=str(path), text=" and new")
    cut_log(tmp_path / "store" / "logs" / f"{session.run_id}.jsonl", 3)  # the intent is the last
    resolve_step(store, session.run_id, 1, happened=True, result="old and new")
    assert plan_undo(store, session.run_id).complete
    undo_run(store, session.run_id)
    assert path.read_text() == "old"


CRASHES = """
import os, sys
sys.path.insert(0, sys.argv[1])
import undo_tools
from rollcage import Session

with Session("job", store="store") as session:
    for name in "abc":
        undo_tools.put_file(path=f"disk/{name}", text=name)
    print(session.run_id, flush=True)
    os._exit(9)
"""
UNDOES = """
import sys
sys.path.insert(0, sys.argv[1])
import undo_tools
from rollcage import plan_undo, undo_run

run = sys.argv[2]
plan = plan_undo("store", run, to=1)
print(*(f"{step.name}:{step.state}:{step.calls[0].name}" for step in plan.steps))
report = undo_run("store", run, to=1)
print(*(each.status for each in report.steps), report.complete)
"""


def python(code: str, *args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, str(LAB), *args], cwd=cwd, text=True, capture_output=True,
        check=False,
    )  # fmt: skip


def test_in_another_process_after_a_crash(store: Store, disk: Path, tmp_path: Path) -> None:
    crashed = python(CRASHES, cwd=tmp_path)
    assert crashed.returncode == 9, crashed.stderr
    run = crashed.stdout.strip()
    undone = python(UNDOES, run, cwd=tmp_path)
    assert undone.returncode == 0, undone.stderr
    planned, done = undone.stdout.splitlines()
    assert planned.split() == ["put_file:reversible:restore_file"] * 2
    assert done == "verified verified True"
    assert content(disk) == {"a": "a"}
    assert events(store, run)[-1]["status"] == "undone"


def test_a_finished_run_is_resumed_from_its_save_point(store: Store, disk: Path) -> None:
    run = job(store, disk, "a", "b", "c")
    assert undo_run(store, run, to=1).complete
    with Session("job", store=store) as session:
        put(disk, "a", "b", "c")
        assert (session.stats.hits, session.stats.misses) == (1, 2)
        assert session.run_id == run
    with Session("job", store=store) as session:
        assert session.run_id != run, "that one finished: this is a fresh one"


async def test_async(store: Store, disk: Path) -> None:
    async with Session("job", store=store) as session:
        await files.aput_file(path=str(disk / "a"), text="a")
    assert [s.state for s in (await aplan_undo(store, session.run_id)).steps] == ["reversible"]
    assert content(disk) == {"a": "a"}
    assert (await aundo_run(store, session.run_id)).complete
    assert content(disk) == {}


def test_a_plan_changes_and_writes_nothing(store: Store, disk: Path) -> None:
    with Session("job", store=store) as session:
        put(disk, "a", "b")
        files.mail(to="ann")
    (disk / "a").write_text("theirs")
    (disk / "b").unlink()
    before = events(store, session.run_id), content(disk)
    plan = plan_undo(store, session.run_id)
    assert [(step.name, step.state) for step in plan.steps] == [
        ("mail", "irreversible"),
        ("put_file", "nothing"),
        ("put_file", "conflict"),
    ]  # fmt: skip
    assert plan.steps[0].args == {"to": "ann"}
    assert plan.steps[2].differs == {f"file:{disk / 'a'}": ["text"]}
    assert plan.conflicts
    assert not plan.complete
    assert plan_undo(store, session.run_id, accept=[3]).steps[0].state == "nothing"
    assert (events(store, session.run_id), content(disk)) == before


def test_twice_is_once(store: Store, disk: Path) -> None:
    run = job(store, disk, "a")
    assert len(undo_run(store, run).steps) == 1
    assert undo_run(store, run).steps == ()
    assert plan_undo(store, run).steps == ()


def test_a_live_run_is_left_alone(store: Store, disk: Path) -> None:
    with Session("job", store=store) as session:
        put(disk, "a")
        with pytest.raises(RunInUse):
            undo_run(store, session.run_id)
    assert content(disk) == {"a": "a"}


def test_what_is_not_there(store: Store, disk: Path) -> None:
    with pytest.raises(RunNotFound):
        undo_run(store, "01a1fd42-024b-7930-99ac-d6a8ee306f29")
    with pytest.raises(SessionError, match="steps count from 1"):
        undo_run(store, "01a1fd42-024b-7930-99ac-d6a8ee306f29", to=0)
    run = job(store, disk, "a")
    with pytest.raises(SessionError, match="no branch 'side'"):
        undo_run(store, run, branch="side")
    with pytest.raises(StepNotFound):
        undo_run(store, run, accept=[7])
    with pytest.raises(StepNotFound):
        resolve_step(store, run, 7, undone=True)
    with pytest.raises(StepNotUnknown):
        resolve_step(store, run, 1, happened=True)
    with pytest.raises(SessionError, match="say of a step"):
        resolve_step(store, run, 1)
    assert content(disk) == {"a": "a"}


def test_tools_that_are_missing_or_others(store: Store, disk: Path) -> None:
    run = job(store, disk, "a")

    @tool(effect="write", name="restore_file", version="2")
    def restore(path: str, text: str | None) -> None: ...

    declared: Any = files.put_file
    contract = declared.__rollcage_contract__
    blind = dataclasses.replace(contract, observe=None)
    refused: list[tuple[list[Any], str]] = [
        ([], "no tool named 'put_file' is declared"),
        ([files.put_file], "no tool named 'restore_file' is declared"),
        ([files.put_file, restore], "'restore_file' is declared as version '2', not ''"),
        ([blind, files.restore_file], "declares no observe now"),
    ]
    for tools, said in refused:
        with pytest.raises(ToolMissing, match=said):
            undo_run(store, run, tools=tools)
    assert content(disk) == {"a": "a"}
    assert plan_undo(store, run, tools=[files.put_file, ...]).complete
    assert plan_undo(store, run, tools=[files.put_file, restore, ...]).complete
    named = {"put_file": contract, "restore_file": files.restore_file}
    assert undo_run(store, run, tools=named).complete


def test_a_run_that_was_set_aside(store: Store, disk: Path) -> None:
    run = job(store, disk, "a")
    abandon_run(store, run)
    assert undo_run(store, run).complete
    assert content(disk) == {}


def test_the_gate_of_the_session_around_it_holds_for_it(store: Store, disk: Path) -> None:
    from rollcage import Verdict

    run = job(store, disk, "a")

    def no(step: Any) -> Verdict | None:
        return Verdict.deny("no") if step.name == "restore_file" else None

    assert undo_run(store, run, gate=[no]).steps[0].status == "failed"
    with Session("other", store=store, gate=[no]):
        assert undo_run(store, run).steps[0].status == "failed"
    assert content(disk) == {"a": "a"}


# --- what somebody has seen of it ----------------------------------------------------------------


def through_json(plan: UndoPlan) -> UndoPlan:
    again = UndoPlan.from_data(json.loads(json.dumps(plan.as_data())))
    assert again.digest == plan.digest
    return again


@pytest.mark.parametrize("give", [lambda plan: plan, lambda plan: plan.digest, through_json])
def test_what_was_seen_is_done(store: Store, disk: Path, give: Callable[[UndoPlan], Any]) -> None:
    run = job(store, disk, "a", "b")
    assert undo_run(store, run, expected=give(plan_undo(store, run))).complete
    assert content(disk) == {}


@pytest.mark.parametrize("by_digest", [False, True])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_state_that_changed_since_is_refused_and_nothing_is_undone(
    store: Store, disk: Path, *, by_digest: bool, is_async: bool
) -> None:
    run = job(store, disk, "a", "b")
    seen = plan_undo(store, run)
    (disk / "a").unlink()  # nothing is left to undo of it: without `expected`, b would be undone
    expected = seen.digest if by_digest else seen
    with pytest.raises(PlanChanged) as refused:
        if is_async:
            asyncio.run(aundo_run(store, run, expected=expected))
        else:
            undo_run(store, run, expected=expected)
    assert "Nothing was undone:" in str(refused.value)
    assert by_digest or "step 1 (put_file) was reversible and is nothing now" in str(refused.value)
    assert content(disk) == {"b": "b"}
    assert all(each["event"] != "undoing" for each in events(store, run))
    assert undo_run(store, run, expected=plan_undo(store, run)).complete


def other_calls(step: PlannedStep) -> PlannedStep:
    (call,) = step.calls
    return dataclasses.replace(step, calls=(call, call))


def other_args(step: PlannedStep) -> PlannedStep:
    return dataclasses.replace(step, args={})


def of_another_run(step: PlannedStep) -> PlannedStep:
    return dataclasses.replace(step, run="another")


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        ({"steps": lambda two, one: (two,)}, "step 1 (put_file) would be undone now, too"),
        (
            {"steps": lambda two, one: (of_another_run(two), one)},
            "step 2 (put_file) would be undone now",
        ),
        (
            {"steps": lambda two, one: (two, other_calls(one))},
            "step 1 (put_file) would be undone by other calls",
        ),
        (
            {"steps": lambda two, one: (other_args(two), one)},
            "step 2 (put_file): its entry in the plan differs",
        ),
        ({"steps": lambda two, one: (one, two)}, "the steps would be undone in another order"),
        ({"to": 7}, "the expected plan is of another undo"),
        ({"run": "another"}, "the expected plan is of another undo"),
    ],
)
def test_another_plan_is_refused_and_the_error_names_the_difference(
    store: Store, disk: Path, seen: dict[str, Any], said: str
) -> None:
    run = job(store, disk, "a", "b")
    plan = plan_undo(store, run)
    changed = {name: each(*plan.steps) if callable(each) else each for name, each in seen.items()}
    with pytest.raises(PlanChanged, match=re.escape(said)):
        undo_run(store, run, expected=dataclasses.replace(plan, **changed))
    assert content(disk) == {"a": "a", "b": "b"}


def test_a_plan_with_more_steps_is_carried_out_as_far_as_it_is_left(
    store: Store, disk: Path
) -> None:
    run = job(store, disk, "a", "b")
    plan = plan_undo(store, run)
    undo_run(store, run, to=1)
    assert undo_run(store, run, expected=plan).complete
    assert content(disk) == {}


def test_the_rest_of_what_was_seen_is_done_and_what_an_undo_did_before_is_said(
    store: Store,
) -> None:
    """An undo is cut off half-way: it goes on as confirmed, or says what stays undone."""
    shelf = {"cut": ""}

    @tool(effect="write", name="test_undo_run.clear", idempotent=True)
    def clear(key: str) -> None:
        if key == shelf["cut"]:
            raise KeyboardInterrupt
        shelf.pop(key, None)

    @tool(effect="write", undo=lambda args: [compensate(clear, key=args["key"])])
    def give(key: str) -> None:
        shelf[key] = key

    with Session("job", store=store) as session:
        for key in "abc":
            give(key)
    run, tools = session.run_id, [clear, give]
    seen = plan_undo(store, run, tools=tools)
    shelf["cut"] = "b"
    with pytest.raises(KeyboardInterrupt):
        undo_run(store, run, tools=tools, expected=seen)
    assert sorted(shelf) == ["a", "b", "cut"]
    other = plan_undo(store, run, tools=tools)
    with pytest.raises(PlanChanged) as refused:
        undo_run(store, run, tools=tools, to=1, expected=seen)
    assert "An earlier undo of steps 3, 2 had begun, and its effects stay" in str(refused.value)
    with pytest.raises(PlanChanged, match="Nothing more was undone than before"):
        undo_run(store, run, tools=tools, expected=seen.digest)
    assert sorted(shelf) == ["a", "b", "cut"]
    shelf["cut"] = ""
    report = undo_run(store, run, tools=tools, expected=seen)
    assert sorted(shelf) == ["cut"]
    assert [step.step for step in report.steps] == [2, 1]
    assert [step.step for step in other.steps] == [2, 1]


# --- a part of a run -----------------------------------------------------------------------------


def test_of_a_branch_and_what_came_after_it(store: Store, disk: Path) -> None:
    def work(session: Session) -> None:
        put(disk, "a")
        with session.turn(opens={"left": (), "right": ()}):
            with session.branch("left"):
                put(disk, "b", "c")
            with session.branch("right"):
                put(disk, "d")
                with session.branch("inner"):
                    put(disk, "e")
        put(disk, "f")

    def undone(branch: str) -> list[str]:
        with Session("job", store=store, replay="off") as session:
            work(session)
        assert undo_run(store, session.run_id, branch=branch).complete
        left = sorted(content(disk))
        with Session("job", store=store) as session:
            work(session)
            assert session.stats.hits == len(left)
        assert sorted(content(disk)) == [*"abcdef"]
        for each in disk.iterdir():
            each.unlink()
        return left

    assert undone("left") == [*"ade"]
    assert undone("right") == [*"abc"]
    assert undone("inner") == [*"abcd"]
    assert undone("right/inner") == [*"abcd"]


@pytest.mark.parametrize("asks", ["before", "inside", "behind"])
def test_answers_go_with_a_branch_that_they_saw(store: Store, disk: Path, asks: str) -> None:
    questions: list[str] = []

    def model(text: str) -> str:
        questions.append(text)
        return text

    def ask(session: Session) -> None:
        session.run_call(Contract.of(model), {"text": "?"}, model, kind="model")

    def work(session: Session) -> None:
        if asks == "before":
            ask(session)
        with session.branch("b"):
            put(disk, "a")
            if asks == "inside":
                ask(session)
        if asks == "behind":
            ask(session)

    with Session("job", store=store) as session:
        work(session)
    assert undo_run(store, session.run_id, branch="b").complete
    with Session("job", store=store) as session:
        work(session)
    assert len(questions) == (1 if asks == "before" else 2)
    assert content(disk) == {"a": "a"}


def test_of_an_empty_branch_goes_nothing(store: Store, disk: Path) -> None:
    with Session("job", store=store) as session:
        put(disk, "a")
        with session.branch("empty"):
            pass
        put(disk, "b")
    assert undo_run(store, session.run_id, branch="empty").steps == ()
    assert sorted(content(disk)) == ["a", "b"]


@pytest.mark.parametrize("way", ["undo_run", "aundo_run", "undo", "aundo", "plan_undo"])
@pytest.mark.parametrize("in_doubt", ["list", "restore"])
def test_each_way_to_ask_for_it_takes_the_same_requests(
    store: Store, way: str, in_doubt: Any
) -> None:
    orders: list[int] = []

    @tool(effect="write", name="test_undo_run.drop", idempotent=True)
    def drop() -> None:
        orders.clear()

    @tool(effect="write", undo=lambda: [compensate(drop)])
    def order() -> int:
        orders.append(1)
        raise KeyError("who knows")

    def ask(to: int | None = None) -> Any:
        how: dict[str, Any] = {"in_doubt": in_doubt, "to": to}
        if way in ("undo", "aundo"):
            return asyncio.run(entered(how))
        if way == "aundo_run":
            return asyncio.run(aundo_run(store, run, tools=[order, drop], **how))
        called: Any = plan_undo if way == "plan_undo" else undo_run
        return called(store, run, tools=[order, drop], **how)

    async def entered(how: dict[str, Any]) -> Any:
        if way == "undo":
            with Session("job", store=store, options=Options(tools=[order, drop])) as session:
                return session.undo(**how)
        async with Session("job", store=store, options=Options(tools=[order, drop])) as session:
            return await session.aundo(**how)

    with pytest.raises(KeyError), Session("job", store=store) as first:
        order()
    run = first.run_id
    with pytest.raises(SessionError, match="steps count from 1"):
        ask(0)
    (each,) = ask().steps
    known = in_doubt == "restore"
    if way == "plan_undo":
        assert each.state == ("reversible" if known else "unknown")
    else:
        assert each.status == ("compensated" if known else "unknown")
        assert orders == ([] if known else [1])


@pytest.mark.parametrize("fails", [False, True])
def test_a_block_in_a_finished_call_goes_with_all_of_that_call(
    store: Store, disk: Path, fails: bool
) -> None:
    def undo(args: dict[str, Any]) -> Any:
        return [compensate(away, path=args["path"])]

    @tool(effect="write", name="test_undo_run.away", idempotent=True)
    def away(path: str) -> None:
        for name in "xyz":
            Path(path, name).unlink(missing_ok=True)

    @tool(effect="write", undo=undo)
    def outer(path: str) -> None:
        from rollcage.replay.call import here

        place = here.get()
        assert place is not None
        put(disk, "x")
        with place.session.branch("inside"):
            put(disk, "y")
        (disk / "z").write_text("z")
        if fails:
            raise OSError("the disk is full")

    def work() -> None:
        put(disk, "a")
        with contextlib.suppress(OSError):
            outer(path=str(disk))

    with Session("job", store=store) as session:
        work()
    report = undo_run(store, session.run_id, branch="inside", in_doubt="restore")
    assert [each.name for each in report.steps] == ["outer"]
    assert content(disk) == {"a": "a"}
    with Session("job", store=store):
        work()
    assert sorted(content(disk)) == [*"axyz"]


def test_what_the_body_of_a_kept_call_did_is_kept(store: Store, disk: Path) -> None:
    with Session("job", store=store) as session:
        files.both(one=str(disk / "a"), two=str(disk / "b"))  # steps 1, 2, 3
        put(disk, "c")
    assert [each.step for each in undo_run(store, session.run_id, to=1).steps] == [4]
    assert sorted(content(disk)) == ["a", "b"]
    with Session("job", store=store) as session:
        files.both(one=str(disk / "a"), two=str(disk / "b"))
        put(disk, "c")
        assert (session.stats.hits, session.stats.misses) == (1, 1)


def test_a_call_around_an_undone_one_is_made_again(store: Store, disk: Path) -> None:
    with pytest.raises(KeyError), Session("job", store=store) as session:
        with session.branch("b"):
            put(disk, "a", "b")
        put(disk, "c")
        raise KeyError
    assert [each.step for each in undo_run(store, session.run_id, to=2).steps] == [4, 3]
    with Session("job", store=store) as session:
        with session.branch("b"):
            put(disk, "a", "b")
        put(disk, "c")
        assert (session.stats.hits, session.stats.misses) == (1, 2)


@pytest.mark.parametrize("in_branch", [False, True])
def test_what_an_agent_did_that_stays_is_not_done_again(store: Store, *, in_branch: bool) -> None:
    import contextlib

    sent: list[str] = []

    @tool(effect="write", name="test_undo_run.draft", undo=list)
    def draft() -> None: ...

    @tool(effect="write", name="test_undo_run.send")
    def send(to: str) -> None:
        sent.append(to)

    @tool(effect="scope", name="test_undo_run.agent")
    def agent() -> None:
        send(to="ann")

    def work(session: Session) -> None:
        draft()
        with session.branch("b") if in_branch else contextlib.nullcontext():
            agent()

    with Session("job", store=store) as session:
        work(session)
    report = undo_run(store, session.run_id, tools=[draft, send, agent])
    assert [each.status for each in report.steps] == ["irreversible", "compensated"]
    with pytest.raises(Diverged, match=r"test_undo_run.send"), Session("job", store=store) as one:
        work(one)
    assert sent == ["ann"]


def test_of_one_of_two_that_were_issued_together(store: Store) -> None:
    """The one that stays was recorded in the same batch: the other one keeps its place."""
    sent: list[str] = []
    keys: list[str] = []
    lost = [True]

    @tool(effect="write", name="test_undo_run.unsend", idempotent=True)
    def unsend(to: str) -> None:
        sent.remove(to)

    @tool(
        effect="write",
        probe=DidNotHappen,
        undo=lambda args: [compensate(unsend, to=args["to"])],
    )
    async def send(to: str) -> None:
        step = current_step()
        assert step is not None
        if lost:
            await kept.wait()
            lost.clear()
            raise TimeoutError
        keys.append(step.idempotency_key)
        sent.append(to)

    @tool(effect="write", name="test_undo_run.keep")
    async def keep(to: str) -> None:
        sent.append(to)
        kept.set()

    kept = asyncio.Event()

    async def attempt() -> str:
        async with Session("job", store=store) as session:
            with session.turn():
                await asyncio.gather(send(to="ann"), keep(to="bob"), return_exceptions=True)
        return session.run_id

    with pytest.raises(UnknownOutcome):
        asyncio.run(attempt())
    run = asyncio.run(attempt())
    assert sent == ["bob", "ann"]
    assert asyncio.run(aundo_run(store, run, to=2, tools=[send, unsend, keep])).complete
    assert sent == ["bob"]
    assert asyncio.run(attempt()) == run
    assert sent == ["bob", "ann"]
    assert len(set(keys)) == 2, "a service must not take it for the one that was undone"


def test_what_a_plan_stood_for_is_not_undone_once_more_behind_a_kill(store: Store) -> None:
    cancelled: list[str] = []
    dies = [True]

    @tool(effect="write", name="test_undo_run.cancel_it", idempotent=True)
    def cancel(what: str) -> None:
        if what == "first" and dies:
            raise KeyboardInterrupt
        cancelled.append(what)

    def undo(args: dict[str, Any]) -> Any:
        return [compensate(cancel, what=args["what"])]

    @tool(effect="write", name="test_undo_run.inner", undo=undo)
    def inner(what: str) -> None: ...

    @tool(effect="write", name="test_undo_run.outer", undo=undo)
    def outer(what: str) -> None:
        inner(what="inner")

    with Session("job", store=store) as session:
        inner(what="first")
        outer(what="outer")
    tools = [cancel, inner, outer]
    with pytest.raises(KeyboardInterrupt):
        undo_run(store, session.run_id, tools=tools)
    assert cancelled == ["outer"]
    dies.clear()
    assert undo_run(store, session.run_id, tools=tools).complete
    assert cancelled == ["outer", "first"]


def test_the_plan_of_a_call_that_happened_as_a_person_says_stands_for_all_in_it(
    store: Store,
) -> None:
    """A call of its body has a plan too, and calls another one; the next session makes all anew."""
    done: list[str] = []
    dies = [True]

    @tool(effect="write", name="test_undo_run.take_out", idempotent=True)
    def take_out(what: list[str]) -> None:
        for each in what:
            done.remove(each)

    def undo(result: list[str]) -> Any:
        return [compensate(take_out, what=result)]

    @tool(effect="write", name="test_undo_run.leaf", undo=undo)
    def leaf() -> list[str]:
        done.append("leaf")
        return ["leaf"]

    @tool(effect="write", name="test_undo_run.middle", undo=undo)
    def middle() -> list[str]:
        done.append("middle")
        return [*leaf(), "middle"]

    @tool(effect="write", name="test_undo_run.all", undo=undo)
    def everything() -> list[str]:
        made = middle()
        done.append("all")
        if dies:
            raise TimeoutError
        return [*made, "all"]

    with pytest.raises(UnknownOutcome), Session("job", store=store) as session:
        everything()
    resolve_step(store, session.run_id, 1, happened=True, result=["leaf", "middle", "all"])
    assert undo_run(store, session.run_id, tools=[take_out, everything, middle, leaf]).complete
    assert done == []
    dies.clear()
    with Session("job", store=store):
        everything()
    assert done == ["middle", "leaf", "all"]


# --- steps of unknown outcome --------------------------------------------------------------------


@pytest.mark.parametrize("answer", ["happened", "did not", "nobody knows", "raises"])
@pytest.mark.parametrize("in_doubt", ["list", "restore"])
def test_a_step_in_doubt(store: Store, answer: str, in_doubt: Any) -> None:
    from rollcage import Happened

    orders: list[int] = []

    @tool(effect="write", name="test_undo_run.cancel", idempotent=True)
    def cancel(number: int) -> None:
        if number in orders:
            orders.remove(number)

    def probe() -> Any:
        if answer == "raises":
            raise OSError("down")
        return {"happened": Happened(7), "did not": DidNotHappen()}.get(answer)

    by_result = answer == "happened"

    def late(result: int) -> Any:
        return [compensate(cancel, number=result)]

    @tool(
        effect="write",
        probe=probe,
        undo=late if by_result else lambda: [compensate(cancel, number=7)],
    )
    def order() -> int:
        if answer != "did not":
            orders.append(7)
        raise TimeoutError

    with pytest.raises(UnknownOutcome), Session("job", store=store) as session:
        order()
    tools: list[Any] = [order, cancel]
    report = undo_run(store, session.run_id, in_doubt=in_doubt, tools=tools)
    known = answer in ("happened", "did not") or in_doubt == "restore"
    assert [each.status for each in report.steps] == ["compensated" if known else "unknown"]
    assert orders == ([] if known else [7])
    assert undo_run(store, session.run_id, in_doubt=in_doubt, tools=tools).complete == known


@pytest.mark.parametrize("acted_upon", [False, True])
@pytest.mark.parametrize("by_result", [False, True])
def test_a_step_that_somebody_said_happened(
    store: Store, *, acted_upon: bool, by_result: bool
) -> None:
    orders: list[int] = [7]

    @tool(effect="write", name="test_undo_run.cancel_told", idempotent=True)
    def cancel(number: int) -> None:
        orders.remove(number)

    def late(result: int) -> Any:
        return [compensate(cancel, number=result)]

    def early() -> Any:
        return [compensate(cancel, number=7)]

    @tool(effect="write", undo=late if by_result else early)
    def order() -> int:
        raise OSError("nobody knows how far it got")

    @tool(effect="write", name="test_undo_run.next", undo=list)
    def following() -> None: ...

    with pytest.raises(OSError, match="nobody"), Session("job", store=store) as session:
        try:
            order()
        finally:
            if acted_upon:
                following()
    tools: list[Any] = [order, cancel, following]
    assert not plan_undo(store, session.run_id, tools=tools).complete
    resolve_step(store, session.run_id, 1, happened=True, result=7)
    report = undo_run(store, session.run_id, tools=tools)
    assert [each.status for each in report.steps] == ["compensated"] * (1 + acted_upon)
    assert orders == []


def test_a_read_made_again_after_an_undo_has_a_new_key(tmp_path: Path) -> None:
    """Its body is told the key that its step has on record."""
    told: list[str] = []

    @tool(effect="read", name="keys.look")
    def look() -> str:
        step = current_step()
        assert step is not None
        told.append(step.idempotency_key)
        return "seen"

    @tool(effect="write", name="keys.unset")
    def unset() -> None: ...

    @tool(effect="write", name="keys.set", undo=lambda: [compensate(unset)])
    def set_() -> None: ...

    def program() -> Session:
        with Session("job", store=tmp_path, replay="continue") as session:
            look()
            set_()
        return session

    run = program().run_id
    assert undo_run(tmp_path, run, tools=[set_, unset]).complete
    found = program().attempt.run
    steps = [step for step in found.steps.values() if step.name == "keys.look"]
    assert told == [found.idempotency_key(step) for step in steps]
    assert len(set(told)) == 2


def test_a_branch_says_whether_its_effects_were_taken_back(store: Store, disk: Path) -> None:
    def work() -> tuple[str, dict[str, bool]]:
        found: dict[str, bool] = {}
        with pytest.raises(ConnectionError), Session("job", store=store) as session:
            for name in ("kept", "gone"):
                with session.branch(name) as branch:
                    found[name] = branch.was_undone
                    put(disk, name)
            raise ConnectionError
        return session.run_id, found

    run, found = work()
    assert found == {"kept": False, "gone": False}
    assert undo_run(store, run, branch="gone").complete
    assert work() == (run, {"kept": False, "gone": True})


def test_a_call_that_ran_again_is_its_last_step(tmp_path: Path) -> None:
    """It is undone with the steps behind an earlier one, though its place was asked for before."""
    booked: dict[str, str] = {}

    @tool(effect="write", idempotent=True)
    async def cancel(key: str) -> None:
        del booked[key]

    @tool(idempotent=True, undo=lambda args, result: [compensate(cancel, key=result)])
    async def book(name: str) -> str:
        step = current_step()
        assert step is not None
        booked.setdefault(step.idempotency_key, name)
        await asyncio.sleep(0.01)
        return step.idempotency_key

    async def work() -> str:
        async with Session("job", store=tmp_path) as session:
            with session.turn():
                await asyncio.gather(book("first"), book("second"))
        return session.run_id

    run = asyncio.run(work())
    path = tmp_path / "logs" / f"{run}.jsonl"
    ends = [n for n, line in enumerate(events(tmp_path, run)) if line["event"] == "outcome"]
    cut_log(path, ends[0])
    asyncio.run(work())
    assert [line["again"] for line in events(tmp_path, run) if "again" in line] == [1, 2]
    report = asyncio.run(aundo_run(tmp_path, run, to=3, tools=[book, cancel]))
    assert [step.step for step in report.steps] == [4]
    assert list(booked.values()) == ["first"]


class Screening(Guard):
    """Answers about tools that an undo would use."""

    def __init__(self, answer: Verdict | Exception | str | None) -> None:
        self.answer = answer

    def screen_undo(self, contract: Contract) -> Verdict | None:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer  # type: ignore[return-value] # pyright: ignore[reportReturnType] - or what is none


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (None, ""),
        (Verdict("allow"), ""),
        (Verdict.deny("not this one"), "not this one"),
        (ValueError("of the guard itself"), "a guard failed: ValueError"),
        ("yes", "a guard returned no verdict"),
    ],
)
def test_a_guard_screens_the_tools_of_an_undo(
    store: Store, disk: Path, answer: Verdict | Exception | str | None, said: str
) -> None:
    run, guards = job(store, disk, "a"), [Screening(answer)]
    if not said:
        assert undo_run(store, run, gate=guards).complete
        with Session("job", store=store, gate=guards):
            put(disk, "a")
        assert content(disk) == {"a": "a"}
        return
    with pytest.raises(SessionError, match=said) as refused:
        undo_run(store, run, gate=guards)
    assert "of the guard itself" not in str(refused.value)
    assert content(disk) == {"a": "a"}
    with Session("other", store=store, gate=guards), pytest.raises(CaptureFailed, match=said):
        put(disk, "b")
    assert content(disk) == {"a": "a"}


class Prepares(Stage):
    """Notes the calls that it is asked about."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def prepare(self, call: Any, match: Any) -> None:
        self.seen.append(call.contract.name)


@pytest.mark.parametrize("is_async", [False, True])
def test_stages_and_observers_are_told_of_compensating_calls(
    store: Store, disk: Path, *, is_async: bool
) -> None:
    run, stage, told = job(store, disk, "a", "b"), Prepares(), list[Any]()
    how: dict[str, Any] = {"stages": [stage], "observers": [told.append]}
    if is_async:
        asyncio.run(aundo_run(store, run, **how))
    else:
        undo_run(store, run, **how)
    assert set(stage.seen) == {"restore_file"}
    assert [(each.what, each.name) for each in told] == [
        ("started", "restore_file"),
        ("settled", "restore_file"),
        ("undone", "put_file"),
    ] * 2
    assert [each.origin for each in told if each.what == "undone"] == [(run, 2), (run, 1)]


class Facade(Guard):
    """Puts on record which facade a session is held to."""

    def __init__(self, name: str, digest: str) -> None:
        self.named = {"name": name, "digest": digest, "says": f"{name} {digest}"}

    def describes(self, session: Session) -> dict[str, Any]:
        return {"facade": self.named}


def test_each_facade_of_a_run_holds_its_undo_and_is_made_once(
    store: Store, disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    info = site / "facades-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: facades\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[rollcage.guards]\nfacade = makes_facades:made\n")
    (site / "makes_facades.py").write_text(
        "from rollcage import Guard, Verdict\n"
        "made_of = []\n"
        "class Made(Guard):\n"
        "    def __init__(self, says): self.says = says\n"
        "    def screen_undo(self, contract):\n"
        "        return Verdict.deny('b 2 says no') if self.says == 'b 2' else None\n"
        "def made(facade):\n"
        "    made_of.append(facade['says'])\n"
        "    return Made(facade['says'])\n"
    )
    monkeypatch.syspath_prepend(str(site))
    made_of = importlib.import_module("makes_facades").made_of
    facades = [("a", "1"), ("a", "2"), ("b", "1")]
    gate = [Facade(*each) for each in facades]
    with Session("job", store=store, gate=gate) as session:
        put(disk, "a")
        session.pause("once more")
    run = session.run_id
    with Session("job", store=store, gate=gate):  # another attempt names the same
        put(disk, "a")
    for use in (plan_undo, undo_run):
        made_of.clear()
        assert use(store, run).complete
        assert made_of == ["a 1", "a 2", "b 1"]
    assert content(disk) == {}
    with Session("other", store=store, gate=[Facade("b", "2")]) as session:
        put(disk, "b")
    with pytest.raises(SessionError, match="b 2 says no"):
        undo_run(store, session.run_id)
    assert content(disk) == {"b": "b"}


class Naming(Guard):
    """Notes the tools that an undo would use, and denies one of them."""

    def __init__(self, denied: str = "") -> None:
        self.denied, self.seen = denied, list[str]()

    def screen_undo(self, contract: Contract) -> Verdict | None:
        self.seen.append(contract.name)
        return Verdict.deny("not this one") if contract.name == self.denied else None


def test_each_tool_that_an_undo_would_use_is_screened(store: Store, disk: Path) -> None:
    """The tool of the step, which is asked for the state, and the one that takes it back."""
    run, sees = job(store, disk, "a"), Naming()
    own = events(store, run)[2]["name"]
    plan = plan_undo(store, run)
    (back,) = (call.name for step in plan.steps for call in step.calls)
    assert own != back
    for denied in (own, back):
        with pytest.raises(SessionError, match="not this one"):
            undo_run(store, run, gate=[Naming(denied)])
        assert content(disk) == {"a": "a"}
    assert undo_run(store, run, gate=[sees]).complete
    assert {own, back} <= {*sees.seen}
    assert content(disk) == {}
