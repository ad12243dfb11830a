"""Print what was measured: the table, and each target with whether it was reached."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import platform
import statistics
from collections.abc import Iterator, Sequence
from typing import Any, Final

from benchmarks.cases import (
    CEDAR,
    FRAMEWORKS,
    GATE,
    OURS,
    PEERS,
    POLICED,
    RULES,
    SERVICE,
    UNDO,
    Plan,
)
from benchmarks.runner import Series

FLOORS: Final = {"write": 2.7, "read": 2.4, "hit": 2.2}  # a recorded call, in floors
POLICED_TIMES: Final = {"write-0-rules": 1.1, "write-10-rules": 1.4}  # under a policy, in writes
FLAT: Final = 1.25  # the largest size against the smallest
OPEN_PARSES: Final = 4.0  # opening a source, against parsing its lines
CRASH_TIMES: Final = 3.0  # opening the 60th resume of a job that crashes each time, against the 2nd
PEER_TIMES: Final = 10.0  # a peer's recorded call, against ours
DECISION_TIMES: Final = 1.3  # a policy's decision, against the conditions it evaluates
IMPORT_TIMES: Final = 1.2
VERSION_TIMES: Final = 3.5  # `rollcage --version`, against importing what we need
SERVICE_TIMES: Final = 1.3  # a request of a guarded agent, against a bare one
GUARDED_TIMES: Final = 1.2  # an agent's call of a guarded tool, against a bare one


@dataclasses.dataclass(frozen=True)
class Target:
    """Hold a ratio against its limit.

    Attributes:
        what: the two measures that are compared.
        ratio: the median of the rounds' own ratios.
        limit: the bound of the ratio.
        at_least: more is better (a peer's cost against ours).
    """

    what: str
    ratio: float
    limit: float
    at_least: bool = False

    @property
    def reached(self) -> bool:
        """Whether the ratio is on the right side."""
        return self.ratio >= self.limit if self.at_least else self.ratio <= self.limit

    def as_data(self) -> dict[str, Any]:
        """Return the data for the JSON file."""
        return {**dataclasses.asdict(self), "reached": self.reached}


def targets(series: Sequence[Series]) -> list[Target]:
    """Return every target of which both sides were measured."""
    by = {(each.case, each.calls): each for each in series if each.rounds}
    sizes = sorted({calls for case, calls in by if case == "floor"})
    found = list(_against_floor(by, sizes))
    for case, limit in POLICED_TIMES.items():
        ratio = _ratio(by[case, sizes[0]], by["write", sizes[0]], "cpu_us")
        found.append(Target(f"{POLICED[case].label}: to one without", ratio, limit))
    found += [each for case in OURS for each in _growth(by, case, "calls")]
    found += [each for case in UNDO for each in _growth(by, case, "steps")]
    opening = {case: each for (case, _), each in by.items()}
    ratio = _ratio(opening["open"], opening["parse"], "cpu_s")
    found.append(Target("opening a source to parsing its lines", ratio, OPEN_PARSES))
    ratio = _ratio(opening["crash-60"], opening["crash-2"], "cpu_s")
    found.append(Target("60th resume of a crashing job to its 2nd", ratio, CRASH_TIMES))
    found += _decisions(opening)
    for case, spec in PEERS.items():
        if case in opening:
            own = by["hit" if case.endswith("-hit") else "write", sizes[0]]
            ratio = _ratio(opening[case], own, "cpu_us")
            found.append(Target(f"{spec.label} to ours", ratio, PEER_TIMES, at_least=True))
    for case, spec in FRAMEWORKS.items():
        if case in opening:
            ratio = _within(opening[case], "guarded_us", "bare_us")
            found.append(Target(f"{spec.label}: guarded to bare", ratio, GUARDED_TIMES))
    for case, spec in SERVICE.items():
        if case in opening:
            ratio = _within(opening[case], "guarded_us", "bare_us")
            found.append(Target(f"{spec.label}: guarded to bare", ratio, SERVICE_TIMES))
    ratio = _ratio(opening["rollcage"], opening["needed"], "cpu_s")
    found.append(Target("import rollcage to what it needs", ratio, IMPORT_TIMES))
    ratio = _ratio(opening["version"], opening["needed"], "cpu_s")
    return [*found, Target("rollcage --version to the same", ratio, VERSION_TIMES)]


def _against_floor(by: dict[tuple[str, int], Series], sizes: list[int]) -> Iterator[Target]:
    for case, limit in FLOORS.items():
        for size in sizes:
            ratio = _ratio(by[case, size], by["floor", size], "cpu_us")
            yield Target(f"{case} to floor, {size:,} calls", ratio, limit)


def _decisions(of: dict[str, Series]) -> Iterator[Target]:
    """Compare a decision with its conditions, whatever else the policy holds, and Cedar with us."""
    for case, spec in GATE.items():
        ratio = _ratio(of[case], of["bare"], "cpu_us")
        yield Target(f"{spec.label}, to its two conditions bare", ratio, DECISION_TIMES)
    few, many = (of[f"decide-{rules}"] for rules in (RULES[0], RULES[-1]))
    what = f"decision: {RULES[-1]:,} rules to {RULES[0]:,}"
    yield Target(what, _ratio(many, few, "cpu_us"), FLAT)
    for case, spec in CEDAR.items():
        if case in of:
            ours = of[case.replace("cedar", "decide")]
            yield Target(
                f"{spec.label} to ours", _ratio(of[case], ours, "cpu_us"), 1.0, at_least=True
            )


def _growth(by: dict[tuple[str, int], Series], case: str, of: str) -> Iterator[Target]:
    """Compare the cost of one call among many with the cost among few."""
    sizes = sorted(calls for name, calls in by if name == case)
    if len(sizes) > 1:
        ratio = _ratio(by[case, sizes[-1]], by[case, sizes[0]], "cpu_us")
        yield Target(f"{case}: {sizes[-1]:,} {of} to {sizes[0]:,}", ratio, FLAT)


def _ratio(one: Series, other: Series, measure: str) -> float:
    """Return the median over the rounds, each compared with its neighbour in time."""
    pairs = zip(one.all(measure), other.all(measure), strict=True)
    return statistics.median(a / b for a, b in pairs)


def _within(one: Series, measure: str, other: str) -> float:
    """Return the median over the rounds of two measures of one case."""
    return statistics.median(each[measure] / each[other] for each in one.rounds)


def table(series: Sequence[Series], reached: Sequence[Target]) -> str:
    """Return all of it as Markdown, as the terminal and the documentation show it."""
    return "\n\n".join(
        (
            _rows("| case | calls | CPU a call, µs | ± | bytes a step |", _calls(series)),
            _rows("| agents | calls | bare, µs | ± | guarded, µs | ± |", _agents(series)),
            _rows(
                "| 100 requests at once | bare, µs | ± | middleware that does nothing, µs | ± "
                "| guarded, µs | ± |",
                _services(series),
            ),
            _rows("| opening | steps | CPU, s | ± | wall, s | memory, MiB |", _opening(series)),
            _rows("| import | CPU, ms | ± |", _imports(series)),
            _rows("| target | ratio | to reach | |", _targets(reached)),
        )
    )


def _rows(head: str, rows: Iterator[str]) -> str:
    columns = head.count("|") - 1
    ruler = "|---|" + "---:|" * (columns - 1)
    return "\n".join((head, ruler, *rows))


def _calls(series: Sequence[Series]) -> Iterator[str]:
    for each in series:
        if each.missing:
            yield f"| {each.label} | {each.missing} | | | |"
        elif "cpu_us" in each.rounds[0]:
            measured = each.rounds[0].get("bytes")
            size = f"{each.median('bytes'):.0f}" if measured else ""
            cpu = f"{each.median('cpu_us'):.1f} | {each.spread('cpu_us'):.0%}"
            yield f"| {each.label} | {each.calls:,} | {cpu} | {size} |"


def _agents(series: Sequence[Series]) -> Iterator[str]:
    for each in series:
        if each.rounds and each.case in FRAMEWORKS:
            both = _medians(each, "bare_us", "guarded_us")
            yield f"| {each.label} | {each.calls:,} | {both} |"


def _services(series: Sequence[Series]) -> Iterator[str]:
    for each in series:
        if each.rounds and each.case in SERVICE:
            yield f"| {each.label} | {_medians(each, 'bare_us', 'nothing_us', 'guarded_us')} |"


def _medians(one: Series, *measures: str) -> str:
    return " | ".join(f"{one.median(n):,.0f} | {one.spread(n):.0%}" for n in measures)


def _opening(series: Sequence[Series]) -> Iterator[str]:
    for each in series:
        if each.rounds and "peak_mib" in each.rounds[0]:
            cpu = f"{each.median('cpu_s'):.3f} | {each.spread('cpu_s'):.0%}"
            rest = f"{each.median('wall_s'):.3f} | {each.median('peak_mib'):.0f}"
            yield f"| {each.label} | {each.calls:,} | {cpu} | {rest} |"


def _imports(series: Sequence[Series]) -> Iterator[str]:
    for each in series:
        if each.rounds and each.rounds[0].keys() == {"cpu_s"}:
            cpu = f"{each.median('cpu_s') * 1000:.0f} | {each.spread('cpu_s'):.0%}"
            yield f"| `{each.label}` | {cpu} |"


def _targets(reached: Sequence[Target]) -> Iterator[str]:
    for each in reached:
        sign = "≥" if each.at_least else "≤"
        said = "reached" if each.reached else "**not reached**"
        yield f"| {each.what} | {each.ratio:.2f} | {sign} {each.limit:g} | {said} |"


def as_data(plan: Plan, series: Sequence[Series], reached: Sequence[Target]) -> dict[str, Any]:
    """Return all of it as JSON data."""
    needed = ("rollcage", "pydantic", "orjson", *(spec.needs for spec in PEERS.values()))
    needed += ("langchain", "autogen-agentchat", "crewai")
    needed += ("common-expression-language", "cedarpy")

    versions: dict[str, str | None] = {}
    for name in dict.fromkeys(needed):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "versions": versions,
        "plan": dataclasses.asdict(plan),
        "series": [each.as_data() for each in series],
        "targets": [each.as_data() for each in reached],
    }
