"""What a recorded step says of itself: a table over all effects and all ways to end."""

import itertools
from typing import Any, Final

import orjson
import pytest
from rollcage.trace.run import KEY, Run, Step

EFFECTS: Final = ("write", "read", "pure", "model", "scope", "branch")
ENDS: Final = ("waits", "begun", "ok", "null", "error", "unclear", "found out")
TABLE: Final = list(itertools.product(EFFECTS, ENDS))


def line(n: int = 1, **more: Any) -> dict[str, Any]:
    return {
        "event": "step", "step": n, "name": "call", "key": "00", "effect": "write", "branch": "",
        "start": 0, "pos": n - 1, "turn": n, "slot": 0, "fingerprint": f"{n:064x}", "time": n,
        "args": {}, **more,
    }  # fmt: skip


def outcome(n: int, ended: dict[str, Any] | None, **more: Any) -> dict[str, Any]:
    return {"event": "outcome", "step": n, "outcome": ended, **more}


def run_of(*lines: dict[str, Any]) -> Run:
    run = Run()
    for each in ({"event": "run", "run": "r"}, {"event": "attempt", "id": "a"}, *lines):
        run.apply(each)
    return run


def step_of(effect: str, ends: str, **more: Any) -> Step:
    """Return a step of this effect that ended so."""
    begun = line(effect=effect, **more) | ({"waits": True} if ends == "waits" else {})
    error: dict[str, Any] = {"status": "error", "error": {"type": "ValueError"}}
    ended: dict[str, list[dict[str, Any]]] = {
        "ok": [outcome(1, {"status": "ok", "value": 1})],
        "null": [outcome(1, {"status": "ok", "value": None})],
        "error": [outcome(1, error)],
        "unclear": [outcome(1, {**error, "unclear": True})],
        "found out": [
            outcome(1, {**error, "unclear": True}),
            outcome(1, {"status": "ok", "value": 2}, acted=True),
        ],
    }
    return run_of(begun, *ended.get(ends, ())).steps[1]


@pytest.mark.parametrize(("effect", "ends"), TABLE)
def test_how_it_ended(effect: str, ends: str) -> None:
    step = step_of(effect, ends)
    known = {"waits": "waiting", "begun": "unknown", "ok": "ok", "null": "ok"}
    assert step.status == known.get(ends, "error")
    assert step.unclear == (ends == "unclear")
    assert (step.outcome is None) == (ends in ("waits", "begun"))
    assert (step.happened is not None) == (ends == "found out")
    if step.happened is not None:
        assert orjson.loads(step.happened) == {"status": "ok", "value": 2}


@pytest.mark.parametrize(("effect", "ends"), TABLE)
def test_whether_it_advances_the_world(effect: str, ends: str) -> None:
    expected = effect in ("write", "scope")
    if effect == "branch":  # one that has joined with nothing is like a read
        expected = ends in ("waits", "begun", "ok")
    if ends not in ("error", "unclear", "found out") or effect != "branch":
        assert step_of(effect, ends).changes == expected


@pytest.mark.parametrize(("effect", "ends"), TABLE)
def test_whether_its_effect_is_in_doubt(effect: str, ends: str) -> None:
    step = step_of(effect, ends)
    assert step.in_doubt == (ends == "unclear" or (effect == "write" and ends == "begun"))
    assert step.failed_cleanly == (ends == "error")


@pytest.mark.parametrize(("effect", "ends"), TABLE)
def test_whether_it_changed_the_world_on_behalf_of_this_run(effect: str, ends: str) -> None:
    assert step_of(effect, ends).acts == (effect == "write" and ends != "waits")


@pytest.mark.parametrize(
    ("more", "acts"),
    [
        ({}, True),
        ({"answered": True}, False),
        ({"simulated": True}, False),
        ({"once": ["mine", "key", "claim"]}, True),
        ({"once": ["r-2", 1]}, False),
        ({"branch": "-7"}, False),
    ],
)
def test_a_write_that_a_person_a_fork_or_another_run_answered_does_not_act(
    more: dict[str, Any], acts: bool
) -> None:
    assert step_of("write", "ok", **more).acts == acts


def test_what_compensates_is_in_the_branch_of_an_undo_or_in_a_body_there() -> None:
    run = run_of(
        line(1),
        line(2, branch="-1"),
        line(3, branch=f"#{2:064x}", pos=0),
        line(4, branch=f"#{3:064x}", pos=0),
        line(5, branch=f"#{1:064x}", pos=0),
    )
    assert [n for n, step in run.steps.items() if step.compensates] == [2, 3, 4]
    branches = ["", "-1", *(f"#{n:064x}" for n in range(1, 6))]
    assert [each for each in branches if run.is_undoing(each)] == [
        "-1",
        *(f"#{n:064x}" for n in (2, 3, 4)),
    ]


@pytest.mark.parametrize("by", [{}, {"by": "ann"}])
@pytest.mark.parametrize("ended", [None, {"status": "ok", "value": 1}])
def test_who_said_that_it_happened(by: dict[str, str], ended: dict[str, Any] | None) -> None:
    step = run_of(line(), outcome(1, ended, **by)).steps[1]
    assert (step.undo or {}).get("told", False) == bool(by and ended)


def test_a_line_has_marks_for_what_core_does_not_know() -> None:
    plain, marked, ended = (
        run_of(line()).steps[1],
        run_of(line(other="x")).steps[1],
        run_of(line(other="x"), outcome(1, {"status": "ok", "value": 1}, more=2)).steps[1],
    )
    assert plain.marks is None
    assert marked.marks == {"other": "x"}
    assert ended.marks == {"other": "x", "more": 2}


def test_a_step_is_named_by_its_epoch_and_by_what_it_repeats() -> None:
    run = run_of(line(1), line(2), line(3, epoch=1), line(4, retries=2))
    keys = [run.idempotency_key(run.steps[n]) for n in (1, 2, 3, 4)]
    assert len({*keys}) == 3
    assert keys[3] == keys[1]


@pytest.mark.parametrize("undone", [[1], [2], [1, 2], [1, 2, 3]])
def test_an_undo_counts_in_the_branches_of_what_it_took_back(undone: list[int]) -> None:
    inner = f"#{1:064x}"
    run = run_of(
        line(1),
        line(2, branch=inner, pos=0),
        line(3),
        {"event": "undone", "steps": undone},
    )
    here, there = any(n in undone for n in (1, 3)), 2 in undone
    assert run.epoch("") == here
    assert run.epoch(inner) == here + there
    assert [n for n, step in run.steps.items() if step.gone == "undone"] == undone
    assert {step.n for step in run.held()} == {1, 2, 3} - {*undone}


@pytest.mark.parametrize("left", [[], [[1, 1]], [[1, 2]], [[2, 3]]])
def test_what_is_left_behind_answers_only_its_siblings_and_reads(left: list[list[int]]) -> None:
    run = run_of(
        line(1, effect="read", pos=0),
        line(2, pos=0, turn=1),
        line(3, pos=1),
        line(4, pos=1, left=left),
    )
    gone = {n for first, last in left for n in range(first, last + 1)}
    assert {n for n, step in run.steps.items() if step.gone == "left"} == gone
    assert {n for n in gone if run.steps[n].taken} == gone & {2}
    assert {step.n for step in run.held()} == {1, 2, 3, 4}
    run.apply({"event": "refused", "replayed": left})
    assert not any(step.gone for step in run.steps.values())


@pytest.mark.parametrize("ends", ["ok", "flawed", "unclear", "error", "begun"])
def test_a_fork_that_sets_an_outcome_sets_all_of_it(ends: str) -> None:
    flawed = [outcome(1, {"status": "ok", "value": 1, "lossy": True})]
    error: dict[str, Any] = {"status": "error", "error": {"type": "ValueError"}}
    lines = {
        "ok": [outcome(1, {"status": "ok", "value": 1})],
        "flawed": flawed,
        "unclear": [outcome(1, {**error, "unclear": True})],
        "error": [outcome(1, error)],
        "begun": [],
    }[ends]
    run = run_of(
        line(1, effect="scope"),
        line(2, branch=f"#{1:064x}", pos=0),
        *(each | {"step": 2} for each in lines),
        outcome(1, {"status": "ok", "value": 3}),
        {"event": "forked", "run": "fork", "from": "r"},
        {"event": "changed", "step": 2, "outcome": {"status": "ok", "value": 2}},
    )
    around, step = run.steps[1], run.steps[2]
    assert step.result == {"status": "ok", "value": 2}
    assert (step.status, step.flawed, step.unclear, step.happened) == ("ok", False, False, None)
    assert run.unclear_step(step.key) is None
    assert run.fixed == {2}
    assert (around.status, around.outcome) == ("unknown", None)
    assert (run.id, run.source, run.home(step)) == ("fork", "r", "r")


def test_a_fork_of_a_fork_knows_the_home_of_each_step() -> None:
    run = run_of(
        line(1),
        {"event": "forked", "run": "second", "from": "r"},
        {"event": "attempt", "id": "b"},
        line(2),
        {"event": "forked", "run": "third", "from": "second"},
        {"event": "attempt", "id": "c"},
        line(3),
    )
    assert [run.home(step) for step in run.steps.values()] == ["r", "second", "third"]
    assert (run.id, run.source, run.attempts) == ("third", "second", 1)
    assert [step.borrowed for step in run.steps.values()] == [True, True, False]


@pytest.mark.parametrize("known", [{}, {"memory": ["a"], "colour": "red"}])
def test_a_step_that_moves_in_a_memory_keeps_its_other_marks(known: dict[str, Any]) -> None:
    moved = {"event": "moved", "step": 1, "memory": ["b"]}
    assert run_of(line(**known), moved).steps[1].marks == {**known, "memory": ["b"]}


@pytest.mark.parametrize("known", [{}, {"colour": "red"}])
def test_a_step_made_again_keeps_its_given_key(known: dict[str, Any]) -> None:
    run = run_of(line(1, **{KEY: "theirs"}), line(2, again=1, **known))
    assert run.steps[2].marks == {**known, KEY: "theirs"}
    assert run.idempotency_key(run.steps[2]) == "theirs"
