"""The gate: deny over ask over allow, and whatever goes wrong in a rule denies."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rollcage import ApprovalRequired, Blocked, Contract, Rule, Session, SessionHalted, tool
from rollcage.gate import StepView, Verdict, decide

ran: list[str] = []


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()


@tool(effect="write", risk="high", permissions=["disk"])
def write(path: str, count: int = 1) -> str:
    ran.append(path)
    return f"wrote {path}"


def view(**how: Any) -> StepView:
    given_ = {"kind": "tool", "contract": Contract.of(write), "args": {}, "agent": "", "branch": ""}
    return StepView(**{**given_, "calls": 0, **how})


def abstain(_: StepView) -> None: ...
def allow(_: StepView) -> Verdict:
    return Verdict.allow("fine")


def ask(_: StepView) -> Verdict:
    return Verdict.ask("is it right?")


def deny(_: StepView) -> Verdict:
    return Verdict.deny("not on Sundays", code="sunday")


def other_deny(_: StepView) -> Verdict:
    return Verdict("deny", "not ever", "never", rule="house.rules/7")


# --- the decision --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "decision", "rule"),
    [
        ([], "allow", ""),
        ([abstain], "allow", ""),
        ([abstain, allow], "allow", "allow"),
        ([allow, ask], "ask", "ask"),
        ([ask, allow], "ask", "ask"),
        ([ask, deny, allow], "deny", "deny"),
        ([deny, other_deny], "deny", "deny"),
        ([other_deny, deny], "deny", "house.rules/7"),
    ],
)
def test_deny_is_over_ask_over_allow_and_the_first_of_equals_counts(
    rules: list[Rule], decision: str, rule: str
) -> None:
    found = decide(view(), rules)
    assert (found.decision, found.rule) == (decision, rule)


@given(st.lists(st.sampled_from([abstain, allow, ask, deny, other_deny]), max_size=6))
def test_no_order_of_rules_gets_past_a_deny(rules: list[Rule]) -> None:
    strongest = "deny" if {deny, other_deny} & {*rules} else "ask" if ask in rules else "allow"
    assert decide(view(), rules).decision == strongest


def raises(_: StepView) -> Verdict:
    raise KeyError("the secret word")


async def waits(_: StepView) -> Verdict:
    return Verdict.allow()


class Truthy:
    def __call__(self, _: StepView) -> bool:
        return True


@pytest.mark.parametrize(
    ("rule", "code", "reason", "name"),
    [
        (raises, "rule_error", "a rule failed: KeyError", "raises"),
        (Truthy(), "rule_invalid", "a rule returned no verdict", "Truthy"),
        (waits, "rule_invalid", "a rule is async: make it a plain function", "waits"),
        (
            lambda _: Verdict(cast("Any", "maybe")),
            "rule_invalid",
            "a rule returned no verdict",
            None,
        ),
        (lambda _: Verdict(cast("Any", [])), "rule_error", "a rule failed: TypeError", None),
        (
            lambda _: Verdict("allow", cast("Any", 5)),
            "rule_invalid",
            "a rule returned no verdict",
            None,
        ),
        (lambda _: "allow", "rule_invalid", "a rule returned no verdict", None),
    ],
)
def test_a_rule_that_fails_or_gives_no_verdict_denies(
    rule: Any, code: str, reason: str, name: str | None
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = decide(view(), [allow, rule, allow])
    assert (found.decision, found.code, found.reason) == ("deny", code, reason)
    assert name is None or found.rule == name


def test_a_rule_may_stop_the_program() -> None:
    def stop(_: StepView) -> Verdict:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        decide(view(), [stop])


# --- in a session --------------------------------------------------------------------------------


@pytest.fixture
def session(tmp_path: Path) -> Callable[..., Session]:
    def make(*rules: Rule, replay: Any = "auto") -> Session:
        return Session("job", store=tmp_path, gate=rules, replay=replay)

    return make


def test_a_rule_sees_the_validated_arguments_and_the_contract(session: Any) -> None:
    seen: list[StepView] = []

    with session(seen.append) as opened:
        opened.call(write, path="a", count="3")
        with opened.branch("left"), opened.place(agent="ann"):
            write("b")
    first, second = seen
    assert first.args == {"path": "a", "count": 3}
    assert (first.kind, first.name, first.effect) == ("tool", "write", "write")
    assert (first.contract.risk, first.contract.permissions) == ("high", ("disk",))
    assert (first.agent, first.calls) == ("", 0)
    assert (second.agent, second.calls) == ("ann", 1)
    assert first.branch == "" != second.branch


def test_a_rule_can_not_change_what_runs(session: Any) -> None:
    def change(step: StepView) -> None:
        cast("dict[str, Any]", step.args)["path"] = "/etc/passwd"

    with session(change) as opened, pytest.raises(Blocked, match="a rule failed: TypeError"):
        opened.call(write, path="a")
    assert ran == []


def test_a_denied_call_does_not_run_and_the_trace_says_who_said_so(session: Any) -> None:
    with session(deny) as opened:
        with pytest.raises(Blocked, match="not on Sundays") as caught:
            opened.call(write, path="a")
        assert opened.halted is None  # a model reads the reason, and goes on
    assert (caught.value.rule, caught.value.verdict_code) == ("deny", "sunday")
    assert ran == []
    assert opened.stats.blocked == 1


def test_ask_halts_the_session_until_somebody_can_answer(session: Any) -> None:
    with pytest.raises(ApprovalRequired, match=r"write needs an approval \(is it right"):  # noqa: SIM117 - what it leaves with
        with session(ask) as opened:
            with pytest.raises(ApprovalRequired):
                opened.call(write, path="a")
            with pytest.raises(SessionHalted):
                opened.call(write, path="b")
    assert ran == []


def test_deny_wins_over_a_recorded_result_and_ask_does_not(session: Any) -> None:
    with session() as opened:
        opened.call(write, path="a")
    with session(ask, replay="resume") as opened:
        assert opened.call(write, path="a") == "wrote a"  # it has happened: nothing to approve
    with session(deny, replay="resume") as opened, pytest.raises(Blocked):
        opened.call(write, path="a")
    assert ran == ["a"]


def test_offline_gives_a_recorded_block_again(session: Any) -> None:
    with session(deny) as opened, pytest.raises(Blocked):
        opened.call(write, path="a")
    with (
        session(replay="offline") as opened,
        pytest.raises(Blocked, match="not on Sundays") as caught,
    ):
        opened.call(write, path="a")
    assert (caught.value.rule, caught.value.verdict_code) == ("deny", "sunday")


async def test_an_async_call_is_asked_about_too(session: Any) -> None:
    @tool
    async def send(to: str) -> None:
        ran.append(to)

    async with session(deny) as opened:
        with pytest.raises(Blocked):
            await opened.acall(send, to="ann")
    assert ran == []
