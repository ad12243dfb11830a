"""A paused run: each kind of call waits, whoever makes it, and is decided on once it goes on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import orjson
import pytest
from rollcage import Approval, Contract, Session, StepView, Store, Verdict, compensate, tool
from rollcage.errors import Blocked, RunStopped
from rollcage.stages import orders
from rollcage.stages.orders import lift_order, pause_run, stop_run

ran: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    ran.clear()
    monkeypatch.setattr(orders, "_LOOK", 0.001)
    monkeypatch.setattr(orders, "_OFTEN", 0.0)


@tool(name="pauses.unwrite", effect="write")
def unwrite(n: int) -> None:
    ran.remove(n)


@tool(name="pauses.write", effect="write", undo=lambda args: [compensate(unwrite, n=args["n"])])
def write(n: int) -> int:
    ran.append(n)
    return n


ANY = Contract(name="pauses.any", parameters={"type": "object"}, effect="read")


def body() -> int:
    ran.append("body")
    return 7


def pieces() -> Iterator[int]:
    ran.append("body")
    yield 7


async def apieces() -> AsyncIterator[int]:
    ran.append("body")
    yield 7


def asked(session: Session) -> Any:
    return session.run_call(ANY, {}, body, kind="model")


def streamed(session: Session) -> Any:
    return list(session.stream(ANY, {}, pieces))


def streamed_asynchronously(session: Session) -> Any:
    async def read() -> list[int]:
        return [each async for each in session.astream(ANY, {}, apieces)]

    return asyncio.run(read())


def in_a_branch(session: Session) -> Any:
    with session.branch("b"):
        return session.call(write, n=7)


def in_a_session(session: Session) -> Any:
    with Session("inner", store=session.store):
        return write(7)


def in_a_transaction(session: Session) -> Any:
    with session.transaction():
        return session.call(write, n=7)


CALLS = [asked, streamed, streamed_asynchronously, in_a_branch, in_a_session, in_a_transaction]


def when_it_waits(session: Session, then: Callable[[], object]) -> threading.Thread:
    """Do something once a call waits in a paused run: its line says so."""

    def look() -> None:
        while b'"event":"ordered"' not in b"".join(session.store.read(session.run_id)):
            threading.Event().wait(0.001)
        then()

    thread = threading.Thread(target=look)
    thread.start()
    return thread


def paused(session: Session, then: Callable[[], object] = lambda: None) -> threading.Thread:
    """Pause a run, and lift that once a call waits."""
    pause_run(session.store, session.run_id, by="ann")

    def lift() -> None:
        then()
        ran.append("lifted")
        lift_order(session.store, session.run_id)

    return when_it_waits(session, lift)


@pytest.mark.parametrize("call", CALLS)
def test_each_kind_of_call_waits(store: Store, call: Callable[[Session], Any]) -> None:
    with Session("job", store=store) as session:
        thread = paused(session)
        assert call(session) in (7, [7])
        thread.join()
    assert ran in (["lifted", "body"], ["lifted", 7])


@pytest.mark.parametrize("call", CALLS)
def test_a_stop_while_it_waits_runs_nothing(store: Store, call: Callable[[Session], Any]) -> None:
    with pytest.raises(RunStopped), Session("job", store=store) as session:
        pause_run(store, session.run_id, by="ann")
        thread = when_it_waits(session, lambda: stop_run(store, session.run_id, by="ann"))
        try:
            call(session)
        finally:
            thread.join()
    assert ran == []


def test_what_is_denied_meanwhile_does_not_run(store: Store) -> None:
    denied: list[bool] = []

    def rule(_: StepView) -> Verdict | None:
        return Verdict.deny("no more", code="no_more") if denied else None

    with Session("job", store=store, gate=[rule]) as session:
        thread = paused(session, lambda: denied.append(True))
        with pytest.raises(Blocked) as blocked:
            write(1)
        thread.join()
    assert blocked.value.verdict_code == "no_more"
    assert ran == ["lifted"]


def test_an_approved_call_waits_as_well(store: Store) -> None:
    threads: list[threading.Thread] = []

    def approver(_: Any) -> Approval:
        threads.append(paused(session))
        return Approval(True, by="ann")

    session = Session("job", store=store, gate=[lambda _: Verdict.ask("so?")], approver=approver)
    with session:
        write(1)
    threads[0].join()
    assert ran == ["lifted", 1]
    kinds = [orjson.loads(line)["event"] for line in store.read(session.run_id)]
    assert kinds.count("requested") == 1


def test_an_undo_does_not_wait(store: Store) -> None:
    with Session("job", store=store) as session:
        write(1)
        pause_run(store, session.run_id, by="ann")
        assert session.undo().complete
        lift_order(store, session.run_id)
    assert ran == []


def test_a_hit_waits_too(store: Store) -> None:
    with pytest.raises(KeyError), Session("job", store=store) as session:
        write(1)
        raise KeyError
    ran.clear()
    with Session("job", store=store) as session:
        thread = paused(session)
        assert write(1) == 1
        assert ran == ["lifted"]
        thread.join()
