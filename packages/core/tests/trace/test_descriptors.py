"""No file stays open behind a session, or behind a look at a store."""

import contextlib
import gc
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rollcage import Options, Session, list_runs, tool, undo_run
from rollcage.errors import RollcageError
from rollcage.stages.orders import pause_run, unpause_run
from rollcage.trace.folder import Folder

OPEN = Path("/proc/self/fd")
pytestmark = pytest.mark.skipif(not OPEN.is_dir(), reason="no list of a process's open files here")


@tool(name="descriptors.write")
def write(text: str) -> str:
    return text


@pytest.fixture(autouse=True)
def as_many_as_before() -> Iterator[None]:
    gc.collect()
    before = len(list(OPEN.iterdir()))
    yield
    assert len(list(OPEN.iterdir())) == before  # before anything is collected


def test_behind_sessions(tmp_path: Path) -> None:
    with Session("job", store=tmp_path) as session:
        write("a" * 100_000)
    with Session("job", store=tmp_path, replay="continue"):
        write("a" * 100_000)
        write("b")
    with contextlib.suppress(InterruptedError), Session("job", store=tmp_path):
        raise InterruptedError
    with Session("job", store=tmp_path, replay="offline", source=session.run_id):
        write("a" * 100_000)
    undo_run(tmp_path, session.run_id)


@pytest.mark.damaged
def test_behind_a_session_that_is_refused(tmp_path: Path) -> None:
    with Session("job", store=tmp_path) as session:
        write("a")
        for options in (Options(), Options(seed="other")):
            other = Session("job", store=tmp_path, run=session.run_id, options=options)
            with pytest.raises(RollcageError):
                other.__enter__()
    with pytest.raises(RollcageError):
        Session("job", store=tmp_path, run="none").__enter__()
    log = tmp_path / "logs" / f"{session.run_id}.jsonl"
    log.write_bytes(log.read_bytes()[10:])
    with pytest.raises(RollcageError):
        Session("job", store=tmp_path, replay="continue").__enter__()


def test_behind_looks_at_a_store(tmp_path: Path) -> None:
    with Session("job", store=tmp_path) as session:
        write("a")
    store = Folder(tmp_path)
    run = session.run_id
    assert list_runs(store)
    assert store.read(run)
    assert store.read(run, -1)
    assert store.ends(run)
    assert not store.is_live(run)
    assert store.swap("orders", run, None, b"{}")
    assert not store.swap("orders", run, None, b"{}")
    assert store.swap("orders", run, b"{}", None)
    assert store.get("orders", run) is None
    assert store.keys("names")
    store.bell()


def test_behind_orders(tmp_path: Path) -> None:
    with Session("job", store=tmp_path) as session:
        write("a")
        pause_run(tmp_path, session.run_id)
        unpause_run(tmp_path, session.run_id)
        write("b")


def test_behind_many_that_swap_at_once(tmp_path: Path) -> None:
    store = Folder(tmp_path)

    def swaps() -> None:
        for n in range(20):
            store.swap("names", "job", store.get("names", "job"), b"%d" % n)

    threads = [threading.Thread(target=swaps) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)


@pytest.mark.damaged
@pytest.mark.parametrize(
    "look",
    [
        lambda store: store.read("r"),
        lambda store: store.ends("r"),
        lambda store: store.open("r"),
        lambda store: store.is_live("r"),
        lambda store: store.get("names", "r"),
        lambda store: store.swap("names", "r", None, b"x"),
    ],
)
@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_behind_what_is_no_file(
    tmp_path: Path, make: Callable[[Path], None], look: Callable[[Folder], object]
) -> None:
    for folder, name in (("logs", "r.jsonl"), ("names", "r")):
        (tmp_path / folder).mkdir()
        make(tmp_path / folder / name)
    for _ in range(2):
        with contextlib.suppress(RollcageError):
            look(Folder(tmp_path))
