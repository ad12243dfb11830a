"""A trace that can't be written: no write runs without its intent, and nothing runs behind it."""

import asyncio
import errno
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
from rollcage import SessionHalted, StoreError, TraceUnwritable, UnknownOutcome, tool
from rollcage.session.session import Session
from rollcage.store import JsonlStore

Events = Callable[[str], list[dict[str, Any]]]
Python = Callable[..., subprocess.CompletedProcess[str]]

LIMITED = """
    import os, resource, signal, sys
    from rollcage import SessionHalted, TraceUnwritable, tool
    from rollcage.session.session import Session

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # the kernel then says EFBIG: as a full disk
    room, size = int(sys.argv[1]), int(sys.argv[2])
    effects = os.open("effects", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)

    @tool(effect="write")
    def write(number: int) -> str:
        os.write(effects, b"%d\\n" % number)
        return "x" * size

    ran = []
    session = Session("job", store="store")
    try:
        with session:
            _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
            for number in range(100):
                try:
                    write(number)
                    ran.append(number)
                except TraceUnwritable:
                    break
            else:
                sys.exit("the limit was never met")
            before = os.fstat(effects).st_size
            try:
                write(1000)
                sys.exit("a write ran in a session whose trace is full")
            except SessionHalted as error:
                assert isinstance(error.__cause__, TraceUnwritable)
            assert os.fstat(effects).st_size == before
    except TraceUnwritable as error:
        print(session.run_id, len(ran))
"""


def descriptor_of(path: Path) -> int:
    """The open descriptor of a file of this process."""
    for link in Path("/proc/self/fd").iterdir():
        try:
            if link.readlink() == path:
                return int(link.name)
        except FileNotFoundError:
            continue
    raise AssertionError(f"{path} is not open")


class Effects:
    """A tool whose runs are counted, and which can harm its own trace."""

    def __init__(self) -> None:
        self.ran: list[int] = []
        self.harm: Callable[[], None] | None = None

    def write(self, number: int) -> str:
        self.ran.append(number)
        if self.harm is not None:
            self.harm()
        return f"wrote {number}"

    def keep(self, text: str) -> str:
        return self.write(len(text))


def fill(path: Path) -> None:
    """From now on, what is written to this open file meets a full disk."""
    full = os.open("/dev/full", os.O_RDWR)
    try:
        os.dup2(full, descriptor_of(path))
    finally:
        os.close(full)


def close(path: Path) -> None:
    """Close this open file behind the back of whoever opened it; a later file takes its number."""
    os.close(descriptor_of(path))


@pytest.mark.parametrize("room", range(3_000, 4_400, 200))
def test_a_full_disk_runs_no_write(
    python: Python, store: JsonlStore, events: Events, tmp_path: Path, room: int
) -> None:
    """Each room ends inside another line: its short write is undone."""
    child = python(LIMITED, str(room), "30")
    assert child.returncode == 0, child.stderr
    run, ran = child.stdout.split()
    trace = store.read(run)
    assert not trace.torn
    recorded = events(run)
    started = {e["step"] for e in recorded if e["event"] == "step.started"}
    ended = {e["step"] for e in recorded if e["event"] == "step.finished"}
    happened = (tmp_path / "effects").read_text().splitlines()
    assert len(happened) == len(started), "nothing ran without its intent in the trace"
    assert len(ended) == int(ran)
    assert len(started - ended) in (0, 1), "at most the last outcome was lost"
    again = Session("job", store=store)
    effects = Effects()
    written = again.tool(effects.write)
    if started == ended:
        with again:
            assert [written(n) for n in range(int(ran))] == ["x" * 30] * int(ran)
            assert written(int(ran)) == f"wrote {ran}"
    else:  # it happened, but its outcome is not in the trace
        with pytest.raises(UnknownOutcome), again:
            for number in range(int(ran) + 1):
                written(number)


def test_a_result_too_large_for_the_disk_is_unknown(
    python: Python, store: JsonlStore, events: Events
) -> None:
    child = python(LIMITED, "50000", "200000")
    assert child.returncode == 0, child.stderr
    run, ran = child.stdout.split()
    assert ran == "0"
    assert [e["event"] for e in events(run)] == ["run.started", "step.started", "run.finished"]
    assert not [p for p in store.root.rglob("blobs/*/*") if p.stat().st_size == 200_002]


@pytest.mark.parametrize("harm", [fill, close])
def test_no_intent_no_write(store: JsonlStore, harm: Callable[[Path], None]) -> None:
    effects = Effects()
    session = Session("job", store=store)
    with pytest.raises(TraceUnwritable) as left, session:
        write = session.tool(effects.write)
        write(1)
        harm(store.root.resolve() / "runs" / f"{session.run_id}.jsonl")
        with pytest.raises(TraceUnwritable):
            write(2)
        with pytest.raises(SessionHalted) as refused:
            write(3)
        assert refused.value.__cause__ is session.halted
    assert left.value is session.halted
    assert effects.ran == [1]
    assert session.run_id in str(left.value)


@pytest.mark.parametrize("harm", [fill, close])
def test_an_outcome_that_cannot_be_written_is_unknown(
    store: JsonlStore, events: Events, harm: Callable[[Path], None]
) -> None:
    effects = Effects()
    session = Session("job", store=store)
    with pytest.raises(TraceUnwritable), session:
        path = store.root.resolve() / "runs" / f"{session.run_id}.jsonl"
        effects.harm = lambda: harm(path)
        session.tool(effects.write)(1)
    assert [e["event"] for e in events(session.run_id)] == ["run.started", "step.started"]
    effects.harm = None
    with pytest.raises(UnknownOutcome) as caught, Session("job", store=store) as again:
        again.tool(effects.write)(1)
    assert (caught.value.run, caught.value.step) == (session.run_id, 1)
    assert effects.ran == [1]


def test_an_interrupt_goes_on_though_the_trace_is_full(store: JsonlStore) -> None:
    session = Session("job", store=store)

    def stop() -> None:
        fill(store.root.resolve() / "runs" / f"{session.run_id}.jsonl")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), session:
        stop()


async def test_a_cancellation_goes_on_though_the_trace_is_full(store: JsonlStore) -> None:
    entered = asyncio.Event()

    async def work() -> None:
        async with Session("job", store=store) as session:
            fill(store.root.resolve() / "runs" / f"{session.run_id}.jsonl")
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.fixture
def cannot_sync(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From when this is called, files take what is written to them; no disk confirms it."""

    def refuse(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    return lambda: monkeypatch.setattr(os, "fdatasync", refuse)


def test_a_disk_that_does_not_confirm_the_intent_runs_no_write(
    store: JsonlStore, cannot_sync: Callable[[], None]
) -> None:
    effects = Effects()
    session = Session("job", store=store, durability="disk")
    with pytest.raises(TraceUnwritable), session:
        cannot_sync()
        with pytest.raises(TraceUnwritable, match="EIO"):
            session.tool(effects.write)(1)
        assert isinstance(session.halted, TraceUnwritable)
    assert effects.ran == []


async def test_an_async_write_waits_for_the_disk_too(
    store: JsonlStore, cannot_sync: Callable[[], None]
) -> None:
    effects = Effects()
    session = Session("job", store=store, durability="disk")
    with pytest.raises(TraceUnwritable):
        async with session:
            assert await session.acall(effects.write, number=1) == "wrote 1"
            cannot_sync()
            await session.acall(effects.write, number=2)
    assert effects.ran == [1]


def test_a_disk_that_does_not_confirm_the_outcome_halts(
    store: JsonlStore, cannot_sync: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    effects = Effects()
    session = Session("job", store=store, durability="disk")
    with pytest.raises(TraceUnwritable, match="EIO"), session:
        effects.harm = cannot_sync
        session.tool(effects.write)(1)
    assert session.halted is not None
    effects.harm = None
    monkeypatch.undo()
    with Session("job", store=store) as again:  # the machine did not die: the kernel has it
        assert again.tool(effects.write)(1) == "wrote 1"
    assert effects.ran == [1]


@pytest.mark.parametrize("place", ["", "runs", "lock", "index.jsonl"])
def test_a_store_that_cannot_be_made_is_refused(tmp_path: Path, place: str) -> None:
    root = tmp_path / "store"
    wrong = root / place if place else root
    if place in ("lock", "index.jsonl"):
        wrong.mkdir(parents=True)
    else:
        wrong.parent.mkdir(parents=True, exist_ok=True)
        wrong.write_text("in the way")
    modes: tuple[Literal["auto", "off"], ...] = ("auto", "off")
    for mode in modes:
        with (
            pytest.raises((StoreError, TraceUnwritable), match="store"),
            Session("job", store=root, replay=mode),
        ):
            pytest.fail("a session without a store was entered")
    assert not list(root.rglob("*-*.jsonl"))


def test_a_large_value_that_cannot_be_kept_halts(store: JsonlStore) -> None:
    store.root.mkdir()
    (store.root / "blobs").write_text("in the way")
    effects = Effects()
    session = Session("job", store=store)
    with pytest.raises(TraceUnwritable), session:
        session.tool(effects.write)(1)
        large = session.tool(tool(effect="write")(effects.keep))
        large("x" * 100_000)  # its arguments can't be kept: it must not run
    assert effects.ran == [1]


def test_a_store_whose_key_is_damaged_seals_nothing(store: JsonlStore) -> None:
    store.root.mkdir()
    (store.root / "key").write_bytes(b"short")
    (store.root / "key").chmod(0o600)
    with Session("job", store=store) as session:
        keep = session.tool(tool(secret="text")(Effects().keep))
        with pytest.raises(StoreError, match="32 bytes"):
            keep(text="hunter2")
