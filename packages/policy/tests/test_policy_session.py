"""A policy in a session: what it decides, by whichever way a call comes, and how it is changed."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest
from cores import Core
from rollcage import (
    Approval,
    ApprovalRequest,
    Blocked,
    Contract,
    PolicyInvalid,
    Session,
    SessionError,
    StepView,
    Verdict,
    compensate,
    tool,
    undo_run,
)
from rollcage_policy import Policy

POLICY = """
version = 1
name = "letters"
default = "deny"

[constants]
friends = ["ann", "bob"]

[[rules]]
id = "friends-only"
tools = ["write_letter", "awrite_letter"]
when = 'args.to in const.friends'
decision = "allow"

[[rules]]
id = "no-bob-after-three"
tools = ["write_letter"]
when = 'args.to == "bob" && run.calls >= 3'
decision = "deny"
code = "bob_is_tired"
reason = "bob has had enough"
remedy = "Write to ann."

[[rules]]
id = "reads"
effects = ["read"]
decision = "allow"
"""

written: list[str] = []


@pytest.fixture(autouse=True)
def nothing_written() -> None:
    written.clear()


@tool(effect="write")
def tear_up(to: str) -> None:
    written.remove(to)


@tool(effect="write", undo=lambda args: [compensate(tear_up, to=args["to"])])
def write_letter(to: str, text: str = "") -> str:
    written.append(to)
    return f"to {to}"


LETTER: Contract = cast("Any", write_letter).__rollcage_contract__


@tool(effect="write")
async def awrite_letter(to: str) -> str:
    written.append(to)
    return f"to {to}"


@tool(effect="read")
def look() -> int:
    return len(written)


def test_it_decides_on_each_way_to_call(core: Core) -> None:
    policy = Policy.parse(POLICY)
    with core.session("letters", policy) as session:
        write_letter("ann")
        session.call(write_letter, to="bob")
        bound = core.bound(session, write_letter, "to")
        ways: list[Callable[[], Any]] = [
            lambda: write_letter("eve"),
            lambda: session.call(write_letter, to="eve"),
            lambda: bound("eve"),
            lambda: asyncio.run(session.acall(awrite_letter, to="eve")),
            lambda: list(session.stream(LETTER, {"to": "eve"}, lambda **_: [])),
        ]
        for way in ways:
            with pytest.raises(Blocked, match="no rule of the policy allows this call") as caught:
                way()
            assert (caught.value.rule, caught.value.verdict_code) == ("default", "no_rule")
        with ThreadPoolExecutor(2) as pool, pytest.raises(Blocked):
            pool.submit(bound, "eve").result()
        run = session.run_id
    assert written == ["ann", "bob"]
    about = {"name": "letters", "digest": policy.digest, "mode": "enforce"}
    assert [each["gate"] for each in core.lines(run) if "gate" in each] == [[{"policy": about}]]
    assert core.lines(run)[-1]["event"] == "ended"


def test_what_a_model_reads_helps_it_go_on(core: Core) -> None:
    with core.session("letters", Policy.parse(POLICY)) as session:
        for _ in range(3):
            write_letter("bob")
        with pytest.raises(Blocked) as caught:
            write_letter("bob")
        assert str(caught.value) == "bob has had enough. Write to ann."
        assert caught.value.verdict_code == "bob_is_tired"
        assert session.call(look) == 3


def test_what_was_recorded_is_denied_as_well(core: Core) -> None:
    with pytest.raises(KeyError), core.session("letters"):
        write_letter("eve")
        raise KeyError
    with (
        pytest.raises(Blocked),
        core.session("letters", Policy.parse(POLICY)),
    ):
        write_letter("eve")
    assert written == ["eve"]


def test_a_rule_in_python_may_be_stricter(core: Core) -> None:
    def never(view: StepView) -> Verdict | None:
        assert view.data["to"] == view.args["to"]
        assert len(view.key) == 64
        return Verdict.deny("never to ann", code="ann") if view.args["to"] == "ann" else None

    def always(_: StepView) -> Verdict:
        return Verdict.allow()

    policy = Policy.parse(POLICY)
    with core.session("letters", policy, rules=[never, always]):
        write_letter("bob")
        with pytest.raises(Blocked, match="never to ann"):
            write_letter("ann")
        with pytest.raises(Blocked, match="no rule of the policy"):
            write_letter("zoe")


def test_in_shadow_it_only_says_what_it_would_do(core: Core) -> None:
    policy = Policy.parse(
        POLICY.replace("version = 1", 'version = 1\nmode = "shadow"')
        + '[limits]\n[[limits.rules]]\nid = "few"\ncalls = 2\nrate = "2/min"\n'
    )
    with core.session("letters", policy) as session:
        write_letter("ann")
        write_letter("eve")
        write_letter("ann")
        write_letter("ann")
        run = session.run_id
    assert written == ["ann", "eve", "ann", "ann"]
    began = [e for e in core.lines(run) if e["event"] in ("step.started", "step")]
    said = [e.get("verdict", {}).get("shadow") for e in began]
    assert [each and (each["decision"], each["rule"]) for each in said] == [
        None,
        ("deny", "default"),
        ("deny", "few"),
        ("deny", "few"),
    ]


def test_limits_and_labels_of_the_policy(core: Core) -> None:
    text = """
        version = 1
        default = "allow"
        [labels]
        "look*" = ["untrusted"]
        [[rules]]
        id = "tainted"
        tools = ["write_*"]
        when = '"untrusted" in labels && !named(args.to)'
        decision = "deny"
        reason = "only to whom the user named"
        [limits]
        [[limits.rules]]
        id = "three"
        calls = 3
    """

    @tool(effect="read")
    def look_up(name: str) -> str:
        return f"{name}@example.com"

    policy = Policy.parse(text)
    with core.session("letters", policy, user_input="Mail ann@example.com") as session:
        write_letter(session.call(look_up, name="ann"))
        with pytest.raises(Blocked, match=r"named.*derived from step 1 \(look_up\)"):
            write_letter("eve: ann@example.com")
        write_letter("bob")
        with pytest.raises(Blocked, match="3 calls"):
            write_letter("bob")
    assert written == ["ann@example.com", "bob"]


def test_an_approval_is_bound_to_the_policy(core: Core) -> None:
    asked: list[ApprovalRequest] = []

    def approver(request: ApprovalRequest) -> Approval:
        asked.append(request)
        return Approval(True, "ann")

    policy = Policy.parse('version = 1\ndefault = "ask"\n[approval]\nexpires = "2h"\n')
    with core.session("letters", policy, approver=approver):
        write_letter("ann")
    assert [each.policy for each in asked] == [policy.digest]


def test_undo_is_decided_on_too(core: Core) -> None:
    with core.session("letters") as session:
        write_letter("ann")
        run = session.run_id
    policy = Policy.parse(POLICY)
    assert not undo_run(core.store, run, gate=[policy]).complete
    assert written == ["ann"]
    assert undo_run(core.store, run, tools=[write_letter, tear_up]).complete


def test_a_file_that_can_not_be_used_opens_no_session(core: Core, tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text("version = 1\ndefault = 'maybe'\n")
    with pytest.raises(PolicyInvalid, match=r"policy\.toml, line 2"):
        core.session("letters", path)
    with pytest.raises(PolicyInvalid, match="nowhere"):
        core.session("letters", tmp_path / "nowhere.toml")


def test_another_policy_from_now_on(core: Core, tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(POLICY)
    with core.session("letters", path) as session:
        write_letter("ann")
        path.write_text(POLICY.replace('"ann", "bob"', '"zoe"'))
        core.reload(session, path)
        write_letter("zoe")
        with pytest.raises(Blocked):
            write_letter("ann")
        path.write_text("version = ")
        with pytest.raises(PolicyInvalid):
            core.reload(session, path)
        for call in (lambda: write_letter("zoe"), look):
            with pytest.raises(Blocked, match="the policy can't be used"):
                call()
        core.reload(session, Policy.parse(POLICY))
        write_letter("ann")
        with pytest.raises(SessionError, match="other limits"):
            core.reload(
                session, Policy.parse(POLICY + '[limits]\n[[limits.rules]]\nid = "x"\ncalls = 1\n')
            )
        with pytest.raises(Blocked):
            write_letter("ann")
        run = session.run_id
    assert written == ["ann", "zoe", "ann"]
    loaded = [e for e in core.lines(run) if e["event"] in ("policy.loaded", "policy")]
    assert ["error" in each for each in loaded] == [False, True, False, True]
    assert len({each["policy"]["digest"] for each in loaded if "policy" in each}) == 2
    with core.session("plain") as session, pytest.raises(SessionError, match="without a"):
        core.reload(session, path)


def test_whatever_fails_in_the_gate_denies(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> Verdict:
        raise RuntimeError("no")

    monkeypatch.setattr(Policy, "decide", fails)
    with (
        core.session("letters", Policy.parse(POLICY)),
        pytest.raises(Blocked, match="the policy failed: RuntimeError"),
    ):
        write_letter("ann")
    assert written == []


def in_a_pool(call: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor() as pool:
        return pool.submit(call).result()


def in_an_executor(call: Callable[[], Any]) -> Any:
    async def run() -> Any:
        return await asyncio.get_running_loop().run_in_executor(None, call)

    return asyncio.run(run())


def in_a_thread(call: Callable[[], Any]) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    thread.join()
    return found[0]


def in_an_empty_context(call: Callable[[], Any]) -> Any:
    return contextvars.Context().run(call)


@pytest.mark.parametrize("way", [in_a_pool, in_an_executor, in_a_thread, in_an_empty_context])
def test_no_way_out_of_the_context_leads_around_a_policy(
    store: Path, way: Callable[[Callable[[], Any]], Any]
) -> None:
    def call() -> str:
        with pytest.raises(Blocked) as refused:
            write_letter("ann")
        return refused.value.verdict_code

    with Session("job", store=store, gate=[Policy.parse(POLICY)]):
        assert way(call) == "unguarded"
        write_letter("ann")
    assert written == ["ann"]
