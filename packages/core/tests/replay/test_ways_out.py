"""What halts a session says what was asked for, what is nearest, and what to type."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from rollcage import (
    Diverged,
    NotReplayable,
    ReplayMiss,
    RunStopped,
    Session,
    Store,
    UnknownOutcome,
    abandon_run,
    compensate,
    lift_order,
    list_runs,
    open_store,
    resolve_step,
    stop_run,
    tool,
    undo_run,
)
from rollcage.trace.store import store_option

done: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_is_done() -> None:
    done.clear()
    box.clear()
    reachable.clear()


@tool(effect="write")
def send(to: str, text: str = "hello", key: SecretStr | None = None) -> str:
    done.append(to)
    return f"sent to {to}"


@tool(effect="write")
def file(what: str) -> None:
    done.append(what)


@tool(effect="write", name="ways.vanish")
def vanish() -> str:
    if reachable:
        done.append("vanish")
        return "late"
    raise TimeoutError


@tool(effect="read")
def look() -> int:
    return len(box)


box: list[int] = []
reachable: list[bool] = []


@tool(effect="write", name="ways.take", idempotent=True)
def take(number: int) -> None:
    box.remove(number)


@tool(effect="write", name="ways.put", undo=lambda args: [compensate(take, number=args["number"])])
def put(number: int) -> None:
    box.append(number)


def crashed(store: Any, *calls: Any, name: str = "job") -> str:
    session = Session(name, store=store)
    with pytest.raises(InterruptedError), session:
        for call in calls:
            call()
        raise InterruptedError
    return session.run_id


def diverging(store: Any, call: Any, name: str = "job") -> tuple[str, str]:
    """The message that a new write gets, and the run that it halts."""
    session = Session(name, store=store)
    with pytest.raises(Diverged) as raised, session:
        call()
    assert done or box
    return str(raised.value), session.run_id


def test_a_divergence_names_both_calls(store: Store) -> None:
    first = crashed(store, lambda: send("ann"), lambda: send("bob"), lambda: file("x"))
    said, run = diverging(store, lambda: send("ann", text="hi"))
    assert 'send({"key":null,"text":"hi","to":"ann"}) is new' in said
    assert f"of run {first} lie ahead: 1 (send), 2 (send), 3 (file)." in said
    assert "The nearest recorded call is step 1 (send); it differs in argument 'text'" in said
    assert "recorded 'hello', asked for 'hi'" in said
    for command in ("undo", "show"):
        assert f"rollcage {command} {run}{store_option(store)};" in said
    assert "on_divergence='undo'" in said
    assert "input=" in said
    assert done == ["ann", "bob", "x"]


def test_the_nearest_call_was_not_asked_for(store: Store) -> None:
    crashed(store, lambda: send("ann"), lambda: send("bob"))
    session = Session("job", store=store)
    with pytest.raises(Diverged) as raised, session:
        send("ann")
        send("eve")
    assert "is step 2 (send); it differs in argument 'to'" in str(raised.value)


def test_the_nearest_call_is_no_block(store: Store) -> None:
    session = Session("job", store=store)
    with pytest.raises(ZeroDivisionError), session:
        with session.branch("send"):
            pass
        file("x")
        raise ZeroDivisionError
    said, _ = diverging(store, lambda: send("eve"))
    assert "is step 2 (file); it differs in the tool" in said


def test_a_new_tool_is_said_to_be_one(store: Store) -> None:
    crashed(store, lambda: send("ann"))
    said, _ = diverging(store, lambda: file("x"))
    assert "it differs in the tool: recorded 'send', asked for 'file'" in said


def test_a_divergence_shows_no_secret_and_no_novel(store: Store) -> None:
    crashed(store, lambda: send("ann", key=SecretStr("hunter22")))
    said, _ = diverging(store, lambda: send("ann", key=SecretStr("swordfish")))
    assert "argument 'key': recorded a secret, asked for a secret" in said
    assert "hunter22" not in said
    assert "swordfish" not in said
    crashed(store, lambda: file("x" * 5000), name="long")
    for size in (10_000, 100_000):
        text = "y" * size
        said, _ = diverging(store, lambda text=text: file(text), name="long")
        assert len(said) < 2000


@pytest.mark.parametrize("way", ["back", "warn", "undo", "undo_run", "abandon", "input", "name"])
def test_each_way_it_offers_works(store: Store, way: str) -> None:
    crashed(store, lambda: put(1), lambda: put(2))
    run = diverging(store, lambda: put(3))[1]
    assert box == [1, 2]
    how: dict[str, Any] = {}
    if way == "undo_run":
        assert undo_run(store, run).complete
    elif way == "abandon":
        abandon_run(store, run)
    elif way == "input":
        how["input"] = "another"
    elif way in ("undo", "warn"):
        how["on_divergence"] = way
    for _ in range(2):  # the way leads somewhere: it is not asked for again
        with Session("other" if way == "name" else "job", store=store, **how) as session:
            for number in (1, 2) if way == "back" else (3,):
                put(number)
        (info,) = [each for each in list_runs(store) if each.run == session.run_id]
        assert info.status in ("ok", "partial")
        how.setdefault("replay", "continue")
    assert box == {"back": [1, 2], "undo": [3], "undo_run": [3]}.get(way, [1, 2, 3])


@pytest.mark.parametrize("kind", ["session", "transaction", "branch"])
@pytest.mark.parametrize("looks", [True, False])
@pytest.mark.parametrize("depth", [1, 2])
def test_a_program_is_put_back_that_was_halted_in_a_block(
    store: Store, kind: str, depth: int, *, looks: bool
) -> None:
    """The empty block of the edited program stands in front of what the other one goes on with."""

    def block(session: Session) -> Any:
        if kind == "session":
            return Session("inner", store=store)
        return session.transaction() if kind == "transaction" else session.branch("inner")

    def run(*before: int, looks: bool = False) -> None:
        with Session("job", store=store) as session:
            for number in before:
                put(number)
            with ExitStack() as blocks:
                for _ in range(depth):
                    blocks.enter_context(block(session))
                if looks:
                    look()
                put(3)
            if len(before) > 1:
                put(4)
                raise ConnectionError

    with pytest.raises(ConnectionError):
        run(1, 2)
    assert box == [1, 2, 3, 4]
    for _ in range(2):
        with pytest.raises(Diverged):
            run(1, looks=looks)
        for _ in range(2):
            with pytest.raises(ConnectionError):
                run(1, 2)
    assert box == [1, 2, 3, 4]


def test_the_default_store_needs_no_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ROLLCAGE_STORE", raising=False)
    crashed(".rollcage", lambda: send("ann"))
    said, run = diverging("./.rollcage", lambda: send("eve"))
    assert f"rollcage show {run}; " in said
    assert "--store" not in said
    monkeypatch.setenv("ROLLCAGE_STORE", "elsewhere")
    assert store_option(open_store(".rollcage")) == f" --store {tmp_path / '.rollcage'}"
    assert store_option(open_store("elsewhere")) == ""
    assert store_option(open_store("my runs")) == f" --store '{tmp_path / 'my runs'}'"


@pytest.mark.parametrize("happened", [True, False])
def test_an_unknown_outcome_can_be_resolved(store: Store, happened: bool) -> None:
    with pytest.raises(UnknownOutcome) as first, Session("job", store=store) as session:
        vanish()
    command = f"rollcage resolve {session.run_id} 1{store_option(store)} --happened"
    assert command in str(first.value)
    assert "it was cut off by TimeoutError" in str(first.value)
    with pytest.raises(UnknownOutcome) as second, Session("job", store=store):
        vanish()
    assert command in str(second.value), "the run in which it happened, or did not"
    reachable.append(True)
    resolve_step(store, session.run_id, 1, happened=happened)
    if happened:  # a tool that gives something: what it gave has to be said, too
        with pytest.raises(NotReplayable, match="--result JSON"), Session("job", store=store):
            vanish()
        resolve_step(store, session.run_id, 1, happened=True, result="late")
    with Session("job", store=store):
        assert vanish() == "late"
    assert done == ([] if happened else ["vanish"])


def test_a_stop_can_be_lifted(store: Store) -> None:
    with pytest.raises(RunStopped) as live, Session("job", store=store) as session:
        stop_run(store, session.run_id, by="ann", reason="enough")
        file("x")
    command = f"rollcage stop {session.run_id} --lift{store_option(store)}"
    assert command in str(live.value)
    with pytest.raises(RunStopped) as resumed, Session("job", store=store):
        file("x")
    assert command in str(resumed.value)
    assert done == []
    lift_order(store, session.run_id)
    with Session("job", store=store):
        file("x")
    assert done == ["x"]


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
    store: Store, was: Any, now: Any, said: str
) -> None:
    @tool(name="ways.nested", effect="read")
    def nested(x: Any) -> None:
        pass

    with Session("job", store=store):
        nested(was)
    with pytest.raises(ReplayMiss) as raised, Session("job", store=store, replay="offline"):
        nested(now)
    assert f"it differs in argument 'x' {said}".replace("'x' 'x'", "'x'") in str(raised.value)
