"""The output contract: an output that breaks it is an error, live and replayed; the raw is kept."""

import dataclasses
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple, cast

import pydantic
import pytest
from rollcage import (
    Blocked,
    Contract,
    ContractError,
    Options,
    Session,
    Store,
    Verdict,
    list_runs,
    tool,
)
from rollcage.errors import OutputDrift
from typing_extensions import TypedDict

Events = Callable[[str], list[dict[str, Any]]]


class Report(TypedDict):
    title: str
    total: int


class Rows(pydantic.BaseModel):
    rows: list[Report]


class Pair(NamedTuple):
    one: int
    two: str


@dataclasses.dataclass
class Point:
    x: int


def lie(value: Any) -> Any:
    """A value of another type than is said."""
    return value


def outcomes(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [e["outcome"] for e in events if e["event"] == "outcome"]


def given(value: Any, returns: Any = Any, **declared: Any) -> Contract:
    """The contract of a tool that is to give a value."""

    def give() -> Any:
        return value

    give.__annotations__["return"] = returns
    return Contract.of(give, effect="read", **{"on_drift": "error", **declared})


def drift_of(store: Store, value: Any, returns: Any = Any, **declared: Any) -> OutputDrift | None:
    contract = given(value, returns, **declared)
    with Session("drift", store=store, replay="off") as session:
        try:
            assert session.run_call(contract, {}, lambda: value) is value
        except OutputDrift as drift:
            return drift
    return None


# --- what is an output of its type, and what is none ---------------------------------------------


@pytest.mark.parametrize(
    ("returns", "value"),
    [
        (int, 3),
        (float, 1),
        (str, "text"),
        (None, "whatever"),
        (Any, object),
        (int | None, None),
        (list[Report], [{"title": "a", "total": 1}]),
        (Rows, Rows(rows=[])),
        (Pair, Pair(1, "b")),
        (Point, Point(1)),
        (Path, Path("/x")),
        (Mapping[str, int], MappingProxyType({"a": 1})),
        (deque[int], deque([1])),
        (range, "a type that Pydantic can't build"),
    ],
)
def test_what_is_of_its_type_goes_on_as_it_is(store: Store, returns: Any, value: Any) -> None:
    assert drift_of(store, value, returns) is None


@pytest.mark.parametrize(
    ("returns", "value", "code", "path"),
    [
        (int, "3", "output_wrong_type", "$"),
        (int, True, "output_wrong_type", "$"),
        (int, None, "output_wrong_type", "$"),
        (str, b"x", "output_wrong_type", "$"),
        (list[int], [1, 2.0], "output_wrong_type", "$[1]"),
        (list[int], (1, 2), "output_wrong_type", "$"),
        (dict[str, int], {"a": {"b": 1}}, "output_wrong_type", "$.a"),
        (Report, {"title": "a"}, "output_missing_field", "$.total"),
        (list[Report], [{"title": "a", "total": 1}, {}], "output_missing_field", "$[1].title"),
        (Rows, {"rows": [{"total": 1}]}, "output_missing_field", "$.rows[0].title"),
        (Point, {"x": 1}, "output_wrong_type", "$"),
        (deque[int], deque(["a"]), "output_wrong_type", "$[0]"),
    ],
)
def test_what_is_not_of_its_type_is_told_by_code_and_path(
    store: Store, returns: Any, value: Any, code: str, path: str
) -> None:
    drift = drift_of(store, value, returns)
    assert drift is not None
    assert (drift.drift_code, drift.path) == (code, path)
    assert drift.code == "output_drift"
    assert code in str(drift)


def test_the_error_tells_nothing_of_the_output_but_the_names_of_its_fields(
    store: Store,
) -> None:
    def unkind(value: Any) -> Any:
        raise ValueError(f"no {value}")

    for returns in (int, list[int], Annotated[str, pydantic.AfterValidator(unkind)]):
        drift = drift_of(store, "s3cret-canary", returns)
        assert drift is not None
        assert "s3cret" not in str(drift)
    raw = b"".join(line for info in list_runs(store) for line in store.read(info.run))
    assert raw.count(b"s3cret-canary") == 3  # as the values alone


def test_a_type_whose_own_code_fails_refuses_the_output(store: Store) -> None:
    def broken(_: Any) -> Any:
        raise RuntimeError("words of its own")

    drift = drift_of(store, 3, Annotated[int, pydantic.BeforeValidator(broken)])
    assert drift is not None
    assert drift.reason == "its declared type's own code raised RuntimeError"


def test_a_type_that_is_never_finished_checks_nothing(store: Store) -> None:
    class Open(pydantic.BaseModel, defer_build=True):
        __annotations__ = {"other": "Nowhere"}

    assert drift_of(store, {"other": 1}, Open) is None


def test_a_long_name_in_a_path_is_cut(store: Store) -> None:
    drift = drift_of(store, {"k" * 5000: "x", "\ud800": 1}, dict[str, int])
    assert drift is not None
    assert len(drift.path) == 201


# --- what else may be promised -------------------------------------------------------------------


@pytest.mark.parametrize("value", [None, "", " \n", b"", [], {}, (), set()])
def test_nothing_is_an_output_unless_the_contract_says_no(store: Store, value: Any) -> None:
    assert drift_of(store, value) is None
    drift = drift_of(store, value, allow_empty=False)
    assert drift is not None
    assert drift.drift_code == "output_empty"
    assert drift_of(store, 0, allow_empty=False) is None


def test_text_where_json_was_promised(store: Store) -> None:
    assert drift_of(store, '{"a": 1}', str, json_output=True) is None
    assert drift_of(store, b"[1]", json_output=True) is None
    assert drift_of(store, {"a": 1}, json_output=True) is None
    for text in ("<html>", "{'a': 1}", "", "NaN", b"\xff"):
        drift = drift_of(store, text, json_output=True)
        assert drift is not None
        assert (drift.drift_code, drift.path) == ("output_not_json", "$")


def test_the_json_may_be_promised_to_have_a_shape(store: Store) -> None:
    assert drift_of(store, '{"title": "a", "total": 1}', str, json_output=Report) is None
    missing = drift_of(store, '{"title": "a"}', str, json_output=Report)
    wrong = drift_of(store, '{"title": "a", "total": "1"}', str, json_output=Report)
    parsed = drift_of(store, {"title": "a"}, json_output=Report)
    assert missing is not None
    assert wrong is not None
    assert parsed is not None
    assert (missing.drift_code, missing.path) == ("output_missing_field", "$.total")
    assert (wrong.drift_code, wrong.path) == ("output_wrong_type", "$.total")
    assert parsed.drift_code == "output_missing_field"


def test_an_output_may_be_too_large(store: Store) -> None:
    assert drift_of(store, "x" * 8, max_output=10) is None
    drift = drift_of(store, "x" * 9, max_output=10)
    assert drift is not None
    assert (drift.drift_code, drift.reason) == (
        "output_too_large", "11 bytes of JSON; 10 may be",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ({"max_output": 0}, "allows no output"),
        ({"json_output": range}, "is not a type"),
        ({"on_drift": "shrug"}, "on_drift='shrug'"),
    ],
)
def test_a_promise_that_means_nothing_is_refused(declared: Any, said: str) -> None:
    with pytest.raises(ContractError, match=said):
        given(1, **declared)


# --- in a session --------------------------------------------------------------------------------


@tool(effect="write", returns=Report)
def book(seat: int) -> Report:
    """Book a seat; what it answers is not what it says."""
    done.append(seat)
    return cast("Report", {"title": f"seat {seat}"})


@tool(effect="read", returns=int)
def look() -> int:
    done.append(0)
    return cast("int", answers.pop(0))


@tool(effect="write")
def put(number: int) -> int:
    done.append(number)
    return number


done: list[int] = []
answers: list[Any] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    done.clear()
    answers.clear()


@pytest.mark.parametrize("replay", ["resume", "offline", "verify"])
def test_a_replay_gives_the_same_error_and_runs_nothing(
    store: Store, replay: Any, events: Events
) -> None:
    with Session("job", store=store) as session, pytest.raises(OutputDrift) as live:
        book(7)
    done.clear()
    with Session("job", store=store, replay=replay, source=session.run_id) as again:
        with pytest.raises(OutputDrift) as told:
            book(7)
        assert again.stats.hits == 1
    assert str(told.value) == str(live.value)
    assert vars(told.value) == vars(live.value)
    assert told.value.performed
    assert done == []
    third = Session("job", store=store, replay="offline", source=again.run_id)
    with third, pytest.raises(OutputDrift):
        book(7)
    assert outcomes(events(again.run_id)) == outcomes(events(session.run_id))


def test_a_read_that_drifted_earlier_is_told_as_it_was(store: Store) -> None:
    answers[:] = ["<html>"]
    with Session("job", store=store) as session:
        with pytest.raises(OutputDrift):
            look()
        put(1)
    done.clear()
    with Session("job", store=store, replay="resume", source=session.run_id):
        with pytest.raises(OutputDrift, match=r"output_wrong_type at \$"):
            look()
        put(1)
    assert done == []


def test_a_write_that_drifted_can_be_taken_back(store: Store, tmp_path: Path, files: Any) -> None:
    path = tmp_path / "note"
    path.write_text("before")

    @tool(effect="write", on_drift="error", undo=files.restore, observe=files.observe)
    def write(path: str) -> int:
        Path(path).write_text("after")
        return cast("int", "5")

    with Session("job", store=store, options=Options(tools=[write, files.restore_file])) as session:
        with pytest.raises(OutputDrift):
            write(str(path))
        assert path.read_text() == "after"
        report = session.undo()
        assert report.complete
    assert path.read_text() == "before"


def test_an_undo_that_needs_the_result_gets_the_raw_one(store: Store) -> None:
    from rollcage import Compensation, compensate

    taken: list[str] = []

    @tool(effect="write", idempotent=True)
    def cancel(order: str) -> None:
        taken.append(order)

    def back(result: dict[str, Any]) -> list[Compensation]:
        return [compensate(cancel, order=result["id"])]

    @tool(effect="write", on_drift="error", undo=back)
    def order() -> Report:
        return cast("Report", {"id": "o-1"})

    session = Session("job", store=store, options=Options(tools=[cancel, order]))
    with session, pytest.raises(OutputDrift), session.transaction():
        order()
    assert taken == ["o-1"]


def test_the_error_of_an_inner_tool_is_the_outer_ones_too(store: Store, events: Events) -> None:
    @tool(effect="write", on_drift="error")
    def outer() -> int:
        return book(3)["total"]

    with Session("job", store=store) as session, pytest.raises(OutputDrift, match="book"):
        outer()
    inner, whole = outcomes(events(session.run_id))
    assert inner["status"] == "ok"
    assert whole["status"] == "error"
    assert whole["error"]["type"] == "rollcage.errors.OutputDrift"


async def test_async_tools_and_sync_ones_in_threads(store: Store) -> None:
    @tool(effect="write", on_drift="error")
    async def later() -> int:
        return cast("int", "3")

    async with Session("job", store=store) as session:
        with pytest.raises(OutputDrift):
            await later()
        with pytest.raises(OutputDrift):
            await session.acall(book, seat=3)
    async with Session("job", store=store, replay="offline", source=session.run_id) as session:
        with pytest.raises(OutputDrift):
            await later()
        with pytest.raises(OutputDrift):
            await session.acall(book, seat=3)
    assert done == [3]


# --- streams -------------------------------------------------------------------------------------


def numbers() -> Iterator[int]:
    yield 1
    yield lie("2")


def test_a_stream_is_checked_at_its_end(store: Store) -> None:
    contract = Contract.of(numbers, effect="write", on_drift="error")
    replays: tuple[Any, Any] = ("off", "offline")
    for replay in replays:
        seen: list[Any] = []
        broken = pytest.raises(OutputDrift, match=r"output_wrong_type at \$\[1\]")
        with Session("job", store=store, replay=replay) as session, broken:
            seen.extend(session.stream(contract, {}, numbers))
        assert seen in ([1, "2"], [])


def test_a_stream_of_text_is_one_text(store: Store) -> None:
    def words(*parts: str) -> Contract:
        def speak() -> Generator[str]:
            yield from parts

        return Contract.of(speak, effect="read", json_output=True, allow_empty=False)

    with Session("job", store=store) as session:
        assert list(session.stream(words(), {}, lambda: iter(['{"a"', ": 1}"]))) == ['{"a"', ": 1}"]
        with pytest.raises(OutputDrift, match="output_not_json"):
            list(session.stream(words(), {}, lambda: iter(['{"a"', ": "])))
        with pytest.raises(OutputDrift, match="output_empty"):
            list(session.stream(words(), {}, lambda: iter(["", ""])))


async def test_an_async_stream_is_checked_at_its_end(store: Store) -> None:
    async def numbers() -> AsyncIterator[int]:
        yield 1
        yield lie("2")

    contract = Contract.of(numbers, effect="read", on_drift="error")
    async with Session("job", store=store) as session:
        with pytest.raises(OutputDrift):
            async for _ in session.astream(contract, {}, numbers):
                pass


def test_of_a_stream_that_is_cut_off_nobody_knows_the_end(store: Store) -> None:
    contract = Contract.of(numbers, effect="read", max_output=1)
    with Session("job", store=store) as session:
        chunks: Any = session.stream(contract, {}, numbers)
        assert next(chunks) == 1
        chunks.close()


@pytest.mark.filterwarnings("ignore::rollcage.NotReplayableWarning")
def test_a_generator_that_is_no_stream_is_let_be(store: Store) -> None:
    with Session("job", store=store) as session:
        assert list(session.call(numbers)) == [1, "2"]


# --- whose outputs are checked -------------------------------------------------------------------


def test_a_frameworks_own_tool_is_held_to_what_was_said_of_it(store: Store) -> None:
    own = Contract(name="theirs", parameters={}, returns=int, framework="other", effect="read")
    with Session("job", store=store) as session:
        assert session.run_call(own, {}, lambda: "3") == "3"
        held = dataclasses.replace(own, max_output=3)
        with pytest.raises(OutputDrift, match="too_large"):
            session.run_call(held, {}, lambda: "1234")
        with pytest.raises(OutputDrift, match="wrong_type"):
            session.run_call(dataclasses.replace(own, on_drift="error"), {}, lambda: "3")


def test_what_is_refused_has_no_output(store: Store) -> None:
    def deny(_: Any) -> Verdict:
        return Verdict("deny", "no", "no", "rule")

    with Session("job", store=store, gate=[deny]), pytest.raises(Blocked):
        book(1)
    assert done == []
