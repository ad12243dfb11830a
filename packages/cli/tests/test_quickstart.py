"""`rollcage quickstart` where frameworks are absent; the root's tests have them present."""

import json
import signal
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest
from rollcage_cli.demo.process import Program
from rollcage_cli.quickstart import frameworks

Cli = Callable[..., Any]
Only = Callable[..., None]


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> Only:
    """Have only these modules installed."""

    def have(*modules: str) -> None:
        def find(name: str) -> ModuleSpec | None:
            return ModuleSpec(name, None) if name in modules else None

        monkeypatch.setattr(frameworks, "find_spec", find)

    return have


def test_without_a_framework_it_is_plain_python(cli: Cli, only: Only) -> None:
    only()
    result = cli("quickstart", "--json")
    assert result.code == 0, result.err
    data = json.loads(result.out)
    assert data["frameworks"] == ["python"]
    assert data["runs"]["python"].keys() == {"run"}
    assert [claim["true"] for claim in data["claims"]] == [True] * 6
    assert "Plain Python" in result.err
    assert "6 mails: each customer got 2" in result.err
    assert len(list(Path("rollcage-quickstart/outbox").iterdir())) == 3


def test_what_it_records_is_read_at_a_glance(cli: Cli, only: Only) -> None:
    only()
    assert cli("quickstart", "--json").code == 0
    shown = cli("show", "@yours", "--step", "1", "--store", "rollcage-quickstart/.rollcage")
    assert 'outcome: [{tool: "unpaid", args: {}}]' in shown.out


def test_frameworks_are_found_with_their_adapters(only: Only) -> None:
    only("crewai", "rollcage_crewai", "langchain", "rollcage_autogen")
    assert [each.key for each in frameworks.installed()] == ["crewai"]
    assert [each.key for each in frameworks.unguarded()] == ["langchain"]


@pytest.mark.parametrize("each", frameworks.ALL, ids=lambda each: each.key)
def test_each_framework_alone_is_the_one_that_is_played(only: Only, each: Any) -> None:
    only(*each.needs)
    assert frameworks.installed() == [each]
    assert frameworks.unguarded() == []


def test_a_framework_without_its_adapter_is_reported(
    cli: Cli, only: Only, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the store that is the user's own is left alone."""
    only("autogen_agentchat")
    monkeypatch.setenv("ROLLCAGE_STORE", str(Path("mine").resolve()))
    result = cli("quickstart", "--framework", "python", "--dir", "here")
    assert result.code == 0, result.err
    assert 'AutoGen is here without its adapter: pip install "rollcage[autogen]"' in result.out
    assert "cd here" in result.out
    assert "rollcage undo @yours --store .rollcage" in result.out
    assert not Path("mine").exists()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("crewai", 'CrewAI and its adapter are not both installed: pip install "rollcage[crewai]"'),
        ("crew", "unknown framework 'crew'; there are langchain, autogen, crewai, python"),
    ],
)
def test_a_framework_that_is_not_there_is_refused(
    cli: Cli, only: Only, name: str, said: str
) -> None:
    only("crewai")
    result = cli("quickstart", "--framework", name)
    assert result.code == 2
    assert said in result.err
    assert not list(Path.cwd().iterdir())


def test_a_folder_that_is_there_is_left_alone(cli: Cli) -> None:
    Path("mine").mkdir()
    result = cli("quickstart", "--framework", "python", "--dir", "mine")
    assert result.code == 2
    assert "mine exists already; choose another one with --dir" in result.err
    assert not list(Path("mine").iterdir())


def test_what_its_processes_do_not_leave_it_does_not_claim(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each process is said to have been killed, also the second one, which sends the mails."""
    monkeypatch.setattr(Program, "wait", lambda _: -signal.SIGKILL)
    result = cli("quickstart", "--framework", "python", "--json")
    assert result.code == 1
    assert json.loads(result.out)["claims"][-1]["true"] is False
    assert "claim_failed" in result.err
