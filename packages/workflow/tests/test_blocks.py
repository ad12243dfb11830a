"""Teams, races, quorums, lists, loops, jumps and plans inside of plans."""

import asyncio

import pytest
from parts import execution_of, put, steps
from rollcage import open_store, tool
from rollcage_workflow import executions, run
from rollcage_workflow.errors import (
    StepFailed,
)
from worlds import World


async def test_a_race_undoes_what_came_too_late(world: World) -> None:
    gate = asyncio.Event()

    @tool(effect="read", name="held")
    async def held() -> str:
        await gate.wait()
        return "held"

    plan = steps(
        race={
            "team": {
                "mode": "race",
                "members": {
                    "quick": put("quick"),
                    "slow": {
                        "repeat": {
                            "steps": {
                                "a": put("slow"),
                                "b": {"call": "held", "after": ["a"]},
                                "c": put("never", after=["b"]),
                            },
                            "until": "=true",
                            "most": 1,
                        }
                    },
                },
            }
        }
    )
    found = await run(plan, id="x", store=world.store, tools=[*world.tools, held])
    assert found.output["winner"] == "quick"
    assert world.standing == {"quick": 1}
    assert found.status == "completed"


async def test_a_quorum_takes_the_first_so_many(world: World) -> None:
    members = {name: put(name) for name in "abc"}
    plan = steps(votes={"team": {"mode": "quorum", "quorum": 2, "members": members}})
    found = await world.attempt(plan)
    assert len(found.output) == 2
    assert set(world.standing) == set(found.output)


async def test_a_list_is_done_in_pieces_of_a_size(world: World) -> None:
    plan = steps(
        each={
            "each": {
                "over": "=[1, 2, 3, 4, 5]",
                "size": 2,
                "steps": {"n": {"value": "=size(item)"}},
            }
        }
    )
    assert (await world.attempt(plan)).output == [2, 2, 1]


async def test_no_more_go_on_at_once_than_is_said(world: World) -> None:
    now: list[int] = []
    most: list[int] = []

    @tool(effect="read", name="counted")
    async def counted(n: int) -> int:
        now.append(n)
        most.append(len(now))
        await asyncio.sleep(0)
        now.remove(n)
        return n

    inner = {"c": {"call": "counted", "args": {"n": "=item"}}}
    plan = steps(each={"each": {"over": "=[1,2,3,4,5,6]", "max_concurrent": 2, "steps": inner}})
    found = await run(plan, id="x", store=world.store, tools=[counted])
    assert found.output == [1, 2, 3, 4, 5, 6]
    assert max(most) == 2


async def test_a_loop_that_does_not_end_fails(world: World) -> None:
    inner = {"n": {"value": "=round"}}
    plan = steps(r={"repeat": {"steps": inner, "until": "=last > 9", "most": 3}})
    with pytest.raises(StepFailed, match="was not true after any of 3 rounds"):
        await world.attempt(plan)
    plan["steps"]["r"]["repeat"]["then"] = "go_on"
    assert (await world.attempt(plan, id="other")).output == 3


async def test_a_jump_hands_on_the_last_result_and_is_bounded(world: World) -> None:
    plan = steps(
        draft=put("draft"),
        review={
            "value": "=last == null ? 1 : last + 1",
            "after": ["draft"],
            "next": {"to": "draft", "when": "=review < 3", "most": 5},
        },
        end={"value": "=review"},
    )
    assert (await world.attempt(plan)).output == 3
    assert world.standing == {"draft": 3}
    plan["steps"]["review"]["next"]["most"] = 1
    with pytest.raises(StepFailed, match="would go back to draft once more"):
        await world.attempt(plan, id="short")


async def test_a_plan_in_a_plan(world: World) -> None:
    inner = {
        "name": "inner",
        "inputs": {"what": {"type": "string"}, "often": {"type": "integer", "default": 2}},
        "steps": {"a": put("=inputs.what")},
        "output": "=inputs.often",
    }
    plan = steps(sub={"workflow": "inner", "inputs": {"what": "deep"}})
    assert (await world.attempt(plan, workflows={"inner": inner})).output == 2
    assert world.standing == {"deep": 1}


async def test_what_an_earlier_attempt_did_in_a_list_is_rolled_back_too(world: World) -> None:
    """The last attempt was given the list as one hit: its own trace holds none of the writes."""
    plan = {
        **steps(
            each={"each": {"over": "=[1, 2]", "steps": {"p": put("='p' + string(item)")}}},
            go={"wait": {"signal": "go"}, "after": ["each"]},
            bad={"call": "look", "args": {"fails": True}, "after": ["go"]},
        ),
        "on_failure": "rollback",
    }
    assert (await world.attempt(plan)).status == "waiting"
    world.signal("go", 1)
    with pytest.raises(ValueError, match="no "):
        await world.attempt(plan)
    assert world.standing == {}
    assert execution_of(world).status == "rolled_back"


async def test_a_plan_in_a_plan_says_what_its_failure_does(world: World) -> None:
    bad = {"call": "look", "args": {"fails": True}, "after": ["a"]}
    inner = {**steps(a=put("a"), b=bad), "name": "inner", "on_failure": "rollback"}
    with pytest.raises(ValueError, match="no "):
        await world.attempt(steps(s={"workflow": "inner"}), workflows={"inner": inner})
    assert world.standing == {}
    assert execution_of(world).status == "failed"


async def test_a_race_is_decided_while_another_member_sleeps(world: World) -> None:
    members = {"sleeps": {"wait": {"seconds": 50}}, "quick": put("quick")}
    plan = steps(race={"team": {"mode": "race", "members": members}})
    found = await asyncio.wait_for(world.attempt(plan), 20)
    assert found.output["winner"] == "quick"


async def test_a_plan_in_a_plan_has_its_own_limit(world: World) -> None:
    inner = {"name": "inner", "steps": {"w": {"wait": {"seconds": 50}}}, "time_limit": 0.05}
    with pytest.raises(StepFailed, match=r"s took longer than 0\.05 s"):
        await world.attempt(steps(s={"workflow": "inner"}), workflows={"inner": inner})


async def test_a_race_waits_while_one_may_still_end_well(world: World) -> None:
    members = {"bad": {"call": "look", "args": {"fails": True}}, "w": {"wait": {"signal": "go"}}}
    plan = steps(race={"team": {"mode": "race", "members": members}})
    assert (await world.attempt(plan)).status == "waiting"
    world.signal("go", 3)
    assert (await world.attempt(plan)).output == {"winner": "w", "value": 3}


@pytest.mark.damaged
async def test_a_trace_that_is_damaged_hides_no_other_execution(world: World) -> None:
    await world.attempt(steps(a=put("a")), id="one")
    await world.attempt(steps(a=put("a")), id="two")
    trace = world.store / "logs" / f"{world.runs()[0]}.jsonl"
    head, _, rest = trace.read_bytes().partition(b"\n")
    trace.write_bytes(head + b"\ndamaged\n" + rest)
    found = {each.id: each.status for each in executions(open_store(world.store))}
    assert found == {"one": "halted", "two": "completed"}


async def test_large_inputs_and_outputs_lie_beside_the_trace(world: World) -> None:
    plan = {
        **steps(a=put("a"), b={"value": "=inputs.text", "after": ["a"]}),
        "inputs": {"text": {"type": "string"}},
    }
    for _ in range(2):
        found = await world.attempt(plan, {"text": "x" * 70_000})
        assert (found.status, found.output) == ("completed", "x" * 70_000)
    assert world.standing == {"a": 1}
