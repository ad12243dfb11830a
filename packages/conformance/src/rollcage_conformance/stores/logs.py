"""Logs: lines that are appended, read, and listed; replacements of a log."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from rollcage import Store, open_store
from rollcage.errors import Fenced, RunNotFound, StoreInvalid, TraceCorrupt, TraceUnwritable
from rollcage.trace.chain import HASH, ROOT, Chain, parse

from rollcage_conformance.stores.base import FIRST, ODD, Other, StoreBase, begun, events_of, numbers

__all__ = ["LogSuite"]


class LogSuite(StoreBase):
    """Logs: lines that are appended, read, and listed; replacements of a log."""

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

    # --- lists, and replacements of a log ---

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
        asking, ended = threading.Event(), threading.Event()

        def ask() -> None:
            mine = open_store(url)
            while not ended.is_set():
                asking.set()
                mine.is_live("r1")

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            for n in range(20):
                asking.clear()
                assert asking.wait(60)
                chain = begun(store)
                chain.append({"n": n})
                chain.close()
        finally:
            ended.set()
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
        chain.head = lines[1][HASH]
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

    def test_a_reader_sees_all_of_the_former_lines_or_all_of_the_others(
        self, store: Store, url: str
    ) -> None:
        chain = begun(store)
        for n in range(30):
            chain.append({"n": n})
        chain.wait()
        whole = store.read("r1")
        short = whole[:5]
        over = threading.Event()
        seen: list[int] = []

        def look() -> None:
            mine = open_store(url)
            while not over.is_set():
                seen.append(len(mine.read("r1")))

        with ThreadPoolExecutor(2) as pool:
            looking = [pool.submit(look) for _ in range(2)]
            try:
                for n in range(60):
                    chain.log.replace(whole if n % 2 else short)
            finally:
                over.set()
            for each in looking:
                each.result(60)
        chain.close()
        assert {*seen} <= {len(whole), len(short)}

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
