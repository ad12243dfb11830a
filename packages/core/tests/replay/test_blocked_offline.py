"""Calls that were blocked are blocked offline as well, in their order."""

from pathlib import Path
from typing import Any

import pytest
from rollcage import Approval, Blocked, Halt, Session, StepView, Verdict, tool

world: list[str] = []


class PowerCutError(Exception):
    """Ends an attempt on its way."""


@pytest.fixture(autouse=True)
def nothing() -> None:
    world.clear()


@tool(name="blocked.write", effect="write")
def write(text: str) -> str:
    world.append(text)
    return f"wrote {text}"


def asks(step: StepView) -> Verdict | None:
    return Verdict.ask("is that so?") if step.args.get("text") == "b" else None


def no_more(step: StepView) -> Verdict | None:
    """A rule that allows the first call alone."""
    if not world:
        return None
    return Verdict("deny", "no more", code="enough", remedy="Look instead.")


def tried(*texts: str) -> list[str]:
    found = []
    for text in texts:
        try:
            found.append(write(text))
        except Blocked as blocked:
            found.append(f"{blocked.verdict_code}: {blocked}")
    return found


def test_a_refused_call_is_refused_offline(tmp_path: Path) -> None:
    with Session("job", store=tmp_path, gate=[no_more]) as session:
        given = tried("a", "a", "b")
    assert given == ["wrote a", "enough: no more. Look instead.", "enough: no more. Look instead."]
    for _ in range(2):
        with Session("job", store=tmp_path, replay="offline") as offline:
            assert tried("a", "a", "b") == given
        assert (offline.stats.hits, offline.stats.blocked) == (1, 2)
    with (
        pytest.raises(Halt, match="no recorded step"),
        Session("job", store=tmp_path, replay="offline"),
    ):
        tried("a", "a", "a")
    assert session.stats.blocked == 2


def test_a_call_that_was_allowed_later_is_given_in_its_order(tmp_path: Path) -> None:
    denied = [True]

    def rule(_: StepView) -> Verdict | None:
        return Verdict.deny("not yet") if denied else None

    def job() -> list[str]:
        first = tried("a")
        denied.clear()
        return [*first, *tried("a")]

    with Session("job", store=tmp_path, gate=[rule]):
        given = job()
    assert given == ["denied: not yet", "wrote a"]
    with Session("job", store=tmp_path, replay="offline"):
        assert tried("a", "a") == given


@pytest.mark.parametrize("allowed", [True, False])
def test_the_newest_attempt_s_word_on_a_call_counts(tmp_path: Path, *, allowed: bool) -> None:
    def never(_: StepView) -> Verdict | None:
        return Verdict.deny("never")

    with pytest.raises(PowerCutError), Session("job", store=tmp_path, gate=[never]):
        tried("a")
        raise PowerCutError
    with Session("job", store=tmp_path, gate=[] if allowed else [never]):
        given = tried("a")
    with Session("job", store=tmp_path, replay="offline"):
        assert tried("a") == given
    with (
        pytest.raises(Halt, match="no recorded step"),
        Session("job", store=tmp_path, replay="offline"),
    ):
        tried("a", "a")


def test_a_rejected_call_leaves_its_place_offline_too(tmp_path: Path) -> None:
    def approver(_: Any) -> Approval:
        return Approval.reject("use another word", by="ann")

    def job() -> list[str]:
        return tried("a", "b", "c")

    with Session("job", store=tmp_path, gate=[asks], approver=approver):
        given = job()
    assert [given[0], given[2]] == ["wrote a", "wrote c"]
    assert "use another word" in given[1]
    with Session("job", store=tmp_path, replay="offline"):
        assert job() == given
    assert world == [*"ac"]
