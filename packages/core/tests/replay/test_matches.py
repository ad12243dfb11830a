"""A stage is told how each call is matched: answered, new, or made again at the place of a step."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
from cuts import cut_log
from rollcage import (
    Approval,
    ApprovalRequired,
    Session,
    StepView,
    UnknownOutcome,
    Verdict,
    open_store,
    resolve_step,
    tool,
)
from rollcage.calls.stage import Stage, Work
from rollcage.replay.call import Call, Match

fails: list[type[Exception]] = []


@pytest.fixture(autouse=True)
def _nothing_fails() -> None:
    fails.clear()


def body(text: str) -> str:
    if fails:
        raise fails.pop()("as told")
    return text


write = tool(effect="write", name="matches.write", raises=(ValueError,))(body)
read = tool(effect="read", name="matches.read")(body)
pure = tool(effect="pure", name="matches.pure")(body)


class Watch(Stage):
    """Notes how calls are matched."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []

    def prepare(self, call: Call, match: Match) -> Work | None:
        self.seen.append((match.kind, 0 if match.step is None else match.step.n))
        return None


def matched(store: Path, *calls: Any, **how: Any) -> list[tuple[str, int]]:
    """Make calls in an attempt; return the kind of each match and the step."""
    watch = Watch()
    with (
        contextlib.suppress(ApprovalRequired, UnknownOutcome, ValueError, TimeoutError),
        Session("job", store=store, stages=[watch], **how),
    ):
        for number, call in enumerate(calls):
            call(text=str(number))
        raise ValueError  # the run goes on in the next attempt
    return watch.seen


def ask(_: StepView) -> Verdict:
    return Verdict.ask("sure?")


def newest(store: Path) -> str:
    return open_store(store).runs()[0].run


@pytest.mark.parametrize("each", [write, read, pure])
def test_one_that_ended_well_answers(tmp_path: Path, each: Any) -> None:
    assert matched(tmp_path, each, each) == [("new", 0), ("new", 0)]
    assert matched(tmp_path, each, each, each) == [("hit", 1), ("hit", 2), ("new", 0)]


@pytest.mark.parametrize("each", [write, read])
def test_a_failure_at_the_end_is_made_again(tmp_path: Path, each: Any) -> None:
    fails.append(ValueError)
    assert matched(tmp_path, each) == [("new", 0)]
    assert matched(tmp_path, each) == [("again", 1)]
    assert matched(tmp_path, each) == [("hit", 2)]


def test_a_write_of_which_nobody_knows_is_made_again_or_answers(tmp_path: Path) -> None:
    for happened, expected in ((False, ("again", 1)), (True, ("hit", 1))):
        store = tmp_path / str(happened)
        fails.append(TimeoutError)
        assert matched(store, write) == [("new", 0)]
        assert matched(store, write)[0] == ("again", 1)
        result: dict[str, Any] = {"result": "0"} if happened else {}
        resolve_step(store, newest(store), 1, happened=happened, **result)
        assert matched(store, write) == [expected]


@pytest.mark.damaged
@pytest.mark.parametrize("each", [write, read])
def test_one_that_was_cut_off(tmp_path: Path, each: Any) -> None:
    matched(tmp_path, each)
    (log,) = (tmp_path / "logs").glob("*.jsonl")
    lines = log.read_bytes().splitlines()
    cut_log(log, 1 + next(n for n, line in enumerate(lines) if b'"event":"step"' in line))
    assert matched(tmp_path, each)[0] == ("again" if each is write else "hit", 1)


@pytest.mark.parametrize("each", [write, read, pure])
def test_one_that_waits_for_an_approval_is_made_at_its_place(tmp_path: Path, each: Any) -> None:
    assert matched(tmp_path, each, gate=[ask]) == [("new", 0)]
    approve = {"gate": [ask], "approver": lambda request: Approval(True, by="ann", of=request.id)}
    seen = matched(tmp_path, each, **approve)
    assert {*seen} <= {("new", 0), ("again", 1)}
    assert seen[-1] == ("again", 1)
    assert matched(tmp_path, each, **approve) == [("hit", 2)]
