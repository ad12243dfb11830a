"""A policy decides the same in every framework: live or recorded, and after any failure."""

from pathlib import Path
from typing import Any, Final

import pytest
from rollcage import (
    Approval,
    ApprovalRequest,
    Blocked,
    Diverged,
    PolicyInvalid,
    Session,
    StepView,
    Verdict,
)
from rollcage_policy import Policy, reload_policy

from rollcage_conformance.scenario import Message, Scenario, ToolCall, ToolSpec
from rollcage_conformance.stage import Mode, Replay, Stage
from rollcage_conformance.suite import Suite, needs
from rollcage_conformance.tools import LOOK, ORDER, SEND, notes

__all__ = ["ERRANDS", "PolicySuite"]

ERRANDS: Final = """
version = 1
name = "errands"
default = "deny"

[constants]
most = 3

[[rules]]
id = "texts"
tools = ["send"]
decision = "allow"

[[rules]]
id = "no-shouting"
tools = ["send"]
when = 'args.text.matches("^[A-Z]+$")'
decision = "deny"
code = "shouting"
reason = "texts in capitals are not sent"
remedy = "Write it in small letters."

[[rules]]
id = "looking"
effects = ["read"]
decision = "allow"

[[rules]]
id = "small-orders"
tools = ["order"]
when = 'args.count <= const.most && args.unit == "box"'
decision = "allow"

[[rules]]
id = "models"
kinds = ["model"]
decision = "allow"
"""

SAID: Final = "texts in capitals are not sent. Write it in small letters."

ASKING: Final = """
[[rules]]
id = "reading"
tools = ["send"]
decision = "ask"
code = "to_be_read"
reason = "somebody has to read this first"
[approval]
approvers = ["ann"]
"""

FAILING: Final = (
    'args.nothing == "a"',
    "args.text > 3",
    "args.text",
    "within(args.text, args.text)",
    "named(args.text)",
)

NO_MODELS: Final = """
version = 1
default = "allow"

[[rules]]
id = "no-models"
kinds = ["model"]
decision = "deny"
reason = "no model is asked today"
"""


def not_today(step: StepView) -> Verdict | None:
    """Return a rule in Python, besides the policy."""
    return Verdict.deny("not today", code="today") if step.name == "send" else None


def rubbish(_: StepView) -> Any:
    """Return something that is no rule."""
    return True


def shouting(*more: Message) -> Scenario:
    """Return an agent that shouts, reads why it may not, and continues."""
    script: list[Message] = [[("send", {"text": "LOUD"})], [("send", {"text": "quiet"})], *more]
    return Scenario([SEND, LOOK, ORDER], [*script, "all done"])


def ruling(rule: str, *, mode: str = "enforce") -> Policy:
    """Return a policy that allows everything, with one more rule, or with a table of limits."""
    return Policy.parse(f'version = 1\nname = "one"\nmode = "{mode}"\ndefault = "allow"\n{rule}')


class PolicySuite(Suite):
    """Policy files: denials, conditions, replays, failures, shadow mode, streams, outputs."""

    def test_a_policy_file_denies_and_the_model_goes_on(
        self, stage: Stage, mode: Mode, tmp_path: Path
    ) -> None:
        file = tmp_path / "policy.toml"
        file.write_text(ERRANDS, encoding="utf-8")
        played = stage.play(shouting([("look", {"place": "b"})]), mode, gate=[Policy.load(file)])
        assert played.error is None
        assert played.result.text == "all done"
        assert played.ran == ("send", "look")
        assert SAID in played.seen[0][0]
        assert played.seen[1:] == [("sent quiet",), ("saw b",)]
        assert played.how == ["blocked", "ran", "ran"]
        verdict = played.steps[0]["verdict"]
        assert (verdict["rule"], verdict["code"]) == ("no-shouting", "shouting")
        policy = Policy.parse(ERRANDS)
        expected = {"name": "errands", "digest": policy.digest, "mode": "enforce"}
        assert played.of("attempt")[0]["gate"] == [{"policy": expected}]

    @needs("parallel")
    def test_a_policy_decides_on_each_call_of_a_turn(self, stage: Stage, mode: Mode) -> None:
        calls: list[ToolCall] = [
            ("send", {"text": "LOUD"}),
            ("send", {"text": "quiet"}),
            ("look", {"place": "b"}),
            ("order", {"count": 9}),
        ]
        scenario = Scenario([SEND, LOOK, ORDER], [calls, "all done"])
        played = stage.play(scenario, mode, gate=[Policy.parse(ERRANDS)])
        assert played.error is None
        assert sorted(played.ran) == ["look", "send"]
        assert played.how == ["blocked", "ran", "ran", "blocked"]
        assert SAID in played.seen[0][0]
        assert played.seen[0][1:3] == ("sent quiet", "saw b")
        rules = [step["verdict"]["rule"] for step in played.steps if step["how"] == "blocked"]
        assert rules == ["no-shouting", "default"]

    def test_a_condition_sees_the_validated_arguments(self, stage: Stage, mode: Mode) -> None:
        script: list[Message] = [[("order", {"count": "3"})], [("order", {"count": "4"})]]
        scenario = Scenario([ORDER], [*script, "all done"])
        played = stage.play(scenario, mode, gate=[Policy.parse(ERRANDS)])
        assert played.error is None
        assert played.ran == ("order",)
        assert played.how == ["ran", "blocked"]
        assert played.steps[1]["verdict"]["rule"] == "default"

    @pytest.mark.parametrize("replay", ["resume", "continue"])
    def test_a_deny_wins_over_a_recorded_result(
        self, stage: Stage, mode: Mode, replay: Replay
    ) -> None:
        recorded = stage.play(shouting(), mode)
        assert recorded.seen[0] == ("sent LOUD",)
        again = stage.play(shouting(), mode, replay=replay, gate=[Policy.parse(ERRANDS)])
        assert again.how[0] == "blocked"
        assert again.steps[0]["verdict"]["rule"] == "no-shouting"
        assert SAID in again.seen[0][0]
        assert again.ran == ()
        assert isinstance(again.error, Diverged)  # the recorded effect still exists

    def test_what_a_policy_denied_is_denied_in_replay_and_runs_where_it_may(
        self, stage: Stage, mode: Mode
    ) -> None:
        how: dict[str, Any] = {"gate": [Policy.parse(ERRANDS)]}
        denied = stage.play(shouting(), mode, **how)
        for replay in ("resume", "offline"):
            again = stage.play(shouting(), mode, replay=replay, source=denied.run, **how)
            assert (again.error, again.ran, again.seen) == (None, (), denied.seen)

    def test_what_a_policy_asks_about_is_decided_by_whom_it_names(
        self, stage: Stage, mode: Mode
    ) -> None:
        def approver(request: ApprovalRequest) -> Approval:
            return Approval(True, by=request.args["text"])

        policy = ruling(ASKING)
        played = stage.play(notes("ann", "bob"), mode, gate=[policy], approver=approver)
        assert (played.error, played.ran) == (None, ("send",))
        assert played.how == ["ran", "blocked"]
        assert [each.get("by") for each in played.of("decided")] == ["ann", None]
        verdicts = [(step["verdict"]["rule"], step["verdict"]["code"]) for step in played.steps]
        assert verdicts == [("reading", "to_be_read"), ("reading", "approval_not_entitled")]
        assert [each["policy"] for each in played.of("requested")] == [policy.digest] * 2

    # --- failures deny ---------------------------------------------------------------------------

    @pytest.mark.parametrize("when", FAILING)
    def test_a_condition_that_fails_runs_nothing(self, stage: Stage, mode: Mode, when: str) -> None:
        rule = f"[[rules]]\nid = 'odd'\ntools = ['send']\nwhen = '{when}'\ndecision = 'allow'\n"
        played = stage.play(notes("a"), mode, gate=[ruling(rule)])
        assert (played.error, played.ran) == (None, ())
        assert played.how == ["blocked"]
        verdict = played.steps[0]["verdict"]
        assert (verdict["code"], verdict["rule"]) == ("rule_error", "odd")
        assert verdict["reason"] in played.seen[0][0]

    def test_a_rule_that_gives_no_verdict_runs_nothing(self, stage: Stage, mode: Mode) -> None:
        played = stage.play(notes("a"), mode, gate=[ruling(""), rubbish])
        assert (played.error, played.ran, played.how) == (None, (), ["blocked"])
        assert played.steps[0]["verdict"]["code"] == "rule_invalid"

    def test_a_policy_can_be_no_reason_to_run_what_a_rule_denies(
        self, stage: Stage, mode: Mode
    ) -> None:
        played = stage.play(shouting(), mode, gate=[Policy.parse(ERRANDS), not_today])
        assert (played.error, played.ran) == (None, ())
        assert [step["verdict"]["rule"] for step in played.steps] == ["no-shouting", "not_today"]

    def test_a_policy_that_is_broken_on_the_way_denies_from_then_on(
        self, stage: Stage, mode: Mode, tmp_path: Path
    ) -> None:
        sessions: list[Session] = []
        file = tmp_path / "policy.toml"
        file.write_text("version = 1\n[[rules]]\nid = 'half'\n", encoding="utf-8")

        def reload() -> str:
            """Load the policy anew."""
            with pytest.raises(PolicyInvalid):
                reload_policy(sessions[0], file)
            return "there is none"

        script: list[Message] = [[("send", {"text": "a"})], [("reload", {})]]
        scenario = Scenario([SEND, ToolSpec(reload)], [*script, script[0], "all done"])
        played = stage.play(scenario, mode, gate=[ruling("")], opened=sessions.append)
        assert (played.error, played.ran) == (None, ("send", "reload"))
        assert played.how == ["ran", "ran", "blocked"]
        assert played.steps[2]["verdict"]["code"] == "policy_invalid"
        assert "the policy can't be used" in played.seen[2][0]

    # --- shadow ----------------------------------------------------------------------------------

    def test_in_shadow_nothing_is_held_up_and_all_is_said(self, stage: Stage, mode: Mode) -> None:
        rules = """
            [[rules]]
            id = "no-shouting"
            tools = ["send"]
            when = 'args.text == "LOUD"'
            decision = "deny"
            reason = "not so loud"
            [[rules]]
            id = "ask-about-places"
            tools = ["look"]
            decision = "ask"
            reason = "who wants to know?"
            [[rules]]
            id = "broken"
            tools = ["order"]
            when = 'args.nothing == 1'
            decision = "deny"
            reason = "never used"
            [[limits.rules]]
            id = "few"
            calls = 3
        """
        more: list[Message] = [[("look", {"place": "b"})], [("order", {"count": 1})]]
        scenario = shouting(*more, [("send", {"text": "more"})])
        plain = stage.plain(scenario, mode)
        played = stage.play(scenario, mode, gate=[ruling(rules, mode="shadow")])
        assert played.error is plain.error is None
        assert (played.ran, played.seen, played.result) == (plain.ran, plain.seen, plain.result)
        assert played.how == ["ran"] * 5
        assert {step["verdict"]["decision"] for step in played.steps if "verdict" in step} <= {
            "allow"
        }
        shadows = [step.get("verdict", {}).get("shadow", {}) for step in played.steps]
        assert [(shadow.get("decision"), shadow.get("rule")) for shadow in shadows] == [
            ("deny", "no-shouting"),
            (None, None),
            ("ask", "ask-about-places"),
            ("deny", "broken"),
            ("deny", "few"),
        ]
        assert played.of("attempt")[0]["gate"][0]["policy"]["mode"] == "shadow"

    # --- streams and models ----------------------------------------------------------------------

    @needs("streaming")
    def test_a_call_of_a_streamed_message_is_denied_as_any(self, stage: Stage, mode: Mode) -> None:
        policy = Policy.parse(ERRANDS)
        whole = stage.play(shouting(), mode, gate=[policy])
        streamed = stage.play(shouting(), mode, gate=[policy], stream=True, name="streamed")
        assert streamed.error is None
        assert (streamed.ran, streamed.seen) == (whole.ran, whole.seen)
        assert streamed.how == ["blocked", "ran"]
        assert "".join(streamed.result.chunks) == "all done"

    @needs("models")
    def test_a_model_that_is_denied_is_not_asked(self, stage: Stage, mode: Mode) -> None:
        self._denied_model(stage, mode, stream=False)

    @needs("models", "streaming")
    def test_the_stream_of_a_denied_model_gives_nothing(self, stage: Stage, mode: Mode) -> None:
        self._denied_model(stage, mode, stream=True)

    def _denied_model(self, stage: Stage, mode: Mode, *, stream: bool) -> None:
        scenario = Scenario([SEND], [[("send", {"text": "a"})], "all done"], guarded_model=True)
        played = stage.play(scenario, mode, stream=stream, gate=[Policy.parse(NO_MODELS)])
        assert (played.script.asked, played.ran) == (0, ())
        assert (played.result.text, played.result.chunks) == ("", ())
        assert _blocked(played.error), played.error
        asked = played.asked
        assert asked
        assert {(step["how"], step["verdict"]["rule"]) for step in asked} == {
            ("blocked", "no-models")
        }


def _blocked(error: BaseException | None) -> bool:
    """Return whether a denial ended an agent, in any wrapping by its framework."""
    while error is not None:
        if isinstance(error, Blocked):
            return True
        error = error.__cause__ or error.__context__
    return False
