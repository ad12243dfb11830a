"""Jobs and undos that are killed at any moment: in the end all is done, or all is undone."""

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rollcage.store import JsonlStore
from rollcage.trace import check_events

KILLS = 80
FINISHED, UNKNOWN, LEFT = 0, 3, 4  # as `undo_victim.py` exits
NEVER = 1 << 30


class Yard:
    """Has a job worked at, or undone, by processes that are killed."""

    def __init__(self, victim: subprocess.Popen[str], folder: Path) -> None:
        self.victim = victim
        self.folder = folder
        self.disk = folder / "disk"
        self.store = folder / "store"
        self.said = folder / "said"
        self.kills = self.kills_of_undos = self.unknown = 0

    def fresh(self) -> dict[str, str]:
        """Make a disk with some files; what is in them."""
        shutil.rmtree(self.disk, ignore_errors=True)
        shutil.rmtree(self.store, ignore_errors=True)
        self.disk.mkdir()
        for name in "ace":
            (self.disk / name).write_text(f"{name} as it was")
        return self.content()

    def content(self) -> dict[str, str]:
        return {p.name: p.read_text() for p in self.disk.iterdir() if len(p.name) == 1}

    def order(
        self, do: str, seed: int, *, after: int, microseconds: int, **more: Any
    ) -> int | None:
        """How a worker exited; None where it was killed."""
        order = {
            "do": do, "seed": seed, "bytes": after, "microseconds": microseconds,
            "disk": str(self.disk), "store": str(self.store), "said": str(self.said), **more,
        }  # fmt: skip
        assert self.victim.stdin is not None
        assert self.victim.stdout is not None
        self.victim.stdin.write(json.dumps(order) + "\n")
        self.victim.stdin.flush()
        answer = self.victim.stdout.readline()
        assert answer, f"the script itself ended with {self.victim.wait()}"
        status = int(answer)
        if os.WIFSIGNALED(status):
            self.kills += 1
            self.kills_of_undos += do == "undo"
            return None
        code = os.waitstatus_to_exitcode(status)
        assert code in (FINISHED, UNKNOWN, LEFT), self.said.read_text()
        return code

    def recorded(self) -> bool:
        return (self.store / "runs").exists() and bool(JsonlStore(self.store).runs())

    def ended(self) -> str | None:
        """How the newest run ended, whenever its process was killed."""
        return JsonlStore(self.store).runs()[-1].status if self.recorded() else None


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    script = Path(__file__).with_name("undo_victim.py")
    plain = {name: said for name, said in os.environ.items() if not name.startswith("COVERAGE")}
    with subprocess.Popen(
        [sys.executable, "-W", "error", str(script)],
        env=plain,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as victim:
        yield Yard(victim, tmp_path)


def test_all_is_done_or_all_is_undone(yard: Yard) -> None:
    chance = random.Random(4)  # noqa: S311 - the kernel's timing makes each run another one
    seed = done = undone = 0
    while yard.kills < KILLS or not yard.kills_of_undos:
        seed += 1
        yard.fresh()
        assert yard.order("work", seed, after=NEVER, microseconds=0) == FINISHED
        all_done = yard.content()
        all_undone = yard.fresh()
        if _recovered(yard, seed, chance) == "work":
            assert yard.content() == all_done, f"seed {seed}"
            done += 1
        else:
            assert yard.content() == all_undone, f"seed {seed}"
            undone += 1
        for info in JsonlStore(yard.store).runs():
            trace = JsonlStore(yard.store).read(info.run)
            check_events(trace.data, trace.where)
    assert done > 0
    assert undone > 0


def _recovered(yard: Yard, seed: int, chance: random.Random) -> str:
    """Kill a job, then go on with it or undo it, killed again and again; what came of it."""
    do, in_doubt = "work", "list"
    for attempt in range(30):
        last = attempt > 6
        code = yard.order(
            do,
            seed,
            after=NEVER if last else 70 * chance.randrange(10),
            microseconds=chance.randrange(4_000),
            in_doubt=in_doubt,
        )
        if code == FINISHED or (do == "work" and yard.ended() == "ok"):
            return do
        if code in (UNKNOWN, LEFT):  # a file that was appended to: a look alone can't tell
            yard.unknown += 1
            listed = yard.said.read_text()
            told = "unknown" in listed or "nobody can tell" in listed
            assert told, f"seed {seed}: {listed}"
            do, in_doubt = "undo", "restore"
        elif yard.recorded() and attempt == 0:
            do = chance.choice(["work", "undo"])
    raise AssertionError(f"seed {seed}: it came to no end")
