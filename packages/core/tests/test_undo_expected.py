"""An undo that does what somebody has seen of it, and nothing else."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rollcage import UndoPlan, compensate, tool
from rollcage.errors import PlanChanged
from rollcage.session.finished import aundo_run, plan_undo, undo_run
from rollcage.session.session import Session
from rollcage.store import JsonlStore

Events = Callable[[str], list[dict[str, Any]]]
Python = Callable[..., Any]
HERE = Path(__file__).parent


def texts(disk: Path) -> dict[str, str]:
    return {p.name: p.read_text() for p in disk.iterdir() if p.name != "effects"}


def job(store: JsonlStore, files: Any, disk: Path, *names: str) -> str:
    with Session("job", store=store) as session:
        for name in names:
            files.put_file(path=str(disk / name), text=name)
    return session.run_id


def test_what_was_seen_is_done_by_plan_by_digest_and_by_a_plan_that_was_json(
    store: JsonlStore, files: Any, disk: Path
) -> None:
    def expecting(give: Callable[[UndoPlan], UndoPlan | str]) -> None:
        run = job(store, files, disk, "a", "b")
        plan = plan_undo(store, run)
        assert undo_run(store, run, expected=give(plan)).complete
        assert texts(disk) == {}

    def through_json(plan: UndoPlan) -> UndoPlan:
        again = UndoPlan.from_data(json.loads(json.dumps(plan.as_data())))
        assert again.digest == plan.digest
        return again

    for give in (lambda plan: plan, lambda plan: plan.digest, through_json):
        expecting(give)


@pytest.mark.parametrize("by_digest", [False, True])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_state_that_changed_since_is_refused_and_nothing_is_undone(
    store: JsonlStore, files: Any, disk: Path, events: Events, *, by_digest: bool, is_async: bool
) -> None:
    run = job(store, files, disk, "a", "b")
    seen = plan_undo(store, run)
    (disk / "a").unlink()  # nothing is left to undo of it: without `expected`, b would be undone
    before = events(run)
    expected = seen.digest if by_digest else seen
    with pytest.raises(PlanChanged) as refused:
        if is_async:
            asyncio.run(aundo_run(store, run, expected=expected))
        else:
            undo_run(store, run, expected=expected)
    said = str(refused.value)
    assert f"rollcage undo {run} --plan" in said
    assert "Nothing was undone:" in said
    assert by_digest or "step 1 (put_file) was reversible and is nothing now" in said
    assert texts(disk) == {"b": "b"}
    assert [each for each in events(run)[len(before) :] if each["event"].startswith("undo.")] == []
    assert undo_run(store, run, expected=plan_undo(store, run)).complete


GOES_ON = """
import os, sys
sys.path.insert(0, sys.argv[1])
import file_tools
from rollcage.session.session import Session

with Session("job", store="store") as session:
    for name in sys.argv[2]:
        file_tools.put_file(path=f"disk/{name}", text=name)
    print(session.run_id, flush=True)
    if len(sys.argv) > 3:
        os._exit(9)
"""


def test_a_run_that_another_process_went_on_with_is_not_undone_as_it_was_seen(
    python: Python, store: JsonlStore, files: Any, disk: Path
) -> None:
    """Part of it is undone meanwhile, and a second process goes on, and does more."""
    crashed = python(GOES_ON, str(HERE), "ab", "crash")
    run = crashed.stdout.strip()
    seen = plan_undo(store, run)
    assert undo_run(store, run, to=1).complete
    resumed = python(GOES_ON, str(HERE), "abc")
    assert resumed.returncode == 0, resumed.stderr
    newer = resumed.stdout.strip()
    with pytest.raises(PlanChanged, match=r"the expected plan is of another undo") as refused:
        undo_run(store, newer, expected=seen)
    assert "would be undone now, too" in str(refused.value)
    assert sorted(texts(disk)) == ["a", "b", "c"]


def test_the_rest_of_what_was_seen_is_done_and_what_an_undo_did_before_is_said(
    store: JsonlStore, disk: Path
) -> None:
    """An undo is cut off half-way: it goes on as confirmed, or says what stays undone."""
    shelf = {"cut": ""}

    @tool(effect="write", idempotent=True)
    def clear(key: str) -> None:
        if key == shelf["cut"]:
            raise KeyboardInterrupt
        shelf.pop(key, None)

    @tool(effect="write", undo=lambda args: [compensate(clear, key=args["key"])])
    def put(key: str) -> None:
        shelf[key] = key

    with Session("job", store=store) as session:
        for key in "abc":
            put(key)
    run, tools = session.run_id, [clear, put]
    seen = plan_undo(store, run, tools=tools)
    shelf["cut"] = "b"
    with pytest.raises(KeyboardInterrupt):
        undo_run(store, run, tools=tools, expected=seen)
    assert sorted(shelf) == ["a", "b", "cut"]
    other = plan_undo(store, run, tools=tools)
    with pytest.raises(PlanChanged) as refused:
        undo_run(store, run, tools=tools, to=1, expected=seen)
    assert "An earlier undo of steps 3, 2 had begun, and its effects stay" in str(refused.value)
    assert "nothing more was undone" in str(refused.value)
    with pytest.raises(PlanChanged, match="Nothing more was undone than before"):
        undo_run(store, run, tools=tools, expected=seen.digest)
    assert sorted(shelf) == ["a", "b", "cut"]
    shelf["cut"] = ""
    report = undo_run(store, run, tools=tools, expected=seen)
    assert sorted(shelf) == ["cut"]
    assert [step.step for step in report.steps] == [2, 1]
    assert [step.step for step in other.steps] == [2, 1]
