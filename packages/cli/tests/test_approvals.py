"""`rollcage approvals`, `approve`, `reject`, `respond`: a run that waits goes on by their word."""

import getpass
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from rollcage import (
    ApprovalRequired,
    QueueApprover,
    Session,
    StepView,
    Verdict,
    open_store,
    tool,
)
from rollcage.trace.store import every_key

Cli = Callable[..., Any]
WAITING = """
import sys
from rollcage import Verdict, tool
from rollcage import QueueApprover
from rollcage import Session

store = sys.argv[1]

@tool(secret=["pin"])
def pay(to: str, amount: int, pin: str = "pin-4711") -> str:
    return f"paid {amount} to {to}"

def asks(step):
    return Verdict.ask("who is that?")

with Session("job", store=store, gate=[asks], approver=QueueApprover(store), actor="carl"):
    print(pay("bob", 500))
"""


@pytest.fixture
def job(store: Path) -> Callable[[], "subprocess.CompletedProcess[str]"]:
    """A real process whose one call has to be approved."""

    def run() -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-c", WAITING, str(store)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    return run


Job = Callable[[], "subprocess.CompletedProcess[str]"]


@pytest.fixture
def request_id(job: Job, store: Path) -> str:
    """The id of the request that such a process left."""
    assert job().returncode == 1
    (key,) = every_key(open_store(store), "requests")
    return key


def test_nothing_waits_where_nothing_is(cli: Cli, store: Path) -> None:
    result = cli("approvals")
    assert (result.code, result.out) == (0, "Nothing waits for approval.\n")
    assert not store.exists()
    assert cli("approvals", "--json").data["approvals"] == []


def test_what_waits_is_listed(cli: Cli, request_id: str) -> None:
    out = cli("approvals").out
    assert request_id in out
    assert 'pay(amount=500, pin=<secret>, to="bob")' in out
    assert "waiting" in out
    assert "who is that?" in out
    (data,) = cli("approvals", "--json").data["approvals"]
    assert (data["id"], data["state"], data["name"]) == (request_id, "waiting", "pay")
    assert data["requested_by"] == "carl"
    assert "pin-4711" not in str(data)


def test_one_is_shown_in_full(cli: Cli, request_id: str) -> None:
    out = cli("approvals", request_id[:5]).out
    assert f"id        {request_id}\n" in out
    assert "asked by  carl\n" in out
    cli("approve", request_id, "--set", "amount=5", "--by", "ann", "--reason", "less is more")
    out = cli("approvals", request_id).out
    assert "decision  edited by ann, " in out
    assert "reason    less is more\n" in out
    assert "edited    " in out
    assert cli("approvals", request_id, "--json").data["decision"]["args"]["amount"] == 5


@pytest.mark.parametrize(
    ("command", "printed"),
    [
        (["approve"], "paid 500 to bob"),
        (["approve", "--edit", '{"to": "eve", "amount": 5}'], "paid 5 to eve"),
        (["approve", "--set", "amount=7"], "paid 7 to bob"),
        (["approve", "--edit", '{"to": "eve"}', "--set", "amount=7"], "paid 7 to eve"),
        (["respond", "--value", '"paid in cash"'], "paid in cash"),
    ],
    ids=str,
)
def test_the_run_goes_on_by_the_decision(
    cli: Cli, job: Job, request_id: str, command: list[str], printed: str
) -> None:
    name, *options = command
    result = cli(name, request_id[:6], *options, "--by", "ann")
    assert result.code == 0, result.err
    assert "by ann" in result.out
    resumed = job()
    assert (resumed.returncode, resumed.stdout) == (0, f"{printed}\n")
    assert cli("approvals").out == "Nothing waits for approval.\n"
    assert cli("verify", "@job").code == 0


def test_a_rejection_reaches_the_model(cli: Cli, job: Job, request_id: str) -> None:
    result = cli("reject", request_id, "--reason", "bob is nobody", "--json")
    assert (result.code, result.data["decision"]["by"]) == (0, getpass.getuser())
    assert "Blocked: bob is nobody" in job().stderr


def test_an_answer_is_shown(cli: Cli, request_id: str) -> None:
    said = cli("respond", request_id, "--value", "[1, 2]", "--json").data["decision"]
    assert (said["decision"], said["value"]) == ("responded", [1, 2])
    assert "response  [1, 2]\n" in cli("approvals", request_id).out


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["approve", "ffff"], "no request begins with 'ffff'"),
        (["approve", "ID", "--edit", "{"], "--edit is not JSON"),
        (
            ["approve", "ID", "--edit", "[" * 100_000],
            "--edit is not JSON: it is too deep",
        ),
        (["approve", "ID", "--edit", "[1]"], "--edit is not a JSON object"),
        (["approve", "ID", "--set", "amount"], "is not NAME=JSON"),
        (["approve", "ID", "--set", "to=bob"], "--set to is not JSON"),
        (["approve", "ID", "--set", 'pin="0000"'], "holds a secret"),
        (["approve", "ID", "--by", "carl"], "another person has to"),
        (["respond", "ID", "--value", "later"], "--value is not JSON"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_what_makes_no_sense_is_refused(
    cli: Cli, request_id: str, command: list[str], message: str
) -> None:
    result = cli(*[request_id if word == "ID" else word for word in command])
    assert (result.code, result.out) == (2, "")
    assert message in result.err
    assert cli("approvals", "--json").data["approvals"][0]["state"] == "waiting"


def test_what_was_decided_stays_so(cli: Cli, request_id: str) -> None:
    assert cli("reject", request_id, "--by", "ann").code == 0
    again = cli("approve", request_id)
    assert (again.code, "was decided already" in again.err) == (2, True)


def test_an_id_that_means_two_is_refused(cli: Cli, store: Path) -> None:
    for name in ("aa" * 8, "ab" * 8):
        open_store(store).swap("requests", name, None, b"{}")
    assert "means 2 requests" in cli("approve", "a").err


def test_a_damaged_request_is_reported_and_never_approved(
    cli: Cli, request_id: str, store: Path
) -> None:
    own = open_store(store)
    seen = own.get("requests", request_id) or b""
    own.swap("requests", request_id, seen, seen.replace(b"500", b"501"))
    changed = cli("approve", request_id, "--by", "ann")
    assert (changed.code, "its request was changed" in changed.err) == (3, True)
    own.swap("requests", request_id, own.get("requests", request_id), b"nonsense")
    listed = cli("approvals")
    assert (listed.code, "damaged: " in listed.out) == (3, True)
    assert request_id in cli("approvals", "--json").data["damaged"]
    assert cli("approve", request_id).code == 3
    assert cli("approvals", request_id).code == 3


def test_a_model_can_not_act_on_the_terminal(cli: Cli, store: Path, evil: str) -> None:
    @tool
    def say(text: str) -> str:
        return text

    def asks(step: StepView) -> Verdict:
        return Verdict.ask(f"{evil}{step.name}")

    approver = QueueApprover(store)
    with (
        pytest.raises(ApprovalRequired),
        Session("job", store=store, gate=[asks], approver=approver),
    ):
        say(evil)
    (one,) = cli("approvals", "--json").data["approvals"]
    for out in (cli("approvals").out, cli("approvals", one["id"]).out):
        assert all(character.isprintable() or character == "\n" for character in out)


def test_what_was_decided_is_exported_without_what_it_tells(
    cli: Cli, job: Job, request_id: str, tmp_path: Path
) -> None:
    cli("approve", request_id, "--set", "amount=5", "--by", "ann")
    job()
    exported = cli("export", "@job", "--no-values")
    assert exported.code == 0, exported.err
    events = [orjson.loads(line) for line in exported.out.splitlines()]
    assert "bob" not in exported.out
    assert request_id not in exported.out
    kinds = {each["event"]: each for each in events}
    asked, said = kinds["requested"], kinds["decided"]
    assert (asked["id"], asked["step"]) == (said["id"], said["step"])
    path = tmp_path / f"{events[0]['run']}.jsonl"
    path.write_text(exported.out)
    assert cli("verify", path).code == 0


def test_a_refused_run_is_still_one_that_verifies(cli: Cli, job: Job, request_id: str) -> None:
    cli("reject", request_id)
    job()
    assert cli("verify", "@job").code == 0
    assert cli("show", "@job").code == 0


@pytest.mark.parametrize("name", ["", " ", "an\u200bn", "\u202eann"])
def test_who_decides_is_named(cli: Cli, request_id: str, name: str) -> None:
    refused = cli("approve", request_id, "--by", name)
    assert refused.code == 2
    assert "--by NAME" in refused.err
    assert cli("approvals", "--json").data["approvals"][0]["state"] == "waiting"
