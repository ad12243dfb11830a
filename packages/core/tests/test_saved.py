"""What was made of a lineage is kept beside its newest trace: it opens faster, and nothing else."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from rollcage import RunInUse, RunStopped, SessionError, SourceMissing, compensate, tool
from rollcage.adapter import model_contract, model_request
from rollcage.replay import saved as kept
from rollcage.replay.path import Entry
from rollcage.replay.recording import Lineage, read
from rollcage.session import saving
from rollcage.session.lineage import read_traces
from rollcage.session.session import Session
from rollcage.store import StopOrder, Store
from rollcage.store.protocol import StepsStore
from rollcage.store.url import open_store

MODEL = model_contract("chat-1", "test")


@pytest.fixture(params=["folder", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    at = tmp_path / "store"
    return open_store(at if request.param == "folder" else f"sqlite:///{at}.db")


@tool(effect="write", name="saved.put")
def put(what: str) -> str:
    return f"put {what}"


@tool(effect="write", name="saved.add", undo=lambda args: [compensate(put, what=args["what"])])
def add(what: str) -> dict[str, Any]:
    return {"added": [what]}


@tool(effect="read")
def look(at: str) -> str:
    if at == "nowhere":
        raise LookupError(at)
    return at * 2


@tool(effect="scope")
def both(what: str) -> str:
    return put(f"{what} one") + put(f"{what} two")


def work(session: Session, upto: int) -> None:
    """A bit of everything."""
    for n in range(upto):
        put(str(n))
        look(str(n % 3))
        request = model_request([{"role": "user", "content": f"{n}".ljust(300)}], options={})
        session.run(MODEL, request, lambda **_: "said", kind="model")
        with pytest.raises(LookupError):
            look("nowhere")
        both(str(n))
        with session.branch(f"b{n}"):
            put(f"in branch {n}")
        add(str(n))


def crash(store: Store, upto: int = 3, **settings: Any) -> Session:
    """An attempt of a job that does its work and dies."""
    with pytest.raises(ZeroDivisionError), Session("job", store=store, **settings) as session:
        work(session, upto)
        raise ZeroDivisionError
    return session


def told(lineage: Lineage) -> list[dict[str, Any]]:
    """All that a lineage says of its steps."""
    fields = [name for name in Entry.__slots__ if name not in ("row", "rows")]
    return [{name: getattr(entry, name) for name in fields} for entry in lineage.entries]


def steps_of(store: Store, run: str) -> bytes | None:
    assert isinstance(store, StepsStore)
    return store.get_steps(run)


def put_steps(store: Store, run: str, data: bytes | None) -> None:
    assert isinstance(store, StepsStore)
    store.put_steps(run, data)


def is_kept(store: Store, run: str) -> bool:
    return steps_of(store, run) is not None


@pytest.fixture
def reads(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The runs whose lines were read."""
    found: list[str] = []
    whole = type(store).read

    def counted(self: Any, run: str, **how: Any) -> Any:
        found.append(run)
        return whole(self, run, **how)

    monkeypatch.setattr(type(store), "read", counted)
    return found


# --- what it saves -------------------------------------------------------------------------------


def test_a_resume_reads_the_newest_trace_only(store: Store, reads: list[str]) -> None:
    runs = [crash(store).run_id]
    for _ in range(6):
        del reads[:]
        session = crash(store)
        assert set(reads) <= {*runs[-2:]}
        assert (session.stats.hits, session.stats.misses) == (21, 0)
        runs.append(session.run_id)
    assert [is_kept(store, run) for run in runs] == [False] * 5 + [True, False]


def test_a_large_run_is_decoded_where_it_is_asked(
    store: Store, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving, "_WORTH", 1000)
    with Session("job", store=store) as first:
        for n in range(600):
            put(str(n))
    decoded: list[int] = []
    fill = kept.Blocks.fill

    def counted(self: kept.Blocks, entry: Entry, row: int) -> None:
        decoded.append(row)
        fill(self, entry, row)

    monkeypatch.setattr(kept.Blocks, "fill", counted)
    for attempt in range(3):
        del reads[:], decoded[:]
        with Session("job", store=store, source=first.run_id, replay="offline") as session:
            assert (first.run_id in reads) is (attempt == 0)
            assert decoded == []
            assert [put(str(n)) for n in (0, 1, 2)] == ["put 0", "put 1", "put 2"]
            assert len(decoded) == (0 if attempt == 0 else 3)
        assert session.stats.hits == 3


def test_a_small_run_is_not_worth_it(store: Store) -> None:
    session = crash(store)
    crash(store)
    assert not is_kept(store, session.run_id)


# --- that it says the same -----------------------------------------------------------------------


def test_it_holds_what_the_traces_hold(store: Store) -> None:
    for upto in (1, 2, 4):
        crash(store, upto)
    with Session("job", store=store) as session:
        work(session, 4)
        session.undo(to=20)
    lineage = read(read_traces(store, session.run_id, locks=None))
    assert lineage.undone.done
    ends = [kept.TraceEnd(run, "", {}) for run in lineage.runs]
    data = kept.dump(kept.Saved(lineage, ends, 5), "d", b"key")
    again = kept.load_saved(data, "d", b"key")
    assert again is not None
    assert (again.traces, again.last_time) == (ends, 5)
    assert told(again.lineage) == told(lineage)
    assert {type(value) for each in told(again.lineage) for value in each.values()} == {
        type(value) for each in told(lineage) for value in each.values()
    }
    assert vars(again.lineage.undone) == vars(lineage.undone)
    assert again.lineage._replace(entries=[], undone=lineage.undone) == lineage._replace(entries=[])


def test_a_crash_loop_goes_on_in_the_same_way(tmp_path: Path) -> None:
    """New steps and undos between the attempts; with and without what was kept."""
    found: list[list[tuple[int, int]]] = []
    for forget in (False, True):
        store = open_store(tmp_path / str(forget))
        stats: list[tuple[int, int]] = []
        for attempt, upto in enumerate([1, 2, 2, 3, 3, 4, 4]):
            session = Session("job", store=store)
            with pytest.raises(ZeroDivisionError), session:
                for n in range(upto):
                    add(str(n))
                    look(str(n % 2))
                if attempt == 3:
                    session.undo()
                raise ZeroDivisionError
            stats.append((session.stats.hits, session.stats.misses))
            for info in store.runs() if forget else ():
                put_steps(store, info.run, None)
        found.append(stats)
    assert found[0] == found[1]
    assert any(misses for _, misses in found[0][4:])


# --- that it is never missed ---------------------------------------------------------------------


def damaged(data: bytes) -> list[bytes]:
    flips = [bytearray(data) for _ in range(40)]
    for n, each in enumerate(flips):
        each[n * (len(data) - 1) // 39] ^= 1 << n % 8
    cuts = [data[: n * len(data) // 20] for n in range(20)]
    return [b"", b"\n", b"\n\n\n", b"x" * 500, data + b"x", data * 2, *cuts, *map(bytes, flips)]


def test_one_that_is_damaged_is_made_again(store: Store, reads: list[str]) -> None:
    source = [crash(store).run_id for _ in range(3)][-1]
    with Session("other", store=store, source=source, replay="offline"):
        pass
    data = steps_of(store, source)
    assert data is not None
    for each in damaged(data):
        put_steps(store, source, each)
        del reads[:]
        with Session("other", store=store, source=source, replay="offline") as session:
            work(session, 3)
        assert (session.stats.hits, session.stats.misses) == (21, 0)
        assert source in reads
        assert steps_of(store, source) == data


def test_one_of_another_trace_or_key_counts_for_nothing(store: Store, tmp_path: Path) -> None:
    runs = [crash(store).run_id for _ in range(4)]
    data = steps_of(store, runs[2])
    assert data is not None
    assert kept.load_saved(data, "0" * 64, store.secret_key()) is None
    put_steps(store, runs[3], data)
    assert saving.take_saved(store, runs[3], None, lambda *_: None) is None
    steps_store: Any = store
    found = dataclasses.asdict(steps_store.measure(runs[2]))
    assert kept.load_saved(data, found["digest"], store.secret_key()) is not None
    assert kept.load_saved(data, found["digest"], b"x" * 32) is None


@pytest.mark.parametrize(
    "forged",
    [
        {"format": "rollcage-steps/1"},
        {"blocks": [10**18]},
        {"steps": "many"},
        {"columns": -5},
        {"traces": [[1, 2]]},
        {"undone": {}},
        {"opened": [1]},
        {"settings": None, "runs": None, "traces": []},
    ],
)
def test_one_that_is_signed_and_makes_no_sense_counts_for_nothing(
    store: Store, forged: dict[str, Any]
) -> None:
    runs = [crash(store).run_id for _ in range(4)]
    data = steps_of(store, runs[2]) or b""
    _, head, rest = data.split(b"\n", 2)
    body = orjson.dumps(orjson.loads(head) | forged) + b"\n" + rest
    signature: Callable[..., bytes] = kept._signature
    put_steps(store, runs[2], signature(store.secret_key(), body) + b"\n" + body)
    session = crash(store)
    assert (session.stats.hits, session.stats.misses) == (21, 0)


def test_a_word_on_the_source_since_is_heard(store: Store) -> None:
    for _ in range(3):
        crash(store)
    with Session("job", store=store) as session:
        work(session, 3)
        session.undo()
    resumed = crash(store)
    assert resumed.stats.misses > 20


def test_older_runs_are_locked_and_may_be_stopped(store: Store) -> None:
    runs = [crash(store).run_id for _ in range(4)]
    lock = store.lock(runs[0])
    with pytest.raises(RunInUse):
        crash(store)
    lock.release()
    store.stop(StopOrder(runs[1], "ann", "enough", 1))
    with pytest.raises(RunStopped):
        crash(store)
    store.lift(runs[1])
    with pytest.raises(SessionError, match="seed"):
        crash(store, seed="other")
    assert crash(store).stats.hits == 21


def test_an_older_run_that_is_gone_is_missed_as_before(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    runs = [crash(store).run_id for _ in range(4)]
    (tmp_path / "runs" / f"{runs[0]}.jsonl").unlink()
    with pytest.raises(SourceMissing, match=runs[0]):
        crash(store)


def test_an_older_run_that_goes_on_is_read_again(store: Store, reads: list[str]) -> None:
    runs = [crash(store).run_id for _ in range(4)]
    writer = store.reopen(runs[0])
    writer.append({"event": "run.abandoned", "time": 1, "by": "ann", "reason": "no"})
    writer.close()
    del reads[:]
    crash(store)
    assert set(reads) == {*runs}


def test_what_is_pruned_is_gone(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "_WORTH", 1)
    with Session("job", store=store) as session:
        put("a")
    with Session("job", store=store, source=session.run_id, replay="offline"):
        put("a")
    assert is_kept(store, session.run_id)
    store.prune(session.run_id, by="ann", time=1)
    assert not is_kept(store, session.run_id)


def test_a_store_that_can_not_be_written_opens_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rollcage.store import disk

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    store = open_store(tmp_path)
    monkeypatch.setattr(disk, "put", full)
    assert [crash(store).stats.hits for _ in range(3)] == [0, 21, 21]
    assert not list(tmp_path.glob("runs/*.steps"))
