"""Chaos, and what comes of it, by one command.

    python -m tests.chaos rollback [--runs 1000] [--at-once 20] [--seed N] [--json]
    python -m tests.chaos crash [--runs 200] [--at-once 2] [--seed N] [--json]
    python -m tests.chaos conflicts [--runs 8] [--at-once 2] [--seed N] [--json]

It prints its figures, and exits with 1 where anything was not as it must be.
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
from typing import Any

from tests.chaos.conflicts import conflicts
from tests.chaos.crash import crash
from tests.chaos.rollback import rollback

SHOWN = 5  # violations that are told in full


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("what", choices=["rollback", "crash", "conflicts"])
    parser.add_argument("--runs", type=int, help="1000 rollbacks, 200 crashes, 8 of each conflict")
    parser.add_argument("--at-once", type=int, help="20 rollbacks, 2 crashes, or 2 conflicts")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6))
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if given.what == "rollback":
        runs, at_once = given.runs or 1000, given.at_once or 20
        figures, wrong = rollback(runs=runs, at_once=at_once, seed=given.seed)
    elif given.what == "conflicts":
        runs, at_once = given.runs or 8, given.at_once or 2
        figures, wrong = conflicts(runs=runs, at_once=at_once, seed=given.seed)
    else:
        runs, at_once = given.runs or 200, given.at_once or 2
        figures, wrong = crash(runs=runs, at_once=at_once, seed=given.seed)
    figures["violations"] = len(wrong)
    if given.json:
        print(json.dumps({**figures, "wrong": wrong}, indent=2))
    else:
        _print(figures)
        print(*wrong[:SHOWN], sep="\n\n", file=sys.stderr)
    return 1 if wrong else 0


def _print(figures: dict[str, Any]) -> None:
    for name, figure in figures.items():
        if isinstance(figure, dict):
            print(name)
            for each, count in figure.items():
                print(f"    {each:40}{count:>10}")
        else:
            print(f"{name:44}{figure:>10}")


if __name__ == "__main__":
    sys.exit(main())
