"""What a guarded model costs in a long conversation: `python -m benchmarks.conversations`.

For each framework, and messages of 2 and of 100 kB: the CPU of one question to a guarded model at
25, 100, 300 and 500 turns, without that of the bare model (the guard's own cost), and its relation
to that at 25 turns. Then whole agents: the CPU of one turn of a guarded agent, with its tool, to
that of a bare one. Bare and guarded take turns in one process, and a figure is the lower quartile
of its rounds: these are ratios, and they hold where little else runs.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from rollcage import Session

from benchmarks.frameworks.talks import TALKS, Talk

__all__ = ["main"]

TURNS: Final = (25, 100, 300, 500)
SIZES: Final = (2_000, 100_000)
_ROUNDS: Final = 40
_WINDOW: Final = 20  # turns of an agent around the one that is told
_ROOT: Final = Path(__file__).parents[1]

Figures = dict[str, dict[str, float]]
"""By number of turns: `own` and `bare` (µs), and `total`, an agent's turns to its bare ones."""


def _quartile(values: list[int]) -> float:
    return statistics.quantiles(values, n=4)[0] / 1_000


def _cpu(work: Callable[[list[Any]], object], messages: list[Any]) -> int:
    start = time.process_time_ns()
    work(messages)
    return time.process_time_ns() - start


def _questions(talk: Talk, turns: int, size: int) -> dict[str, float]:
    """A bare question, and the own cost of a guarded one, at so many turns."""
    said = [message for number in range(turns) for message in talk.turn(number, size)]
    took: dict[str, list[int]] = {"bare": [], "guarded": []}
    for number in range(turns, turns + _ROUNDS):
        took["guarded"].append(_cpu(talk.guarded, list(said)))
        took["bare"].append(_cpu(talk.bare, list(said)))
        said += talk.turn(number, size)
    bare, guarded = (_quartile(took[name][3:]) for name in ("bare", "guarded"))
    return {"bare": bare, "own": guarded - bare}


def _agents(talk: Talk, turns: tuple[int, ...], size: int) -> list[float]:
    """The turns of a guarded agent to those of a bare one, at so many turns."""
    most = turns[-1] + _WINDOW
    talk.bare_agent(3, size)
    talk.guarded_agent(3, size)
    clocks = [talk.bare_agent(most, size), talk.guarded_agent(most, size)]
    took = [[after - before for before, after in itertools.pairwise(clock)] for clock in clocks]
    windows = [
        [_quartile(each[at - _WINDOW // 2 : at + _WINDOW // 2]) for at in turns] for each in took
    ]
    return [guarded / bare for bare, guarded in zip(*windows, strict=True)]


def _measured(framework: str, size: int, folder: Path) -> Figures:
    """All figures of a framework, in this process."""
    found: Figures = {}
    for turns in TURNS:
        with Session(f"{turns} turns", store=folder) as session:
            talk = TALKS[framework](session, folder)
            gc.collect()
            gc.freeze()
            found[str(turns)] = _questions(talk, turns, size)
    with Session("agents", store=folder) as session:
        talk = TALKS[framework](session, folder)
        for turns, total in zip(TURNS, _agents(talk, TURNS, size), strict=True):
            found[str(turns)]["total"] = total
    return found


def _child(framework: str, size: int) -> Figures:
    """The same, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.conversations", "--in", folder]
        command += ["--frameworks", framework, "--sizes", str(size)]
        path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
        env = os.environ | {"PYTHONPATH": path, "PYTHONHASHSEED": "0", "HOME": folder}
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
        figures: Figures = json.loads(done.stdout.splitlines()[-1])
        return figures


def _rows(framework: str, size: int, found: Figures) -> str:
    first = found[str(TURNS[0])]["own"]
    own = " | ".join(f"{found[str(turns)]['own']:,.0f}" for turns in TURNS)
    total = " | ".join(f"{found[str(turns)]['total']:.2f}" for turns in TURNS)
    ratio = found[str(TURNS[-1])]["own"] / first
    return f"| {framework} | {size // 1_000} kB | {own} | {ratio:.2f} | {total} |"


def main() -> None:
    """Measure what the command line asks for, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.conversations", description=__doc__)
    parser.add_argument("--frameworks", nargs="+", choices=list(TALKS), default=list(TALKS))
    parser.add_argument("--sizes", nargs="+", type=int, metavar="N", default=list(SIZES))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    parser.add_argument("--in", dest="folder", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.folder is not None:
        print(json.dumps(_measured(asked.frameworks[0], asked.sizes[0], asked.folder)))
        return
    turns = " | ".join(f"at {turns}" for turns in TURNS)
    print(f"| framework | messages | own µs {turns} | to 25 | agent's turn to bare {turns} |")
    print("|---|---|" + "---:|" * (2 * len(TURNS) + 1))
    data: dict[str, dict[str, Figures]] = {}
    for framework in asked.frameworks:
        for size in asked.sizes:
            found = data.setdefault(framework, {})[str(size)] = _child(framework, size)
            print(_rows(framework, size, found), flush=True)
    if asked.json is not None:
        asked.json.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
