"""`rollcage workflow`: the example from its first line to its picture."""

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from parts import requests_in
from rich.console import Console
from rich.text import Text
from rollcage import Approval, ApprovalQueue, open_store
from rollcage_workflow import Execution, run
from rollcage_workflow.commands import workflow
from rollcage_workflow.commands.progress import ProgressTable
from rollcage_workflow.commands.waiting import commands_for
from rollcage_workflow.commands.worker import worker as worker_command
from rollcage_workflow.signals import Signals
from typer import Typer
from typer.testing import CliRunner

TOOLS = ["--tools", "orders_tools"]


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "orders_tools", raising=False)
    assert rollcage("init")[0] == 0
    return tmp_path


def rollcage(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(workflow, arguments)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.stdout


def test_the_example_waits_is_signalled_and_ends(shop: Path) -> None:
    assert rollcage("check", "orders.yaml", *TOOLS) == (0, "orders: nothing wrong\n")
    code, said = rollcage("run", "orders.yaml", "first", *TOOLS)
    assert code == 0
    assert "waits for the signal approved" in said
    assert json.loads((shop / "stock.json").read_text()) == {"apple": 7, "pear": 9}
    assert said.splitlines()[-2:] == [
        "To let it go on:",
        "  rollcage workflow signal first approved --data JSON",
    ]
    assert rollcage("show", "first")[1].endswith(said.splitlines()[-1] + "\n")
    sent = ("signal", "first", "approved", "--data", "true", "--by", "ann", "--once", "mail 7")
    assert rollcage(*sent)[0] == 0
    assert rollcage(*sent)[0] == 1
    code, said = rollcage("run", "orders.yaml", "first", "--json", *TOOLS)
    found = json.loads(said)
    assert (found["status"], found["attempts"]) == ("completed", 2)
    assert found["output"]["shipped"] == "2 orders shipped"
    assert json.loads((shop / "stock.json").read_text()) == {"apple": 7, "pear": 9}
    steps = {step["path"]: step["state"] for step in found["steps"]}
    assert steps["ship"] == "completed"
    assert "completed" in rollcage("list")[1]
    picture = rollcage("picture", "orders.yaml", "--id", "first", *TOOLS)[1]
    assert picture.startswith("flowchart TD\n")
    assert "class ship completed" in picture


async def test_all_that_a_waiting_execution_waits_for_is_shown_as_commands(tmp_path: Path) -> None:
    waits = {"go": {"signal": "go"}, "asked": {"approval": "sure?"}, "nap": {"seconds": 60}}
    steps = {name: {"wait": wait} for name, wait in waits.items()}
    store = open_store(tmp_path / "its runs")
    plan = {"name": "waits", "steps": steps}
    found = await run(plan, id="the first", store=store, patience=0.0)
    (asked,) = requests_in(store)
    at = f"--store '{tmp_path}/its runs'"
    assert sorted(commands_for(found, store)) == [
        f"rollcage approve {asked} {at}",
        f"rollcage workflow signal 'the first' go --data JSON {at}",
    ]
    Signals(store, "the first").send("go", True, by="ann")
    ApprovalQueue(store).decide(asked, Approval(True, by="ann"))
    found = await run(plan, id="the first", store=store, patience=0.0)
    assert (found.status, commands_for(found, store)) == ("waiting", [])  # for the time


@pytest.mark.parametrize(
    "waits",
    ["waits for the signal $(reboot)", "waits for the signal a b", "rollcage approve $(reboot)",
     "rollcage approve `x`", "waits for the signal go && reboot"],
)  # fmt: skip
def test_a_forged_reason_becomes_no_command(waits: str, tmp_path: Path) -> None:
    found = Execution("$(x)", "waiting", waits=waits)
    assert commands_for(found, open_store(tmp_path)) == []


def test_findings_exit_with_one(shop: Path) -> None:
    plan = (shop / "orders.yaml").read_text().replace("call: ship", "call: shipp")
    (shop / "orders.yaml").write_text(plan)
    code, said = rollcage("check", "orders.yaml", *TOOLS)
    assert code == 1
    assert "orders.yaml:20: steps.ship.call: there is no tool 'shipp'; did you mean 'ship'?" in said
    found = json.loads(rollcage("check", "orders.yaml", "--json", *TOOLS)[1])
    assert [each["code"] for each in found["findings"]] == ["unknown_tool"]


def test_findings_are_wrapped_on_a_terminal(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = (shop / "orders.yaml").read_text()
    plan = plan.replace("call: ship", "call: no_tool_has_a_name_that_is_as_long_as_this_one_is")
    (shop / "orders.yaml").write_text(plan)
    whole = rollcage("check", "orders.yaml", *TOOLS)[1]
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    monkeypatch.setenv("COLUMNS", "60")
    lines = Text.from_ansi(rollcage("check", "orders.yaml", *TOOLS)[1]).plain.splitlines()
    assert len(lines) > 1
    assert lines[0].startswith("orders.yaml:20: ")
    assert all(len(line) <= 60 for line in lines)
    assert " ".join(line.strip() for line in lines) == whole.strip()


def test_the_example_is_not_written_over_another(shop: Path) -> None:
    with pytest.raises(Exception, match="is there already"):
        rollcage("init")


def test_an_unknown_execution_is_told(shop: Path) -> None:
    with pytest.raises(Exception, match="no execution 'other'"):
        rollcage("show", "other")
    with pytest.raises(Exception, match="NAME=JSON"):
        rollcage("run", "orders.yaml", "x", "--input", "shop", *TOOLS)


@pytest.mark.parametrize("url", ["copied", "sqlite:///copied.db"])
def test_a_copied_execution_has_the_signals_that_were_sent_to_it(shop: Path, url: str) -> None:
    rollcage("run", "orders.yaml", "first", *TOOLS)
    rollcage("signal", "first", "approved", "--data", "true", "--by", "ann")
    for said in ("moved", "already there"):
        command = [sys.executable, "-m", "rollcage", "copy", "--move", "--to", url, "--json"]
        done = subprocess.run(command, cwd=shop, capture_output=True, text=True, check=True)
        assert {run["what"] for run in json.loads(done.stdout)["runs"]} == {said}
    code, said = rollcage("run", "orders.yaml", "first", "--json", "--store", url, *TOOLS)
    assert (code, json.loads(said)["status"]) == (0, "completed")
    copied = {key.split(".", 1)[1] for key in open_store(url).keys("signals")}
    assert copied == {"approved.00000001", "approved.00000001.taken"}


def test_workers_do_what_commands_ask_for(shop: Path) -> None:
    worker = ("--plans", "orders.yaml", *TOOLS, "--every", "0.05")
    assert rollcage("start", "orders", "first", "--by", "carl", "--input", 'shop="corner"')[0] == 0
    assert rollcage("start", "orders", "first", "--by", "carl")[0] == 1
    assert serve("--once", *worker) == 0
    assert status("first") == "waiting"
    assert rollcage("pause", "first", "--by", "ann", "--reason", "lunch")[1] == (
        "first is paused; to go on: rollcage workflow resume first\n"
    )
    rollcage("signal", "first", "approved", "--data", "true", "--by", "ann")
    assert serve("--once", *worker) == 0
    assert status("first") == "paused"
    rollcage("resume", "first", "--by", "ann")
    assert serve("--once", *worker) == 0
    assert status("first") == "completed"
    rollcage("start", "orders", "second", "--by", "carl", "--at", "2000s")
    assert rollcage("cancel", "second", "--by", "ann")[0] == 0
    with pytest.raises(Exception, match="is over: it is completed"):
        rollcage("cancel", "first", "--by", "ann", "--rollback")
    with pytest.raises(Exception, match="2027-01-31T08:00:00Z"):
        rollcage("start", "orders", "third", "--at", "tomorrow")
    assert json.loads(rollcage("reconcile", "--json")[1]) == {"woken": []}
    with pytest.raises(Exception, match="PLAN=5/100/60"):
        serve("--limit", "orders=5/1", *worker)


def serve(*arguments: str) -> int:
    app = Typer()
    app.command()(worker_command)
    done = CliRunner().invoke(app, arguments)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code


def status(id_: str) -> str:
    return str(json.loads(rollcage("show", id_, "--json")[1])["status"])


def told(progress: ProgressTable, times: list[float]) -> None:
    with progress:
        for path, state, time in [("a", "running", 0), ("\x1b[2Jb", "running", 1),
                                  ("a", "completed", 3)]:  # fmt: skip
            times[:] = [time]
            progress.on_step(path, state)
        times[:] = [5]


def test_steps_are_shown_as_they_go_on_a_terminal() -> None:
    shown, times = io.StringIO(), [0.0]
    console = Console(file=shown, force_terminal=True, width=80, highlight=False)
    told(ProgressTable(console, lambda: times[0]), times)
    text = Text.from_ansi(shown.getvalue()).plain
    assert re.search(r"a\s+completed\s+3\.0 s", text)
    assert re.search(r"\\x1b\[2Jb\s+running\s+4\.0 s", text)
    assert "1 running, 1 completed" in text


def test_where_there_is_no_terminal_each_is_a_line() -> None:
    shown = io.StringIO()
    told(ProgressTable(Console(file=shown, width=80)), [0.0])
    assert shown.getvalue() == "a: running\n\\x1b[2Jb: running\na: completed\n"


def test_without_colour_it_is_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    shown = io.StringIO()
    told(ProgressTable(Console(file=shown, force_terminal=True, width=80)), [0.0])
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", shown.getvalue())


def test_the_command_line_starts_at_a_step(shop: Path) -> None:
    (shop / "before.json").write_text('{"orders": [], "reserve": [7, 9], "approved": true}')
    run = ("run", "orders.yaml", "x", "--from", "ship", "--given", "before.json", "--json", *TOOLS)
    found = json.loads(rollcage(*run)[1])
    assert (found["status"], found["start"]) == ("completed", "ship")
    assert found["output"] == {"shipped": "2 orders shipped", "reserved": [7, 9]}
    assert "class ship completed" in rollcage("picture", "orders.yaml", "--id", "x", *TOOLS)[1]
    assert not (shop / "stock.json").exists()
    with pytest.raises(Exception, match="it has to be a table"):
        (shop / "before.json").write_text("[]")
        rollcage(*run)
