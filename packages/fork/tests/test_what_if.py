"""A fork is a recorded run with one thing changed: the record answers, and nothing is written."""

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from fork_tools import (
    DONE,
    SEEN,
    ended_before,
    fork_basket,
    fork_buy,
    fork_note,
    fork_price,
    forked,
    recorded,
    shop,
    told,
    value,
    world,  # noqa: F401 - pytest finds it here
)
from rollcage import (
    Blocked,
    Contract,
    ForkEnded,
    ReplayMiss,
    RollcageError,
    Session,
    SessionError,
    Verdict,
    list_runs,
    tool,
)
from rollcage.trace.recorded import trace_of
from rollcage_fork import Fork, fork_of
from rollcage_views import read_run


@pytest.fixture
def url(tmp_path: Path) -> str:
    return str(tmp_path / "store")


@tool(effect="read", name="fork_price")
def dearer(item: str) -> int:
    """A price for all."""
    return 100


ANSWERS: dict[str, Any] = {"fork_buy": "one is on its way", "fork_note": lambda text: f"<{text}>"}


# --- what is changed -----------------------------------------------------------------------------


def test_a_changed_result_leads_to_a_write(url: str) -> None:
    of = recorded(url)
    run, ended = forked(url, Fork(of, at=1, result=50))
    assert isinstance(ended, ForkEnded)
    assert (ended.name, ended.status, run.status) == ("fork_buy", "would_write", "would_write")
    assert run.started["fork"] == {"run": of, "step": 1, "change": "result", "live": False}
    assert [(step.changed, value(step)) for step in run.steps] == [(True, 50)]
    assert ended_before(run) == [("buy", {"item": "tea", "count": 1})]
    assert DONE == SEEN == []


@pytest.mark.parametrize("nothing", [None, [], "", 0, False])
def test_nothing_is_a_result_too(tmp_path: Path, nothing: Any) -> None:
    @tool(effect="read", name="fork.search")
    def search() -> Any:
        return ["tea"]

    got: list[Any] = []

    def agent(**more: Any) -> str:
        with Session("search", store=tmp_path, **more) as session:
            got.append(search())
        return session.run_id

    agent(stages=[Fork(agent(), at=1, result=nothing)])
    assert got == [["tea"], nothing]


def test_answers_let_the_fork_go_on(url: str) -> None:
    run, ended = forked(url, Fork(recorded(url), at=1, result=50, answers=ANSWERS))
    assert (ended, run.status) == (None, "ok")
    assert [(s.state, s.simulated, s.assumed) for s in run.steps] == [
        ("simulated", "read", False),
        ("simulated", "write", False),
        ("hit", "read", True),  # recorded behind the other purchase
        ("simulated", "write", False),
    ]
    assert value(run.steps[-1]) == "<one is on its way, milk 2>"
    assert run.effects == DONE == SEEN == []
    again, ended = forked(url, Fork(run.id))
    assert ended is None
    assert [value(step) for step in again.steps] == [value(step) for step in run.steps]


def test_an_answer_may_raise_or_be_no_result(url: str) -> None:
    def sold_out(item: str, count: int) -> str:
        raise LookupError(item)

    of = recorded(url)
    session = Session(
        "shop", store=url, stages=[Fork(of, at=1, result=50, answers={"fork_buy": sold_out})]
    )
    with pytest.raises(LookupError, match="tea"):
        shop(session)
    run = read_run(trace_of(url, session.run_id))
    assert told(run) == [("price", "simulated"), ("buy", "failed")]
    _, ended = forked(url, Fork(of, at=1, result=50, answers={"fork_buy": 7}))
    assert isinstance(ended, ForkEnded)
    assert "fork_buy gives no such result" in str(ended)
    assert DONE == []


def test_a_step_may_raise_instead(url: str) -> None:
    def brave(session: Session) -> None:
        with session:
            try:
                fork_buy(item="tea", count=1)
            except (RuntimeError, KeyError) as error:
                fork_note(text=f"{type(error).__name__}: {error}")

    of = recorded(url, brave)
    for error, said in (("sold out", "RuntimeError: sold out"), (KeyError("x"), "KeyError: 'x'")):
        run, _ = forked(url, Fork(of, at=1, error=error, answers=ANSWERS), brave)
        assert run.steps[1].args == {"text": said}
    assert DONE == []


def test_other_arguments_keep_those_not_named(url: str) -> None:
    of = recorded(url)
    run, ended = forked(url, Fork(of, at=1, args={"item": "gold"}))
    assert (ended, SEEN) == (None, ["gold"])
    assert told(run)[:2] == [("price", "ran"), ("buy", "hit")]
    run, ended = forked(url, Fork(of, at=2, args={"count": 9}))
    assert ended_before(run) == [("buy", {"item": "tea", "count": 9})]
    with pytest.raises(SessionError, match="these are the arguments"):
        shop(Session("shop", store=url, stages=[Fork(of, at=1, args={"item": "tea"})]))
    assert DONE == []


def test_a_replaced_tool_runs_in_its_place(url: str) -> None:
    @tool(effect="write", name="fork_buy")
    def other_buy(item: str, count: int) -> str:
        raise AssertionError

    @tool(effect="read", name="fork_buy")
    def no_buy(item: str, count: int) -> str:
        return f"not {count}"

    of = recorded(url)
    run, ended = forked(url, Fork(of, tools=[dearer]))
    assert isinstance(ended, ForkEnded)
    assert run.started["fork"]["to"] == "fork_price"
    assert ended_before(run) == [("buy", {"item": "tea", "count": 1})]
    run, _ = forked(url, Fork(of, at=3, tools=[dearer], answers=ANSWERS))
    assert told(run) == [
        ("price", "hit"), ("buy", "hit"), ("price", "simulated"), ("note", "simulated"),
    ]  # fmt: skip
    assert ended_before(forked(url, Fork(of, tools=[other_buy]))[0]) == []  # recorded: it answers
    run, ended = forked(url, Fork(of, tools=[no_buy], answers=ANSWERS))
    assert ended is None
    assert "not 3" in [value(step) for step in run.steps]
    assert DONE == SEEN == []


def test_another_model_runs_from_the_step_on(url: str) -> None:
    asked: list[str] = []

    def agent(session: Session) -> None:
        fork = fork_of(session)
        name = "small" if fork is None else fork.model or "small"

        def model(prompt: str) -> str:
            asked.append(name)
            return f"answer to {prompt}"

        contract = Contract.of(model, name="model", effect="read")
        with session:
            said = ""
            for prompt in ("first", "second"):
                said = session.run_call(contract, {"prompt": prompt}, model, kind="model")
            fork_note(text=said)

    of = recorded(url, agent)
    asked.clear()
    run, ended = forked(url, Fork(of, at=2, model="large"), agent)
    assert (ended, asked) == (None, ["large"])  # it says the same
    assert [state for _, state in told(run)] == ["hit", "ran", "hit"]
    run, ended = forked(url, Fork(of, at=2, result="short"), agent)
    assert ended_before(run) == [("note", {"text": "short"})]


def test_another_policy_decides_from_the_start(url: str) -> None:
    def no_tea(call: Any) -> Verdict | None:
        return Verdict.deny("no tea", code="no_tea") if call.args.get("count") == 3 else None

    run, ended = forked(url, Fork(recorded(url), policy=no_tea))
    assert isinstance(ended, Blocked)
    assert [(call.name, call.code) for call in run.refused] == [("fork_buy", "no_tea")]
    assert run.started["fork"]["change"] == "policy"


def test_what_a_fork_can_not_be(url: str) -> None:
    of = recorded(url)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"at": 1, "result": 1, "error": "x"}, "changes one thing"),
        ({"result": 1}, "say which with at="),
        ({"at": 1}, "say what changes there"),
        ({"at": -1}, "count from 1"),
        ({"at": 1, "policy": len}, "leave at= out"),
        ({"tools": [len]}, "is not a tool"),
    ]
    for words, said in wrong:
        with pytest.raises(SessionError, match=said):
            Fork(of, **words)
    with pytest.raises(SessionError, match="has no step 9"):
        shop(Session("shop", store=url, stages=[Fork(of, at=9, result=1)]))
    assert len(list_runs(url)) == 1


# --- what answers --------------------------------------------------------------------------------


def test_a_live_fork_writes_and_undoes_its_own(url: str) -> None:
    run, ended = forked(url, Fork(recorded(url), at=3, result=7, live=True))
    assert (ended, DONE) == (None, ["bought 3 tea, milk 7"])
    assert [step.name for step in run.effects if step.origin is None] == ["fork_note"]
    live, _ = forked(url, Fork(run.id, at=1, result=50, answers=ANSWERS, live=True))
    assert DONE == ["bought 3 tea, milk 7"]  # what is answered is not made, live either
    assert live.status == "ok"


def test_another_program_before_the_step_halts(url: str) -> None:
    def other(session: Session) -> None:
        with session:
            fork_price(item="coffee")

    of = recorded(url)
    for live in (False, True):
        run, ended = forked(url, Fork(of, at=2, result="x", live=live), other)
        assert isinstance(ended, ReplayMiss)
        assert run.status == "halted"
    assert SEEN == DONE == []
    run, ended = forked(url, Fork(of), other)  # only the code is another one: reads run
    assert (told(run), SEEN) == ([("price", "ran")], ["coffee"])


def test_a_fork_that_never_comes_to_its_step(url: str, caplog: pytest.LogCaptureFixture) -> None:
    def stops_early(session: Session) -> None:
        with session:
            fork_price(item="tea")

    of = recorded(url)
    run, ended = forked(url, Fork(of, at=3, result=9), stops_early)
    assert (run.status, ended) == ("partial", None)
    assert "never reached step 3 (fork_price), so nothing was changed in it" in caplog.text
    assert forked(url, Fork(of), stops_early)[0].status == "ok"


def test_a_fork_that_ends_before_its_step(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """A fork of a fork that ended before it reached the step: both end before the same write."""

    def agent(session: Session) -> None:
        with session:
            fork_buy(item="tea", count=fork_price(item="tea"))
            fork_price(item="milk")

    first, ended = forked(url, Fork(recorded(url, agent), at=1, result=7), agent)
    assert isinstance(ended, ForkEnded)
    assert "never reached" not in caplog.text
    run, ended = forked(url, Fork(first.id, at=3, result=9), agent)
    assert (run.status, str(ended)) == (
        "would_write",
        'fork_buy({"count":7,"item":"tea"}) would be written',
    )
    assert "never reached step 3 (fork_price), so nothing was changed in it" in caplog.text
    assert DONE == []


def test_nobody_is_asked_where_something_answers(url: str) -> None:
    def asks(call: Any) -> Verdict | None:
        return Verdict.ask("sure?") if call.contract.effect == "write" else None

    def approver(_: Any) -> Any:
        raise AssertionError

    of = recorded(url)
    how: dict[str, Any] = {"gate": [asks], "approver": approver}
    run, ended = forked(url, Fork(of, at=1, result=50, answers=ANSWERS), **how)
    assert (run.status, ended) == ("ok", None)
    run, ended = forked(url, Fork(of, at=1, result=50), **how)
    assert (run.status, DONE) == ("would_write", [])


def test_a_step_inside_of_a_scope_is_changed(url: str) -> None:
    def agent(session: Session) -> None:
        with session:
            fork_note(text=fork_basket(item="tea"))

    of = recorded(url, agent)
    run, _ = forked(url, Fork(of, at=2, result=50), agent)
    assert ended_before(run) == [("buy", {"item": "tea", "count": 1})]
    run, ended = forked(url, Fork(of, at=2, result=50, answers=ANSWERS), agent)
    assert ended is None
    assert value(run.steps[-1]) == "<one is on its way>"
    run, _ = forked(url, Fork(of, tools=[dearer]), agent)
    assert {state for _, state in told(run)} == {"hit"}  # the scope is recorded: it is not entered
    assert DONE == SEEN == []


def test_the_body_of_a_read_may_not_write(url: str) -> None:
    @tool(effect="read", name="fork_sneaky")
    def sneaky(text: str) -> str:
        return fork_note(text=text)

    def agent(session: Session) -> None:
        with session:
            sneaky(text="a")

    of = recorded(url, agent)
    run, ended = forked(url, Fork(of, at=1, args={"text": "b"}), agent)
    assert isinstance(ended, ForkEnded)
    assert ended_before(run) == [("note", {"text": "b"})]
    run, ended = forked(url, Fork(of, at=1, args={"text": "b"}, answers=ANSWERS), agent)
    assert ended is None
    assert sorted(told(run)) == [("note", "simulated"), ("sneaky", "ran")]
    assert DONE == []


def test_streams_are_replaced_and_answered(url: str) -> None:
    @tool(effect="read", name="fork_lines")
    def lines(item: str) -> Iterator[str]:
        SEEN.append(item)
        yield from ("a", "b")

    @tool(effect="read", name="fork_lines")
    def others(item: str) -> Iterator[str]:
        yield from ("x", "y")

    @tool(name="fork_print")
    def printed(text: str) -> Iterator[str]:
        for each in text:
            DONE.append(each)
            yield each

    def printing(text: str) -> Iterator[str]:
        yield from text.upper()

    def agent(session: Session) -> None:
        with session:
            got = "".join(lines(item="tea"))
            fork_note(text="".join(printed(text=got)))

    of = recorded(url, agent)
    answers = {"fork_print": printing, "fork_note": "noted"}
    for fork, said in (
        (Fork(of, at=1, tools=[others], answers=answers), "XY"),
        (Fork(of, at=1, result=["p", "q"], answers=answers), "PQ"),
    ):
        run, ended = forked(url, fork, agent)
        assert ended is None
        assert run.steps[-1].args == {"text": said}
    assert DONE == SEEN == []


def test_async_sessions_are_forked_alike(url: str) -> None:
    @tool(effect="write", name="fork_anote")
    async def note(text: str) -> str:
        DONE.append(text)
        return f"noted {text}"

    async def given(text: str) -> str:
        return f"given {text}"

    async def agent(session: Session) -> list[str]:
        async with session:
            with session.turn():
                said = list(await asyncio.gather(*(note(text=each) for each in "abc")))
            await note(text="|".join(said))
            return said

    session = Session("shop", store=url)
    asyncio.run(agent(session))
    DONE.clear()
    for step, at in enumerate("abc", 1):
        fork = Fork(session.run_id, at=step, result="N", answers={"fork_anote": given})
        said = asyncio.run(agent(Session("shop", store=url, stages=[fork])))
        assert said == ["N" if each == at else f"noted {each}" for each in "abc"]
    assert DONE == []


# --- nothing is made by accident -----------------------------------------------------------------


def test_a_run_of_its_own_inside_is_refused(url: str, tmp_path: Path) -> None:
    def agent(session: Session) -> None:
        with session:
            fork_price(item="tea")
            with Session("inner", store=tmp_path / "another"):
                fork_note(text="inside")

    of = recorded(url, agent)
    with pytest.raises(SessionError, match="inside of a fork that is not live"):
        agent(Session("shop", store=url, stages=[Fork(of)]))
    assert DONE == []


def test_a_session_inside_is_a_part_of_it(url: str) -> None:
    def agent(session: Session) -> None:
        with session, Session("inner", store=url):
            fork_buy(item="tea", count=fork_price(item="tea"))

    of = recorded(url, agent)
    price = next(s.step for s in read_run(trace_of(url, of)).steps if s.name == "fork_price")
    run, ended = forked(url, Fork(of), agent)
    assert ended is None
    run, ended = forked(url, Fork(of, at=price, result=1), agent)
    assert ended_before(run) == [("buy", {"item": "tea", "count": 1})]
    assert DONE == []


def test_a_thread_that_knows_no_session_is_refused(url: str) -> None:
    refused: list[str] = []

    def agent(session: Session) -> None:
        def work() -> None:
            try:
                fork_note(text="in a thread")
            except Blocked as error:
                refused.append(str(error))

        with session:
            fork_price(item="tea")
            if fork_of(session) is not None:
                thread = threading.Thread(target=work)
                thread.start()
                thread.join()

    forked(url, Fork(recorded(url, agent)), agent)
    assert "knows no session" in refused[0]
    assert DONE == []


def test_a_write_of_unknown_outcome_is_not_done_again(url: str) -> None:
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
    for live in (True, False):
        _, ended = forked(url, Fork(session.run_id, live=live), agent)
        assert ended is not None
        assert ended.code == "outcome_unknown"
    run, ended = forked(url, Fork(session.run_id, answers={"fork_hang": "done"}), agent)
    assert (run.status, DONE) == ("ok", ["hang"])


@pytest.mark.parametrize("replay", ["auto", "continue", "resume", "off"])
def test_what_a_program_says_of_its_replay_does_not_count(
    replay: Literal["auto", "continue", "resume", "off"], url: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Nobody edits a program to ask what it would do."""
    of = recorded(url)
    file = tmp_path / "fork.json"
    file.write_text(json.dumps({"store": url, "run": of, "name": "shop", "at": 1, "result": 50}))
    monkeypatch.setenv("ROLLCAGE_STAGE", f"fork:{file}")
    with pytest.raises(ForkEnded):
        shop(Session("shop", store=url, replay=replay))
    with pytest.raises(SessionError, match="nothing of that runs"):
        Session("another job", store=url)
    with Session("shop", store=url, replay="offline", source=of):
        assert fork_price(item="tea") == 10  # a replay offline runs nothing anyway
    file.write_text("{}")
    with pytest.raises(SessionError, match="can't be used"):
        Session("shop", store=url)
    assert DONE == SEEN == []


def test_no_session_of_the_job_goes_on_with_a_fork(url: str) -> None:
    of = recorded(url)
    run, _ = forked(url, Fork(of, at=1, result=50))  # ended before its end
    session = Session("shop", store=url)
    shop(session)
    assert DONE == [("tea", 3), "bought 3 tea, milk 2"]  # a new run: the job had finished
    assert session.run_id not in (of, run.id)


def test_a_run_of_another_store_is_forked_here(url: str, tmp_path: Path) -> None:
    of = recorded(url)
    run, ended = forked(str(tmp_path / "other"), Fork((url, of), at=3, result=2))
    assert ended is None
    assert [info.run for info in list_runs(tmp_path / "other")] == [run.id]
    assert [info.run for info in list_runs(url)] == [of]
