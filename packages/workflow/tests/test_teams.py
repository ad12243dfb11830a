"""Races that nobody wins, teams whose time is up, and jumps ahead."""

import asyncio
import re
from typing import Any

import pytest
from parts import execution_of, put, steps
from rollcage import tool
from rollcage_workflow import PlanBuilder, check
from rollcage_workflow import steps as inner_steps
from rollcage_workflow.errors import ExpressionFailed, PlanInvalid, StepFailed
from worlds import World


class Clock:
    """A time that tests set."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> int:
        return int(self.now * 1e9)


def bad(what: str) -> dict[str, Any]:
    return {"call": "put", "args": {"what": what, "fails": True}}


def team(members: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"team": {"members": members, **more}}


async def test_a_race_that_nobody_wins_tells_each_error(world: World) -> None:
    with pytest.raises(StepFailed) as raised:
        await world.attempt(steps(t=team({"x": bad("x"), "y": bad("y")}, mode="race")))
    said = str(raised.value)
    assert said.startswith("t: 0 of 1 needed members succeeded; ")
    assert "x failed: ValueError: x failed" in said
    assert "y failed: ValueError: y failed" in said
    error = execution_of(world).error
    assert (error["step"], error["type"], error["message"]) == ("t", "StepFailed", said)


async def test_a_quorum_that_is_out_of_reach_ends_at_once(world: World) -> None:
    members = {"x": bad("x"), "y": bad("y"), "z": {"wait": {"signal": "go"}}}
    with pytest.raises(StepFailed, match="t: 0 of 2 needed members succeeded"):
        await world.attempt(steps(t=team(members, mode="quorum", quorum=2)))
    assert execution_of(world).status == "failed"


async def test_a_race_with_a_failure_still_waits_for_who_may_win(world: World) -> None:
    members = {"x": bad("x"), "z": {"wait": {"signal": "go"}}}
    plan = steps(t=team(members, mode="race"))
    assert (await world.attempt(plan)).status == "waiting"
    world.signal("go", 1)
    assert (await world.attempt(plan)).output == {"winner": "z", "value": 1}


# --- time limits ----------------------------------------------------------------------------------


def late(world: World, **more: Any) -> tuple[dict[str, Any], Clock]:
    """A member that ends at once, and one that writes and then waits for a signal."""
    waits = {"p": put("p"), "go": {"wait": {"signal": "go"}, "after": ["p"]}}
    members = {
        "quick": put("quick"),
        "slow": {"repeat": {"steps": waits, "until": "=true", "most": 1}},
    }
    plan = steps(a=put("a"), t={**team(members, time_limit=3600, **more), "after": ["a"]})
    return plan, Clock()


async def test_a_team_whose_time_is_up_gives_what_had_ended(world: World) -> None:
    plan, clock = late(world)
    for _ in range(3):
        found = await world.attempt(plan, clock=clock)
        assert (found.status, world.standing) == ("waiting", {"a": 1, "quick": 1, "p": 1})
        assert len(world.deeds) == 3  # a member that waits keeps what it did
        clock.now += 1000
    clock.now += 1000
    found = await world.attempt(plan, clock=clock)
    assert found.status == "completed"
    assert found.output["slow"] is None
    assert found.output["quick"].startswith("quick#")
    assert world.standing == {"a": 1, "quick": 1}


async def test_a_team_that_ends_in_time_gives_all(world: World) -> None:
    plan, clock = late(world)
    await world.attempt(plan, clock=clock)
    clock.now += 1000
    world.signal("go", 7)
    found = await world.attempt(plan, clock=clock)
    assert (found.status, found.output["slow"]) == ("completed", 7)
    assert world.standing == {"a": 1, "quick": 1, "p": 1}


async def test_a_time_limit_ends_a_team_in_its_process(world: World) -> None:
    """A read is cancelled, a write ends and is undone, who waits is undone."""

    @tool(effect="read", name="sleeps")
    async def sleeps() -> None:
        await asyncio.sleep(60)

    world.tools.append(sleeps)
    members = {
        "quick": put("quick"),
        "reads": {"call": "sleeps"},
        "waits": {"wait": {"signal": "go"}},
        "naps": {"wait": {"seconds": 50}},
    }
    plan = steps(t=team(members, time_limit=0.3), b=put("b", after=["t"]))
    found = await asyncio.wait_for(world.attempt(plan), 20)
    assert found.status == "completed"
    assert world.standing == {"quick": 1, "b": 1}


@pytest.mark.parametrize("mode", [{"mode": "race"}, {"mode": "quorum", "quorum": 2}])
async def test_a_race_that_is_not_decided_in_time_fails(world: World, mode: Any) -> None:
    """A quorum that is not reached is none, whoever had answered by then."""
    waits = {"p": put("p"), "go": {"wait": {"signal": "go"}, "after": ["p"]}}
    members: dict[str, Any] = {
        name: {"repeat": {"steps": waits, "until": "=true", "most": 1}} for name in ("x", "y")
    }
    if mode["mode"] == "quorum":
        members["quick"] = put("quick")
    plan, clock = steps(t=team(members, time_limit=60, **mode)), Clock()
    assert (await world.attempt(plan, clock=clock, patience=0.0)).status == "waiting"
    clock.now += 61
    with pytest.raises(StepFailed, match=r"needed members succeeded within 60 s"):
        await world.attempt(plan, clock=clock)
    assert world.standing == ({"quick": 1} if "quick" in members else {})


async def test_a_member_that_fails_fails_a_team_with_a_time_limit(world: World) -> None:
    members = {"x": bad("x"), "y": {"wait": {"signal": "go"}}, "z": put("z")}
    with pytest.raises(ValueError, match="x failed"):
        await world.attempt(steps(t=team(members, time_limit=60)))
    assert execution_of(world).status == "failed"


async def test_what_is_late_in_a_team_within_a_race_is_undone_once(world: World) -> None:
    inner, clock = late(world)
    members = {"t": inner["steps"]["t"], "never": {"wait": {"signal": "never"}}}
    del members["t"]["after"]
    plan = steps(race=team(members, mode="race"), end=put("='end ' + race.winner", after=["race"]))
    assert (await world.attempt(plan, clock=clock)).status == "waiting"
    clock.now += 3601
    assert (await world.attempt(plan, clock=clock)).status == "completed"
    assert world.standing == {"quick": 1, "end t": 1}
    assert [deed.label for deed in world.deeds if deed.sign < 0] == ["p"]


def test_the_result_of_a_member_that_may_be_late_may_be_null(world: World) -> None:
    @tool(effect="write", name="pays", undo=list)
    def pays(what: str) -> str:
        raise AssertionError

    plan = steps(t=team({"x": put("x")}, time_limit=5), b={"call": "pays"})
    plan["steps"]["b"]["args"] = {"what": "=t.x"}
    with pytest.raises(PlanInvalid, match=r"t\.x may be null.*add when: =t\.x != null"):
        check(plan, [*world.tools, pays])
    plan["steps"]["b"]["when"] = "=t.x != null"
    check(plan, [*world.tools, pays])

    @tool(effect="write", name="sends")
    def sends() -> None:
        raise AssertionError

    plan = steps(t=team({"x": {"call": "sends"}}, time_limit=5))
    with pytest.raises(PlanInvalid, match="in a team with a time limit the steps of a late member"):
        check(plan, [*world.tools, sends])


def test_a_builder_writes_a_time_limit() -> None:
    built = PlanBuilder("p").team("t", inner_steps().value("x", 1), time_limit=5.0).build()
    assert built.steps["t"].team is not None
    assert built.steps["t"].team.time_limit == 5.0


# --- jumps ahead ----------------------------------------------------------------------------------


def ahead(when: str = "=last[0] == 'a0'", *, is_row: bool = True) -> dict[str, Any]:
    plan = steps(
        look={"call": "look", "args": {"what": "a"}, "next": {"to": "end", "when": when}},
        x=put("x", after=["look"]),
        y=put("y", after=["x"]),
        end=put("end", after=["y"]),
    )
    if not is_row:
        plan["steps"]["beside"] = put("beside")
    return plan


@pytest.mark.parametrize("is_row", [True, False])
@pytest.mark.parametrize("jumps", [True, False])
async def test_a_jump_ahead_skips_what_is_between(world: World, jumps: bool, is_row: bool) -> None:
    plan = ahead(f"=last[0] == 'a{0 if jumps else 1}'", is_row=is_row)
    seen: dict[str, str] = {}
    found = await world.attempt(plan, on_step=seen.__setitem__)
    assert found.status == "completed"
    between = {} if jumps else {"x": 1, "y": 1}
    assert world.standing == {"end": 1, **between, **({} if is_row else {"beside": 1})}
    assert seen["x"] == ("skipped" if jumps else "completed")
    assert (await world.attempt(plan)).status == "completed"
    assert len(world.deeds) == sum(world.standing.values())


async def test_what_comes_after_sees_null_for_what_was_skipped(world: World) -> None:
    plan = ahead()
    plan["steps"]["told"] = {"value": {"x": "=x", "end": "=end != null"}}
    assert (await world.attempt(plan)).output == {"x": None, "end": True}


async def test_a_jump_ahead_in_a_loop_counts_for_its_round(world: World) -> None:
    inside = {
        "look": {
            "call": "look",
            "next": {"to": "end", "when": "=round == 2"},
        },
        "x": put("='x' + string(round)", after=["look"]),
        "end": put("='end' + string(round)", after=["x"]),
    }
    plan = steps(r={"repeat": {"steps": inside, "until": "=round == 3", "most": 3}})
    assert (await world.attempt(plan)).status == "completed"
    assert world.standing == {"x1": 1, "end1": 1, "end2": 1, "x3": 1, "end3": 1}


async def test_a_jump_ahead_out_of_what_a_jump_back_repeats(world: World) -> None:
    """It counts for the round in which it was taken, and for the steps behind the loop."""
    plan = steps(
        n={"call": "look", "args": {"what": "=last == null ? 'n' : last[0] + 'n'"}},
        back={
            "value": "=n",
            "next": {"to": "n", "when": "=size(last[0]) < 4", "most": 5},
        },
        go={"value": "=back", "next": {"to": "end", "when": "=true"}},
        x=put("x", after=["go"]),
        end=put("end", after=["x"]),
    )
    assert (await world.attempt(plan)).status == "completed"
    assert world.standing == {"end": 1}


async def test_a_condition_of_a_jump_ahead_that_fails_names_its_step(world: World) -> None:
    with pytest.raises(ExpressionFailed):
        await world.attempt(ahead("=last[7] == 'a'"))
    assert execution_of(world).error["step"] == "look"


@pytest.mark.parametrize(
    ("edit", "finds"),
    [
        ({"look": {"to": "x"}}, "no step stands between look and x"),
        ({"look": {"most": 3}}, "jumps ahead, which happens once"),
        ({"x": {"to": "end", "when": "=true"}}, "it skips x, which jumps, too"),
        ({"end": {"to": "x", "when": "=true"}}, "a jump back needs a bound"),
        ({"look": {"to": "apart"}}, "neither of look and apart comes after the other"),
    ],
)
def test_a_jump_that_can_not_be_is_found(world: World, edit: Any, finds: str) -> None:
    plan = ahead()
    plan["steps"]["apart"] = put("apart")
    for name, jump in edit.items():
        plan["steps"][name]["next"] = {**plan["steps"][name].get("next", {}), **jump}
    with pytest.raises(PlanInvalid, match=re.escape(finds)):
        check(plan, world.tools)


def test_a_skipped_result_needs_a_condition_where_null_is_not_taken(world: World) -> None:
    plan = ahead()
    plan["steps"]["end"]["args"] = {"what": "=x"}
    with pytest.raises(PlanInvalid, match="x may be skipped, and put takes no null here"):
        check(plan, world.tools)
    plan["steps"]["end"]["args"] = {"what": "=x == null ? 'none' : x"}
    check(plan, world.tools)
