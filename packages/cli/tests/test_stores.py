"""The commands on a store that is no folder: all that they do, they do there."""

import contextlib
import shlex
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from postgres import new_store
from rollcage import (
    ApprovalRequired,
    Compensation,
    QueueApprover,
    Session,
    StepView,
    Verdict,
    compensate,
    open_store,
    tool,
)

SQLITE = "sqlite:///runs.db"
URL = SQLITE
world: list[int] = []


@tool(effect="write", name="cli_stores.drop")
def drop(number: int) -> None:
    world.remove(number)


def dropped(args: Any) -> list[Compensation]:
    return [compensate(drop, number=args["number"])]


@tool(effect="write", name="cli_stores.keep", undo=dropped)
def keep(number: int) -> int:
    if number < 0:
        raise KeyboardInterrupt
    world.append(number)
    return number


def asks(view: StepView) -> Verdict | None:
    return Verdict.ask("so many?") if view.args["number"] > 9 else None


@pytest.fixture(autouse=True, params=["sqlite", "postgres"])
def afresh(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each test finds a store that is not there yet, of each kind."""
    global URL
    world.clear()
    with new_store() if request.param == "postgres" else contextlib.nullcontext(SQLITE) as URL:
        yield


def record(*numbers: int, name: str = "job") -> str:
    approver = QueueApprover(URL)
    with (
        contextlib.suppress(KeyboardInterrupt),
        Session(name, store=URL, gate=[asks], approver=approver) as session,
    ):
        for number in numbers:
            keep(number)
    return session.run_id


def test_what_only_looks(cli: Any) -> None:
    first, second = record(1, 2), record(1, 3, name="other")
    listed = cli("runs", "--store", URL, "--json").data
    assert (listed["store"], len(listed["runs"])) == (open_store(URL).url, 2)
    assert [each["run"] for each in listed["runs"]] == [second, first]
    shown = cli("show", "@job", "--store", URL, "--json").data
    assert [step["name"] for step in shown["steps"]] == ["cli_stores.keep"] * 2
    assert cli("show", "--store", URL).code == 0
    assert cli("verify", first, "--store", URL).code == 0
    assert cli("diff", first, second, "--store", URL).code == 1
    assert first in cli("export", first[-8:], "--store", URL).out
    audit = cli("audit", "--store", URL, "--format", "jsonl")
    assert audit.code == 0
    assert audit.out.count('"kind": "call"') == 4
    repaired = cli("repair", "--store", URL, "--json")
    assert (repaired.code, repaired.data["runs"]) == (0, 2)
    assert [each.name for each in Path.cwd().iterdir() if each.is_dir()] in ([], ["runs.db-live"])


def test_the_variable_says_where(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    record(1)
    monkeypatch.setenv("ROLLCAGE_STORE", URL)
    assert len(cli("runs", "--json").data["runs"]) == 1


def test_an_incident_from_halt_to_undo(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cli_stores", sys.modules[__name__])
    run = record(1, -2, 3)
    listed = cli("runs", "--store", URL)
    assert "1 unknown" in listed.out
    resolved = cli("resolve", run, "2", "--store", URL, "--did-not-happen")
    assert resolved.code == 0, resolved.err
    again = record(1, 3)
    assert world == [1, 3]
    plan = cli("undo", again, "--store", URL, "--plan", "--tools", "cli_stores")
    assert plan.code == 0, plan.err
    undone = cli("undo", again, "--store", URL, "--yes", "--to", "1", "--tools", "cli_stores")
    assert undone.code == 0, undone.err + undone.out
    assert world == [1]


def test_an_approval_and_an_order_to_stop(cli: Any) -> None:
    with pytest.raises(ApprovalRequired):
        record(1, 10)
    (waiting,) = cli("approvals", "--store", URL, "--json").data["approvals"]
    approved = cli("approve", waiting["id"], "--store", URL, "--by", "bob")
    assert approved.code == 0, approved.err
    assert cli("stop", "@job", "--store", URL, "--by", "ann").code == 0
    refused = cli("show", "@job", "--store", URL)
    assert refused.code == 0
    assert cli("stop", "@job", "--store", URL, "--lift").code == 0
    record(1, 10)
    assert world == [1, 10]
    set_aside = cli("abandon", "@job", "--store", URL)
    assert set_aside.code == 0
    assert f"--store {shlex.quote(open_store(URL).url)}" in set_aside.out


@pytest.mark.parametrize("where", ["redis://localhost/1", "sqlite:runs.db"])
def test_a_url_that_nobody_knows(cli: Any, where: str) -> None:
    result = cli("runs", "--store", where)
    assert result.code == 2
    assert "store" in result.err
    assert list(Path.cwd().iterdir()) == []


@pytest.mark.parametrize("where", ["notes.txt", "sqlite:///notes.txt", "sqlite:///other.db"])
def test_a_file_that_is_no_store(cli: Any, where: str) -> None:
    Path("notes.txt").write_text("hello, " * 100)
    with contextlib.closing(sqlite3.connect("other.db")) as other:
        other.execute("CREATE TABLE theirs (a)")
    for command in ("runs", "verify"):
        result = cli(command, "--store", where)
        assert (result.code, result.out) == (2, ""), result.err
