"""A log that was closed by a copy, a move or a prune takes no line, and says where to go."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from rollcage import (
    Instrument,
    RunEvent,
    RunInfo,
    Session,
    abandon_run,
    compensate,
    list_runs,
    open_store,
    pause_run,
    resolve_step,
    stop_run,
    tool,
    undo_run,
)
from rollcage.errors import RollcageError, RunElsewhere, RunPruned
from rollcage.stages.orders import order_of
from rollcage.trace import check_events
from rollcage.trace.chain import chained
from rollcage.trace.store import drop

Use = Callable[[Path, str], Any]


@tool(name="endings.take_back", effect="write", idempotent=True)
def take_back(number: int) -> None: ...


@tool(name="endings.write", undo=lambda args: [compensate(take_back, **args)])
def write(number: int) -> int:
    return number


def resume(store: Path, run: str) -> None:
    with Session("job", store=store, run=run, replay="continue"):
        pytest.fail("a closed log was resumed")


def replay(store: Path, run: str) -> None:
    with Session("job", store=store, source=run, replay="offline"):
        assert write(1) == 1


def recorded(store: Path, last: dict[str, Any]) -> str:
    """Record a run that waits, and add a last line; return its id."""
    with Session("job", store=store) as session:
        write(1)
        session.pause("a letter")
    path = store / "logs" / f"{session.run_id}.jsonl"
    events = [orjson.loads(line) for line in path.read_bytes().splitlines()]
    ended = {name: events[-1][name] for name in ("status", "waits")}
    more = {"event": "", "time": 5, **ended, "attempts": 1, "ended": 7, **last}
    plain = ({name: each for name, each in event.items() if name != "hash"} for event in events)
    path.write_bytes(b"".join(chained([*plain, more])))
    drop(open_store(store), "heads", session.run_id)
    return session.run_id


GONE = {"event": "gone", "to": "/elsewhere", "id": "0" * 16}
HELD = {"event": "held", "from": "/some where", "id": "0" * 16}
PRUNED = {"event": "pruned", "lines": 5, "head": "0" * 64}
WRITES: dict[str, Use] = {
    "resume": resume,
    "undo": undo_run,
    "abandon": abandon_run,
    "resolve": lambda store, run: resolve_step(store, run, 1, happened=False),
}
ORDERS: dict[str, Use] = {
    "stop": stop_run,
    "pause": pause_run,
}


@pytest.mark.parametrize("use", [*WRITES, *ORDERS])
@pytest.mark.parametrize(
    ("last", "said"),
    [
        (GONE, "was moved, and goes on in /elsewhere"),
        (
            HELD,
            "is a copy of run .*, which may go on in /some where: .* --from '/some where' --to ",
        ),
    ],
)
def test_of_a_copy_or_a_moved_run(
    tmp_path: Path, last: dict[str, Any], said: str, use: str
) -> None:
    run = recorded(tmp_path, last)
    before = (tmp_path / "logs" / f"{run}.jsonl").read_bytes()
    with pytest.raises(RunElsewhere, match=said):
        (WRITES | ORDERS)[use](tmp_path, run)
    assert order_of(tmp_path, run) is None
    assert (tmp_path / "logs" / f"{run}.jsonl").read_bytes() == before
    replay(tmp_path, run)


@pytest.mark.parametrize("use", [*WRITES, "replay"])
def test_of_a_pruned_run(tmp_path: Path, use: str) -> None:
    run = recorded(tmp_path, PRUNED)
    with pytest.raises(RunPruned, match="was pruned: it ended paused"):
        (WRITES | {"replay": replay})[use](tmp_path, run)


def test_a_pruned_run_is_listed_with_the_digest_of_its_input(tmp_path: Path) -> None:
    run = recorded(tmp_path, PRUNED)
    path = tmp_path / "logs" / f"{run}.jsonl"
    events = [orjson.loads(line) for line in path.read_bytes().splitlines()]
    plain = ({name: each for name, each in event.items() if name != "hash"} for event in events)
    path.write_bytes(b"".join(chained([{**next(plain), "digest": "d1"}, *plain])))
    assert [info.input for info in list_runs(tmp_path)] == ["d1"]


@pytest.mark.parametrize("last", [GONE, HELD, PRUNED])
def test_it_is_listed_as_the_run_ended(tmp_path: Path, last: dict[str, Any]) -> None:
    run = recorded(tmp_path, last)
    (info,) = list_runs(tmp_path)
    assert info == RunInfo(
        run, "job", info.begun, "paused", 7, 1, "a letter", last=last["event"]
    )  # fmt: skip


def test_a_line_from_outside_and_an_event_of_a_nested_session_have_their_times(
    tmp_path: Path,
) -> None:
    class Times(Instrument):
        def opened(self, run: RunEvent, /) -> None:
            times.append(run.time)

        def closed(self, run: RunEvent, /) -> None:
            times.append(run.time)

    times = [time.time_ns() // 1000]
    with Session("job", store=tmp_path) as session:
        write(1)
        with Session("inner", store=tmp_path, observers=[Times()]):
            write(2)
        session.pause("a letter")
    abandon_run(tmp_path, session.run_id)
    ended = list_runs(tmp_path)[0].ended
    assert ended is not None
    times += [ended, time.time_ns() // 1000]
    assert len(times) == 5
    assert times == sorted(times)


@pytest.mark.damaged
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"more": 1}, "ended: Value error, there is no field more"),
        ({"calls": -1}, "calls: Input should be greater than or equal to 0"),
        ({"time": "now"}, "time: Input should be a valid integer"),
    ],
)
def test_a_line_that_breaks_the_schema_is_named(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    with Session("job", store=tmp_path) as session:
        write(1)
    data = (tmp_path / "logs" / f"{session.run_id}.jsonl").read_bytes()
    events = check_events(data, "it")
    assert [each["event"] for each in events] == ["run", "attempt", "step", "outcome", "ended"]
    plain = [{name: each for name, each in event.items() if name != "hash"} for event in events]
    plain[-1] |= change
    with pytest.raises(RollcageError, match=f"line 5.*{said}"):
        check_events(b"".join(chained(plain)), "it")
