"""Processes that are killed at any moment: nothing is lost, nothing happens twice unasked."""

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rollcage.fingerprint.identity import idempotency_key
from rollcage.store import JsonlStore, RunInfo
from rollcage.trace import check_events

pytestmark = pytest.mark.slow

KILLS = 250
INTERRUPTS = 80
FINISHED, UNKNOWN, INTERRUPTED = 0, 3, 4  # as `victim.py` exits

Resolve = Callable[[str, int, dict[str, Any]], None]
Python = Callable[..., subprocess.CompletedProcess[str]]


class Yard:
    """Has jobs worked at by processes that get a signal, and keeps count of what they did."""

    def __init__(self, victim: subprocess.Popen[str], store: JsonlStore, resolve: Resolve) -> None:
        self.victim = victim
        self.store = store
        self.resolve = resolve
        self.effects = store.root.parent / "effects"
        self.said = store.root.parent / "said.json"
        self.gone = store.root.parent / "gone"
        self.gone.mkdir()
        self.unknown = 0  # how often a write was reported unknown
        self.torn: dict[Path, bytes] = {}  # where what was torn off has to turn up

    def work(
        self, seed: int, *, after: int, microseconds: int, by: signal.Signals, replay: str = "auto"
    ) -> int:
        """One worker's life; its wait status."""
        order = {
            "store": str(self.store.root),
            "effects": str(self.effects),
            "said": str(self.said),
            "seed": seed,
            "bytes": after,
            "microseconds": microseconds,
            "signal": int(by),
            "replay": replay,
        }
        assert self.victim.stdin is not None
        assert self.victim.stdout is not None
        self.victim.stdin.write(json.dumps(order) + "\n")
        self.victim.stdin.flush()
        answer = self.victim.stdout.readline()
        assert answer, f"the script itself ended with {self.victim.wait()}"
        return int(answer)

    def happened(self) -> list[str]:
        """The idempotency keys of the writes that happened."""
        if not self.effects.exists():
            return []
        return [line.split(" ", 1)[0] for line in self.effects.read_text().splitlines()]

    def find_out(self) -> None:
        """Say of the write that was just reported unknown what the effects tell."""
        run, number = json.loads(self.said.read_text())
        trace = self.store.read(run)
        recorded = check_events(trace.data, trace.where)
        (step,) = [e for e in recorded if e["event"] == "step.started" and e["step"] == number]
        for event in recorded:  # a body that a call of its own was cut off in is cut off too
            if event["event"] == "step.finished" and event["step"] == number:
                assert event["outcome"] == {"status": "unknown"}
        root = recorded[0]["root"]
        key = idempotency_key(root, step.get("branch", ""), step["fingerprint"])
        if key in self.happened():
            self.resolve(run, number, {"status": "ok", "value": step["args"]["name"]})
        else:
            self.resolve(run, number, {"status": "not_started"})
        self.unknown += 1

    def tear(self, path: Path, chance: random.Random) -> None:
        """Leave a trace as a kill in the middle of a write does: with half a line."""
        if path.with_suffix(".torn") in self.torn:
            return
        last = path.read_bytes().splitlines()[-1]
        torn = last[: chance.randrange(1, len(last))]
        with path.open("ab") as file:
            file.write(torn)
        self.torn[path.with_suffix(".torn")] = torn + b"\n"

    def newest(self) -> RunInfo | None:
        """The newest run that worked at a job."""
        runs = [run for run in self.store.runs() if run.mode != "offline"]
        return runs[-1] if runs else None

    def finish(self, seed: int, chance: random.Random, by: signal.Signals) -> int:
        """Work at one job until it is done, whatever it takes; how many workers got the signal."""
        struck = 0
        former = self.newest()
        while True:
            status = self.work(
                seed,
                after=80 * chance.randrange(5),
                microseconds=chance.randrange(3_000),
                by=by,
            )
            assert len(set(self.happened())) == len(self.happened()), "a write ran twice"
            if os.WIFSIGNALED(status):
                struck += 1
                newest = self.newest()
                if newest is None or newest == former:
                    continue
                if newest.status == "ok":
                    return struck
                if newest.status is None and chance.random() < 0.2:
                    self.tear(self.store.root / "runs" / f"{newest.run}.jsonl", chance)
                continue
            code = os.waitstatus_to_exitcode(status)
            if code == UNKNOWN:
                self.find_out()
                continue
            if code == INTERRUPTED:
                struck += 1
                newest = self.newest()
                if newest is not None and newest != former and newest.status == "ok":
                    return struck
                continue
            assert code == FINISHED, json.loads(self.said.read_text())
            return struck

    def look_back(self, seed: int) -> list[Any]:
        """What the job was told, by its last trace alone: nothing runs."""
        newest = self.newest()
        assert newest is not None
        for path in (self.store.root / "runs").glob("*.jsonl"):
            if path.stem != newest.run:
                path.rename(self.gone / path.name)
        before = self.happened()
        status = self.work(seed, after=1 << 30, microseconds=0, by=signal.SIGKILL, replay="offline")
        said: list[Any] = json.loads(self.said.read_text())
        assert os.waitstatus_to_exitcode(status) == FINISHED, said
        assert self.happened() == before
        return said


@pytest.fixture
def yard(store: JsonlStore, resolve: Resolve) -> Iterator[Yard]:
    script = Path(__file__).with_name("victim.py")
    # Not measured: an interrupt inside of the collector may leave a lock of its own taken for ever.
    plain = {name: said for name, said in os.environ.items() if not name.startswith("COVERAGE")}
    with subprocess.Popen(
        [sys.executable, "-W", "error", str(script)],
        env=plain,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as victim:
        yield Yard(victim, store, resolve)


@pytest.mark.parametrize(
    ("by", "enough"), [(signal.SIGKILL, KILLS), (signal.SIGINT, INTERRUPTS)], ids=str
)
def test_a_process_may_end_at_any_moment(yard: Yard, by: signal.Signals, enough: int) -> None:
    chance = random.Random(by)  # noqa: S311 - the kernel's timing makes each run another one
    struck = jobs = 0
    while struck < enough:
        yard.effects.unlink(missing_ok=True)
        struck += yard.finish(jobs, chance, by)
        names = Counter(line.split(" ", 1)[1] for line in yard.effects.read_text().splitlines())
        told = yard.look_back(jobs)
        flat = [name for each in told for name in (each if isinstance(each, list) else [each])]
        written = Counter(name for name in flat if not name.startswith("seen "))
        for name in [name for name in written if f"{name}, first" in names]:
            written += Counter([f"{name}, first", f"{name}, second"])  # the calls of its body
        assert names == written, "what happened is what the job was told"
        jobs += 1
    if by == signal.SIGKILL:  # an interrupt lets most bodies end
        assert yard.unknown > 0
    for path, torn in yard.torn.items():
        # In front of ours may stand what a kill in the middle of a write left.
        assert torn in path.read_bytes()
