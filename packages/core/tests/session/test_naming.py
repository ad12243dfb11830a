"""A session without a name is called after its script, says so, and is refused where none runs."""

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
from rollcage import Session, SessionError, list_runs

BODY = """
from rollcage import tool
from rollcage import Session

@tool(effect="write")
def write(number: int) -> int:
    return number

with Session() as session:
    write(1)
    print(session.name, session.stats.hits)
    if input() == "die":
        raise SystemExit(9)
"""
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run the interpreter in `tmp_path`, with something to read."""

    def run(*arguments: str, said: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            input=f"{said}\n",
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run


def test_it_is_called_after_its_script_and_resumed_by_that(run: Run, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(BODY)
    died = run("agent.py", said="die")
    assert (died.returncode, died.stdout.split()) == (9, ["agent", "0"]), died.stderr
    assert "called 'agent', after its script" in died.stderr
    assert run(str(tmp_path / "agent.py")).stdout.split() == ["agent", "1"]
    assert {each.name for each in list_runs(tmp_path / ".rollcage")} == {"agent"}


def test_a_module_is_called_by_its_full_name(run: Run, tmp_path: Path) -> None:
    package = tmp_path / "jobs"
    package.mkdir()
    for name in ("__init__", "nightly", "__main__"):
        (package / f"{name}.py").write_text("" if name == "__init__" else BODY)
    assert run("-m", "jobs.nightly").stdout.split() == ["jobs.nightly", "0"]
    assert run("-m", "jobs").stdout.split() == ["jobs", "0"]


@pytest.mark.parametrize("arguments", [("-c", BODY), ("-",)])
def test_where_no_script_runs_it_is_refused(run: Run, arguments: tuple[str, ...]) -> None:
    refused = run(*arguments, said="from rollcage import Session; Session()")
    assert refused.returncode == 1
    assert "no script is running" in refused.stderr
    assert 'Session("name")' in refused.stderr


def test_a_program_that_runs_other_peoples_scripts_gives_no_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    main = sys.modules["__main__"]  # where pytest has workers, it is no file
    monkeypatch.setattr(main, "__file__", pytest.__file__, raising=False)
    with pytest.raises(SessionError, match="is not a script of yours"):
        Session()


@pytest.mark.parametrize(
    ("module", "name"),
    [("", "agent"), ("jobs.nightly", "jobs.nightly"), ("jobs.__main__", "jobs")],
)
def test_what_runs_here_gives_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, name: str
) -> None:
    (tmp_path / "agent.py").write_text(BODY)
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "__file__", str(tmp_path / "agent.py"), raising=False)
    spec = ModuleSpec(module, None) if module else None
    monkeypatch.setattr(main, "__spec__", spec, raising=False)
    assert Session().name == name


def test_an_empty_name_is_none() -> None:
    with pytest.raises(SessionError, match="needs a name"):
        Session("")
