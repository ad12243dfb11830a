"""What halts a session says what was asked for, what is nearest, and what to type."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from rollcage import Diverged, ReplayMiss, RunStopped, UndoIncomplete, UnknownOutcome, tool
from rollcage.session.abandon import abandon_run
from rollcage.session.finished import undo_run
from rollcage.session.session import Session
from rollcage.store import JsonlStore, StopOrder, store_option

done: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_is_done() -> None:
    done.clear()


@tool(effect="write")
def send(to: str, text: str = "hello", key: SecretStr | None = None) -> str:
    done.append(to)
    return f"sent to {to}"


@tool(effect="write")
def file(what: str) -> None:
    done.append(what)


@tool(effect="write")
def vanish() -> None:
    raise TimeoutError


def crashed(store: Any, *calls: Any) -> str:
    session = Session("job", store=store)
    with pytest.raises(InterruptedError), session:
        for call in calls:
            call()
        raise InterruptedError
    return session.run_id


def diverging(store: Any, call: Any) -> tuple[str, str]:
    """The message that a new write gets, and the run that it halts."""
    session = Session("job", store=store)
    with pytest.raises(Diverged) as raised, session:
        call()
    assert done
    return str(raised.value), session.run_id


def test_a_divergence_names_both_calls_and_the_field_that_differs(store: JsonlStore) -> None:
    first = crashed(store, lambda: send("ann"), lambda: send("bob"), lambda: file("x"))
    said, run = diverging(store, lambda: send("ann", text="hi"))
    assert "a new write, send(to='ann', text='hi'" in said
    assert f"step 1 (send), step 2 (send), step 3 (file) of run {first}" in said
    assert "The nearest recorded call is step 1, send(to='ann', text='hello'" in said
    assert "it differs in argument 'text': recorded 'hello', asked for 'hi'" in said
    at = f" --store {store.root}"
    for command in (f"show {run}{at}", f"undo {run}{at}", f"abandon {run}{at}"):
        assert f"rollcage {command}" in said
    assert "input=" in said
    assert 'replay="off"' in said
    assert "warn" not in said
    assert done == ["ann", "bob", "x"]


def test_the_nearest_call_is_one_that_nobody_asked_for(store: JsonlStore) -> None:
    crashed(store, lambda: send("ann"), lambda: send("bob"))
    session = Session("job", store=store)
    with pytest.raises(Diverged) as raised, session:
        send("ann")
        send("eve")
    assert "is step 2, send(to='bob'" in str(raised.value)


def test_a_new_tool_is_said_to_be_one(store: JsonlStore) -> None:
    crashed(store, lambda: send("ann"))
    said, _ = diverging(store, lambda: file("x"))
    assert "it differs in the tool: recorded 'send', asked for 'file'" in said


def test_a_divergence_shows_no_secret_and_no_novel(store: JsonlStore) -> None:
    crashed(store, lambda: send("ann", key=SecretStr("hunter22")))
    said, _ = diverging(store, lambda: send("ann", key=SecretStr("swordfish")))
    assert "argument 'key': recorded a secret, asked for a secret" in said
    assert "hunter22" not in said
    assert "swordfish" not in said
    crashed(JsonlStore(store.root / "long"), lambda: send("ann", "x" * 5000))
    for size in (10_000, 100_000):
        text = "y" * size
        said, _ = diverging(store.root / "long", lambda text=text: send("ann", text))
        assert len(said) < 2000


def test_what_it_offers_helps(store: JsonlStore) -> None:
    crashed(store, lambda: send("ann"))
    _, run = diverging(store, lambda: send("eve"))
    abandon_run(store, run)
    with Session("job", store=store):
        send("eve")
    assert done == ["ann", "eve"]
    with Session("job", store=store, input="bob"):
        send("bob")
    assert done == ["ann", "eve", "bob"]


def test_the_default_store_needs_no_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ROLLCAGE_STORE", raising=False)
    crashed(".rollcage", lambda: send("ann"))
    said, run = diverging("./.rollcage", lambda: send("eve"))
    assert f"rollcage show {run}; " in said
    assert "--store" not in said
    monkeypatch.setenv("ROLLCAGE_STORE", "elsewhere")
    assert store_option(JsonlStore(".rollcage")) == " --store .rollcage"
    assert store_option(JsonlStore("elsewhere")) == ""
    assert store_option(JsonlStore("my runs")) == " --store 'my runs'"
    assert store_option(object()) == ""


def test_an_unknown_outcome_says_where_to_resolve_it(store: JsonlStore) -> None:
    with pytest.raises(UnknownOutcome) as first, Session("job", store=store) as session:
        vanish()
    command = f"rollcage resolve {session.run_id} 1 --store {store.root} --happened"
    assert command in str(first.value)
    assert "it was cut off by TimeoutError" in str(first.value)
    with pytest.raises(UnknownOutcome) as second, Session("job", store=store):
        vanish()
    assert command in str(second.value), "the run in which it happened, or did not"


def test_a_stopped_run_says_where_to_lift_that(store: JsonlStore) -> None:
    with pytest.raises(RunStopped) as live, Session("job", store=store) as session:
        store.stop(StopOrder(session.run_id, "ann", "enough", 1))
        file("x")
    command = f"rollcage stop {session.run_id} --lift --store {store.root}"
    assert command in str(live.value)
    with pytest.raises(RunStopped) as resumed, Session("job", store=store):
        pytest.fail("it was stopped")
    assert command in str(resumed.value)


def test_a_transaction_that_can_not_be_taken_back_says_where_to_look(store: JsonlStore) -> None:
    session = Session("job", store=store)
    with pytest.raises((UndoIncomplete, InterruptedError)), session, session.transaction():
        file("x")
        raise InterruptedError
    halted = session.halted
    assert f"rollcage undo {session.run_id} --store {store.root} --plan" in str(halted)
    assert not undo_run(store, session.run_id, tools=[file]).complete


def test_where_not_all_could_be_taken_back_it_says_what_is_left_and_each_way_on(
    tmp_path: Path,
) -> None:
    store = JsonlStore(tmp_path / "elsewhere")
    crashed(store, lambda: send("ann"), lambda: file("a"))
    session = Session("job", store=store, on_divergence="undo")
    with pytest.raises(Diverged) as raised, session:
        send("bob")
    assert done == ["ann", "a"]
    said, at = str(raised.value), store_option(store)
    assert "its tool declares no undo" in said
    assert "send(to='bob'" in said
    for command in (f"undo {session.run_id}{at} --plan\n", f"undo {session.run_id}{at};",
                    f"show {session.run_id}{at};", f"abandon {session.run_id}{at};"):  # fmt: skip
        assert f"rollcage {command}" in said
    assert [step for _, step in raised.value.orphans] == [1, 2]
    abandon_run(store, session.run_id)
    with Session("job", store=store, on_divergence="undo"):
        send("bob")
    assert done == ["ann", "a", "bob"]


@pytest.mark.parametrize(
    ("was", "now", "said"),
    [
        ([{"a": 1, "b": [1, 2]}], [{"a": 1, "b": [1, 3]}], "at [0].b[1]: recorded 2, asked for 3"),
        ([1], [1, 2], "at [1]: recorded nothing, asked for 2"),
        ({"a": 1}, {"b": 1}, "at .a: recorded 1, asked for nothing"),
        ([1], {"a": 1}, "'x': recorded [1], asked for {'a': 1}"),
        (
            [f"{'so ' * 40}far"],
            [f"{'so ' * 40}long"],
            f"at [0]: recorded '...o {'so ' * 6}far', asked for '...o {'so ' * 6}long'",
        ),
    ],
)
def test_a_miss_names_the_first_place_that_differs(
    store: JsonlStore, was: Any, now: Any, said: str
) -> None:
    @tool(name="ways.nested", effect="read")
    def nested(x: Any) -> None:
        pass

    with Session("job", store=store):
        nested(was)
    with pytest.raises(ReplayMiss) as raised, Session("job", store=store, replay="offline"):
        nested(now)
    assert f"it differs in argument 'x' {said}".replace("'x' 'x'", "'x'") in str(raised.value)
