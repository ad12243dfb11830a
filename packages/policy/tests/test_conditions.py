"""Conditions end, and soon: what fails, loops or is too large denies, and says why."""

import contextlib
import datetime as dt
import decimal
import enum
import logging
import subprocess
import sys
import textwrap
import threading
import uuid
from pathlib import Path
from typing import Any

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rollcage import Contract, errors
from rollcage.gate import StepView, Verdict
from rollcage.trace import encode
from rollcage_policy import Policy
from rollcage_policy.condition_values import ConditionFailed, plain
from rollcage_policy.conditions import Condition
from rollcage_policy.expression_reader import read_expression
from rollcage_policy.tokens import ConditionInvalid

TOOL = Contract(name="t", parameters={"type": "object"})
RULE = "version = 1\n[[rules]]\nid = 'r'\ndecision = 'allow'\n"


def condition(when: str) -> Policy:
    """A policy whose one rule allows what it holds for."""
    return Policy.parse(f"{RULE}when = '''\n{when}'''\n[constants]\nroot = '/usr'\n")


def decide(when: str, data: dict[str, Any]) -> Verdict:
    return condition(when).decide(StepView("tool", TOOL, data, data=data))


def holds(when: str, **data: Any) -> bool:
    verdict = decide(when, data)
    assert verdict.code != "rule_error", verdict.reason
    return verdict.decision == "allow"


def why(when: str, **data: Any) -> str:
    """Why a condition failed, which denies."""
    verdict = decide(when, data)
    assert (verdict.decision, verdict.code, verdict.rule) == ("deny", "rule_error", "r")
    return verdict.reason.removeprefix("rule 'r' could not be evaluated, so the call is denied: ")


# --- failures ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("when", "reason"),
    [
        ("args.gone == 1", "there is no 'gone'; ask `has(…)` first"),
        ('args["gone"] == 1', "there is no 'gone'; ask `has(…)` first"),
        ("args.map.x == 1", "there is no 'x'; ask `has(…)` first"),
        ("args.list[7] == 1", "a list has no such element"),
        ("args.text < 1", "an operation does not take values of these kinds"),
        ("args.text + 1 == 2", "an operation does not take values of these kinds"),
        ("args.text", "it returns no bool"),
        ("1", "it returns no bool"),
        ("args.list", "it returns no bool"),
        ("null", "it returns no bool"),
        ("args.number / 0 == 1", "a division by zero"),
        ("args.number + 9223372036854775807 > 0", "a number is beyond 64 bits"),
        ("int(args.text) == 1", "it failed (RuntimeError)"),
        ("within(args.number, const.root)", "within takes a path, not a number"),
        ("host(args.text) == 'a'", "host: "),
        ("named(args.text)", "named: the session has no user input; pass user_input="),
        ("args.number.matches('a')", "matches takes a text"),
        ("within(args.text)", "within: it failed (TypeError)"),
    ],
)
def test_a_condition_that_fails_denies_and_says_why(when: str, reason: str) -> None:
    found = why(when, text="secret text", list=[1], map={}, number=5)
    assert found.startswith(reason)
    assert "secret text" not in found


def test_a_rule_that_denies_or_asks_and_fails_denies() -> None:
    for decision in ("deny", "ask"):
        text = "version = 1\n[[rules]]\nid = 'a'\nreason = 'x'\nwhen = 'args.a'\ndecision = "
        made = Policy.parse(f"{text}'{decision}'\n[[rules]]\nid = 'b'\ndecision = 'allow'\n")
        assert made.decide(StepView("tool", TOOL, {}, data={})).code == "rule_error"


def test_what_cel_knows_counts_whatever_else_failed() -> None:
    assert holds("args.gone == 1 || true")
    assert not holds("args.gone == 1 && false")
    assert not holds("has(args.a) && args.a == 1")


def test_a_function_that_fails_tells_the_log_nothing(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.DEBUG):
        why("within(args.path, const.root)", path="secret\0path")
    assert caplog.records == []
    assert capfd.readouterr() == ("", "")


def test_the_next_decision_is_not_that_of_the_failed_one() -> None:
    made = condition("within(args.path, const.root)")
    for path, code in [("a\0", "rule_error"), ("/usr/a", "allowed"), (5, "rule_error")] * 2:
        assert made.decide(StepView("tool", TOOL, {}, data={"path": path})).code == code


# --- by name -------------------------------------------------------------------------------------

BY_NAME = [
    ("args.a == 1", "args_a == 1"),
    ("has(args.a) && args.a == args.b.c", "true && args_a == args_b.c"),
    ("args . a . size() > 1 // args.b", "args_a . size() > 1 // args.b"),
    ('args.a.matches("x") || "args.a" == "x"', 'args_a.Matches("x") || "args.a" == "x"'),
    ("args.a.exists(e, e == args.b && !has( args.a ))", "args_a.exists(e, e == args_b && !true)"),
    ("args.const == const.root", "args_const == Const.root"),
    ("has(args.a.b) ? args.a.b : args.c > 1", "has(args_a.b) ? args_a.b : args_c > 1"),
    ("within(args.a, const.root)", "within(args_a, Const.root)"),
    ("labels.size() == 1", "labels.size() == 1"),
]


@pytest.mark.parametrize(("source", "named"), BY_NAME)
def test_each_argument_is_a_variable_where_it_is_asked_for_by_its_name(
    source: str, named: str
) -> None:
    ours = frozenset({"within"})
    assert read_expression(source, {"root": ""}, ours).named == named


@pytest.mark.parametrize(
    "source",
    [
        'args["a"] == 1',
        "size(args) == 1",
        "'a' in args",
        "args.exists(name, name == 'a')",
        "args.size() == 1",
        "labels.exists(args_a, args_a == args.a)",
        "args.a == 1 && args == {'a': 1}",
    ],
)
def test_what_looks_at_the_arguments_in_another_way_sees_the_map(source: str) -> None:
    assert read_expression(source, {}, []).named is None
    holds(source, a=1)  # and gives an answer, not an error


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "a", "x@example.org"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner),
    max_leaves=4,
)


@given(
    st.sampled_from([source for source, _ in BY_NAME]),
    st.lists(st.dictionaries(st.sampled_from(["a", "b", "c", "const", "other"]), VALUES)),
)
def test_a_condition_gives_the_same_by_name_as_of_the_map(
    source: str, calls: list[dict[str, Any]]
) -> None:
    """One policy decides all calls, so that nothing of one may be seen in another."""
    by_name, of_map = condition(source), condition(f"({source}\n) && size(args) >= 0")
    for data in calls:
        view = StepView("tool", TOOL, data, data=data)
        found, wanted = by_name.decide(view), of_map.decide(view)
        assert (found.decision, found.code) == (wanted.decision, wanted.code)


# --- values --------------------------------------------------------------------------------------


class Colour(enum.Enum):
    RED = "red"


class Model(pydantic.BaseModel):
    inner: Any


def seal(_: str) -> str:
    return "0" * 64


@pytest.mark.parametrize(
    ("value", "when"),
    [
        (None, "args.v == null"),
        (True, "args.v && args.v != 1"),
        (7, "args.v == 7 && args.v < 7.5"),
        (2**60, f"args.v == {2**60}"),
        (1.0, "args.v == 1.0 && type(args.v) == double"),
        (1.5, "args.v > 1"),
        (1e300, "args.v > 1e299"),
        (float("inf"), "args.v > 1e308"),
        ("grün", 'args.v == "grün" && size(args.v) == 5'),
        (dt.datetime(2026, 1, 2, tzinfo=dt.UTC), "timestamp(args.v).getFullYear() == 2026"),
        (dt.date(2026, 1, 2), 'args.v == "2026-01-02"'),
        (dt.time(1, 2, fold=1), 'args.v == "01:02:00"'),
        (dt.timedelta(days=1, seconds=1), "args.v == 86401.0"),
        (b"abc", 'args.v == "YWJj"'),
        (decimal.Decimal("1.50"), 'args.v == "1.50" && double(args.v) == 1.5'),
        (uuid.UUID(int=1), 'args.v.endsWith("0001")'),
        (Path("/usr/a"), "within(args.v, const.root)"),
        ([1, [2]], "args.v[1][0] == 2"),
        ((1, 2), "args.v == [1, 2]"),
        ({3}, "3 in args.v"),
        ({"a": {"b": 1}}, "args.v.a.b == 1"),
        ({1: "one"}, 'args.v[1] == "one"'),
        ({"$rollcage": 1}, 'args.v["$rollcage"] == 1'),
        (Colour.RED, 'args.v == "red"'),
        (Model(inner={"a": (1,)}), "args.v.inner.a == [1]"),
        (pydantic.SecretStr("hush"), 'args.v == "[secret]"'),
    ],
)  # fmt: skip
def test_arguments_are_seen_as_plain_values(value: object, when: str) -> None:
    assert holds(when, v=encode(value, seal, path="v"))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (2**70, "a number is beyond 64 bits"),
        (float("nan"), "an argument is not a number (NaN)"),
        ("\ud800", "a value that CEL has no type for"),
        ({1.5: 1}, "a map has keys that CEL has no type for"),
    ],
)
def test_values_that_cel_does_not_have_deny(value: object, reason: str) -> None:
    encoded = encode(value, seal, path="v")
    assert why("args.v != 1", v=encoded) == reason
    assert why("args.v[0] != 1", v=[encoded]) == reason
    assert holds("args.other == 1", v=encoded, other=1), "nothing asks for it"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.text()
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


@given(json_values)
def test_plain_data_is_seen_as_it_is(value: object) -> None:
    assert plain(encode(value, seal, path="v")) == value


# --- what is handed over -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("when", "asked"),
    [
        ("args.a == args.b.c", {"a", "b"}),
        ('args["a"] == 1 && "b" in args', {"a", "b"}),
        ("has(args.a) ? args.a[0] == 1 : false", {"a"}),
        ("['a', r'b'].all(n, !(n in args) || within(args[n], const.root))", {"a", "b"}),
        ("args.a.all(x, x == args.b)", {"a", "b"}),
        ("args.a.all(n, n in args)", None),
        ("size(args) == 1", None),
        ("args.size() == 1", None),
        ("args == {}", None),
        ("args[const.root] == 1", None),
        ("('a' + 'b') in args", None),
        ("'a' + 'b' in args", None),
        ("'\\x61' in args", None),
        ("true // args.c\n && args.a == 'args.d'", {"a"}),
        ("const.root == ''", set()),
    ],
)
def test_only_what_is_asked_for_is_handed_over(when: str, asked: set[str] | None) -> None:
    fields = read_expression(when, {"root": ""}, ["within"]).fields
    found = fields.get("args", frozenset())
    assert (None if found is None else set(found)) == asked


CONSTANTS: dict[str, Any] = {"l": ["a"], "m": {"a": {"b": 1}}, "n": 3, "mixed": ["a", {"x": 1}]}


@pytest.mark.parametrize(("when", "reason"), [
    ("labels.to == 'x'", "labels is a list: it has no field 'to'"),
    ("labels['to'] == 'x'", "labels is a list: it has no field 'to'"),
    ("has(labels.to)", "labels is a list: it has no field 'to'"),
    ("labels[0].to == 'x'", "labels[…] is a text: it has no field 'to'"),
    ("labels.exists(l, l.to == 'x')", "l is a text: it has no field 'to'"),
    ("['a'].exists(l, l.to == 'x')", "l is a text: it has no field 'to'"),
    ("tool.permissions.files == 'x'", "tool.permissions is a list: it has no field 'files'"),
    ("tool.name.first == 'x'", "tool.name is a text: it has no field 'first'"),
    ("tool.reversible.really", "tool.reversible is a bool: it has no field 'really'"),
    ("run.calls.today > 1", "run.calls is a number: it has no field 'today'"),
    ("const.l.to == 'x'", "const.l is a list: it has no field 'to'"),
    ("const['l'].to == 'x'", "const.l is a list: it has no field 'to'"),
    ("const.m.a.b.c == 1", "const.m.a.b is a number: it has no field 'c'"),
])  # fmt: skip
def test_a_field_of_what_has_none_is_refused_when_it_is_loaded(when: str, reason: str) -> None:
    with pytest.raises(ConditionInvalid) as refused:
        Condition(when, CONSTANTS)
    assert str(refused.value).endswith(reason)


@pytest.mark.parametrize("when", [
    "'a' in labels && size(labels) > 0 && labels.size() < 9", "labels[0] == 'a'",
    "labels.exists(l, l.startsWith('a'))", "labels.exists(l, args[l].to == 1)",
    "args.labels.to == 1", "args.list.exists(l, l.labels.exists(m, m.to == 1))",
    "const.m.a.b == 1", "!has(const.m.q)", "const.mixed[1].x == 1", "const.l[0] == 'a'",
    "tool['name'].startsWith('x')", "['a'].all(k, has(args.a) && args[k].b == 1)",
    "{'labels': {'to': 1}}.labels.to == 1",
])  # fmt: skip
def test_fields_that_may_be_there_are_not(when: str) -> None:
    Condition(when, CONSTANTS)


def test_what_nothing_asks_for_may_be_of_any_size() -> None:
    huge = "x" * 10_000_000
    assert holds("args.path == 'a'", path="a", content=huge, deep=[[huge] * 100] * 1000)


# --- bounds --------------------------------------------------------------------------------------

REFUSED = {
    "too long": "args.a == '" + "x" * 4096 + "'",
    "brackets": "(" * 17 + "true" + ")" * 17,
    "lists": "[" * 17 + "]" * 17 + " == []",
    "calls": "size(" * 17 + "args.a" + ")" * 17 + " == 1",
    "members": "args" + ".a" * 65,
    "indices": "args" + "[0]" * 65,
    "sums": "1" + " + 1" * 33 + " > 0",
    "differences": "-" * 33 + "1 > 0",
    "comparisons": "true" + " == true" * 9,
    "memberships": "1" + " in 1" * 9,
    "loops": " && ".join(["args.a.all(x, true)"] * 9),
    "loops in loops": "args.a.all(x, args.a.all(y, args.a.all(z, true)))",
    "a loop's variable twice": "args.a.all(x, args.a.all(x, true))",
    "a loop over names": "args.a.all(args, true)",
    "a loop's variable outside": "args.a.all(x, true) && x",
    "a loop's variable in front": "[x].all(x, true)",
    "a message": "args{a: 1} == 1",
    "a leading dot": ".args.a == 1",
    "a dot behind a sign": "true && .args.a",
    "a reserved word": "args.a == package",
    "an optional": "optional.of(1) == 1",
    "an optional member": "args.?a == 1",
    "a bound name": "cel.bind(x, 1, x == 1)",
    "our own name for it": "Const.root == ''",
    "our own name for that": "args.a.Matches('a')",
    "a function of Python": "args.a.__class__ == 1",
    "another sign": "args.a == `b`",
    "two expressions": "true; true",
    "a pattern with a variable": "args.a.all(p, 'a'.matches(p))",
    "a sum as a pattern": "args.a.matches('a' + 'b')",
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_be_too_much_is_refused_when_it_is_loaded(case: str) -> None:
    if case == "a function of Python":  # a member like any other, and there is none
        assert why(REFUSED[case], a="b").startswith("an operation does not take")
        return
    with pytest.raises((errors.PolicyInvalid, ConditionInvalid)):
        condition(REFUSED[case])


# What takes long with the arguments below, or would take all memory.
SLOW = [
    "args.l.all(x, args.l.all(y, x + y >= 0))",
    "args.l.all(x, x in args.l)",
    "args.l.all(x, args.l == args.l)",
    "args.l.map(x, x + 1) != []",
    "args.l.filter(x, x >= 0) != []",
    "args.l.map(x, args.l.filter(y, y != x)) != []",
    "args.t.map(x, x + x + x + x).map(x, x + x + x + x).map(x, x + x + x + x) != []",
    "[args.s].map(a, a+a+a+a).map(a, a+a+a+a).map(a, a+a+a+a).map(a, a+a+a+a) != []",
    "args.s" + " + args.s" * 32 + " != ''",
    "args.t.all(x, args.s.contains(x))",
    "args.t.exists(x, args.s.endsWith(x) || args.s == x)",
    r"args.s.matches(r'(a|b|\w){60}y')",
    r"args.t.all(x, x.matches(r'(\w{20}|\d{20}){3}y'))",
    "args.huge != ''",
    "args.many != []",
    "args.deep != []",
    "size(args) == 1",
    "secret(args)",
]


def test_slow_conditions_deny_at_once() -> None:
    code = f"""
        from rollcage import Contract
        from rollcage.gate import StepView
        from rollcage_policy import Policy

        data = {{
            "l": list(range(9000)),
            "t": ["x" * 50 + str(number) for number in range(9000)],
            "s": "x" * 3_900_000,
            "huge": "x" * 5_000_000,
            "many": [[number] for number in range(100_000)],
            "deep": [],
        }}
        for _ in range(300):
            data["deep"] = [data["deep"]]
        tool = Contract(name="t", parameters={{"type": "object"}})
        for when in {SLOW!r}:
            made = Policy.parse({RULE!r} + f"when = '''{{when}}'''")
            for _ in range(20):
                verdict = made.decide(StepView("tool", tool, data, data=data))
            print(verdict.code, verdict.reason)
    """
    done = subprocess.run(  # the deadline: without the bounds, most of them take hours
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    said = done.stdout.splitlines()
    assert len(said) == len(SLOW)
    failed = "rule_error rule 'r' could not be evaluated, so the call is denied: the arguments are"
    deep = f"{failed} nested deeper than 64 levels"
    large = f"{failed} too large for it"
    assert [line for line in said if line not in (deep, large)] == []
    assert said[SLOW.index("args.deep != []")] == deep


@pytest.mark.parametrize(
    "when",
    [
        "args.l.all(x, x >= 0)",
        "args.t.all(x, x.endsWith('@example.org'))",
        "args.t.all(x, x.matches('^[a-z0-9]+@example[.]org$'))",
        "args.t.exists(x, x == 'a999@example.org') && size(args.t) == 1000",
        "args.l.all(x, args.few.exists(y, x != y))",
        "args.few.all(x, args.few.exists_one(y, x == y))",
        "args.few.map(x, x * 2).filter(x, x > 10) != []",
        "args.s.contains('y') || size(args.s) == 1000000",
        "['s', 'gone'].all(n, !(n in args) || !args[n].contains('y'))",
        "within('/usr/' + args.few.map(x, string(x))[0], const.root)",
    ],
)
def test_what_policies_do_is_far_from_the_bounds(when: str) -> None:
    if "args.few.exists(y" in when:
        data: dict[str, Any] = {"l": list(range(50)), "few": [-1, -2]}
    elif "args.few" in when:
        data = {"few": list(range(50))}
    else:
        texts = [f"a{number}@example.org" for number in range(1000)]
        data = {"l": list(range(9000)), "t": texts, "s": "x" * 1_000_000}
    assert holds(when, **data)


def test_what_passes_the_bounds_fits_the_stack_of_a_small_thread() -> None:
    deepest = [
        "(" * 15 + "true" + ")" * 15,
        "[" * 14 + "]" * 14 + " != [1]",
        "size(" * 1 + "[" * 13 + "]" * 13 + ") == 1",
        "args" + ".a" * 63 + " == 1 || true",
        "1" + " + 1" * 32 + " == 33",
        "true" + " == true" * 8,
        " && ".join(["true"] * 400),
        " || ".join(["args.a == 1"] * 150) + " || true",
        "!" * 4000 + "true",
        "[1].all(x, [2].all(y, " + "(" * 10 + "x < y" + ")" * 10 + "))",
        "false ? false : " * 80 + "true",
    ]
    code = f"""
        import threading
        from rollcage import Contract
        from rollcage.gate import StepView
        from rollcage_policy import Policy

        nested = {{}}
        for _ in range(60):
            nested = {{"a": nested}}
        tool = Contract(name="t", parameters={{"type": "object"}})
        def run():
            for when in {deepest!r}:
                made = Policy.parse({RULE!r} + f"when = '''{{when}}'''")
                print(made.decide(StepView("tool", tool, nested, data=nested)).decision)
        Policy.parse({RULE!r} + "when = 'true'")
        threading.stack_size(256 * 1024)
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["allow"] * len(deepest)


@given(st.text(alphabet="args.t()[]{}\"'\\/x1, &|!=<>?:+-in\n", max_size=60))
def test_whatever_is_written_is_a_condition_or_is_refused(text: str) -> None:
    with contextlib.suppress(ConditionInvalid):
        Condition(text)


@given(
    st.sampled_from(
        ["args.v == 1", "size(args.v) > 0", "args.v.all(x, x > 0)", "args.v < 1", "args.v.a",
         "within(args.v, '/usr')", "host(args.v) == 'a'", "command(args.v)[0] == 'ls'",
         "args.v.matches('a')", "glob(args.v, '*')", "lower(args.v) == 'a'"]
    ),
    json_values,
)  # fmt: skip
def test_whatever_a_value_is_there_is_a_verdict(when: str, value: Any) -> None:
    verdict = decide(when, {"v": encode(value, seal, path="v")})
    assert verdict.code in ("allowed", "no_rule", "rule_error")


def test_ctrl_c_in_a_function_is_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    import posixpath

    made = condition("within(args.path, const.root)")
    main = threading.main_thread()

    def interrupt(*_: object, **__: object) -> str:
        assert threading.current_thread() is main
        raise KeyboardInterrupt

    for name in ("normpath", "realpath"):
        monkeypatch.setattr(posixpath, name, interrupt)
    monkeypatch.setattr("os.path.realpath", interrupt)
    monkeypatch.setattr("os.lstat", interrupt)
    monkeypatch.setattr("os.stat", interrupt)
    with pytest.raises(KeyboardInterrupt):
        made.decide(StepView("tool", TOOL, {}, data={"path": "/usr/a"}))


def test_a_failure_is_none_of_the_errors_that_users_catch() -> None:
    assert not issubclass(ConditionFailed, errors.RollcageError)
