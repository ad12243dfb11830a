"""Values as tagged JSON: none collides with another, each comes back as it was or says why not."""

import dataclasses
import datetime as dt
import enum
import math
from collections import OrderedDict, UserDict
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, NamedTuple, cast
from uuid import UUID
from zoneinfo import ZoneInfo

import orjson
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rollcage import Unencodable
from rollcage.fingerprint.identity import jcs
from rollcage.values.codec import TAG, encode, encode_result
from rollcage.values.decoding import decode
from rollcage.values.natives import register_native


def seal(secret: str) -> str:
    """Stands for the store's HMAC, and shows what it was given."""
    return f"sealed:{secret}"


def canonical(value: Any) -> bytes:
    """The bytes of an argument at an `Any` position."""
    return jcs(encode(value, seal))


def through_json(encoded: Any) -> Any:
    return orjson.loads(orjson.dumps(encoded))


def shape(value: Any, *, ordered: bool = True) -> str:
    """All of a value as text: types all the way down, and the order of dicts where it counts."""

    def inside(items: Any) -> list[str]:
        return [shape(each, ordered=ordered) for each in items]

    kind = type(value).__name__
    if isinstance(value, dict):
        pairs = inside(value.items())  # as tuples, so that {1: …} and {True: …} differ
        return f"{kind}{pairs if ordered else sorted(pairs)}"
    if isinstance(value, list | tuple):
        return f"{kind}{inside(value)}"
    if isinstance(value, set | frozenset):
        return f"{kind}{sorted(inside(value))}"
    return f"{kind}({value!r})"  # tells -0.0 from 0.0, Decimal("1.0") from Decimal("1.00"), folds


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


@dataclasses.dataclass
class Point:
    x: int
    y: int


class Order(pydantic.BaseModel):
    item: str
    count: int


class Pair(NamedTuple):
    one: int
    two: int


class Text(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "something else"


class Number(int):
    pass


# --- strategies ----------------------------------------------------------------------------------

instants = st.builds(
    lambda at, zone, fold: at.replace(tzinfo=zone, fold=fold),
    st.datetimes(),
    st.sampled_from([None, dt.UTC, dt.timezone(dt.timedelta(hours=-3)), ZoneInfo("Europe/Berlin")]),
    st.integers(0, 1),
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(10**400), 10**400),
    st.sampled_from([0, 1, -0.0, 0.0, 1.0, "1", True, False, "", b"", "$rollcage", math.inf]),
    st.floats(allow_nan=False),
    st.text(st.characters()),  # lone surrogates too
    st.binary(max_size=8),
    st.decimals(allow_nan=False),
    st.uuids(),
    st.dates(),
    instants,
    st.times(),
    st.timedeltas(),
    st.complex_numbers(allow_nan=False),
    st.sampled_from([Path("/tmp/a"), Path("a"), PurePosixPath("a"), PureWindowsPath("c:\\a")]),  # noqa: S108 - only a name
)
hashables = st.recursive(
    scalars,
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3),
    max_leaves=4,
)
values = st.recursive(
    scalars | st.binary(max_size=4).map(bytearray),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.sets(hashables, max_size=3),
        st.dictionaries(st.sampled_from([TAG, "value", "type", "a", "é"]), inner, max_size=3),
        st.dictionaries(hashables, inner, max_size=3),
    ),
    max_leaves=8,
)


# --- no two values share an encoding -------------------------------------------------------------

DISTINCT: list[Any] = [
    1, 1.0, True, "1", b"1", Decimal(1), 1j, Decimal("1.0"), (1,), [1], {1}, frozenset({1}),
    {1: "x"}, {"1": "x"}, {1.0: "x"}, {True: "x"}, [[1, "x"]], [], (), {}, set(), frozenset(),
    "", b"", bytearray(), None, "None", 0, 0.0, -0.0, False, math.nan, "nan", math.inf, -math.inf,
    2**53, float(2**53), -(2**53), 2**64, str(2**64), 10**5000, "\ud800", "\udc00", "?",
    {"\ud800": 1},
    dt.datetime(2024, 1, 2), "2024-01-02T00:00:00", dt.date(2024, 1, 2), "2024-01-02",  # noqa: DTZ001 - naive is a case
    dt.datetime(2024, 1, 2, tzinfo=dt.UTC), dt.datetime(2024, 1, 2, tzinfo=ZoneInfo("UTC")),
    dt.datetime(2024, 1, 2, fold=1), dt.time(0), dt.time(0, fold=1), dt.timedelta(0), "PT0S",  # noqa: DTZ001 - naive is a case
    dt.timedelta(days=1), UUID(int=1), str(UUID(int=1)), Path("a"), PurePosixPath("a"), "a",
    PureWindowsPath("a"), Colour.RED, "red", Level.LOW, Point(1, 2), {"x": 1, "y": 2}, (1, 2),
    Order(item="a", count=1), {"item": "a", "count": 1}, pydantic.AnyUrl("http://a/"), "http://a/",
    {TAG: "int", "value": "1"}, {TAG: 1}, {TAG: {TAG: 1}}, [TAG, 1], {TAG: "tuple", "value": [1]},
    {TAG: "dict", "value": [[TAG, 1]]}, pydantic.SecretStr("a"), pydantic.SecretBytes(b"a"),
]  # fmt: skip


def test_values_that_python_may_mix_up_have_encodings_of_their_own() -> None:
    found: dict[bytes, Any] = {}
    for value in DISTINCT:
        made = canonical(value)
        assert made not in found, (value, found[made])
        found[made] = value


@settings(max_examples=5 * settings().max_examples)
@given(values)
def test_an_argument_can_be_read_back_so_no_two_share_an_encoding(value: Any) -> None:
    back = decode(through_json(encode(value, seal)))
    assert shape(back, ordered=False) == shape(value, ordered=False)


@settings(max_examples=5 * settings().max_examples)
@given(values)
def test_a_result_is_json_and_comes_back_as_the_value_that_it_was(value: Any) -> None:
    result = encode_result(value, seal)
    assert result.flaws == []
    assert not result.needs_type
    assert shape(decode(through_json(result.value))) == shape(value)


@given(st.dictionaries(hashables, scalars, max_size=6), st.randoms())
def test_the_order_of_a_dict_is_no_part_of_an_argument(value: dict[Any, Any], random: Any) -> None:
    pairs = list(value.items())
    random.shuffle(pairs)
    assert canonical({"deep": [dict(pairs)]}) == canonical({"deep": [value]})


@given(st.lists(hashables, max_size=6), st.randoms())
def test_the_order_of_a_set_is_no_part_of_an_argument(members: list[Any], random: Any) -> None:
    other = list(dict.fromkeys(members))
    random.shuffle(other)
    if {*map(type, members)} <= {str, int, bytes}:  # of equal members, Python keeps the first
        assert canonical(set(members)) == canonical(set(other))


def test_a_result_keeps_the_order_of_its_dicts() -> None:
    value = {2: "b", 1: "a", (3,): {"z": 1.0, "y": 2}}
    back = decode(through_json(encode_result(value, seal).value))
    assert list(back) == [2, 1, (3,)]
    assert list(back[3,]) == ["z", "y"]


def test_a_subclass_of_a_json_type_is_the_argument_that_its_base_is() -> None:
    assert canonical(Text("a")) == canonical("a")
    assert canonical(Number(3)) == canonical(3)
    assert canonical(OrderedDict(b=1, a=2)) == canonical({"a": 2, "b": 1})
    assert canonical(Pair(1, 2)) == canonical((1, 2))


def test_a_text_of_an_unknown_class_is_a_text() -> None:
    assert encode_result({"a": Text("b")}, seal) == ({"a": "b"}, [], False)


# --- what has no encoding ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "where"),
    [
        (object(), r"\$: a builtins.object has no encoding"),
        ({"a": [1, {"b": len}]}, r"\$\.a\[1\]\.b: a builtins.builtin_function_or_method"),
        ({(1,): {"x": ...}}, r"\$\[\(1,\)\]\.x: a builtins.ellipsis"),
        ([int], r"\$\[0\]: a builtins.type"),
        (UserDict(a=1), r"\$: a collections.UserDict"),
        (Point(1, cast("Any", {1: lambda: None})), r"\$\.y\[1\]: a builtins.function"),
    ],
)
def test_what_has_no_encoding_is_refused_as_an_argument_with_its_path(
    value: Any, where: str
) -> None:
    with pytest.raises(Unencodable, match=where):
        encode(value, seal)


def test_a_value_that_holds_itself_or_is_too_deep_is_refused() -> None:
    ring: list[Any] = []
    ring.append(ring)
    deep: Any = ()
    for _ in range(5000):
        deep = (deep,)
    for value in (ring, deep):
        with pytest.raises(Unencodable, match="nested"):
            encode(value, seal)
        result = encode_result(value, seal)
        assert len(result.flaws) == 1
        assert "nested" in result.flaws[0]


def test_what_comes_back_is_no_deeper_than_a_reader_can_go() -> None:
    deep: Any = 1
    for _ in range(100):
        deep = (deep,)
    assert decode(through_json(encode_result(deep, seal).value)) == deep
    plain: Any = 1
    for _ in range(240):
        plain = {"a": plain}
    assert decode(through_json(encode_result(plain, seal).value)) == plain


class Touchy(list[int]):
    def __iter__(self) -> Any:
        raise KeyError("not now")


@dataclasses.dataclass
class Unset:
    x: int = dataclasses.field(init=False)


@pytest.mark.parametrize("value", [Touchy(), Unset()])
def test_a_value_whose_own_code_fails_is_marked_and_does_not_raise(value: Any) -> None:
    result = encode_result(value, seal)
    assert len(result.flaws) == 1
    assert "can't be inspected" in result.flaws[0]


def numbers() -> Iterator[int]:
    yield 1


class Shop:
    pass


def unknown(name: str) -> str:
    return (
        f"a {name} comes back only where its class is known: name it in the tool's return type, or "
        f"say Session(options=Options(types=[{name}]))"
    )


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (numbers(), "$: a builtins.generator has no encoding"),
        ({"f": lambda: 1}, "$.f: a builtins.function has no encoding"),
        ([Shop()], f"$[0]: a {__name__}.Shop has no encoding"),
        (Colour.RED, f"$: {unknown('Colour')}"),
        (Order(item="a", count=1), f"$: {unknown('Order')}"),
        ([Point(1, 2)], f"$[0]: {unknown('Point')}"),
        (Pair(1, 2), f"$: {unknown('Pair')}"),
        ({"at": Number(1)}, f"$.at: {unknown('Number')}"),
        ({"password": pydantic.SecretStr("p")}, "$.password: a secret is never recorded"),
    ],
)
def test_a_result_that_can_not_come_back_says_where_and_why(value: Any, said: str) -> None:
    assert encode_result(value, seal).flaws == [said]


class Elsewhere(dt.tzinfo):
    def utcoffset(self, _: dt.datetime | None) -> dt.timedelta:
        return dt.timedelta(hours=1)

    def dst(self, _: dt.datetime | None) -> None:
        return None

    def tzname(self, _: dt.datetime | None) -> str:
        return "Elsewhere"


def test_a_zone_of_an_unknown_kind_is_marked_and_an_offset_of_pydantic_is_not() -> None:
    at = dt.datetime(2024, 1, 2, tzinfo=Elsewhere())
    assert encode_result(at, seal).flaws == ["$: its zone, a Elsewhere, is recorded as its offset"]
    parsed = pydantic.TypeAdapter(dt.datetime).validate_python("2024-01-02T03:04:05+01:00")
    result = encode_result(parsed, seal)
    assert result.flaws == []
    assert decode(result.value) == parsed


@pytest.mark.parametrize("value", [Decimal("NaN"), Decimal("-sNaN123"), Decimal("1E+999999")])
def test_odd_decimals_come_back(value: Decimal) -> None:
    back = decode(through_json(encode_result([value], seal).value))
    assert repr(back) == repr([value])


def test_nan_comes_back() -> None:
    back = decode(
        through_json(encode_result({"a": math.nan, 1: complex(math.nan, -0.0)}, seal).value)
    )
    assert repr(back) == "{'a': nan, 1: (nan-0j)}"


def test_the_hour_that_happens_twice_comes_back_as_the_one_it_was() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    first = dt.datetime(2024, 10, 27, 2, 30, tzinfo=berlin)
    second = first.replace(fold=1)
    for at in (first, second):
        back = decode(through_json(encode_result(at, seal).value))
        assert (back, back.fold, back.tzinfo) == (at, at.fold, berlin)
        assert back.utcoffset() == at.utcoffset()


def test_to_a_reader_without_the_types_typed_values_are_plain_data() -> None:
    value = {"c": Colour.RED, "o": Order(item="a", count=2), "p": [Point(1, 2)], "t": Text("a")}
    assert decode(through_json(encode_result(value, seal, typed=True).value)) == {
        "c": "red", "o": {"item": "a", "count": 2}, "p": [{"x": 1, "y": 2}], "t": "a",
    }  # fmt: skip


# --- values of a framework -----------------------------------------------------------------------


class Page:
    def __init__(self, text: str, seen: dt.date) -> None:
        self.text = text
        self.seen = seen


class PageNative:
    name = "test.page"
    portable = True

    def project(self, value: Any) -> Any:
        return {"text": value.text, "seen": value.seen}

    def revive(self, data: Any) -> Any:
        return Page(data["text"], data["seen"])


def test_a_registered_type_of_a_framework_comes_back_native() -> None:
    register_native([Page], PageNative())
    result = encode_result([Page("hello", dt.date(2024, 1, 2))], seal)
    assert result.flaws == []
    (back,) = decode(through_json(result.value))
    assert (type(back), back.text, back.seen) == (Page, "hello", dt.date(2024, 1, 2))


def test_without_the_framework_its_values_are_data() -> None:
    there = {
        TAG: "native",
        "type": "not.here",
        "value": {"at": {TAG: "date", "value": "2024-01-02"}},
    }
    assert decode(there) == {"at": dt.date(2024, 1, 2)}


def test_another_framework_gets_what_is_not_the_first_ones_own() -> None:
    register_native([Page], PageNative())
    inner = {"text": "hello", "seen": None, "test": {"id": 7}}
    there = [{TAG: "native", "type": "test.page", "value": inner}]
    assert decode(there, framework="other") == [{"text": "hello", "seen": None}]
    assert isinstance(decode(there, framework="test")[0], Page)
    assert isinstance(decode(there)[0], Page)


class Jump:
    pass


class JumpNative:
    name = "test.jump"
    portable = False

    def project(self, value: Any) -> Any:
        return {}

    def revive(self, data: Any) -> Any:
        return Jump()


def test_what_means_something_in_one_framework_only_is_refused_in_others() -> None:
    register_native([Jump], JumpNative())
    there = through_json(encode_result(Jump(), seal).value)
    assert isinstance(decode(there, framework="test"), Jump)
    with pytest.raises(ValueError, match=r"a test\.jump means something in test only"):
        decode(there, framework="other")
    with pytest.raises(ValueError, match=r"a gone\.jump means something in gone only"):
        decode({**there, "type": "gone.jump"})


def test_hostile_data_of_a_registered_type_are_a_value_error() -> None:
    register_native([Page], PageNative())
    nothing: list[Any] = [{}, [], None, 5]
    for data in nothing:
        with pytest.raises(ValueError, match="not a native: "):
            decode({TAG: "native", "type": "test.page", "value": data})
