"""The matrix passes where all is well, and finds what is not."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from rollcage import Contract, Session

from rollcage_conformance import Capabilities, Performance, Result, ToolCall
from rollcage_conformance.crossing import CASES, Case, Crossing, Matrix, Party
from rollcage_conformance.reference import ReferenceHarness, text_of

SOUND = Party("sound", ReferenceHarness())


class Wordy(ReferenceHarness):
    """Another framework: it shows what is no text in a form of its own."""

    def shown(self, value: Any) -> str:
        return value if isinstance(value, str) else f"the result is {value!r}"


class Backwards(ReferenceHarness):
    """Another framework: it begins with the last call of a message; each keeps its slot."""

    def call_all(self, performance: Performance, calls: Sequence[ToolCall]) -> tuple[str, ...]:
        shown: list[str] = []
        with self.turn(performance, calls) as slots:
            for index in reversed(range(len(calls))):
                with slots.slot(index):
                    try:
                        shown.insert(0, self.shown(self.call(performance, *calls[index])))
                    except Exception as error:  # noqa: BLE001 - as in the reference
                        shown.insert(0, self.answer_to(error))
        return tuple(shown)


class RecordsWords(Wordy):
    """Records what it shows, and not what the tool gave."""

    def guarded(
        self, session: Session, contract: Contract, arguments: Any, body: Callable[..., Any]
    ) -> Any:
        def worded(**values: Any) -> str:
            return text_of(body(**values))

        return super().guarded(session, contract, arguments, worded)


class SanitisesNames(ReferenceHarness):
    """Records tools under other names than their own."""

    def guarded(
        self, session: Session, contract: Contract, arguments: Any, body: Callable[..., Any]
    ) -> Any:
        contract = dataclasses.replace(contract, name=f"tool-{contract.name}")
        return super().guarded(session, contract, arguments, body)


class Unguarded(ReferenceHarness):
    """Guards nothing."""

    def run(self, performance: Performance) -> Result:
        return super().run(dataclasses.replace(performance, session=None))


class DecidesItself(ReferenceHarness):
    """Asks its own model where recorded answers are to be given."""

    def run(self, performance: Performance) -> Result:
        return super().run(dataclasses.replace(performance, replay_model=None))


class Undying(ReferenceHarness):
    """Lets nobody know that its model failed."""

    def run(self, performance: Performance) -> Result:
        ended = super().run(performance)
        return Result("all done") if ended.error is not None else ended


def case(name: str) -> Case:
    """A case, with sync tools only: what the broken ones are broken in."""
    [found] = [each for each in CASES if each.name == name]
    return dataclasses.replace(found, modes=["sync"])


def cross(root: Path, recorder: ReferenceHarness, replayer: ReferenceHarness, name: str) -> str:
    """What is wrong."""
    matrix = Matrix(root)
    found = matrix.cross(Party("one", recorder), Party("other", replayer), case(name))
    assert found.ok == (not found.reasons)
    return "\n".join(found.reasons)


@pytest.mark.parametrize("each", CASES, ids=lambda each: str(each.name))
@pytest.mark.parametrize("replayer", [ReferenceHarness(), Wordy()], ids=["same", "wordy"])
def test_a_sound_pair_crosses(tmp_path: Path, each: Case, replayer: ReferenceHarness) -> None:
    found = Matrix(tmp_path).cross(SOUND, Party("other", replayer), each)
    assert found.reasons == ()
    assert (found.bodies, found.keys) == (0, found.calls)


@pytest.mark.parametrize("each", CASES, ids=lambda each: str(each.name))
@pytest.mark.parametrize("backwards", ["recorder", "replayer"])
def test_the_order_in_which_calls_begin_does_not_count(
    tmp_path: Path, each: Case, backwards: str
) -> None:
    pair = [Party("other", Backwards()), SOUND]
    recorder, replayer = pair if backwards == "recorder" else reversed(pair)
    one_way = dataclasses.replace(each, modes=["sync"])
    assert Matrix(tmp_path).cross(recorder, replayer, one_way).reasons == ()


@pytest.mark.parametrize(
    "capabilities", [Capabilities(sync=False), Capabilities(asynchronous=False)]
)
def test_a_framework_with_one_mode_plays_in_that(
    tmp_path: Path, capabilities: Capabilities
) -> None:
    other = Party("other", ReferenceHarness(), capabilities)
    for each in (case("sync"), dataclasses.replace(case("async"), modes=["async"])):
        assert Matrix(tmp_path / each.name).cross(SOUND, other, each).ok


def test_text_that_was_recorded_instead_of_a_value_is_found(tmp_path: Path) -> None:
    assert "the model was shown" in cross(tmp_path, RecordsWords(), Wordy(), "results")


def test_another_key_is_found(tmp_path: Path) -> None:
    found = cross(tmp_path, SanitisesNames(), ReferenceHarness(), "sync")
    assert "0 of 3 keys are equal" in found
    assert "ended with ReplayMiss" in found


def test_bodies_that_ran_are_found(tmp_path: Path) -> None:
    found = cross(tmp_path, ReferenceHarness(), Unguarded(), "sync")
    assert "bodies ran: send, look, send" in found
    assert "0 of 3 keys are equal, and 0 calls were made" in found


def test_decisions_of_its_own_are_found(tmp_path: Path) -> None:
    found = cross(tmp_path, ReferenceHarness(), DecidesItself(), "decisions")
    assert "the scripted model was asked 4 times" in found


def test_a_run_that_did_not_die_is_found(tmp_path: Path) -> None:
    found = cross(tmp_path, Undying(), ReferenceHarness(), "resumed")
    assert "it did not die at step 9" in found
    assert "not 8 hits and the rest live" in found


def test_a_reason_says_where(tmp_path: Path) -> None:
    found = cross(tmp_path, ReferenceHarness(), Unguarded(), "repeated")
    assert found.startswith("repeated, polls, sync: ")


def test_figures_are_added_up() -> None:
    one = Crossing("a", "b", "c", bodies=1, keys=2, calls=3, reasons=("x",))
    assert one + one == Crossing("a", "b", "c", bodies=2, keys=4, calls=6, reasons=("x", "x"))
