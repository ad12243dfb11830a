"""Each message that models are sent is in a log once; readers get whole requests."""

from pathlib import Path
from typing import Any

import orjson
import pytest
from copying import Copy
from rollcage import ReplayMiss, Session
from rollcage.contract.contract import Contract
from rollcage.trace.folder import Folder
from rollcage.trace.reader import read_events
from rollcage.trace.recorded import trace_of

MODEL = Contract(name="model", parameters={"properties": {"messages": {"type": "array"}}})
LONG = "x" * 500


class PowerCutError(Exception):
    """Ends an attempt on its way."""


def talk(session: Session, turns: int, dies: int = -1, word: str = "m") -> list[Any]:
    """Ask a model, each time with all that was said before."""
    said = [{"role": "user", "content": f"{word}0 {LONG}"}]
    for turn in range(turns):
        answer = session.run_call(MODEL, {"messages": said}, _answer, kind="model")
        said = [*said, answer, {"role": "user", "content": f"{word}{turn + 1} {LONG}"}]
        if turn == dies:
            raise PowerCutError
    return said


def _answer(messages: list[Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": f"answer {len(messages)}"}


def requests(store: Path, run: str) -> list[list[Any]]:
    """The messages of each request, as readers get them."""
    trace = trace_of(store, run)
    events = [event for _, event in read_events(trace.data, trace.where)]
    return [e["args"]["messages"] for e in events if e.get("effect") == "model"]


def test_a_log_grows_with_the_conversation(tmp_path: Path) -> None:
    sizes = []
    for turns in (8, 16, 32):
        with Session(f"{turns}", store=tmp_path) as session:
            talk(session, turns)
        sizes.append(len(b"".join(Folder(tmp_path).read(session.run_id))))
    assert sizes[2] - sizes[1] <= 2.2 * (sizes[1] - sizes[0])


def test_readers_get_whole_requests(tmp_path: Path) -> None:
    with Session("job", store=tmp_path) as session:
        said = talk(session, 5)
    assert requests(tmp_path, session.run_id) == [said[: 2 * n + 1] for n in range(5)]


def test_a_resumed_conversation_is_whole_as_well(tmp_path: Path) -> None:
    with pytest.raises(PowerCutError), Session("job", store=tmp_path) as session:
        talk(session, 6, dies=2)
    with Session("job", store=tmp_path) as again:
        said = talk(again, 6)
    assert again.stats.hits == 3
    assert requests(tmp_path, session.run_id) == [said[: 2 * n + 1] for n in range(6)]
    with Session("job", store=tmp_path, replay="offline") as offline:
        assert talk(offline, 6) == said


def test_no_more_is_referred_to_than_readers_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollcage.trace.messages._MOST", 10)
    with Session("job", store=tmp_path) as session:
        said = talk(session, 6)
    assert requests(tmp_path, session.run_id) == [said[: 2 * n + 1] for n in range(6)]
    lines = [orjson.loads(line) for line in Folder(tmp_path).read(session.run_id)]
    assert [
        any("$rollcage" in message for message in line["args"]["messages"])
        for line in lines
        if line.get("effect") == "model"
    ] == [False, True, True, True, False, False]


def test_a_fork_copies_references_with_what_they_mean(tmp_path: Path) -> None:
    with Session("job", store=tmp_path) as session:
        talk(session, 4)
    with Session("job", store=tmp_path, stages=[Copy(session.run_id, live=True)]) as fork:
        said = talk(fork, 6)
    assert requests(tmp_path, fork.run_id) == [said[: 2 * n + 1] for n in range(6)]


def test_a_miss_compares_whole_requests(tmp_path: Path) -> None:
    with Session("job", store=tmp_path) as session:
        talk(session, 3)
    assert session.stats.misses == 3
    with (
        pytest.raises(ReplayMiss) as missed,
        Session("job", store=tmp_path, replay="offline") as offline,
    ):
        talk(offline, 1, word="n")
    assert "messages" in str(missed.value)
    assert "$rollcage" not in str(missed.value)


def test_lines_refer_to_steps_before_them(tmp_path: Path) -> None:
    with Session("job", store=tmp_path) as session:
        talk(session, 4)
    lines = [orjson.loads(line) for line in Folder(tmp_path).read(session.run_id)]
    asked = [line for line in lines if line.get("effect") == "model"]
    assert [len(line["args"]["messages"]) for line in asked] == [1, 3, 3, 3]
    references = [line["args"]["messages"][0] for line in asked[1:]]
    assert all(each.get("$rollcage") in ("messages", None) for each in references)
