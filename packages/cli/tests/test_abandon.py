"""`rollcage abandon`: what it says, and what every other command makes of the run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rollcage import Diverged, Session, UnknownOutcome, tool
from rollcage_cli import errors

Cli = Callable[..., Any]


@tool(effect="write")
def send(text: str) -> str:
    return f"sent {text}"


@tool(effect="write")
def lose() -> None:
    raise TimeoutError


def crashed(store: Path, **settings: Any) -> str:
    session = Session("letters", store=store, **settings)
    with pytest.raises(InterruptedError), session:
        send("a")
        raise InterruptedError
    return session.run_id


def test_the_job_begins_afresh_and_the_run_stays_to_be_looked_at(cli: Cli, store: Path) -> None:
    run = crashed(store, input={"to": "ann"})
    result = cli("abandon", "@letters", "--by", "bob", "--reason", "she moved")
    assert result.code == 0, result.err
    assert f"run {run} is abandoned" in result.out
    assert f"1 effect of the run stays done. To undo it: rollcage undo {run}" in result.out
    with Session("letters", store=store, input={"to": "ann"}) as session:
        send("a")
    assert session.stats.hits == 0
    listed = cli("runs", "--json").data["runs"]
    assert [each["status"] for each in listed] == ["ok", "abandoned"]
    shown = cli("show", run)
    assert 'input {to: "ann"}' in shown.out
    assert "abandoned by bob" in shown.out
    assert ": she moved" in shown.out
    assert cli("show", run, "--json").data["abandoned"]["by"] == "bob"
    assert cli("verify", run).code == 0
    assert cli("audit", run).code == 0
    assert cli("diff", run, session.run_id).code in (0, 1)
    assert cli("export", run).code == 0


def test_it_is_reported_in_json(cli: Cli, store: Path) -> None:
    run = crashed(store)
    told = cli("abandon", run, "--by", "bob", "--json").data
    assert told == {
        "run": run, "abandoned": True, "by": "bob", "reason": "",
        "effects": [1], "not_asked_for": [], "unknown": [],
    }  # fmt: skip


def test_what_may_be_done_is_reported_too(cli: Cli, store: Path) -> None:
    run = crashed(store)
    halted = Session("letters", store=store)
    with pytest.raises(Diverged), halted:
        send("b")  # nothing of the first attempt was asked for
    result = cli("abandon", run)
    assert f"1 effect of the run stays done. To undo it: rollcage undo {run}" in result.out
    other = Session("letters", store=store, input="another")
    with pytest.raises(UnknownOutcome), other:
        lose()
    result = cli("abandon", other.run_id)
    assert "stays done" not in result.out
    assert f"step 1 (lose) of run {other.run_id} may be done, too" in result.out


def test_it_is_set_aside_once(cli: Cli, store: Path) -> None:
    run = crashed(store)
    assert cli("abandon", run).code == 0
    again = cli("abandon", run)
    assert again.code == errors.USAGE
    assert "was abandoned before" in again.err


def test_a_live_run_is_in_use(cli: Cli, store: Path) -> None:
    with Session("letters", store=store) as session:
        assert cli("abandon", session.run_id).code == errors.IN_USE


def test_a_file_outside_of_a_store_is_refused(cli: Cli, store: Path, tmp_path: Path) -> None:
    run = crashed(store)
    lone = tmp_path / f"{run}.jsonl"
    lone.write_bytes((store / "logs" / lone.name).read_bytes())
    assert cli("abandon", lone).code == errors.USAGE


def test_another_store_is_named_in_what_is_printed(cli: Cli, tmp_path: Path) -> None:
    other = tmp_path / "my runs"
    run = crashed(other)
    said = cli("abandon", run, "--store", other).out
    assert f"rollcage undo {run} --store '{other}'" in said


def test_an_export_without_values_has_no_input(cli: Cli, store: Path) -> None:
    run = crashed(store, input={"to": "ann", "note": "by the back door"})
    assert "back door" in cli("export", run).out
    assert "back door" not in cli("export", run, "--no-values").out
    named = cli("export", run, "--redact", "note").out
    assert "back door" not in named
    assert '"ann"' in named


def test_a_pause_says_what_it_waits_for(cli: Cli, store: Path) -> None:
    with Session("letters", store=store) as session:
        send("a")
        session.pause("ann is to answer")
    assert "waits for: ann is to answer" in cli("show", session.run_id).out
    assert cli("show", session.run_id, "--json").data["waits_for"] == "ann is to answer"
    assert cli("runs", "--json").data["runs"][0]["status"] == "paused"
