"""`rollcage tools`: a tool's way from proposal to facade, by two people, on the command line."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from command_line import Cli
from rollcage import open_store
from rollcage_cli import options
from rollcage_governance import Registry
from rollcage_governance import commands as registry

TOOLS = '''
from rollcage import Contract, tool


@tool(effect="write", risk="high")
def send(to: str, text: str = "") -> str:
    """Send a mail."""
    return f"{to}: {text}"


@tool(effect="read")
def look(at: str) -> str:
    """Look."""
    return at


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}}
REMOTE = Contract(name="remote", parameters=SCHEMA)
NONE = []
'''


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A project with tools, in the working directory."""
    (tmp_path / "mytools.py").write_text(TOOLS)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("mytools", None)


@pytest.fixture
def govern(cli: Cli) -> Callable[..., Any]:
    """A command that has to go well."""

    def done(*words: Any) -> Any:
        result = cli("tools", *words)
        assert result.code == 0, result.err
        return result

    return done


@pytest.fixture
def approved(govern: Callable[..., Any]) -> Callable[..., Any]:
    """The same, with `send` approved and given by the facade `support`."""
    govern("propose", "mytools:send", "--by", "ann", "--why", "we need it")
    govern("approve", "send", "--by", "bob", "--yes")
    govern("activate", "send", "mail", "--by", "bob")
    govern("facade", "support", "mail", "--by", "bob")
    return govern


def change(tmp_path: Path, old: str, new: str) -> None:
    (tmp_path / "mytools.py").write_text(TOOLS.replace(old, new))
    sys.modules.pop("mytools", None)
    for cached in (tmp_path / "__pycache__").glob("mytools*"):
        cached.unlink()


def test_the_whole_way(cli: Cli, approved: Any, store: Path) -> None:
    shown = approved("list").out
    assert [line.split()[:3] for line in shown.splitlines()] == [
        ["tool", "status", "packs"],
        ["send", "active", "mail"],
    ]
    assert "ann" in shown
    assert "bob" in shown
    approved("freeze", "send", "--why", "an incident", "--by", "eve")
    assert "frozen" in approved("list").out
    approved("unfreeze", "send", "--by", "bob")
    approved("deprecate", "send", "--why", "use post", "--by", "bob")
    assert approved("list", "--json").data["tools"][0]["status"] == "deprecated"
    approved("deactivate", "send", "mail", "--by", "bob")
    told = approved("log").out.splitlines()
    assert len(told) == 1 + 8
    assert "an incident" in told[5]
    assert "tool.frozen" in told[5]
    assert len(approved("log", "support", "--json").data["events"]) == 1
    assert Registry(store).tool("send").packs == frozenset()


def test_what_is_proposed_is_shown_before_it_is_approved(
    cli: Cli, govern: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, approved: Any
) -> None:
    change(tmp_path, '"""Send a mail."""', '"""Send any mail."""')
    assert "send is proposed by ann" in govern("propose", "mytools:send", "--by", "ann").out
    shown = govern("review", "send").out
    assert "approved by bob" in shown
    assert "description: Send a mail. -> Send any mail." in shown
    assert '-    """Send a mail."""' in shown
    said = [False, True]
    monkeypatch.setattr("typer.confirm", lambda question: said.pop(0))
    assert cli("tools", "approve", "send", "--by", "bob").code == 1
    assert govern("list", "--json").data["tools"][0]["proposal"]["by"] == "ann"
    done = govern("approve", "send", "--by", "bob")
    assert "description: Send a mail. -> Send any mail." in done.out
    assert "send is approved" in done.out
    assert "nothing is proposed" in govern("review", "send").out


def test_only_what_was_reviewed_is_approved(cli: Cli, govern: Any, tmp_path: Path) -> None:
    govern("propose", "mytools:send", "--by", "ann")
    data = govern("review", "send", "--json").data
    assert data["proposal"]["contract"]["effect"] == "write"
    assert "effect: null -> write" in data["diff"]
    change(tmp_path, 'effect="write"', 'effect="read"')
    govern("propose", "mytools:send", "--by", "ann")
    digest = data["proposal"]["digest"]
    refused = cli("tools", "approve", "send", "--by", "bob", "--yes", "--digest", digest, "--json")
    assert refused.code == 2
    assert "review it again" in orjson.loads(refused.err)["error"]["message"]
    digest = govern("review", "send", "--json").data["proposal"]["digest"]
    done = govern("approve", "send", "--by", "bob", "--yes", "--digest", digest, "--json")
    assert done.data["pin"]["digest"] == digest
    assert govern("review", "send", "--json").data["pin"]["contract"]["effect"] == "read"


def test_who_proposes_does_not_approve(cli: Cli, govern: Any) -> None:
    govern("propose", "mytools:send")
    refused = cli("tools", "approve", "send", "--yes")
    assert refused.code == 2
    assert refused.err.count("\n") == 1
    assert f"{options.this_user()} proposed 'send': another person has to approve it" in refused.err
    refused = cli("tools", "approve", "nothing", "--yes")
    assert "no tool called 'nothing' was proposed; there are: send" in refused.err
    govern("reject", "send", "--why", "no", "--by", "bob")
    assert "rejected" in govern("list").out
    assert "nothing is proposed" in cli("tools", "approve", "send", "--yes", "--by", "bob").err


def test_a_user_without_a_name(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> str:
        raise KeyError

    monkeypatch.setattr("getpass.getuser", nobody)
    refused = cli("tools", "propose", "mytools:send")
    assert refused.code == 2
    assert "say who you are with --by" in refused.err


def test_several_at_once_are_those_that_are_new(
    cli: Cli, govern: Any, approved: Any, tmp_path: Path
) -> None:
    done = govern("propose", "mytools", "--by", "ann", "--json")
    assert [each["tool"] for each in done.data["tools"]] == ["look", "remote"]
    assert "Nothing is new" in govern("propose", "mytools", "--by", "ann").out
    refused = cli("tools", "propose", "mytools:send", "--by", "ann")
    assert "there is nothing to propose" in refused.err
    (tmp_path / "pyproject.toml").write_text('[tool.rollcage]\ntools = ["mytools"]\n')
    change(tmp_path, "return at", "return at.strip()")
    assert "look is proposed" in govern("propose", "--by", "eve").out


def test_what_is_there_now_is_compared(cli: Cli, approved: Any, tmp_path: Path) -> None:
    same = approved("diff", "mytools:send")
    assert "is what was approved" in same.out
    change(tmp_path, 'risk="high"', 'risk="low"')
    changed = cli("tools", "diff", "mytools:send")
    assert changed.code == 1
    assert "send  is not what was approved" in changed.out
    assert "risk: high -> low" in changed.out
    unknown = cli("tools", "diff", "mytools", "--json")
    assert unknown.code == 1
    found = {each["tool"]: each["approved"] for each in unknown.data["tools"]}
    assert found == {"send": True, "look": False, "remote": False}
    assert "look  was never approved" in cli("tools", "diff", "mytools").out


def test_facades(cli: Cli, approved: Any) -> None:
    approved("propose", "gpt-4o", "--model", "--by", "ann")
    approved("approve", "gpt-4o", "--model", "--yes", "--by", "bob")
    shown = approved("facade").out
    assert "any" in shown
    approved("activate", "gpt-4o", "models", "--model", "--by", "bob")
    done = approved("facade", "support", "mail", "models", "--by", "bob", "--json")
    (facade,) = done.data["facades"]
    assert facade["packs"] == ["mail", "models"]
    assert list(facade["tools"]) == ["send"]
    assert list(facade["models"]) == ["gpt-4o"]
    assert "gpt-4o" in approved("facade", "support").out
    assert "gpt-4o (model)" in approved("list").out
    refused = cli("tools", "facade", "nothing")
    assert refused.code == 2
    assert "called 'nothing'; there are: support" in refused.err
    assert "the packs are: mail, models" in cli("tools", "facade", "x", "typo").err


def test_nothing_yet(cli: Cli, store: Path) -> None:
    said = cli("tools", "list").out
    assert " ".join(said.split()) == f"No tools in the registry of {store}."
    assert cli("tools", "list", "--json").data["tools"] == []
    assert cli("tools", "facade").out == "No facade is defined.\n"
    assert cli("tools", "log").out == "Nothing is on record.\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["propose"], "name a tool as MODULE[:ATTRIBUTE]"),
        (["propose", "--model"], "name a tool"),
        (["propose", "nowhere"], "ModuleNotFoundError"),
        (["propose", "mytools:NONE"], "there is no tool in mytools:NONE"),
        (["propose", "mytools:SCHEMA"], "is not a tool"),
        (["approve", "send", "--json"], "--json can't ask"),
        (["freeze", "send", "--why", "x"], "no tool called 'send'"),
        (["freeze", "send"], "--why"),
        (["review", "send"], "no tool called 'send'"),
    ],
)
def test_requests_that_make_no_sense(cli: Cli, words: list[str], said: str) -> None:
    result = cli("tools", *words)
    assert result.code == 2
    assert said in result.err


def test_a_damaged_registry(cli: Cli, approved: Any, store: Path) -> None:
    kept = open_store(store)
    lines = kept.get("registry", "lines")
    assert lines is not None
    assert kept.swap("registry", "lines", lines, lines.replace(b'"by":"bob"', b'"by":"eve"'))
    for words in (["list"], ["log"], ["facade"], ["freeze", "send", "--why", "x", "--by", "b"]):
        result = cli("tools", *words)
        assert result.code == 3
        assert "line 3: it, or a line before it, was changed" in " ".join(result.err.split())


def test_hostile_names_do_not_reach_the_terminal(cli: Cli, govern: Any, evil: str) -> None:
    govern("propose", "mytools:send", "--by", "ann", "--why", evil)
    govern("propose", evil.replace("\0", ""), "--model", "--by", "ann")
    for words in (["list"], ["log"], ["review", "send"]):
        assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(govern(*words).out)


def test_completion_knows_the_commands() -> None:
    words = {
        "_ROLLCAGE_COMPLETE": "complete_bash",
        "COMP_WORDS": "rollcage tools fre",
        "COMP_CWORD": "2",
    }
    done = subprocess.run(
        [sys.executable, "-m", "rollcage"], env=words, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["freeze"]


def test_every_command_has_a_short_help(cli: Cli) -> None:
    for command in registry.tools.registered_commands:
        name = command.name or getattr(command.callback, "__name__", "")
        result = cli("tools", name, "--help")
        assert result.code == 0
        assert "--json" in result.out
        assert len(result.out.splitlines()) < 35


UNDO = '''
from pathlib import Path
from rollcage import compensate, tool


@tool(effect="write")
def remove(path: str) -> None:
    """Take a file away."""
    Path(path).unlink()


@tool(effect="write", undo=lambda args: [compensate(remove, path=args["path"])])
def make(path: str) -> None:
    """Make a file."""
    Path(path).write_text("")
'''
JOB = """
from undotools import make
from rollcage import Session
from rollcage_governance import Facade

with Session("job", gate=[Facade("agent")]):
    make("made")
"""


def test_a_run_under_a_facade_is_undone_by_what_was_approved(
    cli: Cli, govern: Callable[..., Any], tmp_path: Path
) -> None:
    tools, made = tmp_path / "undotools.py", tmp_path / "made"
    tools.write_text(UNDO)
    govern("propose", "undotools", "--by", "ann")
    for name in ("make", "remove"):
        govern("approve", name, "--by", "bob", "--yes")
    govern("activate", "make", "files", "--by", "bob")
    govern("facade", "agent", "files", "--by", "bob")
    subprocess.run([sys.executable, "-c", JOB], cwd=tmp_path, check=True)
    assert made.exists()

    def undo(text: str) -> Any:
        tools.write_text(text)
        sys.modules.pop("undotools", None)
        return cli("undo", "latest", "--tools", "undotools", "--yes")

    changed = undo(UNDO.replace(".unlink()", ".rename('/tmp/kept')"))
    assert changed.code == 2
    assert "The tool remove is not what was approved: other code" in changed.err
    assert made.exists()
    govern("freeze", "remove", "--why", "an incident", "--by", "eve")
    assert undo(UNDO).code == 0
    assert not made.exists()
    sys.modules.pop("undotools", None)


def test_the_next_step_names_a_store_that_is_elsewhere(cli: Cli, tmp_path: Path) -> None:
    store = tmp_path / "other place"
    told = cli("tools", "propose", "mytools:send", "--by", "ann", "--store", store)
    assert f"rollcage tools approve TOOL --store '{store}'" in told.out
    assert f"rollcage tools facade none PACK --store '{store}'" in (
        cli("tools", "facade", "none", "--store", store).err
    )
