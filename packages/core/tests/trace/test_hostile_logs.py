"""Logs that somebody has forged: each folds, or is damage that an error names by its line."""

import contextlib
import random
import signal
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson
import pytest
import undo_tools as files
from copying import Copy
from hostile import MUTANTS, SECONDS, mutated, pay
from rollcage import Session, undo_run
from rollcage.errors import RollcageError, TraceCorrupt
from rollcage.trace import check_events
from rollcage.trace.chain import ROOT, chained, checked
from rollcage.trace.run import Run, fold_lines, fold_log


def folded_by(fold: Callable[..., Run], lines: Any) -> Run | TraceCorrupt:
    """Return the run, or the error that names the damaged line."""
    try:
        return fold(lines, "it", {})
    except TraceCorrupt as error:
        return error


@pytest.mark.usefixtures("in_time")
@pytest.mark.parametrize("which", range(4))
def test_forged_logs_fold_or_name_their_line(
    which: int, valid_logs: list[list[dict[str, Any]]]
) -> None:
    chance = random.Random(which)  # noqa: S311 - no secret
    folded = damaged = 0
    named: list[tuple[int, int]] = []
    for _ in range(MUTANTS):
        lines = mutated(valid_logs[which], chance)
        if not lines or not lines[0].startswith(b'{"event":"run","format":"rollcage/2"'):
            continue
        signal.alarm(SECONDS)
        run = folded_by(fold_lines, checked(lines, "it"))
        cut = folded_by(fold_log, lines)
        if isinstance(run, TraceCorrupt):
            damaged += 1
            named.append((run.line, len(lines)))
            assert isinstance(cut, TraceCorrupt)
            assert (cut.line, str(cut)) == (run.line, str(run))
        else:
            folded += 1
            assert isinstance(cut, Run)
            assert cut.steps.keys() == run.steps.keys()
            assert [s.status for s in cut.steps.values()] == [s.status for s in run.steps.values()]
            for step in run.steps.values():
                run.lineage_of(step)
                run.idempotency_key(step)
                assert step.acts in (True, False)
                assert step.outcome is None or step.result["status"] in ("ok", "error")
            assert run.untaken is not None
            run.reopened(set(run.steps))
        signal.alarm(0)
    assert all(1 <= line <= of for line, of in named)
    assert folded > MUTANTS / 20
    assert damaged > MUTANTS / 20


def use(store: Path, disk: Path, chance: random.Random) -> None:
    """Do one of the things that begin with reading a log."""
    match chance.randrange(4):
        case 0:
            with Session("job", store=store, source="r", replay="offline"):
                files.both(one=str(disk / "a"), two=str(disk / "b"))
                pay(1)
        case 1:
            replay = Session("job", store=store, run="r", replay="resume", on_divergence="warn")
            with replay as session:
                files.both(one=str(disk / "a"), two=str(disk / "b"))
                with session.branch("one"):
                    files.read_file(path=str(disk / "a"))
        case 2:
            undo_run(store, "r", to=chance.choice([None, 3]))
        case _:
            fork = Copy("r", 3, {"outcome": {"status": "ok", "value": 1}}, live=True)
            with Session("job", store=store, stages=[fork]):
                files.both(one=str(disk / "a"), two=str(disk / "b"))


@pytest.mark.damaged
@pytest.mark.usefixtures("in_time")
def test_forged_logs_are_replayed_or_refused(
    valid_logs: list[list[dict[str, Any]]], hostile_disk: Path, tmp_path: Path
) -> None:
    """A session that reads one raises an error of ours, and no other."""
    chance = random.Random(9)  # noqa: S311 - no secret
    for number in range(MUTANTS):
        lines = mutated(valid_logs[number % 4], chance)
        if not lines:
            continue
        store = tmp_path / str(number)
        (store / "logs").mkdir(parents=True)
        (store / "logs" / "r.jsonl").write_bytes(b"".join(lines))
        signal.alarm(SECONDS)
        with contextlib.suppress(RollcageError):
            use(store, hostile_disk, chance)
        signal.alarm(0)


def test_the_logs_are_valid_themselves(valid_logs: list[list[dict[str, Any]]]) -> None:
    for log in valid_logs:
        lines = chained({n: v for n, v in each.items() if n != "hash"} for each in log)
        assert len(check_events(b"".join(lines), "it")) == len(log)
        assert fold_lines(checked(lines, "it"), "it", {}).steps
    kinds = {each["event"] for log in valid_logs for each in log}
    assert kinds >= {"undone", "forked", "changed", "decided", "refused", "back", "rolled"}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"outcome":{', b'"outcome":{"status":"ok","value":1},"outcome":{'),
        (b'"outcome":{', b'"outcome": {'),
        (b'"event":"outcome",', b'"event":"outcome","event":"outcome",'),
        (b'"duration":', b'"outcome":null,"duration":'),
        (b'"step":', b'"step":1,"step":'),
    ],
)
def test_lines_of_another_writing_say_the_same(
    valid_logs: list[list[dict[str, Any]]], old: bytes, new: bytes
) -> None:
    """JSON may have spaces in it, or a key twice: both ways of reading agree, or refuse it."""
    lines: list[bytes] = []
    head = ROOT
    for event in valid_logs[0]:
        body = orjson.dumps({name: each for name, each in event.items() if name != "hash"})
        if event["event"] == "outcome":
            body = body.replace(old, new, 1)
        head = sha256(head + body).hexdigest().encode()
        lines.append(body[:-1] + b',"hash":"' + head + b'"}\n')
    whole = fold_lines(checked(lines, "it"), "it", {})
    for n, step in fold_log(lines, "it", {}).steps.items():
        other = whole.steps[n]
        assert step.status == other.status
        if step.outcome is None or other.outcome is None:
            assert step.outcome == other.outcome
            continue
        try:
            found = step.result
        except TraceCorrupt:
            continue
        assert found == other.result
