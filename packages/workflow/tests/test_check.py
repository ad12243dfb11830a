"""Every kind of mistake in a plan is found, with its line, before anything runs."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pydantic
import pytest
from checked_tools import TOOLS, fetch, helper, mark
from rollcage import tool
from rollcage_workflow import PlanInvalid, check, kinds, run
from rollcage_workflow.errors import InputsInvalid
from rollcage_workflow.plan import KINDS


@tool(effect="write", undo=list, name="send")
def undoable(to: str, text: str = "") -> str:
    raise AssertionError


MISTAKES = """\
name: mistakes
inputs:
  week: {type: integer}
steps:
  a: {call: fetsh, args: {week: 1}}
  b: {call: fetch, args: {week: "=inputs.weak"}}
  c: {call: fetch}
  d: {call: fetch, args: {week: 1, weak: 2}}
  e: {call: fetch, args: {week: "one"}}
  f: {call: send, args: {to: "=g.total"}}
  g: {value: {total: 3}}
  h: {value: "=i"}
  i: {value: "=h"}
  j: {value: 1, when: "=false"}
  k: {value: "=1 +"}
  l: {value: "=nothing"}
  m: {team: {mode: race, members: {x: {call: send, args: {to: a}}}}}
  n: {call: send, args: {to: a}, timeout: 3}
  o: {call: send, args: {to: a}, on_failure: rollback}
  p: {call: send, args: {to: "=q"}}
  q: {call: send, args: {to: a}, when: "=inputs.week > 3"}
  r: {agent: send, args: {to: a}}
  s: {each: {over: "=inputs.week", steps: {x: {value: 1}}}, retry: {attempts: 2}}
  t: {value: 1, next: {to: a, when: "=true", most: 2}}
  u: {value: 1, after: [feetch]}
  v: {value: 1, when: "=inputs.week"}
  w: {wait: {signal: go}, timeout: 3}
"""
FOUND = [
    (5, "unknown_tool", "did you mean 'fetch'?"),
    (6, "unknown_input", "did you mean 'week'?"),
    (7, "missing_argument", "fetch needs 'week'"),
    (8, "unknown_argument", "did you mean 'week'?"),
    (9, "wrong_type", "'one' is not of type 'integer'"),
    (10, "wrong_type", "3 is not of type 'string'"),
    (12, "cycle", "h -> i -> h"),
    (14, "unreachable", "is always false"),
    (15, "bad_expression", "column"),
    (16, "unknown_name", "no earlier step is called 'nothing'"),
    (17, "no_undo", "in a race the steps of a late member are undone"),
    (18, "unsafe_timeout", "declare probe= or idempotent=True"),
    (19, "no_undo", "o rolls back"),
    (20, "may_be_skipped", "add when: =q != null"),
    (21, "no_undo", "o rolls back"),
    (22, "unknown_tool", "is not an agent"),
    (23, "wrong_type", "an array is taken"),
    (23, "bad_retry", "put retry: on its steps"),
    (24, "bad_jump", "neither of t and a comes after the other"),
    (25, "unknown_step", "there is no step 'feetch'"),
    (26, "wrong_type", "a condition is true or false"),
    (27, "bad_timeout", "put it into a race with a member {wait: {seconds: …}}"),
]


def found(plan: Any, **more: Any) -> list[tuple[int, str, str]]:
    with pytest.raises(PlanInvalid) as raised:
        check(plan, TOOLS, **more)
    return [(each.line, each.code, each.reason) for each in raised.value.findings]


def test_all_mistakes_are_found_at_once_each_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text(MISTAKES)
    said = found(str(file))
    for line, code, reason in FOUND:
        assert any((at, kind) == (line, code) and reason in why for at, kind, why in said), (
            line,
            code,
            said,
        )
    assert {line for line, _, _ in said} == {line for line, _, _ in FOUND}


async def test_a_plan_with_mistakes_runs_nothing(tmp_path: Path) -> None:
    """Its tools raise where they are called; no run, and no store, is there afterwards."""
    file = tmp_path / "plan.yaml"
    file.write_text(MISTAKES)
    with pytest.raises(PlanInvalid) as raised:
        await run(str(file), {"week": 1}, id="x", store=tmp_path / "store", tools=TOOLS)
    assert len({each.code for each in raised.value.findings}) >= 12
    for each in raised.value.findings:
        assert str(each).startswith(f"{file}:{each.line}: ")
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("name: a\nname: b\n", 2, "is there twice"),
        ("name: &x a\nsteps: *x\n", 1, "anchors"),
        ("name: !!binary aGVsbG8=\n", 1, "tags are not taken: !!binary"),
        ("name: a\nsteps: !!omap {a: 1}\n", 2, "tags are not taken: !!omap"),
        ("name: a\nn: " + "[" * 20_000, 2, "nested deeper than 48 levels"),
        ("name: a\nn: 0x1F\n", 2, "0x1F is a number in YAML and none in JSON"),
        ("name: a\nn: -.inf\n", 2, "-.inf is a number in YAML"),
        (
            "name: a\ninputs: {n: {type: string, pattern: '(('}}\nsteps: {b: {value: 1}}\n",
            2,
            "regex",
        ),
        (
            "name: a\ninputs: {n: {minimum: many}}\nsteps: {b: {value: 1}}\n",
            2,
            "its schema is invalid",
        ),
        (
            "name: a\ninputs: {n: {type: string, pattern: '(?=a)b'}}\nsteps: {b: {value: 1}}\n",
            2,
            "can't be matched in linear time",
        ),
        (
            "name: a\ninputs: {n: {$ref: 'http://127.0.0.1:9/n'}}\nsteps: {b: {value: 1}}\n",
            2,
            "Unresolvable",
        ),
        ("name: !foo a\n", 1, "tags are not taken"),
        ("name: [a\n", 2, "not YAML"),
        ("- a\n", 1, "a plan is a table"),
        ("name: 99999999999999999999\n", 1, "beyond 2^53"),
        ("name: " + "[" * 60 + "]" * 60 + "\n", 1, "nested deeper"),
        ("name: a\nsteps:\n  b: {call: send, agent: helper}\n", 3, "a step has one of"),
        ("name: a\nsteps:\n  b: {cal: send}\n", 3, "did you mean 'call'?"),
        ("name: a\nsteps:\n  inputs: {value: 1}\n", 3, "has a meaning in expressions"),
        ("name: a\nsteps: {b: {value: 1, next: {to: b, when: '=true'}}}\n", 2, "needs a bound"),
    ],
)
def test_what_is_no_plan_is_refused(text: str, line: int, reason: str, tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text(text)
    assert any(at == line and reason in why for at, _, why in found(str(file))), found(str(file))


_EVIL = "^(a+)+$"  # by backtracking, each further "a" doubles the time: this would never end
_LONG = "a" * 200 + "!"


@pytest.mark.parametrize(
    ("schema", "value", "wrong"),
    [
        ({"pattern": _EVIL}, _LONG, "does not match"),
        (
            {"patternProperties": {_EVIL: {}}, "additionalProperties": False},
            {_LONG: 1},
            "not allowed",
        ),
    ],
)
async def test_no_pattern_hangs_the_check_or_the_inputs(
    schema: dict[str, Any], value: Any, wrong: str, tmp_path: Path
) -> None:
    plan: Any = {"name": "one", "steps": {"a": {"value": 1}}}
    with pytest.raises(PlanInvalid, match=wrong):
        check(plan | {"inputs": {"n": {**schema, "default": value}}})
    with pytest.raises(InputsInvalid, match=wrong):
        await run(plan | {"inputs": {"n": schema}}, {"n": value}, id="x", store=tmp_path)


def test_patterns_name_the_properties_that_are_meant() -> None:
    schema = {"patternProperties": {"^x": {"type": "integer"}}, "additionalProperties": False}
    plan: Any = {"name": "one", "inputs": {"n": schema}, "steps": {"a": {"value": 1}}}
    for value, wrong in (
        ({"x1": 1}, None),
        ({"x1": "1"}, "x1: '1' is not of type 'integer'"),
        ({"y": 1}, "additional properties are not allowed: 'y'"),
    ):
        given = plan | {"inputs": {"n": {**schema, "default": value}}}
        if wrong is None:
            assert check(given).plan.name == "one"
        else:
            with pytest.raises(PlanInvalid, match=re.escape(wrong)):
                check(given)


def test_a_generator_is_no_step() -> None:
    def pages(count: int) -> Iterator[int]:
        yield from range(count)

    plan = {"name": "letters", "steps": {"a": {"call": "pages", "args": {"count": 2}}}}
    with pytest.raises(PlanInvalid, match="a generator, and a step has one result") as raised:
        check(plan, {"pages": pages})
    assert [each.code for each in raised.value.findings] == ["unknown_tool"]


def test_a_tool_whose_schema_can_not_be_compared_checks_its_arguments_itself() -> None:
    class Strange(pydantic.BaseModel):
        n: str = pydantic.Field(json_schema_extra={"pattern": "(?=a)b"})

    @tool(effect="read")
    def strange(given: Strange) -> None: ...

    step: Any = {"call": "strange", "args": {"given": {"n": "b"}}}
    assert check({"name": "one", "steps": {"a": step}}, [strange]).plan.name == "one"


def test_yaml_json_and_python_give_one_plan(tmp_path: Path) -> None:
    data: Any = {"name": "one", "steps": {"a": {"call": "fetch", "args": {"week": 1}}}}
    (tmp_path / "plan.json").write_text('{"name": "one",\n"steps": {"a": {"call": "fetch", '
                                        '"args": {"week": 1}}}}')  # fmt: skip
    (tmp_path / "plan.yaml").write_text("name: one\nsteps: {a: {call: fetch, args: {week: 1}}}\n")
    plans: list[Any] = [data, str(tmp_path / "plan.json"), str(tmp_path / "plan.yaml")]
    assert len({check(plan, TOOLS).plan.digest for plan in plans}) == 1
    data["steps"]["a"]["args"]["week"] = 2
    assert check(data, TOOLS).plan.digest != check(plans[1], TOOLS).plan.digest


def test_a_plan_within_itself_is_found() -> None:
    one = {"name": "one", "steps": {"a": {"workflow": "two"}}}
    two = {"name": "two", "steps": {"b": {"workflow": "one"}}}
    said = found(one, workflows={"one": one, "two": two})
    assert any(code == "cycle" and "within itself" in why for _, code, why in said)


def test_what_fits_is_not_found() -> None:
    plan = {
        "name": "fits",
        "inputs": {"who": {"type": "string"}, "n": {"type": "integer", "default": 3}},
        "steps": {
            "a": {"call": "fetch", "args": {"week": "=inputs.n"}},
            "b": {"call": "send", "args": {"to": "=inputs.who", "text": "=string(a.anything)"}},
            "c": {"agent": "helper", "args": {"task": "=b"}},
            "d": {"call": "mark", "args": {"what": "=c"}, "timeout": 3, "on_failure": "rollback"},
            "e": {"each": {"over": "=[1, 2].map(x, x * 2)", "steps": {"x": {"value": "=item"}}}},
        },
    }
    tools: list[Any] = [fetch, mark, helper, undoable]
    assert check(plan, tools).plan.name == "fits"


def told(steps: dict[str, Any]) -> list[str]:
    """What is found in these steps: code and place."""
    try:
        check({"name": "plan", "steps": steps}, TOOLS)
    except PlanInvalid as error:
        return [f"{each.code} {each.path}" for each in error.findings]
    return []


PERSON = {"p": {"call": "person"}}


def send_to(who: str, **more: Any) -> dict[str, Any]:
    return {"call": "send", "args": {"to": who}, **more}


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ({**PERSON, "a": {"value": "=p.tags.map(t, t.size()) + [p.name.size()]"}}, []),
        ({**PERSON, "a": send_to("=p.boss.name")}, []),
        ({**PERSON, "a": send_to("=p.boss.nme")}, ["unknown_field steps.a.args.to"]),
        ({**PERSON, "a": {"value": "=p.boss.nme"}}, ["unknown_field steps.a.value"]),
        (
            {
                **PERSON,
                "m": {"call": "mark", "args": {"what": "m"}, "when": "=p.name == 'ann'"},
                "a": {"call": "fetch", "args": {"week": "=m"}, "when": "=m != null"},
            },
            [],
        ),
        (
            {
                **PERSON,
                "v": {
                    "value": 1,
                    "after": ["p"],
                    "on_failure": "keep",
                    "next": {"to": "p", "when": "=!v.ok", "most": 2},
                },
            },
            [],
        ),
        (
            {"r": {"repeat": {"steps": {"a": {"value": 1}}, "until": "=last", "most": 2}}},
            ["wrong_type steps.r.repeat.until"],
        ),
    ],
)
def test_shapes_are_followed(steps: dict[str, Any], expected: list[str]) -> None:
    assert told(steps) == expected


def test_a_result_that_may_be_null_is_looked_at_first() -> None:
    @tool(effect="read", name="maybe")
    def maybe() -> str | None:
        raise AssertionError

    steps: dict[str, Any] = {"m": {"call": "maybe"}, "a": send_to("=m")}
    plan = {"name": "plan", "steps": steps}
    with pytest.raises(PlanInvalid, match=r"m may be null.*add when: =m != null"):
        check(plan, [*TOOLS, maybe])
    steps["a"]["when"] = "=m != null"
    assert check(plan, [*TOOLS, maybe]).plan.name == "plan"


ROLLS: dict[str, Any] = {**PERSON["p"], "on_failure": "rollback"}

TEAM: dict[str, Any] = {"team": {"members": {"p": ROLLS}}}
BEHIND: dict[str, Any] = {"p": ROLLS, "w": send_to("a", after=["p"])}


@pytest.mark.parametrize(
    ("steps", "finds"),
    [
        ({"w": send_to("a"), "p": {**ROLLS, "after": ["w"]}}, True),
        ({"w": send_to("a"), "p": ROLLS}, True),
        ({"w": send_to("a", after=["p"]), "p": ROLLS}, False),
        ({"w": send_to("a"), "t": TEAM}, False),  # it undoes its team
        ({"t": {"team": {"members": {"p": ROLLS, "w": send_to("a")}}}}, True),
        ({"e": {"each": {"over": "=[1]", "steps": BEHIND}}}, False),  # it undoes its pass
        ({"e": {"each": {"over": "=[1]", "steps": BEHIND}, "on_failure": "rollback"}}, True),
    ],
)
def test_a_rollback_concerns_all_that_may_be_done_by_then(
    steps: dict[str, Any],
    finds: bool,
) -> None:
    assert [each.split()[0] for each in told(steps)] == ["no_undo"] * finds


def test_a_plan_in_which_all_wait_for_all_is_told_soon() -> None:
    names = [f"s{n}" for n in range(150)]
    steps = {name: {"value": 1, "after": [e for e in names if e != name]} for name in names}
    assert 20 <= len(told(steps)) <= 200


def test_data_that_is_too_deep_is_told() -> None:
    deep: Any = 1
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(PlanInvalid, match="nested too deep"):
        check({"name": "plan", "steps": {"a": {"value": deep}}})


def test_each_kind_of_step_has_its_module() -> None:
    assert set(kinds.KINDS) == set(KINDS)
