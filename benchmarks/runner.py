"""Run the cases, each measurement in a fresh process, the rounds interleaved.

Rounds are interleaved because a machine's speed drifts: compared figures are measured side by side.
All processes of a round hash alike, because AutoGen takes half as long again with some seeds as
with others.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks.cases import (
    ALL,
    DECISIONS,
    FLOOR,
    FRAMEWORKS,
    IMPORTS,
    OPENING,
    OURS,
    PEERS,
    POLICED,
    SERVICE,
    UNDO,
    Plan,
    Spec,
)

ROOT: Final = Path(__file__).parents[1]
_IMPORT: Final = "import time; t = time.process_time(); {}; print(time.process_time() - t)"


@dataclasses.dataclass
class Series:
    """Hold the measures of one case, by round.

    Attributes:
        case: its name in `cases.ALL`, or the name of an import.
        label: its name in the table.
        calls: how many calls each round timed.
        rounds: the measures of each round.
        missing: why it was not measured; empty if it was.
    """

    case: str
    label: str
    calls: int
    rounds: list[dict[str, float]] = dataclasses.field(default_factory=list)
    missing: str = ""

    def all(self, measure: str) -> list[float]:
        """Return the values of all rounds."""
        return [each[measure] for each in self.rounds]

    def median(self, measure: str) -> float:
        """Return the middle of the rounds."""
        return statistics.median(self.all(measure))

    def spread(self, measure: str) -> float:
        """Return half the distance of the fastest and slowest round, as a part of the median."""
        values = self.all(measure)
        middle = statistics.median(values)
        return (max(values) - min(values)) / 2 / middle if middle else 0.0

    def as_data(self) -> dict[str, Any]:
        """Return the data for the JSON file."""
        measures = self.rounds[0] if self.rounds else {}
        return {
            "case": self.case,
            "label": self.label,
            "calls": self.calls,
            "missing": self.missing,
            "measures": {
                name: {
                    "median": self.median(name),
                    "spread": self.spread(name),
                    "rounds": self.all(name),
                }
                for name in measures
            },
        }


class Runner:
    """Measure a plan, in folders under `folder`; `tell` is told of each measurement."""

    def __init__(self, plan: Plan, folder: Path, tell: Callable[[str], None]) -> None:
        self._plan = plan
        self._folder = folder
        self._tell = tell
        self._sources: dict[int, Path] = {}

    def run(self) -> list[Series]:
        """Return all series, in the table's order."""
        plan = self._plan
        series = [
            Series(n, s.label, size) for size in plan.sizes for n, s in (FLOOR | OURS).items()
        ]
        series += [Series(name, spec.label, plan.sizes[0]) for name, spec in POLICED.items()]
        series += [Series(n, s.label, size) for size in plan.undo_steps for n, s in UNDO.items()]
        series += [Series(name, spec.label, plan.open_steps) for name, spec in OPENING.items()]
        series += [Series(name, spec.label, plan.decisions) for name, spec in DECISIONS.items()]
        series += [Series(name, spec.label, plan.peer_calls) for name, spec in PEERS.items()]
        series += [
            Series(name, spec.label, plan.agent_calls)
            for name, spec in FRAMEWORKS.items()
            if name.partition("-")[0] in plan.frameworks
        ]
        if "langchain" in plan.frameworks:
            series += [Series(n, spec.label, plan.agent_calls) for n, spec in SERVICE.items()]
        for each in series:
            each.missing = _missing(ALL[each.case])
        for number in range(max(plan.rounds, plan.agent_rounds)):
            for each in series:
                rounds = plan.agent_rounds if each.case in FRAMEWORKS | SERVICE else plan.rounds
                if number < rounds and not each.missing:
                    self._tell(f"round {number + 1}/{rounds}: {each.label}, {each.calls}")
                    each.rounds.append(self._measure(each, number))
        return [*series, *self._imports()]

    def _measure(self, series: Series, number: int) -> dict[str, float]:
        name, calls = series.case, series.calls
        if not ALL[name].sourced:
            with self._empty() as folder:
                return self._child(name, calls, folder, number)
        source = self._sources.get(calls)
        if source is None:
            source = self._sources[calls] = self._folder / f"source-{calls}"
            source.mkdir()
            self._child("record", calls, source, number)
        with self._empty() as folder:
            shutil.copytree(source, folder, dirs_exist_ok=True)
            return self._child(name, calls, folder, number)

    @contextmanager
    def _empty(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(dir=self._folder) as name:
            yield Path(name)

    def _child(self, name: str, calls: int, folder: Path, number: int) -> dict[str, float]:
        command = [sys.executable, "-m", "benchmarks.worker", name, str(calls), str(folder)]
        output = _python(command, folder, number)
        measures: dict[str, float] = json.loads(output.splitlines()[-1])
        return measures

    def _imports(self) -> list[Series]:
        series = [Series(name, label, 1) for name, (label, _) in IMPORTS.items()]
        for number in range(-1, self._plan.import_rounds):  # the first fills the disk's cache
            self._tell(f"round {number + 1}/{self._plan.import_rounds}: imports")
            for each in series:
                command = [sys.executable, "-c", _IMPORT.format(IMPORTS[each.case][1])]
                output = _python(command, self._folder, max(number, 0))
                if number >= 0:
                    each.rounds.append({"cpu_s": float(output.splitlines()[-1])})
        return series


def _python(command: list[str], folder: Path, number: int) -> str:
    """Run a child of a round at home in `folder`, which is removed afterwards."""
    env = os.environ | {
        "PYTHONPATH": str(ROOT),
        "HOME": str(folder),
        "PYTHONWARNINGS": "default",
        "PYTHONHASHSEED": str(number),
    }
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package is not compiled at each import
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    return done.stdout


def _missing(spec: Spec) -> str:
    if not spec.needs:
        return ""
    try:
        importlib.metadata.version(spec.needs)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
    return ""
