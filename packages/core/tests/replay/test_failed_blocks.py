"""Blocks that fail before their first write go on, beside what was done meanwhile."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from rollcage import Contract, Diverged, Options, Session, compensate, open_store, tool

performed: list[str] = []
Made = Callable[[Session], Awaitable[None]]


@pytest.fixture(autouse=True)
def nothing_performed() -> None:
    performed.clear()


@tool(effect="write", name="failed.put")
async def put(what: str) -> str:
    await asyncio.sleep(0)
    performed.append(what)
    return what


@tool(effect="read", name="failed.look")
async def look(what: str) -> str:
    return what


async def attempt(store: Path, made: Made, replay: Any = "continue") -> str:
    """Run or resume a job; return what ended it: nothing, a failure or a halt."""
    try:
        async with Session("job", store=store, replay=replay) as session:
            await made(session)
    except (KeyError, Diverged) as error:
        return type(error).__name__
    return ""


def block_of(session: Session, kind: str) -> Any:
    return session.transaction() if kind == "transaction" else session.branch("b")


async def together(*members: Awaitable[Any]) -> None:
    """Await all members, and raise the first error."""
    for ended in await asyncio.gather(*members, return_exceptions=True):
        if isinstance(ended, BaseException):
            raise ended


def lines(store: Path) -> list[Any]:
    """Return the lines of the only run, without what is another one each time."""
    (run,) = open_store(store).runs()
    found = [orjson.loads(line) for line in open_store(store).read(orjson.loads(run.first)["run"])]
    own = ("run", "id", "time", "duration", "hash", "error")
    return [{name: line[name] for name in line if name not in own} for line in found]


@pytest.mark.parametrize("kind", ["branch", "transaction"])
async def test_a_gathered_block_goes_on_beside_a_write(tmp_path: Path, kind: str) -> None:
    fails = True

    async def member(session: Session) -> None:
        with block_of(session, kind):
            await asyncio.sleep(0)
            if fails:
                raise KeyError
            await put("b")

    async def job(session: Session) -> None:
        await together(put("a"), member(session))
        await put("c")

    ended = [await attempt(tmp_path, job)]
    fails = False
    ended += [await attempt(tmp_path, job) for _ in range(2)]
    assert ended == ["KeyError", "", ""]
    assert performed == ["a", "b", "c"]
    assert await attempt(tmp_path, job, "offline") == ""


@pytest.mark.parametrize("kind", ["branch", "transaction"])
async def test_a_block_of_reads_beside_a_write_is_found_behind_it(
    tmp_path: Path, kind: str
) -> None:
    """It was open while the write began, so it may come after it as well."""

    async def reads(session: Session) -> None:
        with block_of(session, kind):
            await asyncio.sleep(0.01)
            await look("r")

    async def puts(session: Session) -> None:
        with session.turn():  # of its own
            await put("a")

    async def first(session: Session) -> None:
        await together(reads(session), puts(session))

    async def second(session: Session) -> None:
        await puts(session)
        await reads(session)

    assert [await attempt(tmp_path, each) for each in (first, second)] == ["", ""]
    assert await attempt(tmp_path, second, "offline") == ""
    steps = [line["name"] for line in lines(tmp_path) if line["event"] == "step"]
    assert len(steps) == 3  # the block, its read, and the write
    assert performed == ["a"]


async def test_of_two_blocks_of_one_name_each_keeps_its_own(tmp_path: Path) -> None:
    fails = True

    async def reads(session: Session) -> None:
        async with session.transaction():
            await asyncio.sleep(0)
            if fails:
                raise KeyError
            await look("r")

    async def writes(session: Session) -> None:
        async with session.transaction():
            await put("b")

    async def job(session: Session) -> None:
        await together(put("a"), reads(session), writes(session))

    ended = [await attempt(tmp_path, job)]
    fails = False
    ended += [await attempt(tmp_path, job) for _ in range(2)]
    assert ended == ["KeyError", "", ""]
    assert performed == ["a", "b"]


async def test_a_write_in_a_block_ahead_of_a_new_one_is_not_made_again(tmp_path: Path) -> None:
    """The second block was opened in the first attempt, and written in behind the new one."""
    begins, writes = set[str](), set[str]()

    async def member(session: Session, name: str) -> None:
        if name not in begins:
            raise KeyError
        with session.branch(name):
            if name not in writes:
                raise KeyError
            await put(name)

    async def job(session: Session) -> None:
        await together(member(session, "a"), member(session, "b"))

    begins.add("b")
    ended = [await attempt(tmp_path, job)]
    begins.add("a")
    writes.add("b")
    ended.append(await attempt(tmp_path, job))
    writes.add("a")
    ended.append(await attempt(tmp_path, job))
    assert ended == ["KeyError", "KeyError", "Diverged"]
    assert performed == ["b"]


async def test_a_new_block_beside_recorded_ones_is_no_later_one(tmp_path: Path) -> None:
    """The recorded blocks of the turn were opened, and one has yet to ask for its calls."""
    fails = True

    async def first(session: Session) -> None:
        with session.branch("first"):
            await put("a")

    async def second(session: Session) -> None:
        with session.branch("second"):
            await asyncio.sleep(0)
            await put("b")

    async def third(session: Session) -> None:
        if fails:
            raise KeyError
        with session.branch("third"):
            await put("c")

    async def job(session: Session) -> None:
        with session.turn():
            await together(first(session), second(session), third(session))

    ended = [await attempt(tmp_path, job)]
    fails = False
    ended += [await attempt(tmp_path, job) for _ in range(2)]
    assert ended == ["KeyError", "", ""]
    assert performed == ["a", "b", "c"]


async def test_a_block_rolled_back_beside_a_later_read_is_made_anew(tmp_path: Path) -> None:
    """The read is of the same message, and came only in the second attempt."""
    failing = "outer"

    async def job(session: Session) -> None:
        with session.turn() as turn:
            if failing != "outer":
                with turn.slot(0):
                    await look("r")
            with turn.slot(1):
                async with session.transaction():
                    if failing == "outer":
                        raise KeyError
                    async with session.transaction():
                        if failing:
                            raise KeyError
                        await put("a")
        await put("b")

    ended = [await attempt(tmp_path, job)]
    failing = "inner"
    ended.append(await attempt(tmp_path, job))
    failing = ""
    ended += [await attempt(tmp_path, job) for _ in range(2)]
    assert ended == ["KeyError", "KeyError", "", ""]
    assert performed == ["a", "b"]


async def test_a_message_is_one_turn_where_a_failed_block_comes_first(tmp_path: Path) -> None:
    """A later attempt recorded the block than the read, so they have two turns on record."""
    calls, fails = 1, True

    async def failing(session: Session) -> None:
        with session.branch("b"):
            if fails:
                raise KeyError
            await put("a")

    async def job(session: Session) -> None:
        failed: KeyError | None = None
        with session.turn() as turn:
            if calls > 1:
                try:
                    with turn.slot(0):
                        await failing(session)
                except KeyError as error:
                    failed = error
            with turn.slot(1):
                await look("r")
            if calls > 2:
                with turn.slot(2):
                    await put("c")
        if failed is not None or calls < 3:
            raise failed or KeyError

    ended = [await attempt(tmp_path, job)]
    calls = 2
    ended.append(await attempt(tmp_path, job))
    calls = 3
    ended.append(await attempt(tmp_path, job))
    fails = False
    ended += [await attempt(tmp_path, job) for _ in range(2)]
    assert ended == ["KeyError", "KeyError", "KeyError", "", ""]
    assert performed == ["c", "a"]


async def test_no_record_tells_a_sibling_from_what_was_done_for_the_failure(
    tmp_path: Path,
) -> None:
    """Nothing ran at the same time: so the second program must halt, and the first one does too."""
    fails = True

    async def failing(session: Session) -> None:
        with session.branch("b"):
            if fails:
                raise KeyError
            await put("a")

    async def gathered(session: Session) -> None:
        await together(failing(session), put("c"))

    async def one_by_one(session: Session) -> None:
        try:
            await failing(session)
        except KeyError:
            await put("c")  # in place of "a"
            raise

    logs: list[Any] = []
    for job in (gathered, one_by_one):
        fails = True
        store = tmp_path / job.__name__
        assert await attempt(store, job) == "KeyError"
        logs.append(lines(store))
        performed.clear()
        fails = False
        assert await attempt(store, job) == "Diverged"
        assert performed == []
    assert logs[0] == logs[1]


@pytest.mark.parametrize("order", [("add", "fail"), ("fail", "add")])
@pytest.mark.parametrize("effect", ["pure", "read", "model"])
def test_what_failed_in_a_block_taken_back_runs_again(
    tmp_path: Path, effect: str, order: tuple[str, ...]
) -> None:
    """Calls that are made again beside it have not acted upon its failure."""
    ran: list[str] = []

    @tool(effect="write", name="failed.add", undo=lambda args, result: [compensate(take)])
    def add() -> None:
        ran.append("add")

    @tool(effect="write", name="failed.take")
    def take() -> None:
        ran.append("take")

    def fail() -> str:
        ran.append("fail")
        if ran.count("fail") < 4:
            raise ConnectionRefusedError
        return "at last"

    kind: Any = "model" if effect == "model" else "tool"
    contract = Contract(
        name="failed.fail", parameters={}, effect="pure" if effect == "pure" else "read"
    )

    def job(session: Session, order: tuple[str, ...]) -> None:
        failed: list[ConnectionError] = []
        with session.transaction():
            with session.turn() as turn:
                for name in order:
                    with turn.slot(["add", "fail"].index(name)):
                        if name == "add":
                            add()
                            continue
                        try:
                            session.run_call(contract, {}, fail, kind=kind)
                        except ConnectionError as error:
                            failed.append(error)
            for each in failed:
                raise each

    for _ in range(3):
        session = Session("job", store=tmp_path, options=Options(tools=[take]))
        with pytest.raises(ConnectionError), session:
            job(session, order)
        order = order[::-1]
    with Session("job", store=tmp_path) as session:
        job(session, order)
    assert (ran.count("fail"), ran.count("add"), ran.count("take")) == (4, 4, 3)
