"""Runs that are copied from another store, and runs that are pruned."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from rollcage.errors import (
    RunConflict,
    RunInUse,
    RunNotFound,
    RunPruned,
    StoreError,
)
from rollcage.session.finished import undo_run
from rollcage.session.session import Session
from rollcage.store import Pruned, RunTrace, StopOrder, Store, check_attested
from rollcage.store.url import open_store

from rollcage_conformance.stores.base import HOLD, StoreBase, keep, note, world

__all__ = ["CopySuite"]


class CopySuite(StoreBase):
    """Runs that are copied from another store, and runs that are pruned."""

    def test_a_run_is_restored_whole_or_not_at_all(
        self, store: Store, url: str, origin: Store
    ) -> None:
        assert store.take_key(origin.secret_key())
        assert not store.take_key(b"k" * 32)
        assert store.secret_key() == origin.secret_key()
        with pytest.raises(KeyError), Session("job", store=origin, input=1) as first:
            keep(1)
            raise KeyError
        with Session("job", store=origin, input=1) as second:
            keep(1)
            keep(2)
        for run in (first.run_id, second.run_id):
            trace = origin.read(run)
            assert store.restore(trace)
            assert not store.restore(trace)
            again = open_store(url).read(run)
            assert (again.data, again.info) == (trace.data, trace.info)
        assert store.runs() == origin.runs()
        assert store.newest("job", origin.runs()[0].input) == origin.runs()[-1]
        with Session("job", store=url, input=1, replay="offline") as session:
            assert [keep(1), keep(2)] == [1, 2]
        assert session.stats.hits == 2

    def test_a_run_that_went_on_is_continued(self, store: Store, origin: Store) -> None:
        with Session("job", store=origin) as session:
            keep(1)
            keep(2)
        run = session.run_id
        before = origin.read(run)
        assert store.restore(before)
        undo_run(origin, run)
        after = origin.read(run)
        with Session("other", store=store) as live, pytest.raises(RunInUse):
            store.restore(dataclasses.replace(after, run=live.run_id))
        assert store.restore(after)
        assert store.info(run).status == "undone"
        assert (store.read(run).data, store.info(run)) == (after.data, origin.info(run))
        assert not store.restore(before)  # what is here goes farther
        assert store.read(run).data == after.data

    def test_another_run_of_the_same_id_is_a_conflict(self, store: Store, origin: Store) -> None:
        with Session("job", store=origin) as session:
            keep(1)
            keep(2)
        before = origin.read(session.run_id)
        store.restore(before)
        undo_run(origin, session.run_id, to=1)
        world.append(2)
        undo_run(store, session.run_id)
        there = store.read(session.run_id)
        with pytest.raises(RunConflict, match=session.run_id):
            store.restore(origin.read(session.run_id))
        assert store.read(session.run_id) == there

    @pytest.mark.parametrize("kept", [False, True])
    def test_a_pruned_run_was_done_all_the_same(
        self, store: Store, url: str, origin: Store, *, kept: bool
    ) -> None:
        with Session("job", store=url, input=7) as session:
            keep(1)
        with Session("later", store=url) as later:
            pass
        run, before = session.run_id, store.info(session.run_id)
        lines = store.read(later.run_id).data if kept else b""
        store.prune(run, by="ann", time=5, skeleton=lines)
        store.prune(run, by="bob", time=6, skeleton=lines)  # it is done already
        again = open_store(url)
        pruned = Pruned(5, "ann", before.count or 0, before.head or "")
        after = again.info(run)
        assert after.pruned == pruned
        assert after == dataclasses.replace(
            before, pruned=pruned, count=after.count, head=after.head
        )
        assert [info.run for info in again.runs()] == [run, later.run_id]
        assert again.runs(name="job") == [after]
        assert again.newest("job", before.input) == after
        if kept:
            check_attested(again.read(run))
            assert again.read(run).data == lines
        else:
            with pytest.raises(RunPruned, match="ann"):
                again.read(run)
        for needs_it in (again.lock, again.reopen):
            with pytest.raises(RunPruned):
                needs_it(run)
        with pytest.raises(RunPruned), Session("job", store=url, input=7, replay="offline"):
            pytest.fail("there is nothing to replay")
        with pytest.raises(RunPruned):
            undo_run(again, run)
        if not kept:  # a copy tells the same
            origin.take_key(store.secret_key())
            assert origin.restore(RunTrace(run, "", b"", b"", after))
            assert origin.info(run) == after
        again.repair()
        assert again.info(run) == after
        with Session("job", store=url, input=7) as afresh:
            keep(2)
        assert (afresh.stats.hits, afresh.root) == (0, afresh.run_id)

    @pytest.mark.parametrize("kept", [False, True])
    @pytest.mark.parametrize("left", [b"damaged", b"{}", b"[1]"])
    def test_where_what_is_left_of_a_run_is_damaged_only_that_run_can_not_be_used(
        self, store: Store, url: str, left: bytes, *, kept: bool
    ) -> None:
        with Session("job", store=url) as session:
            keep(1)
        with pytest.raises(KeyError), Session("later", store=url) as later:
            keep(2)
            raise KeyError
        run, before = session.run_id, store.info(session.run_id)
        store.prune(run, by="ann", time=5, skeleton=store.read(later.run_id).data if kept else b"")
        store.drop("pruned", run)
        store.put_once("pruned", run, left)
        for repaired in (False, True):
            again = open_store(url)
            assert [info.run for info in again.runs(status="ok")] == [run]
            found = again.newest("job", None)
            assert found is not None
            assert (found.run, found.status, found.pruned is None) == (run, before.status, False)
            assert again.info(run) == found
            assert again.check().stubs == (() if repaired else (run,))
            for needs_it in (again.lock, again.reopen, again.lift):
                with pytest.raises(RunPruned):
                    needs_it(run)
            with pytest.raises(RunPruned):  # it was done: nobody does it again
                Session("job", store=url, replay="continue").__enter__()
            if not repaired:
                assert again.repair().stubs == (run,)
        with Session("later", store=url) as resumed:
            assert [keep(2), keep(3)] == [2, 3]
        assert resumed.stats.hits == 1

    def test_a_run_that_another_one_builds_on_is_not_pruned(self, store: Store, url: str) -> None:
        with Session("job", store=url) as first:
            keep(1)
        with Session("job", store=url, replay="continue") as later:
            keep(1)
        with Session("job", store=url, replay="verify", source=first.run_id) as looks_back:
            pass
        with pytest.raises(StoreError, match=later.run_id):
            store.prune(first.run_id, by="ann", time=5)
        assert store.info(first.run_id).pruned is None
        store.prune(later.run_id, by="ann", time=5)
        store.prune(first.run_id, by="ann", time=5)
        with pytest.raises(RunPruned, match=later.run_id):  # it was done: nobody does it again
            Session("job", store=url, replay="continue").__enter__()
        assert store.info(looks_back.run_id).pruned is None
        with pytest.raises(RunPruned):
            store.stop(StopOrder(first.run_id, "ann", "", 1))
        with pytest.raises(RunPruned):
            store.lift(first.run_id)

    def test_what_has_not_ended_is_not_pruned(self, store: Store, url: str, start: Any) -> None:
        holder = start(HOLD, "auto")
        run = holder.stdout.readline().strip()
        before = store.read(run).data
        with pytest.raises(StoreError):
            store.prune(run, by="ann", time=5)
        holder.kill()
        holder.wait()
        with pytest.raises(StoreError, match="has not ended"):
            store.prune(run, by="ann", time=5)
        assert store.read(run).data == before
        with Session("held", store=url) as session:
            note("one")
            with pytest.raises(RunNotFound):
                store.prune("01a201da-e587-7294-a93d-cf1f79b301bb", by="ann", time=5)
        assert session.stats.hits == 1
