"""Executions that somebody pauses, resumes, cancels or has run once more."""

from typing import Any

import pytest
from order_plans import THREE, put, steering, steps
from rollcage import list_runs, tool
from rollcage.trace.seal import StoreSeal
from rollcage_workflow import executions, inputs, running
from rollcage_workflow.engine import worker
from rollcage_workflow.errors import ExecutionFailed, WorkflowError
from rollcage_workflow.holds import Holds
from workers import Crew
from worlds import World


async def test_a_pause_ends_the_attempt_at_the_next_call(world: World) -> None:
    crew = Crew(world, steering(world, lambda own: own.pause("job", by="ann", reason="lunch")))
    crew.start()
    await crew.work()
    assert (crew.job().status, crew.job().waits) == ("paused", "paused by ann: lunch")
    assert world.standing == {"a": 1}
    await crew.work()
    assert world.standing == {"a": 1}
    assert not crew.due()


async def test_what_was_paused_goes_on_where_it_was(world: World) -> None:
    plan = steering(world, lambda own: own.pause("job", by="ann") if not world.reads else None)
    crew = Crew(world, plan)
    crew.start()
    await crew.work()
    assert crew.job().status == "paused"
    key = crew.commands.resume("job", by="bob")
    await crew.work()
    assert crew.job().status == "completed"
    assert crew.result(key).outcome == "completed"
    assert world.standing == {"a": 1, "c": 1}


async def test_one_that_is_paused_before_it_begins_does_not(world: World) -> None:
    crew = Crew(world, THREE)
    crew.start()
    assert crew.commands.pause("job", by="ann").status == "paused"
    await crew.work()
    assert not world.runs()
    assert [each.status for each in executions(crew.store)] == []
    crew.commands.resume("job", by="ann")
    await crew.work()
    assert crew.job().status == "completed"
    assert world.most == 1


@pytest.mark.parametrize("late", [False, True], ids=["not opened", "opened"])
async def test_one_that_is_paused_as_a_worker_takes_it_begins_when_it_is_resumed(
    late: bool, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the worker has looked: its start stays open, for nothing else has its inputs."""
    crew = Crew(world, steps(a=put("='a' + string(inputs.n)")))
    crew.start(inputs={"n": 3})
    where, name = (running, "keep_outline") if late else (worker, "run")
    real: Any = getattr(where, name)

    def paused_by_now(*args: Any, **how: Any) -> Any:
        Holds(crew.store, "job").put("paused", by="ann")
        return real(*args, **how)

    with monkeypatch.context() as patch:
        patch.setattr(where, name, paused_by_now)
        await crew.work()
    assert crew.job().status == "paused"
    assert not world.standing
    crew.commands.resume("job", by="ann")
    await crew.work()
    assert (crew.job().status, world.standing) == ("completed", {"a3": 1})
    assert crew.due() == []


async def test_one_that_is_stopped_as_it_begins_and_resumed_by_then_begins_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pause has stopped its run, and is over before the attempt looks what it was for."""
    crew = Crew(world, steps(a=put("='a' + string(inputs.n)")))
    crew.start(inputs={"n": 3})
    real: Any = vars(running)["keep_outline"]

    def paused_and_resumed(*args: Any) -> None:
        holds = Holds(crew.store, "job")
        holds.put("paused", by="ann")
        hold = holds.read()
        assert hold is not None
        holds.stop(list_runs(crew.store)[0].run, hold)
        holds.lift()
        real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(running, "keep_outline", paused_and_resumed)
        await crew.work()
    assert (crew.job().status, len(crew.due())) == ("pending", 1)
    await crew.work()
    assert (crew.job().status, world.standing) == ("completed", {"a3": 1})
    assert crew.due() == []


@pytest.mark.parametrize("kind", ["paused", "cancelled"])
async def test_a_hold_that_comes_while_the_session_opens_is_seen(
    world: World, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = inputs.given_inputs

    def and_then(*said: Any) -> Any:
        Holds(crew.store, "job").put(kind, by="ann")
        return given(*said)

    crew = Crew(world, THREE)
    StoreSeal(crew.store)("")  # its key is there
    monkeypatch.setattr("rollcage_workflow.running.given_inputs", and_then)
    found = await world.attempt(THREE)
    assert found.status == kind
    assert not world.deeds


async def test_a_cancelled_one_is_undone_by_a_worker(world: World) -> None:
    crew = Crew(world, steering(world, lambda own: own.cancel("job", by="ann", rollback=True)))
    crew.start()
    await crew.work()
    assert crew.job().status == "rolled_back"
    assert crew.job().waits == "cancelled by ann"
    assert not world.standing
    assert len(world.deeds) == 2
    with pytest.raises(ExecutionFailed, match="cancelled by ann"):
        await world.attempt(THREE)
    with pytest.raises(WorkflowError, match="is over"):
        crew.commands.resume("job", by="ann", again=True)


async def test_a_cancelled_one_keeps_what_it_did_where_nothing_else_is_asked_for(
    world: World,
) -> None:
    plan = steps(a=put("a"), go={"wait": {"signal": "go"}, "after": ["a"]}, b=put("b", "go"))
    crew = Crew(world, plan)
    crew.start()
    await crew.work()
    world.signal("go", 1)
    assert crew.commands.cancel("job", by="ann", reason="enough").status == "cancelled"
    with pytest.raises(WorkflowError, match="it is cancelled, and takes no signal"):
        world.signal("go", 2)
    await crew.work()
    assert crew.job().status == "cancelled"
    assert world.standing == {"a": 1}
    crew.commands.cancel("job", by="ann", rollback=True)  # on second thought
    await crew.work()
    assert crew.job().status == "rolled_back"
    assert not world.standing


async def test_one_that_is_completed_is_not_cancelled(world: World) -> None:
    crew = Crew(world, THREE)
    crew.start()
    await crew.work()
    with pytest.raises(WorkflowError, match="it is completed"):
        crew.commands.cancel("job", by="ann", rollback=True)
    Holds(crew.store, "job").put("cancelled", by="ann", rollback=True)  # as if it ended just then
    assert crew.job().status == "completed"
    with pytest.raises(WorkflowError, match="no execution 'nobody'"):
        crew.commands.pause("nobody", by="ann")


async def test_a_failed_one_is_run_once_more_where_somebody_says_so(world: World) -> None:
    broken = [True]

    @tool(effect="read", name="carrier")
    async def carrier() -> str:
        if broken:
            raise ConnectionError("no answer")
        return "fine"

    world.tools.append(carrier)
    plan = steps(a=put("a"), ask={"call": "carrier", "after": ["a"]}, b=put("b", "ask"))
    crew = Crew(world, plan)
    crew.start()
    await crew.work()
    assert crew.job().status == "failed"
    broken.clear()
    with pytest.raises(WorkflowError, match="resume job --again"):
        crew.commands.resume("job", by="ann")
    crew.commands.resume("job", by="ann", again=True)
    await crew.work()
    assert crew.job().status == "completed"
    assert world.standing == {"a": 1, "b": 1}
