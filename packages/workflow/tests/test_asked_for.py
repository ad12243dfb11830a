"""Commands: where an execution starts, which one is taken first, and what nobody can undo."""

import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest
from rollcage import tool
from rollcage_workflow import check
from rollcage_workflow.commands import workflow
from rollcage_workflow.engine import Engine, board
from rollcage_workflow.engine.worker import is_live
from rollcage_workflow.errors import InputsInvalid, WorkflowError
from rollcage_workflow.orders import Command
from typer.testing import CliRunner
from workers import Crew
from worlds import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "store")


def steps(**given: Any) -> dict[str, Any]:
    return {"name": "plan", "steps": given}


def put(what: str, *after: str) -> dict[str, Any]:
    return {"call": "put", "args": {"what": what}, "after": list(after)}


LATER = steps(
    a={"call": "look", "args": {"what": "a"}},
    b=put("b", "a"),
    c=put("=b + string(size(a))", "b"),
    go={"wait": {"signal": "go"}, "after": ["c"]},
    d=put("d", "go"),
)
GIVEN = {"a": ["x", "y"], "b": "somebody's "}


async def test_a_command_starts_an_execution_at_a_chosen_step(world: World) -> None:
    crew = Crew(world, LATER)
    assert crew.start(start="c", given=GIVEN)
    await crew.work()
    assert (crew.job().status, crew.job().start, crew.job().given) == ("waiting", "c", GIVEN)
    started = crew.commands.started("job")
    assert started is not None
    assert (started.start, started.given) == ("c", {}), "what was given is in the trace alone"
    world.signal("go", 1)
    crew.commands.wake("job")
    await crew.work()
    assert crew.job().status == "completed"
    assert world.standing == {"somebody's 2": 1, "d": 1}
    assert not world.reads


async def test_a_start_that_the_plan_does_not_have_is_refused(world: World) -> None:
    crew = Crew(world, LATER)
    with pytest.raises(WorkflowError, match="'a' is not JSON"):
        crew.start(start="c", given={"a": object()})
    crew.start(id="nowhere", start="cc", given=GIVEN)
    crew.start(id="bare", start="c")
    await crew.work()
    for name, said in (("nowhere", "has no step 'cc'"), ("bare", "b: c comes after it")):
        begun = crew.commands.started(name)
        assert begun is not None
        result = crew.result(begun.key)
        assert result.outcome == "refused"
        assert said in result.detail
    made = Engine(None, store=world.store, plans=[check(LATER, world.tools)])
    with pytest.raises(InputsInvalid, match="did you mean 'c'"):
        made.start("plan", id="other", by="carl", start="cc", given=GIVEN)
    assert made.start("plan", id="other", by="carl", start="c", given=GIVEN)
    assert not world.deeds


async def test_the_command_line_starts_at_a_chosen_step(world: World, tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    results.write_text(json.dumps(GIVEN))
    more = ["--from", "c", "--given", str(results), "--by", "carl", "--store", str(world.store)]
    assert CliRunner().invoke(workflow, ["start", "plan", "job", *more]).exit_code == 0
    assert CliRunner().invoke(workflow, ["start", "plan", "job", *more]).exit_code == 1
    crew = Crew(world, LATER)
    await crew.work()
    assert (crew.job().start, crew.job().given) == ("c", GIVEN)
    assert world.standing == {"somebody's 2": 1}


async def test_what_is_asked_for_first_is_taken_first(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    crew = Crew(world, steps(a=put("a")))
    ids = [f"job-{n}" for n in random.Random(5).sample(range(50), 50)]  # noqa: S311
    for each in ids:
        crew.start(id=each)
    found = [each.execution for each in crew.board.look()]
    assert found == ids
    asked: list[str] = []
    get = crew.worker.commands.get

    def looked(store: Any, job: str) -> bool:
        asked.append(job)
        return is_live(store, job)

    def read(key: str) -> Command | None:
        asked.append(key)
        return get(key)

    monkeypatch.setattr(board, "is_live", looked)
    monkeypatch.setattr(crew.worker.commands, "get", read)
    first = [each.execution for each in itertools.islice(crew.board.look(), 3)]
    assert first == ids[:3]
    assert asked == ids[:3], "no other one was looked at, and none was read again"


async def test_a_cancel_that_nobody_can_decide_stays_incomplete(
    world: World, tmp_path: Path
) -> None:
    """A write without a probe was cut off: what stands is told, and not taken for undone."""

    @tool(effect="write", name="blind", undo=list)
    async def blind() -> str:
        return "done"

    plan = steps(a=put("a"), x={"call": "blind", "after": ["a"]}, b=put("b", "x"))
    world.tools.append(blind)
    await world.attempt(plan)
    (run,) = world.runs()
    lines = (world.store / "logs" / f"{run}.jsonl").read_bytes().splitlines()
    behind = next(n for n, line in enumerate(lines, 1)
                  if b'"event":"step"' in line and b'"blind"' in line)  # fmt: skip
    cut = world.back(run, behind, tmp_path / "cut", random.Random(1))  # noqa: S311
    cut.tools.append(blind)
    crew = Crew(cut, plan)
    crew.commands.wake("job", by="carl")
    await crew.work()
    assert crew.job().status == "halted"
    crew.commands.cancel("job", by="ann", rollback=True)
    (key,) = (each for each in crew.commands.open_keys() if ".cancel." in each)
    await crew.work()
    result = crew.result(key)
    assert result.outcome == "incomplete"
    assert "blind" in result.detail
    assert crew.job().status == "cancelled"
    assert not crew.commands.open_keys()
