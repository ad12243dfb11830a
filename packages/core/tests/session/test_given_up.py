"""Sessions that can't begin, and ends that can't be written."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from rollcage import Halt, Instrument, RunEvent, Session, SessionError, Stage, tool
from rollcage.errors import RunInUse, StoreError, TraceUnwritable
from rollcage.trace.folder import Folder

Enter = Callable[[Session], None]


@tool(name="given.up", effect="read")
def look() -> str:
    return "seen"


class Refuses(Stage):
    """Can't begin."""

    def __init__(self, *, in_context: bool) -> None:
        self.opens_in_context = in_context

    def opened(self, session: Session) -> None:
        raise KeyError("not now")


class Kept(Instrument):
    def __init__(self) -> None:
        self.runs: list[RunEvent] = []

    def opened(self, run: RunEvent, /) -> None:
        self.runs.append(run)

    def closed(self, run: RunEvent, /) -> None:
        self.runs.append(run)


def enter(session: Session) -> None:
    with session:
        look()


def aenter(session: Session) -> None:
    async def run() -> None:
        async with session:
            look()
        raise AssertionError

    asyncio.run(run())


@pytest.mark.parametrize("in_context", [False, True])
@pytest.mark.parametrize("enters", [enter, aenter])
def test_a_session_that_can_not_begin_lets_its_run_go(
    tmp_path: Path, enters: Enter, in_context: bool
) -> None:
    kept = Kept()
    session = Session(
        "job", store=tmp_path, observers=[kept], stages=[Refuses(in_context=in_context)]
    )
    with pytest.raises(KeyError, match="not now"):
        enters(session)
    told = [(what, "", session.run_id) for what in ("opened", "closed")] if in_context else []
    assert [(each.what, each.status, each.run) for each in kept.runs] == told
    assert look() == "seen"  # of no session, without a warning
    with pytest.raises(SessionError, match="was left"):
        session.call(look)
    with Session("job", store=tmp_path) as again:
        assert look() == "seen"
    assert again.run_id == session.run_id


@pytest.mark.parametrize("enters", [enter, aenter])
def test_a_session_without_observers_gives_up_as_well(tmp_path: Path, enters: Enter) -> None:
    with pytest.raises(KeyError, match="not now"):
        enters(Session("job", store=tmp_path, stages=[Refuses(in_context=False)]))
    with Session("job", store=tmp_path) as again:
        assert (look(), again.stats.calls) == ("seen", 1)


def test_it_gives_up_inside_of_another_one(tmp_path: Path) -> None:
    with Session("outer", store=tmp_path / "one") as outer:
        inner = Session("inner", store=tmp_path / "two", stages=[Refuses(in_context=True)])
        with pytest.raises(KeyError):
            inner.__enter__()
        look()
    assert outer.stats.calls == 1


class EndsLog:
    """A log that fails when it is closed."""

    def __init__(self, log: Any) -> None:
        self._log = log

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def close(self) -> None:
        self._log.close()
        raise TraceUnwritable("close failed")


class Ends(Folder):
    """A folder that fails at the end of a session."""

    fails = ""

    def open(self, run: str, *, take: bool = False) -> Any:
        log = super().open(run, take=take)
        return EndsLog(log) if self.fails == "close" else log

    def swap(self, kind: str, key: str, was: bytes | None, new: bytes | None) -> bool:
        if kind == "heads" and self.fails == "heads":
            raise StoreError("heads failed")
        return super().swap(kind, key, was, new)


def test_an_end_that_is_not_on_record_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Ends(tmp_path)
    store.fails = "close"
    with pytest.raises(TraceUnwritable, match="close failed"), Session("job", store=store):
        look()
    assert caplog.text == ""
    session = Session("job", store=store, replay="continue")
    with pytest.raises(KeyboardInterrupt), session:  # which no halt takes the place of
        raise KeyboardInterrupt
    assert f"the end of run {session.run_id} is not on record: close failed" in caplog.text


@pytest.mark.parametrize("error", [None, KeyError("mine")])
def test_an_end_that_is_not_attested_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error: Exception | None
) -> None:
    store = Ends(tmp_path)
    store.fails = "heads"
    session = Session("job", store=store)
    with contextlib.suppress(KeyError), caplog.at_level(logging.WARNING), session:
        look()
        if error is not None:
            raise error
    assert f"the end of run {session.run_id} is not attested: heads failed" in caplog.text
    with Session("job", store=tmp_path, replay="continue") as again:
        look()
    assert again.stats.hits == 1


def test_a_run_that_is_open_is_not_opened_again(tmp_path: Path) -> None:
    with Session("job", store=tmp_path) as session:
        look()
        other = Session("job", store=Folder(tmp_path), run=session.run_id)
        with pytest.raises(RunInUse):
            asyncio.run(asyncio.wait_for(_enter(other), 30))
        look()
    assert session.stats.calls == 2


async def _enter(session: Session) -> None:
    async with session:
        raise AssertionError


@pytest.mark.parametrize("enters", [enter, aenter])
def test_what_halts_at_the_end_is_the_end(tmp_path: Path, enters: Enter) -> None:
    class Leaves(Stage):
        def leaving(self, session: Session, *, is_async: bool) -> Any:
            raise Halt("not yet")
            yield is_async

    session = Session("job", store=tmp_path, stages=[Leaves()])
    with pytest.raises((Halt, AssertionError)) as halted:
        enters(session)
    assert str(halted.value) == "not yet"
    last = orjson.loads(Folder(tmp_path).read(session.run_id)[-1])
    assert (last["status"], last["error"]["message"]) == ("halted", "not yet")


@pytest.mark.parametrize("copies", [False, True])
def test_a_run_that_was_not_begun_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copies: bool
) -> None:
    """Another session of the job has begun meanwhile; whoever has the error keeps no lock."""
    store = Folder(tmp_path)
    with Session("source", store=store) as source:
        look()
    swap = Folder.swap

    def loses(self: Folder, kind: str, *given: Any) -> bool:
        return kind != "names" and swap(self, kind, *given)

    monkeypatch.setattr(Folder, "swap", loses)
    session = Session("job", store=store, source=source.run_id if copies else None)
    with pytest.raises(RunInUse, match="another session of 'job' has begun") as refused, session:
        pass
    runs = [ends.run for ends in store.runs()]
    assert len(runs) == 2
    assert not any(map(store.is_live, runs))
    del refused
