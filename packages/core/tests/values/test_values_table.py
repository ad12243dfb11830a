"""Which results come back: values by annotations, recorded in one session, replayed in another.

What comes back is equal and of the same class. What does not was said when it was recorded.
"""

import dataclasses
import datetime as dt
import enum
import ipaddress
import threading
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, Generic, NamedTuple, Optional, TypeVar, Union
from uuid import UUID
from zoneinfo import ZoneInfo

import attrs
import numpy as np
import pandas as pd
import pydantic
import pytest
from rollcage import NotReplayable, NotReplayableWarning, Options, Session, tool

T = TypeVar("T")


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Mode(enum.StrEnum):
    FAST = "fast"


class Perm(enum.Flag):
    READ = 1
    WRITE = 2


@dataclasses.dataclass
class Point:
    x: int
    y: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    ends: list[Point]
    length: float = dataclasses.field(init=False, default=1.5)


class Pair(NamedTuple):
    one: int
    two: Colour


class Order(pydantic.BaseModel):
    item: str
    when: dt.datetime
    by: UUID = pydantic.Field(default_factory=lambda: UUID(int=1))
    _seen: int = 0


class Special(Order):
    why: Colour = Colour.RED


class Prices(pydantic.RootModel[dict[str, Decimal]]):
    pass


class Box(pydantic.BaseModel, Generic[T]):
    inside: T


@attrs.define
class Stock:
    item: str
    _left: int


class Word(str):
    __slots__ = ()


class Bag(dict[str, int]):
    pass


NOON = dt.datetime(2024, 10, 27, 2, 30)  # noqa: DTZ001 - naive is a case
ORDER = Order(item="a", when=NOON)
ORDER._seen = 5
BERLIN = ZoneInfo("Europe/Berlin")
FRAME = pd.DataFrame(
    {
        "text": ["x", None],
        "kept": pd.array(["x", None], dtype=pd.StringDtype("python", na_value=np.nan)),
        "number": [1, 2],
        "kind": pd.Categorical(["u", "v"], ordered=True),
        "when": pd.date_range("2020", periods=2, tz=BERLIN),
        "gaps": pd.array([1, None], dtype="Int64"),
        "holds": pd.array([True, None], dtype="boolean"),
        "any": [[1], {"a": Decimal(1)}],
    },
    index=pd.MultiIndex.from_tuples([("a", 1), ("b", 2)], names=["one", None]),
)

Values = list[tuple[Any, Any, Any]]
APPLICATION: Values = [  # value, its class, a class that it derives from
    (Colour.RED, Colour, enum.Enum),
    (Level.LOW, Level, int),
    (Mode.FAST, Mode, str),
    (Perm.READ | Perm.WRITE, Perm, enum.Flag),
    (Point(1, 2.0), Point, object),
    (Line(ends=[Point(1, 2.0)]), Line, object),
    (Pair(1, Colour.RED), Pair, tuple),
    (ORDER, Order, pydantic.BaseModel),
    (Special(item="a", when=NOON), Special, Order),
    (Prices({"a": Decimal("1.10")}), Prices, pydantic.BaseModel),
    (Box[int](inside=1), Box[int], Box),
    (Stock("a", 3), Stock, object),
    (Word("a"), Word, str),
    (Bag(a=1), Bag, dict),
]
LIBRARIES: Values = [
    (deque([1, "a"], maxlen=3), deque, object),
    (OrderedDict(b=1, a=2), OrderedDict, dict),
    (defaultdict(list, a=[1]), defaultdict, dict),
    (Counter("aab"), Counter, dict),
    (Fraction(1, 3), Fraction, object),
    (1 - 2j, complex, object),
    (range(1, 9, 2), range, object),
    (frozenset({1, "a"}), frozenset, object),
    (ipaddress.ip_address("127.0.0.1"), ipaddress.IPv4Address, object),
    (ipaddress.ip_network("2001:db8::/32"), ipaddress.IPv6Network, object),
    (types.SimpleNamespace(a=1), types.SimpleNamespace, object),
    (pydantic.TypeAdapter(pydantic.HttpUrl).validate_python("http://a/"), pydantic.HttpUrl, object),
    (np.arange(6, dtype="int16").reshape(2, 3), np.ndarray, object),
    (np.array(["a", "bcd"]), np.ndarray, object),
    (np.array(["2020-01-01", "NaT"], dtype="M8[s]"), np.ndarray, object),
    (np.array([None, Decimal(1), [2]], dtype=object), np.ndarray, object),
    (np.float64(0.1), np.float64, float),
    (np.int8(-3), np.int8, object),
    (np.datetime64("2020-01-01T01:02", "ms"), np.datetime64, object),
    (np.str_("a"), np.str_, str),
    (FRAME, pd.DataFrame, object),
    (FRAME["when"], pd.Series, object),
    (pd.Index(["a", "b"], name="n"), pd.Index, object),
    (pd.date_range("2020", periods=3, freq="D"), pd.DatetimeIndex, pd.Index),
    (pd.Timestamp("2024-10-27T12:30", tz=BERLIN), pd.Timestamp, dt.datetime),
    (pd.Timedelta("1 days 1 ns"), pd.Timedelta, dt.timedelta),
]
VALUES = APPLICATION + LIBRARIES
UNFIT: list[Callable[[], Any]] = [
    lambda: print,
    threading.Lock,
    lambda: (each for each in [1]),
    lambda: types.SimpleNamespace(a=object()),
    lambda: defaultdict(lambda: 1),
    lambda: np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
    lambda: pd.Series(pd.arrays.PeriodArray._from_sequence(["2020"], dtype="period[D]")),
    lambda: Session,
    lambda: ValueError("no"),
]
ANNOTATIONS: dict[str, Callable[[Any, Any, Any], tuple[Any, Any]]] = {
    "none": lambda value, _kind, _base: (value, None),
    "exact": lambda value, kind, _base: (value, kind),
    "Any": lambda value, _kind, _base: (value, Any),
    "list": lambda value, kind, _base: ([value], types.GenericAlias(list, (kind,))),
    "union": lambda value, kind, _base: (value, Union[kind, bytes]),  # noqa: UP007 - of a variable
    "optional": lambda value, kind, _base: (
        {"a": value},
        Optional[types.GenericAlias(dict, (str, kind))],  # noqa: UP045 - as above
    ),
    "base": lambda value, _kind, base: (value, base),
}


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal and of the same classes."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict) and type(one) is dict:
        return list(one) == list(other) and all(same(one[k], other[k]) for k in one)
    if isinstance(one, np.ndarray):
        equal = np.array_equal(one, other) or repr(one) == repr(other)  # NaT is not itself
        return one.dtype == other.dtype and one.shape == other.shape and equal
    if isinstance(one, pd.DataFrame):
        pd.testing.assert_frame_equal(one, other, check_freq=True)
        return True
    if isinstance(one, pd.Series):
        pd.testing.assert_series_equal(one, other)
        return True
    if isinstance(one, pd.Index):
        pd.testing.assert_index_equal(one, other, exact=True)
        return getattr(one, "freq", None) == getattr(other, "freq", None)
    if isinstance(one, pydantic.BaseModel):
        return bool(one == other) and one.model_fields_set == other.model_fields_set
    return bool(one == other)


def tried(store: Path, value: Any, annotation: Any, registered: list[type]) -> str:
    """What becomes of a result: `back`, `said` (when it was recorded), or what is wrong."""

    def make() -> Any:
        return value

    if annotation is not None:
        make.__annotations__["return"] = annotation
    else:
        del make.__annotations__["return"]
    function = tool(effect="write", on_drift="report")(make)
    said: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("warnings.warn", lambda *args, **_: said.append(args[0]))
        with Session(
            "job", store=store, replay="off", options=Options(types=registered)
        ) as session:
            assert session.call(function) is value
    assert all(isinstance(each, NotReplayableWarning) for each in said)
    try:
        with Session(
            "job", store=store, replay="offline", options=Options(types=registered)
        ) as session:
            back = session.call(function)
    except NotReplayable:
        return "said" if len(said) == 1 else "not said"
    if said:
        return "said for nothing"
    if same(back, value):
        return "back"
    is_text = type(back) is str and back == value
    return "as a text" if is_text else f"wrong: {back!r}"


def table(store: Path, registered: list[type]) -> dict[str, list[str]]:
    """The whole table: by what became of them, the combinations."""
    found: dict[str, list[str]] = {"back": [], "said": []}
    for number, (value, kind, base) in enumerate(VALUES):
        for name, annotate in ANNOTATIONS.items():
            whole, annotation = annotate(value, kind, base)
            became = tried(store / f"{number}-{name}", whole, annotation, registered)
            found.setdefault(became, []).append(f"{kind.__name__} as {name}")
    for number, make in enumerate(UNFIT):
        became = tried(store / f"unfit-{number}", make(), Any, registered)
        found.setdefault(became, []).append(f"unfit {number}")
    return found


def test_what_is_registered_comes_back_and_the_rest_is_said(tmp_path: Path) -> None:
    kinds = [kind for _, kind, _ in APPLICATION]
    found = table(tmp_path, kinds)
    assert found.keys() == {"back", "said"}, found
    assert found["said"] == [f"unfit {number}" for number in range(len(UNFIT))]
    assert len(found["back"]) == len(VALUES) * len(ANNOTATIONS) == 280


def test_without_registering_the_annotation_is_what_counts_and_the_rest_is_said(
    tmp_path: Path,
) -> None:
    found = table(tmp_path, [])
    assert found.keys() == {"back", "said", "as a text"}, found
    unnamed = [
        f"{kind.__name__} as {name}"
        for _, kind, base in APPLICATION
        for name in ANNOTATIONS
        if name in ("none", "Any") or (name == "base" and base is not Order)
    ]
    texts = ["Mode as base", *(f"Word as {name}" for name in ("none", "Any", "base"))]
    assert found["as a text"] == texts
    unnamed = [each for each in unnamed if each not in texts]
    assert found["said"] == unnamed + [f"unfit {number}" for number in range(len(UNFIT))]
