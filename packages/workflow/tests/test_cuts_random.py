"""Random plans, cut off anywhere and steered in every way, end as they do when nothing happens.

Each has some of: teams, races, quorums, lists, loops, plans inside, waits, a step that fails. Some
executions start at a chosen step, some are cut off again as they go on, some are paused, edited or
cancelled in between.
"""

import copy
from pathlib import Path
from typing import Any

import pytest
from parts import requests_in
from random_plans import Expected, Generator, is_right
from rollcage import Approval, ApprovalQueue, Diverged, open_store
from rollcage_workflow import check, execution
from rollcage_workflow.engine.reconcile import reconcile
from rollcage_workflow.orders import Commands
from rollcage_workflow.step_states import step_states
from workers import Crew
from worlds import World

SEEDS = [0, 1, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(2, 12))]
CUTS = 4  # of each plan


class Case:
    """A plan, how it is started, and how it ends."""

    def __init__(self, seed: int, *, asks: bool = False, starts: bool = True) -> None:
        made = Generator(seed, asks=asks)
        self.chance = made.chance
        self.plan, self.inner, self.expected = made.plan()
        self.fails = self.chance.random() < 0.35
        self.how: dict[str, Any] = {}
        if starts and self.chance.random() < 0.4:
            self.how, self.expected = made.start(self.plan, self.expected)
            self.fails = self.fails and "breaks" not in self.how.get("given", {})
        self.inputs = {"where": "here", "fails": self.fails}

    def is_right(self, world: World) -> bool:
        """Whether what stands is what its end leaves."""
        if world.most > 1:
            return False
        return not world.standing if self.fails else is_right(self.expected, world.standing)

    def edit(self) -> None:
        """Go on with another plan: a write after all other steps, or reads anywhere."""
        self.plan = copy.deepcopy(self.plan)
        steps = self.plan["steps"]
        if self.chance.random() < 0.5:
            args = {"where": "here", "what": "added"}
            steps["added"] = {"call": "mark", "args": args, "after": [*steps]}
            self.expected = Expected(parts=(self.expected, Expected("added")))
            return
        names = [*steps]
        for number in range(2):
            before = [name for name in names if self.chance.random() < 0.3]
            steps[f"read{number}"] = {"call": "look", "args": {"what": "more"}, "after": before}
        order = self.chance.sample([*steps], len(steps))
        self.plan["steps"] = {name: steps[name] for name in order}

    def put_write_before(self) -> str:
        """Go on with a plan that has one more write, before a step of it; the name of that step."""
        self.plan = copy.deepcopy(self.plan)
        steps = self.plan["steps"]
        name: str = self.chance.choice([name for name in steps if name != "breaks"])
        before = steps[name].get("after", [])
        args = {"where": "here", "what": "between"}
        after = [each for each in before if self.chance.random() < 0.7]
        steps[name]["after"] = [*before, "between"]
        steps["between"] = {"call": "mark", "args": args, "after": after}
        self.expected = Expected(parts=(self.expected, Expected("between")))
        return name

    def cuts(self, whole: World, folder: Path) -> Any:
        """Worlds in which the process died behind a line of a run, with which one that was."""
        moments = [*whole.moments()]
        for number, (run, line) in enumerate(self.chance.sample(moments, min(len(moments), CUTS))):
            yield whole.back(run, line, folder / f"cut-{number}", self.chance), (run, line)

    def again(self, world: World, folder: Path) -> World:
        """One of its own cuts."""
        run, line = self.chance.choice([*world.moments()])
        return world.back(run, line, folder / f"again-{self.chance.random()}", self.chance)


# --- attempts in this process --------------------------------------------------------------------


async def attempted(case: Case, world: World) -> str:
    """Attempts until it is over; how it ended."""
    for number in range(60):
        try:
            found = await world.attempt(
                case.plan, case.inputs, workflows=case.inner, patience=1.0, **case.how
            )
        except ValueError:
            return "failed"
        except Exception as error:
            if getattr(error, "code", "") == "execution_failed":
                return "failed"
            raise
        if found.is_over:
            return str(found.status)
        world.signal("go", number)
    raise AssertionError("it never ends")


async def paused(case: Case, world: World) -> None:
    """Nothing is done until it is resumed."""
    now = execution(open_store(world.store), "job")
    if now.is_over or not now.plan:
        return
    commands, before = Commands(open_store(world.store)), world.standing
    commands.pause("job", by="ann")
    found = await world.attempt(case.plan, case.inputs, workflows=case.inner, **case.how)
    assert (found.status, world.standing) == ("paused", before)
    commands.resume("job", by="ann")


@pytest.mark.parametrize("seed", SEEDS)
async def test_it_ends_alike_wherever_it_was_cut_off(seed: int, tmp_path: Path) -> None:
    case = Case(seed)
    whole = World(tmp_path / "whole")
    ended = await attempted(case, whole)
    assert ended == ("failed" if case.fails else "completed")
    assert case.is_right(whole)
    for cut, at in case.cuts(whole, tmp_path):
        world, what = cut, case.chance.choice(["", "", "pause", "again", "pause again"])
        if "pause" in what:
            await paused(case, world)
        if "again" in what:
            await attempted(case, world)
            world = case.again(world, tmp_path)
        assert await attempted(case, world) == ended, (at, what)
        assert case.is_right(world), (at, what, world.standing)


@pytest.mark.parametrize("seed", SEEDS)
async def test_it_ends_alike_with_steps_that_were_added_while_it_was_cut_off(
    seed: int, tmp_path: Path
) -> None:
    before, case = Case(seed), Case(seed)
    whole = World(tmp_path / "whole")
    ended = await attempted(before, whole)
    case.edit()
    for cut, at in before.cuts(whole, tmp_path):
        over = execution(open_store(cut.store), "job").status == "completed"
        assert await attempted(case, cut) == ended, at
        assert (before if over else case).is_right(cut), (at, cut.standing)


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_write_put_before_a_step_runs_or_halts_and_the_old_plan_still_goes_on(
    seed: int, tmp_path: Path
) -> None:
    """It halts before it runs if the step has begun; then the plan as it was ends as ever."""
    before, case = Case(seed, starts=False), Case(seed, starts=False)
    whole = World(tmp_path / "whole")
    ended = await attempted(before, whole)
    name = case.put_write_before()
    labels = before.expected.parts[[*before.plan["steps"]].index(name)].labels
    for cut, at in before.cuts(whole, tmp_path):
        now, has_begun = execution(open_store(cut.store), "job"), begun(cut, name)
        # of one that fails beside it, nothing begins any more, and all is undone
        must_halt = not now.is_over and not case.fails and bool(labels & {*cut.standing})
        try:
            assert await attempted(case, cut) == ended, at
        except Diverged:
            assert has_begun, at
            assert "between" not in cut.standing
            assert await attempted(before, cut) == ended, at
            assert before.is_right(cut), (at, cut.standing)
        else:
            assert not must_halt, at
            assert (before if now.status == "completed" else case).is_right(cut), at


def begun(world: World, step: str) -> bool:
    """Whether a step of the plan has begun in any attempt."""
    store = open_store(world.store)
    logs = [store.read(run) for run in world.runs()]
    return any(each.path.split("/")[0] == step for log in logs for each in step_states(log, "log"))


# --- attempts of a worker ------------------------------------------------------------------------


def crew_of(case: Case, world: World) -> Crew:
    checked = check(case.plan, world.tools, case.inner)
    return Crew(world, checked, patience=1.0)


async def worked(case: Case, world: World) -> str:
    """A worker takes what is open until it is over, and whoever is asked says yes."""
    for number in range(80):
        crew = crew_of(case, world)
        await crew.work()
        job = crew.job()
        if job.is_over and not crew.due():
            return job.status
        queue = ApprovalQueue(crew.store)
        for asked in requests_in(queue.store):
            found = queue.get(asked)
            if found is not None and queue.decision(found) is None:
                queue.decide(asked, Approval(True, by="bob"))
        world.signal("go", number)
    raise AssertionError("it never ends")


@pytest.mark.parametrize("seed", SEEDS)
async def test_whoever_cancels_it_wherever_it_was_cut_off_has_all_of_it_undone(
    seed: int, tmp_path: Path
) -> None:
    case = Case(seed, asks=True)
    whole = World(tmp_path / "whole")
    crew_of(case, whole).start(case.plan["name"], inputs=case.inputs, **case.how)
    ended = await worked(case, whole)
    assert ended == ("rolled_back" if case.fails else "completed")
    assert case.is_right(whole)
    for cut, at in case.cuts(whole, tmp_path):
        world, commands = cut, Commands(open_store(cut.store))
        now, what = execution(open_store(cut.store), "job"), case.chance.choice("gcpa")
        if now.is_over or not now.plan:
            continue
        if what == "g":
            reconcile(open_store(world.store))
            assert await worked(case, world) == ended, at
            assert case.is_right(world), (at, world.standing)
            continue
        if what == "p":
            commands.pause("job", by="ann")
        commands.cancel("job", by="ann", rollback=True)
        assert await worked(case, world) == "rolled_back", (at, what)
        if what == "a":  # the worker dies while it undoes
            world = case.again(world, tmp_path)
            if execution(open_store(world.store), "job").status != "rolled_back":
                Commands(open_store(world.store)).cancel("job", by="ann", rollback=True)
            assert await worked(case, world) in ("rolled_back", "cancelled"), at  # nothing was done
        assert not world.standing, (at, what, world.standing)
        assert world.most <= 1
