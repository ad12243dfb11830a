"""Measure information flow: the cost of a call beside a number of labelled leaves.

    python -m benchmarks.flow [--json]

For each number of leaves (texts of six words, ten to a result), measures the cost of noting a
result, and of looking up the arguments of a call: a short mail without labels, a body of 1,000
characters, and an argument derived from the last result. Best of several rounds, µs.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable

from rollcage_policy.labels import Labels

UNTRUSTED = frozenset(["untrusted"])
LEAVES = (0, 100, 1_000, 10_000)
PER_RESULT = 10
ROUNDS = 7


def words(chance: random.Random) -> Callable[[int], str]:
    """Return a function that makes texts of a number of words, out of three thousand."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    known = ["".join(chance.choices(letters, k=chance.randint(3, 9))) for _ in range(3_000)]
    return lambda count: " ".join(chance.choices(known, k=count))


def best(work: Callable[[], object], times: int = 50) -> float:
    """Return the best of several rounds (µs for one call)."""
    found: list[float] = []
    for _ in range(ROUNDS):
        start = time.perf_counter_ns()
        for _ in range(times):
            work()
        found.append((time.perf_counter_ns() - start) / times / 1000)
    return round(min(found), 1)


def measured(leaves: int) -> dict[str, float]:
    """Measure the costs beside a number of leaves."""
    text = words(random.Random(5))  # noqa: S311 - the same texts again
    labels = Labels()
    results = [
        {f"field_{n}": text(6) for n in range(PER_RESULT)} for _ in range(leaves // PER_RESULT)
    ]
    start = time.perf_counter_ns()
    for number, result in enumerate(results, 1):
        labels.note(number, "fetch_page", UNTRUSTED, result)
    noted = (time.perf_counter_ns() - start) / max(1, len(results)) / 1000
    mail = {
        "to": "ann@example.com", "subject": "Quarterly figures", "priority": 2, "urgent": False,
        "body": "Dear Ann, all is well with QZX and QZY; yours, Zed",
    }  # fmt: skip
    long = {"to": "ann@example.com", "body": ("Zyx wvu; " * 112)[:1_000]}
    derived = {"to": results[-1]["field_9"]} if results else {"to": "nobody"}
    wanted = UNTRUSTED if results else frozenset[str]()
    if labels.of(mail).labels or labels.of(long).labels or labels.of(derived).labels != wanted:
        raise AssertionError("not what was to be measured")
    return {
        "leaves": leaves,
        "note a result": round(noted, 1),
        "a mail": best(lambda: labels.of(mail)),
        "1,000 characters": best(lambda: labels.of(long)),
        "derived": best(lambda: labels.of(derived)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.flow", description=__doc__)
    parser.add_argument("--json", action="store_true")
    rows = [measured(leaves) for leaves in LEAVES]
    if parser.parse_args().json:
        print(json.dumps(rows, indent=2))
        return
    print(*(f"{name:>18}" for name in rows[0]))
    for row in rows:
        print(*(f"{figure:>18,}" for figure in row.values()))


if __name__ == "__main__":
    main()
