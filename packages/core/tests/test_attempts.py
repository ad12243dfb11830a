"""A framework starts work over within one session: its calls are given back, and made once."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from node_memory import Memory
from rollcage import Diverged, StepView, Verdict, tool
from rollcage.adapter import WorkAttempt
from rollcage.session.session import Session

PUT: list[str] = []
PEEKS: list[int] = []
BROKEN: set[str] = set()


@pytest.fixture(autouse=True)
def _nothing_put() -> None:
    PUT.clear()
    PEEKS.clear()
    BROKEN.clear()


@tool(name="attempts_put", raises=[ValueError])
def put(text: str) -> str:
    """Put."""
    if text in BROKEN:
        raise ValueError(text)
    PUT.append(text)
    return f"{text}, number {len(PUT)}"


@tool(name="attempts_peek", effect="read")
def peek() -> int:
    """Look."""
    PEEKS.append(0)
    return len(PEEKS)


@tool(name="attempts_both", effect="scope")
def both(fails: bool) -> str:
    """Put twice, and maybe fail."""
    said = put("one") + put("two")
    if fails and PUT.count("two") == len(PEEKS) + 1:
        PEEKS.append(0)
        raise ValueError("after both")
    return said


class Loop(Memory):
    """A framework whose works are begun again and again."""

    def __init__(self) -> None:
        super().__init__()
        self.around: list[WorkAttempt] = []

    def attempts(self) -> Sequence[WorkAttempt]:
        return self.around

    def at_work(self, *works: str, by: object, number: int = 1) -> None:
        """Whatever is called next stands in these works; `number`: of the outermost."""
        names = [each.partition(":")[0] for each in works]
        self.around = [
            WorkAttempt(work, tuple(names[: i + 1]), by, number if i == 0 else 1)
            for i, work in enumerate(works)
        ]


INVOKED, RESUMED = object(), object()


def opened(root: Path, **settings: Any) -> tuple[Session, Loop]:
    session, loop = Session("attempts", store=root, replay="off", **settings), Loop()
    session.follow(loop)
    return session, loop


@pytest.mark.parametrize(("by", "number"), [(INVOKED, 2), (RESUMED, 1)], ids=["retry", "resume"])
def test_calls_are_given_back_in_the_next_attempt(tmp_path: Path, by: object, number: int) -> None:
    session, loop = opened(tmp_path)
    with session:
        loop.at_work("n:1", by=INVOKED)
        first = [put("a"), peek(), put("a")]
        loop.at_work("n:1", by=by, number=number)
        assert [put("a"), peek(), put("a"), put("b")] == [*first, "b, number 3"]
        loop.at_work("n:2", by=by)  # another node, or another round of it
        assert put("a") == "a, number 4"
    assert session.stats.calls == 5


def test_a_retry_starts_over_what_is_inside_and_a_resume_does_not(tmp_path: Path) -> None:
    session, loop = opened(tmp_path)
    with session:
        loop.at_work("n:1", "in:1", by=INVOKED)
        put("a")
        loop.at_work("n:1", "in:2", by=INVOKED, number=2)
        assert put("a") == "a, number 1"
        loop.at_work("n:1", "in:3", by=RESUMED)  # of the inner graph, what is behind that
        assert put("a") == "a, number 2"


def test_a_failure_at_the_end_is_made_again_and_one_before_is_not(tmp_path: Path) -> None:
    session, loop = opened(tmp_path)
    BROKEN.update(["x", "y"])
    with session:
        loop.at_work("n:1", by=INVOKED)
        with pytest.raises(ValueError, match="x"):
            put("x")
        put("a")
        with pytest.raises(ValueError, match="y"):
            put("y")
        BROKEN.clear()
        loop.at_work("n:1", by=INVOKED, number=2)
        with pytest.raises(ValueError, match="x"):
            put("x")
        assert (put("a"), put("y")) == ("a, number 1", "y, number 2")


def test_calls_of_a_body_that_is_run_again_are_not_made_again(tmp_path: Path) -> None:
    session, loop = opened(tmp_path)
    with session:
        loop.at_work("n:1", by=INVOKED)
        with pytest.raises(ValueError, match="after both"):
            both(fails=True)
        loop.at_work("n:1", by=INVOKED, number=2)
        assert both(fails=True) == "one, number 1two, number 2"
    assert PUT == ["one", "two"]


def test_branches_are_told_apart_by_their_names(tmp_path: Path) -> None:
    session, loop = opened(tmp_path)
    with session:
        for number in (1, 2):
            loop.at_work("n:1", by=INVOKED, number=number)
            for name in ("left", "right"):
                with session.branch(name):
                    put("same")
    assert PUT == ["same"] * 2


@pytest.mark.parametrize("on_divergence", ["halt", "undo", "warn"])
def test_another_write_leaves_effects_behind(tmp_path: Path, on_divergence: Any) -> None:
    session, loop = opened(tmp_path, on_divergence=on_divergence)

    def play() -> None:
        with session:
            loop.at_work("n:1", by=INVOKED)
            put("a")
            loop.at_work("n:1", by=INVOKED, number=2)
            peek()  # whatever changes nothing may be new
            put("b")

    if on_divergence == "warn":
        play()
        assert PUT == ["a", "b"]
        return
    with pytest.raises(Diverged, match=r"n was started over.*'b'.*step 1 \(attempts_put\)"):
        play()
    assert PUT == ["a"]


def test_what_was_asked_for_at_once_may_come_in_any_order(tmp_path: Path) -> None:
    """One of two that ran at once failed: asked for first, it leaves nothing behind."""
    session, loop = opened(tmp_path)
    BROKEN.add("b")
    with session:
        loop.at_work("n:1", by=INVOKED)
        put("a")
        with pytest.raises(ValueError, match="b"):
            put("b")
        BROKEN.clear()
        loop.at_work("n:1", by=INVOKED, number=2)
        assert (put("b"), put("a")) == ("b, number 2", "a, number 1")


def test_many_threads_make_their_calls_once(tmp_path: Path) -> None:
    session, loop = opened(tmp_path)
    with session:
        for number in (1, 2, 3):
            loop.at_work("n:1", by=INVOKED, number=number)
            threads = [
                threading.Thread(target=session.call, args=(put,), kwargs={"text": f"{i % 7}"})
                for i in range(30)
            ]
            for each in threads:
                each.start()
            for each in threads:
                each.join()
    assert sorted(PUT) == sorted(f"{i % 7}" for i in range(30))


def test_a_deny_wins_over_what_was_done(tmp_path: Path) -> None:
    denies: list[bool] = []

    def rule(_: StepView) -> Verdict | None:
        return Verdict.deny("no longer") if denies else None

    session, loop = opened(tmp_path, rules=[rule])
    with session:
        loop.at_work("n:1", by=INVOKED)
        put("a")
        denies.append(True)
        loop.at_work("n:1", by=INVOKED, number=2)
        with pytest.raises(Exception, match="no longer"):
            put("a")


def test_no_more_works_are_remembered_than_may_be_started_over(tmp_path: Path) -> None:
    session, loop = opened(tmp_path)
    with session:
        for i in range(1100):
            loop.at_work(f"n:{i}", by=INVOKED)
            peek()
        assert session._calls is not None
        assert len(session._calls.attempts._works) == 1024
