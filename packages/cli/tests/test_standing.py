"""What nobody can tell of a job, and what it left behind: told wherever a run is shown."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from markup import Markup
from rollcage import Options, Session, UnknownOutcome, compensate, tool, undo_run
from rollcage_cli import errors

Cli = Callable[..., Any]


class Answer(Exception):
    """What ends a session."""


@tool(effect="write", name="standing.unsend")
def unsend(text: str) -> None:
    pass


@tool(
    effect="write",
    name="standing.send",
    undo=lambda args, before, result: [compensate(unsend, text=args["text"])],
)
def send(text: str) -> str:
    return f"sent {text}"


@tool(effect="write", name="standing.pay")
def pay(amount: int) -> int:
    raise TimeoutError


@tool(effect="scope", name="standing.both")
def both() -> None:
    send("b")
    send("c")


def crashed(store: Path, *calls: Callable[[], Any], **settings: Any) -> str:
    session = Session("job", store=store, **settings)
    with pytest.raises(Answer), session:
        for call in calls:
            call()
        raise Answer
    return session.run_id


def unknown(store: Path, *calls: Callable[[], Any]) -> str:
    session = Session("job", store=store)
    with pytest.raises(UnknownOutcome), session:
        for call in calls:
            call()
        pay(5)
    return session.run_id


def everywhere(cli: Cli, run: str) -> dict[str, str]:
    """What each command that shows a run says, for people."""
    told = {
        name: cli(name, *([run] if name != "runs" else [])) for name in ("show", "verify", "runs")
    }
    told["diff"] = cli("diff", run, run)
    return {name: result.out for name, result in told.items()}


# --- what was left behind ------------------------------------------------------------------------


def test_effects_left_behind_are_reported_by_every_command(cli: Cli, store: Path) -> None:
    run = crashed(store, lambda: send("a"), lambda: send("b"))
    with Session("job", store=store, on_divergence="warn"):
        send("A")
    for name, out in everywhere(cli, run).items():
        assert (
            "2 left behind" if name == "runs" else f"step 1 (standing.send) of run {run}"
        ) in out
    assert "Left behind by a new write, and still done: 2 effects" in cli("show").out
    listed = [[run, 1], [run, 2]]
    assert cli("show", "--json").data["standing"]["left_behind"] == listed
    assert cli("runs", "--json").data["runs"][0]["left_behind"] == listed
    assert cli("verify", run, "--json").data["standing"]["left_behind"] == listed
    told = cli("diff", run, run, "--json").data["standing"]
    assert (told["a"]["left_behind"], told["b"]["left_behind"]) == (listed, listed)


def test_what_was_undone_first_is_not_left_behind(cli: Cli, store: Path) -> None:
    crashed(store, lambda: send("a"))
    options = Options(tools=[send, unsend])
    with Session("job", store=store, on_divergence="undo", options=options):
        send("A")
    told = cli("show", "--json").data["standing"]
    assert (told["left_behind"], told["not_asked_for"]) == ([], [])


def test_what_was_never_asked_for_is_undone_with_the_rest(cli: Cli, store: Path) -> None:
    crashed(store, lambda: send("a"), lambda: send("b"))
    with Session("job", store=store) as session:
        send("a")
    assert undo_run(store, session.run_id, tools=[send, unsend]).complete
    assert cli("show", "--json").data["standing"]["not_asked_for"] == []


def test_effects_that_were_never_asked_for_are_reported(cli: Cli, store: Path) -> None:
    run = crashed(store, lambda: send("a"), both)
    with Session("job", store=store):
        send("a")
    for name, out in everywhere(cli, "latest").items():
        assert ("2 not asked for" if name == "runs" else f"(standing.send) of run {run}") in out
    assert "Never asked for: 2 effects" in cli("show").out
    assert cli("abandon", "latest").code == 0


def test_what_a_replayed_body_called_was_asked_for(cli: Cli, store: Path) -> None:
    crashed(store, both, lambda: send("a"))
    with Session("job", store=store):
        both()
        send("a")
    assert cli("show", "--json").data["standing"]["not_asked_for"] == []
    assert cli("runs", "--json").data["runs"][0]["status"] == "ok"


def test_a_look_back_leaves_nothing(cli: Cli, store: Path) -> None:
    crashed(store, lambda: send("a"))
    with Session("job", store=store, replay="offline"):
        pass
    assert cli("show", "--json").data["standing"]["not_asked_for"] == []


# --- what nobody can tell ------------------------------------------------------------------------


def test_an_unknown_step_is_reported_by_every_command(cli: Cli, store: Path) -> None:
    first = unknown(store, lambda: send("a"))
    crashed(store, lambda: send("a"))
    last = crashed(store)
    command = f"rollcage resolve {first} 2 --happened"
    for name, out in everywhere(cli, last).items():
        assert ("1 unknown" if name == "runs" else command) in out
    assert cli("runs", "--json").data["runs"][0]["unknown"] == [[first, 2]]


@pytest.mark.parametrize("later", [0, 1, 2])
def test_a_step_is_resolved_wherever_in_the_job_it_is(cli: Cli, store: Path, later: int) -> None:
    first = unknown(store, lambda: send("a"))
    for _ in range(later):  # killed before they came to it: their second step is none, or another
        crashed(store, lambda: send("a"))
    resolved = cli("resolve", "@job", 2, "--happened", "--result", "5", "--json")
    assert resolved.code == 0, resolved.err
    assert resolved.data["run"] == first
    with Session("job", store=store) as session:
        send("a")
        assert pay(5) == 5
    assert session.stats.hits == 2
    assert cli("show", "--json").data["standing"]["unknown"] == []


def test_a_step_that_is_in_no_doubt_is_refused(cli: Cli, store: Path) -> None:
    unknown(store, lambda: send("a"))
    refused = cli("resolve", "@job", 1, "--happened")
    assert refused.code == errors.USAGE
    assert "is ok: there is nothing to resolve" in refused.err


def test_what_was_resolved_of_an_undone_run_does_not_end_it_again(cli: Cli, store: Path) -> None:
    run = unknown(store, lambda: send("a"))
    assert cli("abandon", run).code == 0
    assert cli("resolve", run, 2, "--did-not-happen").code == 0
    assert cli("runs", "--json").data["runs"][0]["status"] == "abandoned"
    with Session("job", store=store) as session:
        send("a")
    assert session.stats.hits == 0


# --- audit ---------------------------------------------------------------------------------------


def test_an_audit_has_what_was_left_behind(cli: Cli, store: Path) -> None:
    run = crashed(store, lambda: send("a"), lambda: send("b"))
    with Session("job", store=store, on_divergence="warn"):
        send("A")
    lines = [json.loads(line) for line in cli("audit", "--format", "jsonl").out.splitlines()]
    told = {each["step"]: each for each in lines if each["kind"] == "call"}
    for step in (1, 2):
        assert (told[step]["left_by_run"], told[step]["left_by_step"]) == (run, 3)
    assert told[3]["left_by_run"] == ""
    assert lines[-1]["open"] == 2
    assert "left behind by step 3" in cli("audit", "--format", "md").out


def test_an_audit_names_the_effects_that_were_never_asked_for(cli: Cli, store: Path) -> None:
    run = crashed(store, lambda: send("a"), lambda: send("b"))
    with Session("job", store=store):
        send("a")

    def left() -> list[dict[str, Any]]:
        out = cli("audit", "--format", "jsonl").out
        return [each for each in map(json.loads, out.splitlines()) if each["kind"] == "orphan"]

    (told,) = left()
    assert (told["run"], told["tool"], told["state"]) == (run, "standing.send", "not_asked_for")
    assert (told["first_ran_run"], told["first_ran_step"]) == (run, 2)
    assert "Needs attention" in cli("audit").out
    assert "not asked for" in Markup(cli("audit", "--html", "-").out).text
    with Session("job", store=store):  # a later attempt asks for it: nobody has to look at it
        send("a")
        send("b")
    assert left() == []
    assert "Needs attention" not in cli("audit").out


def test_an_unknown_step_stays_so_in_later_attempts(cli: Cli, store: Path) -> None:
    run = unknown(store, lambda: send("a"))
    crashed(store, lambda: send("a"))
    assert cli("runs", "--json").data["runs"][0]["unknown"] == [[run, 2]]
