"""Executions that start at a chosen step."""

from typing import Any

import pytest
from parts import put, steps
from rollcage_workflow.errors import (
    InputsInvalid,
)
from worlds import World


def starting() -> dict[str, Any]:
    return steps(
        a={"call": "look"},
        n={"value": "=size(a)"},
        b=put("b", after=["a"]),
        c=put("='c' + string(n)", after=["b"]),
        d=put("d", after=["c"]),
        beside=put("beside"),
    )


@pytest.mark.parametrize("row", [True, False], ids=["one after the other", "with branches"])
async def test_an_execution_starts_at_a_chosen_step(world: World, *, row: bool) -> None:
    plan = starting()
    if row:
        del plan["steps"]["beside"]
    plan["steps"]["go"] = {"wait": {"signal": "go"}, "after": ["d"]}
    given = {"a": ["x", "y"], "b": "somebody else's"}
    found = await world.attempt(plan, start="c", given=given)
    expected = {"c2": 1, "d": 1} | ({} if row else {"beside": 1})
    assert (found.status, world.standing, world.reads) == ("waiting", expected, [])
    assert {"a", "b"} == {step.path for step in found.steps if step.state == "given"}
    world.signal("go", 1)
    assert (await world.attempt(plan)).status == "completed"  # it is known where it started
    assert world.standing == expected


async def test_what_is_given_has_to_be_what_comes_before(world: World) -> None:
    plan = starting()
    wrong: list[tuple[str, Any, str]] = [
        ("x", {}, "has no step 'x'"),
        ("c", {"a": [], "d": 1}, "b: c comes after it.*d: c does not come after"),
        ("c", {"a": "text", "b": "b"}, "a: 'text' is not of type 'array'"),
        ("", {"a": []}, "no step to start at"),
    ]
    for start, given, why in wrong:
        with pytest.raises(InputsInvalid, match=why):
            await world.attempt(plan, start=start, given=given)
    assert not world.store.exists()
    await world.attempt(plan)
    with pytest.raises(InputsInvalid, match="started with its first step"):
        await world.attempt(plan, start="c", given={"a": [], "b": "b"})


async def test_other_results_than_before_are_refused(world: World) -> None:
    plan = starting()
    plan["steps"]["go"] = {"wait": {"signal": "go"}, "after": ["d"]}
    await world.attempt(plan, start="c", given={"a": [], "b": "b"})
    with pytest.raises(InputsInvalid, match=r"other inputs before \(result of a\)"):
        await world.attempt(plan, start="c", given={"a": ["x"], "b": "b"})


async def test_a_jump_that_is_given_is_not_taken_again(world: World) -> None:
    review = {
        "value": "=1",
        "after": ["draft"],
        "next": {"to": "draft", "when": "=true", "most": 2},
    }
    plan = steps(
        draft=put("draft"),
        review={**review, "value": "=2"},
        end=put("end", after=["review"]),
    )
    found = await world.attempt(plan, start="end", given={"draft": "given", "review": 7})
    assert (found.status, world.standing) == ("completed", {"end": 1})


async def test_what_was_given_is_not_rolled_back(world: World) -> None:
    bad = {"call": "look", "args": {"fails": True}, "after": ["d"]}
    plan = {**starting(), "on_failure": "rollback"}
    plan["steps"]["bad"] = bad
    with pytest.raises(ValueError, match="no "):
        await world.attempt(plan, start="d", given={"a": [], "b": "b", "c": "c"})
    assert world.standing == {}
    assert {deed.label for deed in world.deeds} == {"d", "beside"}
