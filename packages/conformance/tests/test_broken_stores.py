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

HERE = Path(__file__).parent

KILLED = "test_a_killed_process_loses_and_doubles_nothing"
pytestmark = pytest.mark.nightly

FOUND_BY = {
    "Overwrites": "test_a_value_is_swapped_for_what_was_seen",
    "AnswersTwice": "test_values_are_those_of_a_dict[0]",
    "Races": "test_of_two_who_swap_at_once_one_wins",
    "Unsorted": "test_keys_are_sorted_and_come_in_parts",
    "Leaky": "test_keys_are_sorted_and_come_in_parts",
    "FoldsCase": "test_any_text_is_a_key[A]",
    "KeepsNoBlobs": "test_large_values_and_secrets",
    "ClaimsTwice": "test_an_effect_happens_once_in_all_jobs",
    "RingsForAll": "test_the_bell_rings_with_each_order_and_with_nothing_else",
    "RingsOnceDone": "test_an_order_that_is_refused_rings_all_the_same",
    "HearsLate": "test_a_stop_order_is_seen_by_the_very_next_call",
    "LocksNobody": "test_two_resumes_at_once",
    "AsksByLocking": "test_whoever_asks_if_a_run_is_live_keeps_no_writer_away",
    "SaysItEnded": "test_a_run_is_live_while_its_writer_is",
    "Unfenced": "test_a_frozen_session_is_refused_before_its_next_body",
    "ReplacesUnfenced": "test_who_was_taken_over_replaces_no_log",
    "KnowsNoFork": "test_a_forked_child_leaves_the_run_alone",
    "LosesAcknowledged": f"{KILLED}[2-tasks-after]",
    "ForgetsTheLast": "test_lines_are_on_record_once_they_were_waited_for",
    "ReplacesByParts": "test_a_reader_sees_all_of_the_former_lines_or_all_of_the_others",
    "ReadsOneMore": "test_a_reader_skips_lines_or_asks_for_the_last_ones",
    "FindsAnything": "test_a_run_that_is_not_there_is_not_found",
    "ListsTheOldest": "test_runs_are_listed_from_the_greatest_id_downwards",
    "ListsWithoutEnd": "test_the_ends_of_a_long_run_are_its_first_and_last_line",
    "ListsByReadingAll": "test_what_is_asked_for_costs_the_same_however_many_lie_beside",
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
    (info / "entry_points.txt").write_text("[rollcage.logs]\nshelf = broken_stores:opened\n")
    at = HERE / "broken_store_suites.py"
    tests = {f"{at}::Test{store}::{test}" for store, test in FOUND_BY.items()}
    tests |= {f"{at}::TestSound::{test}" for test in FOUND_BY.values()}
    report = site / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "--tb=line", f"--junitxml={report}"]
    # Not measured: that a broken store comes by a line shows nothing of it.
    plain = {name: said for name, said in os.environ.items() if not name.startswith("COVERAGE")}
    paths = os.pathsep.join([str(site), str(HERE / "lab"), os.environ.get("PYTHONPATH", "")])
    ended = subprocess.run(
        [*command, *sorted(tests)],
        cwd=HERE,
        env=plain | {"PYTHONPATH": paths},
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
    written = re.findall(r"^class (\w+)\(Sound\)", text, re.MULTILINE)
    assert set(written) == FOUND_BY.keys()
