"""Universes by one command: see docs/simulation.md.

    nox -s simulate -- [--universes 2000] [--first N] [--place disk|server] [--processes N]
    nox -s simulate -- --place disk --seed 4711 [--flat] [--story]

The first form prints each seed that fails with the command that replays it alone. The second prints
all that happened in one universe; with `--story`, without the single calls.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import secrets
import sys
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

from tests.simulation.many import begin, one
from tests.simulation.places import places
from tests.simulation.universe import replay


def alone(place: str, seed: int, *, flat: bool, story: bool) -> int:
    """One universe, with all that happens in it."""
    universe, error = replay(seed, place, flat=flat)
    print("\n".join(line for line in universe.scheduler.log if not story or " * " in line))
    if error is not None:
        traceback.print_exception(error)
    return int(error is not None)


def main() -> int:
    parser = argparse.ArgumentParser(prog="nox -s simulate --", description=__doc__)
    parser.add_argument("--seed", type=int, help="this one alone, with all that happens in it")
    parser.add_argument("--story", action="store_true", help="without the single calls")
    parser.add_argument("--universes", type=int, default=2000, help="in each place")
    parser.add_argument("--first", type=int, help="seed; by chance, if not given")
    parser.add_argument("--place", choices=sorted(places), help="both, if not given")
    parser.add_argument("--flat", action="store_true", help="no turns, branches or nested calls")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    given = parser.parse_args()
    begin()
    if given.seed is not None:
        if given.place is None:
            parser.error("a seed is replayed in its --place")
        return alone(given.place, given.seed, flat=given.flat, story=given.story)
    first = secrets.randbelow(10**9) if given.first is None else given.first
    seeds = range(first, first + given.universes)
    which = [
        (place, seed, given.flat)
        for seed in seeds
        for place in sorted(places)
        if given.place in (None, place)
    ]
    points: Counter[str] = Counter()
    failed = 0
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(given.processes, spawn, begin) as pool:
        for told in pool.map(one, which, chunksize=8):
            points[told.place] += told.points
            if told.error:
                failed += 1
                print(f"FAILED {told.error.partition(chr(10))[0][:300]}")
                print(f"  nox -s simulate -- {told.arguments}", flush=True)
    said = f"{len(which)} universes from seed {first} on, {sum(points.values()):,} points"
    print(f"{said}, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
