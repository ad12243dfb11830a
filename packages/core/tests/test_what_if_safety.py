"""Nothing is written by a fork that was not told to, however its program tries."""

import threading
from pathlib import Path

import pytest
from fork_tools import (
    DONE,
    SEEN,
    fork_note,
    fork_press,
    fork_price,
    forked,
    recorded,
    told,
    world,  # noqa: F401 - pytest finds it here
)
from pydantic import SecretStr
from rollcage import Blocked, ForkEnded, RollcageError, RunPruned, SessionError, TraceCorrupt, tool
from rollcage.replay.fork import Fork
from rollcage.session.session import Session
from rollcage.store import open_store


def test_the_body_of_a_write_is_not_entered_again(url: str) -> None:
    def agent(session: Session) -> None:
        with session:
            fork_press(item="tea")

    of = recorded(url, agent)
    with pytest.raises(SessionError, match=r"step 1 \(fork_press\), a write"):
        agent(Session("shop", store=url, fork=Fork(of, at=2, result=1)))
    assert [info.run for info in open_store(url).runs()] == [of]  # nothing was begun
    assert SEEN == []


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


def test_a_damaged_origin_is_refused(tmp_path: Path) -> None:
    url = str(tmp_path / "s")
    of = recorded(url)
    trace = next((tmp_path / "s").rglob(f"{of}.jsonl"))
    data = trace.read_bytes()
    trace.write_bytes(data.replace(b'"value":10', b'"value":11'))
    with pytest.raises(TraceCorrupt), Session("shop", store=url, fork=Fork(of)):
        pass
    trace.write_bytes(data)


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


def test_a_pruned_origin_is_gone_and_its_forks_stand_alone(url: str) -> None:
    of = recorded(url)
    run, _ = forked(url, Fork(of))
    open_store(url).prune(of, by="ann", time=1, skeleton=b"")
    with pytest.raises(RunPruned), Session("shop", store=url, fork=Fork(of)):
        pass
    again, ended = forked(url, Fork(run.id))
    assert ended is None
    assert {step.state for step in again.steps} == {"hit"}


def test_a_tool_in_a_thread_that_knows_no_session_is_refused(url: str) -> None:
    refused: list[bool] = []

    def agent(session: Session) -> None:
        def work() -> None:
            try:
                fork_note(text="in a thread")
            except Blocked as error:
                refused.append("knows no session" in str(error))

        with session:
            fork_price(item="tea")
            if session.fork is not None:
                thread = threading.Thread(target=work)
                thread.start()
                thread.join()

    of = recorded(url, agent)
    _, ended = forked(url, Fork(of), agent)
    assert ended is None
    assert refused == [True]
    assert DONE == []


def test_the_body_of_a_read_may_not_write_either(url: str) -> None:
    @tool(effect="read", name="fork_sneaky")
    def sneaky(text: str) -> str:
        return fork_note(text=text)

    def agent(session: Session) -> None:
        with session:
            sneaky(text="a")

    of = recorded(url, agent)
    run, ended = forked(url, Fork(of, at=1, args={"text": "b"}), agent)
    assert isinstance(ended, ForkEnded)
    assert told(run) == [("sneaky", "not_started"), ("note", "blocked")]
    # ... and a fork of that, with an answer, goes on from there.
    run, ended = forked(url, Fork(run.id, answers={"fork_note": "sent"}), agent)
    assert ended is None
    assert told(run) == [("sneaky", "ran"), ("note", "simulated")]
    assert DONE == []


def test_secrets_are_matched_and_kept_and_not_changed(url: str) -> None:
    @tool(effect="write", name="fork_login")
    def login(user: str, password: SecretStr) -> str:
        DONE.append(user)
        return "in"

    def agent(session: Session) -> None:
        with session:
            login(user="ann", password=SecretStr("p4ss"))

    of = recorded(url, agent)
    run, ended = forked(url, Fork(of), agent)
    assert ended is None
    assert told(run) == [("login", "hit")]
    answers = {"fork_login": "in"}
    run, ended = forked(url, Fork(of, at=1, args={"user": "bob"}, answers=answers), agent)
    assert ended is None
    assert run.steps[0].args["user"] == "bob"
    _, ended = forked(url, Fork(of, at=1, args={"password": "x"}, answers=answers), agent)
    assert isinstance(ended, ForkEnded)
    assert "holds a secret" in str(ended)
    assert "p4ss" not in open_store(url).read(run.id).data.decode()
    assert DONE == []
