"""Each message that models are sent is in a log once; readers get whole requests."""

from pathlib import Path
from typing import Any

import orjson
import pytest
from copying import Copy
from hypothesis import given
from hypothesis import strategies as st
from rollcage import ReplayMiss, Session
from rollcage.contract.contract import Contract
from rollcage.fingerprint.transcript import Question, Transcript
from rollcage.trace.folder import Folder
from rollcage.trace.messages import MessagesRead, MessagesWritten
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


# --- what is written of a request ----------------------------------------------------------------


def asking(step: int, said: list[int], size: int = 60) -> dict[str, Any]:
    """The line of a model that is sent messages; each number stands for one."""
    messages = [{"role": "user", "content": f"{n:_<{size}}"} for n in said]
    return {
        "event": "step",
        "step": step,
        "effect": "model",
        "args": {"messages": messages, "n": 1},
    }


def reference(line: dict[str, Any]) -> tuple[int, int, int, int] | None:
    """Where a line refers to others: the place in it, and step, first and count; if it does."""
    found = [
        (at, each["step"], each["first"], each["count"])
        for at, each in enumerate(line["args"]["messages"])
        if "$rollcage" in each
    ]
    assert len(found) <= 1
    return found[0] if found else None


def write(written: MessagesWritten, line: dict[str, Any]) -> Any:
    short = written.shortened(line)
    written.written()
    return reference(short)


@given(st.lists(st.lists(st.integers(0, 4), max_size=7), max_size=9))
def test_any_requests_are_restored(requests: list[list[int]]) -> None:
    written, read = MessagesWritten(), MessagesRead()
    for step, said in enumerate(requests, 1):
        line = asking(step, said)
        short = written.shortened(line)
        written.written()
        assert line == asking(step, said)  # what was given is left alone
        if step > 1 and said[: len(requests[step - 2])] == requests[step - 2] and len(said) > 1:
            goes_on = reference(short)
            kept = [each for each in short["args"]["messages"] if "$rollcage" not in each]
            if len(requests[step - 2]) > 1:
                assert goes_on is not None
                assert len(kept) <= len(said) - len(requests[step - 2])
        restored = orjson.loads(orjson.dumps(short))
        read.restore(restored)
        assert restored == line


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 7)), max_size=9))
def test_requests_of_one_transcript_are_restored(asked: list[tuple[int, int]]) -> None:
    """A transcript has more messages by the time its earlier requests are compared."""
    transcripts = [Transcript("model", ""), Transcript("model", "")]
    written, read = MessagesWritten(), MessagesRead()
    for step, (which, count) in enumerate(asked, 1):
        transcript = transcripts[which]
        while len(transcript) < count:  # both begin alike
            said = len(transcript) if len(transcript) < 3 else 10 * which + len(transcript)
            transcript.add(asking(step, [said])["args"]["messages"][0])
        question = Question(transcript, count, {})
        line = asking(step, [])
        line["args"]["messages"] = question.messages
        short = written.shortened(line, question)
        assert short == written.shortened(line)
        written.written()
        restored = orjson.loads(orjson.dumps(short))
        read.restore(restored)
        assert restored == line


def test_a_conversation_refers_to_all_that_was_said() -> None:
    written = MessagesWritten()
    said = [*range(6)]
    assert write(written, asking(1, said[:2])) is None
    assert write(written, asking(2, said[:4])) == (0, 1, 0, 2)
    assert write(written, asking(3, said)) == (0, 2, 0, 4)
    assert write(written, asking(4, [9, *said[1:]])) == (1, 3, 1, 5)  # the first one tells the time
    assert write(written, asking(5, said[2:])) == (0, 4, 2, 4)  # the beginning was cut off
    assert write(written, asking(6, [8, 9, 8, 9])) is None


def test_the_longest_run_is_referred_to() -> None:
    written = MessagesWritten()
    write(written, asking(1, [0, 1, 2, 3, 4, 5]))
    write(written, asking(2, [0, 1, 9, 9]))
    write(written, asking(3, [0, 7]))
    assert write(written, asking(4, [0, 1, 2, 3, 8, 8, 8, 8, 8])) == (0, 1, 0, 4)
    assert write(written, asking(5, [0, 1, 9, 9, 6])) == (0, 2, 0, 4)
    assert write(written, asking(6, [0, 1, 2, 6])) == (0, 5, 0, 2)  # half of it is enough


def test_of_equal_runs_the_later_step_is_referred_to() -> None:
    written = MessagesWritten()
    write(written, asking(1, [0, 1, 2]))
    write(written, asking(2, [0, 1, 3]))
    assert write(written, asking(3, [0, 1, 4, 5, 6, 7])) == (0, 2, 0, 2)


def test_short_messages_are_written_again() -> None:
    written = MessagesWritten()
    size = 100 - len('{"content":"","role":"user"}')
    write(written, asking(1, [0], size=size - 1))
    assert write(written, asking(2, [0, 1], size=size - 1)) is None
    written = MessagesWritten()
    write(written, asking(1, [0], size=size))
    assert write(written, asking(2, [0, 1], size=size)) == (0, 1, 0, 1)


@pytest.mark.parametrize(("agents", "refers"), [(16, True), (17, False)])
def test_so_many_agents_go_on_at_once(agents: int, refers: bool) -> None:
    written = MessagesWritten()
    step = 0
    for turn in range(1, 5):
        for agent in range(agents):
            step += 1
            said = [agent * 100 + n for n in range(2 * turn)]
            found = write(written, asking(step, said))
            goes_on = refers and turn > 1
            assert found == ((0, step - agents, 0, 2 * turn - 2) if goes_on else None)


def test_a_line_that_was_not_written_is_not_referred_to() -> None:
    written = MessagesWritten()
    written.written()  # of no line
    written.shortened(asking(1, [0, 1, 2]))
    assert write(written, asking(2, [0, 1, 2, 3])) is None
    assert write(written, asking(3, [0, 1, 2, 3, 4])) == (0, 2, 0, 4)


@pytest.mark.parametrize(
    "line",
    [
        {"event": "step", "step": 1, "effect": "read", "args": {"messages": [{}] * 9}},
        {"event": "refused", "effect": "model", "args": {"messages": [{}] * 9}},
        {"event": "step", "step": 1, "effect": "model", "args": {"messages": "text"}},
        {"event": "step", "step": 1, "effect": "model", "args": {}},
        {"event": "step", "step": 1, "effect": "model"},
    ],
)
def test_other_lines_are_left_alone(line: dict[str, Any]) -> None:
    written, read = MessagesWritten(), MessagesRead()
    assert written.shortened(line) is line
    read.restore(line)
    assert line == {**line}


BAD: list[Any] = [
    {"step": 1, "first": 0, "count": 4}, {"step": 1, "first": 0, "count": 0},
    {"step": 1, "first": -1, "count": 1}, {"step": 1, "first": 3, "count": 1},
    {"step": 1, "first": 2, "count": 2}, {"step": 2, "first": 0, "count": 1},
    {"step": 1, "first": 0, "count": 1.0}, {"step": True, "first": 0, "count": 1},
    {"step": 1, "first": "0", "count": 1}, {"step": 1, "first": 0},
    {"step": 1, "first": 0, "count": 1, "more": 1},
]  # fmt: skip
GOOD: list[Any] = [
    ({"step": 1, "first": 0, "count": 3}, [0, 1, 2]), ({"step": 1, "first": 2, "count": 1}, [2]),
    ({"step": 1, "first": 1, "count": 2}, [1, 2]),
]  # fmt: skip


def with_references(*references: Any) -> dict[str, Any]:
    line = asking(2, [])
    line["args"]["messages"] = [{"$rollcage": "messages", **each} for each in references]
    return line


@pytest.mark.parametrize("bad", BAD)
def test_a_reference_to_what_is_not_there_is_refused(bad: Any) -> None:
    read = MessagesRead()
    read.restore(asking(1, [0, 1, 2]))
    with pytest.raises(ValueError, match="refer"):
        read.restore(with_references(bad))


@pytest.mark.parametrize(("good", "said"), GOOD)
def test_a_reference_stands_for_its_messages(good: Any, said: list[int]) -> None:
    read = MessagesRead()
    read.restore(asking(1, [0, 1, 2]))
    line = with_references(good)
    read.restore(line)
    assert line == asking(2, said)
    with pytest.raises(ValueError, match="more than one reference"):
        read.restore(with_references(good, good))


def test_references_stand_for_so_many_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollcage.trace.messages._MOST", 3)
    read = MessagesRead()
    read.restore(asking(1, [0, 1, 2]))
    read.restore(with_references({"step": 1, "first": 0, "count": 3}))
    with pytest.raises(ValueError, match="more than 3 messages"):
        read.restore({**with_references({"step": 1, "first": 0, "count": 1}), "step": 3})
