"""Pictures of plans and of executions."""

import re

import pytest
from parts import execution_of, put, steps
from rollcage import (
    tool,
)
from rollcage_workflow import Execution, check, run
from rollcage_workflow.outline import outline_of
from rollcage_workflow.picture import picture
from rollcage_workflow.state import StepState
from worlds import World


def test_a_picture_uses_no_word_of_mermaid_as_a_name(world: World) -> None:
    drawn = picture(outline_of(check(steps(end=put("a"), b=put("b", after=["end"])), world.tools)))
    assert '  end_["end: put"]' in drawn
    assert "end_ --> b" in drawn


async def test_a_picture_shows_the_states_of_steps_in_blocks(world: World) -> None:
    sent = {"send": put("=item"), "more": put("=item", after=["send"])}
    fails = {"call": "odd_or", "args": {"what": "=item"}}
    inner = {"deep": {"each": {"over": "=[item]", "steps": {"fails": fails}}}}
    plan = steps(
        mails={"each": {"over": "=['a', 'b']", "steps": sent}},
        rounds={"repeat": {"steps": {"try": put("x")}, "until": "=round == 2", "most": 3},
                "after": ["mails"]},
        both={"team": {"members": {"one": put("1"), "two": put("2")}}, "after": ["rounds"]},
        fail={"each": {"over": "=[1, 2]", "steps": inner}, "after": ["both"]},
        never=put("n", after=["fail"]),
    )  # fmt: skip

    @tool(effect="write", name="odd_or")
    async def odd_or(what: int) -> int:
        raise KeyError(what)

    checked = check(plan, [*world.tools, odd_or])
    assert "class" not in picture(outline_of(checked))
    with pytest.raises(KeyError):
        await run(checked, id="x", store=world.store)
    drawn = picture(outline_of(checked), execution_of(world, "x"))
    shown = dict(re.findall(r"class (\w+) (\w+)\n", drawn))
    completed = ["mails", "mails__send", "mails__more", "rounds", "rounds__try"]
    completed += ["both", "both__one", "both__two"]
    failed = ["fail", "fail__deep", "fail__deep__fails"]
    assert shown == dict.fromkeys(completed, "completed") | dict.fromkeys(failed, "failed")


def test_of_several_states_the_one_that_tells_most_is_shown(world: World) -> None:
    sent = {"send": put("=item")}
    plan = steps(
        mails={"each": {"over": "=['a', 'b', 'c']", "steps": sent}},
        rounds={"repeat": {"steps": {"try": put("x")}, "until": "=round == 2", "most": 3}},
    )
    checked = check(plan, world.tools)

    def shown(**states: str) -> list[str]:
        found = tuple(StepState(path, state, "put", None) for path, state in states.items())
        execution = Execution("x", _steps=lambda: found)
        return re.findall(r"class \w+__\w+ (\w+)\n", picture(outline_of(checked), execution))

    def mails(*states: str) -> list[str]:
        return shown(**{f"mails/{n}/send": state for n, state in enumerate(states)})

    assert mails("completed", "running") == ["running"]
    assert mails("completed", "failed", "running") == ["failed"]
    assert mails("unknown", "failed", "undone") == ["unknown"]
    assert mails("undone", "completed") == ["completed"]
    assert mails("undone", "undone", "undone") == ["undone"]
    assert shown(**{"rounds/1/try": "completed", "rounds/2/try": "running"}) == ["running"]
    assert shown(**{"rounds/1/try": "failed", "rounds/2/try": "completed"}) == ["completed"]
