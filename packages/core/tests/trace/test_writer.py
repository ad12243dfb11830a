"""Logs of sessions on event loops: nothing blocks, nothing is lost, and all is in order."""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from rollcage.errors import Fenced, Forked, TraceUnwritable
from rollcage.trace.chain import Chain
from rollcage.trace.folder import Folder
from rollcage.trace.writer import Queued
from rollcage_conformance.stores.base import FIRST, begun, numbers


@pytest.fixture
def store(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "store")


def queued(store: Folder, run: str = "r1") -> Chain:
    chain = Chain(Queued(store.open(run)))
    if not chain.read():
        chain.append(FIRST)
    return chain


class Held:
    """The functions of `os` that write: held until they are released, and who called them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.threads: set[int] = set()
        self.reached = threading.Event()
        self._go = threading.Event()
        for name in ("write", "fstat", "open", "close", "stat", "fdatasync"):
            monkeypatch.setattr(os, name, self._watched(getattr(os, name)))

    def _watched(self, call: Any) -> Any:
        def watched(*given: Any, **named: Any) -> Any:
            self.threads.add(threading.get_ident())
            if threading.current_thread().name == "rollcage-writer":
                self.reached.set()
                self._go.wait()
            return call(*given, **named)

        return watched

    def release(self) -> None:
        self._go.set()


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    found = Held(monkeypatch)
    yield found
    found.release()


async def closed(*chains: Chain) -> None:
    for chain in chains:
        await asyncio.to_thread(chain.close)


async def test_what_is_settled_is_on_record(store: Folder) -> None:
    chain = await asyncio.to_thread(queued, store)
    for n in range(50):
        chain.append({"n": n})
        await chain.settled()
        assert numbers(store)[-1] == n
    chain.append({"n": 50})
    await closed(chain)
    assert numbers(store) == list(range(51))


async def test_the_loop_goes_on_while_the_disk_does_not(store: Folder, held: Held) -> None:
    """Neither `append` nor `settled` waits: the loop turns although no write comes back."""
    chain = Chain(Queued(store.open("r1")))
    held.threads.clear()
    chain.append(FIRST)
    settled = asyncio.ensure_future(chain.settled())
    await asyncio.to_thread(held.reached.wait)
    for n in range(100):
        chain.append({"n": n})
        await asyncio.sleep(0)
    assert not settled.done()
    assert threading.get_ident() not in held.threads
    held.release()
    await settled
    await closed(chain)
    assert numbers(store) == list(range(100))


async def test_many_sessions_on_one_loop(store: Folder) -> None:
    async def session(name: str) -> None:
        chain = await asyncio.to_thread(queued, store, name)
        for n in range(20):
            chain.append({"n": n})
            await chain.settled()
            chain.append({"n": n + 100})
        await closed(chain)

    names = [f"r{n}" for n in range(16)]
    await asyncio.gather(*map(session, names))
    for name in names:
        assert numbers(store, name) == [m for n in range(20) for m in (n, n + 100)]


def test_many_loops(store: Folder) -> None:
    async def session(name: str) -> None:
        chain = await asyncio.to_thread(queued, store, name)
        for n in range(50):
            chain.append({"n": n})
            await chain.settled()
        await closed(chain)

    threads = [threading.Thread(target=lambda n=n: asyncio.run(session(f"r{n}"))) for n in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for n in range(5):
        assert numbers(store, f"r{n}") == list(range(50))


async def test_gathered_calls_of_one_session_wait_together(store: Folder) -> None:
    chain = await asyncio.to_thread(queued, store)

    async def call(n: int) -> None:
        chain.append({"n": n})
        await chain.settled()
        chain.append({"n": -n})

    await asyncio.gather(*map(call, range(1, 30)))
    await closed(chain)
    found = numbers(store)
    assert sorted(found) == sorted([*range(1, 30), *range(-29, 0)])
    assert all(found.index(n) < found.index(-n) for n in range(1, 30))


async def test_a_line_whose_task_was_cancelled_is_written_in_order(
    store: Folder, held: Held
) -> None:
    chain = Chain(Queued(store.open("r1")))
    chain.append(FIRST)

    async def call() -> None:
        chain.append({"n": 1})
        await chain.settled()
        raise AssertionError("its body ran")

    task = asyncio.ensure_future(call())
    await asyncio.to_thread(held.reached.wait)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    chain.append({"n": 2})
    held.release()
    await chain.settled()
    await closed(chain)
    assert numbers(store) == [1, 2]


async def test_an_error_comes_to_its_own_log(
    store: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad = queued(store, "good"), queued(store, "bad")
    await good.settled()
    await bad.settled()
    new = begun(store, "bad", take=True)
    new.append({"n": 0})
    new.wait()
    for n in range(3):
        good.append({"n": n})
    bad.append({"n": 1})
    await good.settled()
    with pytest.raises(Fenced):
        await bad.settled()
    for _ in range(2):  # and stays there
        with pytest.raises(Fenced):
            bad.append({"n": 2})
        with pytest.raises(Fenced):
            await bad.settled()
        with pytest.raises(Fenced):
            await asyncio.to_thread(bad.wait)
    good.append({"n": 3})
    await closed(good)
    with pytest.raises(Fenced):
        await closed(bad)
    new.close()
    assert numbers(store, "good") == [0, 1, 2, 3]
    assert numbers(store, "bad") == [0]


async def test_nothing_is_appended_behind_a_line_that_failed(
    store: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lines behind it are chained to it: there must be no gap."""
    chain = queued(store)
    await chain.settled()
    write = os.write
    left = [1]

    def failing(file: int, data: bytes) -> int:
        if b'"n":1}' in data.replace(b',"hash"', b"}"):
            left[0] -= 1
            raise OSError(28, "No space left on device")
        return write(file, data)

    monkeypatch.setattr(os, "write", failing)
    for n in range(4):
        chain.append({"n": n})
    with pytest.raises(TraceUnwritable, match="ENOSPC"):
        await chain.settled()
    with pytest.raises(TraceUnwritable):
        await closed(chain)
    assert numbers(store) == [0]
    assert left == [0]


async def test_whatever_a_log_raises_is_delivered(store: Folder) -> None:
    class Broken:
        where, last, bell, is_at_once = "broken", b"", 0, True

        def hear(self) -> None:
            return None

        def append(self, line: bytes) -> None:
            raise MemoryError

        def read(self) -> list[bytes]:
            return []

        def lines(self) -> Iterator[bytes]:
            return iter(())

        def replace(self, lines: Sequence[bytes]) -> None:
            raise MemoryError

        def wait(self) -> None: ...

        async def settled(self) -> None: ...

        def close(self) -> None: ...

    log = Queued(Broken())
    log.append(b"x")
    with pytest.raises(MemoryError):
        await log.settled()


async def test_an_order_is_seen_with_the_next_intent(store: Folder) -> None:
    chain = await asyncio.to_thread(queued, store)
    await chain.settled()
    for n in range(10):
        before = chain.log.bell
        chain.append({"n": n})
        await chain.settled()
        assert chain.log.bell == before
        was = store.get("orders", "r1")
        assert await asyncio.to_thread(store.swap, "orders", "r1", was, b"%d" % n)
        chain.append({"n": n})
        await chain.settled()
        assert chain.log.bell != before
    await closed(chain)


def test_a_loop_that_was_closed_leaves_its_lines(store: Folder, held: Held) -> None:
    chain = Chain(Queued(store.open("r1")))
    chain.append(FIRST)

    async def abandoned() -> None:
        chain.append({"n": 1})
        task = asyncio.ensure_future(chain.settled())
        await asyncio.to_thread(held.reached.wait)
        task.cancel()

    asyncio.run(abandoned())  # its loop is closed before the writer answers
    held.release()
    chain.append({"n": 2})
    chain.close()
    assert numbers(store) == [1, 2]


def python(code: str, *given: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, given)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


BEGIN = """
import asyncio, os, sys, warnings
warnings.filterwarnings("ignore", "This process", DeprecationWarning)  # a fork beside threads
from rollcage.errors import Forked
from rollcage.trace.folder import Folder
from rollcage.trace.chain import Chain
from rollcage.trace.writer import Queued
chain = Chain(Queued(Folder(sys.argv[1]).open("r1")))
chain.append({"event": "run", "format": "rollcage/2"})
"""


def test_at_the_end_of_a_process_all_is_written(store: Folder) -> None:
    done = python(BEGIN + "for n in range(5000): chain.append({'n': n})", store.root)
    assert (done.returncode, done.stderr) == (0, "")
    assert numbers(store) == list(range(5000))


def test_a_process_that_ends_by_an_error_writes_all(store: Folder) -> None:
    done = python(
        BEGIN + "for n in range(500): chain.append({'n': n})\nraise SystemExit(3)", store.root
    )
    assert (done.returncode, done.stderr) == (3, "")
    assert numbers(store) == list(range(500))


def test_a_forked_child_writes_runs_of_its_own(store: Folder) -> None:
    code = (
        BEGIN
        + """
chain.wait()
if not os.fork():
    try:
        chain.append({"n": 9})
        os._exit(1)
    except Forked:
        pass
    try:
        asyncio.run(chain.settled())
        os._exit(2)
    except Forked:
        pass
    chain.close()
    own = Chain(Queued(Folder(sys.argv[1]).open("r2")))
    own.append({"event": "run", "format": "rollcage/2"})
    async def settle():
        for n in range(3):
            own.append({"n": n})
            await own.settled()
    asyncio.run(settle())
    own.close()
    os._exit(0)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
chain.append({"n": 1})
chain.close()
"""
    )
    done = python(code, store.root)
    assert (done.returncode, done.stderr) == (0, "")
    assert numbers(store, "r1") == [1]
    assert numbers(store, "r2") == [0, 1, 2]


async def test_a_childs_copy_of_a_log_writes_nothing(store: Folder) -> None:
    mine = queued(store)
    await mine.settled()
    there = mine.log
    assert isinstance(there, Queued)
    there.forked()
    said = f"is written by process {os.getppid()}, and this is a forked child of it"
    with pytest.raises(Forked, match=said):
        mine.append({"n": 1})
    with pytest.raises(Forked, match=said):
        await there.settled()
    assert numbers(store) == []


class Noted:
    """A log that notes what is asked of it, and fails where it is told to."""

    where, last, bell, is_at_once = "noted", b"first", 7, True

    def __init__(self, *fails: str) -> None:
        self.asked: list[str] = []
        self._fails = fails

    def _note(self, what: str) -> None:
        self.asked.append(what)
        if what in self._fails:
            raise TraceUnwritable(what)

    def hear(self) -> None:
        return None

    def append(self, line: bytes) -> None:
        self._note(line.decode())

    def read(self) -> list[bytes]:
        self.last, self.bell = b"read", 8
        return [b"one", b"read"]

    def lines(self) -> Iterator[bytes]:
        yield from self.read()

    def replace(self, lines: Sequence[bytes]) -> None:
        self._note("replace")
        self.last = lines[-1]

    def wait(self) -> None:
        self._note("wait")
        self.bell += 1

    async def settled(self) -> None: ...

    def close(self) -> None:
        self._note("close")


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_log_is_waited_for_once_for_what_was_handed_over(is_async: bool) -> None:
    noted = Noted()
    log = Queued(noted)

    async def settle() -> None:
        await (log.settled() if is_async else asyncio.to_thread(log.wait))

    assert (log.where, log.last, log.bell, log.hear()) == ("noted", b"first", 0, None)
    await settle()
    assert noted.asked == []
    for line in (b"a", b"b"):
        log.append(line)
        assert log.last == line
    await settle()
    assert (noted.asked, log.bell) == (["a", "b", "wait"], 8)
    await settle()  # nothing was handed over since
    assert noted.asked == ["a", "b", "wait"]
    log.append(b"c")
    await settle()
    await settle()
    assert (noted.asked[3:], log.bell) == (["c", "wait"], 9)
    assert list(log.lines()) == [b"one", b"read"]
    assert (log.last, log.bell) == (b"read", 8)
    log.append(b"d")
    await asyncio.to_thread(log.replace, [b"e"])
    assert (noted.asked[5:], log.last) == (["d", "wait", "replace"], b"e")
    log.append(b"f")
    await asyncio.to_thread(log.close)
    assert noted.asked[8:] == ["f", "wait", "close"]


@pytest.mark.parametrize("fails", ["a", "wait"])
async def test_a_log_that_failed_takes_no_more(fails: str) -> None:
    noted = Noted(fails)
    log = Queued(noted)
    log.append(b"a")
    asked = ["a"] if fails == "a" else ["a", "wait"]
    for _ in range(2):
        with pytest.raises(TraceUnwritable, match=fails):
            await log.settled()
        with pytest.raises(TraceUnwritable, match=fails):
            await asyncio.to_thread(log.wait)
        with pytest.raises(TraceUnwritable, match=fails):
            log.append(b"b")
    assert noted.asked == asked
    with pytest.raises(TraceUnwritable, match=fails):
        await asyncio.to_thread(log.close)
    assert noted.asked == [*asked, "close"]


@pytest.mark.parametrize("fails", ["append", "wait"])
async def test_a_log_that_fails_is_told_to_whoever_waits(store: Folder, fails: str) -> None:
    log = await asyncio.to_thread(store.open, "r1")
    await asyncio.to_thread(log.read)

    class Full:
        """A log whose disk is full."""

        def __getattr__(self, name: str) -> Any:
            if name == fails:
                raise TraceUnwritable("no space left")
            return getattr(log, name)

    for _ in range(2):  # the thread goes on
        log_of: Any = Full()
        full = Queued(log_of)
        full.append(b"{}")
        with pytest.raises(TraceUnwritable, match="no space left"):
            await full.settled()
        with pytest.raises(TraceUnwritable, match="no space left"):
            full.append(b"{}")
    log.close()


def test_the_thread_keeps_no_process_alive() -> None:
    class Other(Noted):
        """A log of a kind that has no thread yet."""

    before = {*threading.enumerate()}
    Queued(Other())
    (thread,) = {*threading.enumerate()} - before
    assert (thread.name, thread.daemon) == ("rollcage-writer", True)
