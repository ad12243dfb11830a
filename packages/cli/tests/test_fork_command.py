"""`rollcage fork`: the same program once more, with one thing changed."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rollcage.trace.recorded import trace_of
from rollcage_views import read_run

Cli = Callable[..., Any]

PROGRAM = """
import sys
from rollcage import Session, tool
from rollcage_fork import fork_of

@tool(effect="read")
def quote(city: str) -> int:
    return 180

@tool(effect="write")
def book(city: str) -> str:
    with open("booked.txt", "a") as file:
        file.write(city)
    return "booked"

@tool(effect="write")
def mail(text: str) -> str:
    with open("mailed.txt", "a") as file:
        file.write(text)
    return "sent"

def main(trip):
    with Session("desk", store=STORE, input=trip) as session:
        price = quote(city=trip["city"])
        mail(text=book(city=trip["city"]) if price < 200 else f"{price} in {trip['city']}?")
        fork = fork_of(session)
        if fork is not None and fork.model:
            print("model", fork.model, file=sys.stderr)

STORE = "runs"
if __name__ == "__main__":
    main({"city": "Rome"})
"""


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> Path:
    """A program that was run once, in its folder."""
    folder = tmp_path / "desk"
    folder.mkdir()
    (folder / "desk_agent.py").write_text(PROGRAM)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("ROLLCAGE_STORE", "runs")
    monkeypatch.delenv("ROLLCAGE_STAGE", raising=False)
    subprocess.run([sys.executable, "desk_agent.py"], check=True)
    (folder / "booked.txt").unlink()
    (folder / "mailed.txt").unlink()
    return folder


def untouched(folder: Path) -> bool:
    return not any((folder / name).exists() for name in ("booked.txt", "mailed.txt"))


def test_a_changed_result_side_by_side(desk: Path, cli: Cli) -> None:
    program = ("--", sys.executable, "desk_agent.py")
    result = cli("fork", "@desk", "--at", "1", "--result", "480", *program)
    assert result.code == 0
    assert "step 1 (quote) gives 480" in result.out
    first = next(line for line in result.out.splitlines() if "▶" in line)
    assert "quote" in first
    assert "180" in first
    assert "480" in first
    assert "would_write: it ended before a write that it would have made" in result.out
    assert 'mail(text="480 in Rome?")' in result.out
    assert "Traceback" not in result.out + result.err
    assert untouched(desk)


def test_null_is_a_result(desk: Path, cli: Cli) -> None:
    given = ("--at", "2", "--result", "null")
    result = cli("fork", "@desk", *given, "--run", "desk_agent:main", "--json")
    assert result.data["fork"] == {
        "run": result.data["of"], "step": 2, "change": "result", "live": False,
    }  # fmt: skip
    assert untouched(desk)


def test_a_function_with_the_input_of_the_run_and_an_answer(desk: Path, cli: Cli) -> None:
    result = cli(
        "fork", "@desk", "--at", "1", "--result", "480", "--answer", 'mail="sent"',
        "--run", "desk_agent:main", "--json",
    )  # fmt: skip
    assert result.code == 0
    assert result.data["status"] == "ok"
    assert result.data["would_write"] == [{"name": "mail", "args": {"text": "480 in Rome?"}}]
    assert result.data["first_difference"]["name"] == "quote"
    assert result.data["wrote"] == []
    assert untouched(desk)
    of = result.data["of"]
    fork = read_run(trace_of("runs", result.data["run"]))
    assert fork.started["fork"] == {"run": of, "step": 1, "change": "result", "live": False}
    shown = cli("show", fork.id).out
    assert (
        f"a fork: step 1 has another result; it made no write, and the steps replayed from run {of}"
        in shown
    )
    assert "simulated" in shown
    assert cli("verify", fork.id).code == 0
    assert "fork" in cli("runs").out
    newest = cli("show", "@desk", "--json").data["run"]["run"]
    assert newest == of  # not the fork


ASKS = """
def asks(step):
    return Verdict.ask("a person decides") if step.name == "mail" else None
"""


def gated(folder: Path, approver: str) -> None:
    """From now on, a rule of the program asks about mails."""
    program = PROGRAM.replace(
        "import Session, tool", "import QueueApprover, Session, Verdict, tool"
    )
    program = program.replace("input=trip", f"input=trip, gate=[asks], approver={approver}")
    (folder / "desk_agent.py").write_text(program.replace("def main", f"{ASKS}\ndef main"))


LIVE = ("--at", "1", "--result", "480", "--live", "--run", "desk_agent:main")


def test_a_live_fork_without_an_approver_says_how_to_go_on(desk: Path, cli: Cli) -> None:
    gated(desk, "None")
    result = cli("fork", "@desk", *LIVE)
    assert result.code == 6
    assert "paused: it waits" in result.out
    assert "mail needs an approval (a person decides)" in result.out
    assert "approver=" in result.out
    assert "--answer TOOL=JSON" in result.out
    assert "Traceback" not in result.out + result.err
    assert untouched(desk)
    result = cli("fork", "@desk", *LIVE, "--answer", 'mail="sent"', "--json")
    assert (result.code, result.data["status"], result.data["remedy"]) == (0, "ok", "")
    assert untouched(desk)


def test_a_live_fork_that_waits_for_a_decision_goes_on_with_it(desk: Path, cli: Cli) -> None:
    gated(desk, "QueueApprover('runs')")
    result = cli("fork", "@desk", *LIVE, "--json")
    assert (result.code, result.data["status"], result.data["wrote"]) == (6, "paused", [])
    fork = result.data["run"]
    assert f"run={fork!r} and the same Fork in stages=" in result.data["remedy"]
    assert "Traceback" not in result.err
    assert untouched(desk)
    (waits,) = cli("approvals", "--json").data["approvals"]
    assert cli("approve", waits["id"], "--by", "bob").code == 0
    program = (desk / "desk_agent.py").read_text()
    again = f"run={fork!r}, stages=[Fork({result.data['of']!r}, at=1, result=480, live=True)], "
    resumed = program.replace("input=trip", f"{again}input=trip").replace(
        "fork_of", "Fork, fork_of", 1
    )
    (desk / "resumed.py").write_text(resumed)
    subprocess.run([sys.executable, "resumed.py"], check=True)
    assert (desk / "mailed.txt").read_text() == "480 in Rome?"


def test_what_a_live_fork_wrote_is_what_its_undo_has_to_do_with(desk: Path, cli: Cli) -> None:
    result = cli(
        "fork", "@desk", "--at", "1", "--result", "480", "--live", "--run", "desk_agent:main"
    )
    assert result.code == 0
    assert 'It wrote: mail(text="480 in Rome?")' in result.out
    assert (desk / "mailed.txt").read_text() == "480 in Rome?"
    assert not (desk / "booked.txt").exists()
    plan = cli("undo", "latest", "--plan", "--tools", "desk_agent", "--json").data["plan"]
    assert [step["name"] for step in plan["steps"]] == ["mail"]


def test_other_tools_another_model_another_policy(desk: Path, cli: Cli) -> None:
    (desk / "dear_tools.py").write_text(
        'from rollcage import tool\n@tool(effect="read")\ndef quote(city: str) -> int:\n'
        "    return 999\n"
    )
    run = ("--run", "desk_agent:main")
    result = cli("fork", "@desk", "--tools", "dear_tools", *run)
    assert 'mail(text="999 in Rome?")' in result.out
    result = cli("fork", "@desk", "--model", "small-1", *run, "--json")
    assert (result.data["fork"]["change"], result.data["fork"]["to"]) == ("model", "small-1")
    (desk / "no.toml").write_text(
        'version = 1\nname = "no"\ndefault = "allow"\n[[rules]]\nid = "no-booking"\n'
        'tools = ["book"]\n'
        'decision = "deny"\nreason = "no bookings"\n'
    )
    result = cli("fork", "@desk", "--policy", "no.toml", *run, "--json")
    assert result.data["fork"]["change"] == "policy"
    assert result.data["fork"]["to"] == "no"
    refused = read_run(trace_of("runs", result.data["run"])).refused
    assert [(each.name, each.reason) for each in refused] == [("book", "no bookings")]
    assert result.data["would_write"] == []
    assert untouched(desk)


def test_a_fork_that_is_saved_is_for_the_next_run_of_the_program(
    desk: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = cli("fork", "@desk", "--at", "2", "--error", "full", "--save", "fork.json")
    assert result.out == "ROLLCAGE_STAGE=fork:fork.json makes it of the next run of the program.\n"
    assert (desk / "fork.json").stat().st_mode & 0o077 == 0
    assert json.loads((desk / "fork.json").read_text())["error"] == "full"
    assert len(cli("runs", "--json").data["runs"]) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--at", "9"), "has no step 9; it has 3 steps"),
        (("--at", "1", "--result", "{"), "--result is not JSON"),
        (
            ("--at", "1", "--result", "[" * 100_000),
            "--result is not JSON: it is too deep",
        ),
        (("--at", "1", "--args", "NaN"), "--args is not JSON: NaN is not a JSON number"),
        (("--at", "1", "--args", "1"), "wants the arguments by name"),
        (("--result", "1"), "say which with at="),
        (("--at", "1", "--result", "1", "--error", "x"), "changes one thing"),
        (("--model", "m", "--tools", "t"), "changes one thing"),
        (("--answer", "mail"), "is not TOOL=JSON"),
        (("--policy", "none.toml"), "there is no such file"),
        ((), "say what makes the run again"),
    ],
)
def test_what_can_not_be_asked(desk: Path, cli: Cli, arguments: tuple[str, ...], said: str) -> None:
    result = cli("fork", "@desk", *arguments)
    assert result.code == 2
    assert said in result.err
    assert len(cli("runs", "--json").data["runs"]) == 1


def test_a_program_that_forks_nothing_says_so(desk: Path, cli: Cli) -> None:
    result = cli("fork", "@desk", "--", sys.executable, "-c", "raise SystemExit('no such thing')")
    assert result.code == 5
    assert "opened no session of 'desk'" in result.err
    assert "no such thing" in result.err
    result = cli("fork", "@desk", "--", "no-such-program")
    assert result.code == 2


def test_a_fork_stands_alone_once_its_run_is_pruned(desk: Path, cli: Cli) -> None:
    made = cli("fork", "@desk", "--run", "desk_agent:main", "--json").data
    pruned = cli("prune", "--older", "0s", "--hold", made["run"], "--yes")
    assert pruned.code == 0
    assert cli("show", made["of"], "--json").data["steps"] == []
    again = cli("fork", made["run"], "--run", "desk_agent:main", "--json").data
    assert {step["relation"] for step in again["steps"]} == {"same"}
    assert untouched(desk)
