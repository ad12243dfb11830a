"""What a tool returns, recorded and replayed: itself with its type, or refused with a reason."""

import dataclasses
import datetime as dt
import enum
import math
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import orjson
import pydantic
import pytest
from rollcage import (
    NotReplayable,
    NotReplayableWarning,
    Session,
    SessionHalted,
    open_store,
    tool,
)

BERLIN = ZoneInfo("Europe/Berlin")


class Colour(enum.Enum):
    RED = "red"


class Mode(enum.StrEnum):
    FAST = "fast"


@dataclasses.dataclass
class Point:
    x: int
    y: float


@dataclasses.dataclass
class Line:
    start: Point
    ends: list[Point]


class Order(pydantic.BaseModel):
    item: str
    when: dt.datetime
    price: Decimal = Decimal("1.50")


class Special(Order):
    why: str = "because"


class Aliased(pydantic.BaseModel):
    order_id: int = pydantic.Field(alias="orderId")


class Shouting(pydantic.BaseModel):
    words: str

    @pydantic.field_validator("words")
    @classmethod
    def louder(cls, words: str) -> str:
        return words + "!"


class Strict(pydantic.BaseModel):
    even: int

    @pydantic.field_validator("even")
    @classmethod
    def check(cls, even: int) -> int:
        if even % 2:
            raise ValueError("odd")
        return even


class Counting(pydantic.BaseModel):
    start: int
    _count: int = 0


class Pair(NamedTuple):
    one: int
    two: int


class Loud(str):  # noqa: SLOT000 - it has attributes
    """A text with more."""

    def __init__(self, text: str) -> None:
        self.text = text.upper()


class Word(str):
    __slots__ = ()


class Opaque:
    pass


counted = Counting(start=1)
counted._count = 5
NOON = dt.datetime(2024, 10, 27, 2, 30)  # noqa: DTZ001 - naive is a case
ORDER = Order(item="a", when=NOON)
Job = Callable[..., Session]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    def open_(replay: Any = "off") -> Session:
        return Session("job", store=tmp_path, replay=replay)

    return open_


def made(job: Job, value: Any, returns: Any, effect: Any = "write") -> tuple[Any, list[str]]:
    """A tool that returns `value`, called once in a run; and the list of what it ran."""
    ran: list[str] = []

    def make() -> Any:
        ran.append("ran")
        return value

    make.__annotations__["return"] = returns
    function = tool(effect=effect, on_drift="report")(make)
    with job() as session, warnings.catch_warnings():
        warnings.simplefilter("ignore", NotReplayableWarning)
        assert session.call(function) is value  # the live caller gets the object itself
    assert ran == ["ran"]
    ran.clear()
    return function, ran


def outcome(store: Path) -> dict[str, Any]:
    """The only outcome in the newest run."""
    files = open_store(store)
    lines = map(orjson.loads, files.read(files.runs()[0].run))
    (found,) = (line["outcome"] for line in lines if "outcome" in line)
    return dict(found)


class Case(NamedTuple):
    value: Any
    returns: Any = Any


FAITHFUL = [
    Case(None),
    Case(1.0),
    Case(math.inf),
    Case(2**64),
    Case("\ud800"),
    Case(NOON),
    Case(NOON.replace(tzinfo=dt.UTC)),
    Case(NOON.replace(tzinfo=BERLIN)),
    Case(NOON.replace(tzinfo=BERLIN, fold=1)),
    Case(dt.date(2024, 1, 2)),
    Case(dt.time(1, 2, 3, 4, tzinfo=dt.UTC)),
    Case(dt.timedelta(days=-1, microseconds=1)),
    Case(b"\x00\xff"),
    Case(bytearray(b"ab")),
    Case(Decimal("1E-30")),
    Case(UUID(int=7)),
    Case(Path("/tmp/x")),  # noqa: S108 - only a name
    Case(PurePosixPath("x/y")),
    Case(1 - 2j),
    Case({1, "a", (2,)}),
    Case(frozenset({b"a"})),
    Case((1, [2, (3,)])),
    Case({2: "b", 1: "a", None: {"$rollcage": "int", "value": "1"}}),
    Case({"deep": [{"at": NOON, "set": {1}}]}, dict[str, Any]),
    Case(Colour.RED, Colour),
    Case(Mode.FAST, Mode),
    Case([Colour.RED, None], list[Colour | None]),
    Case(Point(1, 2.0), Point),
    Case(Line(Point(1, 2.0), [Point(3, 4.5)]), Line),
    Case(ORDER, Order),
    Case([ORDER], list[Order]),
    Case(ORDER, Order | None),
    Case(None, Order | None),
    Case({"a": (ORDER, Colour.RED)}, dict[str, tuple[Order, Colour]]),
    Case(Aliased(orderId=3), Aliased),
    Case(Order(item="nan", when=NOON, price=Decimal(1)), Order | Point),
    Case(Pair(1, 2), Pair),
    Case(Counting(start=1), Counting),
    Case(counted, Counting),
    Case(Special(item="a", when=NOON), Order),
    Case(OrderedDict(a=1), dict[str, int]),
    Case(pydantic.TypeAdapter(pydantic.HttpUrl).validate_python("http://a.b/c"), pydantic.HttpUrl),
    Case(pydantic.PostgresDsn("postgres://u@a:1,b:2/db"), pydantic.PostgresDsn),
]


@pytest.mark.parametrize("case", FAITHFUL, ids=lambda c: type(c.value).__name__)
def test_a_result_replays_as_itself_with_its_type(job: Job, case: Case) -> None:
    function, ran = made(job, case.value, case.returns)
    for mode in ("offline", "resume", "offline"):  # a replayed value is itself a source
        with job(mode) as session:
            back = session.call(function)
        assert type(back) is type(case.value)
        assert repr(back) == repr(case.value) or back == case.value
        assert back == case.value
        assert getattr(back, "fold", 0) == getattr(case.value, "fold", 0)
        assert session.stats.hits == 1
    assert ran == []


@pytest.mark.parametrize("value", [math.nan, [Decimal("NaN")], (math.nan,)])
def test_what_does_not_equal_itself_comes_back_too(job: Job, value: Any) -> None:
    function, _ = made(job, value, Any)
    with job("offline") as session:
        assert repr(session.call(function)) == repr(value)


def test_ten_megabytes_come_back(job: Job, tmp_path: Path) -> None:
    value = {"text": "é" * 5_000_000, "raw": [bytes(1000)] * 100}
    function, ran = made(job, value, Any)
    assert outcome(tmp_path)["value"]["$rollcage"] == "blob"
    with job("offline") as session:
        assert session.call(function) == value
    assert ran == []


def numbers() -> Iterator[int]:
    yield 1


NO_TYPE = "comes back only where its class is known"
NOT_EQUAL = r"\$: it does not decode to an equal value"
LOSSY = [
    (Case(Colour.RED), rf"\$: a Colour {NO_TYPE}"),
    (Case(ORDER), rf"\$: a Order {NO_TYPE}"),
    (Case({"a": [Point(1, 2.0)]}), rf"\$\.a\[0\]: a Point {NO_TYPE}"),
    (Case([ORDER], list[Any]), rf"\$\[0\]: a Order {NO_TYPE}"),
    (Case(ORDER, dict[str, Any]), rf"\$: a Order {NO_TYPE}"),
    (Case(Mode.FAST), rf"\$: a Mode {NO_TYPE}"),
    (Case(Pair(1, 2), tuple[int, int]), rf"\$: a Pair {NO_TYPE}"),
    (Case(Loud("a")), rf"\$: a Loud {NO_TYPE}"),
    (Case(Shouting(words="a"), Shouting), NOT_EQUAL),
    (Case(Strict.model_construct(even=1), Strict), "its class refuses the recorded fields"),
    (Case(numbers()), r"\$: a builtins.generator has no encoding"),
    (Case(lambda: 1), r"\$: a builtins.function has no encoding"),
    (Case([{"it": Opaque()}]), r"\$\[0\]\.it: a .*Opaque has no encoding"),
    (Case(pydantic.SecretStr("hunter2"), pydantic.SecretStr), r"\$: a secret is never recorded"),
]


@pytest.mark.parametrize(
    ("case", "text"),
    [
        (Case(Word("a"), str), "a"),
        (Case(Word("a")), "a"),
        (Case(Loud("a"), str), "a"),
        (Case(Mode.FAST, str), "fast"),
    ],
)
def test_a_text_comes_back_as_a_text(job: Job, tmp_path: Path, case: Case, text: str) -> None:
    function, ran = made(job, case.value, case.returns)
    assert outcome(tmp_path) == {"status": "ok", "value": text}
    with job("offline") as session:
        back = session.call(function)
    assert (type(back), back, ran) == (str, text, [])


@pytest.mark.parametrize(("case", "reason"), LOSSY)
def test_a_result_that_can_not_come_back_is_marked_and_a_write_halts(
    job: Job, tmp_path: Path, case: Case, reason: str
) -> None:
    function, ran = made(job, case.value, case.returns)
    lossy = outcome(tmp_path)["lossy"]
    assert "hunter2" not in str(outcome(tmp_path))
    for mode in ("offline", "resume"):
        with pytest.raises(NotReplayable, match=reason), job(mode) as session:
            with pytest.raises(NotReplayable) as caught:
                session.call(function)
            assert lossy in str(caught.value)
            with pytest.raises(SessionHalted):  # and a framework that swallowed it gets no further
                session.call(function)
    assert ran == []


def test_an_open_file_is_no_value(job: Job, tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file:
        made(job, {"log": file}, Any)
    assert outcome(tmp_path)["lossy"] == "$.log: a _io.TextIOWrapper has no encoding"


def test_a_read_that_can_not_come_back_runs_again(job: Job) -> None:
    function, ran = made(job, ORDER, Any, effect="read")
    with job("resume") as session:
        assert session.call(function) is ORDER
    assert ran == ["ran"]


def test_a_return_type_that_no_longer_takes_the_value_halts(job: Job) -> None:
    made(job, ORDER, Order)

    def make() -> Point:
        raise AssertionError("it ran")

    with (
        pytest.raises(NotReplayable, match=r"step 1 \(make\) can't be given back: ValidationError"),
        job("offline") as session,
    ):
        session.call(tool(make))


def test_to_other_readers_a_typed_result_is_data(job: Job, tmp_path: Path) -> None:
    from rollcage.trace import decode

    made(job, [ORDER], list[Order])
    assert decode(outcome(tmp_path)["value"]) == [
        {"item": "a", "when": NOON, "price": Decimal("1.50")}
    ]
