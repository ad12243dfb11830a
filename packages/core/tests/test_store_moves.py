"""Copying into the directory store and pruning it, cut off by a kill at any of its system calls."""

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rollcage import RunPruned, tool
from rollcage.session.session import Session
from rollcage.store import JsonlStore, RunInfo, check_attested, system
from rollcage.trace import check_events


@tool(effect="write", name="moves.put")
def put(number: int) -> int:
    return number


class Killed(BaseException):
    """The process dies."""


class Dying:
    """The system's calls, of which only so many are made."""

    def __init__(self, calls: int) -> None:
        self._left = calls

    def __getattr__(self, name: str) -> Callable[..., Any]:
        call: Callable[..., Any] = getattr(os, name)

        def made(*args: Any, **kwargs: Any) -> Any:
            if name == "close":  # as the end of a process does
                return call(*args, **kwargs)
            if not self._left:
                raise Killed
            self._left -= 1
            return call(*args, **kwargs)

        return made


def cut_off(
    monkeypatch: pytest.MonkeyPatch, do: Callable[[], Any], *, first: int = 0
) -> Iterator[int]:
    """Do it, killed before its first system call, its third one, and so on."""
    for calls in itertools.count(first, 2):
        with monkeypatch.context() as patch:
            patch.setattr(system, "files", Dying(calls))
            try:
                do()
            except Killed:
                done = False
            else:
                done = True
        if done:
            assert calls > 20
            return
        yield calls


def finished(store: JsonlStore) -> RunInfo:
    with Session("job", store=store, input=1) as session:
        put(1)
    return store.info(session.run_id)


@pytest.mark.parametrize("kept", [False, True])
def test_whoever_is_killed_while_pruning_leaves_a_run_that_was_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, kept: bool
) -> None:
    skeleton = b""
    if kept:
        other = JsonlStore(tmp_path / "skeleton")
        skeleton = other.read(finished(other).run).data
    current: list[tuple[JsonlStore, RunInfo]] = []

    def prune() -> None:
        store = JsonlStore(tmp_path / f"{len(current)}")
        with monkeypatch.context() as alive:
            alive.setattr(system, "files", os)
            current.append((store, finished(store)))
        store.prune(current[-1][1].run, by="ann", time=5, skeleton=skeleton)

    for calls in cut_off(monkeypatch, prune, first=int(kept)):
        store, before = current[-1]
        again = JsonlStore(store.root)
        for _ in range(2):  # the second time, by an index that was looked through
            newest = again.newest("job", before.input)
            assert newest is not None, calls
            assert (newest.run, newest.status) == (before.run, "ok"), calls
            if newest.pruned is None:
                assert again.read(before.run).data.count(b"\n") == before.count, calls
            with again.opening():
                pass
        again.prune(before.run, by="bob", time=6, skeleton=skeleton)
        pruned = again.info(before.run).pruned
        assert pruned is not None, calls
        assert (pruned.count, pruned.head) == (before.count, before.head), calls
        assert JsonlStore(store.root).runs() == [again.info(before.run)], calls
        if kept:
            check_attested(again.read(before.run))
        else:
            with pytest.raises(RunPruned):
                again.read(before.run)
        with Session("job", store=store, input=1) as session:
            put(1)
        assert session.stats.hits == 0


def test_whoever_is_killed_while_copying_leaves_a_whole_run_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin = JsonlStore(tmp_path / "origin")
    trace = origin.read(finished(origin).run)
    stores: list[JsonlStore] = []

    def restore() -> None:
        stores.append(JsonlStore(tmp_path / f"{len(stores)}"))
        stores[-1].restore(trace)

    for calls in cut_off(monkeypatch, restore):
        again = JsonlStore(stores[-1].root)
        for info in again.runs():
            assert again.read(info.run).data == trace.data, calls
        again.restore(trace)
        assert again.runs() == origin.runs(), calls
        found = JsonlStore(again.root).read(trace.run)
        check_events(found.data, found.where)
        check_attested(found)
        assert found.info == trace.info, calls


def test_a_lost_index_does_not_lose_what_was_pruned(store: JsonlStore) -> None:
    first = finished(store)
    with Session("other", store=store) as other:
        put(2)
    last = finished(store)
    for info in (first, last):
        store.prune(info.run, by="ann", time=5)
    before = store.runs()
    (store.root / "index.jsonl").unlink()
    again = JsonlStore(store.root)
    assert again.runs()[0] == before[0]
    assert [info.run for info in again.runs()] == [first.run, other.run_id, last.run]
    assert again.repair().runs == 3
    assert [info.pruned for info in again.runs()] == [info.pruned for info in before]
    assert again.newest("job", first.input) == before[2]


def test_a_cut_index_does_not_lose_what_was_pruned(store: JsonlStore) -> None:
    first = finished(store)
    with Session("other", store=store):
        put(2)
    store.prune(first.run, by="ann", time=5)
    before = store.runs()
    index = store.root / "index.jsonl"
    lines = index.read_bytes().splitlines(keepends=True)
    began = [line for line in lines if first.run.encode() in line and b'"name"' in line]
    assert len(began) == 1
    index.write_bytes(b"".join(line for line in lines if line not in began))
    again = JsonlStore(store.root)
    assert {info.run for info in again.runs()} == {info.run for info in before}
    newest = again.newest("job", first.input)
    assert newest is not None
    assert newest.pruned is not None
    with pytest.raises(RunPruned), Session("job", store=again, input=1, replay="continue"):
        pytest.fail("it is done a second time")
    assert JsonlStore(store.root).info(first.run) == newest
