"""The distributions keep their promises: one version, exact pins, the licence, a small core."""

import ast
import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from rollcage_cli.demo import stage

ROOT = Path(__file__).parents[1]
FOLDERS = sorted(p.parent for p in ROOT.glob("*/*/pyproject.toml"))
FRAMEWORKS = ("autogen", "crewai", "langchain", "langgraph")


def load(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))


PROJECTS: dict[str, dict[str, Any]] = {p["name"]: p for p in (load(f)["project"] for f in FOLDERS)}
every_folder = pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)


def requirements(project: dict[str, Any]) -> list[Requirement]:
    """Return every requirement of a distribution, extras included."""
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
    assert names == {"orjson", "pydantic", "rfc8785"}


def test_core_brings_no_framework() -> None:
    seen: set[str] = set()
    todo = ["rollcage"]
    while todo:
        name = canonicalize_name(todo.pop())
        if name not in seen:
            seen.add(name)
            needed = map(Requirement, metadata.requires(name) or [])
            todo += [r.name for r in needed if not r.marker or r.marker.evaluate({"extra": ""})]
    assert "pydantic-core" in seen  # indirect requirements were followed
    assert not [name for name in seen if name.startswith(FRAMEWORKS)]
    assert not seen & (PROJECTS.keys() - {"rollcage"})


def core_extras() -> tuple[dict[str, list[str]], list[str]]:
    """Return each of core's extras, and what `rollcage[all]` brings, without markers."""
    extras = dict(PROJECTS["rollcage"]["optional-dependencies"])
    del extras["demo"]  # no feature of its own; see below
    everything = [r.partition(";")[0] for r in extras.pop("all")]
    return extras, everything


def test_all_is_all_of_the_extras() -> None:
    extras, everything = core_extras()
    assert sorted(everything) == sorted(r for wanted in extras.values() for r in wanted)


def brought_by(wanted: Requirement) -> str:
    """Return what an extra brings: a library, a sibling, or the library of that sibling's extra."""
    if not wanted.extras:
        return wanted.name
    (extra,) = wanted.extras
    (library,) = PROJECTS[wanted.name]["optional-dependencies"][extra]
    return Requirement(library).name


def test_extras_bring_a_sibling_or_a_library() -> None:
    extras, _ = core_extras()
    assert {len(wanted) for wanted in extras.values()} == {1}
    brought = {name: brought_by(Requirement(wanted[0])) for name, wanted in extras.items()}
    assert {Requirement(wanted[0]).name for wanted in extras.values()} <= PROJECTS.keys()
    siblings = {name: what for name, what in brought.items() if what in PROJECTS}
    without_extra = {"rollcage", "rollcage-conformance"}
    assert siblings == {
        sibling.removeprefix("rollcage-"): sibling for sibling in PROJECTS.keys() - without_extra
    }
    libraries = {name: what for name, what in brought.items() if what not in PROJECTS}
    assert libraries == {
        "idna": "idna", "postgres": "psycopg", "secrets": "detect-secrets", "sql": "sqlglot",
        "yaml": "pyyaml",
    }  # fmt: skip


def test_the_demo_extra_brings_the_cli_and_langchain() -> None:
    (wanted,) = map(Requirement, PROJECTS["rollcage"]["optional-dependencies"]["demo"])
    assert (wanted.name, wanted.extras) == ("rollcage-cli", {"demo"})
    brought = map(Requirement, PROJECTS[wanted.name]["optional-dependencies"]["demo"])
    needed = {canonicalize_name(module) for module in stage.NEEDED}
    assert needed <= {canonicalize_name(each.name) for each in brought}


@every_folder
def test_a_wheel_has_project_links_and_its_readme(folder: Path) -> None:
    project = load(folder)["project"]
    assert project["urls"] == PROJECTS["rollcage"]["urls"]
    assert project["urls"].keys() == {"Source", "Documentation", "Changelog", "Issues"}
    assert re.search(r"^```(python|console)$", (folder / "README.md").read_text(), re.MULTILINE)


def test_policies_are_tested_with_every_optional_library() -> None:
    extras = dict(PROJECTS["rollcage-policy"]["optional-dependencies"])
    del extras["cli"]
    assert {each for wanted in extras.values() for each in wanted} <= set(
        load(ROOT)["dependency-groups"]["test-core"]
    )


TYPES = {"_typeshed"}  # a type checker brings it, and nothing else reads such an import
OF_VALUES = {"numpy", "pandas"}  # which an application has where its values are of them
PINNED_BY = {"pydantic-core": "pydantic"}  # a part of it, in the one version that fits


def imported(source: Path) -> set[str]:
    """Return the libraries that modules below a folder import, wherever the import stands."""
    found: set[str] = set()
    for path in source.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.split(".")[0])
    return found - sys.stdlib_module_names - TYPES - OF_VALUES


def test_libraries_of_values_are_tested_and_never_required() -> None:
    tested = {Requirement(r).name for r in load(ROOT)["dependency-groups"]["test-core"]}
    assert tested >= OF_VALUES
    asked = {r.name for project in PROJECTS.values() for r in requirements(project)}
    assert not asked & OF_VALUES


@every_folder
def test_what_is_imported_is_asked_for(folder: Path) -> None:
    project = load(folder)["project"]
    asked = {canonicalize_name(r.name) for r in requirements(project)} | {project["name"]}
    asked |= {lib for lib, brought_by in PINNED_BY.items() if brought_by in asked}
    brings = metadata.packages_distributions()  # not of packages installed in place from here
    missing = {
        module
        for module in imported(folder / "src")
        if not asked & {canonicalize_name(name) for name in brings.get(module, [module])}
    }
    assert missing == set()


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
