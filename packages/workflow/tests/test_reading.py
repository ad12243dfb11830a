"""What the check knows of expressions: their functions, fields, elements, and nulls."""

import itertools
import re
from collections.abc import Iterator
from typing import Any

import cel
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rollcage import tool
from rollcage_workflow import PlanInvalid, check
from rollcage_workflow.errors import ExpressionFailed
from rollcage_workflow.expressions import ExpressionInvalid, expression, fill, plain
from rollcage_workflow.functions import FUNCTIONS
from rollcage_workflow.reading import Reading
from rollcage_workflow.schemas import ANY, Shape, invalid, of_type
from rollcage_workflow.syntax import MACROS, Called, Loop, Name, parts_of, tree_of, without_texts


class Line(pydantic.BaseModel):
    price: float
    tags: dict[str, int] = {}


class Order(pydantic.BaseModel):
    total: int
    note: str | None
    lines: list[Line]
    pair: tuple[int, str]
    any: Any = None


class Text(pydantic.BaseModel):
    text: str


@tool(effect="read")
def fetch() -> list[Order]:
    raise AssertionError


@tool(effect="read")
def first() -> Order:
    raise AssertionError


@tool(effect="read")
def either() -> Line | Order:
    raise AssertionError


@tool(effect="write")
def send(to: str) -> str:
    raise AssertionError


@tool(effect="write")
def add(number: int) -> int:
    raise AssertionError


TOOLS: list[Any] = [fetch, first, either, send, add]
STEPS: dict[str, Any] = {
    "orders": {"call": "fetch"},
    "order": {"call": "first"},
    "some": {"call": "either"},
    "maybe": {"call": "first", "when": "=inputs.week > 3"},
    "listed": {"call": "fetch", "when": "=inputs.week > 3"},
    "flag": {"value": "=inputs.week > 5", "when": "=inputs.week > 3"},
}


def told(steps: dict[str, Any], **more: Any) -> list[str]:
    """What is found: code, place in the steps, and reason."""
    inputs = {"week": {"type": "integer"}}
    try:
        check({"name": "plan", "inputs": inputs, "steps": STEPS | steps} | more, TOOLS)
    except PlanInvalid as error:
        return [f"{each.code} {each.path.removeprefix('steps.')}: {each.reason}"
                for each in error.findings]  # fmt: skip
    return []


def told_of(source: str) -> list[str]:
    """What is found in an expression."""
    return [each.replace(" v.value:", "") for each in told({"v": {"value": f"={source}"}})]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("orders.sum()", "unknown_function there is no function 'sum'; there are size, contains"),
        ("orders.join(',')", "unknown_function there is no function 'join'"),
        ("foo(order)", "unknown_function there is no function 'foo'"),
        ("sise(orders)", "unknown_function there is no function 'sise'; did you mean 'size'?"),
        ("order.note.startswith('a')", "unknown_function there is no function 'startswith'; did"),
        ("math.abs(order.total)", "unknown_function there is no function 'math.abs'"),
        ("optional.of(order).value()", "unknown_function there is no function 'optional.of'"),
        ("startsWith(order.note, 'a')", "unknown_function startsWith is called as x.startsWith("),
        ("size(orders, 1)", "unknown_function size is called as size(x) or x.size()"),
        ("orders.size(1)", "unknown_function size is called as size(x) or x.size()"),
        ("'1'.int()", "unknown_function int is called as int(x)"),
        ("timestamp('x').getHours('Europe/Berlin')", "unknown_function getHours is called as"),
        ("orders.map(x)", "unknown_function map is called as list.map(x, …)"),
        ("all(orders, x, true)", "unknown_function all is called as list.all(x, …)"),
        ("orders.has(x)", "unknown_function has is called as has(x.field)"),
        ("size(order.total)", "wrong_type size() can't take this: this is an integer, and"),
        ("order.total.startsWith('a')", "wrong_type startsWith() can't take this: this is an int"),
        ("order.note.contains(3)", "wrong_type contains() can't take this: this is an integer"),
        ("string(order.lines)", "wrong_type string() can't take this: this is an array"),
        ("(order.total > 3).size()", "wrong_type size() can't take this: this is a boolean"),
        ("order.note.getHours()", "wrong_type getHours() is of a time or a duration"),
        ("order.total.map(x, x)", "wrong_type map() can't take this: this is an integer"),
        ("orders[0].totel", "unknown_field orders[0].totel: it has no field 'totel'; did you mean"),
        ("orders[0].lines[1].pirce", "unknown_field orders[0].lines[1].pirce: it has no field"),
        ("order['nam']", "unknown_field order.nam: it has no field 'nam'"),
        ("order['total']['x y']", "unknown_field order.total['x y']: it is an integer, which has"),
        ("orders[order.total].totl", "unknown_field orders[…].totl: it has no field 'totl'"),
        ("orders.totl", "unknown_field orders.totl: it is an array, which has no field 'totl'"),
        ("order.lines[0].tags.a.b", "unknown_field order.lines[0].tags.a.b: it is an integer"),
        ("order.lines[0].tags[order.note].b", "unknown_field order.lines[0].tags[…].b: it is an"),
        ("order.pair[1].x", "unknown_field order.pair[1].x: it is a string, which has no field"),
        ("order.pair[2]", "unknown_field order.pair[2]: it has no element 2: there are at most 2"),
        ("order[0]", "unknown_field order[0]: it is an object, which has no element 0"),
        ("order.total[0]", "unknown_field order.total[0]: it is an integer, which has no element"),
        ("orders.map(o, o.totel)", "unknown_field o.totel: it has no field 'totel'"),
        ("orders.map(o, o.total > 1, o.totel)", "unknown_field o.totel: it has no field 'totel'"),
        ("orders.map(o, o.lines.all(l, l.pric > 1))", "unknown_field l.pric: it has no field"),
        ("orders.filter(o, o.total > 1)[0].totl", "unknown_field orders.filter(…)[0].totl: it has"),
        ("orders.map(o, o.lines)[0][0].pric", "unknown_field orders.map(…)[0][0].pric: it has no"),
        ("has(order.totel)", "unknown_field order.totel: it has no field 'totel'"),
        ("{'a': order.totel}", "unknown_field order.totel: it has no field 'totel'"),
        ("[order.total > 3 ? order.totel : 0]", "unknown_field order.totel: it has no field"),
        ("inputs['weak']", "unknown_input inputs.weak: it has no field 'weak'; did you mean"),
        ("order.total + x", "unknown_name no earlier step is called 'x'"),
        ("orders.map(x, x.total) + [x]", "unknown_name no earlier step is called 'x'"),
    ],
)
def test_what_can_not_be_right_is_found_once(source: str, expected: str) -> None:
    said = told_of(source)
    assert len(said) == 1, said
    assert said[0].startswith(expected)


@pytest.mark.parametrize(
    "source",
    [
        "'orders[0].totel, sise(x)'",
        "[\"=x.y\", '''a\"b'.sum()''', r'\\', b'x'].size()",
        "some.pric",  # it is one of two
        "order.any.x[0].y['z'] + order.any.x.size()",
        "order.lines[0].tags.anything",
        "orders[0].lines[1].price + orders[0]['total']",
        "orders.map(o, o.lines.map(l, l.tags['a'])).size()",
        "orders.exists(orders, orders.total > 1)",
        "order.note.startsWith('a') && order.note.matches('^a') ? size(order.note) : order.total",
        "timestamp(order.note) + duration('1h') > timestamp('2027-01-31T08:00:00Z')",
        "timestamp(order.note).getFullYear() + int(order.note) + int(double(order.total))",
        "string(order.total) + string(timestamp(order.note))",
        "type(order.any) == int || dyn(order.any) in [1, 2u, 0x1F, .5, 1e3, -1]",
        "order.lines[0].tags.map(tag, tag.size())",
        "has(order.any.x) ? order.any.x : {'a': 1, 'b': [],}.b",
        "orders.map(o, o.total)[0] + 1 // the rest is no expression: sise(",
    ],
)
def test_what_may_be_right_is_not_found(source: str) -> None:
    assert told_of(source) == []


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        ({"call": "add", "args": {"number": "=orders[0].total"}}, ""),
        ({"call": "send", "args": {"to": "=orders[0].total"}}, "wrong_type v.args.to"),
        ({"call": "send", "args": {"to": "=orders[0].note"}},
         "may_be_null v.args.to: orders[0].note may be null, and send takes no null here: add"),
        ({"call": "add", "args": {"number": "=size(orders)"}}, ""),
        ({"call": "add", "args": {"number": "=order.total > 3"}}, "wrong_type v.args.number"),
        ({"call": "send", "args": {"to": "=order.total > 3 ? 1 : 2"}}, "wrong_type v.args.to"),
        ({"call": "send", "args": {"to": "=order.total > 3 ? order.any : 2"}}, ""),
        ({"call": "send", "args": {"to": "=orders.map(o, o.total)[0]"}}, "wrong_type v.args.to"),
        ({"value": 1, "when": "=size(orders)"}, "wrong_type v.when"),
        ({"each": {"over": "=orders[0].lines", "steps": {"x": {"value": "=item.pric"}}}},
         "unknown_field v.each.steps.x.value"),
        ({"each": {"over": "=orders.map(o, o.total)", "steps": {"x": {"value": "=item.x"}}}},
         "unknown_field v.each.steps.x.value"),
    ],
)  # fmt: skip
def test_the_shape_of_an_element_is_known(step: dict[str, Any], expected: str) -> None:
    said = told({"v": step})
    assert len(said) == bool(expected), said
    assert all(each.startswith(expected) for each in said)


# --- results of steps that are skipped -----------------------------------------------------------


@pytest.mark.parametrize(
    "source",
    [
        "maybe.total",
        "maybe['total']",
        "maybe.lines[0].price",
        "maybe != null ? 0 : maybe.total",
        "maybe == null && maybe.total > 1",
        "maybe != null || maybe.total > 1",
        "maybe.total > 1 && maybe.total < 3",
        "has(maybe.total)",
        "has(maybe.total) ? maybe.total : 0",
        "size(maybe)",
        "[1].map(x, maybe.total)",
    ],
)
def test_nothing_is_taken_from_the_result_of_a_step_that_may_be_skipped(source: str) -> None:
    said = told_of(source)
    assert len(said) == 1, said
    assert said[0].startswith("may_be_skipped maybe may be skipped")
    with pytest.raises(ExpressionFailed):  # and so it is
        fill(f"={source}", {"maybe": None})


@pytest.mark.parametrize(
    "source",
    [
        "maybe",
        "{'x': [maybe]}",
        "maybe == null ? 0 : maybe.total",
        "maybe != null ? maybe.total : 0",
        "null == maybe ? 0 : maybe.total",
        "!(maybe == null) ? maybe.total : 0",
        "maybe != null && maybe.total > 1",
        "maybe.total > 1 && maybe != null",  # an error beside false is false
        "maybe == null || maybe.total > 1",
        "!(maybe == null || maybe.total < 1) ? maybe.total : 0",
        "maybe == null ? 0 : order == null ? 1 : maybe.total",
        "type(maybe) == map ? maybe.total : 0",
        "[order].map(maybe, maybe.total)",
    ],
)
def test_an_expression_may_test_for_null_itself(source: str) -> None:
    assert told_of(source) == []
    fill(f"={source}", {"maybe": None, "order": {"total": 3}})  # and it has a value


ASKS = st.sampled_from(
    ["maybe == null", "null != maybe", "maybe.total > 1", "maybe != null", "a", "b", "true"]
)


def asked(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    sign = st.sampled_from(["&&", "||"])
    return (
        st.builds("({} {} {})".format, inner, sign, inner)
        | st.builds("({} {} {} {} {})".format, inner, sign, inner, sign, inner)
        | st.builds("({} ? {} : {})".format, inner, inner, inner)
        | st.builds("!({})".format, inner)
    )


@settings(max_examples=5 * settings().max_examples)
@given(st.recursive(ASKS, asked, max_leaves=10))
def test_what_is_not_found_never_fails_on_null(source: str) -> None:
    found = expression(source)
    reading = Reading(found, dict.fromkeys(("maybe", "a", "b"), ANY), frozenset({"maybe"}))
    if not reading.problems:
        for a, b in itertools.product((True, False), repeat=2):
            assert isinstance(found({"maybe": None, "a": a, "b": b}), bool)


SKIPS: dict[str, Any] = {
    "jump": {"call": "first", "next": {"to": "there", "when": "=jump.total > 3"}},
    "one": {"call": "first", "after": ["jump"]},
    "two": {"value": "=one.total"},  # it is skipped with it
    "there": {"value": 1, "after": ["two"]},
}


@pytest.mark.parametrize(
    ("steps", "place"),
    [
        ({"v": {"call": "add", "args": {"number": "=maybe.total"}}}, "v.args.number"),
        ({"v": {"value": 1, "when": "=maybe.total > 3"}}, "v.when"),
        ({"v": {"value": 1, "when": "=flag"}}, "v.when"),
        ({"v": {"wait": {"until": "=maybe.note"}}}, "v.wait.until"),
        ({"v": {"wait": {"approval": "=maybe.note"}}}, "v.wait.approval"),
        ({"v": {"each": {"over": "=maybe.lines", "steps": {"x": {"value": 1}}}}}, "v.each.over"),
        ({"v": {"each": {"over": "=listed", "steps": {"x": {"value": 1}}}}}, "v.each.over"),
        ({"v": {"each": {"over": "=[1]", "steps": {"x": {"value": "=maybe.total"}}}}},
         "v.each.steps.x.value"),
        ({"v": {"repeat": {"steps": {"x": {"call": "first", "when": "=round > 1"}}, "most": 2,
                           "until": "=x.total > 3"}}}, "v.repeat.until"),
        ({"v": {"each": {"over": "=[1]", "steps": {"x": {"call": "first", "when": "=item > 1"}},
                         "result": {"x": "=x.total"}}}}, "v.each.result.x"),
        ({"v": {"call": "first", "when": "=inputs.week > 1", "after": ["order"],
                "next": {"to": "order", "when": "=v.total > 1", "most": 2}}}, "v.next.when"),
        ({**SKIPS, "v": {"value": "=one.total", "after": ["there"]}}, "v.value"),
    ],
)  # fmt: skip
def test_a_skipped_result_is_found_wherever_it_is_used(steps: dict[str, Any], place: str) -> None:
    assert [each.split(":")[0] for each in told(steps)] == [f"may_be_skipped {place}"]


def test_a_skipped_result_is_found_in_the_output() -> None:
    assert told({}, output="=maybe.total")[0].startswith("may_be_skipped output")
    assert told({}, output={"x": "=maybe"}) == []


@pytest.mark.parametrize(
    "steps",
    [
        SKIPS,
        {"v": {"value": "=maybe.total", "when": "=maybe != null"}},
        {"v": {"each": {"over": "=maybe.lines", "steps": {"x": {"value": "=maybe.total"}}},
               "when": "=maybe != null"}},
        {"v": {"call": "first", "when": "=inputs.week > 1",
               "next": {"to": "y", "when": "=v.total > 1"}},  # skipped, it does not jump
         "x": {"value": 1, "after": ["v"]}, "y": {"value": 1, "after": ["x"]}},
    ],
)  # fmt: skip
def test_what_is_tested_or_skipped_together_is_not_found(steps: dict[str, Any]) -> None:
    assert told(steps) == []


# --- what is known holds -------------------------------------------------------------------------

ORDER = Order(
    total=3, note="it", lines=[Line(price=1.5, tags={"a": 1})], pair=(1, "b"), any={"x": [1]}
)
HELD: dict[str, tuple[Any, Shape]] = {
    "o": (plain(ORDER), of_type(Order)[0]),
    "l": (plain([ORDER, ORDER]), of_type(list[Order])[0]),
    "e": (plain(ORDER), of_type(Line | Order)[0]),
    "n": (3, Shape.of({"type": "integer"})),
    "s": ("it", Shape.of({"type": ["string", "null"]})),
    "m": ({"a": {"b": 1}}, of_type(dict[str, dict[str, int]])[0]),
    "c": ({"a": [1, "x"]}, Shape.of({"const": {"a": [1, "x"]}})),
    "z": (None, Shape.of({"type": "null"})),
    "_": ([1, {"a": 2}], ANY),
}
FIELDS = ["total", "note", "lines", "pair", "any", "price", "tags", "a", "b", "x"]
ATOMS = st.sampled_from(
    [*HELD, "1", "0", "'a'", "'it'", "1.5", "true", "null", "[1, 2]", "{'a': o}"]
)


def taken(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    field = st.sampled_from(FIELDS)
    function = st.sampled_from(sorted(FUNCTIONS))
    sign = st.sampled_from(["+", "-", "*", "==", "!=", "<", " in "])
    macro = st.sampled_from(["map", "filter", "all", "exists", "exists_one"])
    return (
        st.builds("({}).{}".format, inner, field)
        | st.builds("{}.{}".format, st.sampled_from([*HELD]), field)
        | st.builds("{}[{}]".format, st.sampled_from(["l", "o.lines", "o.pair", "_"]), inner)
        | st.builds("({})['{}']".format, inner, field)
        | st.builds("({})[0]".format, inner)
        | st.builds("has(({}).{})".format, inner, field)
        | st.builds("{}({})".format, function, inner)
        | st.builds("({}).{}()".format, inner, function)
        | st.builds("({}).{}({})".format, inner, function, inner)
        | st.builds("({}).{}(v, {})".format, inner, macro, inner.map(lambda each: f"({each}) == v"))
        | st.builds("({}).map(v, {})".format, inner, inner)
        | st.builds("({}).map(v, v.{})".format, inner, field)
        | st.builds("(({}) {} ({}))".format, inner, sign, inner)
        | st.builds("[{}, {}]".format, inner, inner)
        | st.builds("(true ? {} : {})".format, inner, inner)
    )


@settings(max_examples=10 * settings().max_examples)
@given(st.recursive(ATOMS, taken, max_leaves=6))
def test_an_expression_with_a_value_has_no_problem_and_the_value_its_shape(source: str) -> None:
    """Where each part is evaluated, a problem is no guess: there would be no value."""
    try:
        found = expression(source)
        value = found({name: value for name, (value, _) in HELD.items()})
    except (ExpressionInvalid, ExpressionFailed, ValueError):
        return
    reading = Reading(found, {name: shape for name, (_, shape) in HELD.items()})
    words = ("?", "filter", "all", "exists", "has")  # false for a field that is nowhere
    is_whole = not any(word in source for word in words)
    assert not (is_whole and reading.problems)
    assert invalid(value, reading.shape) is None


# --- the library ---------------------------------------------------------------------------------

VALUES: list[Any] = ["3", 3, 1.5, True, [1], {"a": 1}, None]
OF_TYPE = ["string", "number", "number", "boolean", "array", "object", "null"]


def does_work(source: str, value: Any) -> bool:
    try:
        cel.compile(source).execute(cel.Context({"v": value}))
    except RuntimeError as error:
        return "Undefined variable or function" not in str(error)
    return True


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_known_functions_are_those_of_the_library(name: str) -> None:
    """Each is called in both ways, with one argument more and less, of each type."""
    known = FUNCTIONS[name]
    more = ", ".join(["'3'"] * known.takes_more)
    if not known.takes:
        times = ["timestamp('2027-01-31T08:00:00Z')", "duration('1h')"]
        of_day = name in ("getHours", "getMinutes", "getSeconds", "getMilliseconds")
        assert [does_work(f"{each}.{name}()", None) for each in times] == [True, of_day]
        assert not any(does_work(f"v.{name}()", value) for value in VALUES)
        return
    texts = {"timestamp": "2027-01-31T08:00:00Z", "duration": "3s"}
    for each, kind in zip(VALUES, OF_TYPE, strict=True):
        value = texts.get(name, each) if each == "3" else each
        fits = kind in known.takes
        assert does_work(f"{name}(v)", value) == (fits and known.is_function)
        assert does_work(f"v.{name}({more})", value) == (fits and known.is_method)
        assert not does_work(f"{name}(v, v)", value)
        if known.is_method:
            assert not does_work(f"v.{name}({more + ', ' * bool(more)}v)", value)


@pytest.mark.parametrize(
    "name", ["bool", "min", "max", "sum", "join", "split", "lowerAscii", "abs"]
)
def test_functions_of_other_implementations_are_none(name: str) -> None:
    assert not any(does_work(f"{name}(v)", value) for value in VALUES)
    assert not any(does_work(f"v.{name}()", value) for value in VALUES)


WORDS = st.sampled_from(["a", "b", "x", "size", "map", "has", "in_", "true", "null"])
TEXTS = st.sampled_from(["'a'", '"b[0]"', "'''it's'''", r"r'\'", r"'\''", "b'x'", '"""a"b"""'])
NUMBERS = st.sampled_from(["1", "2u", "0x1F", "1.5", ".5", "1e3", "-1"])


def grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    sign = st.sampled_from(["+", "-", "*", "/", "%", "<", "<=", "==", "!=", " in ", "&&", "||"])
    macro = st.sampled_from(sorted(MACROS))
    return (
        st.tuples(inner, sign, inner).map("".join)
        | st.builds("({})".format, inner)
        | st.builds("{}[{}]".format, WORDS, inner)
        | st.builds("{}.{}".format, WORDS, WORDS.filter(lambda word: word not in ("true", "null")))
        | st.builds("has(x.{}.b)".format, st.sampled_from(["a", "size"]))
        | st.builds("{}.{}({}, {})".format, WORDS, macro, st.sampled_from(["x", "y"]), inner)
        | st.builds("[{}].map(y, {}, {})".format, inner, inner, inner)
        | st.builds("{}({}, {})".format, st.sampled_from(["size", "foo"]), inner, inner)
        | st.builds("({}).{}()".format, inner, st.sampled_from(["size", "foo"]))
        | st.builds("[{}, {},]".format, inner, inner)
        | st.builds("{{{}: {}}}".format, inner, inner)
        | st.builds(
            "{} ? {} : {}".format, inner.map("({})".format), inner.map("({})".format), inner
        )
        | st.builds("!{} // {}\n".format, inner.map("({})".format), TEXTS)
        | st.builds("--{}".format, inner.map("({})".format))
    )


def nodes(node: Any) -> Iterator[Any]:
    yield node
    for each in parts_of(node):
        yield from nodes(each)


@given(st.recursive(WORDS | TEXTS | NUMBERS, grown, max_leaves=12))
def test_the_tree_has_the_names_and_functions_that_the_library_tells(source: str) -> None:
    try:
        program = cel.compile(source)
    except ValueError:
        return
    tree = tree_of(source)
    bound = {each.variable for each in nodes(tree) if isinstance(each, Loop)}
    used = {each.name for each in nodes(tree) if isinstance(each, Name)}
    assert used | bound == set(program.variables()) | bound
    called = {each.name for each in nodes(tree) if isinstance(each, Called)}
    assert called == {name for name in program.functions() if re.fullmatch(r"\w+", name)}
    texts = without_texts(source)
    assert not set('"\\') & set(texts)
    assert not re.search("'[^']", texts.replace("''", ""))


def test_brackets_are_counted_beside_texts_of_any_kind() -> None:
    deep = "(" * 30 + "1" + ")" * 30
    for hidden in (f"'''a\"''' + {deep} + '''\"'''", f'"""a"\'""" == \'\' ? {deep} : "\'"'):
        with pytest.raises(ExpressionInvalid, match="more than 24 brackets"):
            expression(hidden)
    assert expression("'" + "(" * 30 + "'")({}) == "(" * 30


def test_every_macro_counts_as_a_loop() -> None:
    for macro in ("map", "exists_one", "existsOne"):
        source = f"a.{macro}(x, a.{macro}(y, a.{macro}(z, true) != true) != true)"
        with pytest.raises(ExpressionFailed, match="too large"):
            expression(source)({"a": [1] * 600})


def test_an_element_of_a_list_is_passed_on_whatever_its_size() -> None:
    assert expression("a[1].id")({"a": [0, {"id": 2**70}]}) == 2**70
    with pytest.raises(ExpressionFailed, match="too large to compute with"):
        expression("a[2].id")({"a": [0, {"id": 2**70}]})
