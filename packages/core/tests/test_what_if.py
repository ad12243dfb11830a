"""A fork is a recorded run with one thing changed: the record answers, and nothing is written."""

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rollcage import (
    Fork,
    ForkEnded,
    ReplayMiss,
    RollcageError,
    Session,
    SessionError,
    TraceCorrupt,
    plan_undo,
    tool,
    undo_run,
)
from rollcage.gate import StepView, Verdict
from rollcage.store import open_store
from rollcage.trace import Run, Step, read_run

DONE: list[Any] = []
SEEN: list[str] = []
PRICES = {"tea": 10, "milk": 2}


@tool(effect="read")
def fork_price(item: str) -> int:
    SEEN.append(item)
    return PRICES.get(item, 1)


@tool(effect="pure")
def fork_double(number: int) -> int:
    SEEN.append(f"double {number}")
    return 2 * number


@tool(effect="write")
def fork_buy(item: str, count: int) -> str:
    DONE.append((item, count))
    return f"bought {count} {item}"


@tool(effect="write")
def fork_note(text: str) -> str:
    DONE.append(text)
    return "noted"


@tool(effect="scope")
def fork_basket(item: str) -> str:
    price = fork_price(item=item)
    return fork_buy(item=item, count=3 if price < 20 else 1)


@tool(effect="write")
def fork_press(item: str) -> int:
    return fork_price(item=item)


@pytest.fixture(autouse=True)
def world() -> Iterator[None]:
    DONE.clear()
    SEEN.clear()
    yield
    DONE.clear()
    SEEN.clear()


@pytest.fixture(params=["folder", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "s") if request.param == "folder" else f"sqlite:///{tmp_path}/s.db"


def shop(session: Session) -> None:
    """Buys by the price of tea, then notes what milk costs."""
    with session:
        count = 3 if fork_price(item="tea") < 20 else 1
        said = fork_buy(item="tea", count=count)
        fork_note(text=f"{said}, milk {fork_price(item='milk')}")


def recorded(url: str, agent: Callable[[Session], None] = shop, name: str = "shop") -> str:
    session = Session(name, store=url)
    agent(session)
    DONE.clear()
    SEEN.clear()
    return session.run_id


def forked(
    url: str, fork: Fork, agent: Callable[[Session], None] = shop, **options: Any
) -> tuple[Run, RollcageError | None]:
    """The fork's run, and what ended it."""
    session, ended = Session("shop", store=url, fork=fork, **options), None
    try:
        agent(session)
    except RollcageError as error:
        ended = error
    return read_run(open_store(url).read(session.run_id)), ended


def told(run: Run) -> list[tuple[str, str]]:
    return [(step.name.removeprefix("fork_"), step.state) for step in run.steps]


def value(step: Step) -> Any:
    return (step.outcome or {}).get("value")


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


def test_a_fork_of_a_fork_changes_a_second_thing(url: str) -> None:
    of = recorded(url)
    answers = {"fork_buy": "one", "fork_note": "n"}
    first, _ = forked(url, Fork(of, at=1, result=50, answers=answers))
    second, ended = forked(url, Fork(first.id, at=3, result=99, answers={"fork_note": "again"}))
    assert ended is None
    assert [value(step) for step in second.steps] == [50, "one", 99, "again"]
    assert [(s.state, s.effect) for s in second.steps][:2] == [("hit", "read"), ("hit", "read")]
    third, ended = forked(url, Fork(second.id))
    assert [value(step) for step in third.steps] == [50, "one", 99, "again"]
    assert DONE == SEEN == []


def test_no_session_of_the_job_goes_on_with_a_fork(url: str) -> None:
    of = recorded(url)
    run, _ = forked(url, Fork(of, at=1, result=50))  # ended before its end
    with (
        pytest.raises(SessionError, match="is a fork"),
        Session("shop", store=url, replay="resume", source=run.id),
    ):
        pass
    session = Session("shop", store=url)
    shop(session)
    assert DONE == [("tea", 3), "bought 3 tea, milk 2"]  # a fresh run: the job had finished
    newest = open_store(url).newest("shop", None)
    assert newest is not None
    assert newest.run == session.run_id
    started = read_run(open_store(url).read(session.run_id)).started
    assert (started["mode"], started["source"]) == ("record", None)


def test_an_unfinished_job_is_resumed_as_if_there_were_no_fork(url: str) -> None:
    def dies(session: Session) -> None:
        with session:
            count = 3 if fork_price(item="tea") < 20 else 1
            fork_buy(item="tea", count=count)
            raise KeyboardInterrupt

    session = Session("shop", store=url)
    with pytest.raises(KeyboardInterrupt):
        dies(session)
    run, ended = forked(url, Fork(session.run_id))
    assert isinstance(ended, ForkEnded)  # the note was never written
    assert told(run)[:2] == [("price", "hit"), ("buy", "hit")]
    resumed = Session("shop", store=url)
    shop(resumed)
    assert DONE == [("tea", 3), "bought 3 tea, milk 2"]
    # ... and several generations are one recorded run.
    run, ended = forked(url, Fork(resumed.run_id, at=3, result=5, answers={"fork_note": "n"}))
    assert ended is None
    assert told(run) == [("price", "hit"), ("buy", "hit"), ("price", "simulated"),
                         ("note", "simulated")]  # fmt: skip


def test_a_run_that_was_undone_since_is_forked_as_it_was(url: str) -> None:
    def undo() -> list[Any]:
        return []

    @tool(effect="write", undo=undo, name="fork_keep")
    def keep(text: str) -> str:
        DONE.append(text)
        return text

    def agent(session: Session) -> None:
        with session:
            keep(text=str(fork_price(item="tea")))
            fork_price(item="milk")

    of = recorded(url, agent)
    undo_run(url, of, tools=[keep])
    run, ended = forked(url, Fork(of), agent)
    assert ended is None
    assert told(run) == [("price", "hit"), ("keep", "hit"), ("price", "hit")]
    assert DONE == SEEN == []


def test_a_nested_step_is_changed_in_the_body_that_called_it(url: str) -> None:
    def agent(session: Session) -> None:
        with session:
            fork_note(text=fork_basket(item="tea"))

    of = recorded(url, agent)
    run = read_run(open_store(url).read(of))
    assert [(s.name, s.parent) for s in run.steps][1] == ("fork_price", 1)
    run, ended = forked(url, Fork(of, at=2, result=50), agent)
    assert isinstance(ended, ForkEnded)
    assert run.steps[-1].args == {"item": "tea", "count": 1}
    assert run.steps[-1].parent == 1
    run, ended = forked(url, Fork(of, at=3, result="bought 3 tea"), agent)
    assert ended is None
    assert told(run) == [("basket", "ran"), ("price", "hit"), ("buy", "simulated"), ("note", "hit")]
    run, ended = forked(url, Fork(of, at=1, result="all"), agent)
    assert isinstance(ended, ForkEnded)
    assert told(run) == [("basket", "simulated"), ("note", "blocked")]
    assert DONE == SEEN == []


def test_the_body_of_a_write_is_not_entered_again(url: str) -> None:
    def agent(session: Session) -> None:
        with session:
            fork_press(item="tea")

    of = recorded(url, agent)
    with pytest.raises(SessionError, match=r"step 1 \(fork_press\), a write"):
        agent(Session("shop", store=url, fork=Fork(of, at=2, result=1)))
    assert [info.run for info in open_store(url).runs()] == [of]  # nothing was begun
    assert SEEN == []


def test_a_pure_step_is_changed_where_it_stands(url: str) -> None:
    def agent(session: Session) -> None:
        with session:
            for _ in range(3):
                fork_note(text=str(fork_double(number=2)))

    of = recorded(url, agent)
    run, _ = forked(url, Fork(of, at=3, result=5, answers={"fork_note": "n"}), agent)
    assert [value(s) for s in run.steps if s.name == "fork_double"] == [4, 5, 4]
    assert [s.args["text"] for s in run.steps if s.name == "fork_note"] == ["4", "5", "4"]


def test_branches_and_turns_and_transactions(url: str) -> None:
    def agent(session: Session) -> None:
        with session:
            with session.branch("left"):
                fork_note(text=str(fork_price(item="tea")))
            with session.turn():
                fork_price(item="milk")
                fork_note(text="turn")
            with session.transaction():
                fork_note(text="inside")

    of = recorded(url, agent)
    run, ended = forked(url, Fork(of), agent)
    assert ended is None
    assert {step.state for step in run.steps} == {"hit"}
    answers = {"fork_note": "n"}
    run, ended = forked(url, Fork(of, at=1, result=11, answers=answers), agent)
    assert ended is None
    names = [(s.name, s.args.get("text"), s.state) for s in run.steps if s.kind == "tool"]
    assert names[1] == ("fork_note", "11", "simulated")
    assert ("fork_note", "inside", "hit") in names
    assert DONE == SEEN == []


def test_a_transaction_that_raises_in_a_fork_takes_back_what_the_fork_did(url: str) -> None:
    def agent(session: Session) -> None:
        with session:
            try:
                with session.transaction():
                    fork_note(text=str(fork_price(item="tea")))
                    if fork_price(item="milk") > 5:
                        raise ValueError("too dear")
            except ValueError:
                fork_note(text="taken back")

    of = recorded(url, agent)
    answers = {"fork_note": "n"}
    run, ended = forked(url, Fork(of, at=3, result=11, answers=answers), agent)
    assert ended is None
    assert run.steps[-1].args == {"text": "taken back"}
    assert DONE == SEEN == []


def test_async_and_streams(url: str) -> None:
    @tool(effect="read", name="fork_look")
    async def look(item: str) -> int:
        SEEN.append(item)
        return 1

    @tool(effect="read", name="fork_lines")
    def lines(item: str) -> Iterator[str]:
        SEEN.append(item)
        yield from ("a", "b")

    async def agent(session: Session) -> list[Any]:
        async with session:
            first = await look(item="x")
            return [first, *lines(item="x")]

    session = Session("shop", store=url)
    assert asyncio.run(agent(session)) == [1, "a", "b"]
    SEEN.clear()

    def fork(fork: Fork) -> list[Any]:
        return asyncio.run(agent(Session("shop", store=url, fork=fork)))

    async def given(item: str) -> int:
        return 9

    assert fork(Fork(session.run_id)) == [1, "a", "b"]
    assert fork(Fork(session.run_id, at=1, result=7)) == [7, "a", "b"]
    assert fork(Fork(session.run_id, at=2, result="c")) == [1, "c"]
    assert fork(Fork(session.run_id, at=1, args={"item": "y"}, answers={"fork_look": given})) == [
        9, "a", "b",
    ]  # fmt: skip
    assert SEEN == []


def test_a_result_that_the_tool_never_gives_ends_the_fork(url: str) -> None:
    _, ended = forked(url, Fork(recorded(url), at=1, result="dear"))
    assert isinstance(ended, ForkEnded)
    assert ended.status == "halted"
    assert "fork_price gives no such result" in str(ended)


def test_a_session_inside_of_a_fork_is_refused(url: str) -> None:
    def agent(session: Session) -> None:
        with session:
            fork_price(item="tea")
            with Session("inner", store=url):
                fork_note(text="inside")

    of = recorded(url, agent)
    with pytest.raises(SessionError, match="inside of a fork"):
        agent(Session("shop", store=url, fork=Fork(of)))
    assert DONE == []


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
    for wrong, said in (
        ({"at": 1, "result": 1, "error": "x"}, "changes one thing"),
        ({"result": 1}, "say which with at="),
        ({"at": 0}, "count from 1"),
        ({"at": 1, "policy": "p.toml"}, "leave at= out"),
        ({"tools": [len]}, "is no tool"),
    ):
        with pytest.raises(SessionError, match=said):
            Fork(of, **wrong)
    with pytest.raises(SessionError, match="takes no source="):
        Session("shop", store=url, fork=Fork(of), replay="resume")
    with (
        pytest.raises(SessionError, match="has no step 9"),
        Session("shop", store=url, fork=Fork(of, at=9, result=1)),
    ):
        pass


def test_a_damaged_origin_is_refused(tmp_path: Path) -> None:
    url = str(tmp_path / "s")
    of = recorded(url)
    trace = next((tmp_path / "s").rglob(f"{of}.jsonl"))
    data = trace.read_bytes()
    trace.write_bytes(data.replace(b'"value":10', b'"value":11'))
    with pytest.raises(TraceCorrupt), Session("shop", store=url, fork=Fork(of)):
        pass
    trace.write_bytes(data)


def test_a_fork_is_offline_replayable_and_holds_no_more_than_it_did(url: str) -> None:
    of = recorded(url)
    answers = {"fork_buy": "one", "fork_note": "n"}
    run, _ = forked(url, Fork(of, at=1, result=50, answers=answers))
    shop(Session("shop", store=url, replay="offline", source=run.id))
    with pytest.raises(ReplayMiss), Session("shop", store=url, replay="offline", source=run.id):
        fork_buy(item="tea", count=3)  # of the origin alone
    assert DONE == SEEN == []


def test_a_run_of_another_store_is_forked_into_this_one(url: str, tmp_path: Path) -> None:
    of = recorded(url)
    here = str(tmp_path / "other")
    run, ended = forked(here, Fork((url, of)))
    assert ended is None
    assert {step.state for step in run.steps} == {"hit"}
    assert run.started["source"] == of


def test_a_write_of_unknown_outcome_is_not_done_again_live(url: str) -> None:
    @tool(effect="write", name="fork_hang")
    def hang() -> str:
        DONE.append("hang")
        raise TimeoutError

    def agent(session: Session) -> None:
        with session:
            hang()

    session = Session("shop", store=url)
    with pytest.raises(RollcageError):
        agent(session)
    _, ended = forked(url, Fork(session.run_id, live=True), agent)
    assert ended is not None
    assert ended.code == "outcome_unknown"
    _, ended = forked(url, Fork(session.run_id), agent)
    assert isinstance(ended, ForkEnded)
    assert "its outcome is unknown" in str(ended)
    assert DONE == ["hang"]
