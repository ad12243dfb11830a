"""The outline of a plan in the store, and where its steps stand in a drawing."""

import asyncio
import random
import re
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rollcage import open_store
from rollcage.trace.store import drop
from rollcage_workflow import check, execution, run
from rollcage_workflow.commands import workflow
from rollcage_workflow.errors import WorkflowError
from rollcage_workflow.layout import Layout, NodePlace, layout_of
from rollcage_workflow.outline import Box, Outline, keep_outline, kept_outline, outline_of
from rollcage_workflow.picture import picture
from rollcage_workflow.states import shown_in
from typer.testing import CliRunner
from worlds import World

SECRET = "what-is-in-an-argument"


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "store")


def steps(**given: Any) -> dict[str, Any]:
    return {"name": "plan", "steps": given}


def put(what: str, **more: Any) -> dict[str, Any]:
    return {"call": "put", "args": {"what": what}, **more}


def drawn(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(workflow, ["picture", *arguments])
    said = done.exception if not isinstance(done.exception, SystemExit) else None
    return done.exit_code, done.stdout if said is None else str(said)


PLAN = steps(
    first=put(SECRET),
    mails={"each": {"over": "=['a', 'b']", "steps": {"send": put("=item")}}, "after": ["first"]},
    go={
        "wait": {"signal": "go", "accepts": {"type": "string", "title": SECRET}},
        "after": ["mails"],
    },
    more={"value": {"kept": SECRET}, "after": ["mails"]},
    end=put("z", when="=go != null", after=["go"]),
)


async def test_an_execution_is_drawn_from_its_store_alone(world: World) -> None:
    checked = check(PLAN, world.tools)
    found = await run(checked, id="x", store=world.store)
    drawing = picture(outline_of(checked), found)
    assert drawn("--id", "x", "--store", str(world.store)) == (0, drawing)
    assert "class mails completed" in drawing
    kept = open_store(world.store).get("plans", checked.plan.digest)
    assert kept is not None
    assert SECRET not in kept.decode()  # no argument, no value, no schema


async def test_one_that_began_before_outlines_were_kept_says_so(world: World) -> None:
    checked = check(PLAN, world.tools)
    await run(checked, id="x", store=world.store)
    store = open_store(world.store)
    drop(store, "plans", checked.plan.digest)
    code, said = drawn("--id", "x", "--store", str(world.store))
    assert code != 0
    assert "rollcage workflow picture PLAN --id x" in said
    assert "name the file of a plan" in drawn()[1]
    await run(checked, id="x", store=world.store)  # the next attempt keeps it
    assert kept_outline(store, checked.plan.digest) == outline_of(checked)


async def test_a_plan_that_is_too_large_to_be_drawn_runs_and_keeps_none(world: World) -> None:
    plan = {"each": {"over": "=[]", "steps": {f"s{n}": put("x") for n in range(5_001)}}}
    checked = check(steps(many=plan), world.tools)
    found = await run(checked, id="x", store=world.store)
    assert found.status == "completed"
    assert kept_outline(open_store(world.store), found.digest) is None
    code, said = drawn("--id", "x", "--store", str(world.store))
    assert code != 0
    assert "more than 5,000 steps" in said
    assert outline_of(checked).count == 5_002


async def test_attempts_at_once_keep_it_once(world: World) -> None:
    checked = check(PLAN, world.tools)
    await asyncio.gather(*(run(checked, id=f"{n}", store=world.store) for n in range(4)))
    assert open_store(world.store).keys("plans") == [checked.plan.digest]


async def test_states_are_shown_of_steps_of_which_nothing_is_recorded(world: World) -> None:
    checked = check(PLAN, world.tools)
    outline = outline_of(checked)
    found = await run(checked, id="x", store=world.store)
    assert shown_in(outline, found) == {
        ("first",): "completed", ("mails",): "completed", ("mails", "send"): "completed",
        ("go",): "waiting", ("more",): "not_started", ("end",): "not_started",
    }  # fmt: skip
    own = steps(
        nap={"wait": {"seconds": 500}},
        after=put("b", after=["nap"]),
        maybe={"wait": {"signal": "never"}, "when": "=inputs.no"},
        also={"wait": {"signal": "also"}},
    )
    own["inputs"] = {"no": {"type": "boolean", "default": False}}
    checked = check(own, world.tools)
    found = await run(checked, id="y", store=world.store)
    shown = shown_in(outline_of(checked), found)
    waits = {("nap",): "waiting", ("also",): "waiting"}
    assert shown == waits | {("after",): "not_started", ("maybe",): "not_started"}


async def test_a_completed_one_shows_what_was_skipped(world: World) -> None:
    plan = steps(
        a=put("a"),
        b=put("b", when="=a == 'x'"),
        inside={"each": {"over": "=['a']", "steps": {"c": put("c")}}, "when": "=a == 'x'"},
        v={"value": "=a"},
    )
    checked = check(plan, world.tools)
    found = await run(checked, id="x", store=world.store)
    assert shown_in(outline_of(checked), found) == {
        ("a",): "completed", ("b",): "skipped", ("inside",): "skipped",
        ("inside", "c"): "not_started", ("v",): "computed",
    }  # fmt: skip


async def test_a_paused_and_a_cut_off_one_are_told_apart(world: World) -> None:
    inner = {
        "one": {"agent": "agent", "args": {"task": "=item"}},
        "two": {"wait": {"signal": "go"}, "after": ["one"]},
    }
    plan = steps(mails={"each": {"over": "=['a', 'b']", "steps": inner}})
    checked = check(plan, world.tools)
    found = await run(checked, id="x", store=world.store)
    shown = shown_in(outline_of(checked), found)
    assert shown["mails",] == shown["mails", "two"] == "waiting"
    trace = world.store / "logs" / f"{found.run}.jsonl"
    lines = trace.read_bytes().splitlines(keepends=True)
    at = next(n for n, line in enumerate(lines) if b'"name":"agent"' in line)
    now = world.back(found.run, at + 1, world.store.parent / "cut", random.Random(1))  # noqa: S311 - for a test
    cut = execution(open_store(now.store), "x")
    assert cut.status == "interrupted"
    assert shown_in(outline_of(checked), cut)["mails", "one"] == "cut_off"


DEEP = 100_000
BAD = {
    "no JSON": b"<script>",
    "a list": b"[]",
    "another format": orjson.dumps({"format": "x", "name": "n", "boxes": []}),
    "a step that is there twice": orjson.dumps(
        {"name": "n", "boxes": 2 * [{"name": "a", "kind": "call"}]}
    ),
    "a circle": orjson.dumps(
        {"name": "n", "boxes": [{"name": "a", "kind": "call", "before": ["a"]}]}
    ),
    "what is not there": orjson.dumps(
        {"name": "n", "boxes": [{"name": "a", "kind": "call", "before": ["b"]}]}
    ),
    "too deep": b'{"name":"n","boxes":'
    + DEEP * b'[{"name":"a","kind":"each","inner":'
    + b"[]"
    + DEEP * b"}]"
    + b"}",
    "too many": orjson.dumps(
        {"name": "n", "boxes": [{"name": f"s{n}", "kind": "call"} for n in range(5001)]}
    ),
    "too long": orjson.dumps({"name": "n" * 5_000_000, "boxes": []}),
    "more": orjson.dumps({"name": "n", "boxes": [{"name": "a", "kind": "call", "run": "rm"}]}),
    "no steps": orjson.dumps({"name": "n", "boxes": []}),
}


@pytest.mark.parametrize("what", BAD)
def test_what_is_no_outline_is_refused(world: World, what: str) -> None:
    store = open_store(world.store)
    store.swap("plans", "a" * 64, None, BAD[what])
    with pytest.raises(WorkflowError, match="the stored outline of the plan"):
        kept_outline(store, "a" * 64)


@pytest.mark.parametrize("digest", ["", "../../key", "b" * 64])
def test_of_a_digest_that_names_none_there_is_none(world: World, digest: str) -> None:
    assert kept_outline(open_store(world.store), digest) is None


def test_a_forged_outline_adds_no_line_to_a_flowchart() -> None:
    forged = 'x\n  click y href "javascript:alert(1)"'
    box = Box(name=forged, kind=forged, says=forged, when=forged)
    text = picture(Outline(name=forged, boxes=(box,)))
    assert len(text.splitlines()) == 2
    assert not re.search(r'[<>]|href "', text)


@st.composite
def outlines(draw: st.DrawFn, deep: int = 2) -> tuple[Box, ...]:
    count = draw(st.integers(1, 14))
    boxes: list[Box] = []
    for number in range(count):
        names = [box.name for box in boxes]
        before = draw(st.lists(st.sampled_from(names), max_size=4)) if names else []
        inner = draw(outlines(deep - 1)) if deep and draw(st.integers(0, 4)) == 0 else ()
        boxes.append(Box(name=f"s{number}", kind="call", before=tuple(before), inner=inner))
    return tuple(boxes)


def apart(one: NodePlace, two: NodePlace) -> bool:
    beside = one.x + one.width <= two.x or two.x + two.width <= one.x
    return beside or one.y + one.height <= two.y or two.y + two.height <= one.y


def check_layout(layout: Layout, boxes: tuple[Box, ...]) -> None:
    """Steps of a block overlap no other, stand within what is around them and below their needs."""
    places = {place.path: place for place in layout.places}
    for path, place in places.items():
        around = places.get(path[:-1])
        if around is None:
            assert min(place.x, place.y) >= 0
            assert place.x + place.width <= layout.width
            assert place.y + place.height <= layout.height
        else:
            assert around.x < place.x
            assert place.x + place.width < around.x + around.width
            assert around.y < place.y
            assert place.y + place.height < around.y + around.height
        for name in place.box.before:
            needed = places[*path[:-1], name]
            assert needed.y + needed.height < place.y
        same = [e for at, e in places.items() if at[:-1] == path[:-1] and at != path]
        assert all(apart(place, each) for each in same)


@given(outlines())
def test_steps_stand_apart_below_what_they_need_and_within_their_blocks(
    boxes: tuple[Box, ...],
) -> None:
    check_layout(layout_of(Outline(name="x", boxes=boxes)), boxes)


def test_four_hundred_steps_stay_narrow_enough_to_read() -> None:
    first, names = Box(name="first", kind="call"), [f"s{n}" for n in range(400)]
    wide = [Box(name=name, kind="call", before=("first",)) for name in names]
    boxes = (first, *wide, Box(name="last", kind="call", before=tuple(names)))
    layout = layout_of(Outline(name="x", boxes=boxes))
    assert layout.width < 2000
    assert layout.height < 10_000
    assert len(layout.lines) < 2000


def test_it_is_kept_once_and_an_older_one_stays(world: World) -> None:
    store, checked = open_store(world.store), check(PLAN, world.tools)
    store.swap("plans", checked.plan.digest, None, b"{}")
    keep_outline(store, checked)
    assert store.get("plans", checked.plan.digest) == b"{}"


def test_a_jump_ahead_is_drawn_and_one_that_was_kept_earlier_is_read(world: World) -> None:
    plan = steps(
        first={"call": "look", "next": {"to": "end", "when": "=size(last) > 1"}},
        over=put("over", after=["first"]),
        end=put("end", after=["over"]),
    )
    outline = outline_of(check(plan, world.tools))
    assert '-.->|"size(last) #gt; 1"| end_' in picture(outline, None)
    assert any(line.back for line in layout_of(outline).lines)
    older = {"name": "a", "kind": "call", "back": {"to": "a", "when": "=true", "most": 2}}
    read = Outline.model_validate({"name": "plan", "boxes": [older]})
    assert str(read.boxes[0].jump) == "true, at most 2 times"
