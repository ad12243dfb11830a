"""A log that was cut behind a whole line is refused, once an attempt had ended behind that."""

import contextlib
import random
from pathlib import Path
from typing import Any

import orjson
import pytest
from rollcage import Session, StoreError, TraceCorrupt, open_store, tool, undo_run
from rollcage.trace.chain import attested_head
from rollcage.trace.folder import Folder

ran: list[int] = []


@pytest.fixture(autouse=True)
def _afresh() -> None:
    ran.clear()


@tool(name="attested.write", idempotent=True)
def write(n: int) -> int:
    ran.append(n)
    return n


def job(store: Any, *numbers: int, fails: bool = False, **how: Any) -> Session:
    session = Session("job", store=store, **how)
    with contextlib.suppress(InterruptedError), session:
        for n in numbers:
            write(n)
        if fails:
            raise InterruptedError
    return session


def cut(store: Any, run: str, keep: int) -> None:
    """Cut a log behind a whole line, as somebody does with an editor, or a backup of it."""
    log = open_store(store).open(run)
    log.replace(log.read()[:keep])
    log.close()


@pytest.mark.parametrize("fails", [False, True])
def test_a_cut_finished_log_is_refused(store: Any, fails: bool) -> None:
    run = job(store, 1, 2, fails=fails).run_id
    lines = open_store(store).read(run)
    assert attested_head(open_store(store), run) == orjson.loads(lines[-1])["hash"].encode()
    for keep in range(1, len(lines)):
        cut(store, run, keep)
        ways: list[dict[str, Any]] = [
            {}, {"replay": "continue"}, {"replay": "resume"}, {"run": run}, {"replay": "offline"},
            {"replay": "verify"}, {"replay": "offline", "source": run}, {"source": run},
        ]  # fmt: skip
        for how in ways:
            with pytest.raises(TraceCorrupt, match=r"went on when its last attempt ended.*replay="):
                Session("job", store=store, **how).__enter__()
        with pytest.raises(TraceCorrupt):
            undo_run(store, run)
        log = open_store(store).open(run)
        log.read()
        log.replace(lines)
        log.close()
    assert ran == [1, 2]
    job(store, 3, replay="off")
    assert ran == [1, 2, 3]
    job(store, 1, 2, run=run)
    assert ran == [1, 2, 3]


def test_a_log_that_was_put_back_goes_on(store: Any) -> None:
    first = job(store, 1, fails=True)
    lines = open_store(store).read(first.run_id)
    job(store, 1, 2, fails=True)
    whole = open_store(store).read(first.run_id)
    cut(store, first.run_id, len(lines))  # an older backup: what the second attempt did is lost
    with pytest.raises(TraceCorrupt):
        job(store, 1, 2)
    log = open_store(store).open(first.run_id)
    log.read()
    log.replace(whole)
    log.close()
    job(store, 1, 2, 3)
    assert ran == [1, 2, 3]


@pytest.mark.parametrize("seed", range(10))
def test_a_kill_between_the_two_writes_locks_nobody_out(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)  # noqa: S311 - programs, not secrets
    swap = Folder.swap
    how: list[str] = []

    def dies(self: Folder, kind: str, key: str, was: bytes | None, new: bytes | None) -> bool:
        if kind == "heads":
            now = chance.choice(["lives", "dies", "dies behind it", "fails"])
            how.append(now)
            if now == "fails":
                raise StoreError("the disk is full")
            if now == "dies":
                raise KeyboardInterrupt
            swapped = swap(self, kind, key, was, new)
            if now == "dies behind it":
                raise KeyboardInterrupt
            return swapped
        return swap(self, kind, key, was, new)

    monkeypatch.setattr(Folder, "swap", dies)
    done: list[int] = []
    for n in range(8):
        done.append(n)
        with contextlib.suppress(KeyboardInterrupt):
            job(tmp_path, *done, fails=True)
    assert ran == done
    assert len(how) == 8


def test_what_is_added_behind_an_end_is_no_cut(store: Any) -> None:
    run = job(store, 1, 2).run_id
    session = Session("job", store=store, run=run, replay="continue")
    with pytest.raises(SystemExit), session:
        write(1)
        write(2)
        write(3)
        raise SystemExit
    lines = open_store(store).read(run)
    cut(store, run, len(lines))
    job(store, 1, 2, 3, 4, run=run)
    assert ran == [1, 2, 3, 4]
