"""Each mistake that an adapter can make is found by a test that says what is wrong."""

import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

pytestmark = pytest.mark.nightly

HERE = Path(__file__).parent
FILES = [HERE / f"broken_{part}.py" for part in ("adapters", "models", "gates")]

# What finds each mistake. Nothing may fail for the sound adapter.
FOUND_BY = {
    "TestRunsTwice": {
        "test_an_approved_call_runs_once",
        "test_each_call_runs_once_and_is_recorded",
        "test_identical_calls_in_a_row_replay_in_their_order",
        "test_an_identical_call_after_another_is_a_call_of_its_own",
    },
    "TestRecordsText": {
        "test_results_are_recorded_before_they_are_made_text",
        "test_the_trace_is_the_golden_one[sync-values]",
    },
    "TestSwallowsDeny": {
        "test_a_denied_call_runs_nothing_and_the_model_sees_why",
        "test_a_rule_that_raises_runs_nothing",
        "test_a_rejected_call_runs_nothing_and_the_agent_goes_on",
        "test_a_policy_file_denies_and_the_model_goes_on",
        "test_a_deny_wins_over_a_recorded_result",
        "test_a_condition_that_fails_runs_nothing",
        "test_a_policy_that_is_broken_on_the_way_denies_from_then_on",
        "test_of_the_calls_of_a_turn_as_many_run_as_there_is_room_for",
        "test_an_agent_that_goes_round_in_circles_is_told",
        "test_what_a_page_says_is_not_done_unless_the_user_named_it",
        "test_a_tool_that_nobody_approved_is_refused",
        "test_a_tool_that_was_changed_is_refused",
    },
    "TestRunsAfterHalt": {
        "test_nothing_runs_once_a_run_is_stopped",
        "test_an_agent_whose_run_is_stopped_ends",
        "test_a_halted_session_runs_nothing",
        "test_a_session_halted_on_the_way_runs_nothing_more",
        "test_a_halted_session_ends_the_agent",
    },
    "TestFailsOpen": {
        "test_a_crash_in_the_hook_runs_nothing[sync-run]",
        "test_a_denied_call_runs_nothing_and_the_model_sees_why",
        "test_an_offline_miss_halts_and_names_the_nearest",
    },
    "TestHookFailsOpen": {"test_a_crash_in_the_hook_runs_nothing[sync-place]"},
    "TestIgnoresSlots": {
        "test_parallel_identical_calls_keep_their_slots",
        "test_parallel_calls_are_one_turn_and_one_batch",
    },
    "TestLosesContext": {
        "test_a_body_knows_its_step",
        "test_calls_in_a_tool_body_are_nested_steps",
    },
    "TestInjectsIntoKey": {"test_what_is_injected_is_no_part_of_the_call"},
    "TestAttemptIntoKey": {
        "test_replay_runs_nothing_and_the_model_sees_the_same",
        "test_a_run_goes_on_once_nothing_asks_any_more",
        "test_what_was_allowed_once_needs_no_approval_in_replay",
    },
    "TestMixesSessions": {
        "test_two_sessions_at_once_do_not_mix",
        "test_two_sessions_in_one_event_loop_do_not_mix",
    },
    "TestForgetsAsync": {
        "test_each_call_runs_once_and_is_recorded[async]",
        "test_each_call_runs_once_and_is_recorded[sync-in-async]",
        "test_a_cancelled_write_is_unknown_and_halts",
    },
    "TestGuardsOriginals": {
        "test_guarding_leaves_the_original_tools_as_they_were",
        "test_the_tools_are_plain_again_after_a_session_that_ended_badly",
    },
    "TestGuardsEveryAgent": {"test_a_plain_agent_beside_a_guarded_one_is_untouched"},
    "TestAsksTheModelAgain": {"test_a_replayed_model_is_not_asked"},
    "TestRunsUnapproved": {
        "test_a_call_that_needs_approval_halts_and_runs_nothing",
        "test_a_call_that_needs_approval_beside_others",
    },
    "TestIgnoresEdits": {
        "test_a_call_may_be_edited_or_answered_instead[sync-edit]",
        "test_a_run_stops_and_goes_on_once_somebody_has_decided",
    },
    "TestShowsHalts": {
        "test_an_agent_ends_where_it_needs_approval",
        "test_an_offline_miss_ends_the_agent",
    },
    "TestTriesAgain": {"test_a_failing_tool_runs_once_for_each_request"},
    "TestForgetsSecrets": {
        "test_a_secret_reaches_the_tool_and_no_file[sync-typed]",
        "test_a_secret_reaches_the_tool_and_no_file[sync-declared]",
        "test_the_secret_of_a_denied_call_is_in_no_file",
        "test_another_secret_is_another_call",
    },
    "TestRecordsNoAnswers": {
        "test_an_answer_is_recorded_in_a_neutral_form",
        "test_recorded_decisions_drive_an_agent",
    },
    "TestForgetsUsage": {"test_what_an_answer_took_is_recorded_and_given_in_replay"},
    "TestMixesThoughtsIn": {"test_what_the_model_thought_is_recorded"},
    "TestMendsArguments": {"test_an_answer_is_recorded_in_a_neutral_form"},
    "TestLosesStreamedAnswers": {"test_a_streamed_answer_is_recorded_in_the_same_form"},
    "TestDecidesItself": {
        "test_recorded_decisions_drive_an_agent",
        "test_decisions_of_a_trace_drive_an_agent_whose_tools_run",
        "test_an_agent_that_asks_for_more_than_is_recorded_is_told",
    },
    "TestRunsDrifted": {"test_an_output_that_breaks_its_promise_is_an_error_and_is_kept"},
    "TestHidesReasons": {
        "test_a_policy_file_denies_and_the_model_goes_on",
        "test_an_agent_that_goes_round_in_circles_is_told",
        "test_what_a_page_says_is_not_done_unless_the_user_named_it",
    },
    "TestStreamsUnguarded": {"test_the_stream_of_a_denied_model_gives_nothing"},
    "TestForgetsDeclarations": {
        "test_what_a_page_says_is_not_done_unless_the_user_named_it",
        "test_an_output_that_breaks_its_promise_is_an_error_and_is_kept",
    },
    "TestShowsRawArguments": {"test_a_condition_sees_the_validated_arguments"},
    "TestNamesItself": {"test_a_tool_that_was_changed_is_refused"},
}


def written(path: Path) -> list[str]:
    """The adapters in a file."""
    return re.findall(r"^class (Test\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, set[str]]:
    """The tests that failed for each broken adapter, in one run of pytest of their own.

    A broken one runs those that are to find it, and the sound one all there are.
    """
    tests: list[str] = []
    for path in FILES:
        for adapter in written(path):
            at, found_by = f"{path}::{adapter}", sorted(FOUND_BY.get(adapter, ()))
            tests += [f"{at}::{test}" for test in found_by] or [at]
    report = tmp_path_factory.mktemp("broken") / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "--tb=line", f"--junitxml={report}"]
    # Not measured: that a broken adapter comes by a line shows nothing of it.
    plain = {name: said for name, said in os.environ.items() if not name.startswith("COVERAGE")}
    ended = subprocess.run(
        [*command, *tests],
        cwd=HERE,
        env=plain,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "AssertionError" in ended.stdout
    found: dict[str, set[str]] = defaultdict(set)
    for case in ET.parse(report).getroot().iter("testcase"):  # noqa: S314 - our own file
        if case.find("failure") is not None or case.find("error") is not None:
            name = str(case.get("name"))
            found[str(case.get("classname")).rpartition(".")[2]] |= {name, name.partition("[")[0]}
    return found


def test_the_sound_adapter_passes(failed: Mapping[str, set[str]]) -> None:
    assert failed.get("TestSound", set()) == set()


@pytest.mark.parametrize("adapter", FOUND_BY)
def test_a_broken_adapter_is_found(failed: Mapping[str, set[str]], adapter: str) -> None:
    assert FOUND_BY[adapter] <= failed[adapter]


def test_no_broken_adapter_is_forgotten() -> None:
    every = {adapter for path in FILES for adapter in written(path)}
    assert every == FOUND_BY.keys() | {"TestSound"}
