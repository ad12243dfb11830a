"""What is normalised of an attempt and a log; and that the goldens are what the reference does."""

from pathlib import Path
from typing import Any

import pytest
from rollcage import RunNotFound, Session, open_store, tool
from rollcage.trace.chain import parse

from rollcage_conformance import (
    Scenario,
    Script,
    Stage,
    ToolSpec,
    Witness,
    load_golden,
    normalise,
    normalise_log,
)
from rollcage_conformance.__main__ import main
from rollcage_conformance.reference import ReferenceHarness
from rollcage_conformance.suites.trace import GOLDENS


class PowerCutError(Exception):
    """Ends an attempt on its way."""


@tool(effect="write")
def send(text: str) -> str:
    """Send a text."""
    return f"sent {text}"


@tool(effect="write")
def work() -> str:
    """Send a text from a body."""
    return send(text="inner")


def attempt(folder: Path, *, dies: bool = False, **how: Any) -> tuple[Session, Witness]:
    witness = Witness()
    with Session("job", store=folder, stages=[witness], **how) as session:
        with session.turn():
            send(text="a")
            send(text="b")
        if dies:
            raise PowerCutError
        with session.place(turn="x", slot=0, agent="ann", call_id="call-1"):
            send(text="a")
        work()
    return session, witness


def lines(folder: Path, session: Session) -> list[dict[str, Any]]:
    return parse(open_store(folder).read(session.run_id), session.run_id)


def test_two_runs_of_one_job_are_the_same(tmp_path: Path) -> None:
    (first, one), (second, two) = (attempt(tmp_path, replay="off") for _ in range(2))
    assert lines(tmp_path, first) != lines(tmp_path, second)
    assert normalise_log(lines(tmp_path, first)) == normalise_log(lines(tmp_path, second))
    assert normalise(one.records()) == normalise(two.records())


def test_nothing_that_differs_is_left(tmp_path: Path) -> None:
    session, witness = attempt(tmp_path)
    told = repr([normalise(witness.records()), normalise_log(lines(tmp_path, session))])
    for field in ("time", "hash", "world", "fingerprint", "key", "digest", "call-1", "ann", "run'"):
        assert field not in told


def test_steps_stand_by_turn_and_slot(tmp_path: Path) -> None:
    session, witness = attempt(tmp_path)
    places = [
        (s["turn"], s["slot"], s["args"].get("text"), s.get("parent"))
        for s in normalise(witness.records())["steps"]
    ]
    expected = [(0, 0, "a"), (0, 1, "b"), (1, 0, "a"), (2, 0, None)]
    assert places == [*((*each, None) for each in expected), (0, 0, "inner", 3)]
    logged = normalise_log(lines(tmp_path, session))["steps"]
    assert [(s["turn"], s["slot"], s.get("parent")) for s in logged] == [
        (turn, slot, parent) for turn, slot, _, parent in places
    ]


def test_attempts_of_one_run_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(PowerCutError):
        attempt(tmp_path, dies=True)
    session, witness = attempt(tmp_path)
    assert [step["how"] for step in witness.records()] == ["replayed"] * 2 + ["ran"] * 3
    told = normalise_log(lines(tmp_path, session))
    assert [each["attempt"] for each in told["steps"]] == [1, 1, 2, 2, 2]
    assert [(each["status"], each["calls"], each["hits"], each["replayed"]) for each in
            told["attempts"]] == [("error", 2, 0, 0), ("ok", 5, 2, 2)]  # fmt: skip
    _, offline = attempt(tmp_path, replay="offline")
    assert [step["how"] for step in offline.records()] == ["replayed"] * 4


def test_a_step_without_its_end_has_no_outcome(tmp_path: Path) -> None:
    session, _ = attempt(tmp_path)
    cut = [line for line in lines(tmp_path, session) if line["event"] not in ("outcome", "ended")]
    told = normalise_log(cut)
    assert {step["status"] for step in told["steps"]} == {"unknown"}
    assert [each["status"] for each in told["attempts"]] == [""]


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
    with pytest.raises(RunNotFound, match="no run of 'job'"):
        stage.play(Scenario([], ["done"]), "sync", replay="offline")


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
