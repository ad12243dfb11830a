"""The normalised form of a trace, and that the goldens are what the reference harness leaves."""

from pathlib import Path

import pytest
from rollcage import Session, tool
from rollcage.store import JsonlStore
from rollcage.trace import check_events

from rollcage_conformance import Scenario, Script, Stage, ToolSpec, load_golden, normalise, steps
from rollcage_conformance.__main__ import main
from rollcage_conformance.reference import ReferenceHarness
from rollcage_conformance.suites.trace import GOLDENS


@tool(effect="write")
def send(text: str) -> str:
    """Send a text."""
    return f"sent {text}"


def events(folder: Path, replay: str = "off") -> list[dict[str, object]]:
    store = JsonlStore(folder)
    with Session("job", store=store, replay="off") as session:
        with session.turn():
            send(text="a")
            send(text="b")
        with session.place(turn="x", slot=0, agent="ann", call_id="call-1"):
            send(text="a")
    return check_events(store.read(session.run_id).data, "here")


def test_two_runs_of_one_job_are_the_same(tmp_path: Path) -> None:
    first, second = events(tmp_path), events(tmp_path)
    assert first != second
    assert normalise(first) == normalise(second)


def test_nothing_that_differs_is_left(tmp_path: Path) -> None:
    told = repr(normalise(events(tmp_path)))
    for field in ("time", "hash", "world", "fingerprint", "key", "digest", "call-1", "ann", "run'"):
        assert field not in told


def test_steps_stand_by_turn_and_slot(tmp_path: Path) -> None:
    told = normalise(events(tmp_path))
    places = [(s["turn"], s["slot"], s["args"]["text"]) for s in told["steps"]]
    assert places == [(0, 0, "a"), (0, 1, "b"), (1, 0, "a")]
    assert (told["mode"], told["status"]) == ("record", "ok")


def test_a_step_without_its_end_has_no_outcome(tmp_path: Path) -> None:
    cut = [e for e in events(tmp_path) if e["event"] in ("run.started", "step.started")]
    assert all("outcome" not in step for step in steps(cut))
    assert normalise(cut)["status"] == ""


def test_the_goldens_are_what_the_reference_leaves(tmp_path: Path) -> None:
    main(tmp_path)
    assert sorted(path.stem for path in tmp_path.iterdir()) == sorted(GOLDENS)
    for path in tmp_path.iterdir():
        stored = Path(load_golden.__code__.co_filename).parent / "goldens" / path.name
        assert path.read_text(encoding="utf-8") == stored.read_text(encoding="utf-8")


def test_a_model_beyond_its_script_says_so() -> None:
    with pytest.raises(AssertionError, match="asked for message 1"):
        Script(["done"]).answer(1, ())


def test_a_session_that_can_t_be_opened_is_no_result(tmp_path: Path) -> None:
    stage = Stage(ReferenceHarness(), tmp_path)
    with pytest.raises(AssertionError, match="not opened") as caught:
        stage.play(Scenario([], ["done"]), "sync", replay="offline")
    assert "no run of 'job'" in str(caught.value.__cause__)


def test_a_plain_agent_s_error_is_its_end(tmp_path: Path) -> None:
    stage = Stage(ReferenceHarness(), tmp_path)
    assert isinstance(stage.plain(Scenario([], [OSError("no")]), "async").error, OSError)


def test_an_injected_parameter_is_not_in_the_contract() -> None:
    def ask(question: str, who: str) -> str:
        """Ask."""
        return question + who

    spec = ToolSpec(ask, injected="who")
    assert spec.contract.parameter_names == {"question"}
    assert spec.annotated(int).__annotations__["who"] is int
    assert ask.__annotations__["who"] is str
