"""`with session.transaction():` keeps all of a block's effects, or none."""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rollcage import (
    DidNotHappen,
    Diverged,
    Happened,
    SessionHalted,
    TraceUnwritable,
    UndoIncomplete,
    UnknownOutcome,
    compensate,
    tool,
)
from rollcage.session.session import Session
from rollcage.store import JsonlStore, store_option
from rollcage.store.writer import JsonlWriter

Events = Callable[[str], list[dict[str, Any]]]


def content(disk: Path) -> dict[str, str]:
    """The texts of the files in it."""
    return {p.name: p.read_text() for p in disk.iterdir() if p.name != "effects"}


class Broken(Exception):
    """What breaks a block."""


def put(files: Any, disk: Path, *names: str) -> None:
    for name in names:
        files.put_file(path=str(disk / name), text=name)


def test_a_block_that_ends_well_is_kept(store: JsonlStore, files: Any, disk: Path) -> None:
    hits: list[int] = []
    modes: list[Any] = ["off", "resume"]
    for replay in modes:
        with Session("job", store=store, replay=replay) as session:
            put(files, disk, "a")
            with session.transaction():
                put(files, disk, "b", "c")
            put(files, disk, "d")
            hits.append(session.stats.hits)
    assert hits == [0, 4]
    assert content(disk) == {"a": "a", "b": "b", "c": "c", "d": "d"}


def test_a_block_that_raises_is_taken_back(store: JsonlStore, files: Any, disk: Path) -> None:
    with Session("job", store=store) as session:
        put(files, disk, "a")
        with pytest.raises(Broken) as caught, session.transaction():
            put(files, disk, "b", "c")
            raise Broken
        assert not hasattr(caught.value, "__notes__")
        put(files, disk, "d")
    assert content(disk) == {"a": "a", "d": "d"}


def job_with_a_block(
    session: Session, files: Any, disk: Path, *, way: str = "raises", behind: bool = True
) -> list[object]:
    """A write, a block that looks, writes and is undone, and a write behind it."""
    seen: list[object] = []
    put(files, disk, "a")
    try:
        with session.transaction():
            seen.append(files.read_file(path=str(disk / "a")))
            put(files, disk, "b" if way != "writes more" else "c")
            if way != "ends well":
                raise Broken
    except Broken:
        pass
    if behind:
        put(files, disk, "d")
    return seen


def effects(disk: Path) -> int:
    return len((disk / "effects").read_text().splitlines())


def test_a_block_that_the_job_has_left_behind_is_undone_as_recorded(
    store: JsonlStore, files: Any, disk: Path
) -> None:
    seen: list[object] = []
    with pytest.raises(KeyError), Session("job", store=store) as session:
        seen += job_with_a_block(session, files, disk)
        raise KeyError
    there = effects(disk)
    for _ in range(2):  # the trace of a resume tells it as well
        with pytest.raises(KeyError), Session("job", store=store) as session:
            assert job_with_a_block(session, files, disk) == seen
            assert (session.stats.hits, session.stats.misses) == (4, 0)
            raise KeyError
    with Session("job", store=store, replay="offline") as session:
        assert job_with_a_block(session, files, disk) == seen
    assert effects(disk) == there
    assert content(disk) == {"a": "a", "d": "d"}


@pytest.mark.parametrize("way", ["ends well", "writes more"])
@pytest.mark.parametrize("policy", ["halt", "warn", "undo"])
def test_a_block_that_was_undone_as_recorded_can_take_no_other_way(
    store: JsonlStore, files: Any, disk: Path, way: str, policy: Any
) -> None:
    with pytest.raises(KeyError), Session("job", store=store) as session:
        job_with_a_block(session, files, disk)
        raise KeyError
    there = effects(disk)
    session = Session("job", store=store, on_divergence=policy)
    with pytest.raises(Diverged, match="undone before the run went on") as raised, session:
        job_with_a_block(session, files, disk, way=way)
    assert f"rollcage undo {session.run_id}{store_option(store)}; " in str(raised.value)
    assert effects(disk) == there, "what it had done before is not there: nothing new may come"


def test_a_block_that_nothing_came_behind_is_run_again(
    store: JsonlStore, files: Any, disk: Path
) -> None:
    with pytest.raises(KeyError), Session("job", store=store) as session:
        job_with_a_block(session, files, disk, behind=False)
        raise KeyError
    with Session("job", store=store, replay="offline") as session:
        job_with_a_block(session, files, disk, behind=False)
        assert session.stats.hits == 3, "what is only looked at is told as it was"
    with pytest.raises(KeyError), Session("job", store=store) as session:
        job_with_a_block(session, files, disk, way="ends well")
        assert (session.stats.hits, session.stats.misses) == (1, 3)
        raise KeyError
    assert content(disk) == {"a": "a", "b": "b", "d": "d"}
    with Session("job", store=store) as session:
        job_with_a_block(session, files, disk, way="ends well")
        assert (session.stats.hits, session.stats.misses) == (4, 0)
    assert content(disk) == {"a": "a", "b": "b", "d": "d"}


def test_retried_blocks_have_worlds_of_their_own(store: JsonlStore, files: Any, disk: Path) -> None:
    with Session("job", store=store) as session:
        for attempt in range(3):
            try:
                with session.transaction():
                    put(files, disk, "a")
                    if attempt < 2:
                        raise Broken
            except Broken:
                assert content(disk) == {}
    lines = [line for line in (disk / "effects").read_text().splitlines() if " put " in line]
    assert len({line.split()[0] for line in lines}) == 3
    assert content(disk) == {"a": "a"}


def test_nested_blocks(store: JsonlStore, files: Any, disk: Path) -> None:
    with Session("job", store=store) as session:
        with session.transaction():
            put(files, disk, "a")
            with pytest.raises(Broken), session.transaction():
                put(files, disk, "b")
                raise Broken
            assert content(disk) == {"a": "a"}
            with session.transaction():
                put(files, disk, "c")
        assert content(disk) == {"a": "a", "c": "c"}
        with pytest.raises(Broken), session.transaction():
            put(files, disk, "d")
            with session.transaction("inner"):
                put(files, disk, "e")
            with session.branch("side"):
                put(files, disk, "f")
            files.both(one=str(disk / "g"), two=str(disk / "h"))
            raise Broken
    assert content(disk) == {"a": "a", "c": "c"}


async def test_async_and_in_parallel(store: JsonlStore, files: Any, disk: Path) -> None:
    async with Session("job", store=store) as session:
        with pytest.raises(Broken):
            async with session.transaction() as block:
                with session.turn():
                    await asyncio.gather(
                        *(session.acall(files.aput_file, path=str(disk / n), text=n) for n in "abc")
                    )
                await asyncio.to_thread(block.call, files.put_file, path=str(disk / "d"), text="d")
                raise Broken
        assert content(disk) == {}
        async with session.transaction():
            await files.aput_file(path=str(disk / "a"), text="a")
    assert content(disk) == {"a": "a"}


async def test_a_cancelled_block(store: JsonlStore, files: Any, disk: Path) -> None:
    started = asyncio.Event()

    async def job(session: Session) -> None:
        async with session.transaction():
            await files.aput_file(path=str(disk / "a"), text="a")
            started.set()
            await asyncio.Event().wait()

    async with Session("job", store=store) as session:
        task = asyncio.create_task(job(session))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert content(disk) == {}


def test_what_can_not_be_taken_back_halts(store: JsonlStore, files: Any, disk: Path) -> None:
    opened = Session("job", store=store)
    with pytest.raises(UndoIncomplete, match="mail") as halted, opened as session:
        with pytest.raises(SessionHalted, match="could not be undone completely") as caught:  # noqa: SIM117
            with contextlib.suppress(Broken), session.transaction():
                put(files, disk, "a")
                files.mail(to="ann")
                raise Broken
        assert caught.value.__cause__ is opened.halted
        raise caught.value
    assert "rollcage undo" in str(halted.value)
    broken = halted.value.__cause__
    assert isinstance(broken, Broken)
    assert "irreversible" in broken.__notes__[0]
    assert content(disk) == {}


def test_a_body_does_not_go_on_behind_a_block_whose_undo_could_not_be_written(
    store: JsonlStore, files: Any, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert store.root.name  # it is the writer of a folder that is made to fail
    sent: list[str] = []
    full = [True]

    def refuse(*_: object) -> None:
        raise TraceUnwritable("the disk is full")

    @tool(effect="write", probe=lambda: Happened(None) if sent else DidNotHappen())
    def order() -> None:
        with contextlib.suppress(Broken), session.transaction():
            put(files, disk, "a")
            if full:
                monkeypatch.setattr(JsonlWriter, "append", refuse)
            raise Broken
        sent.append("order")

    with pytest.raises(TraceUnwritable), Session("job", store=store) as session:
        order()
    assert sent == [], "what stands in front of it was not taken back"
    assert content(disk) == {"a": "a"}
    full.clear()
    monkeypatch.undo()
    with Session("job", store=store) as session:
        order()
        assert session.stats.hits == 1
    assert sent == ["order"]
    assert content(disk) == {}


def test_a_block_with_a_write_of_unknown_outcome_goes_on_in_a_resume(
    store: JsonlStore, files: Any, disk: Path
) -> None:
    lost = [True]

    @tool(effect="write", observe=files.observe, undo=files.restore)
    def cut(path: str) -> None:
        if lost.pop():
            raise TimeoutError

    def block(session: Session, *, raises: bool = False) -> None:
        with session.transaction():
            put(files, disk, "a")
            cut(path=str(disk / "b"))
            if raises:
                raise Broken

    with pytest.raises(UnknownOutcome), Session("job", store=store) as session:
        block(session)
    assert content(disk) == {"a": "a"}, "the block has not failed: it is resumed"
    lost[:] = [False]
    with Session("job", store=store) as session:
        with pytest.raises(Broken):
            block(session, raises=True)
        assert session.stats.hits == 1, "a look shows what was lost, which runs again"
    assert content(disk) == {}


def test_a_block_in_a_session_that_was_stopped(store: JsonlStore, files: Any, disk: Path) -> None:
    with pytest.raises(TraceUnwritable), Session("job", store=store) as session:
        told = pytest.raises(SessionHalted, match=r"is not undone: .* the disk is full")
        with told as caught, contextlib.suppress(Broken), session.transaction():
            put(files, disk, "a")  # whoever swallows the block's own error does not go on
            session.halt(TraceUnwritable("the disk is full"))
            raise Broken
        assert isinstance(caught.value.__context__, Broken)
        assert "is not undone" in caught.value.__context__.__notes__[0]
    assert content(disk) == {"a": "a"}


def test_what_an_undone_block_has_found_out_is_given_back_offline_behind_it(
    store: JsonlStore, files: Any, disk: Path
) -> None:
    lost = [True]

    @tool(effect="pure")
    def double(number: int) -> int:
        return 2 * number

    @tool(effect="write", undo=list)
    def outer() -> None:
        double(number=2)

    @tool(effect="write", probe=DidNotHappen)
    def cut() -> None:
        if lost and lost.pop():
            raise TimeoutError

    def job() -> int:
        with contextlib.suppress(Broken), session.transaction():
            outer()
            raise Broken
        put(files, disk, "b")
        cut()
        return double(number=2)

    with pytest.raises(UnknownOutcome), Session("job", store=store) as session:
        job()
    with Session("job", store=store) as session:
        assert job() == 4
    run = session.run_id
    with Session("job", store=store, replay="offline", source=(store, run)) as session:
        assert job() == 4
    assert content(disk) == {"b": "b"}


def test_an_async_tool_needs_an_async_block(store: JsonlStore, disk: Path) -> None:
    @tool(effect="write", name="test_transaction.atake")
    async def take() -> None: ...

    @tool(effect="write", undo=lambda: [compensate(take)])
    def give() -> None: ...

    block = Session("job", store=store)
    with pytest.raises(UndoIncomplete, match="is async"), block as session:  # noqa: SIM117 - nested
        with pytest.raises(Broken), session.transaction():
            give()
            raise Broken
