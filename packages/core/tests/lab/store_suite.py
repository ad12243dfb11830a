"""What every store promises a session: subclass `StoreSuite`, and say in `url` where one is."""

import asyncio
import contextlib
import gc
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import store_worker
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rollcage.errors import (
    Fenced,
    RunInUse,
    RunNotFound,
    StoreInvalid,
    TraceCorrupt,
    TraceUnwritable,
)
from rollcage.heart.log import FORMAT, ROOT, Chain, parse
from rollcage.heart.store import Store, open_store
from rollcage.heart.writer import Queued

__all__ = ["FIRST", "ODD", "Other", "StoreSuite", "begun", "events_of"]

FIRST = {"event": "run", "format": FORMAT}
ODD = [
    "a", "A", "a b", "..", ".", "../../up", "/etc/passwd", "a/b", "~a", "%2e", "a%", "-rf", "é",
    "nul.txt", "a\nb", "日本", "😀" * 40, "x" * 200, ".lock", ".part", "a.jsonl", "'; DROP TABLE--",
    "\x1b[31m", "\u202e", "con", " ",
]  # fmt: skip


class Other:
    """Another process that uses the store."""

    def __init__(self, url: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, store_worker.__file__, url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid

    def ask(self, name: str, /, **given: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([name, given]) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        """What it was asked for last, or the name of the error."""
        assert self._process.stdout is not None
        found = json.loads(self._process.stdout.readline())
        return found.get("error") or found["gave"]

    def do(self, name: str, /, **given: Any) -> Any:
        self.ask(name, **given)
        return self.answer()

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)
        self.until_frozen()

    def until_frozen(self) -> None:
        assert os.WIFSTOPPED(os.waitpid(self.pid, os.WUNTRACED)[1])

    def wake(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        with self._process:
            self._process.kill()


def begun(store: Store, run: str = "r1", **options: Any) -> Chain:
    """A log with its first line."""
    chain = Chain(store.open(run, **options))
    if not chain.read():
        chain.append(FIRST)
    return chain


def events_of(store: Store, run: str = "r1") -> list[dict[str, Any]]:
    """All events of a run, its chain checked."""
    return parse(store.read(run), run)


def numbers(store: Store, run: str = "r1") -> list[int]:
    return [event["n"] for event in events_of(store, run)[1:]]


class StoreSuite:
    """Tests of any store. A subclass has a fixture `url`: of a store that is not there yet."""

    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        raise NotImplementedError

    @pytest.fixture
    def store(self, url: str) -> Store:
        return open_store(url)

    @pytest.fixture
    def other(self, url: str) -> Iterator[Other]:
        with self.others(url, 1) as (other,):
            yield other

    @contextlib.contextmanager
    def others(self, url: str, count: int) -> Iterator[list[Other]]:
        found = [Other(url) for _ in range(count)]
        try:
            yield found
        finally:
            for each in found:
                each.end()

    # --- logs ---

    def test_it_is_a_store(self, store: Store) -> None:
        assert isinstance(store, Store)
        assert open_store(store) is store

    def test_a_log_gives_back_what_was_appended(self, store: Store) -> None:
        chain = begun(store)
        for n in range(5):
            chain.append({"event": "step", "n": n, "text": "ä\n\0😀"})
        chain.wait()
        assert numbers(store) == [0, 1, 2, 3, 4]
        chain.close()
        again = Chain(store.open("r1"))
        assert again.read() == events_of(store)
        assert again.head == chain.head
        again.append({"event": "step", "n": 5})
        again.close()
        assert numbers(store) == [0, 1, 2, 3, 4, 5]

    def test_lines_are_on_record_once_they_were_waited_for(self, store: Store, url: str) -> None:
        chain = begun(store)
        chain.append({"n": 1})
        chain.wait()
        assert numbers(open_store(url)) == [1]
        chain.close()

    def test_a_reader_skips_lines_or_asks_for_the_last_ones(self, store: Store) -> None:
        chain = begun(store)
        for n in range(300):
            chain.append({"n": n, "text": "x" * 500})
        chain.close()
        lines = store.read("r1")
        assert len(lines) == 301
        assert store.read("r1", 299) == lines[299:]
        assert store.read("r1", 301) == []
        assert store.read("r1", -1) == lines[-1:]
        assert store.read("r1", -200) == lines[-200:]
        assert store.read("r1", -999) == lines

    def test_a_run_that_is_not_there_is_not_found(self, store: Store) -> None:
        with pytest.raises(RunNotFound, match="nowhere"):
            store.read("nowhere")
        store.open("nothing").close()
        with pytest.raises(RunNotFound, match="nothing"):
            store.read("nothing")

    def test_a_large_line(self, store: Store) -> None:
        chain = begun(store)
        chain.append({"n": 1, "text": "x" * 5_000_000})
        chain.append({"n": 2})
        chain.close()
        assert numbers(store) == [1, 2]

    @pytest.mark.parametrize("run", ODD)
    def test_any_text_is_the_id_of_a_run(self, store: Store, run: str, tmp_path: Path) -> None:
        before = set(tmp_path.parent.iterdir())
        begun(store, run).close()
        assert events_of(store, run) == [FIRST | {"hash": events_of(store, run)[0]["hash"]}]
        for wrong in set(ODD) - {run}:
            with pytest.raises(RunNotFound):
                store.read(wrong)
        assert set(tmp_path.parent.iterdir()) == before

    @pytest.mark.parametrize("run", ["", "a\0", "x" * 201, "\ud800"])
    def test_an_id_that_no_store_can_keep_is_refused(self, store: Store, run: str) -> None:
        for use in (store.open, store.read):
            with pytest.raises(StoreInvalid):
                use(run)

    def test_lines_that_were_not_read_are_not_appended_to(self, store: Store) -> None:
        begun(store).close()
        log = store.open("r1")
        chain = Chain(log)
        with pytest.raises(Fenced):
            chain.append(FIRST)
            chain.wait()
        with contextlib.suppress(TraceUnwritable):
            chain.close()
        assert len(store.read("r1")) == 1

    def test_a_closed_log_takes_no_line(self, store: Store) -> None:
        chain = begun(store)
        chain.close()
        chain.close()
        with pytest.raises(TraceUnwritable):
            chain.append({"n": 1})
            chain.wait()
        assert numbers(store) == []

    def test_no_event_without_json_moves_the_head(self, store: Store) -> None:
        chain = begun(store)
        for event in ({"n": object()}, {"n": "\ud800"}, {"n": 1 << 70}):
            with pytest.raises(TypeError):
                chain.append(event)
        chain.append({"n": 1})
        chain.close()
        assert numbers(store) == [1]

    def test_threads_wait_while_another_one_appends(self, store: Store) -> None:
        chain = begun(store)
        ended = threading.Event()
        errors: list[BaseException] = []

        def wait() -> None:
            try:
                while not ended.is_set():
                    chain.wait()
            except BaseException as error:  # noqa: BLE001 - whatever it is
                errors.append(error)

        threads = [threading.Thread(target=wait) for _ in range(3)]
        for thread in threads:
            thread.start()
        for n in range(200):
            chain.append({"n": n})
        ended.set()
        for thread in threads:
            thread.join()
        chain.close()
        assert errors == []
        assert numbers(store) == list(range(200))

    # --- who writes ---

    def test_a_live_writer_is_left_alone(self, store: Store, url: str, other: Other) -> None:
        chain = begun(store)
        with pytest.raises(RunInUse):
            store.open("r1")
        assert other.do("open", run="r1") == "RunInUse"
        assert other.do("open", run="r2") == 0
        chain.append({"n": 1})
        chain.close()
        assert other.do("open", run="r1") == 2

    def test_a_writer_that_was_taken_over_is_refused(self, store: Store) -> None:
        old = begun(store)
        old.append({"n": 1})
        old.wait()
        new = begun(store, take=True)
        new.append({"n": 2})
        new.wait()
        for _ in range(2):  # it stays so
            with pytest.raises(Fenced):
                old.append({"n": 3})
                old.wait()
        new.append({"n": 4})
        new.close()
        with contextlib.suppress(Fenced):
            old.close()
        assert numbers(store) == [1, 2, 4]

    def test_what_the_old_writer_appended_before_it_was_taken_over_is_read(
        self, store: Store
    ) -> None:
        old = begun(store)
        log = store.open("r1", take=True)
        new = Chain(log)
        # Its first line decides, or that it was opened at all: both are good.
        try:
            old.append({"n": 1})
            old.wait()
            expected = [1, 2]
        except Fenced:
            expected = [2]
        assert len(new.read()) == len(expected)
        new.append({"n": 2})
        new.close()
        assert numbers(store) == expected

    def test_of_many_who_take_over_one_goes_on(self, store: Store) -> None:
        chains = [begun(store)]
        for n in range(1, 5):
            chains.append(begun(store, take=True))
            chains[-1].append({"n": n})
            chains[-1].wait()
        for old in chains[:-1]:
            with pytest.raises(Fenced):
                old.append({"n": 0})
                old.wait()
        chains[-1].append({"n": 5})
        chains[-1].wait()
        assert numbers(store) == [1, 2, 3, 4, 5]

    def test_who_took_over_is_left_alone_by_others(self, store: Store, other: Other) -> None:
        old = begun(store)
        new = begun(store, take=True)
        new.append({"n": 1})
        new.wait()
        assert other.do("open", run="r1") == "RunInUse"
        with contextlib.suppress(Fenced):
            old.close()
        assert other.do("open", run="r1") == "RunInUse"
        new.append({"n": 2})
        new.close()
        assert other.do("open", run="r1") == 3

    def test_a_frozen_writer_is_refused_when_it_wakes(self, store: Store, other: Other) -> None:
        begun(store).close()
        assert other.do("open", run="r1") == 1
        assert other.do("write", n=1) is None
        other.freeze()
        with pytest.raises(RunInUse):
            store.open("r1")
        new = begun(store, take=True)
        new.append({"n": 2})
        new.wait()
        other.wake()
        assert other.do("write", n=3) == "Fenced"
        assert other.do("write", n=4) == "Fenced"
        new.append({"n": 5})
        new.close()
        assert numbers(store) == [1, 2, 5]

    def test_a_killed_writer_leaves_its_lines_and_lets_go(self, store: Store, url: str) -> None:
        begun(store).close()
        for n in range(5):
            with self.others(url, 1) as (other,):
                assert other.do("open", run="r1") == 1 + n
                assert other.do("write", n=n) is None
                other.kill()
                self.until_free(store)
        assert numbers(store) == [0, 1, 2, 3, 4]

    @pytest.mark.parametrize("told", [1, 9, 30])
    def test_what_was_acknowledged_before_a_kill_is_on_record(
        self, store: Store, url: str, told: int
    ) -> None:
        begun(store).close()
        with self.others(url, 1) as (other,):
            assert other.do("open", run="r1") == 1
            for n in range(40):
                other.ask("write", n=n)
            for _ in range(told):
                assert other.answer() is None
            other.kill()
            self.until_free(store)
        found = numbers(store)
        assert found == list(range(len(found)))
        assert len(found) >= told
        chain = begun(store)
        chain.append({"n": len(found)})
        chain.close()
        assert numbers(store) == list(range(len(found) + 1))

    def until_free(self, store: Store) -> None:
        """Wait until the store has seen that a process was killed."""
        store.open("r1").close()

    def test_a_forked_child_is_refused_and_its_parent_goes_on(
        self, store: Store, other: Other
    ) -> None:
        begun(store).close()
        assert other.do("open", run="r1") == 1
        assert other.do("write", n=1) is None
        assert other.do("fork", n=2) == "Forked"
        assert other.do("write", n=3) is None
        with pytest.raises(RunInUse):
            store.open("r1")
        assert other.do("close") is None
        assert numbers(store) == [1, 3]

    # --- lists, and what takes a log's place ---

    def test_runs_are_listed_from_the_greatest_id_downwards(self, store: Store) -> None:
        assert store.runs() == []
        runs = [*ODD, "r1", "r2"]
        for run in runs:
            chain = Chain(store.open(run))
            chain.append({**FIRST, "run": run})
            for n in range(2):
                chain.append({"n": n})
            chain.close()
        store.open("never begun").close()
        expected = [(run, store.read(run)[0], store.read(run)[-1]) for run in sorted(runs)[::-1]]
        assert store.runs() == expected
        assert store.runs(limit=3) == expected[:3]
        assert store.runs(limit=0) == []
        assert store.runs(before=expected[4][0], limit=3) == expected[5:8]
        assert store.runs(before=expected[-1][0]) == []

    def test_the_ends_of_a_long_run_are_its_first_and_last_line(self, store: Store) -> None:
        chain = begun(store)
        chain.wait()
        assert store.runs() == [("r1", *2 * store.read("r1"))]
        for n in range(3):
            chain.append({"n": n, "text": "x" * 200_000})
            chain.wait()
            assert store.runs() == [("r1", store.read("r1")[0], store.read("r1")[-1])]
        chain.close()

    def test_a_run_is_live_while_its_writer_is(self, store: Store, other: Other) -> None:
        assert not store.is_live("r1")
        begun(store).close()
        assert not store.is_live("r1")
        assert other.do("open", run="r1") == 1
        assert store.is_live("r1")
        assert not store.is_live("r2")
        other.freeze()
        assert store.is_live("r1")
        other.wake()
        other.kill()
        self.until_free(store)
        assert not store.is_live("r1")
        chain = begun(store)
        assert store.is_live("r1")
        chain.close()
        assert not store.is_live("r1")

    def test_whoever_asks_if_a_run_is_live_keeps_no_writer_away(
        self, store: Store, url: str
    ) -> None:
        begun(store).close()
        asks = threading.Event()

        def ask() -> None:
            mine = open_store(url)
            while not asks.is_set():
                mine.is_live("r1")

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            for n in range(20):
                chain = begun(store)
                chain.append({"n": n})
                chain.close()
        finally:
            asks.set()
            for thread in threads:
                thread.join()
        assert numbers(store) == list(range(20))

    def test_other_lines_take_the_place_of_a_log_in_one_go(self, store: Store) -> None:
        for n in range(3):
            begun(store, f"r{n}").close()
        chain = begun(store, "r1")
        for n in range(1200):
            chain.append({"n": n})
        chain.wait()
        lines = store.read("r1")
        chain.log.replace(lines[:2])
        assert store.read("r1") == lines[:2]
        assert store.is_live("r1")
        chain.head = lines[1][-67:-3]
        chain.append({"n": 5})
        chain.wait()
        assert numbers(store, "r1") == [0, 5]
        chain.log.replace(lines)
        chain.close()
        assert store.read("r1") == lines
        assert [each.run for each in store.runs()] == ["r2", "r1", "r0"]
        chain = begun(store, "r1")
        chain.log.replace([])
        chain.close()
        with pytest.raises(RunNotFound):
            store.read("r1")
        assert [each.run for each in store.runs()] == ["r2", "r0"]
        begun(store, "r1").close()

    def test_who_was_taken_over_replaces_no_log(self, store: Store) -> None:
        old = begun(store)
        new = begun(store, take=True)
        new.append({"n": 1})
        new.wait()
        with pytest.raises(Fenced):
            old.log.replace([])
        new.append({"n": 2})
        new.close()
        assert numbers(store) == [1, 2]

    def test_who_was_replaced_is_refused(self, store: Store) -> None:
        old = begun(store)
        old.append({"n": 1})
        old.wait()
        new = begun(store, take=True)
        new.append({"n": 2})
        new.wait()
        new.log.replace(store.read("r1")[:1])
        with pytest.raises(TraceUnwritable):  # to PostgreSQL its lines look lost
            old.append({"n": 3})
            old.wait()
        new.close()
        assert numbers(store) == []

    # --- on a loop ---

    async def test_nothing_of_a_store_runs_on_the_thread_of_a_loop(self, store: Store) -> None:
        folder = str(Path(sys.modules[type(store).__module__].__file__ or "").parent)
        seen: set[str] = set()

        def note(frame: FrameType, event: str, given: Any) -> None:
            code = frame.f_code
            if event == "call" and code.co_filename.startswith(folder):
                seen.add(f"{Path(code.co_filename).name}:{code.co_name}")
            elif event == "c_call" and str(given.__module__) in ("posix", "fcntl", "_sqlite3"):
                seen.add(given.__qualname__)

        chain = await asyncio.to_thread(lambda: Chain(Queued(store.open("r1"))))
        await asyncio.to_thread(chain.read)
        gc.collect()  # what other tests have left closes its connections wherever it is collected
        sys.setprofile(note)
        try:
            chain.append(FIRST)
            for n in range(20):
                chain.append({"n": n})
                await chain.settled()
                assert isinstance(chain.log.bell, int)
        finally:
            sys.setprofile(None)
        await asyncio.to_thread(chain.close)
        assert numbers(store) == list(range(20))
        assert {each for each in seen if not each.startswith(("log.py", "writer.py"))} == set()

    async def test_sessions_on_one_loop_share_a_thread(self, store: Store) -> None:
        async def session(run: str) -> None:
            chain = await asyncio.to_thread(lambda: Chain(Queued(store.open(run))))
            chain.append(FIRST)
            for n in range(10):
                chain.append({"n": n})
                await chain.settled()
                chain.append({"n": n + 100})
            await asyncio.to_thread(chain.close)

        runs = [f"r{n}" for n in range(8)]
        await asyncio.gather(*map(session, runs))
        for run in runs:
            assert numbers(store, run) == [m for n in range(10) for m in (n, n + 100)]

    async def test_who_is_cancelled_between_a_line_and_its_record_leaves_the_line(
        self, store: Store
    ) -> None:
        chain = await asyncio.to_thread(lambda: Chain(Queued(store.open("r1"))))
        chain.append(FIRST)

        async def call(n: int) -> None:
            chain.append({"n": n})
            await chain.settled()

        for n in range(20):
            task = asyncio.ensure_future(call(n))
            await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await asyncio.to_thread(chain.close)
        assert numbers(store) == list(range(20))

    async def test_a_queued_writer_that_was_taken_over_is_refused(self, store: Store) -> None:
        old = await asyncio.to_thread(lambda: Chain(Queued(store.open("r1"))))
        old.append(FIRST)
        await old.settled()
        new = await asyncio.to_thread(lambda: begun(store, take=True))
        new.append({"n": 1})
        await asyncio.to_thread(new.wait)
        with pytest.raises(Fenced):
            old.append({"n": 2})
            await old.settled()
        with contextlib.suppress(Fenced):
            await asyncio.to_thread(old.close)
        await asyncio.to_thread(new.close)
        assert numbers(store) == [1]

    # --- values ---

    def test_a_value_is_swapped_for_what_was_seen(self, store: Store) -> None:
        assert store.get("names", "job") is None
        assert store.swap("names", "job", None, b"a")
        assert not store.swap("names", "job", None, b"b")
        assert not store.swap("names", "job", b"b", b"c")
        assert store.get("names", "job") == b"a"
        assert store.swap("names", "job", b"a", b"\0\n\xff" * 1000)
        assert store.get("names", "job") == b"\0\n\xff" * 1000
        assert store.swap("names", "job", b"\0\n\xff" * 1000, b"")
        assert store.get("names", "job") == b""
        assert not store.swap("names", "job", None, b"x")
        assert store.swap("names", "job", b"", None)
        assert store.get("names", "job") is None
        assert not store.swap("names", "job", b"", None)
        assert store.swap("names", "job", None, None)
        assert store.get("other", "job") is None

    @pytest.mark.parametrize("key", [*ODD, "k" * 1024, "É" * 500])
    def test_any_text_is_a_key(self, store: Store, key: str, tmp_path: Path) -> None:
        before = set(tmp_path.parent.iterdir())
        assert store.swap("names", key, None, b"a")
        assert store.keys("names") == [key]
        for wrong in set(ODD) - {key}:
            assert store.get("names", wrong) is None
        assert store.swap("names", key, b"a", None)
        assert store.keys("names") == []
        assert set(tmp_path.parent.iterdir()) == before

    @pytest.mark.parametrize("key", ["", "a\0", "x" * 1025, "\ud800"])
    @pytest.mark.parametrize("kind", ["names", "orders"])
    def test_a_key_that_no_store_can_keep_is_refused(
        self, store: Store, kind: str, key: str
    ) -> None:
        with pytest.raises(StoreInvalid):
            store.get(kind, key)
        with pytest.raises(StoreInvalid):
            store.swap(kind, key, None, b"a")

    @pytest.mark.parametrize("kind", ["", "..", "../runs", "a/b", "Names", "a\0", "n" * 41])
    def test_a_kind_is_a_word(self, store: Store, kind: str) -> None:
        for use in (
            lambda: store.get(kind, "a"),
            lambda: store.swap(kind, "a", None, b"a"),
            lambda: store.keys(kind),
        ):
            with pytest.raises(StoreInvalid):
                use()

    def test_keys_are_sorted_and_come_in_parts(self, store: Store) -> None:
        for key in ODD:
            assert store.swap("names", key, None, b"a")
        assert store.keys("names") == sorted(ODD)
        assert store.keys("others") == []
        found: list[str] = []
        while more := store.keys("names", found[-1] if found else "", 4):
            assert len(more) <= 4
            found += more
        assert found == sorted(ODD)

    def test_of_two_who_swap_at_once_one_wins(self, store: Store, url: str) -> None:
        with self.others(url, 3) as workers:
            for each in workers:
                each.ask("count_up", key="k", times=40)
            for each in workers:
                assert isinstance(each.answer(), int)
        assert store.get("counts", "k") == b"120"

    @settings(
        max_examples=settings().max_examples // 4,
        suppress_health_check=[HealthCheck.differing_executors],  # each subclass runs it
    )
    @given(data=st.data())
    def test_values_are_those_of_a_dict(
        self, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        """A model: whatever is swapped, a store says what a dict would."""
        store = self._shared(tmp_path_factory)
        kind = "k" + os.urandom(8).hex()
        model: dict[str, bytes] = {}
        keys = st.sampled_from(ODD[:8])
        values = st.none() | st.sampled_from([b"a", b"b", b""])
        for key, was, new in data.draw(st.lists(st.tuples(keys, values, values), max_size=12)):
            expected = model.get(key) == was
            assert store.swap(kind, key, was, new) is expected
            if expected and new is not None:
                model[key] = new
            elif expected:
                model.pop(key, None)
        assert store.keys(kind) == sorted(model)
        assert {key: store.get(kind, key) for key in model} == model

    _stores: dict[type, Store] = {}  # noqa: RUF012 - by subclass

    def _shared(self, folders: pytest.TempPathFactory) -> Store:
        if type(self) not in self._stores:
            self._stores[type(self)] = open_store(self.shared_url(folders))
        return self._stores[type(self)]

    def shared_url(self, folders: pytest.TempPathFactory) -> str:
        """Of a store for all cases of a property."""
        raise NotImplementedError

    # --- orders ---

    def test_the_bell_rings_with_each_order_and_with_nothing_else(
        self, store: Store, url: str, other: Other
    ) -> None:
        heard = [store.bell()]
        was = None
        for new in ("a", "b", "a", None):
            assert other.do("swap", kind="orders", key="r1", was=was, new=new)
            heard.append(store.bell())
            was = new
        assert len(set(heard)) == len(heard)
        assert other.do("swap", kind="names", key="r1", was=None, new="a")
        begun(store).close()
        assert store.bell() == heard[-1] == open_store(url).bell()

    def test_an_order_that_was_acknowledged_is_seen_with_the_next_intent(
        self, store: Store, other: Other
    ) -> None:
        chain = begun(store)
        chain.wait()
        seen = chain.log.bell
        for n in range(20):
            chain.append({"n": n})
            chain.wait()
            assert chain.log.bell == seen
            was = None if n == 0 else str(n)
            assert other.do("swap", kind="orders", key="r1", was=was, new=str(n + 1))
            chain.append({"n": n})
            chain.wait()
            assert chain.log.bell != seen
            assert store.get("orders", "r1") == str(n + 1).encode()
            seen = chain.log.bell
        chain.close()

    def test_an_order_is_heard_without_any_look(self, store: Store, other: Other) -> None:
        chain = begun(store)
        told = chain.log.hear()
        if told is None:  # of a database on another machine
            chain.close()
            return
        heard = [told()]
        was = None
        for new in ("a", "b", "a", None):
            assert other.do("swap", kind="orders", key="r1", was=was, new=new)
            heard.append(told())
            was = new
        assert len(set(heard)) == len(heard)
        assert other.do("swap", kind="names", key="r1", was=None, new="a")
        chain.append({"n": 1})
        chain.close()
        assert told() == heard[-1]

    def test_orders_that_are_given_at_once_are_all_heard(self, store: Store, url: str) -> None:
        chain = begun(store)
        told = chain.log.hear()
        before = 0 if told is None else told()

        def give(name: str) -> None:
            mine = open_store(url)
            for n in range(20):
                assert mine.swap("orders", name, None, b"%d" % n)
                assert mine.swap("orders", name, b"%d" % n, None)

        threads = [threading.Thread(target=give, args=(name,)) for name in "abc"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert told is None or told() == before + 120
        chain.close()

    def test_an_order_that_is_refused_rings_all_the_same(self, store: Store) -> None:
        """Who put it may have died before the bell rang; whoever tries again rings it."""
        assert store.swap("orders", "r1", None, b"stop")
        before = store.bell()
        assert not store.swap("orders", "r1", None, b"stop")
        assert store.bell() != before

    # --- what is hostile ---

    def test_a_chain_begins_at_the_root(self, store: Store) -> None:
        chain = Chain(store.open("r1"))
        assert chain.read() == []
        assert chain.head == ROOT

    def test_two_logs_of_one_store_do_not_meet(self, store: Store) -> None:
        one, two = begun(store, "r1"), begun(store, "r2")
        for n in range(10):
            one.append({"n": n})
            two.append({"n": -n})
        one.close()
        two.close()
        assert numbers(store, "r1") == list(range(10))
        assert numbers(store, "r2") == [-n for n in range(10)]

    def test_a_line_that_was_copied_from_another_run_is_found(self, store: Store) -> None:
        one, two = begun(store, "r1"), begun(store, "r2")
        one.append({"n": 1})
        two.append({"n": 2})
        one.close()
        two.close()
        lines = store.read("r1")[:1] + store.read("r2")[1:]
        parse(lines, "mixed")  # both begin alike, so this is a run
        mixed = store.read("r1") + store.read("r2")[1:]
        with pytest.raises(TraceCorrupt, match="mixed, line 3"):
            parse(mixed, "mixed")
