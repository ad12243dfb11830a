"""What a subclass of a suite may change, and what is skipped."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import rollcage_conformance
from rollcage_conformance import AdapterSuite, ReplaySuite, Stage
from rollcage_conformance.stage import Mode

NAME = "test_identical_calls_in_a_row_replay_in_their_order"


def test_a_test_may_not_be_overridden() -> None:
    with pytest.raises(TypeError, match=rf"Bent overrides {NAME}: .*xfail"):

        class Bent(ReplaySuite):
            def test_identical_calls_in_a_row_replay_in_their_order(
                self, stage: Stage, mode: Mode
            ) -> None:
                """Pass."""


def test_a_test_may_not_be_taken_out() -> None:
    with pytest.raises(TypeError, match=NAME):
        type("Cut", (ReplaySuite,), {NAME: None})


def test_a_mixin_may_not_override_either() -> None:
    mixin = type("Mixin", (), {NAME: lambda self: None})
    with pytest.raises(TypeError, match=NAME):
        type("Mixed", (mixin, AdapterSuite), {})


@pytest.mark.parametrize(
    "mark", [pytest.mark.xfail, pytest.mark.xfail(reason=""), pytest.mark.skip]
)
def test_an_xfail_needs_a_reason(mark: pytest.MarkDecorator) -> None:
    @mark
    def bent() -> None:
        """Pass."""

    with pytest.raises(TypeError, match=NAME):
        type("Unreasoned", (ReplaySuite,), {NAME: bent})


def test_a_reasoned_xfail_and_new_tests_are_fine() -> None:
    class Reasoned(ReplaySuite):
        @pytest.mark.xfail(reason="the framework has no loop")
        def test_identical_calls_in_a_row_replay_in_their_order(
            self, stage: Stage, mode: Mode
        ) -> None:
            super().test_identical_calls_in_a_row_replay_in_their_order(stage, mode)

        def test_something_else(self) -> None:
            """Pass."""

    assert not hasattr(
        ReplaySuite.test_identical_calls_in_a_row_replay_in_their_order, "pytestmark"
    )


def run(tmp_path: Path, text: str) -> str:
    """Run a test file by itself, as an adapter's project would; what pytest says."""
    (tmp_path / "test_own.py").write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-rsfxX", "-p", "no:cacheprovider"]
    command += ["-W", "error", "-o", "asyncio_default_fixture_loop_scope=function"]
    ended = subprocess.run(
        [*command, f"--rootdir={tmp_path}", "-c", "/dev/null", str(tmp_path / "test_own.py")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    return ended.stdout + ended.stderr


@pytest.mark.nightly
def test_what_an_adapter_lacks_is_skipped_and_said(tmp_path: Path) -> None:
    said = run(
        tmp_path,
        """
import pytest
from rollcage_conformance import Capabilities, AdapterSuite
from rollcage_conformance.reference import ReferenceHarness

class TestSmall(AdapterSuite):
    rounds = 2
    capabilities = Capabilities(
        asynchronous=False, streaming=False, parallel=False, injection=False, halting=False,
        models=False, usage=False, reasoning=False, replay_models=False,
    )

    @pytest.fixture
    def harness(self):
        return ReferenceHarness()
""",
    )
    assert re.search(r"= \d+ passed, \d+ skipped in", said), said
    lacks = ("asynchronous", "streaming", "parallel", "injection", "halting", "models")
    for lacking in lacks:
        assert f"the adapter declares capabilities.{lacking} = False" in said


def test_a_failure_shows_the_values(tmp_path: Path) -> None:
    said = run(
        tmp_path,
        """
import pytest
from rollcage_conformance import Capabilities, ReplaySuite, Result
from rollcage_conformance.reference import ReferenceHarness

class Silent(ReferenceHarness):
    def run(self, performance):
        return Result("nothing")

class TestSilent(ReplaySuite):
    capabilities = Capabilities(asynchronous=False)

    @pytest.fixture
    def harness(self):
        return Silent()
""",
    )
    assert "AssertionError: assert 'nothing' == 'all done'" in said


@pytest.mark.nightly
def test_a_suite_without_a_harness_says_what_it_needs(tmp_path: Path) -> None:
    said = run(
        tmp_path,
        "from rollcage_conformance import GateSuite\nclass TestNone(GateSuite): pass\n",
    )
    assert "NotImplementedError: TestNone gives no fixture `harness`" in said


def test_the_exported_names_are_there() -> None:
    assert rollcage_conformance.__all__ == sorted(rollcage_conformance.__all__)
    assert all(hasattr(rollcage_conformance, name) for name in rollcage_conformance.__all__)
