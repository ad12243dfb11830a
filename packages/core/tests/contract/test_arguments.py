"""Canonical arguments: what the schema makes equal is one argument, and nothing else is."""

import datetime as dt
import enum
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import UUID
from zoneinfo import ZoneInfo

import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rollcage import ArgumentsInvalid, Contract
from rollcage.fingerprint.identity import jcs
from rollcage.values.codec import TAG, encode


def seal(secret: str) -> str:
    return f"sealed:{secret}"


def bound(contract: Contract, **arguments: Any) -> bytes:
    return contract.bind(arguments, seal).digest_input


def of_type(annotation: Any) -> Contract:
    """The contract of a tool with one parameter `x` of a type."""

    def function(x: Any) -> None: ...

    function.__annotations__["x"] = annotation
    return Contract.of(function)


def with_schema(schema: Mapping[str, Any], **declared: Any) -> Contract:
    return Contract(name="remote", parameters=schema, **declared)


# --- one argument, one form ----------------------------------------------------------------------


class Size(enum.Enum):
    SMALL = 1
    LARGE = 2


class Item(pydantic.BaseModel):
    name: str
    price: float = 1.0


class Special(Item):
    why: str


class Tree(pydantic.BaseModel):
    name: str
    at: dt.datetime | None = None
    children: list["Tree"] = []


class Hiding(pydantic.BaseModel):
    shown: int
    hidden: int = pydantic.Field(0, exclude=True)


class Rounding(pydantic.BaseModel):
    x: Annotated[float, pydantic.PlainSerializer(round)]


class Dumping(pydantic.BaseModel):
    x: int

    @pydantic.field_serializer("x")
    def dump(self, x: int) -> int:
        return 0


AT = dt.datetime(2024, 10, 27, 2, 30)  # noqa: DTZ001 - naive is a case
BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize(
    ("annotation", "values"),
    [
        (Any, [1, 1.0, True, "1", (1,), [1], {1}, frozenset({1}), {1: 1}, {"1": 1}, b"1", None]),
        (Any, [AT, AT.isoformat(), Decimal("0.5"), 0.5, "0.5", Path("a"), "a", Size.SMALL]),
        (dict[str, Any], [{TAG: "int", "value": "1"}, {TAG: 1}, {}, {"a": {TAG: 1}}, {"a": 1}]),
        (dict[str, int], [{TAG: 1}, {TAG: 2}, {"a": 1}]),
        (dict[str, float], [{TAG: 1.0}, {TAG: 2.5}, {TAG: float("inf")}, {TAG: -0.0}, {TAG: 0.0}]),
        (dict[int | str, int], [{1: 1}, {"1": 1}]),
        (dict[str | None, int], [{None: 1}, {"None": 1}]),
        (dict[tuple[str, str], int], [{("a,b", "c"): 1}, {("a", "b,c"): 1}]),
        (int | str, [1, "1"]),
        (int | float | bool | None, [1, 1.0, True, None]),
        (float, [0.0, -0.0, 1.5, float("inf"), float("-inf"), 2.0**53, 2.0**53 + 2]),
        (float | None, [float("inf"), None]),
        (int, [2**53, 2**53 + 1, 2**53 - 1, 10**30]),
        (
            dt.datetime,
            [AT, AT.replace(fold=1), AT.replace(tzinfo=dt.UTC), AT.replace(tzinfo=BERLIN)],
        ),
        (dt.datetime, [AT.replace(tzinfo=BERLIN), AT.replace(tzinfo=BERLIN, fold=1)]),
        (
            dt.datetime,
            [AT.replace(tzinfo=dt.timezone(dt.timedelta(seconds=s))) for s in (1, 2, 60, 61)],
        ),
        (dt.time, [dt.time(1), dt.time(1, fold=1), dt.time(1, tzinfo=dt.UTC)]),
        (list[dt.datetime], [[AT], [AT, AT], [AT, AT.replace(fold=1)]]),
        (tuple[int, ...], [(1,), (1, 2), ()]),
        (tuple[int, dt.time], [(1, dt.time(1)), (1, dt.time(1, fold=1))]),
        (set[int], [{1}, {2}, set()]),
        (Size, [Size.SMALL, Size.LARGE]),
        (Literal["a", "b"], ["a", "b"]),
        (
            Item,
            [
                Item(name="a"),
                Item(name="b"),
                Special(name="a", why="x"),
                Special(name="a", why="y"),
            ],
        ),
        (list[Item], [[Item(name="a")], [Special(name="a", why="x")], []]),
        (Tree, [Tree(name="a"), Tree(name="a", children=[Tree(name="b")]), Tree(name="a", at=AT)]),
        (Tree, [Tree(name="a", at=AT), Tree(name="a", at=AT.replace(fold=1))]),
        (Hiding, [Hiding(shown=1, hidden=1), Hiding(shown=1, hidden=2)]),
        (Rounding, [Rounding(x=1.1), Rounding(x=1.2)]),
        (Dumping, [Dumping(x=1), Dumping(x=2)]),
        (bytes, [b"a", b"\xff", b""]),
        (Annotated[float, pydantic.PlainSerializer(round)], [1.1, 1.2]),
    ],
)
def test_different_arguments_have_different_forms(annotation: Any, values: list[Any]) -> None:
    contract = of_type(annotation)
    forms = [bound(contract, x=value) for value in values]
    assert len(set(forms)) == len(values), forms


@pytest.mark.parametrize(
    ("annotation", "values"),
    [
        (int, [3, "3", 3.0]),
        (float, [3, 3.0, "3"]),
        (Item, [{"name": "a"}, Item(name="a"), {"name": "a", "price": "1"}]),
        (list[Item], [[{"name": "a"}], ({"name": "a", "price": 1},)]),
        (dt.datetime, [AT, AT.isoformat(), "2024-10-27 02:30"]),
        (Path, ["/a/b", Path("/a/b")]),
        (UUID, [UUID(int=1), str(UUID(int=1)), UUID(int=1).hex]),
        (Size, [1, Size.SMALL]),
        (set[int], [{1, 2}, [2, 1], (1, 2, 2)]),
        (list[int], [[1, 2], (1, 2), ("1", "2")]),
        (Decimal, [Decimal("0.5"), "0.5"]),
        (bool, [True, "true", 1]),
        (int | None, [None]),
    ],
)
def test_what_the_schema_makes_equal_is_one_argument(annotation: Any, values: list[Any]) -> None:
    contract = of_type(annotation)
    assert len({bound(contract, x=value) for value in values}) == 1


def test_typed_arguments_are_plain_json_in_the_trace() -> None:
    def order(item: Item, when: dt.datetime, sizes: list[Size], to: Path) -> None: ...

    given_ = {"item": {"name": "a", "price": 2.5}, "when": AT, "sizes": [1], "to": "/x"}
    assert Contract.of(order).bind(given_, seal).canonical == {
        "item": {"name": "a", "price": 2.5},
        "when": "2024-10-27T02:30:00",
        "sizes": [1],
        "to": "/x",
    }


def test_each_value_is_tagged_once() -> None:
    def save(what: Any, price: float, count: int) -> None: ...

    got = Contract.of(save).bind({"what": [AT], "price": 3, "count": 2}, seal)
    assert got.canonical == {
        "what": encode([AT], seal),
        "price": {TAG: "float", "value": "3.0"},
        "count": 2,
    }
    assert got.digest_input == jcs(got.canonical)


names = st.text(max_size=2)
SAMPLES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (dt.datetime, st.datetimes(timezones=st.none() | st.timezones(), allow_imaginary=False)),
    (dt.date, st.dates()),
    (dt.time, st.times(timezones=st.none() | st.just(dt.UTC))),
    (dt.timedelta, st.timedeltas()),
    (Decimal, st.decimals(allow_nan=False, allow_infinity=False)),
    (UUID, st.uuids()),
    (float, st.floats(allow_nan=False)),
    (int, st.integers()),
    (str, st.text()),
    (
        dict[str, int],
        st.dictionaries(st.text(max_size=2) | st.just(TAG), st.integers(), max_size=2),
    ),
    (dict[int, float], st.dictionaries(st.integers(), st.floats(allow_nan=False), max_size=2)),
    (list[int | str | None], st.lists(st.integers() | st.text() | st.none(), max_size=3)),
    (
        Tree,
        st.recursive(
            st.builds(Tree, name=st.text(max_size=2), at=st.none() | st.datetimes()),
            lambda inner: st.builds(
                Tree, name=st.text(max_size=2), children=st.lists(inner, max_size=2)
            ),
            max_leaves=4,
        ),
    ),
]


@settings(max_examples=5 * settings().max_examples)
@given(
    st.sampled_from(range(len(SAMPLES))).flatmap(
        lambda i: st.tuples(st.just(i), SAMPLES[i][1], SAMPLES[i][1])
    )
)
def test_two_typed_arguments_share_a_form_only_where_they_are_equal(case: Any) -> None:
    index, one, other = case
    contract = of_type(SAMPLES[index][0])
    if bound(contract, x=one) == bound(contract, x=other):
        assert one == other
    if type(one) in (int, str, dict, list, UUID, dt.date, dt.timedelta) and one == other:
        assert bound(contract, x=one) == bound(contract, x=other)


def test_a_model_given_by_itself_drops_or_refuses_what_it_does_not_know() -> None:
    class Open(pydantic.BaseModel):
        a: int

    class Strict(pydantic.BaseModel, extra="forbid"):
        a: int

    class More(pydantic.BaseModel, extra="allow"):
        a: int

    contracts = [Contract(name="x", parameters=each) for each in (Open, Strict, More)]
    assert bound(contracts[0], a=1, b=2) == b'{"a":1}'
    with pytest.raises(ArgumentsInvalid, match="b: Extra inputs are not permitted"):
        bound(contracts[1], a=1, b=2)
    assert bound(contracts[2], a=1, b=2) == b'{"a":1,"b":2}'


def test_the_names_of_a_model_count_and_not_its_aliases() -> None:
    class Aliased(pydantic.BaseModel, serialize_by_alias=True):
        one: int = pydantic.Field(alias="two")
        two: Any = pydantic.Field(alias="three")

    contract = Contract(name="x", parameters=Aliased)
    assert bound(contract, two=1, three=2) == b'{"one":1,"two":2}'


def test_an_argument_without_encoding_is_refused_with_its_path() -> None:
    with pytest.raises(ArgumentsInvalid, match=r"argument x\.a\[1\]: a builtins.object has no enc"):
        bound(of_type(Any), x={"a": [1, object()]})
    deep: Any = []
    for _ in range(3000):
        deep = [deep]
    with pytest.raises(ArgumentsInvalid, match="nested"):
        bound(of_type(Any), x=deep)
    tree = Tree(name="a")
    for _ in range(900):
        tree = Tree.model_construct(name="a", at=None, children=[tree])
    with pytest.raises(ArgumentsInvalid, match=r"nested|JSON can't hold"):
        bound(of_type(Tree), x=tree)


# --- JSON Schema ---------------------------------------------------------------------------------

REMOTE = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "limit": {"type": "integer", "default": 10},
        "ratio": {"type": ["number", "null"]},
        "tags": {"type": "array", "items": {"type": "number"}, "default": []},
        "box": {"$ref": "#/$defs/Box"},
        "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
        "any": True,
    },
    "required": ["path"],
    "$defs": {"Box": {"type": "object", "properties": {"w": {"type": "number"}}}},
}


def test_a_json_schema_fills_in_defaults_and_asks_for_what_is_required() -> None:
    contract = with_schema(REMOTE)
    got = contract.bind({"path": "a"}, seal)
    assert got.values == {"path": "a", "limit": 10, "tags": []}
    got.values["tags"].append(1)
    assert contract.bind({"path": "a"}, seal).values["tags"] == []
    with pytest.raises(ArgumentsInvalid, match="remote: missing argument 'path'"):
        bound(contract)
    assert contract.json_schema == REMOTE


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"limit": 3}, {"limit": 3.0}),
        ({"ratio": 3}, {"ratio": 3.0}),
        ({"tags": [1, 2]}, {"tags": [1.0, 2]}),
        ({"box": {"w": 2, "h": 1}}, {"box": {"w": 2.0, "h": 1}}),
        ({"either": 2}, {"either": 2.0}),
        ({"path": "b", "limit": 3}, {"limit": 3, "path": "b"}),
    ],
)
def test_json_schema_has_one_number_type(one: dict[str, Any], other: dict[str, Any]) -> None:
    contract = with_schema(REMOTE)
    assert bound(contract, **{"path": "a", **one}) == bound(contract, **{"path": "a", **other})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"any": 1}, {"any": 1.0}),
        ({"more": 1}, {"more": 1.0}),
        ({"limit": 3}, {"limit": 3.5}),
        ({"limit": "3"}, {"limit": 3}),
        ({"ratio": 2**53 + 1}, {"ratio": 2**53}),
        ({"ratio": 10**400}, {"ratio": 10**400 + 1}),
        ({"ratio": None}, {}),
        ({"box": {"w": 1, "h": 1}}, {"box": {"w": 1, "h": 1.0}}),
    ],
)
def test_what_a_json_schema_does_not_make_equal_stays_apart(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    contract = with_schema(REMOTE)
    assert bound(contract, path="a", **one) != bound(contract, path="a", **other)


def test_the_body_gets_what_was_sent_and_not_its_canonical_form() -> None:
    assert with_schema(REMOTE).bind({"path": "a", "ratio": 3}, seal).values["ratio"] == 3
    assert isinstance(
        with_schema(REMOTE).bind({"path": "a", "ratio": 3}, seal).values["ratio"], int
    )


def test_further_arguments_are_taken_unless_the_schema_says_no() -> None:
    assert bound(with_schema(REMOTE), path="a", more=[1]) == bound(
        with_schema({**REMOTE, "additionalProperties": {"type": "array"}}), path="a", more=[1]
    )
    with pytest.raises(ArgumentsInvalid, match="unknown argument 'more'; it has any, box, either"):
        bound(with_schema({**REMOTE, "additionalProperties": False}), path="a", more=1)


def test_a_schema_that_refers_to_itself_or_to_nothing_does_no_harm() -> None:
    node = {
        "type": "object",
        "properties": {"w": {"type": "number"}, "next": {"$ref": "#/$defs/N"}},
    }
    schema = {
        "properties": {
            "a": {"$ref": "#/$defs/N"},
            "b": {"$ref": "#/x/y"},
            "c": {"$ref": "#/$defs/L"},
        },
        "$defs": {"N": node, "L": {"$ref": "#/$defs/L"}},
    }
    contract = with_schema(schema)
    one = {"a": {"next": {"next": {"w": 1}}}, "b": 1, "c": 1}
    other = {"a": {"next": {"next": {"w": 1.0}}}, "b": 1, "c": 1}
    assert bound(contract, **one) == bound(contract, **other)
