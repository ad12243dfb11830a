"""A live run whose files somebody else removes, cuts, replaces or writes to: nothing more runs."""

import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest
from rollcage import (
    ControlLost,
    OrderRefused,
    RunNotFound,
    RunStopped,
    SessionHalted,
    StoreError,
    TraceCorrupt,
    TraceUnwritable,
    compensate,
    tool,
)
from rollcage.session.session import Session
from rollcage.store import JsonlStore, StopOrder, pause_run, unpause_run
from rollcage.store.control import Bell
from rollcage.store.protocol import OrderKind

Events = Callable[[str], list[dict[str, Any]]]
Harm = Callable[[Path], None]

pytestmark = pytest.mark.damaged

ran: list[int] = []


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()


@tool(effect="write", name="live.write")
def write(number: int) -> int:
    ran.append(number)
    return number


@tool(effect="read", name="live.look")
def look() -> int:
    ran.append(-1)
    return 1


def trace_of(store: JsonlStore, session: Session) -> Path:
    return store.root / "runs" / f"{session.run_id}.jsonl"


def unlink(path: Path) -> None:
    path.unlink()


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b'{"event":"step.resolved"}\n')


def replace(path: Path) -> None:
    """As an editor saves: the same bytes in another file."""
    copy = path.with_suffix(".copy")
    shutil.copy2(path, copy)
    copy.replace(path)


def remove_the_folder(path: Path) -> None:
    shutil.rmtree(path.parent)


def remove_the_store(path: Path) -> None:
    shutil.rmtree(path.parent.parent)


def move_the_store(path: Path) -> None:
    path.parent.parent.rename(path.parent.parent.with_name("elsewhere"))


HARMS = [unlink, truncate, empty, append, replace]
FOLDERS = [remove_the_folder, remove_the_store, move_the_store]


@pytest.mark.parametrize("harm", [*HARMS, *FOLDERS])
@pytest.mark.parametrize("body", [write, look], ids=["write", "read"])
def test_nothing_more_runs(store: JsonlStore, harm: Harm, body: Any) -> None:
    given = {"number": 2} if body is write else {}
    with pytest.raises((TraceUnwritable, ControlLost)), Session("job", store=store) as session:
        write(1)
        harm(trace_of(store, session))
        with pytest.raises((TraceUnwritable, SessionHalted)):
            body(**given)
        with pytest.raises(SessionHalted):  # who swallows the error gets no further
            write(3)
    assert ran == [1]
    if harm not in FOLDERS:
        assert [info.status for info in store.runs()] == ["halted"]


@pytest.mark.parametrize("harm", [*HARMS, *FOLDERS])
def test_where_nothing_comes_after_it_does_not_end_well(store: JsonlStore, harm: Harm) -> None:
    with pytest.raises(TraceUnwritable) as left, Session("job", store=store) as session:
        write(1)
        harm(trace_of(store, session))
    assert session.run_id in str(left.value)
    if harm not in FOLDERS:
        assert [info.status for info in store.runs()] == ["halted"]


@pytest.mark.parametrize("harm", HARMS)
def test_the_next_session_does_nothing_twice(store: JsonlStore, harm: Harm) -> None:
    """What was cut off is not taken for never recorded."""
    with pytest.raises(TraceUnwritable), Session("job", store=store) as session:
        write(1)
        harm(trace_of(store, session))
        write(2)
    again = Session("job", store=store)
    if harm is replace:  # the same bytes: nothing of them is lost
        with again:
            assert write(1) == 1
        assert ran == [1]
        return
    with pytest.raises((TraceCorrupt, RunNotFound), match=session.run_id), again:
        pytest.fail("it was resumed")
    assert ran == [1]


@pytest.mark.parametrize("harm", HARMS)
async def test_in_an_async_session(store: JsonlStore, harm: Harm) -> None:
    with pytest.raises(TraceUnwritable):
        async with Session("job", store=store) as session:
            await session.acall(write, number=1)
            harm(trace_of(store, session))
            await session.acall(write, number=2)
    assert ran == [1]


@pytest.mark.parametrize("harm", HARMS)
def test_a_body_that_harms_its_own_trace_is_the_last(store: JsonlStore, harm: Harm) -> None:
    session = Session("job", store=store)

    @tool(effect="write")
    def sweep() -> None:
        harm(trace_of(store, session))

    with pytest.raises(TraceUnwritable), session:
        sweep()
        write(1)
    assert ran == []


def test_a_replay_of_hits_does_not_end_well_either(store: JsonlStore) -> None:
    with pytest.raises(KeyError), Session("job", store=store):
        write(1)
        raise KeyError
    with pytest.raises(TraceUnwritable), Session("job", store=store) as session:
        unlink(trace_of(store, session))
        assert write(1) == 1
    assert session.stats.hits == 1


def test_a_session_whose_folder_is_another_by_now_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "inside").mkdir()
    with Session("job", store=".rollcage") as session:
        write(1)
        monkeypatch.chdir(tmp_path / "inside")
        write(2)
        session.call(keep, text="x" * 100_000)
    assert [p.name for p in (tmp_path / "inside").iterdir()] == []
    monkeypatch.chdir(tmp_path)
    assert [info.status for info in JsonlStore(".rollcage").runs()] == ["ok"]


@tool(effect="write", name="live.keep")
def keep(text: str) -> str:
    return text


# --- the bell and the control page ---------------------------------------------------------------


def bell(store: JsonlStore) -> Path:
    return store.root / "orders.bell"


def page(store: JsonlStore, session: Session) -> Path:
    return trace_of(store, session).with_suffix(".control")


def order(run: str, kind: OrderKind = "stop") -> StopOrder:
    return StopOrder(run, "ann", "too eager", 5, kind)


def exchange(path: Path) -> None:
    path.with_suffix(".new").write_bytes(path.read_bytes())
    path.with_suffix(".new").replace(path)


@pytest.fixture
def rung(store: JsonlStore) -> JsonlStore:
    """A store in which a run was stopped once."""
    with Session("another", store=store) as session:
        pass
    store.stop(order(session.run_id))
    return store


@pytest.mark.parametrize("harm", [unlink, empty, exchange])
def test_a_run_that_could_not_be_stopped_any_more_halts(rung: JsonlStore, harm: Harm) -> None:
    with pytest.raises(ControlLost, match=r"orders\.bell"), Session("job", store=rung) as session:
        write(1)
        harm(bell(rung))
        with pytest.raises(SessionHalted):
            write(2)
    assert ran == [1]
    assert session.stats.misses == 1, "it was seen before the call was recorded"
    with Session("job", store=rung):
        assert [write(1), write(2)] == [1, 2]
    assert ran == [1, 2]


def test_a_bell_that_rang_for_others_or_was_only_touched_stops_nobody(rung: JsonlStore) -> None:
    (other,) = rung.runs()
    with Session("job", store=rung) as session:
        write(1)
        os.utime(bell(rung), ns=(0, 0))
        write(2)
        rung.stop(order(other.run))
        write(3)
        assert not page(rung, session).exists()
    assert ran == [1, 2, 3]


@pytest.mark.parametrize("harm", [unlink, empty, exchange])
def test_a_stop_reaches_a_run_whose_bell_was_harmed(rung: JsonlStore, harm: Harm) -> None:
    with pytest.raises(RunStopped, match="too eager"), Session("job", store=rung) as session:
        write(1)
        harm(bell(rung))
        rung.stop(order(session.run_id))
        with pytest.raises(SessionHalted):
            write(2)
    assert ran == [1]


def test_a_run_whose_order_can_not_be_read_halts(rung: JsonlStore) -> None:
    (other,) = rung.runs()
    halts = pytest.raises(ControlLost, match="control can't be read")
    with halts, Session("job", store=rung) as session:
        write(1)
        page(rung, session).mkdir()
        rung.stop(order(other.run))
        with pytest.raises(SessionHalted):
            write(2)
    assert ran == [1]


@pytest.mark.parametrize("harm", [unlink, empty])
def test_a_pause_whose_page_was_harmed_is_lifted_by_nobody(store: JsonlStore, harm: Harm) -> None:
    """Whoever lifts it finds no order; the run, which waits, is told."""
    session = Session("job", store=store)
    with pytest.raises(ControlLost, match="control"), session, ThreadPoolExecutor(1) as pool:
        store.stop(order(session.run_id, "pause"))
        calling = pool.submit(session.call, write, number=1)
        assert wait([calling], 0.3).not_done
        harm(page(store, session))
        assert wait([calling], 0.3).not_done
        assert not store.lift(session.run_id)
        with pytest.raises(SessionHalted):
            calling.result(timeout=30)
    assert ran == []


def test_a_pause_that_was_lifted_and_not_rung_for_ends_with_the_next_unpause(
    store: JsonlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the disk is full once the page is written."""

    def full(*_: object) -> None:
        raise StoreError("No space left on device")

    session = Session("job", store=store)
    with session, ThreadPoolExecutor(1) as pool:
        pause_run(store, session.run_id, by="ann", reason="", time=1)
        calling = pool.submit(session.call, write, number=1)
        assert wait([calling], 0.3).not_done
        with monkeypatch.context() as patch, pytest.raises(StoreError, match="No space"):
            patch.setattr(Bell, "ring", full)
            unpause_run(store, session.run_id)
        assert wait([calling], 0.3).not_done
        with pytest.raises(OrderRefused, match="nothing to lift"):
            unpause_run(store, session.run_id)
        assert calling.result(timeout=30) == 1


def test_a_store_that_is_older_gets_its_bell_from_whoever_stops_or_begins(
    store: JsonlStore,
) -> None:
    with Session("another", store=store) as session:
        pass
    bell(store).unlink()
    store.stop(order(session.run_id))
    assert bell(store).stat().st_size == 1
    bell(store).unlink()
    with pytest.raises(RunStopped), Session("job", store=store) as session:
        write(1)
        store.stop(order(session.run_id))
        with pytest.raises(SessionHalted):
            write(2)
    assert ran == [1]


def link(path: Path) -> None:
    path.symlink_to("nowhere/bell")


@pytest.mark.parametrize("instead", [link, Path.mkdir])
def test_a_run_whose_store_has_no_bell_does_not_begin(store: JsonlStore, instead: Harm) -> None:
    store.root.mkdir()
    instead(bell(store))
    refused = pytest.raises(StoreError, match=r"orders\.bell can't be written")
    with refused, Session("job", store=store):
        pytest.fail("it began")
    assert not list((store.root / "runs").iterdir())


def test_a_stop_that_can_not_reach_says_so(store: JsonlStore) -> None:
    with pytest.raises(TraceUnwritable), Session("job", store=store) as session:
        move_the_store(trace_of(store, session))
        with pytest.raises(RunNotFound):
            store.stop(order(session.run_id))


def test_a_stop_that_can_not_ring_says_so_and_holds(store: JsonlStore) -> None:
    with pytest.raises(RunStopped), Session("job", store=store) as session:
        write(1)
        bell(store).unlink()
        bell(store).mkdir()
        with pytest.raises(StoreError, match=r"orders\.bell can't be written"):
            store.stop(order(session.run_id))
        with pytest.raises(SessionHalted):
            write(2)
    bell(store).rmdir()
    with pytest.raises(RunStopped), Session("job", store=store):
        pytest.fail("it was resumed")


box: set[int] = set()


@tool(effect="write", name="live.take")
def take(number: int) -> None:
    box.discard(number)


@tool(
    effect="write",
    name="live.put",
    observe=lambda args: {"box": sorted(box)},
    undo=lambda args: [compensate(take, number=args["number"])],
)
def put(number: int) -> None:
    box.add(number)


def test_what_it_did_is_taken_back_all_the_same(store: JsonlStore) -> None:
    """Taking back is what is left to do, where a transaction is broken off by that."""
    box.clear()
    with (
        pytest.raises(ControlLost),
        Session("job", store=store) as session,
        session.transaction(),
    ):
        put(1)
        bell(store).unlink()
        put(2)
    assert box == set()
