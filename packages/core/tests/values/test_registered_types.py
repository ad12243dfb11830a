"""Classes that the program has named: what names them, and what a hostile trace gets of them."""

import dataclasses
import enum
import os
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, TypeVar

import orjson
import pydantic
import pytest
import rollcage
from rollcage import (
    ContractError,
    NotReplayable,
    NotReplayableWarning,
    Options,
    ReplayedError,
    Session,
    tool,
)
from rollcage.trace import TAG, decode, encode_result
from rollcage.values.decoding import Strange, decode_result
from rollcage.values.registered import REGISTERED, Types, named_in
from typing_extensions import TypedDict


def seal(secret: str) -> str:
    return secret


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Even(pydantic.BaseModel):
    number: int

    @pydantic.field_validator("number")
    @classmethod
    def check(cls, number: int) -> int:
        if number % 2:
            raise ValueError("odd")
        return number


@dataclasses.dataclass
class Point:
    x: int
    colour: Colour = Colour.RED

    def __post_init__(self) -> None:
        if self.x < 0:
            raise ValueError("below zero")


class Pair(NamedTuple):
    one: int
    two: Point


class Word(str):  # noqa: SLOT000 - it is to have attributes
    mood: str


class Nested(TypedDict):
    pair: Pair


T = TypeVar("T")


@dataclasses.dataclass
class Holder(Generic[T]):
    held: T


class Refused(Exception):
    def __init__(self, colour: Colour, *, at: Point) -> None:
        super().__init__(f"no {colour.value}")
        self.colour = colour
        self.at = at


class Worse(Refused):
    pass


ALL = Types([Colour, Even, Point, Pair, Word])
Alias = NewType("Alias", Point)


# --- what names a class --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("annotation", "names"),
    [
        (Colour, {Colour}),
        (list[Even] | None, {Even}),
        (dict[str, tuple[Pair, ...]], {Pair, Point, Colour}),  # with what their fields name
        (Annotated[Nested, "x"], {Pair, Point, Colour}),
        (Literal[Colour.RED], {Colour}),
        (Holder[Even], {Holder, Even}),
        (Alias, {Point, Colour}),
        (Callable[[Even], Word], {Even, Word}),
        (int, set()),
        (Any, set()),
        (None, set()),
        (pydantic.BaseModel, set()),  # it would name each model of the process
        (enum.Enum, set()),
        (Exception, set()),
        (list[object], set()),
    ],
)
def test_an_annotation_names_its_classes_and_those_of_their_fields(
    annotation: Any, names: set[type]
) -> None:
    assert set(named_in(annotation)) == names


@pytest.mark.parametrize(
    "kind", [object, Exception, pydantic.BaseModel, pydantic.RootModel, enum.Enum, str, dict, tuple]
)
def test_a_whole_family_can_not_be_registered(kind: type) -> None:
    with pytest.raises(ContractError, match=f"{kind.__name__} can't be registered.*derived"):
        Session("job", options=Options(types=[kind]))


def test_what_has_no_form_as_data_can_not_be_registered() -> None:
    class Handle:
        pass

    with pytest.raises(ContractError, match=r"Handle can't be registered.*register_native"):
        Session("job", options=Options(types=[Handle]))
    with pytest.raises(ContractError, match="not a class"):
        Session("job", options=Options(types=[Handle()]))  # type: ignore[list-item]  # a mistake  # pyright: ignore[reportArgumentType] - wrong on purpose


def test_what_is_registered_for_the_process_comes_back_in_each_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(REGISTERED, "_roots", [])
    monkeypatch.setattr(REGISTERED, "_named", {})
    rollcage.register(Point)

    @tool
    def make() -> Any:
        return {"at": Point(1, Colour.BLUE)}

    with Session("job", store=tmp_path):
        make()
    with Session("job", store=tmp_path, replay="offline") as session:
        assert make() == {"at": Point(1, Colour.BLUE)}
    assert session.stats.hits == 1


def test_another_process_brings_it_back_and_one_that_knows_no_class_halts(tmp_path: Path) -> None:
    program = """
        import sys, enum, pydantic
        from rollcage import Options, Session, tool

        class Kind(enum.Enum):
            A = 1

        class Order(pydantic.BaseModel):
            kind: Kind

        class Special(Order):
            more: int = 3

        types = [Order] if sys.argv[2] == "known" else []

        @tool
        def make():
            return [Special(kind=Kind.A)]

        with Session("job", store="store", replay=sys.argv[1], options=Options(types=types)):
            made = make()
        assert type(made[0]) is Special and made == [Special(kind=Kind.A)], made
    """

    def run(*args: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-W", "error", "-c", textwrap.dedent(program), *args]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert run("off", "known").returncode == 0
    assert run("offline", "known").stderr == ""
    unknown = run("offline", "unknown")
    assert "NotReplayable" in unknown.stderr
    assert "Special, a class that this process does not know" in unknown.stderr
    assert "Session(options=Options(types=[Special]))" in unknown.stderr


# --- a hostile trace -----------------------------------------------------------------------------


def named(tag: str, kind: type, value: Any, **more: Any) -> dict[str, Any]:
    return {TAG: tag, "type": kind.__qualname__, "module": kind.__module__, "value": value, **more}


def test_a_tag_that_names_anything_else_runs_and_imports_nothing(tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    for tag in ("enum", "model", "dataclass", "subclass", "url"):
        for module, name in (
            ("os", "system"), ("builtins", "eval"), ("posix", "system"), ("antigravity", "x"),
            ("subprocess", "Popen"), (__name__, "os"), (__name__, "named"), ([], {}), (None, 5),
            ("pydantic.networks", "_import_email_validator"), ("pydantic.networks", "Any"),
        ):  # fmt: skip
            inner: Any = f"touch {proof}"
            value = {"args": inner} if tag in ("model", "dataclass") else inner
            encoded: Any = {TAG: tag, "type": name, "module": module, "value": value}
            with pytest.raises(Strange, match="does not know"):
                decode_result(encoded, ALL)
            assert decode(encoded) == value  # data, to any reader
    assert not proof.exists()
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize(
    "encoded",
    [
        named("enum", Colour, "green"),
        named("enum", Colour, "red", name="BLUE"),
        named("enum", Point, "red"),
        named("model", Even, {"number": 3}),
        named("model", Even, {"number": [1]}),
        named("model", Even, {}),
        named("model", Even, []),
        named("model", Colour, {}),
        named("model", Even, {"number": 2}, private={"__class__": 1}),
        named("model", Even, {"number": 2}, set=5),
        named("dataclass", Point, {"x": -1}),
        named("dataclass", Point, {"x": 1, "y": 2}),
        named("dataclass", Point, {"__class__": 1}),
        named("dataclass", Point, [1]),
        named("dataclass", Even, {"number": 2}),
        named("subclass", Pair, {TAG: "tuple", "value": [1]}),
        named("subclass", Pair, "ab"),
        named("subclass", Word, 5),
        named("subclass", Word, "a", state={"__class__": 1}),
        named("subclass", Colour, "red"),
        {TAG: "deque", "value": 5, "maxlen": None},
        {TAG: "deque", "value": [], "maxlen": -1},
        {TAG: "defaultdict", "value": {}, "factory": "eval"},
        {TAG: "defaultdict", "value": [1], "factory": None},
        {TAG: "fraction", "value": [1, 0]},
        {TAG: "fraction", "value": ["os", "system"]},
        {TAG: "address", "type": "ip_address", "value": "127.0.0.1"},
        {TAG: "address", "type": "IPv4Address", "value": "localhost"},
        {TAG: "range", "value": [1, 2, 0]},
        {TAG: "range", "value": [1, 2, 3, 4]},
        {TAG: "namespace", "value": {TAG: "dict", "value": [[1, 2]]}},
    ],
)
def test_parts_that_make_no_value_of_a_class_are_a_clear_error(encoded: Any) -> None:
    with pytest.raises(ValueError, match=f"not a {encoded[TAG]}: ") as caught:
        decode_result(encoded, ALL)
    assert len(str(caught.value)) < 500


def test_a_hostile_value_nests_no_deeper_than_any_other() -> None:
    encoded: Any = 1
    for _ in range(100_000):
        encoded = named("model", Even, {"number": encoded})
    with pytest.raises(ValueError, match="nested too deep"):
        decode_result(encoded, ALL)


def array(dtype: Any, shape: Any, value: Any, kind: str = "array") -> dict[str, Any]:
    return {TAG: "numpy", "type": kind, "dtype": dtype, "shape": shape, "value": value}


FOUR = {TAG: "bytes", "value": "AQAAAA=="}


@pytest.mark.parametrize(
    "encoded",
    [
        array("<i4", [2], FOUR),
        array("<i4", [10**12], FOUR),
        array("<i4", [0, 10**30], {TAG: "bytes", "value": ""}),
        array("<i4", [-1], FOUR),
        array("<i4", [True], FOUR),
        array("<i4", "1", FOUR),
        array("<i4", [1] * 100, FOUR),
        array("<i4", [1], "text"),
        array("|O", [1], FOUR),
        array("O", [1], [1]),
        array("|V4", [1], FOUR),
        array("i4,(1000000,1000000)i4", [1], FOUR),
        array("<U999999999", [1], ["a"]),
        array("<U1", [10**9], ["a"]),
        array("<i4", [1], None, "scalar"),
        array("<M8[eval]", [], 5, "scalar"),
        array("|b1", [1], {TAG: "opaque"}),
        array(["<i4"], [1], FOUR),
        {TAG: "numpy"},
        {TAG: "pandas", "type": "frame", "value": {}},
        {TAG: "pandas", "type": "eval", "value": {"unit": "s", "at": 1, "zone": None}},
        {TAG: "pandas", "type": "timestamp", "value": {"unit": "s", "at": 1, "zone": "../../etc"}},
        {TAG: "pandas", "type": "timestamp", "value": {"unit": "s", "at": 10**30, "zone": None}},
        {TAG: "pandas", "type": "index", "value": {"kind": "index", "name": None, "value": FOUR}},
        {
            TAG: "pandas",
            "type": "index",
            "value": {"kind": "range", "name": None, "value": ["a", 1, 1]},
        },
    ],
)
def test_arrays_and_frames_that_do_not_fit_are_a_clear_error(encoded: Any) -> None:
    pytest.importorskip("numpy")
    pytest.importorskip("pandas")
    with warnings.catch_warnings(), pytest.raises(ValueError, match=r"not a \w+: "):
        warnings.simplefilter("error")
        decode_result(encoded, ALL)


def test_to_a_reader_values_of_libraries_are_data_and_nothing_is_imported() -> None:
    program = f"""
        import sys
        from rollcage.trace import decode
        scalar = {array("<f8", None, 0.5, "scalar")!r}
        assert decode(scalar) == 0.5
        assert decode({array("<i4", [1], FOUR)!r})["value"] == bytes([1, 0, 0, 0])
        assert "numpy" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True)


def test_an_array_gives_a_credential_in_its_texts_to_whoever_looks_for_one() -> None:
    np = pytest.importorskip("numpy")
    encoded = encode_result(np.array(["hunter2-hunter2"]), seal, types=ALL).value
    assert "hunter2-hunter2" in orjson.dumps(encoded).decode()


# --- errors --------------------------------------------------------------------------------------


def failing(store: Path, replay: Any, *types: type) -> BaseException:
    @tool
    def fail() -> None:
        raise Worse(Colour.BLUE, at=Point(2))

    with Session("job", store=store, replay=replay, options=Options(types=types)):
        with pytest.raises(Exception) as caught:  # noqa: PT011 - which one is the question
            fail()
        return caught.value


def test_an_error_of_a_registered_class_comes_back_as_itself(tmp_path: Path) -> None:
    failing(tmp_path, "off", Refused, Colour, Point)
    back = failing(tmp_path, "offline", Refused, Colour, Point)
    assert type(back) is Worse
    assert (str(back), back.colour, back.at) == ("no blue", Colour.BLUE, Point(2))
    unknown = failing(tmp_path, "offline")
    assert type(unknown) is ReplayedError
    assert unknown.type_name == f"{__name__}.Worse"
    bare = failing(tmp_path, "offline", Refused)  # what it held is of classes not named here
    assert type(bare) is ReplayedError


# --- said when it is recorded --------------------------------------------------------------------


def unreplayable() -> Callable[..., Any]:
    @tool
    def lock(name: str) -> Any:
        import threading

        return threading.Lock()

    return lock


def test_a_write_that_can_not_come_back_is_said_at_the_call_by_a_warning(tmp_path: Path) -> None:
    lock = unreplayable()
    with (
        Session("job", store=tmp_path),
        pytest.warns(NotReplayableWarning, match=r"lock was performed.*has no encoding") as caught,
    ):
        lock("a")
    assert caught[0].filename == __file__
    assert caught[0].message.tool == "lock"  # type: ignore[union-attr]  # pyright: ignore[reportAttributeAccessIssue] - wrong on purpose


async def test_it_is_said_at_the_call_of_an_async_tool_too(tmp_path: Path) -> None:
    @tool
    async def look() -> Any:
        return os.scandir

    with Session("job", store=tmp_path), pytest.warns(NotReplayableWarning) as caught:
        await look()
    assert caught[0].filename == __file__


def test_a_read_that_can_not_come_back_just_runs_again_and_is_not_warned_of(tmp_path: Path) -> None:
    @tool(effect="read")
    def look() -> Any:
        return os.scandir

    with Session("job", store=tmp_path, replay="off"):
        assert look() is os.scandir


def test_where_warnings_are_errors_the_write_is_on_record_before_it_is_raised(
    tmp_path: Path,
) -> None:
    lock = unreplayable()
    with Session("job", store=tmp_path) as session:
        with pytest.raises(NotReplayableWarning, match="lock was performed"):
            lock("a")
        assert session.stats.misses == 1
    with (
        pytest.raises(NotReplayable, match=r"step 1 .*was performed.*has no encoding"),
        Session("job", store=tmp_path, replay="resume"),
    ):
        lock("a")
