"""`rollcage undo`: what would be done is shown, then asked for, then done, and told."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from rollcage import Session

Cli = Callable[..., Any]

TOOLS = """
import asyncio
from pathlib import Path
from rollcage import Contract, compensate, tool


def observe(args):
    file = Path(args["path"])
    return {f"file:{file.name}": {"text": file.read_text() if file.exists() else None}}


@tool(effect="write", observe=observe, idempotent=True)
def put_back(path: str, text: str | None) -> None:
    Path(path).unlink() if text is None else Path(path).write_text(text)


def undo(args, before):
    (was,) = before.values()
    return [compensate(put_back, path=args["path"], text=was["text"])]


@tool(effect="write", observe=observe, undo=undo)
def cli_put(path: str, text: str) -> None:
    Path(path).write_text(text)


@tool(effect="write")
def cli_mail(to: str) -> None: ...


@tool(effect="write", observe=observe, undo=lambda: [compensate(aput_back)])
async def cli_aput(path: str) -> None:
    Path(path).write_text("x")


@tool(effect="write")
async def aput_back() -> None:
    await asyncio.sleep(0)
    Path("c").unlink()


ALL = [cli_put, put_back, cli_mail]
NAMED = {"cli_put": cli_put, "put_back": put_back}
WRONG = [print]


def make():
    return ALL


def broken():
    raise OSError("no")
"""
JOB = """
import sys
from pathlib import Path
from mytools import cli_aput, cli_mail, cli_put
from rollcage import Session

with Session("job") as session:
    for name in sys.argv[1:]:
        if name == "mail":
            cli_mail("ann")
        elif name == "async":
            import asyncio
            asyncio.run(cli_aput("c"))
        else:
            cli_put(name, "new")
"""


@pytest.fixture
def job(tmp_path: Path) -> Callable[..., None]:
    """A job of another process, in the working directory, with tools of its own."""
    (tmp_path / "mytools.py").write_text(TOOLS)
    (tmp_path / "job.py").write_text(JOB)

    def run(*names: str) -> None:
        subprocess.run([sys.executable, "job.py", *names], cwd=tmp_path, check=True)

    return run


@pytest.fixture(autouse=True)
def fresh_modules(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Modules of a working directory stay in its test."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("mytools", None)


def test_the_plan_is_shown_and_nothing_is_done(cli: Cli, job: Any, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    job("a", "b", "mail")
    (tmp_path / "b").write_text("theirs")
    result = cli("undo", "latest", "--plan", "--tools", "mytools")
    assert result.code == 1
    lines = result.out.splitlines()
    assert "irreversible" in lines[1]
    assert "conflict" in lines[2]
    assert "file:b differs in text" in lines[2]
    assert "reversible" in lines[3]
    assert 'put_back(path="a", text="old")' in lines[3]
    assert (tmp_path / "a").read_text() == "new"
    data = cli("undo", "latest", "--plan", "--tools", "mytools", "--json").data["plan"]
    assert data["conflicts"] is True
    assert [step["state"] for step in data["steps"]] == ["irreversible", "conflict", "reversible"]
    assert data["steps"][2]["calls"][0]["name"] == "put_back"


def test_it_is_undone_once_somebody_says_so(
    cli: Cli, job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job("a", "b")
    said = ["n", "y"]
    monkeypatch.setattr("typer.confirm", lambda question: said.pop(0) == "y")
    assert cli("undo", "latest", "--tools", "mytools").code == 1
    assert (tmp_path / "b").exists()
    result = cli("undo", "latest", "--tools", "mytools", "--to", 1)
    assert result.code == 0
    assert "step 2 (cli_put): verified" in result.out
    assert not (tmp_path / "b").exists()
    assert (tmp_path / "a").exists()
    assert cli("runs", "--json").data["runs"][0]["status"] == "undone"
    assert cli("verify", "latest").code == 0
    shown = cli("show", "latest").out
    assert "ran, undone" in shown
    assert "↺ put_back" in shown
    assert "undo: verified" in cli("show", "latest", "--step", 2).out
    assert "undoes: step 2" in cli("show", "latest", "--step", 3).out
    nothing = cli("undo", "latest", "--tools", "mytools", "--to", 1)
    assert (nothing.code, nothing.out) == (0, "There is nothing to undo.\n")


def test_what_changes_while_the_question_is_open_is_not_undone(
    cli: Cli, job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job("a", "b")

    def confirm(_: str) -> bool:
        (tmp_path / "a").unlink()  # as it was before: alone, this is no conflict
        return True

    monkeypatch.setattr("typer.confirm", confirm)
    result = cli("undo", "latest", "--tools", "mytools")
    assert result.code == 1
    assert "step 1 (cli_put) was reversible and is nothing now" in result.err
    assert "--plan" in result.err
    assert (tmp_path / "b").read_text() == "new"


def test_a_plan_without_the_expected_digest_is_not_carried_out(
    cli: Cli, job: Any, tmp_path: Path
) -> None:
    job("a", "b")
    seen = cli("undo", "latest", "--tools", "mytools", "--plan", "--json").data
    other = cli("undo", "latest", "--tools", "mytools", "--plan", "--json", "--to", 1).data
    assert other["digest"] != seen["digest"]
    yes = ("undo", "latest", "--tools", "mytools", "--yes", "--expected")
    refused = cli(*yes, other["digest"])
    assert (refused.code, "expected digest" in refused.err) == (1, True)
    assert (tmp_path / "b").exists()
    assert cli(*yes, seen["digest"]).code == 0
    assert not (tmp_path / "b").exists()


def test_what_is_left_is_reported(cli: Cli, job: Any, tmp_path: Path) -> None:
    job("a", "mail")
    result = cli("undo", "latest", "--tools", "mytools:ALL", "--yes")
    assert result.code == 1
    assert "step 2 (cli_mail): irreversible" in result.out
    assert "step 1 (cli_put): verified" in result.out
    assert not (tmp_path / "a").exists()


def test_a_conflict_stops_it(cli: Cli, job: Any, tmp_path: Path) -> None:
    job("a", "b")
    (tmp_path / "a").write_text("theirs")
    result = cli("undo", "latest", "--tools", "mytools", "--yes")
    assert result.code == 1
    assert "Nothing was changed" in result.out
    data = cli("undo", "latest", "--tools", "mytools", "--yes", "--json").data
    assert data["report"]["steps"][0]["status"] == "conflict"
    assert data["report"]["left"][0]["name"] == "cli_put"
    assert (tmp_path / "b").read_text() == "new"


@pytest.mark.parametrize("spec", ["mytools", "mytools:ALL", "mytools:NAMED", "mytools:make"])
def test_tools_by_name(cli: Cli, job: Any, tmp_path: Path, spec: str) -> None:
    job("a")
    result = cli("undo", "latest", "--tools", spec, "--yes", "--json")
    assert result.data["report"]["complete"] is True
    assert not (tmp_path / "a").exists()


def test_tools_one_by_one(cli: Cli, job: Any) -> None:
    job("a")
    one, two = "mytools:cli_put", "mytools:put_back"
    assert cli("undo", "latest", "--tools", one, "--tools", two, "--yes").code == 0


def test_the_project_says_where_they_are(cli: Cli, job: Any, tmp_path: Path) -> None:
    job("a")
    project = tmp_path / "pyproject.toml"
    project.write_text('[tool.rollcage]\ntools = ["mytools:ALL"]\n')
    assert cli("undo", "latest", "--yes").code == 0
    for text, said in [
        ("[tool", "can't be read"),
        ('tool.rollcage.tools = "x"', "is not a list of"),
    ]:
        project.write_text(text)
        result = cli("undo", "latest", "--plan")
        assert result.code == 2
        assert said in result.err


def test_async_tools(cli: Cli, job: Any, tmp_path: Path) -> None:
    job("async")
    assert cli("undo", "latest", "--tools", "mytools", "--plan").code == 0
    assert (tmp_path / "c").exists()
    assert cli("undo", "latest", "--tools", "mytools", "--yes").code == 0
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("nowhere", "ModuleNotFoundError"),
        ("mytools:nothing", "AttributeError"),
        ("mytools:WRONG", "is not a tool; declare it with @rollcage.tool"),
        ("mytools:broken", "OSError: no"),
    ],
)
def test_tools_that_can_not_be_used(cli: Cli, job: Any, spec: str, said: str) -> None:
    job("a")
    result = cli("undo", "latest", "--tools", spec, "--plan", "--json")
    assert result.code == 2
    error = orjson.loads(result.err)["error"]
    assert error["code"] == "tools_unusable"
    assert said in error["message"]


def test_a_tool_that_is_missing_is_named(cli: Cli, job: Any, tmp_path: Path) -> None:
    job("a")
    result = cli("undo", "latest", "--yes")
    assert result.code == 2
    assert "no tool named 'cli_put' is declared" in result.err
    assert "--tools MODULE" in result.err
    assert (tmp_path / "a").exists()


def test_requests_that_make_no_sense(cli: Cli, job: Any, store: Path, tmp_path: Path) -> None:
    job("a")
    assert "--json can't ask" in cli("undo", "latest", "--json").err
    (trace,) = (store / "logs").glob("*.jsonl")
    copy = tmp_path / trace.name
    copy.write_bytes(trace.read_bytes())
    assert "outside of a store" in cli("undo", copy).err
    assert cli("undo", "@nobody").code == 2


def test_a_live_run_is_in_use(cli: Cli, store: Path, job: Any) -> None:
    job("a")
    with Session("live", store=store) as session:
        result = cli("undo", session.run_id, "--plan", "--tools", "mytools")
        assert (result.code, result.out) == (0, "There is nothing to undo.\n")


def test_an_export_holds_no_state_that_was_to_go(cli: Cli, job: Any, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a secret of old")
    job("a")
    cli("undo", "latest", "--tools", "mytools", "--yes")
    assert "a secret of old" in cli("export", "latest").out
    for option in (["--no-values"], ["--redact", "text"]):
        out = cli("export", "latest", *option).out
        assert "a secret of old" not in out
        path = tmp_path / f"{orjson.loads(out.splitlines()[0])['run']}.jsonl"
        path.write_text(out)
        assert cli("verify", path).code == 0
        assert '"before"' not in out
        assert '"after"' not in out
