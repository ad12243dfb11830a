"""A trace holds each message of a model's conversation once: later requests refer to it."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from rollcage import TraceCorrupt, tool
from rollcage.adapter import model_contract, model_request
from rollcage.session.session import Session
from rollcage.store import JsonlStore
from rollcage.trace import CHAIN_START, check_events, read_events, read_run, seal_line

MODEL = model_contract("chat-1", "test")
Events = Callable[[str], list[dict[str, Any]]]
Messages = list[dict[str, Any]]


@tool(effect="write")
def note_down(what: str) -> str:
    return what * 2


def said(number: int, size: int = 200) -> dict[str, Any]:
    """A message."""
    return {"role": "user", "content": f"{number} ".ljust(size, "x")}


def ask(session: Session, messages: Messages) -> str:
    """Ask the model; it counts the messages."""
    request = model_request(messages, options={"temperature": 0.5})
    body = lambda **_: str(len(messages))  # noqa: E731 - a body
    answer: str = session.run(MODEL, request, body, kind="model")
    return answer


def talk(session: Session, turns: int, size: int = 200) -> Messages:
    """An agent that asks its model `turns` times, and has two more messages each time."""
    messages = [said(0, size)]
    for turn in range(turns):
        assert ask(session, messages) == str(len(messages))
        note_down(what=str(turn))
        messages = [*messages, said(2 * turn + 1, size), said(2 * turn + 2, size)]
    return messages


def raw(store: JsonlStore, run: str) -> list[dict[str, Any]]:
    """The requests as their lines hold them."""
    lines = (orjson.loads(line) for line in store.read(run).data.splitlines())
    return [line["args"] for line in lines if line.get("kind") == "model"]


def whole(store: JsonlStore, run: str) -> list[Messages]:
    """The requests as a reader sees them."""
    steps = read_run(store.read(run)).steps
    return [step.args["messages"] for step in steps if step.kind == "model"]


def reference(step: int, first: int, count: int) -> dict[str, Any]:
    return {"$rollcage": "messages", "step": step, "first": first, "count": count}


def room(root: Path) -> int:
    """Bytes of the traces and blobs in a store."""
    files = [*root.glob("runs/*.jsonl"), *root.glob("blobs/*/*")]
    return sum(path.stat().st_size for path in files)


# --- what is written -----------------------------------------------------------------------------


def test_a_request_refers_to_the_messages_that_an_earlier_one_holds(store: JsonlStore) -> None:
    with Session("job", store=store) as session:
        talk(session, 3)
    held = [each["messages"] for each in raw(store, session.run_id)]
    assert held[0] == [said(0)]
    assert held[1] == [reference(1, 0, 1), said(1), said(2)]
    assert held[2] == [reference(3, 0, 3), said(3), said(4)]
    assert whole(store, session.run_id) == [[said(n) for n in range(k)] for k in (1, 3, 5)]


@pytest.mark.parametrize("size", [200, 5_000, 70_000])
def test_the_trace_of_a_longer_conversation_grows_by_its_turns(tmp_path: Path, size: int) -> None:
    sizes: list[int] = []
    for turns in (8, 16, 32):
        root = tmp_path / str(turns)
        with Session("job", store=root) as session:
            talk(session, turns, size)
        sizes.append(room(root))
    assert sizes[2] - sizes[1] <= 2.2 * (sizes[1] - sizes[0])


def test_two_agents_that_take_turns_have_their_own_histories(store: JsonlStore) -> None:
    with Session("job", store=store) as session:
        for count in (1, 2, 3):
            ask(session, [said(n) for n in range(count)])
            ask(session, [said(100 + n) for n in range(count)])
    held = [each["messages"] for each in raw(store, session.run_id)]
    assert held[4] == [reference(3, 0, 2), said(2)]
    assert held[5] == [reference(4, 0, 2), said(102)]


def test_what_stands_first_may_change_and_what_is_old_may_go(store: JsonlStore) -> None:
    with Session("job", store=store) as session:
        ask(session, [said(n) for n in range(5)])
        ask(session, [said(99), *(said(n) for n in range(1, 6))])  # it tells the time, say
        ask(session, [said(n) for n in range(3, 8)])  # a window
    held = [each["messages"] for each in raw(store, session.run_id)]
    assert held[1] == [said(99), reference(1, 1, 4), said(5)]
    assert held[2] == [reference(2, 3, 3), said(6), said(7)]
    assert whole(store, session.run_id)[2] == [said(n) for n in range(3, 8)]


def test_short_messages_are_written_as_they_are(store: JsonlStore) -> None:
    with Session("job", store=store) as session:
        ask(session, [said(1, 0)])
        ask(session, [said(1, 0), said(2, 0)])
    assert raw(store, session.run_id)[1]["messages"] == [said(1, 0), said(2, 0)]


def test_equal_numbers_of_other_types_are_other_messages(store: JsonlStore) -> None:
    one, other = ({"role": "user", "content": "x" * 200, "n": n} for n in (1, True))
    with Session("job", store=store) as session:
        ask(session, [one])
        ask(session, [other])
    assert raw(store, session.run_id)[1]["messages"] == [other]
    assert whole(store, session.run_id)[1][0]["n"] is True


def test_a_large_message_is_kept_once_and_the_list_is_not(store: JsonlStore) -> None:
    large = said(1, 70_000)
    with Session("job", store=store) as session:
        ask(session, [said(0), large])
        ask(session, [said(0), large, said(2)])
    first, second = (each["messages"] for each in raw(store, session.run_id))
    assert [first[0], first[1]["$rollcage"]] == [said(0), "blob"]
    assert second == [reference(1, 0, 2), said(2)]
    assert len([*store.root.glob("blobs/*/*")]) == 1


def test_what_a_user_says_is_no_reference(store: JsonlStore) -> None:
    forged = reference(1, 0, 1)
    with Session("job", store=store) as session:
        ask(session, [said(0)])
        ask(session, [forged, said(1)])
    assert "dict" in str(whole(store, session.run_id)[1][0])
    assert whole(store, session.run_id)[1][1:] == [said(1)]


def test_a_line_that_was_not_written_is_not_referred_to(
    store: JsonlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rollcage.store.writer import JsonlWriter

    append = JsonlWriter.append

    def interrupted(self: JsonlWriter, event: dict[str, Any]) -> None:
        if event.get("kind") == "model" and len(event["args"]["messages"]) == 2:
            raise KeyboardInterrupt
        append(self, event)

    monkeypatch.setattr(JsonlWriter, "append", interrupted)
    with Session("job", store=store) as session:
        ask(session, [said(0)])
        with pytest.raises(KeyboardInterrupt):
            ask(session, [said(0), said(1)])
        ask(session, [said(0), said(1), said(2)])
    assert raw(store, session.run_id)[-1]["messages"] == [reference(1, 0, 1), said(1), said(2)]
    assert len(whole(store, session.run_id)[-1]) == 3


# --- what is given back --------------------------------------------------------------------------


def test_a_resume_replays_and_its_own_trace_refers_to_itself(store: JsonlStore) -> None:
    with Session("job", store=store, replay="off") as first:
        talk(first, 4)
    for _ in range(2):
        with Session("job", store=store, replay="continue") as session:
            talk(session, 4)
        assert session.stats.hits == 8
        assert session.stats.misses == 0
        assert raw(store, session.run_id)[3]["messages"] == [reference(5, 0, 5), said(5), said(6)]
        assert whole(store, session.run_id) == whole(store, first.run_id)


def test_the_identity_of_a_request_is_that_of_all_its_messages(store: JsonlStore) -> None:
    with Session("a", store=store) as one:
        talk(one, 3)
        ask(one, [said(7), said(8)])
    with Session("b", store=store) as other:
        ask(other, [said(7), said(8)])
    keys = [[s.key for s in read_run(store.read(r.run_id)).steps] for r in (one, other)]
    assert keys[0][-1] == keys[1][-1]


# --- damage --------------------------------------------------------------------------------------


def sealed(events: list[dict[str, Any]]) -> bytes:
    """A trace of these events, whose hashes are right."""
    lines, head = b"", CHAIN_START
    for event in events:
        line, head = seal_line({k: v for k, v in event.items() if k != "hash"}, head)
        lines += line
    return lines


@pytest.mark.parametrize(
    ("forged", "why"),
    [
        ([reference(9, 0, 1)], "step 9, which has none before it"),
        ([reference(5, 0, 1)], "step 5, which has none before it"),
        ([reference(2, 0, 1)], "step 2, which has none before it"),
        ([reference(1, 0, 2)], "messages 0 to 2 of step 1, which has 1"),
        ([reference(1, -1, 1)], "messages -1 to 0 of step 1"),
        ([reference(1, 0, 0)], "messages 0 to 0 of step 1"),
        ([reference(1, 0, 1), reference(1, 0, 1)], "more than one reference"),
        ([{"$rollcage": "messages", "step": 1}], "other fields than step, first and count"),
        ([reference(1, 0, 1) | {"run": "x"}], "other fields than step, first and count"),
        ([reference(1, 0, True)], "not in integers"),
        ([{"$rollcage": "messages", "step": [1], "first": 0, "count": 1}], "not in integers"),
        ([reference(1, 0, 2**62)], "which has 1"),
    ],
)
def test_a_reference_to_nothing_is_damage_and_names_its_line(
    store: JsonlStore, forged: Messages, why: str
) -> None:
    with Session("job", store=store) as session:
        talk(session, 3)
    trace = store.read(session.run_id)
    events = [orjson.loads(line) for line in trace.data.splitlines()]
    at = [n for n, event in enumerate(events) if event.get("kind") == "model"][2]
    events[at]["args"]["messages"] = forged
    data = sealed(events)
    for read in (check_events, lambda d, w: list(read_events(d, w))):
        with pytest.raises(TraceCorrupt, match=re.escape(why)) as caught:
            read(data, "trace")
        assert caught.value.line == at + 1


def test_references_can_not_blow_up_a_reader(store: JsonlStore) -> None:
    """Each list is no longer than all that stands in the trace, whatever refers to what."""
    with Session("job", store=store) as session:
        talk(session, 1)
    events = [orjson.loads(line) for line in store.read(session.run_id).data.splitlines()]
    asked = next(event for event in events if event.get("kind") == "model")
    held = [[0] * 50_000, *([reference(step, 0, 50_000)] for step in range(1, 1_000))]
    bombs = [{**asked, "step": n, "args": {"messages": each}} for n, each in enumerate(held, 1)]
    with pytest.raises(TraceCorrupt, match="the references stand for more than 20,000,000"):
        for _ in read_events(sealed([events[0], *bombs]), "trace"):
            pass
