"""What an expression may cost, as nothing can break one off; and numbers that it can't hold."""

import time
from typing import Any

import pytest
from rollcage_workflow.errors import ExpressionFailed, InputsInvalid
from rollcage_workflow.expressions import expression, fill
from worlds import World


def test_expressions_take_no_longer_than_they_may() -> None:
    many = [{"n": n, "text": "x" * 20} for n in range(600)]
    chained = "=a.filter(x, x.n > 1).map(x, {'n': x.n}).map(x, x.n)"
    assert len(fill(chained, {"a": many})) == 598
    ones = f"[{','.join(['1'] * 300)}]"
    for endless in (
        f"={ones}.map(a, {ones}.map(b, {ones}.map(c, c)))",
        "=['" + "x" * 500 + "']" + ".map(a, a + a)" * 20,
        "=a.map(x, a.map(y, a.map(z, z)))",
    ):
        with pytest.raises(ExpressionFailed, match="too large"):
            fill(endless, {"a": many})


@pytest.mark.parametrize(
    ("source", "given"),
    [
        ("=a.matches('[ab]*a[ab]{5000}c')", "ab" * 50_000),
        ("=a.text.matches(a.pattern)", {"text": "ab" * 50_000, "pattern": "[ab]*a[ab]{5000}c"}),
        ("=a.text.matches(a.pattern)", {"text": "ab" * 5_000, "pattern": "((a{50}){50}b{2})?"}),
        ("=a.all(x, !a[0].matches(x))", ["a" * 100_000] + ["a+b"] * 200),
        ("=a.filter(x, x.matches('^a'))", ["a"] * 100_000),
        ("=a.map(x, x + x).filter(x, x.matches('^[ab]{900}c'))", ["ab" * 200] * 1000),
    ],
)
def test_a_pattern_takes_no_longer_than_it_may(source: str, given: Any) -> None:
    began = time.monotonic()
    with pytest.raises(ExpressionFailed, match="too large"):
        fill(source, {"a": given})
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("source", "given", "expected"),
    [
        ("=a.matches('^b')", "b" * 1_000_000, True),
        ("=a.matches('^[a-z.]{3,40}@[a-z]{2,40}$')", "ann@home", True),
        ("=size(a.filter(x, x.matches('^a{2}')))", ["aab"] * 500, 500),
        ("=a.text.matches(a.pattern)", {"text": "ab" * 500, "pattern": "^(ab){3,500}$"}, True),
    ],
)
def test_a_pattern_that_is_soon_done_is_matched(source: str, given: Any, expected: Any) -> None:
    assert fill(source, {"a": given}) == expected


def test_a_number_that_python_does_not_write_down_is_refused_by_its_size() -> None:
    with pytest.raises(ExpressionFailed, match="an integer of 16610 bits is too large"):
        expression("[a]")({"a": 10**5000})


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 2**64 + 1, 2**70])
async def test_an_integer_beyond_64_bits_is_passed_on_as_it_is_or_refused(
    world: World, number: int
) -> None:
    assert expression("a.id")({"a": {"id": number}}) == number
    refused = f"an integer of {number.bit_length()} bits is too large"
    with pytest.raises(ExpressionFailed, match=refused):
        expression("[a.id]")({"a": {"id": number}})
    plan = {
        "name": "plan",
        "inputs": {"n": {"type": "integer"}},
        "steps": {"a": {"value": {"n": "=inputs.n"}}, "b": {"value": "=a.n"}},
    }
    assert (await world.attempt(plan, {"n": number})).output == number
    assert (await world.attempt(plan)).output == number
    with pytest.raises(InputsInvalid, match="other inputs"):
        await world.attempt(plan, {"n": number + 1})


@pytest.mark.parametrize("value", [float("nan"), [float("inf")], {"x": "\ud800"}])
async def test_an_input_that_is_no_json_is_refused_by_name(world: World, value: Any) -> None:
    plan = {"name": "plan", "inputs": {"n": {}}, "steps": {"a": {"value": "=inputs.n"}}}
    with pytest.raises(InputsInvalid, match="n: has no JSON form"):
        await world.attempt(plan, {"n": value})
