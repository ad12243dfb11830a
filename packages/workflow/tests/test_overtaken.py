"""An attempt that another one overtakes, between the look at the execution and its lock."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from parts import execution_of, put, steps
from rollcage import open_store
from rollcage_workflow import execution, run, running
from rollcage_workflow.errors import ExecutionFailed
from rollcage_workflow.orders import Commands
from rollcage_workflow.running import run_sync
from rollcage_workflow.signals import Signals
from worlds import World


def plan(failure: str) -> dict[str, Any]:
    parts = {"a": put("a"), "go": {"wait": {"signal": "go"}, "after": ["a"]}}
    parts["b"] = put("b", after=["go"])
    if failure:
        parts["c"] = {"call": "breaks", "args": {"fails": True}, "after": ["b"]}
    return {**steps(**parts), "on_failure": failure or "stop"}


@pytest.fixture
def overtake(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], None]:
    """Have something happen once, as soon as somebody has looked at an execution."""

    def arm(happens: Callable[[], Any]) -> None:
        look = execution
        left = [happens]

        def looked(*given: Any) -> Any:
            found = look(*given)
            if left:
                other = threading.Thread(target=left.pop())
                other.start()
                other.join()
            return found

        monkeypatch.setattr(running, "execution", looked)

    return arm


async def waiting(world: World, failure: str) -> Any:
    """An execution that could go on: somebody has sent its signal."""
    made = plan(failure)
    found = await run(made, id="job", store=world.store, tools=world.tools)
    assert found.status == "waiting"
    Signals(open_store(world.store), "job").send("go", None, by="carl")
    return made


def attempts(world: World) -> int:
    return int(execution_of(world).attempts)


async def test_one_that_was_completed_by_another_attempt_is_not_begun_again(
    world: World, overtake: Callable[[Callable[[], Any]], None]
) -> None:
    made = await waiting(world, "")
    overtake(lambda: run_sync(made, id="job", store=world.store, tools=world.tools))
    found = await run(made, id="job", store=world.store, tools=world.tools)
    assert found.status == execution_of(world).status == "completed"
    assert attempts(world) == 2
    assert world.standing == {"a": 1, "b": 1}


async def test_another_plan_is_not_run_on_what_was_completed_meanwhile(
    world: World, overtake: Callable[[Callable[[], Any]], None]
) -> None:
    made = await waiting(world, "")
    edited = {**made, "steps": {**made["steps"], "d": put("d", after=["b"])}}
    overtake(lambda: run_sync(made, id="job", store=world.store, tools=world.tools))
    found = await run(edited, id="job", store=world.store, tools=world.tools)
    assert found.status == "completed"
    assert world.standing == {"a": 1, "b": 1}


@pytest.mark.parametrize(("failure", "left"), [("stop", {"a": 1, "b": 1}), ("rollback", {})])
async def test_one_that_failed_in_another_attempt_is_not_run_once_more(
    world: World,
    overtake: Callable[[Callable[[], Any]], None],
    failure: str,
    left: dict[str, int],
) -> None:
    made = await waiting(world, failure)

    def fail() -> None:
        with pytest.raises(ValueError, match="no "):
            run_sync(made, id="job", store=world.store, tools=world.tools)

    overtake(fail)
    with pytest.raises(ExecutionFailed, match="again=True"):
        await run(made, id="job", store=world.store, tools=world.tools)
    assert attempts(world) == 2
    assert world.standing == left


async def test_one_that_was_run_once_more_by_another_attempt_is_not_run_a_third_time(
    world: World, overtake: Callable[[Callable[[], Any]], None]
) -> None:
    made = await waiting(world, "stop")

    def fail() -> None:
        with pytest.raises(ValueError, match="no "):
            run_sync(made, id="job", store=world.store, tools=world.tools, again=True)

    await asyncio.to_thread(fail)
    overtake(fail)
    with pytest.raises(ExecutionFailed, match="again=True"):
        await run(made, id="job", store=world.store, tools=world.tools, again=True)
    assert attempts(world) == 3
    assert len(world.reads) == 2


async def test_one_that_somebody_cancelled_meanwhile_does_not_go_on(
    world: World, overtake: Callable[[Callable[[], Any]], None]
) -> None:
    made = await waiting(world, "stop")
    overtake(lambda: Commands(open_store(world.store)).cancel("job", by="carl"))
    with pytest.raises(ExecutionFailed, match="was cancelled"):
        await run(made, id="job", store=world.store, tools=world.tools)
    assert world.standing == {"a": 1}
