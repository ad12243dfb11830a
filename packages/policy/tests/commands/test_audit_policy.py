"""What an audit tells of policies, and that a recorded decision can be checked again."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rollcage import Approval, ApprovalRequest, Blocked, Session, open_store, tool
from rollcage.errors import PolicyInvalid
from rollcage.trace.recorded import trace_of
from rollcage_policy import DetectedSecrets, Policy, Rerun, UserInput, reload_policy
from rollcage_views import read_run

Cli = Callable[..., Any]
FORMATS = ("table", "jsonl", "csv", "md", "html")
NAMED = (
    'version = 1\nname = "mine"\ndefault = "allow"\n'
    '[[rules]]\nid = "not-named"\ndecision = "deny"\n'
    'reason = "the user named somebody else"\nwhen = "!named(args.to)"\n'
)


@tool
def send(to: str) -> str:
    return f"sent {to}"


@tool(effect="read", on_drift="report")
def count(to: str) -> int:
    return f"many {to}"  # type: ignore[return-value] # it breaks what it says  # pyright: ignore[reportReturnType] - wrong on purpose


def policy(decision: str, mode: str = "enforce", name: str = "mine") -> Policy:
    return Policy.parse(
        f'version = 1\nname = "{name}"\ndefault = "allow"\nmode = "{mode}"\n'
        f'[[rules]]\nid = "look"\ndecision = "{decision}"\nreason = "look at it first"\n'
        f'tools = ["send"]\n'
    )


@pytest.fixture
def audit(cli: Cli) -> Cli:
    """An audit in one format; of JSON Lines, the entries."""

    def audit(form: str = "jsonl", *arguments: object) -> Any:
        written = ("--html", "-") if form == "html" else ("--format", form)
        result = cli("audit", *arguments, *written)
        assert result.code == 0, result.err
        if form != "jsonl":
            return result.out.replace("&#64;", "@").replace("\\_", "_").replace("&quot;", '"')
        return [json.loads(line) for line in result.out.splitlines()][:-1]

    return audit


@pytest.mark.parametrize("form", FORMATS)
def test_what_a_policy_that_is_tried_out_would_have_done(
    store: Path, audit: Cli, form: str
) -> None:
    with Session("job", store=store, gate=[policy("deny", "shadow")]):
        send("ann")
    told = audit(form)
    if form == "jsonl":
        assert {k: told[0][k] for k in told[0] if k.startswith("shadow")} == {
            "shadow": "deny",
            "shadow_rule": "look",
            "shadow_code": "denied",
            "shadow_reason": "look at it first",
        }
        assert (told[0]["decision"], told[0]["policy_mode"]) == ("allow", "shadow")
    else:
        assert "look at it first" in told
        assert "deny" in told


@pytest.mark.parametrize("form", FORMATS)
def test_under_which_policy_each_call_was_decided(store: Path, audit: Cli, form: str) -> None:
    first, second = policy("allow"), policy("allow", name="second")
    with Session("job", store=store, gate=[first]) as session:
        send("ann")
        reload_policy(session, second)
        send("bob")
        with pytest.raises(PolicyInvalid, match="no-such"):
            reload_policy(session, "no-such-file.toml")
        with pytest.raises(Blocked):
            send("carl")
    told = audit(form)
    if form == "jsonl":
        calls = [(e["policy"], e["policy_digest"]) for e in told if e["kind"] == "call"]
        assert calls == [("mine", first.digest), ("second", second.digest), ("", "")]
        loaded = [(e["policy"], e["state"]) for e in told if e["kind"] == "policy"]
        assert loaded == [("second", "enforce"), ("", "refused")]
    elif form == "csv":
        assert first.digest in told
        assert second.digest in told
    else:
        assert f"mine@{first.digest[:12]}" in told
        assert f"second@{second.digest[:12]}" in told


@pytest.mark.parametrize("form", FORMATS)
def test_with_what_a_call_was_asked_for_that_an_approver_edited(
    store: Path, audit: Cli, form: str
) -> None:
    def approver(request: ApprovalRequest) -> Approval:
        return Approval.edit({"to": "ann"}, by="bob")

    with Session("job", store=store, gate=[policy("ask")], approver=approver):
        assert send("mallory") == "sent ann"
    told = audit(form)
    if form == "jsonl":
        assert {e["kind"]: (e["args"], e["args_before"]) for e in told} == {
            "approval": ('to="ann"', 'to="mallory"'),
            "call": ('to="ann"', 'to="mallory"'),
        }
    else:
        assert told.count("mallory") == 2


@pytest.mark.parametrize("form", FORMATS)
def test_how_an_output_drifted(store: Path, audit: Cli, form: str) -> None:
    with Session("job", store=store):
        count("ann")
    told = audit(form)
    if form == "jsonl":
        assert told[0]["drift"].startswith("output_wrong_type at $, reported only: ")
    else:
        assert "output_wrong_type" in told


@pytest.mark.parametrize("form", FORMATS)
def test_what_the_user_said(store: Path, audit: Cli, form: str) -> None:
    with Session("job", store=store, gate=[UserInput("Write to ann", "and to bob")]):
        send("ann")
    told = audit(form)
    if form == "jsonl":
        assert [(e["kind"], e["args"]) for e in told] == [
            ("user_input", "Write to ann / and to bob"),
            ("call", 'to="ann"'),
        ]
    else:
        assert "Write to ann / and to bob" in told


# --- checked again -------------------------------------------------------------------------------


def decisions(store: Path, run: str, **options: Any) -> list[str | None]:
    own = open_store(store)

    def blob(digest: str) -> bytes:
        return own.get("blobs", digest) or b""

    judged = Rerun(Policy.parse(NAMED), **options).over(read_run(trace_of(own, run)), blob)
    return [None if each.now is None else each.now.decision for each in judged]


@pytest.mark.parametrize("long", ["", " and so on" * 10_000], ids=["short", "long"])
def test_a_decision_by_the_user_input_can_be_checked_again(store: Path, long: str) -> None:
    with Session(
        "job", store=store, gate=[Policy.parse(NAMED), UserInput(f"to ann{long}")]
    ) as session:
        send("ann")
        with pytest.raises(Blocked):
            send("mallory")
    assert decisions(store, session.run_id) == ["allow", "deny"]
    assert decisions(store, session.run_id, user_input="to mallory") == ["deny", "allow"]
    with Session("other", store=store) as session:
        send("ann")
    assert decisions(store, session.run_id) == [None]  # the session was given no user input


def test_the_workbench_takes_what_is_recorded(store: Path, cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(NAMED)
    with Session("job", store=store, gate=[UserInput("to ann")]) as session:
        send("ann")
        send("mallory")
    result = cli("policy", "replay", path, session.run_id, "--json")
    told = [json.loads(line) for line in result.out.splitlines()]
    assert [(each["step"], each["now"]["decision"]) for each in told[:-1]] == [(2, "deny")]


def test_a_credential_in_what_the_user_said_never_reaches_the_disk(store: Path) -> None:
    pytest.importorskip("detect_secrets")
    key = "AKIA" + "IOSFODNN7EXAMPLE"
    with Session(
        "job", store=store, gate=[UserInput(f"use {key} for ann")], stages=[DetectedSecrets()]
    ) as session:
        send("ann")
    assert key.encode() not in trace_of(store, session.run_id).data
    assert decisions(store, session.run_id) == ["allow"]


@pytest.mark.parametrize(
    ("arguments", "left"),
    [((), True), (("--redact", "to"), False), (("--no-values",), False)],
)
def test_an_export_tells_it_no_more_than_the_rest(
    store: Path, cli: Cli, tmp_path: Path, arguments: tuple[str, ...], *, left: bool
) -> None:
    shadow = Policy.parse(
        'version = 1\ndefault = "allow"\nmode = "shadow"\n[[rules]]\nid = "a"\ndecision = "deny"\n'
        'reason = "not mallory"\nremedy = "somebody but mallory"\n'
    )
    with Session("job", store=store, gate=[UserInput("write to mallory"), shadow]) as session:
        send("mallory")
    exported = cli("export", session.run_id, *arguments)
    assert exported.code == 0, exported.err
    assert ("mallory" in exported.out) is left
    path = tmp_path / f"{session.run_id}.jsonl"
    path.write_text(exported.out)
    assert cli("verify", path).code == 0
