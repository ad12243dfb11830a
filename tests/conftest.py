"""Share fixtures among the tests of examples, documentation and commands."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.warm import Warm

# `nox -s browser` has what those need.
collect_ignore = [] if importlib.util.find_spec("playwright") else ["browser"]

Run = Callable[..., "subprocess.CompletedProcess[str]"]

# Python imports a module of this name at its start, so the process stays offline.
OFFLINE = """
import sys

def refuse(event, arguments):
    if event == "socket.getaddrinfo":
        raise OSError(f"offline: {event} {arguments[0]!r}")
    if event == "socket.connect" and isinstance(arguments[1], tuple):
        if arguments[1][0] not in ("127.0.0.1", "::1"):
            raise OSError(f"offline: {event} {arguments[1]!r}")

sys.addaudithook(refuse)
"""


@pytest.fixture(scope="session")
def run_offline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Run a command in a process of its own that can't reach the network.

    A Python script, and so `rollcage`, runs in one that has the large libraries in memory already.
    """
    site = tmp_path_factory.mktemp("offline")
    (site / "sitecustomize.py").write_text(OFFLINE, encoding="utf-8")
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("ROLLCAGE_")},
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")])),
        "XDG_STATE_HOME": str(
            site / "state"
        ),  # not the state folder of the user who runs the tests
        "PYTHONUTF8": "1",
        "PYTHONUNBUFFERED": "1",  # what a killed process printed is on a terminal at once
        "PYTHONWARNINGS": "error",
        "COLUMNS": "160",
        "NO_COLOR": "1",
        "PYTEST_ADDOPTS": "-p no:cacheprovider -p no:langsmith_plugin "  # which takes a second
        "-o asyncio_default_fixture_loop_scope=function",
    }

    warm = Warm(environment)
    rollcage = str(Path(sys.executable).with_name("rollcage"))

    def run(*command: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
        match command:
            case ("rollcage", *arguments):
                return warm.run(rollcage, *arguments, cwd=cwd)
            case ("python", script, *arguments) if script.endswith(".py"):
                return warm.run(script, *arguments, cwd=cwd)
        return subprocess.run(
            command,
            cwd=cwd,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )

    yield run
    warm.end()


@pytest.fixture(scope="session")
def matrix_command() -> ModuleType:
    """`tests/matrix.py`: the command is a script, and in no package."""
    path = Path(__file__).with_name("matrix.py")
    spec = importlib.util.spec_from_file_location("rollcage_matrix", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
