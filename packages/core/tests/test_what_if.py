"""A fork is a recorded run with one thing changed: the record answers, and nothing is written."""

import json
from pathlib import Path
from typing import Any

import pytest
from fork_tools import (
    DONE,
    SEEN,
    fork_buy,
    fork_double,
    fork_note,
    fork_price,
    forked,
    recorded,
    shop,
    told,
    value,
    world,  # noqa: F401 - pytest finds it here
)
from rollcage import ForkEnded, ReplayMiss, SessionError, tool
from rollcage.gate import StepView, Verdict
from rollcage.replay.fork import Fork
from rollcage.session.finished import plan_undo, undo_run
from rollcage.session.session import Session
from rollcage.store import open_store
from rollcage.trace import read_run


def test_without_a_change_all_of_it_is_answered_from_the_record(url: str) -> None:
    run, ended = forked(url, Fork(recorded(url)))
    assert ended is None
    assert told(run) == [("price", "hit"), ("buy", "hit"), ("price", "hit"), ("note", "hit")]
    assert not any(step.assumed for step in run.steps)
    assert DONE == SEEN == []


def test_a_changed_result_leads_to_a_write_that_ends_the_fork(url: str) -> None:
    of = recorded(url)
    run, ended = forked(url, Fork(of, at=1, result=50))
    assert isinstance(ended, ForkEnded)
    assert (ended.name, ended.status) == ("fork_buy", "would_write")
    assert "fork_buy(item='tea', count=1)" in str(ended)
    assert run.status == "would_write"
    assert run.started["fork"] == {"run": of, "step": 1, "change": "result"}
    assert [step.changed for step in run.steps] == [True, False]
    assert value(run.steps[0]) == 50
    assert run.steps[-1].args == {"item": "tea", "count": 1}
    assert run.steps[-1].verdict is not None
    assert run.steps[-1].verdict["code"] == "fork_ended"
    assert DONE == SEEN == []


@pytest.mark.parametrize("nothing", [None, [], "", 0, False, ()])
def test_nothing_is_a_result_too(tmp_path: Path, nothing: Any) -> None:
    """What if the search had found nothing?"""

    @tool(effect="read", name="fork.search")
    def search() -> Any:
        return ["tea"]

    got: list[Any] = []

    def agent(**more: Any) -> str:
        with Session("search", store=tmp_path, **more) as session:
            got.append(search())
        return session.run_id

    fork = Fork(agent(), at=1, result=nothing)
    assert fork.change == "result"
    run = read_run(open_store(tmp_path).read(agent(fork=fork)))
    assert got == [["tea"], nothing]
    assert run.steps[0].changed


def test_a_rule_answers_a_write_and_the_fork_goes_on(url: str) -> None:
    answers = {"fork_buy": "one is on its way", "fork_note": lambda text: f"<{text}>"}
    run, ended = forked(url, Fork(recorded(url), at=1, result=50, answers=answers))
    assert ended is None
    assert run.status == "ok"
    assert [(s.state, s.simulated, s.assumed) for s in run.steps] == [
        ("simulated", "read", False),
        ("simulated", "write", False),
        ("hit", None, True),  # recorded behind the other purchase
        ("simulated", "write", False),
    ]
    assert value(run.steps[-1]) == "<one is on its way, milk 2>"
    assert run.effects == []
    assert DONE == SEEN == []


def test_behind_a_changed_write_the_record_is_assumed_to_hold(url: str) -> None:
    fork = Fork(recorded(url), at=2, result="bought 3 tea")  # as it was: so all the rest is asked
    run, ended = forked(url, fork)
    assert ended is None
    assert [(s.state, s.assumed) for s in run.steps] == [
        ("hit", False),
        ("simulated", False),
        ("hit", True),
        ("hit", True),
    ]


def test_a_step_may_raise_instead(url: str) -> None:
    def brave(session: Session) -> None:
        with session:
            try:
                fork_buy(item="tea", count=1)
            except (RuntimeError, KeyError) as error:
                fork_note(text=f"{type(error).__name__}: {error}")

    of = recorded(url, brave)
    answers = {"fork_note": "noted"}
    run, _ = forked(url, Fork(of, at=1, error="sold out", answers=answers), brave)
    assert told(run) == [("buy", "failed"), ("note", "simulated")]
    assert run.steps[1].args == {"text": "RuntimeError: sold out"}
    run, _ = forked(url, Fork(of, at=1, error=KeyError("x"), answers=answers), brave)
    assert run.steps[1].args == {"text": "KeyError: 'x'"}


def test_other_arguments_make_a_read_run_and_a_write_end_the_fork(url: str) -> None:
    of = recorded(url)
    run, ended = forked(url, Fork(of, at=1, args={"item": "gold"}))
    assert ended is None
    assert SEEN == ["gold"]
    assert [(s.state, s.changed) for s in run.steps][:2] == [("ran", True), ("hit", False)]
    run, ended = forked(url, Fork(of, at=2, args={"count": 9}))
    assert isinstance(ended, ForkEnded)
    assert run.steps[-1].args == {"item": "tea", "count": 9}
    run, ended = forked(url, Fork(of, at=1, args={"item": "tea"}))
    assert isinstance(ended, ForkEnded)
    assert "these are the arguments that it had" in str(ended)
    assert run.status == "halted"
    assert DONE == []


def test_live_it_performs_its_own_writes_and_undo_takes_only_them_back(url: str) -> None:
    of = recorded(url)
    run, ended = forked(url, Fork(of, at=3, result=7, live=True))
    assert ended is None
    assert DONE == ["bought 3 tea, milk 7"]
    assert run.started["fork"]["live"]
    assert told(run)[1] == ("buy", "hit")
    plan = plan_undo(url, run.id, tools=[fork_buy, fork_note])
    assert [step.name for step in plan.steps] == ["fork_note"]
    report = undo_run(url, run.id, tools=[fork_buy, fork_note])
    assert [step.step for step in report.steps] == [4]


def test_a_program_that_is_another_one_before_the_step_is_told_so(url: str) -> None:
    def other(session: Session) -> None:
        with session:
            fork_price(item="coffee")

    run, ended = forked(url, Fork(recorded(url), at=2, result="x"), other)
    assert isinstance(ended, ReplayMiss)
    assert SEEN == []
    assert run.status == "halted"


def test_reads_and_models_that_are_not_recorded_run(url: str) -> None:
    def other(session: Session) -> None:
        with session:
            fork_price(item="coffee")
            fork_price(item="tea")

    run, _ = forked(url, Fork(recorded(url)), other)
    assert told(run) == [("price", "ran"), ("price", "hit")]
    assert SEEN == ["coffee"]


def test_a_replaced_tool_runs_in_place_of_the_recorded_one(url: str) -> None:
    @tool(effect="read", name="fork_price")
    def dearer(item: str) -> int:
        return 100

    @tool(effect="write", name="fork_buy")
    def other_buy(item: str, count: int) -> str:
        raise AssertionError

    of = recorded(url)
    run, ended = forked(url, Fork(of, tools=[dearer]))
    assert isinstance(ended, ForkEnded)
    assert run.steps[-1].args["count"] == 1
    assert run.started["fork"]["to"] == "fork_price"
    run, ended = forked(url, Fork(of, at=3, tools=[dearer], answers={"fork_note": "n"}))
    assert [value(step) for step in run.steps] == [10, "bought 3 tea", 100, "n"]
    _, ended = forked(url, Fork(of, tools=[other_buy]))
    assert isinstance(ended, ForkEnded)  # it is a write, too
    assert DONE == SEEN == []


def test_another_policy_decides_from_the_start(url: str) -> None:
    def no_tea(call: StepView) -> Verdict | None:
        return Verdict("deny", "no tea", "no_tea") if call.args.get("count") == 3 else None

    run, ended = forked(url, Fork(recorded(url)), rules=[no_tea])
    assert ended is not None
    assert told(run) == [("price", "hit"), ("buy", "blocked")]
    assert run.steps[1].verdict is not None
    assert run.steps[1].verdict["code"] == "no_tea"


def test_nobody_is_asked_in_a_fork(url: str) -> None:
    asked: list[str] = []

    def asks(call: StepView) -> Verdict | None:
        return Verdict("ask", "sure?", "sure")

    def approver(request: Any) -> Any:
        asked.append(request.name)
        raise AssertionError

    def other(session: Session) -> None:
        with session:
            fork_price(item="tea")
            fork_price(item="coffee")

    run, ended = forked(url, Fork(recorded(url)), other, rules=[asks], approver=approver)
    assert isinstance(ended, ForkEnded)
    assert (ended.status, run.status) == ("would_ask", "would_ask")
    assert told(run) == [("price", "hit"), ("price", "blocked")]
    assert asked == SEEN == []


def test_a_pure_step_is_changed_where_it_stands(url: str) -> None:
    def agent(session: Session) -> None:
        with session:
            for _ in range(3):
                fork_note(text=str(fork_double(number=2)))

    of = recorded(url, agent)
    run, _ = forked(url, Fork(of, at=3, result=5, answers={"fork_note": "n"}), agent)
    assert [value(s) for s in run.steps if s.name == "fork_double"] == [4, 5, 4]
    assert [s.args["text"] for s in run.steps if s.name == "fork_note"] == ["4", "5", "4"]


def test_a_result_that_the_tool_never_gives_ends_the_fork(url: str) -> None:
    _, ended = forked(url, Fork(recorded(url), at=1, result="dear"))
    assert isinstance(ended, ForkEnded)
    assert ended.status == "halted"
    assert "fork_price gives no such result" in str(ended)


def test_the_environment_makes_a_fork_of_the_same_program(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = recorded(url)
    file = tmp_path / "fork.json"
    said = {"store": url, "run": of, "name": "shop", "at": 1, "result": 50, "live": False}
    file.write_text(json.dumps(said))
    monkeypatch.setenv("ROLLCAGE_FORK", str(file))
    session = Session("shop", store=url)
    with pytest.raises(ForkEnded):
        shop(session)
    assert session.fork is not None
    assert read_run(open_store(url).read(session.run_id)).started["mode"] == "fork"
    with pytest.raises(SessionError, match="nothing of that runs"):
        Session("another job", store=url)
    with Session("shop", store=url, replay="offline", source=of):
        assert fork_price(item="tea") == 10  # a replay offline runs nothing anyway
    file.write_text("{}")
    with pytest.raises(SessionError, match="can't be used"):
        Session("shop", store=url)
    assert DONE == SEEN == []


def test_what_a_fork_can_not_be(url: str) -> None:
    of = recorded(url)
    changes: list[tuple[dict[str, Any], str]] = [
        ({"at": 1, "result": 1, "error": "x"}, "changes one thing"),
        ({"result": 1}, "say which with at="),
        ({"at": 0}, "count from 1"),
        ({"at": 1, "policy": "p.toml"}, "leave at= out"),
        ({"tools": [len]}, "is not a tool"),
    ]
    for wrong, said in changes:
        with pytest.raises(SessionError, match=said):
            Fork(of, **wrong)
    with pytest.raises(SessionError, match="takes no source="):
        Session("shop", store=url, fork=Fork(of), replay="resume")
    with (
        pytest.raises(SessionError, match="has no step 9"),
        Session("shop", store=url, fork=Fork(of, at=9, result=1)),
    ):
        pass
