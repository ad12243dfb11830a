"""Calls that never became steps are on record: what was asked for, and why nothing ran."""

import asyncio
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from pydantic import BaseModel, SecretStr
from rollcage import ArgumentsInvalid, Contract, tool
from rollcage.session.session import Session
from rollcage.store import JsonlStore

Events = Callable[[str], list[dict[str, Any]]]


class Login(BaseModel):
    user: str
    password: SecretStr


@tool(effect="write", version="2")
def put(what: str, often: int = 1) -> str:
    """Put something."""
    return what * often


@tool(effect="read", secret=["pin"])
def unlock(door: int, pin: str) -> str:
    """Unlock a door."""
    return "open"


@tool(effect="read")
def enter(login: Login, door: int) -> str:
    """Log in."""
    return "in"


def lines(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    keep = ("name", "version", "args", "code", "reason", "turn", "slot", "agent", "parent")
    return [
        {name: e[name] for name in keep if name in e}
        for e in events
        if e["event"] == "call.refused"
    ]


def test_arguments_that_do_not_pass(store: JsonlStore, events: Events) -> None:
    with Session("job", store=store) as session:
        put("a")
        with pytest.raises(ArgumentsInvalid):
            put(what=3, often="three")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - wrong on purpose
        with pytest.raises(ArgumentsInvalid):
            session.call(put, what="a", why=None)
        with pytest.raises(TypeError):
            put("a", 1, "more")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue] - wrong on purpose
        put("b")
        assert (session.stats.refused, session.stats.calls) == (3, 2)
    wrong, unknown, many = lines(events(session.run_id))
    assert wrong["args"] == {"what": 3, "often": "three"}
    assert (wrong["name"], wrong["version"], wrong["code"]) == ("put", "2", "arguments_invalid")
    assert "often: Input should be a valid integer" in wrong["reason"]
    assert "unknown argument 'why'" in unknown["reason"]
    assert many["args"] == {"what": "a", "often": 1, "*2": "more"}


async def test_async_and_streams_too(store: JsonlStore, events: Events) -> None:
    contract = Contract.of(put)
    async with Session("job", store=store) as session:
        with pytest.raises(ArgumentsInvalid):
            await session.acall(put, what=[])
        with pytest.raises(ArgumentsInvalid):
            session.astream(contract, {}, put)
    assert [each["args"] for each in lines(events(session.run_id))] == [{"what": []}, {}]


def test_a_tool_that_does_not_exist(store: JsonlStore, events: Events) -> None:
    with Session("job", store=store) as session, session.place(turn=1, slot=2, agent="Zoë"):
        session.refused("pu\udc80t", {"what": b"a", "pin": "one-2-3", "$rollcage": 1})
    (line,) = lines(events(session.run_id))
    assert (line["code"], line["turn"], line["slot"], line["agent"]) == (
        "tool_missing",
        1,
        2,
        "Zoë",
    )
    assert line["reason"] == "there is no tool called 'pu?t'"
    assert "one-2-3" not in store.read(session.run_id).data.decode(), (
        "a tool here calls it a secret"
    )


def test_what_has_no_encoding_is_named_by_its_path(store: JsonlStore, events: Events) -> None:
    def take(x: Any) -> None: ...

    deep: Any = []
    for _ in range(5000):
        deep = [deep]
    with Session("job", store=store) as session:
        for each in ({"a": [object()]}, deep, float):
            with pytest.raises(ArgumentsInvalid):
                session.call(take, x=each)
    first, *_ = found = lines(events(session.run_id))
    assert len(found) == 3
    assert "x.a[0]" in first["reason"] or "x['a'][0]" in first["reason"]


def test_secrets_stay_off_the_disk(store: JsonlStore, events: Events) -> None:
    with Session("job", store=store) as session:
        with pytest.raises(ArgumentsInvalid):
            unlock(door="x", pin="hunter2")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - wrong on purpose
        with pytest.raises(ArgumentsInvalid):
            enter(login={"user": "ann", "password": "hunter2"}, door="x")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - wrong on purpose
        with pytest.raises(ArgumentsInvalid):
            unlock(door=1, pin=["hunter2"])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - wrong on purpose
    assert b"hunter2" not in store.read(session.run_id).data
    first, second, third = lines(events(session.run_id))
    assert first["args"]["pin"]["$rollcage"] == "secret"
    assert second["args"]["login"]["$rollcage"] == "secret"
    assert third["args"]["pin"]["$rollcage"] == "secret"


def test_large_arguments_are_kept_beside_the_trace(store: JsonlStore, events: Events) -> None:
    with Session("job", store=store) as session, pytest.raises(ArgumentsInvalid):
        put(what="x" * 100_000, often="y")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - wrong on purpose
    (line,) = lines(events(session.run_id))
    digest = line["args"]["what"]["sha256"]
    assert orjson.loads(store.get_blob(digest)) == "x" * 100_000


@pytest.mark.parametrize("replay", ["resume", "offline", "verify"])
def test_a_replay_neither_needs_nor_counts_it(
    store: JsonlStore, events: Events, replay: Any
) -> None:
    def run(**how: Any) -> Session:
        with Session("job", store=store, **how) as session:
            put("a")
            if how.pop("guesses", True):
                with pytest.raises(ArgumentsInvalid):
                    put(what=None)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - wrong on purpose
            put("b")
        return session

    first = run()
    again = run(replay=replay, source=first.run_id)
    assert (again.stats.hits, again.stats.misses) == (2, 0)
    worlds = [
        [e["fingerprint"] for e in events(each.run_id) if "fingerprint" in e]
        for each in (first, again)
    ]
    assert worlds[0] == worlds[1]
    assert lines(events(first.run_id)) == lines(events(again.run_id))
    with Session("job", store=store, replay=replay, source=first.run_id) as clean:
        put("a")
        put("b")
    assert clean.stats.hits == 2
    assert lines(events(clean.run_id)) == []


def test_in_the_body_of_a_tool(store: JsonlStore, events: Events) -> None:
    @tool(effect="scope")
    def agent() -> str:
        try:
            put(what=1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - wrong on purpose
        except ArgumentsInvalid:
            return put("b")
        return "?"

    for _ in range(2):
        with Session("job", store=store) as session:
            assert agent() == "b"
        assert [each["parent"] for each in lines(events(session.run_id))] in ([1], [])


def test_threads_write_whole_lines(store: JsonlStore, events: Events) -> None:
    async def run() -> Session:
        async with Session("job", store=store) as session:

            async def guess() -> None:
                with pytest.raises(ArgumentsInvalid):
                    await asyncio.to_thread(put, what=1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - wrong on purpose

            await asyncio.gather(*(guess() for _ in range(20)))
            assert session.stats.refused == 20
        return session

    assert len(lines(events(asyncio.run(run()).run_id))) == 20
