"""How a session is entered, left and misused."""

import asyncio
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rollcage import (
    ArgumentsInvalid,
    Contract,
    ContractError,
    Halt,
    Options,
    ReplayMiss,
    Session,
    SessionError,
    SessionHalted,
    Store,
    UnknownOutcome,
    current_step,
    tool,
)

Events = Callable[[str], list[dict[str, Any]]]
WAIT = Contract(name="wait", parameters={"properties": {}})


@tool(effect="write")
def write(number: int) -> str:
    return f"wrote {number}"


@tool(effect="write")
async def awrite(number: int) -> str:
    await asyncio.sleep(0)
    return f"wrote {number}"


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""},
        {"replay": "sometimes"},
        {"on_divergence": "undo it"},
    ],
    ids=str,
)
def test_what_a_session_does_not_know_is_refused_when_it_is_made(
    tmp_path: Path, wrong: dict[str, Any]
) -> None:
    with pytest.raises(SessionError):
        Session(**{"name": "job", "store": tmp_path / "store", **wrong})
    assert not (tmp_path / "store").exists()


def test_a_session_that_was_not_entered_does_nothing(store: Store) -> None:
    session = Session("job", store=store)
    uses: list[Callable[[], Any]] = [
        lambda: session.call(write, number=1),
        lambda: session.tool(write)(1),
        lambda: session.stats,
        lambda: session.halted,
        lambda: session.halt(Halt("over")),
        lambda: session.turn().__enter__(),
        lambda: session.branch("side").__enter__(),
        lambda: session.place(turn=1).__enter__(),
        lambda: session.__exit__(None, None, None),
    ]
    for use in uses:
        with pytest.raises(SessionError, match="not entered"):
            use()
    assert session.run_id == ""
    assert not Path(store.url).exists()


def test_a_session_is_entered_once(store: Store) -> None:
    with Session("job", store=store) as session:
        with pytest.raises(SessionError, match="once"):
            session.__enter__()
        write(1)
    with pytest.raises(SessionError, match="once"), session:
        pytest.fail("a session was entered twice")
    assert session.stats.calls == 1


def test_a_session_that_was_left_runs_nothing(store: Store, events: Events) -> None:
    ran = []
    with Session("job", store=store) as session:
        late = session.tool(tool(effect="write")(lambda: ran.append(1)))
    before = events(session.run_id)
    for call in (late, lambda: session.call(write, number=1)):
        with pytest.raises(SessionError, match="left"):
            call()
    assert ran == []
    assert events(session.run_id) == before
    assert session.stats.calls == 0  # what it did can still be read
    assert write(1) == "wrote 1"  # and the function is a function again


async def test_an_async_session_that_was_left_runs_nothing(store: Store) -> None:
    async with Session("job", store=store) as session:
        assert await session.acall(awrite, number=1) == "wrote 1"
        assert await session.acall(write, number=2) == "wrote 2"
    with pytest.raises(SessionError, match="left"):
        await session.acall(awrite, number=3)


def test_an_async_tool_is_not_called_as_a_sync_one(store: Store, events: Events) -> None:
    with Session("job", store=store) as session:
        with pytest.raises(SessionError, match="acall"):
            _ = session.call(awrite, number=1)
        with pytest.raises(SessionError, match="acall"):
            session.run_call(WAIT, {}, functools.partial(asyncio.sleep, 0))
        assert session.halted is None
    assert [each["event"] for each in events(session.run_id)][2:] == ["ended"]


def test_what_is_no_tool_is_refused(store: Store) -> None:
    with Session("job", store=store) as session:
        wrong: list[Any] = [None, "write", 7]
        for thing in wrong:
            with pytest.raises(ContractError, match="not a tool"):
                session.call(thing)
        with pytest.raises(ArgumentsInvalid, match="number"):
            session.call(write, number="many")
    assert session.stats.calls == 0


@pytest.mark.parametrize("name", [""])
def test_a_branch_needs_a_name_of_its_own(store: Store, name: str) -> None:
    with (
        Session("job", store=store) as session,
        pytest.raises(SessionError, match="branch"),
        session.branch(name),
    ):
        pytest.fail("a branch without a name was opened")


def test_a_seed_that_makes_other_worlds_is_refused(store: Store) -> None:
    with pytest.raises(KeyError), Session("job", store=store):
        raise KeyError
    with (
        pytest.raises(SessionError, match="seed"),
        Session("job", store=store, options=Options(seed="another")),
    ):
        pytest.fail("a run was resumed in another world")


def test_an_error_in_the_block_goes_through_as_it_is(store: Store) -> None:
    error = ValueError("mine")
    with pytest.raises(ValueError, match="mine") as caught, Session("job", store=store):
        raise error
    assert caught.value is error


def test_a_halt_from_outside_ends_the_run(store: Store, events: Events) -> None:
    stop = Halt("stop button")
    session = Session("job", store=store)
    with pytest.raises(Halt, match="stop button") as caught, session:
        write(1)
        session.halt(stop)
        session.halt(Halt("too late"))
        with pytest.raises(SessionHalted) as refused:
            write(2)
        assert refused.value.__cause__ is stop
    assert caught.value is stop
    assert events(session.run_id)[-1]["status"] == "halted"


def test_who_swallows_a_halt_is_told_when_the_session_is_left(store: Store) -> None:
    with Session("job", store=store):
        write(1)
    with pytest.raises(ReplayMiss), Session("job", store=store, replay="offline") as session:
        with pytest.raises(ReplayMiss):
            write(2)
        with pytest.raises(SessionHalted):
            write(1)
        assert isinstance(session.halted, ReplayMiss)
        raise ValueError("made of the halted call")


def test_the_idempotency_key_stays_over_resumes_and_is_new_for_a_fresh_run(
    store: Store,
) -> None:
    seen: list[tuple[str, str]] = []

    @tool(effect="write", idempotent=True)
    def pay() -> None:
        step = current_step()
        assert step is not None
        assert step.name == "pay"
        seen.append((step.run, step.idempotency_key))
        if len(seen) < 3:
            raise TimeoutError

    assert current_step() is None
    for _ in range(2):
        with pytest.raises(UnknownOutcome), Session("job", store=store):
            pay()
    with Session("job", store=store):
        pay()
    with Session("job", store=store):
        pay()
    runs, keys = zip(*seen, strict=True)
    assert [runs[0]] * 3 == list(runs[:3])
    assert runs[0] != runs[3]
    assert keys[0] == keys[1] == keys[2] != keys[3]
    assert len(keys[0]) == 64


def test_the_stats_tell_what_the_session_did(store: Store) -> None:
    with Session("job", store=store) as first:
        write(1)
    with Session("job", store=store, replay="resume") as second:
        write(1)
        write(2)
        with pytest.raises(ArgumentsInvalid):
            second.call(write, number="x")
    assert (first.stats.calls, first.stats.hits, first.stats.misses) == (1, 0, 1)
    assert (second.stats.calls, second.stats.hits, second.stats.misses) == (2, 1, 1)


def test_a_branch_inside_of_a_tool_keeps_the_step_in_sight(store: Store, events: Events) -> None:
    """The tool's own idempotency key can be read there, and calls are known as the tool's."""
    seen: list[Any] = []

    @tool(effect="scope")
    def outer(crashes: bool) -> None:
        seen.append(current_step())
        write(1)
        with session.branch("side") as side:
            seen.append(current_step())
            assert side.name == "side"
            side.call(write, number=2)
            with session.branch("deeper"):
                seen.append(current_step())
                write(3)
            write(4)
        if crashes:
            raise RuntimeError

    with pytest.raises(RuntimeError), Session("job", store=store) as session:
        outer(crashes=True)
    assert seen[0].name == "outer"
    assert seen == [seen[0]] * 3
    lines = {e["step"]: e for e in events(session.run_id) if e["event"] == "step"}
    inside = {e["args"]["number"]: e for e in lines.values() if e["name"] == "write"}
    own = inside[1]["branch"]
    assert own.startswith("#")
    around = {n: [e for e in lines.values() if e.get("name") == n] for n in ("side", "deeper")}
    assert [e["branch"] for e in around["side"]] == [own]
    assert [e["branch"] for e in around["deeper"]] == [inside[2]["branch"]]
    assert inside[2]["branch"] == inside[4]["branch"] != inside[3]["branch"]
    with Session("job", store=store) as session:
        with pytest.raises(RuntimeError):
            outer(crashes=True)
        assert (session.stats.hits, session.stats.misses) == (4, 1)


def test_a_read_is_on_record_before_its_blocks(store: Store, events: Events) -> None:
    @tool(effect="read")
    def look(at: str) -> str:
        return at

    @tool(effect="read")
    def survey() -> list[str]:
        found = []
        for each in ("left", "right"):
            with session.branch(each):
                found.append(look(each))
        return found

    with Session("job", store=store) as session:
        assert survey() == ["left", "right"]
    steps = [each for each in events(session.run_id) if each["event"] == "step"]
    assert [each["name"] for each in steps] == ["survey", "left", "look", "right", "look"]
    assert [each["step"] for each in steps] == [1, 2, 3, 4, 5]
    with Session("job", store=store, replay="continue") as session:
        assert survey() == ["left", "right"]
        assert (session.stats.hits, session.stats.misses) == (1, 0)


def test_named_arguments_beside_positional_ones_are_arguments_of_their_own(
    store: Store, events: Events
) -> None:
    @tool(effect="write")
    def tag(what: str, **labels: str) -> str:
        return f"{what} {labels}"

    with Session("job", store=store) as session:
        assert tag("a", colour="red") == tag(what="b", colour="red").replace("b", "a")
    steps = [event for event in events(session.run_id) if event["event"] == "step"]
    assert [step["args"] for step in steps] == [
        {"what": "a", "colour": "red"},
        {"what": "b", "colour": "red"},
    ]


def test_outside_of_any_session_a_tool_is_its_function() -> None:
    assert write(1) == "wrote 1"
    assert asyncio.run(awrite(number=2)) == "wrote 2"
