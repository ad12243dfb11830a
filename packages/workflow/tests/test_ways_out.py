"""Each way out that a message of a workflow names is run as it is named, and leads on."""

import asyncio
import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from rollcage import (
    ApprovalRequired,
    Diverged,
    Options,
    QueueApprover,
    RunInUse,
    RunStopped,
    UndoIncomplete,
    UnknownOutcome,
    Verdict,
    aplan_undo,
    aundo_run,
    open_store,
    stop_run,
)
from rollcage.errors import NotReplayable, RollcageError, RunTooOld
from rollcage_cli.app import rollcage
from rollcage_workflow import Execution, execution, run
from rollcage_workflow.check import check
from rollcage_workflow.engine.worker import Worker
from rollcage_workflow.errors import ExecutionFailed, InputsInvalid, WorkflowError
from rollcage_workflow.orders import Commands
from rollcage_workflow.signals import Signals
from typer.testing import CliRunner

TOOLS = """
import asyncio

from rollcage import compensate, tool

done, works, held = [], [], []
here, go = asyncio.Event(), asyncio.Event()

@tool(effect="write", name="take_back", idempotent=True)
async def take_back(what: str) -> None:
    if what in held:
        raise ValueError("somebody holds it")
    done.remove(what)

@tool(effect="write", name="put", undo=lambda args: [compensate(take_back, **args)])
async def put(what: str) -> str:
    done.append(what)
    return what

@tool(effect="write", name="cut")
async def cut(what: str) -> str:
    if not works:
        raise KeyboardInterrupt
    done.append(what)
    return what

@tool(effect="read", name="fails")
async def fails() -> str:
    if not works:
        raise ValueError("not yet")
    return "at last"

@tool(effect="read", name="stays")
async def stays() -> str:
    here.set()
    await go.wait()
    return "stayed"

tools = [take_back, put, cut, fails, stays]
"""


class Place:
    """A folder with a plan, tools and a store that is not the default one."""

    def __init__(self, folder: Path, tools: Any) -> None:
        self.folder, self.tools = folder, tools
        self.store = open_store(folder / "its runs")
        self.done: list[str] = tools.done
        self.works: list[bool] = tools.works

    def plan(self, **steps: Any) -> None:
        data = {"name": "plan", "steps": steps}
        (self.folder / "plan.json").write_text(json.dumps(data))

    async def run(self, id: str = "the job", **how: Any) -> Execution:  # noqa: A002
        path = str(self.folder / "plan.json")
        how.setdefault("patience", 0.0)
        return await run(path, id=id, store=self.store, tools=self.tools.tools, **how)

    def job(self) -> Execution:
        return execution(self.store, "the job")

    def rollcage(self, named: str, **given: str) -> str:
        """Run a command as it is named; return its output."""
        words = [given.get(each, each) for each in shlex.split(named)]
        assert words.pop(0) == "rollcage"
        done = CliRunner().invoke(rollcage, words)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        assert done.exit_code == 0, done.output
        return done.output


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    (tmp_path / "ways_tools.py").write_text(TOOLS)
    (tmp_path / "pyproject.toml").write_text('[tool.rollcage]\ntools = ["ways_tools"]\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "ways_tools", raising=False)
    return Place(tmp_path, __import__("ways_tools"))


def put(what: str, *after: str) -> dict[str, Any]:
    return {"call": "put", "args": {"what": what}, "after": list(after)}


def named(message: object, begins: str) -> str:
    """The command of a message that begins so, as somebody copies it."""
    found = re.search(rf"{re.escape(begins)}(?:'[^']*'|[^;'\n])*?(?=;|, or|\. |\n|$)", str(message))
    assert found is not None, f"{begins!r} is not in {message}"
    return found[0].strip()


# --- a plan that was changed ---------------------------------------------------------------------


async def diverged(place: Place) -> Diverged:
    """Change the plan before a write that is done."""
    wait = {"wait": {"signal": "go"}, "after": ["b"]}
    place.plan(a=put("a"), b=put("b", "a"), go=wait)
    await place.run()
    Signals(place.store, "the job").send("go", 1, by="ann")
    place.plan(a=put("a"), new=put("new", "a"), b=put("b", "new"), go=wait)
    with pytest.raises(Diverged) as halted:
        await place.run()
    assert place.done == ["a", "b"]
    message = str(halted.value)
    assert message in place.job().waits
    for elsewhere in ("input=", "another name", "the program"):
        assert elsewhere not in message
    return halted.value


async def test_the_plan_is_put_back(place: Place) -> None:
    await diverged(place)
    place.plan(a=put("a"), b=put("b", "a"), go={"wait": {"signal": "go"}, "after": ["b"]})
    assert (await place.run()).status == "completed"
    assert place.done == ["a", "b"]


async def test_what_lies_ahead_is_taken_back_in_python(place: Place) -> None:
    message = str(await diverged(place))
    assert "take them back with on_divergence='undo'" in message
    assert (await place.run(on_divergence="undo")).status == "completed"
    assert place.done == ["a", "new", "b"]


async def test_what_lies_ahead_is_left_in_python(place: Place) -> None:
    assert "let what they did stand, and go on, with on_divergence='warn'" in str(
        await diverged(place)
    )
    found = await place.run(on_divergence="warn")
    assert found.status == "completed"
    assert sorted(place.done) == ["a", "b", "b", "new"]


def test_what_lies_ahead_is_taken_back_on_the_command_line(place: Place) -> None:
    message = asyncio.run(diverged(place))
    command = named(message, "rollcage workflow run PLAN")
    assert command.startswith("rollcage workflow run PLAN 'the job' --on-divergence undo --store")
    assert "completed" in place.rollcage(command, PLAN="plan.json")
    assert place.done == ["a", "new", "b"]


def test_what_lies_ahead_is_left_on_the_command_line(place: Place) -> None:
    message = asyncio.run(diverged(place))
    assert ", or --on-divergence warn." in str(message)
    command = named(message, "rollcage workflow run PLAN")
    command = command.replace("--on-divergence undo", "--on-divergence warn")
    assert "completed" in place.rollcage(command, PLAN="plan.json")
    assert sorted(place.done) == ["a", "b", "b", "new"]


def test_all_of_it_is_undone(place: Place) -> None:
    message = asyncio.run(diverged(place))
    place.rollcage(named(message, "rollcage undo") + " --yes")
    assert place.done == []
    assert asyncio.run(place.run()).status == "completed"
    assert place.done == ["a", "new", "b"]


def test_it_is_shown_and_another_execution_has_another_id(place: Place) -> None:
    message = asyncio.run(diverged(place))
    assert "put" in place.rollcage(named(message, "rollcage show"))
    assert "if this is another execution, give it another id" in str(message)
    assert asyncio.run(place.run("another")).status == "waiting"


async def test_a_worker_s_result_names_the_same(place: Place) -> None:
    await diverged(place)
    commands = Commands(place.store)
    key = commands.resume("the job", by="ann")
    checked = check(str(place.folder / "plan.json"), place.tools.tools)
    await Worker(place.store, {"plan": checked}, tools=place.tools.tools).take(key)
    result = commands.result(key)
    assert result is not None
    assert result.outcome == "halted"
    command = named(result.detail, "rollcage workflow run PLAN")
    await asyncio.to_thread(place.rollcage, command, PLAN="plan.json")
    assert place.job().status == "completed"
    assert place.done == ["a", "new", "b"]


async def removed(place: Place) -> str:
    """Remove a step whose write is done."""
    place.plan(a=put("a"), b=put("b", "a"), go={"wait": {"signal": "go"}, "after": ["b"]})
    await place.run()
    place.plan(a=put("a"))
    with pytest.raises(WorkflowError, match="put back the removed steps") as halted:
        await place.run()
    assert place.job().status == "halted"
    return str(halted.value)


async def test_removed_steps_are_put_back(place: Place) -> None:
    await removed(place)
    place.plan(a=put("a"), b=put("b", "a"))
    assert (await place.run()).status == "completed"
    assert place.done == ["a", "b"]


def test_the_effects_of_removed_steps_are_undone(place: Place) -> None:
    message = asyncio.run(removed(place))
    place.rollcage(named(message, "rollcage undo") + " --yes")
    assert place.done == []


# --- what nobody knows ---------------------------------------------------------------------------


def unknown(place: Place) -> UnknownOutcome:
    place.plan(a={"call": "cut", "args": {"what": "a"}}, b=put("b", "a"))
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(place.run())
    with pytest.raises(UnknownOutcome) as halted:
        asyncio.run(place.run())
    assert str(halted.value) in place.job().waits
    return halted.value


def test_a_write_that_did_not_happen_is_made(place: Place) -> None:
    message = unknown(place)
    command = re.findall(r"rollcage resolve [^;]*--did-not-happen", str(message))[0]
    place.rollcage(command)
    place.works.append(True)
    assert asyncio.run(place.run()).status == "completed"
    assert place.done == ["a", "b"]


def test_a_write_that_happened_is_not_made_again(place: Place) -> None:
    message = unknown(place)
    place.rollcage(named(message, "rollcage resolve"))
    with pytest.raises(NotReplayable) as halted:  # its result is not known
        asyncio.run(place.run())
    place.rollcage(named(halted.value, "rollcage resolve"), JSON='"a"')
    assert asyncio.run(place.run()).status == "completed"
    assert place.done == ["b"]


# --- what can't be undone ------------------------------------------------------------------------


def test_a_rollback_that_is_stuck_ends_when_its_step_counts_as_undone(place: Place) -> None:
    failing = {"call": "fails", "after": ["a"], "on_failure": "rollback"}
    place.plan(a=put("a"), b=failing)
    place.tools.held.append("a")
    with pytest.raises(UndoIncomplete) as halted:
        asyncio.run(place.run())
    command = named(halted.value, "rollcage resolve")
    assert command.endswith("--undone")
    place.rollcage(command)
    with pytest.raises(ExecutionFailed):
        asyncio.run(place.run())
    assert place.job().status == "rolled_back"


# --- what was failed, stopped, paused, asked -----------------------------------------------------


def failed(place: Place) -> ExecutionFailed:
    place.plan(a=put("a"), b={"call": "fails", "after": ["a"]})
    with pytest.raises(ValueError, match="not yet"):
        asyncio.run(place.run())
    with pytest.raises(ExecutionFailed) as refused:
        asyncio.run(place.run())
    place.works.append(True)
    return refused.value


def test_a_failed_one_is_run_once_more_in_python(place: Place) -> None:
    assert "To run it once more: again=True; or: " in str(failed(place))
    assert asyncio.run(place.run(again=True)).status == "completed"
    assert place.done == ["a"]


def test_a_failed_one_is_run_once_more_on_the_command_line(place: Place) -> None:
    command = named(failed(place), "rollcage workflow run PLAN")
    assert "completed" in place.rollcage(command, PLAN="plan.json")
    assert place.done == ["a"]


def test_a_failed_one_is_run_once_more_by_a_worker(place: Place) -> None:
    failed(place)
    commands = Commands(place.store)
    with pytest.raises(WorkflowError) as refused:
        commands.resume("the job", by="ann")
    assert "To run it once more: again=True; or: " in str(refused.value)
    place.rollcage(named(refused.value, "rollcage workflow resume"))
    place.rollcage(f"rollcage worker --once --plans plan.json {at(place)}")
    assert place.job().status == "completed"
    assert place.done == ["a"]


def at(place: Place) -> str:
    return f"--store {shlex.quote(place.store.url)}"


def test_a_stopped_run_goes_on_when_the_stop_is_lifted(place: Place) -> None:
    place.plan(a=put("a"), go={"wait": {"signal": "go"}, "after": ["a"]}, b=put("b", "go"))
    asyncio.run(place.run())
    Signals(place.store, "the job").send("go", 1, by="ann")
    stop_run(place.store, place.job().run, by="ann", reason="a look")
    with pytest.raises(RunStopped) as stopped:
        asyncio.run(place.run())
    place.rollcage(named(stopped.value, "rollcage stop"))
    assert asyncio.run(place.run()).status == "completed"
    assert place.done == ["a", "b"]


def test_a_paused_run_goes_on_when_it_is_unpaused(place: Place) -> None:
    place.plan(a=put("a"), go={"wait": {"signal": "go"}, "after": ["a"]}, b=put("b", "go"))
    asyncio.run(place.run())
    place.rollcage(f"rollcage pause {place.job().run} {at(place)}")
    Signals(place.store, "the job").send("go", 1, by="ann")
    said = place.rollcage(f"rollcage workflow show 'the job' {at(place)}")
    place.rollcage(named(said, "rollcage unpause"))
    assert asyncio.run(place.run()).status == "completed"
    assert place.done == ["a", "b"]


def test_what_a_waiting_one_waits_for_is_given_as_shown(place: Place) -> None:
    place.plan(ask={"wait": {"approval": "sure?"}}, go={"wait": {"signal": "go"}, "after": ["ask"]})
    asyncio.run(place.run(actor="carl"))
    waits = place.job().waits
    place.rollcage(named(waits, "rollcage approve") + " --by ann")
    asyncio.run(place.run())
    said = place.rollcage(f"rollcage workflow show 'the job' {at(place)}")
    place.rollcage(named(said, "rollcage workflow signal"), JSON="7")
    assert asyncio.run(place.run()).status == "completed"


def test_a_call_that_a_gate_asks_about_is_approved_as_named(place: Place) -> None:
    def asks(call: Any) -> Verdict:
        return Verdict.ask("is it dear?") if call.contract.name == "put" else Verdict.allow()

    place.plan(a=put("a"))
    with pytest.raises(ApprovalRequired, match="give it an approver"):
        asyncio.run(place.run(gate=[asks], actor="carl"))
    how: dict[str, Any] = {"gate": [asks], "approver": QueueApprover(place.store), "actor": "carl"}
    with pytest.raises(ApprovalRequired) as waits:
        asyncio.run(place.run(**how))
    place.rollcage(named(waits.value, "rollcage approve") + " --by ann")
    assert asyncio.run(place.run(**how)).status == "completed"
    assert place.done == ["a"]


async def test_one_in_use_is_taken_over(place: Place) -> None:
    place.plan(a={"call": "stays"}, b=put("b", "a"))
    first = asyncio.create_task(place.run())
    await place.tools.here.wait()
    with pytest.raises(RunInUse, match="take it over"):
        await place.run()
    place.tools.here.clear()
    second = asyncio.create_task(place.run(options=Options(take=True)))
    await place.tools.here.wait()
    place.tools.go.set()
    assert (await second).status == "completed"
    with pytest.raises(RollcageError):
        await first
    assert place.done == ["b"]


def test_an_undo_that_would_differ_is_looked_at_again(place: Place) -> None:
    place.plan(a=put("a"), b=put("b", "a"))
    found = asyncio.run(place.run())
    commands = Commands(place.store)
    worker = Worker(place.store, {}, tools=place.tools.tools)
    key = commands.undo(found.run, by="ann", plan_digest="0" * 64)
    assert asyncio.run(worker.take(key)) == "changed"
    result = commands.result(key)
    assert result is not None
    assert "look at it again, with plan_undo or aplan_undo" in result.detail
    plan = asyncio.run(aplan_undo(place.store, found.run, tools=place.tools.tools))
    key = commands.undo(found.run, by="ann", plan_digest=plan.digest)
    assert asyncio.run(worker.take(key)) == "undone"
    assert place.done == []


def test_results_without_a_step_to_start_at_name_how_to_pass_it(place: Place) -> None:
    place.plan(a=put("a"), b=put("b", "a"))
    with pytest.raises(InputsInvalid, match="pass start=, or --from"):
        asyncio.run(place.run(given={"a": "a"}))
    assert asyncio.run(place.run(start="b", given={"a": "a"})).status == "completed"
    (place.folder / "given.json").write_text('{"a": "a"}')
    command = f"rollcage workflow run plan.json other --from b --given given.json {at(place)}"
    assert "completed" in place.rollcage(command)
    assert place.done == ["b", "b"]


def test_an_unknown_execution_names_the_list(place: Place) -> None:
    with pytest.raises(WorkflowError) as unknown_:
        Commands(place.store).pause("other", by="ann")
    assert "No executions" in place.rollcage(named(unknown_.value, "rollcage workflow list"))
    with pytest.raises(Exception, match="no execution 'other'") as told:
        place.rollcage(f"rollcage workflow show other {at(place)}")
    assert "No executions" in place.rollcage(named(told.value, "rollcage workflow list"))


def test_other_inputs_are_given_as_before_or_to_another_id(place: Place) -> None:
    place.plan(go={"wait": {"signal": "go"}})
    path = place.folder / "plan.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"inputs": {"n": {}}}))
    assert asyncio.run(place.run(inputs={"n": 1})).status == "waiting"
    with pytest.raises(InputsInvalid, match="give it those, or give another id"):
        asyncio.run(place.run(inputs={"n": 2}))
    assert asyncio.run(place.run(inputs={"n": 1})).status == "waiting"
    assert asyncio.run(place.run("another", inputs={"n": 2})).status == "waiting"


def test_a_cancelled_one_is_started_under_another_id(place: Place) -> None:
    place.plan(a=put("a"))
    Commands(place.store).start("plan", id="the job", by="carl")
    Commands(place.store).cancel("the job", by="ann")
    with pytest.raises(ExecutionFailed, match="start one of another id"):
        asyncio.run(place.run())
    assert asyncio.run(place.run("another")).status == "completed"


def too_old(place: Place) -> RunTooOld:
    place.plan(a=put("a"), go={"wait": {"signal": "go"}, "after": ["a"]})
    asyncio.run(place.run())
    with pytest.raises(RunTooOld, match="pass a longer resume_within=") as refused:
        asyncio.run(place.run(options=Options(resume_within=0)))
    return refused.value


def test_an_old_run_goes_on_with_a_longer_time(place: Place) -> None:
    too_old(place)
    found = asyncio.run(place.run(options=Options(resume_within=3600)))
    assert (found.status, found.attempts) == ("waiting", 2)


def test_an_old_run_is_undone(place: Place) -> None:
    place.rollcage(named(too_old(place), "rollcage undo") + " --yes")
    assert place.done == []


def test_an_old_run_is_left_and_another_one_begins(place: Place) -> None:
    place.rollcage(named(too_old(place), "rollcage abandon"))
    found = asyncio.run(place.run(options=Options(resume_within=0)))
    assert (found.status, found.attempts) == ("waiting", 1)
    assert place.done == ["a", "a"]


def loses(place: Place) -> UndoIncomplete:
    """Let a race be won by another member, whose loser's write can't be taken back."""
    steps = {"p": put("p"), "s": {"wait": {"seconds": 3}, "after": ["p"]}}
    losing, winning = {"each": {"over": "=[1]", "steps": steps}}, {"wait": {"seconds": 0.2}}
    place.plan(race={"team": {"mode": "race", "members": {"one": losing, "two": winning}}})
    place.tools.held.append("p")
    with pytest.raises(UndoIncomplete) as halted:
        asyncio.run(place.run(patience=5.0))
    return halted.value


def test_a_loser_that_is_stuck_counts_as_undone(place: Place) -> None:
    command = named(loses(place), "rollcage resolve")
    assert command.endswith("--undone")
    place.rollcage(command)
    assert asyncio.run(place.run(patience=5.0)).status == "completed"
    assert place.done == ["p"]


def half_undone(place: Place) -> UndoIncomplete:
    place.plan(a=put("a"), go={"wait": {"signal": "go"}, "after": ["a"]})
    found = asyncio.run(place.run())
    place.tools.held.append("a")
    report = asyncio.run(aundo_run(place.store, found.run, tools=place.tools.tools))
    assert not report.complete
    with pytest.raises(UndoIncomplete, match="has begun and can't be finished") as halted:
        asyncio.run(place.run())
    return halted.value


def test_an_undo_that_is_stuck_is_made_again(place: Place) -> None:
    message = half_undone(place)
    place.tools.held.clear()
    place.rollcage(named(message, "rollcage undo") + " --yes")
    assert place.done == []
    assert asyncio.run(place.run()).status == "waiting"
    assert place.done == ["a"]


def test_an_undo_that_is_stuck_ends_when_its_step_counts_as_undone(place: Place) -> None:
    place.rollcage(named(half_undone(place), "rollcage resolve"))
    found = asyncio.run(place.run())  # it finishes the undo, and goes on
    assert (found.status, found.attempts) == ("waiting", 3)
    assert place.done == ["a", "a"]
