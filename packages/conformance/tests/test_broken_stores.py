"""Each mistake in a store of another package is found by a test that says what is wrong."""

import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from postgres import server

HERE = Path(__file__).parent

KILLED = "test_a_killed_process_loses_and_doubles_nothing"
FOUND_BY = {
    "Overwrites": "test_a_document_is_written_once_by_one",
    "AnswersTwice": "test_a_document_is_written_once_by_one",
    "Unsorted": "test_a_document_is_written_once_by_one",
    "Leaky": "test_a_document_is_written_once_by_one",
    "LocksNobody": "test_two_resumes_at_once",
    "OpensAtOnce": "test_sessions_that_open_at_once_are_one",
    "AsksByLocking": "test_who_is_live_is_asked_in_nobodys_way",
    "LosesAcknowledged": f"{KILLED}[2-tasks-after]",
    "AttestsNothing": "test_a_run_is_found_again_by_the_url",
    "StopsLate": "test_a_stop_order_is_seen_by_the_very_next_call",
    "StopsOneAlone": "test_whoever_resumes_a_stopped_run_is_stopped_too",
    "ChecksNoLog": "test_a_changed_line_of_a_log_is_found",
    "LogsAtOnce": "test_a_log_of_many_writers_is_one_chain",
    "ReadsOneMore": "test_a_run_is_followed_by_its_last_lines",
    "NewestByTheClock": "test_clocks_that_go_back_change_no_order",
    "ListsByTheClock": "test_clocks_that_go_back_change_no_order",
    "ListsTheOldest": "test_runs_are_asked_for_by_what_they_are",
    "SaysItEnded": "test_who_is_live_is_asked_in_nobodys_way",
    "CountsOneLess": "test_a_run_is_found_again_by_the_url",
    "ChecksNoBlob": "test_a_changed_large_value_is_found",
    "PrunesSources": "test_a_run_that_another_one_builds_on_is_not_pruned",
    "PrunesUnfinished": "test_what_has_not_ended_is_not_pruned",
    "ForgetsPruned": "test_a_pruned_run_was_done_all_the_same[False]",
    "RestoresTwice": "test_a_run_is_restored_whole_or_not_at_all",
    "RestoresOver": "test_another_run_of_the_same_id_is_a_conflict",
    "KeepsLoopsWaiting": "test_a_loop_goes_on_while_a_session_waits_to_open",
    "NewKeys": "test_large_values_and_secrets",
    "MadeByLooking": "test_nothing_is_made_by_looking",
    "Unfenced": "test_whoever_lost_its_run_is_refused_before_the_body",
}


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, set[str]]:
    """The tests that failed for each store; the sound one is held against all that find a mistake.

    The stores are brought by a package that is installed, for the processes of the suite, too.
    """
    site = tmp_path_factory.mktemp("site")
    info = site / "shelf-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shelf\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[rollcage.stores]\nshelf = broken_stores:opened\n")
    at = HERE / "broken_store_suites.py"
    tests = {f"{at}::Test{store}::{test}" for store, test in FOUND_BY.items()}
    tests |= {f"{at}::TestSound::{test}" for store, test in FOUND_BY.items() if store != "Unfenced"}
    report = site / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "--tb=line", f"--junitxml={report}"]
    # Not measured: that a broken store comes by a line shows nothing of it.
    plain = {name: said for name, said in os.environ.items() if not name.startswith("COVERAGE")}
    paths = os.pathsep.join([str(site), str(HERE / "lab"), os.environ.get("PYTHONPATH", "")])
    ended = subprocess.run(
        [*command, *sorted(tests)],
        cwd=HERE,
        env=plain | {"PYTHONPATH": paths, "ROLLCAGE_TEST_POSTGRES": server()},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1, ended.stdout + ended.stderr
    found: dict[str, set[str]] = defaultdict(set)
    for case in ET.parse(report).getroot().iter("testcase"):  # noqa: S314 - our own file
        name = str(case.get("classname")).rpartition(".")[2].removeprefix("Test")
        if case.find("failure") is not None or (name == "Sound" and case.find("error") is not None):
            found[name].add(str(case.get("name")))
    return found


def test_the_sound_store_passes(failed: Mapping[str, set[str]]) -> None:
    assert failed.get("Sound", set()) == set()


@pytest.mark.parametrize("store", FOUND_BY)
def test_a_broken_store_is_found(failed: Mapping[str, set[str]], store: str) -> None:
    assert failed[store] == {FOUND_BY[store]}


def test_no_broken_store_is_forgotten() -> None:
    text = (HERE / "lab" / "broken_stores.py").read_text(encoding="utf-8")
    written = re.findall(r"^class (\w+)", text, re.MULTILINE)
    assert set(written) == FOUND_BY.keys() | {"Sound"}
