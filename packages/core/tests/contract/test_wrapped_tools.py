"""A wrapper around a declared tool: what was passed is what runs, guarded as declared."""

import functools
from pathlib import Path
from typing import Any

import pytest
from rollcage import Session, aundo_run, compensate, open_store, tool
from rollcage.session.adapters import plain_body


class Shelf:
    """What was done, with a declared tool that does it and a wrapper around that."""

    def __init__(self) -> None:
        self.done: list[str] = []

        @tool(effect="write", name="shelf.unput")
        async def unput(what: str) -> None:
            self.done.append(f"un{what}")

        @functools.wraps(unput)
        async def unput_loudly(what: str) -> None:
            self.done.append("around the undo")
            await unput(what)

        def undo(args: dict[str, Any]) -> Any:
            return [compensate(unput, what=args["what"])]

        @tool(effect="write", name="shelf.put", undo=undo)
        async def put(what: str) -> str:
            self.done.append(what)
            return what

        @functools.wraps(put)
        async def put_loudly(what: str) -> str:
            self.done.append("around")
            return str(await put(what)).upper()

        self.put, self.put_loudly, self.unput_loudly = put, put_loudly, unput_loudly


async def _acall(session: Session, given: Any) -> Any:
    return await session.acall(given, what="x")


async def _bound(session: Session, given: Any) -> Any:
    return await session.tool(given)(what="x")


async def _bound_and_called(session: Session, given: Any) -> Any:
    return await session.acall(session.tool(given), what="x")


@pytest.mark.parametrize("how", [_acall, _bound, _bound_and_called])
async def test_a_wrapper_runs_guarded_once_and_is_undone_once(how: Any, tmp_path: Path) -> None:
    shelf = Shelf()
    async with Session("job", store=tmp_path) as session:
        assert await how(session, shelf.put_loudly) == "X"
    assert shelf.done == ["around", "x"]
    events = open_store(tmp_path).read(session.run_id)
    assert sum(b'"event":"step"' in event for event in events) == 2  # it, and what it calls
    async with Session("job", store=tmp_path, replay="continue") as session:
        assert await how(session, shelf.put_loudly) == "X"
    assert shelf.done == ["around", "x"]
    await aundo_run(open_store(tmp_path), session.run_id, tools=[shelf.put, shelf.unput_loudly])
    assert shelf.done == ["around", "x", "around the undo", "unx"]


def test_a_sync_wrapper_runs_too(tmp_path: Path) -> None:
    done: list[int] = []

    @tool(effect="read")
    def double(n: int) -> int:
        return 2 * n

    @functools.wraps(double)
    def doubled_and_counted(n: int) -> int:
        done.append(n)
        return double(n) + 1

    with Session("job", store=tmp_path) as session:
        assert session.call(doubled_and_counted, n=2) == 5
    assert done == [2]


def test_what_is_declared_over_a_wrapper_has_that_wrapper_as_its_body() -> None:
    shelf = Shelf()
    again = tool(effect="read", name="shelf.again")(shelf.put_loudly)
    assert plain_body(again) is shelf.put_loudly
    assert plain_body(shelf.put_loudly) is shelf.put_loudly
    assert plain_body(shelf.put) is not shelf.put


async def test_an_async_tool_runs_without_a_session() -> None:
    @tool(effect="read")
    async def double(number: int) -> int:
        return 2 * number

    assert await double(4) == 8
    assert await double(number=4) == 8
