"""Forks of runs that were resumed, undone, nested, approved, pruned; and forks of forks."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fork_tools import (
    DONE,
    SEEN,
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
from node_memory import Memory
from rollcage import Approval, Blocked, Contract, ForkEnded, ReplayMiss, SessionError, tool
from rollcage.gate import StepView, Verdict
from rollcage.replay.fork import Fork
from rollcage.session.finished import plan_undo, undo_run
from rollcage.session.session import Session
from rollcage.store import open_store
from rollcage.trace import read_run


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


@tool(effect="write", undo=list)
def fork_keep(text: str) -> str:
    DONE.append(text)
    return text


def test_a_block_that_was_taken_back_may_end_well_in_a_fork(url: str) -> None:
    def agent(session: Session) -> None:
        with session:
            try:
                with session.transaction():
                    fork_keep(text="order")
                    if fork_price(item="tea") > 5:
                        raise ValueError("too dear")
            except ValueError:
                fork_note(text="given up")
            fork_price(item="milk")

    of = recorded(url, agent)
    run, ended = forked(url, Fork(of), agent)
    assert ended is None
    assert {step.state for step in run.steps} == {"hit"}
    run, ended = forked(url, Fork(of, at=2, result=1), agent)
    assert ended is None
    assert told(run) == [
        ("keep", "hit"), ("price", "simulated"), ("transaction", "ran"), ("price", "hit"),
    ]  # fmt: skip
    assert DONE == SEEN == []


def test_what_the_run_undid_itself_is_answered_too(url: str) -> None:
    def agent(session: Session) -> None:
        with session:
            fork_keep(text="1")
            fork_keep(text="2")
            session.undo(to=1)
            fork_note(text="3")

    run, ended = forked(url, Fork(recorded(url, agent)), agent)
    assert ended is None
    assert told(run) == [("keep", "hit"), ("keep", "hit"), ("note", "hit")]
    again, ended = forked(url, Fork(run.id), agent)
    assert ended is None
    assert told(again) == told(run)
    assert DONE == []


def test_a_save_point_that_was_loaded_and_gone_on_from(url: str) -> None:
    def agent(session: Session) -> None:
        with session:
            for number in range(4):
                fork_keep(text=str(number))

    undo_run(url, recorded(url, agent), to=1, tools=[fork_keep])
    of = recorded(url, agent)
    first, _ = forked(url, Fork(of), agent)
    assert {step.state for step in first.steps} == {"hit"}
    second, ended = forked(url, Fork(first.id, at=3, result="x", live=True), agent)
    assert ended is None
    assert [value(step) for step in second.steps] == ["0", "1", "x", "3"]
    assert plan_undo(url, second.id, tools=[fork_keep]).steps == ()
    assert DONE == []


def test_parallel_calls_of_a_turn(url: str) -> None:
    @tool(effect="write", name="fork_anote")
    async def note(text: str) -> str:
        DONE.append(text)
        return f"noted {text}"

    async def agent(session: Session) -> list[str]:
        async with session:
            with session.turn():
                said = await asyncio.gather(*(note(text=each) for each in "abc"))
            await note(text="|".join(said))
            return said

    session = Session("shop", store=url)
    asyncio.run(agent(session))
    DONE.clear()
    for step, at in enumerate("abc", 1):
        fork = Fork(session.run_id, at=step, result="N", answers={"fork_anote": "last"})
        said = asyncio.run(agent(Session("shop", store=url, fork=fork)))
        assert said == ["N" if each == at else f"noted {each}" for each in "abc"]
    assert DONE == []


def test_what_was_approved_is_answered_and_what_was_rejected_stays_so(url: str) -> None:
    asked: list[bool] = []

    def asks(call: StepView) -> Verdict | None:
        return Verdict("ask", "sure?", "sure") if call.name == "fork_note" else None

    def approver(request: Any) -> Approval:
        asked.append(True)
        return Approval(request.args["text"] == "yes", by="ann")

    def agent(session: Session) -> None:
        with session:
            fork_note(text="yes")
            try:
                fork_note(text="no")
            except Blocked:
                fork_price(item="tea")

    session = Session("shop", store=url, rules=[asks], approver=approver)
    agent(session)
    run, ended = forked(url, Fork(session.run_id), agent, rules=[asks], approver=approver)
    assert ended is None
    assert told(run) == [("note", "hit"), ("note", "blocked"), ("price", "hit")]
    assert len(asked) == 2


def test_another_model_runs_from_the_step_on(url: str) -> None:
    asked: list[str] = []

    def agent(session: Session) -> None:
        with session:
            name = "small"
            if session.fork is not None and session.fork.model:
                name = session.fork.model

            def model(prompt: str) -> str:
                asked.append(name)
                return f"answer to {prompt}"

            contract = Contract.of(model, name="model", effect="read")
            said = ""
            for prompt in ("first", "second"):
                said = session.run(contract, {"prompt": prompt}, model, kind="model")
            fork_note(text=said)

    of = recorded(url, agent)
    asked.clear()
    run, ended = forked(url, Fork(of, at=2, model="large"), agent)
    assert ended is None  # it says the same
    assert asked == ["large"]
    assert [step.state for step in run.steps] == ["hit", "ran", "hit"]
    run, ended = forked(url, Fork(of, at=2, result="short"), agent)
    assert isinstance(ended, ForkEnded)
    assert run.steps[-1].args == {"text": "short"}
    with pytest.raises(SessionError, match="is a call of a model"):
        agent(Session("shop", store=url, fork=Fork(of, at=1, error="x")))


def test_a_fork_that_never_comes_to_its_step_says_so(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    of = recorded(url)

    def stops_early(session: Session) -> None:
        with session:
            fork_price(item="tea")

    run, ended = forked(url, Fork(of, at=3, result=9), stops_early)
    assert (run.status, ended) == ("partial", None)
    assert "never came to step 3 (fork_price), so nothing was changed in it" in caplog.text
    whole, _ = forked(url, Fork(of, at=3, result=2))
    again, _ = forked(url, Fork(of), stops_early)
    assert (whole.status, again.status) == ("ok", "ok")


def test_what_a_memory_holds_is_seen_in_a_fork_too(url: str) -> None:
    def agent(*done: str, nodes: str = "abc") -> Callable[[Session], None]:
        def run(session: Session) -> None:
            memory = Memory(*done)
            with session:
                session.follow(memory)
                for node in nodes:
                    with memory.at(node):
                        fork_note(text=node)
                        fork_price(item=node)

        return run

    agent(nodes="ab")(Session("shop", store=url))
    DONE.clear()
    of = Session("shop", store=url, replay="continue")
    agent("a", "b", nodes="c")(of)
    assert of.stats.seen == 4
    new_thread, _ = forked(url, Fork(of.run_id, at=2, result=50), agent())
    assert [step.state for step in new_thread.steps] == ["hit", "simulated", *["hit"] * 4]
    same, _ = forked(url, Fork(of.run_id, at=6, result=50), agent("a", "b", nodes="c"))
    assert [step.state for step in same.steps] == [*["seen"] * 4, "hit", "simulated"]
    too_late, _ = forked(url, Fork(of.run_id, at=2, result=50), agent("a", "b", nodes="c"))
    assert (new_thread.status, same.status, too_late.status) == ("ok", "ok", "partial")
    live, _ = forked(url, Fork(of.run_id, live=True), agent("a", "b", "c", nodes="d"))
    assert [step.state for step in live.steps] == [*["seen"] * 6, "ran", "ran"]
    assert DONE == ["c", "d"]


def test_calls_that_an_adapter_places_are_answered_in_any_order(url: str) -> None:
    def agent(*slots: int, turn: str = "message") -> Callable[[Session], None]:
        def run(session: Session) -> None:
            with session:
                for slot in slots:
                    with session.place(turn=turn, slot=slot, agent="ann", call_id=f"c{slot}"):
                        SEEN.append(f"{slot}: {fork_buy(item='tea', count=slot % 2)}")

        return run

    agent(0, 1, 2)(Session("shop", store=url))
    of = open_store(url).runs()[-1].run
    DONE.clear()
    SEEN.clear()
    run, _ = forked(url, Fork(of, at=3, result="changed"), agent(2, 1, 0))
    assert SEEN == ["2: changed", "1: bought 1 tea", "0: bought 0 tea"]
    assert [step.call_id for step in run.steps] == ["c2", "c1", "c0"]
    assert (run.status, DONE) == ("ok", [])


def test_streams_are_replaced_cut_and_performed(url: str) -> None:
    @tool(effect="read", name="fork_lines")
    def lines(item: str) -> Iterator[str]:
        SEEN.append(item)
        yield from ("a", "b", "c")

    @tool(effect="read", name="fork_lines")
    def others(item: str) -> Iterator[str]:
        SEEN.append(f"other {item}")
        yield from ("x", "y")

    @tool(name="fork_print")
    def printed(text: str) -> Iterator[str]:
        for each in text:
            DONE.append(each)
            yield each

    def agent(*, whole: bool = True) -> Callable[[Session], None]:
        def run(session: Session) -> None:
            with session:
                stream = lines(item="tea")
                got = [*stream] if whole else [next(iter(stream))]
                fork_note(text="".join([*got, *printed(text="".join(got))]))

        return run

    agent()(Session("shop", store=url))
    of = open_store(url).runs()[-1].run
    assert DONE == ["a", "b", "c", "abcabc"]
    DONE.clear()
    SEEN.clear()

    def printing(text: str) -> Iterator[str]:
        yield from text.upper()

    answers: dict[str, Any] = {"fork_print": printing, "fork_note": "noted"}
    replaced, ended = forked(url, Fork(of, at=1, tools=[others], answers=answers), agent())
    assert (replaced.status, ended, SEEN, DONE) == ("ok", None, ["other tea"], [])
    assert [step.state for step in replaced.steps] == ["simulated"] * 3
    assert [value(step) for step in replaced.steps[:2]] == [["x", "y"], ["X", "Y"]]
    assert replaced.steps[2].args == {"text": "xyXY"}
    pieces, _ = forked(url, Fork(of, at=1, result=["p", "q"], answers=answers), agent())
    assert [value(step) for step in pieces.steps[:2]] == [["p", "q"], ["P", "Q"]]
    halted, ended = forked(url, Fork(of, at=1, tools=[others]), agent())
    assert (halted.status, DONE) == ("would_write", [])
    left, ended = forked(url, Fork(of), agent(whole=False))
    assert left.status == "would_write", "another text is another write"
    performed, _ = forked(url, Fork(of, at=1, tools=[others], live=True), agent())
    assert (performed.status, DONE) == ("ok", ["x", "y", "xyxy"])
    with pytest.raises(ValueError, match="no lines"):
        forked(url, Fork(of, at=1, error=ValueError("no lines")), agent())
