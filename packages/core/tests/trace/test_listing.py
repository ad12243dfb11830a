"""A list says of each run how its last attempt ended, wherever its log ends."""

import contextlib
import dataclasses
from pathlib import Path
from typing import Any

import orjson
import pytest
from rollcage import (
    Compensation,
    Options,
    RunInfo,
    Session,
    abandon_run,
    list_runs,
    newest_run,
    open_store,
    tool,
    undo_run,
)
from rollcage.session.options import Clock
from rollcage.trace.folder import Folder
from rollcage.trace.listing import all_runs, run_info
from rollcage.trace.run import ENDS


def nothing() -> list[Compensation]:
    return []


@tool(name="listing.write", undo=nothing)
def write(number: int) -> int:
    return number


def record(store: Path) -> str:
    """Record a run whose attempts end in many ways; return its id."""
    run, steps = "", 40  # whose lines are more than the lines that are read at first
    for number, raised in enumerate((ValueError("no"), None, None)):
        session = Session("job", store=store, actor="ann", input={"n": 1})
        with contextlib.suppress(ValueError), session:
            for each in range(steps + number):
                write(each)
            if raised is not None:
                raise raised
            if number == 1:
                session.pause("a letter")
        run = session.run_id
    undo_run(store, run, to=1)
    with Session("job", store=store, input={"n": 1}, replay="continue") as session:
        write(0)
        session.pause("another letter")
    abandon_run(store, run)
    return run


def told(lines: list[bytes]) -> dict[str, Any]:
    """Return what a list has to say of these lines."""
    said: dict[str, Any] = {"status": None, "ended": None, "waits": "", "attempts": 0}
    for event in map(orjson.loads, lines):
        if event["event"] == "attempt":
            said |= {"status": None, "ended": None, "waits": "", "attempts": said["attempts"] + 1}
        if event["event"] in ENDS:
            said |= {"status": event["status"], "ended": event.get("ended", event["time"])}
            said["waits"] = event.get("waits", "")
        said["last"] = event["event"]
    return said


def test_wherever_a_log_ends(tmp_path: Path) -> None:
    run = record(tmp_path / "whole")
    lines = (tmp_path / "whole" / "logs" / f"{run}.jsonl").read_bytes().splitlines(keepends=True)
    first = orjson.loads(lines[0])
    cut = tmp_path / "cut" / "logs" / f"{run}.jsonl"
    cut.parent.mkdir(parents=True)
    seen = set[str | None]()
    for end in range(1, len(lines) + 1):
        cut.write_bytes(b"".join(lines[:end]))
        info = RunInfo(run, "job", first["time"], actor="ann", given={"n": 1}, **told(lines[:end]))
        assert list_runs(tmp_path / "cut") == [info]
        assert run_info(tmp_path / "cut", run) == info
        seen.add(info.status)
    assert seen == {None, "error", "paused", "ok", "undone", "abandoned"}


@pytest.mark.parametrize("line", [b"{}\n", b"no JSON\n", b'{"event":"run","format":"other/1"}\n'])
@pytest.mark.damaged
def test_a_log_that_can_not_be_read_is_listed_as_damaged(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "r.jsonl").write_bytes(line)
    assert list_runs(tmp_path) == [RunInfo("r", "", 0, status="damaged")]
    assert list_runs(tmp_path, status="damaged")
    assert list_runs(tmp_path, status="unfinished") == []


def test_what_is_asked_for(tmp_path: Path) -> None:
    at = iter(range(1_000, 100_000))
    clock = Clock(wall=lambda: next(at) * 10**9)
    for number in range(6):
        with Session(f"job {number % 2}", store=tmp_path, options=Options(clock=clock)) as session:
            if number < 4:
                session.pause("x")
        if number < 4:
            abandon_run(tmp_path, session.run_id)
    every = list_runs(tmp_path)
    assert [info.name for info in every] == ["job 1", "job 0"] * 3
    assert [info.status for info in every] == ["ok"] * 2 + ["abandoned"] * 4
    asked: list[tuple[dict[str, Any], list[RunInfo]]] = [
        ({"limit": 0}, []),
        ({"limit": -1}, []),
        ({"limit": 2}, every[:2]),
        ({"limit": 20}, every),
        ({"name": "job 1"}, every[::2]),
        ({"name": "job 1", "limit": 1}, every[:1]),
        ({"status": "ok"}, every[:2]),
        ({"status": "ok", "name": "job 0"}, every[1:2]),
        ({"status": "unfinished"}, []),
        ({"since": every[2].begun}, every[:3]),
        ({"before": every[2].begun}, every[3:]),
        ({"since": every[4].begun, "before": every[1].begun}, every[2:5]),
    ]
    for how, found in asked:
        assert list_runs(tmp_path, **how) == found, how
    for at_, info in enumerate(every):
        assert list(all_runs(tmp_path, info.run)) == every[at_ + 1 :]


@pytest.mark.parametrize("given", [None, {"n": 1}, "text"])
def test_a_job_is_found_by_its_name_and_its_input(tmp_path: Path, given: Any) -> None:
    for job in ("job", "other"):
        for each in (None, {"n": 1}, "text"):
            with Session(job, store=tmp_path, input=each):
                pass
    found = newest_run(tmp_path, "job", given)
    assert found is not None
    assert (found.name, found.given) == ("job", given)
    assert bool(found.input) == (given is not None)
    assert open_store(tmp_path).get("names", found.job) == found.run.encode()
    assert newest_run(tmp_path, "job", "another") is None
    assert newest_run(tmp_path, "jo") is None


def test_a_run_that_is_removed_while_it_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Session("job", store=tmp_path) as session:
        write(1)
    store = Folder(tmp_path)
    path = Path(store.path_of(session.run_id))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]))  # as a kill leaves it
    whole = run_info(tmp_path, session.run_id)
    assert (whole.status, whole.ended, whole.attempts) == (None, None, 1)
    read = Folder.read

    def removed(self: Folder, run: str, after: int = 0) -> list[bytes]:
        path.unlink(missing_ok=True)
        return read(self, run, after)

    monkeypatch.setattr(Folder, "read", removed)
    (found,) = list_runs(tmp_path)
    assert found == dataclasses.replace(whole, attempts=0)
    assert list_runs(tmp_path) == []


@pytest.mark.damaged
@pytest.mark.parametrize("first", [b"", b"{}", b"[]", b"1", b'{"format":"other"}', b"no JSON"])
def test_a_run_whose_first_line_is_damaged_is_listed(tmp_path: Path, first: bytes) -> None:
    with Session("job", store=tmp_path) as session:
        write(1)
    path = Path(Folder(tmp_path).path_of(session.run_id))
    _, *rest = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([first + b"\n", *rest]))
    expected = RunInfo(session.run_id, "", 0, status="damaged")
    assert list_runs(tmp_path) == [expected]
    assert run_info(tmp_path, session.run_id) == expected
    assert list_runs(tmp_path, status="damaged", name="") == [expected]


@pytest.mark.parametrize("attempts", [1, 2, 3])
def test_an_abandoned_run_tells_its_attempts(tmp_path: Path, attempts: int) -> None:
    """From its last line."""
    for _ in range(attempts):
        with contextlib.suppress(KeyError), Session("job", store=tmp_path):
            write(1)
            raise KeyError
    (before,) = list_runs(tmp_path)
    abandon_run(tmp_path, before.run)
    assert (before.attempts, run_info(tmp_path, before.run).attempts) == (attempts, attempts)
    last = orjson.loads(Folder(tmp_path).ends(before.run).last)
    assert last.get("attempts", 1) == attempts
