"""Generator functions as tools: their chunks come as they are made, are recorded, and replayed."""

import dataclasses
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from rollcage import ContractError, NotReplayable, Session, UnknownOutcome, compensate, tool
from rollcage.errors import OutputDrift

did: list[str] = []
out: list[str] = []


@dataclasses.dataclass
class Row:
    number: int


@tool(effect="read")
def rows(count: int) -> Iterator[Row]:
    for number in range(count):
        did.append(f"row {number}")
        yield Row(number)


@tool(effect="write")
def unsend(texts: list[str]) -> None:
    did.append(f"unsend {texts}")
    for text in texts:
        out.remove(text)


@tool(
    effect="write",
    undo=lambda result: [compensate(unsend, texts=result)],
    observe=lambda args: {"out": list(out)},
)
def send(texts: list[str]) -> Iterator[str]:
    for text in texts:
        did.append(f"send {text}")
        out.append(f"sent {text}")
        yield f"sent {text}"


@tool(effect="read")
async def ticks(count: int):  # type: ignore[no-untyped-def]  # an undeclared type streams too
    for number in range(count):
        did.append(f"tick {number}")
        yield number


@pytest.fixture(autouse=True)
def _fresh() -> None:
    did.clear()
    out.clear()


def test_chunks_come_as_they_are_made_and_are_given_back_with_their_types(tmp_path: Path) -> None:
    with Session("job", store=tmp_path) as session:
        stream = rows(2)
        assert did == []  # as of any generator
        assert next(stream) == Row(0)
        assert did == ["row 0"]
        assert list(stream) == [Row(1)]
        assert list(session.call(send, texts=["a", "b"])) == ["sent a", "sent b"]
    did.clear()
    with Session("job", store=tmp_path, replay="offline") as session:
        assert list(rows(count=2)) == [Row(0), Row(1)]
        assert list(send(["a", "b"])) == ["sent a", "sent b"]
    assert (session.stats.hits, did) == (2, [])
    assert list(rows(1)) == [Row(0)]  # outside of a session it runs plainly


async def test_async_generators_are_streams_too(tmp_path: Path) -> None:
    for mode, ran in (("off", ["tick 0", "tick 1"] * 2), ("offline", [])):
        did.clear()
        with Session("job", store=tmp_path, replay=mode) as session:  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - wrong on purpose
            assert [each async for each in ticks(2)] == [0, 1]
            assert [each async for each in session.call(ticks, count=2)] == [0, 1]
        assert did == ran


def test_a_session_binds_a_generator_as_any_function(tmp_path: Path) -> None:
    with Session("job", store=tmp_path) as session:
        bound = session.tool(rows)
        assert list(bound(1)) == [Row(0)]
        assert session.stats.misses == 1


def test_a_read_that_was_left_early_gives_what_was_taken_and_no_more(tmp_path: Path) -> None:
    with Session("job", store=tmp_path):
        stream = rows(3)
        next(stream)
        stream.close()  # type: ignore[attr-defined]  # a generator's  # pyright: ignore[reportAttributeAccessIssue] - wrong on purpose
    with (
        pytest.raises(NotReplayable, match="not read any further than this"),
        Session("job", store=tmp_path, replay="offline"),
    ):
        again = rows(3)
        assert next(again) == Row(0)
        next(again)


def test_a_write_that_was_left_early_is_of_unknown_outcome(tmp_path: Path) -> None:
    with (
        pytest.raises(
            UnknownOutcome,
            match=r"step 1 \(send\) .* was cut off",
        ),
        Session("job", store=tmp_path),
    ):
        stream = send(["a", "b"])
        next(stream)
        stream.close()  # type: ignore[attr-defined]  # a generator's  # pyright: ignore[reportAttributeAccessIssue] - wrong on purpose


def test_a_stream_stands_in_its_branch_and_is_taken_back_by_its_chunks(tmp_path: Path) -> None:
    with Session("job", store=tmp_path) as session:
        with session.branch("left"):
            assert list(send(["a"])) == ["sent a"]
        with pytest.raises(KeyError), session.transaction():
            list(send(["b"]))
            raise KeyError
    assert did == ["send a", "send b", "unsend ['sent b']"]


def test_what_a_stream_breaks_of_its_output_is_told_at_its_end(tmp_path: Path) -> None:
    @tool(effect="read", on_drift="error")
    def numbers() -> Iterator[int]:
        yield "1"  # type: ignore[misc]  # the mistake  # pyright: ignore[reportReturnType] - wrong on purpose

    with Session("job", store=tmp_path), pytest.raises(OutputDrift, match=r"at \$\[0\]"):
        list(numbers())


async def test_what_is_no_stream_s_is_refused_with_the_next_step(tmp_path: Path) -> None:
    with Session("job", store=tmp_path) as session:
        with pytest.raises(ContractError, match=r"for chunk in session.call\(rows, "):
            await session.acall(rows, count=1)
        with pytest.raises(ContractError, match="async for chunk"):
            await session.acall(ticks, count=1)

    @tool(effect="write", undo=lambda: [compensate(rows, count=1)])
    def write() -> None:
        raise AssertionError("it ran")

    with Session("job", store=tmp_path), pytest.raises(Exception, match="nothing would read"):
        write()


@pytest.mark.parametrize(
    ("returns", "instead"),
    [
        (Generator[int, str, None], r"Iterator\[int\]"),
        (Generator[int, None, bool], r"Iterator\[int\]"),
        (AsyncGenerator[int, str], r"AsyncIterator\[int\]"),
    ],
)
def test_a_generator_that_is_sent_values_or_returns_one_is_refused(
    returns: Any, instead: str
) -> None:
    def talk() -> Any:
        yield 1

    talk.__annotations__["return"] = returns
    with pytest.raises(ContractError, match=f"talk: of a stream the chunks.*declare {instead}"):
        tool(talk)
    talk.__annotations__["return"] = Generator[int, None, None]
    tool(talk)
    talk.__annotations__["return"] = AsyncIterator[int]
    tool(talk)
