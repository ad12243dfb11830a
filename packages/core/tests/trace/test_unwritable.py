"""A log that can't be written: no write runs without its intent, and nothing runs behind it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
from rollcage import Session, Store, tool
from rollcage.errors import SessionHalted, StoreError, TraceUnwritable, UnknownOutcome
from rollcage.trace.folder import FolderLog

Python = Callable[..., subprocess.CompletedProcess[str]]

LIMITED = """
    import os, resource, signal, sys
    from rollcage import Session, tool
    from rollcage.errors import SessionHalted, TraceUnwritable

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # the kernel then says EFBIG: as a full disk
    room, size = int(sys.argv[1]), int(sys.argv[2])
    effects = os.open("effects", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)

    @tool(name="full.write", effect="write")
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
                except Exception:
                    break
            else:
                sys.exit("the limit was never met")
            before = os.fstat(effects).st_size
            try:
                write(1000)
                sys.exit("a write ran in a session whose log is full")
            except SessionHalted:
                pass
            assert os.fstat(effects).st_size == before
    except Exception as error:
        print(session.run_id, len(ran), type(error).__name__)
"""


def written(effect: Callable[[int], str]) -> Any:
    return tool(name="full.write", effect="write")(effect)


@pytest.mark.parametrize("room", range(1_500, 2_900, 200))
def test_a_full_disk_runs_no_write(
    python: Python, events: Any, store: Store, tmp_path: Path, room: int
) -> None:
    """Each room ends inside of another line."""
    child = python(LIMITED, str(room), "30")
    assert child.returncode == 0, child.stderr
    run, ran, error = child.stdout.split()
    assert error == "TraceUnwritable"
    lines = events(run)
    begun = {e["step"] for e in lines if e["event"] == "step"}
    ended = {e["step"] for e in lines if e["event"] == "outcome"}
    happened = (tmp_path / "effects").read_text().splitlines()
    assert len(happened) == len(begun), "nothing ran whose intent is not on record"
    assert len(ended) == int(ran)
    assert len(begun - ended) in (0, 1), "at most the last outcome was lost"
    write = written(lambda number: f"wrote {number}")
    if begun == ended:
        with Session("job", store=store):
            assert [write(number=n) for n in range(int(ran))] == ["x" * 30] * int(ran)
            assert write(number=int(ran)) == f"wrote {ran}"
    else:  # it happened, but its outcome is not on record
        with pytest.raises(UnknownOutcome), Session("job", store=store):
            for number in range(int(ran) + 1):
                write(number=number)


def test_a_result_too_large_for_the_disk(python: Python, events: Any) -> None:
    child = python(LIMITED, "50000", "200000")
    assert child.returncode == 0, child.stderr
    run, ran, error = child.stdout.split()
    assert (ran, error) == ("0", "UnknownOutcome")
    kinds = [each["event"] for each in events(run)]
    assert kinds.count("step") == 1
    assert "outcome" not in kinds


def test_a_large_value_that_can_not_be_kept_halts(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[int] = []

    @tool(effect="write")
    def keep(size: int) -> str:
        ran.append(size)
        return "x" * size

    def full(kind: str, *rest: Any) -> bool:
        raise StoreError("the disk is full")

    with pytest.raises(UnknownOutcome), Session("job", store=store) as session:
        keep(1)
        with monkeypatch.context() as patch:
            patch.setattr(session.store, "swap", full)
            with pytest.raises(StoreError):
                keep(100_000)
        with pytest.raises(SessionHalted):
            keep(2)
    with pytest.raises(UnknownOutcome), Session("job", store=store):
        keep(1)
        keep(100_000)
    assert ran == [1, 100_000]


def test_a_store_that_can_not_be_made_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "store"
    root.write_text("in the way")
    modes: tuple[Literal["auto", "off"], ...] = ("auto", "off")
    for mode in modes:
        with pytest.raises((StoreError, TraceUnwritable)), Session("job", store=root, replay=mode):
            pytest.fail("a session without a store was entered")
    assert root.read_text() == "in the way"


def test_a_store_whose_key_is_damaged_seals_nothing(store: Store) -> None:
    ran: list[str] = []

    @tool(effect="write", secret="text")
    def keep(text: str) -> None:
        ran.append(text)

    store.swap("keys", "seal", store.get("keys", "seal"), b"short")
    with pytest.raises(StoreError, match="32 bytes"), Session("job", store=store):
        keep(text="hunter2")
    assert ran == []


@pytest.mark.parametrize("error", [StoreError("no"), TraceUnwritable("no")])
def test_nothing_runs_whose_intent_did_not_arrive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    ran: list[int] = []

    def effect(number: int) -> str:
        ran.append(number)
        return ""

    def wait(_: FolderLog) -> None:
        if is_broken:
            raise error

    write, is_broken = written(effect), False
    monkeypatch.setattr(FolderLog, "wait", wait)
    with pytest.raises(TraceUnwritable, match="no"), Session("job", store=tmp_path):
        is_broken = True
        with pytest.raises(TraceUnwritable):
            write(1)
        with pytest.raises(SessionHalted):
            write(2)
        is_broken = False
    assert ran == []
