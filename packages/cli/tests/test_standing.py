"""What nobody can tell of a job, and what it left behind: told wherever a run is shown."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from markup import Markup
from rollcage import Session, UnknownOutcome, compensate, tool, undo_run
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


def test_orphaned_effects_are_reported_by_every_command(cli: Cli, store: Path) -> None:
    first = crashed(store, lambda: send("a"), lambda: send("b"))
    with Session("job", store=store, on_divergence="warn") as session:
        send("A")
    for name, out in everywhere(cli, session.run_id).items():
        assert (
            "2 left behind" if name == "runs" else f"step 1 (standing.send) of run {first}"
        ) in out
    assert "Left behind by a new write, and still done: 2 effects" in cli("show").out
    listed = [[first, 1], [first, 2]]
    assert cli("show", "--json").data["standing"]["left_behind"] == listed
    assert cli("runs", "--json").data["runs"][0]["left_behind"] == listed
    assert cli("verify", session.run_id, "--json").data["standing"]["left_behind"] == listed
    told = cli("diff", first, session.run_id, "--json").data["standing"]
    assert (told["a"]["left_behind"], told["b"]["left_behind"]) == ([], listed)


def test_a_later_run_of_the_job_still_says_so(cli: Cli, store: Path) -> None:
    first = crashed(store, lambda: send("a"))
    crashed(store, lambda: send("A"), on_divergence="warn")
    with Session("job", store=store):
        send("A")
    assert f"step 1 (standing.send) of run {first}" in cli("show").out


def test_what_was_undone_first_is_no_orphan(cli: Cli, store: Path) -> None:
    crashed(store, lambda: send("a"))
    settings: dict[str, Any] = {"tools": [send, unsend], "on_divergence": "undo"}
    with Session("job", store=store, **settings) as session:
        send("A")
    assert session.stats.misses == 2
    told = cli("show", "--json").data["standing"]
    assert (told["left_behind"], told["not_asked_for"]) == ([], [])


def test_what_was_never_asked_for_is_undone_with_the_rest(cli: Cli, store: Path) -> None:
    crashed(store, lambda: send("a"), lambda: send("b"))
    with Session("job", store=store) as session:
        send("a")
    assert undo_run(store, session.run_id, tools=[send, unsend]).complete
    assert cli("show", "--json").data["standing"]["not_asked_for"] == []


def test_effects_that_were_never_asked_for_are_reported(cli: Cli, store: Path) -> None:
    first = crashed(store, lambda: send("a"), both)
    with Session("job", store=store):
        send("a")
    for name, out in everywhere(cli, "latest").items():
        assert ("2 not asked for" if name == "runs" else f"(standing.send) of run {first}") in out
    shown = cli("show").out
    assert "Never asked for: 2 effects" in shown
    assert f"Builds on {first} (error)" in shown
    assert cli("abandon", "latest").code == 0


def test_what_a_replayed_body_called_was_asked_for(cli: Cli, store: Path) -> None:
    crashed(store, both, lambda: send("a"))
    with Session("job", store=store):
        both()
        send("a")
    assert cli("show", "--json").data["standing"]["not_asked_for"] == []
    assert cli("runs", "--json").data["runs"][0]["status"] == "ok"


def test_a_paused_run_says_what_it_has_not_come_to(cli: Cli, store: Path) -> None:
    crashed(store, lambda: send("a"), lambda: send("b"))
    with Session("job", store=store) as session:
        send("a")
        session.pause("ann is to answer")
    assert "Not asked for so far: 1 effect, step 2 (standing.send)" in cli("show").out


def test_a_look_back_leaves_nothing(cli: Cli, store: Path) -> None:
    crashed(store, lambda: send("a"))
    with Session("job", store=store, replay="offline"):
        pass
    assert cli("show", "--json").data["standing"]["not_asked_for"] == []


# --- what nobody can tell ------------------------------------------------------------------------


def test_an_unknown_step_is_reported_by_every_command_of_every_run_that_builds_on_it(
    cli: Cli, store: Path
) -> None:
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


def test_a_step_that_halted_a_resume_is_resolved_where_it_ran(cli: Cli, store: Path) -> None:
    first = unknown(store, lambda: send("a"))
    unknown(store, lambda: send("a"))
    assert cli("resolve", "@job", 2, "--did-not-happen", "--json").data["run"] == first


def test_a_step_that_is_in_no_doubt_anywhere_is_refused(cli: Cli, store: Path) -> None:
    unknown(store, lambda: send("a"))
    refused = cli("resolve", "@job", 1, "--happened")
    assert refused.code == errors.USAGE
    assert "has a known outcome" in refused.err


def test_what_was_resolved_of_an_undone_run_does_not_end_it_again(cli: Cli, store: Path) -> None:
    run = unknown(store, lambda: send("a"))
    assert cli("abandon", run).code == 0
    assert cli("resolve", run, 2, "--did-not-happen").code == 0
    assert cli("runs", "--json").data["runs"][0]["status"] == "abandoned"
    with Session("job", store=store) as session:
        send("a")
    assert session.stats.hits == 0


# --- audit ---------------------------------------------------------------------------------------


def test_an_audit_has_orphaned_effects_and_the_write_that_left_them(cli: Cli, store: Path) -> None:
    first = crashed(store, lambda: send("a"), lambda: send("b"))
    with Session("job", store=store, on_divergence="warn") as session:
        send("A")
    lines = [json.loads(line) for line in cli("audit", "--format", "jsonl").out.splitlines()]
    told = {(each["run"], each["step"]): each for each in lines if each["kind"] == "call"}
    for step in (1, 2):
        assert told[first, step]["left_by_run"] == session.run_id
        assert told[first, step]["left_by_step"] == 1
    assert told[session.run_id, 1]["left_by_run"] == ""
    assert lines[-1]["open"] == 2
    assert f"left behind by step 1 of run {session.run_id}" in cli("audit", "--format", "md").out


def test_an_audit_of_a_job_tells_of_all_that_it_was_paused_and_gone_on_with(
    cli: Cli, store: Path
) -> None:
    with Session("job", store=store) as first:
        send("a")
        first.pause("ann is to answer")
    with Session("job", store=store) as second:
        send("a")
        send("b")
    lines = [
        json.loads(line) for line in cli("audit", "@job", "--format", "jsonl").out.splitlines()
    ]
    told = [(each["run"], each["state"]) for each in lines if each["kind"] == "call"]
    assert told == [(first.run_id, "ran"), (second.run_id, "hit"), (second.run_id, "ran")]
    assert f"Builds on {first.run_id} (paused)" in cli("show", "@job").out
    alone = cli("audit", second.run_id, "--format", "jsonl").out.splitlines()
    assert len(alone) == 3


def test_an_audit_names_the_effects_that_were_never_asked_for(cli: Cli, store: Path) -> None:
    first = crashed(store, lambda: send("a"), lambda: send("b"))
    with Session("job", store=store) as half:
        send("a")

    def orphans(*words: str) -> list[dict[str, Any]]:
        out = cli("audit", *words, "--format", "jsonl").out
        return [each for each in map(json.loads, out.splitlines()) if each["kind"] == "orphan"]

    (told,) = orphans("latest")
    assert (told["run"], told["tool"], told["state"]) == (
        half.run_id, "standing.send", "not_asked_for",
    )  # fmt: skip
    assert (told["first_ran_run"], told["first_ran_step"]) == (first, 2)
    for form in (["--format", "table"], ["--format", "md"]):
        out = " ".join(cli("audit", *form).out.replace("\\", "").split())
        assert f"not asked for; first ran as step 2 of run {first}" in out
    page = Markup(cli("audit", "--html", "-").out).text
    assert f"not asked for first ran as step 2 of run {first}" in page
    with Session("job", store=store):  # a later run asks for it: nobody has to look at it
        send("a")
        send("b")
    assert [each["state"] for each in orphans("@job")] == ["continued"]
    assert "Needs attention" not in cli("audit").out


# --- what a framework's own memory holds ---------------------------------------------------------


def test_a_step_that_was_seen_is_distinguished_from_one_that_was_asked_for(
    cli: Cli, store: Path
) -> None:
    session = Session("job", store=store)
    with pytest.raises(Answer), session:
        for text in ("a", "b"):
            with session.place(call_id=f"call-{text}", conversation="thread"):
                send(text)
        raise Answer
    with Session("job", store=store) as session:
        session.seen({"thread": ["call-a"]})
        with session.place(call_id="call-b", conversation="thread"):
            send("b")
    shown = cli("show")
    assert [line.split()[4] for line in shown.out.splitlines() if "standing.send" in line] == [
        "seen", "hit",
    ]  # fmt: skip
    assert "1 hit, 1 seen" in shown.out
    assert cli("show", "--json").data["totals"]["states"]["seen"] == 1
    audited = [json.loads(line) for line in cli("audit", "--format", "jsonl").out.splitlines()]
    assert [each["state"] for each in audited if each["kind"] == "call"][-2:] == ["seen", "hit"]
    assert "memory" in cli("resolve", "latest", "1", "--happened").err
