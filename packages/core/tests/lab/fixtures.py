"""What tests of core, and of what stands on it, share: a store, the events of a run, processes."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cores import Core
from rollcage import open_store
from rollcage.trace import check_events
from rollcage.trace.recorded import trace_of
from rollcage.trace.run import fold_log

__all__ = [
    "approve",
    "core",
    "disk",
    "events",
    "every_trace_is_valid",
    "files",
    "python",
    "store",
    "url",
]

KINDS = ["folder", "sqlite"]
Events = Callable[[str], list[dict[str, Any]]]
Python = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """A folder that tools work in."""
    (tmp_path / "disk").mkdir()
    return tmp_path / "disk"


@pytest.fixture(autouse=True)
def every_trace_is_valid(request: pytest.FixtureRequest) -> Iterator[None]:
    """Hold each log that a test wrote in its `tmp_path` against the schema and its chain."""
    if "tmp_path" not in request.fixturenames:
        yield
        return
    folder: Path = request.getfixturevalue("tmp_path")
    yield
    if request.node.get_closest_marker("damaged") is not None:
        return
    for path in sorted(folder.rglob("logs/*.jsonl")):
        data = path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if b'\n{"event":"attempt",' in whole:  # otherwise nothing was done in it, or it is no run
            check_events(whole, str(path))
            fold_log(whole.splitlines(keepends=True), str(path), {})


def _without_folder(kind: type[Any], where: str) -> Any:
    """Make a store at which a test that looks at the files of a folder is skipped."""

    def root(_: Any) -> str:
        pytest.skip("it looks at the files of a store that is a folder")

    return type(f"In{kind.__name__}", (kind,), {"root": property(root)})(where)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Any]:
    """A store of the test's own: a folder, or what `ROLLCAGE_TEST_STORE` says."""
    match os.environ.get("ROLLCAGE_TEST_STORE"):
        case "sqlite":
            from rollcage_stores.sqlite import Sqlite

            yield _without_folder(Sqlite, f"sqlite:///{tmp_path / 'store.db'}")
        case "postgres":
            from postgres import new_store
            from rollcage_stores.postgres import Postgres

            with new_store() as url:
                yield _without_folder(Postgres, url)
        case _:
            yield open_store(tmp_path / "store")


@pytest.fixture(params=list(filter(None, [os.environ.get("ROLLCAGE_TEST_STORE")])) or KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a store of the test's own: of each kind that is a file, or as for `store`."""
    match request.param:
        case "postgres":
            from postgres import new_store

            with new_store() as made:
                yield made
        case "sqlite":
            yield f"sqlite:///{tmp_path}/s.db"
        case _:
            yield str(tmp_path / "s")


@pytest.fixture
def core(tmp_path: Path) -> Core:
    """Sessions in a folder of the test's own."""
    return Core(tmp_path)


@pytest.fixture
def events(store: Any) -> Events:
    """The lines of a run in `store`, each checked."""

    def read(run: str) -> list[dict[str, Any]]:
        trace = trace_of(store, run)
        return check_events(trace.data, trace.where)

    return read


@pytest.fixture
def python(tmp_path: Path) -> Python:
    """Run Python code in a process of its own, in `tmp_path`."""

    def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code), *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONWARNINGS": "error"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run


@pytest.fixture(scope="session")
def files() -> Any:
    """The tools of `undo_tools.py`."""
    import undo_tools

    return undo_tools


@pytest.fixture
def approve(store: Any) -> Callable[..., Any]:
    """Propose, approve and activate tools, and define a facade that gives them: a `Registry`."""
    from rollcage_governance import Registry

    def govern(*functions: Any, facade: str = "agent", pack: str = "pack") -> Registry:
        registry = Registry(store)
        for each in functions:
            name = registry.propose(each, by="ann").name
            registry.approve(name, by="bob")
            registry.activate(name, pack, by="bob")
        registry.define_facade(facade, [pack], by="bob")
        return registry

    return govern
