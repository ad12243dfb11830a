"""Branches that come after others: replayed, changed, undone, misused."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from rollcage import Diverged, Options, Session, SessionError, compensate, open_store, tool

performed: list[str] = []


@tool(effect="write", name="after.put")
async def put(what: str) -> str:
    performed.append(what)
    return what


@tool(effect="read", name="after.look")
async def look() -> int:
    return len(performed)


async def diamond(session: Session, first: str = "a", *, last: bool = True) -> list[int]:
    """`a` and `b`, then `c` after both."""
    found: list[int] = []
    with session.turn(opens={"a": (), "b": (), "c": ("a", "b")}):
        with session.branch("a") as a:
            await put(first)
        with session.branch("b") as b:
            found.append(await look())
        if last:
            with session.branch("c", after=(a, b)):
                found.append(await look())
                await put("c")
    return found


async def once(store: Path, *given: str, last: bool = True, **how: Any) -> list[int]:
    async with Session("diamond", store=store, **how) as session:
        return await diamond(session, *given, last=last)


async def test_a_replay_gives_back_what_came_after(tmp_path: Path) -> None:
    performed.clear()
    recorded = await once(tmp_path)
    assert await once(tmp_path, replay="offline") == recorded
    assert performed == ["a", "c"]


@pytest.mark.parametrize("kind", ["branch", "transaction", "session", "behind a write"])
async def test_a_block_that_failed_before_its_first_write_keeps_its_place(
    tmp_path: Path, kind: str
) -> None:
    performed.clear()
    store = open_store(tmp_path)

    async def job(*, fails: bool) -> None:
        async with Session("failing", store=store, replay="continue") as session:
            with session.turn():
                if kind == "behind a write":
                    await put("a")
                else:
                    with session.branch("a"):
                        await put("a")
                await second(session, fails=fails)
            await put("c")

    async def second(session: Session, *, fails: bool) -> None:
        if kind == "transaction":
            block: Any = session.transaction()
        elif kind == "session":
            block = Session("inner", store=store)
        else:
            block = nullcontext()
        with session.branch("b"):
            async with block:
                if fails:
                    raise KeyError
                await put("b")

    with pytest.raises(KeyError):
        await job(fails=True)
    for _ in range(2):
        await job(fails=False)
    assert performed == ["a", "b", "c"]


async def test_branches_that_a_turn_opens_may_come_in_another_order(tmp_path: Path) -> None:
    performed.clear()

    async def job(*names: str) -> Session:
        async with Session("both", store=tmp_path) as session:
            with session.turn(opens={"a": (), "b": ()}):
                for name in names:
                    with session.branch(name):
                        await put(name)
            if len(names) < 2:
                raise KeyError
        return session

    with pytest.raises(KeyError):
        await job("a")
    session = await job("b", "a")
    assert (performed, session.stats.hits) == (["a", "b"], 1)


async def test_another_write_before_it_halts_before_anything_happens(tmp_path: Path) -> None:
    performed.clear()
    await once(tmp_path)
    with pytest.raises(Diverged, match=r"after\.put"):
        await once(tmp_path, "another", replay="resume")
    assert performed == ["a", "c"]


async def test_what_holds_no_longer_before_it_holds_no_longer_in_it(tmp_path: Path) -> None:
    """On purpose with `warn`, its read looks again, and its write is made in the new world."""
    performed.clear()
    recorded = await once(tmp_path)
    found = await once(tmp_path, "another", replay="resume", on_divergence="warn")
    assert performed == ["a", "c", "another", "c"]
    assert (recorded, found) == ([1, 1], [1, 3])


async def test_one_that_is_still_to_come_is_no_orphan(tmp_path: Path) -> None:
    """A new branch may write while a recorded one waits for its turn: it was announced."""
    performed.clear()

    async def work(session: Session, *, more: bool) -> None:
        with session.turn(opens={"a": (), "new": (), "b": ["a"]}):
            with session.branch("a") as a:
                await put("a")
            if more:
                with session.branch("new"):
                    await put("new")
            with session.branch("b", after=[a]):
                await put("b")

    for more in (False, True):
        async with Session("announced", store=tmp_path, replay="continue") as session:
            await work(session, more=more)
    assert performed == ["a", "b", "new"]


async def test_one_that_now_comes_after_a_new_write_is_an_orphan_before_that_is_made(
    tmp_path: Path,
) -> None:
    performed.clear()

    async def work(session: Session, *between: str) -> None:
        opens = {"a": (), "b": ("a", *between)} | dict.fromkeys(between, ("a",))
        with session.turn(opens=opens):
            with session.branch("a") as a:
                await put("a")
            after = [a]
            for name in between:
                with session.branch(name, after=[a]) as new:
                    await put(name)
                after.append(new)
            with session.branch("b", after=after):
                await put("b")

    async with Session("inserted", store=tmp_path) as session:
        await work(session)
    with pytest.raises(Diverged, match=r"after\.put"):
        async with Session("inserted", store=tmp_path, replay="continue") as session:
            await work(session, "between")
    assert performed == ["a", "b"]


async def test_only_ended_branches_of_the_same_one_come_before(tmp_path: Path) -> None:
    performed.clear()
    async with Session("misused", store=tmp_path) as session:
        with session.branch("a") as a:
            with pytest.raises(SessionError, match="whose blocks have ended"):  # noqa: SIM117
                with session.branch("b", after=[a]):
                    await put("b")
            with session.branch("inner") as inner:
                await put("inner")
        with pytest.raises(SessionError, match="'b' can only come after branches of the same one"):  # noqa: SIM117
            with session.branch("b", after=[inner]):
                await put("b")
    assert performed == ["inner"]


def test_sync_calls_come_after_in_the_same_way(tmp_path: Path) -> None:
    performed.clear()

    @tool(effect="write", name="after.sync")
    def sync(what: str) -> str:
        performed.append(what)
        return what

    def work(session: Session) -> None:
        with session.turn(opens={"a": (), "b": ("a",)}):
            with session.branch("a") as a:
                session.call(sync, what="a")
            with session.branch("b", after=[a]):
                session.call(sync, what="b")

    for replay in ("auto", "offline"):
        with Session("threads", store=tmp_path, replay=replay) as session:
            work(session)
    assert performed == ["a", "b"]


@tool(effect="write", name="after.remove", idempotent=True)
async def remove(what: str) -> None:
    performed.remove(what)


@tool(
    effect="write",
    name="after.add",
    undo=lambda args: [compensate(remove, what=args["what"])],
)
async def add(what: str) -> None:
    performed.append(what)


async def test_what_came_after_it_is_undone_first_where_that_is_asked_for(tmp_path: Path) -> None:
    performed.clear()

    async def work(session: Session, first: str) -> None:
        with session.turn(opens={"a": (), "b": ("a",), "beside": ()}):
            with session.branch("beside"):
                await add("beside")
            with session.branch("a") as a:
                await add(first)
            with session.branch("b", after=[a]):
                await add("b")

    async with Session("undoing", store=tmp_path) as session:
        await work(session, "a")
    how: dict[str, Any] = {
        "replay": "resume",
        "on_divergence": "undo",
        "options": Options(tools=[add, remove]),
    }
    async with Session("undoing", store=tmp_path, **how) as session:
        await work(session, "another")
    assert sorted(performed) == ["another", "b", "beside"]


async def test_an_undo_of_a_branch_covers_what_came_after_it_through_another(
    tmp_path: Path,
) -> None:
    performed.clear()
    async with Session("chain", store=tmp_path, options=Options(tools=[remove])) as session:
        with session.turn(opens={"a": (), "b": ("a",), "c": ("b",), "x": (), "y": ("x",)}):
            with session.branch("x") as x:
                await add("x")
            with session.branch("a") as a:
                await add("a")
            with session.branch("b", after=[a]) as b:
                pass
            with session.branch("c", after=[b]):
                await add("c")
            with session.branch("y", after=[x]):
                await add("y")
        await session.aundo(branch="a")
    assert performed == ["x", "y"]
