"""Change core in one place at a time, and see whether a test fails.

    python -m tests.mutation [--seed N] [--mutants 600] [--budget 27] [--only trace/run.py] [TESTS]

A sample of all mutants is tried, each file with its share. It ends with 1 if fewer than 90 % of the
mutants were killed. `survivors.toml` has those that are known, with their reasons; one that no test
can find, as it does the same, doesn't count. Those that are not known yet are printed as they are
written there.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import secrets
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

os.environ["HYPOTHESIS_PROFILE"] = "mutants"  # before it is imported

import pytest

from tests.mutation.bed import AT_ONCE, Bed, Tried
from tests.mutation.mutants import Mutant, mutants, sample

__all__ = ["SOURCES", "known", "population"]

SOURCES = Path(__file__).parents[2] / "packages/core/src/rollcage"
ROOMS = ("session", "stages", "calls", "undo", "replay", "trace")
BAR = 0.9
TESTS = ("packages/core/tests", "packages/fork/tests", "packages/adapter/tests", "tests/laws")
NOT = (
    "packages/core/tests/stages/test_stages_go.py",  # they run other processes
    *("tests/laws/test_kills.py", "tests/laws/test_stores.py"),
    "tests/laws/test_mutants.py",  # it changes core itself
    *("tests/laws/test_exhaustive.py", "tests/laws/test_views.py"),  # too long for each mutant
)
HOW = [
    *("-q", "--capture=no", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not slow"),
    *(f"--ignore={each}" for each in NOT),
]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6))
    parser.add_argument("--mutants", type=int, default=600)
    parser.add_argument("--budget", type=float, default=27, help="minutes, to the last mutant")
    parser.add_argument("--only", default="", help="files that begin so, or `file:function`")
    parser.add_argument("--survivors", action="store_true", help="the known ones, no sample")
    parser.add_argument("--lines", type=Path, help="keeps which tests come by which lines")
    parser.add_argument("tests", nargs="*", default=TESTS)
    given = parser.parse_args()
    began = time.monotonic()
    file, _, function = given.only.partition(":")
    reasons, every = known(), list(population())
    chosen = [
        mutant
        for mutant in sample(every, given.seed)
        if mutant.file.startswith(file) and mutant.function.startswith(function)
        if (key_of(mutant) in reasons if given.survivors else not is_equivalent(mutant, reasons))
    ][: given.mutants]
    until = began + 60 * given.budget
    with tempfile.TemporaryDirectory() as folder:
        bed = Bed(SOURCES, chosen, until, given.lines or Path(folder) / "lines.json")
        code = pytest.main([*HOW, *given.tests], plugins=[bed])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        return int(code)
    minutes, alone = (time.monotonic() - began) / 60, sum(os.times()[:4]) / 60 / AT_ONCE
    print(
        f"\nseed {given.seed}: {len(bed.tried)} of {len(chosen)} mutants in {minutes:.0f} minutes "
        f"({alone:.0f} with {AT_ONCE} cores to itself)"
    )
    rate = table(bed.tried, reasons)
    for key in reasons.keys() - {key_of(mutant) for mutant in every}:
        print("in survivors.toml, but no longer in core:", *key)
    for tried in bed.tried:
        if tried.killed is False and key_of(tried.mutant) not in reasons:
            print(entry(tried.mutant, f"{tried.tests} tests"))
    return 0 if rate >= BAR else 1


def population() -> Iterable[Mutant]:
    """Yield all mutants of the rooms."""
    for room in ROOMS:
        for path in sorted((SOURCES / room).glob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            yield from mutants(f"{room}/{path.name}", tree)


Key = tuple[str, str, str]


def key_of(mutant: Mutant) -> Key:
    return mutant.file, mutant.function, mutant.change


def known() -> dict[Key, dict[str, Any]]:
    """Return the survivors that are known."""
    listed = tomllib.loads(Path(__file__).with_name("survivors.toml").read_text(encoding="utf-8"))
    return {
        (each["file"], each["function"], each["change"]): each
        for each in listed.get("survivor", [])
    }


def is_equivalent(mutant: Mutant, reasons: dict[Key, dict[str, Any]]) -> bool:
    """Tell whether a mutant is known to do the same as the original."""
    return bool(reasons.get(key_of(mutant), {}).get("equivalent"))


def entry(mutant: Mutant, why: str) -> str:
    """Return the entry of a survivor."""
    said = {**dict(zip(("file", "function", "change"), key_of(mutant), strict=True)), "why": why}
    lines = [f"{name} = {json.dumps(text, ensure_ascii=False)}" for name, text in said.items()]
    return "\n".join(["", "[[survivor]]", *lines])


def table(all_tried: list[Tried], reasons: dict[Key, dict[str, Any]]) -> float:
    """Print what became of the mutants of each room; return which part of all was killed."""
    rooms: dict[str, Counter[str]] = {room: Counter() for room in (*ROOMS, "all")}
    for tried in all_tried:
        for room in (tried.mutant.file.partition("/")[0], "all"):
            rooms[room][_said(tried, reasons)] += 1
    columns = ("killed", "survived", "untested", "equivalent")
    print(f"{'room':10}", *(f"{each:>12}" for each in columns), f"{'rate':>10}", sep="")
    rate = 1.0
    for room, found in rooms.items():
        counted = found["killed"] + found["survived"] + found["untested"]
        rate = found["killed"] / counted if counted else 1.0
        print(f"{room:10}", *(f"{found[each]:12}" for each in columns), f"{rate:10.1%}", sep="")
    return rate


def _said(tried: Tried, reasons: dict[Key, dict[str, Any]]) -> str:
    """Return the column of a mutant."""
    if tried.killed:
        return "killed"
    if tried.killed is None or is_equivalent(tried.mutant, reasons):
        return "equivalent"
    return "survived" if tried.tests else "untested"


if __name__ == "__main__":
    sys.exit(main())
