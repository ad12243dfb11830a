"""A tool's own functions (`observe`, `probe`, `undo`) look at the world, not at the record."""

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import orjson
import pytest
from cuts import cut_log
from rollcage import (
    Blocked,
    CaptureFailed,
    DidNotHappen,
    Happened,
    Options,
    Session,
    SessionError,
    UnknownOutcome,
    Verdict,
    aundo_run,
    compensate,
    current_step,
    open_store,
    tool,
    undo_run,
)

told: list[str] = []


@pytest.fixture(autouse=True)
def new_world() -> None:
    told.clear()


def booked(name: str) -> int:
    return told.count(f"+{name}") - told.count(f"-{name}")


@tool(effect="read")
def look(name: str) -> int:
    """Count what is booked under a name."""
    return booked(name)


@tool(effect="read")
async def alook(name: str) -> int:
    """Count what is booked under a name."""
    await asyncio.sleep(0)
    return booked(name)


@tool(effect="write", name="looks.cancel", idempotent=True)
def cancel(name: str) -> None:
    """Cancel a booking."""
    if booked(name):
        told.append(f"-{name}")


def seen(args: Any) -> dict[str, Any]:
    return {args["name"]: look(args["name"])}


async def aseen(args: Any) -> dict[str, Any]:
    return {args["name"]: await alook(args["name"])}


def plan(args: Any, before: Any) -> list[Any]:
    assert look(args["name"]) == before[args["name"]]
    return [compensate(cancel, name=args["name"])]


@tool(name="looks.book", observe=seen, undo=plan)
def book(name: str) -> str:
    """Book something."""
    told.append(f"+{name}")
    return name


@tool(name="looks.book", observe=seen, undo=plan)
async def book_beside_a_thread(name: str) -> str:
    """Book something; a thread observes it."""
    told.append(f"+{name}")
    return name


@tool(name="looks.book", observe=aseen, undo=plan)
async def abook(name: str) -> str:
    """Book something; a coroutine observes it."""
    await asyncio.sleep(0)
    told.append(f"+{name}")
    return name


@tool(effect="write")
def new(name: str) -> str:
    """Do something that was never recorded."""
    told.append(f"+{name}")
    return name


COLOURS = pytest.mark.parametrize(
    "book", [book, book_beside_a_thread, abook], ids=["sync", "thread", "async"]
)


class Entered:
    """Enter a session or a block in the colour of a tool."""

    def __init__(self, book: Any, block: Any) -> None:
        self.is_async, self.block = inspect.iscoroutinefunction(book), block

    async def __aenter__(self) -> Any:
        return await self.block.__aenter__() if self.is_async else self.block.__enter__()

    async def __aexit__(self, *error: object) -> Any:
        if self.is_async:
            return await self.block.__aexit__(*error)
        return self.block.__exit__(*error)


async def done(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def carried_out(book: Any, program: Coroutine[Any, Any, Any]) -> None:
    """Run a program on a loop, or without one."""
    if inspect.iscoroutinefunction(book):
        asyncio.run(program)
        return
    with pytest.raises(StopIteration):
        program.send(None)


def entered(book: Any, store: Path, name: str = "job", **how: Any) -> Entered:
    how["options"] = Options(tools=[book, cancel])
    return Entered(book, Session(name, store=store, **how))


async def undone(book: Any, undo: Any, aundo: Any, *args: Any, **how: Any) -> list[str]:
    """Undo in the colour of a tool, and return the statuses."""
    report = await done((aundo if inspect.iscoroutinefunction(book) else undo)(*args, **how))
    return [each.status for each in report.steps]


def log_of(store: Path) -> Path:
    (log,) = (store / "logs").glob("*.jsonl")
    return log


def recorded(store: Path, event: str) -> list[dict[str, Any]]:
    read = map(orjson.loads, open_store(store).read(log_of(store).stem))
    return [line for line in read if line["event"] == event]


def names(store: Path) -> list[str]:
    return [line["name"] for line in recorded(store, "step")]


# --- the world, not the record --------------------------------------------------------------------


@COLOURS
def test_a_look_is_no_step(tmp_path: Path, book: Any) -> None:
    async def program() -> None:
        async with entered(book, tmp_path) as session:
            await done(book("a"))
            assert (session.stats.calls, session.stats.misses) == (1, 1)
        async with entered(book, tmp_path, replay="continue") as session:
            await done(book("a"))
            assert (session.stats.calls, session.stats.hits) == (1, 1)

    carried_out(book, program())
    assert names(tmp_path) == ["looks.book"]
    assert told == ["+a"]


@COLOURS
def test_an_undo_of_what_lies_ahead_sees_the_world(tmp_path: Path, book: Any) -> None:
    async def program() -> None:
        async with entered(book, tmp_path):
            await done(alook("a") if book is abook else look("a"))
            await done(book("a"))
        how: Any = {"replay": "continue", "on_divergence": "undo"}
        async with entered(book, tmp_path, **how) as session:
            is_async = inspect.iscoroutinefunction(book)
            await done(session.acall(new, name="b") if is_async else new("b"))

    carried_out(book, program())
    assert told == ["+a", "-a", "+b"]


@COLOURS
@pytest.mark.parametrize("to", [None, 1])
def test_an_undo_in_a_session_sees_the_world(tmp_path: Path, book: Any, to: int | None) -> None:
    async def program() -> None:
        async with entered(book, tmp_path) as session:
            await done(book("a"))
            await done(book("b"))
            statuses = await undone(book, session.undo, session.aundo, to)
            assert set(statuses) == {"verified"}

    carried_out(book, program())
    assert told == ["+a", "+b", "-b", *(["-a"] if to is None else [])]


@COLOURS
def test_an_undo_of_a_run_sees_the_world(tmp_path: Path, book: Any) -> None:
    async def program() -> None:
        async with entered(book, tmp_path) as session:
            await done(book("a"))
        tools = [book, cancel]
        statuses = await undone(book, undo_run, aundo_run, tmp_path, session.run_id, tools=tools)
        assert statuses == ["verified"]

    carried_out(book, program())
    assert told == ["+a", "-a"]
    assert names(tmp_path) == ["looks.book", "looks.cancel"]


@COLOURS
def test_a_rollback_sees_the_world(tmp_path: Path, book: Any) -> None:
    async def program() -> None:
        async with entered(book, tmp_path) as session:
            with pytest.raises(ZeroDivisionError):
                async with Entered(book, session.transaction()):
                    await done(book("a"))
                    raise ZeroDivisionError

    carried_out(book, program())
    assert told == ["+a", "-a"]


@COLOURS
def test_an_undo_in_a_nested_session_sees_the_world(tmp_path: Path, book: Any) -> None:
    async def program() -> None:
        async with entered(book, tmp_path), entered(book, tmp_path, "inner") as inner:
            await done(book("a"))
            assert await undone(book, inner.undo, inner.aundo) == ["verified"]

    carried_out(book, program())
    assert told == ["+a", "-a"]
    assert "look" not in names(tmp_path)


@COLOURS
@pytest.mark.parametrize("happened", [True, False])
def test_a_write_in_doubt_is_compared_with_the_world(
    tmp_path: Path, book: Any, happened: bool
) -> None:
    async def program() -> None:
        async with entered(book, tmp_path):
            await done(book("a"))
        cut_log(log_of(tmp_path), 3)  # its intent is the last
        if not happened:
            told.clear()
        async with entered(book, tmp_path):
            await done(book("a"))

    if happened:
        with pytest.raises(UnknownOutcome):
            carried_out(book, program())
    else:
        carried_out(book, program())
    assert told == ["+a"]


@COLOURS
@pytest.mark.parametrize(
    ("lines", "cancelled"),
    [(5, False), (6, False), *((lines, True) for lines in range(5, 9))],
    ids=str,
)
def test_a_killed_undo_is_finished_by_the_world(
    tmp_path: Path, book: Any, lines: int, cancelled: bool
) -> None:
    async def program() -> None:
        async with entered(book, tmp_path) as session:
            await done(book("a"))
            await undone(book, session.undo, session.aundo)
        assert recorded(tmp_path, "undone")
        cut_log(log_of(tmp_path), lines)  # `undoing` is the fifth line, the last one `back`
        if not cancelled:
            told.remove("-a")
        async with entered(book, tmp_path):
            pass

    carried_out(book, program())
    assert told == ["+a", "-a"]
    assert [line["status"] for line in recorded(tmp_path, "back")] == ["verified"]


# --- what it may call -----------------------------------------------------------------------------


def test_a_write_in_an_observe_is_refused(tmp_path: Path) -> None:
    @tool(observe=lambda args: {"b": new(args["name"])})
    def put(name: str) -> None:
        """Put something."""
        told.append(f"={name}")

    with (
        Session("job", store=tmp_path),
        pytest.raises(CaptureFailed, match="the observe of put called new, which has the effect"),
    ):
        put("a")
    assert told == []


async def test_a_write_in_an_async_observe_is_refused(tmp_path: Path) -> None:
    @tool(effect="write")
    async def anew(name: str) -> str:
        told.append(f"+{name}")
        return name

    async def observe(args: Any) -> dict[str, Any]:
        return {"b": await anew(args["name"])}

    @tool(observe=observe)
    async def put(name: str) -> None:
        """Put something."""
        told.append(f"={name}")

    async with Session("job", store=tmp_path):
        with pytest.raises(CaptureFailed, match="the observe of put called anew"):
            await put("a")
    assert told == []


def test_a_write_in_an_undo_is_refused(tmp_path: Path) -> None:
    @tool(undo=lambda args: [new(args["name"])])
    def put(name: str) -> None:
        """Put something."""
        told.append(f"={name}")

    with (
        Session("job", store=tmp_path),
        pytest.raises(CaptureFailed, match="the undo of put called new"),
    ):
        put("a")
    assert told == []


@pytest.mark.parametrize("asks", [Happened("a"), DidNotHappen()])
def test_a_probe_reads_and_does_not_write(tmp_path: Path, asks: Any) -> None:
    refused: list[str] = []

    def probe(args: Any) -> Any:
        assert look(args["name"]) == 1
        with pytest.raises(Blocked) as error:
            new(args["name"])
        refused.append(error.value.verdict_code)
        return asks

    @tool(probe=probe)
    def put(name: str) -> str:
        """Put something, and say that it failed."""
        told.append(f"+{name}")
        raise ValueError(name)

    with Session("job", store=tmp_path):
        if isinstance(asks, Happened):
            assert put("a") == "a"
        else:
            with pytest.raises(ValueError, match="a"):
                put("a")
    assert refused == ["look_only"]
    assert told == ["+a"]
    assert names(tmp_path) == ["put"]


@pytest.mark.parametrize("decision", ["deny", "ask"])
def test_a_read_that_a_rule_denies_stays_denied(tmp_path: Path, decision: Any) -> None:
    def rule(step: Any) -> Verdict:
        if step.contract.name == "look":
            return Verdict(decision, "it is none of its business", "private")
        return Verdict.allow()

    with (
        Session("job", store=tmp_path, gate=[rule]),
        pytest.raises(CaptureFailed, match="none of its business"),
    ):
        book("a")
    assert told == []


def test_a_rule_counts_the_calls_before_a_look(tmp_path: Path) -> None:
    seen: list[tuple[str, str, int]] = []

    def rule(step: Any) -> Verdict:
        seen.append((step.contract.name, step.args["name"], step.run.calls))
        return Verdict.allow()

    with Session("job", store=tmp_path, gate=[rule]):
        new("a")
        new("b")
        book("c")
    assert next(each for each in seen if each[0] == "look") == ("look", "c", 3)


def test_a_read_is_not_refused_where_unguarded_tools_are(tmp_path: Path) -> None:
    options = Options(unguarded="refuse")
    with Session("job", store=tmp_path, gate=[lambda _: Verdict.allow()], options=options) as job:
        book("a")
        assert [each.status for each in job.undo().steps] == ["verified"]
    assert told == ["+a", "-a"]


def test_a_bound_read_looks_as_well(tmp_path: Path) -> None:
    with Session("outer", store=tmp_path / "outer") as outer:
        bound = outer.tool(look)
        stays = outer.tool(new)

        def observe(args: Any) -> dict[str, Any]:
            with pytest.raises(Blocked, match="the observe of put called new"):
                stays(args["name"])
            return {"a": bound(args["name"]), "again": outer.call(look, name=args["name"])}

        @tool(observe=observe, undo=lambda args: [compensate(cancel, name=args["name"])])
        def put(name: str) -> None:
            """Put something."""
            told.append(f"+{name}")

        with Session("job", store=tmp_path) as job:
            put("a")
            assert [each.status for each in job.undo().steps] == ["verified"]
        assert outer.stats.calls == 0
    assert told == ["+a", "-a"]


def opens(job: Session, store: Path) -> dict[str, Callable[[], Any]]:
    def enter(block: Any) -> None:
        with block:
            pass

    return {
        "branch": lambda: enter(job.branch("b")),
        "transaction": lambda: enter(job.transaction()),
        "session": lambda: enter(Session("inner", store=store)),
        "elsewhere": lambda: enter(Session("inner", store=store / "elsewhere")),
        "undo": job.undo,
    }


@pytest.mark.parametrize("what", opens(Session("none"), Path()))
def test_no_block_and_no_session_is_opened_in_a_look(tmp_path: Path, what: str) -> None:
    def observe(args: Any) -> dict[str, Any]:
        assert current_step() is None
        return {"a": opens(job, tmp_path)[what]()}

    @tool(observe=observe)
    def put(name: str) -> None:
        """Put something."""
        told.append(f"={name}")

    with (
        Session("job", store=tmp_path) as job,
        pytest.raises(CaptureFailed, match="in the observe of put") as raised,
    ):
        put("a")
    assert isinstance(raised.value.__cause__, SessionError)
    assert told == []
    assert names(tmp_path) == []


def test_a_stream_is_refused_in_a_look(tmp_path: Path) -> None:
    @tool(effect="read")
    def pages(name: str) -> Any:
        """Read page by page."""
        yield name

    @tool(observe=lambda args: {"a": list(pages(args["name"]))})
    def put(name: str) -> None:
        """Put something."""
        told.append(f"={name}")

    with Session("job", store=tmp_path), pytest.raises(CaptureFailed, match="pages, which streams"):
        put("a")
