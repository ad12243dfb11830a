"""What the distributions promise: one version, exact pins, the licence, a small core."""

import re
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
FOLDERS = sorted(p.parent for p in ROOT.glob("*/*/pyproject.toml"))
FRAMEWORKS = ("autogen", "crewai", "langchain", "langgraph")


def load(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))


PROJECTS: dict[str, dict[str, Any]] = {p["name"]: p for p in (load(f)["project"] for f in FOLDERS)}
every_folder = pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)


def requirements(project: dict[str, Any]) -> list[Requirement]:
    """All that a distribution may ask for, extras included."""
    extras = project.get("optional-dependencies", {}).values()
    return [Requirement(r) for r in [*project["dependencies"], *(r for e in extras for r in e)]]


def test_all_versions_are_the_same() -> None:
    assert len({project["version"] for project in PROJECTS.values()}) == 1


@every_folder
def test_siblings_are_pinned_exactly(folder: Path) -> None:
    project = load(folder)["project"]
    siblings = [r for r in requirements(project) if r.name in PROJECTS]
    assert {str(r.specifier) for r in siblings} <= {f"=={project['version']}"}


@every_folder
def test_licence_and_types_are_in_the_distribution(folder: Path) -> None:
    project = load(folder)["project"]
    assert (folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    installed = metadata.metadata(project["name"])
    assert installed["License-Expression"] == "Apache-2.0"
    assert installed.get_all("License-File") == ["LICENSE"]
    assert (folder / "src" / project["name"].replace("-", "_") / "py.typed").is_file()


@every_folder
def test_every_supported_python_is_named(folder: Path) -> None:
    project = load(folder)["project"]
    bound = ",<3.14" if project["name"] == "rollcage-crewai" else ""  # as CrewAI itself
    assert project["requires-python"] == f">=3.11{bound}"
    assert "Programming Language :: Python :: 3.11" in project["classifiers"]


def test_core_stays_small() -> None:
    names = {Requirement(r).name for r in PROJECTS["rollcage"]["dependencies"]}
    assert names == {"common-expression-language", "orjson", "pydantic", "rfc8785"}


def test_core_brings_no_framework() -> None:
    seen: set[str] = set()
    todo = ["rollcage"]
    while todo:
        name = canonicalize_name(todo.pop())
        if name not in seen:
            seen.add(name)
            needed = map(Requirement, metadata.requires(name) or [])
            todo += [r.name for r in needed if not r.marker or r.marker.evaluate({"extra": ""})]
    assert "pydantic-core" in seen  # what is needed indirectly was followed
    assert not [name for name in seen if name.startswith(FRAMEWORKS)]
    assert not seen & (PROJECTS.keys() - {"rollcage"})


def test_extras_bring_the_siblings() -> None:
    extras = PROJECTS["rollcage"]["optional-dependencies"]
    each = {name: wanted for name, wanted in extras.items() if name != "all"}
    everything = [r.partition(";")[0] for r in extras["all"]]
    assert sorted(everything) == sorted(r for wanted in each.values() for r in wanted)


PIN = re.compile(r"(?P<name>[a-z0-9-]+)==(?P<version>[0-9][0-9a-z.]*)(?: ; (?P<marker>[^/@]+))?")


def test_constraints_are_versions_and_nothing_else() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if not PIN.fullmatch(line)] == []


def test_constraints_meet_all_that_is_asked_for() -> None:
    pins = [PIN.fullmatch(line) for line in (ROOT / "constraints.txt").read_text().splitlines()]
    versions: dict[str, list[str]] = {}
    for pin in filter(None, pins):
        versions.setdefault(pin["name"], []).append(pin["version"])
    groups = load(ROOT)["dependency-groups"].values()
    asked = [Requirement(r) for group in groups for r in group if isinstance(r, str)]
    asked += [r for project in PROJECTS.values() for r in requirements(project)]
    unmet = [
        str(r)
        for r in asked
        if canonicalize_name(r.name) not in PROJECTS
        and not any(r.specifier.contains(v) for v in versions.get(canonicalize_name(r.name), []))
    ]
    assert unmet == [], "run `nox -s lock`"
