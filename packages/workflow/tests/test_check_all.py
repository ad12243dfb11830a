"""One check finds all mistakes of a plan: of its form, and of everything else."""

import copy
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checked_tools import TOOLS
from hypothesis import given
from hypothesis import strategies as st
from rollcage_workflow import Plan, PlanInvalid, check
from rollcage_workflow.errors import PlanFinding
from rollcage_workflow.files import read_text
from rollcage_workflow.graph import Checked

PERSON = {"p": {"call": "person"}}
MANY = """\
name: many
description: 3
inputs:
  week: {type: integer}
  shop: text
steps:
  a: {cal: fetch, args: {week: 1}}
  b: {call: fetch, arg: {week: 1}}
  c: {call: fetch, args: {week: "=inputs.weak"}}
  d: {call: send, agent: helper, args: {to: x}}
  e: {args: {week: "=nothing"}}
  bad-name: {call: fetch, args: {week: 1, weak: 2}}
  f: {call: fetch, args: {week: "one"}, timeout: soon}
  g: {call: fetsh, args: {week: 1}, after: bad-name}
  h: {value: 1, when: true}
  i: {each: {over: "=[c]", max_concurent: 3, steps: {x: {call: fetsh}, y: {vale: 1, timeout: -1}}}}
  j: {each: {over: "=nobody", steps: {}}}
  k: {repeat: {steps: {x: {value: "=1 +"}}, until: "=last"}}
  l: {team: {mode: rase, members: {x: {call: send, args: {to: a}}, inputs: {value: 1}}}}
  m: {value: "=l.winner", after: [feetch, 3]}
  n: {call: fetch, args: [1]}
  o: {wait: {signal: go, seconds: 3}, timeout: 3}
  p: {value: 1, next: {to: a, when: "=true", most: many}}
  q: just text
  r: {value: "=q.x + a.foo"}
  s: {call: fetch, args: {week: 1}, retry: {attempts: 1}, on_failure: explode}
  t: {each: , when: "=zzz"}
output: {x: "=uuu", y: "=s.value"}
on_failur: rollback
"""
FOUND = """\
2 invalid description
5 invalid inputs.shop
7 unknown_field steps.a.cal
8 unknown_field steps.b.arg
9 unknown_input steps.c.args.week
10 invalid steps.d
11 invalid steps.e
11 unknown_name steps.e.args.week
12 invalid steps.bad-name
12 unknown_argument steps.bad-name.args.weak
13 invalid steps.f.timeout
13 wrong_type steps.f.args.week
14 invalid steps.g.after
14 unknown_tool steps.g.call
15 invalid steps.h.when
16 invalid steps.i.each.steps.y.timeout
16 unknown_field steps.i.each.max_concurent
16 unknown_field steps.i.each.steps.y.vale
16 unknown_tool steps.i.each.steps.x.call
17 invalid steps.j.each.steps
17 unknown_name steps.j.each.over
18 bad_expression steps.k.repeat.steps.x.value
18 missing_field steps.k.repeat.most
19 invalid steps.l.team.members.inputs
19 invalid steps.l.team.mode
19 no_undo steps.l.team.members.x
20 invalid steps.m.after[1]
20 unknown_step steps.m.after[0]
21 invalid steps.n.args
22 bad_timeout steps.o.timeout
22 invalid steps.o.wait
23 bad_jump steps.p.next.to
23 invalid steps.p.next.most
24 invalid steps.q
26 invalid steps.s.on_failure
26 invalid steps.s.retry.attempts
27 invalid steps.t
27 unknown_name steps.t.when
28 unknown_name output.x
29 unknown_field on_failur
"""


def found(plan: Any, **more: Any) -> list[PlanFinding]:
    with pytest.raises(PlanInvalid) as raised:
        check(plan, TOOLS, **more)
    return list(raised.value.findings)


def told(plan: Any, **more: Any) -> list[str]:
    """What is found, and where; nothing is found twice."""
    return sorted(f"{each.code} {each.path}" for each in found(plan, **more))


def test_mistakes_of_the_form_hide_no_other_mistake() -> None:
    said = [f"{each.line} {each.code} {each.path}" for each in found(read_text(MANY))]
    assert sorted(said, key=lambda each: (int(each.split()[0]), each)) == FOUND.splitlines()


STEP: dict[str, Any] = {"value": 1}


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ({"a": {"call": "fetch", "arguments_of": 1}}, ["unknown_field a.arguments_of"]),
        ({"a": {"call": "fetch", "arg": {}}}, ["missing_argument a.arg", "unknown_field a.arg"]),
        ({"a": {"wait": {"sgnal": "go"}}}, ["unknown_field a.wait.sgnal"]),
        ({"a": {"wait": {"x": "go"}}, "b": {"value": "=a.x"}}, ["unknown_field a.wait.x"]),
        ({"a": {"kind": "call"}, "b": {"value": "=a.x[0]"}}, ["unknown_field a.kind"]),
        ({"a": {"call": 3, "args": {"x": "=a1"}}}, ["invalid a.call", "unknown_name a.args.x"]),
        ({"a": {"value": 1, "args": {"x": 1}, "inputs": {"x": 1}}}, ["invalid a", "invalid a"]),
        ({"last": STEP, "b": {"value": "=last.x", "after": ["last"]}}, ["invalid last"]),
        (
            {"a": STEP, "b": {"value": 1, "after": ["a"], "next": {"to": "a", "when": "=true"}}},
            ["unbounded_jump b.next.most"],
        ),
        (
            {
                "a": {"value": "=last"},
                "b": {"value": "=a", "next": {"when": "=true", "most": 3}},
            },
            ["missing_field b.next.to"],
        ),
        (
            {
                "a": {"value": "=last"},
                "b": {"value": "=a", "next": {"too": "a", "when": "=true", "most": 3}},
            },
            ["unknown_field b.next.too"],
        ),
        (
            {"a": {"team": {"mode": "first", "quorum": 1, "members": {"x": STEP}}}},
            ["invalid a.team.mode"],
        ),
        (
            {"a": {"team": {"mode": "quorum", "quorum": 0, "members": {"x": STEP}}}},
            ["invalid a.team.quorum"],
        ),
        ({"a": {"call": None}}, ["invalid a"]),
        ({"a": {"each": None, "repeat": None}}, ["invalid a"]),
        (
            {"a": {"each": {"over": "=[1]", "steps": {"x": {"value": "=no"}}}, "value": 1}},
            ["invalid a", "unknown_name a.each.steps.x.value"],
        ),
        ({"a": {"call": "fetch", "args": {"week": 1, 2: 3}}}, ["invalid a.args[2]"]),
        ({3: STEP, "b": {"value": "=no"}}, ["invalid [3]", "unknown_name b.value"]),
    ],
)
def test_what_only_follows_from_a_mistake_is_not_found(
    steps: dict[Any, Any], expected: list[str]
) -> None:
    said = told({"name": "plan", "steps": steps})
    assert [re.sub("steps[.]?", "", each, count=1) for each in said] == expected


def test_types_are_named_as_in_a_plan() -> None:
    steps = {"a": 1, "b": {"value": 1, "after": 3}, "c": {"call": "fetch", "args": 3}}
    said = [each.reason for each in found({"name": "plan", "steps": steps})]
    assert said == ["has to be a table", "has to be a list", "has to be a table"]


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        ({"name": "plan"}, ["missing_field steps"]),
        ({"name": "plan", "steps": {}}, ["invalid steps"]),
        ({"name": "plan", "steps": [STEP]}, ["invalid steps"]),
        ({"nam": "plan", "stepps": {"a": {"value": "=no"}}},
         ["unknown_field nam", "unknown_field stepps", "unknown_name stepps.a.value"]),
        ({"name": "plan", "inputs": [], "steps": {"a": {"value": "=inputs.x.y"}}},
         ["invalid inputs"]),
        ({"name": "plan", "inputs": {"x": {"required": 3}},
          "steps": {"a": {"call": "send", "args": {"to": "=inputs.x"}}}}, ["invalid inputs.x"]),
    ],
)  # fmt: skip
def test_what_is_hardly_a_plan_is_told(plan: Any, expected: list[str]) -> None:
    assert told(plan) == expected


def test_mistakes_of_a_plan_inside_are_found_in_its_file(tmp_path: Path) -> None:
    inner, outer = tmp_path / "inner.yaml", tmp_path / "outer.yaml"
    inner.write_text("name: inner\nsteps:\n  a: {vale: '=no'}\n")
    outer.write_text("name: outer\nsteps:\n  a: {workflow: inner}\n  b: {vale: '=no'}\n")
    said = found(str(outer), workflows={"inner": str(inner)})
    assert [(each.file, each.line, each.code) for each in said] == [
        (str(outer), 4, "unknown_field"),
        (str(outer), 4, "unknown_name"),
        (str(inner), 3, "unknown_field"),
        (str(inner), 3, "unknown_name"),
    ]


def test_data_that_is_too_deep_hides_no_other_mistake() -> None:
    deep: Any = 1
    for _ in range(5000):
        deep = [deep]
    steps = {"a": {"value": deep}, "b": {"call": "fetsh"}}
    assert "nested too deep" in str(found({"name": "plan", "steps": steps})[-1])


# --- the laws ------------------------------------------------------------------------------------


VALID: list[dict[str, Any]] = [
    {"value": {"n": "=p.name"}},
    {"call": "fetch", "args": {"week": "=inputs.week"}, "timeout": 3},
    {"wait": {"signal": "go"}},
    {"wait": {"approval": "=p.name + '?'", "approvers": ["ann"]}},
    {"call": "mark", "args": {"what": "=string(inputs.week)"}, "retry": {"attempts": 2}},
    {"value": "=p.tags.map(t, t.size())", "when": "=inputs.week > 3"},
    {"agent": "helper", "args": {"task": "x"}, "on_failure": "keep"},
    {"workflow": "fine", "inputs": {"n": 3}},
]
FETCH: dict[str, Any] = {"call": "fetch", "args": {"week": 1}}
BLOCK: dict[str, Any] = {"over": "=[1]", "steps": {"_x": {"value": 1}}}
ROUND: dict[str, Any] = {"until": "=true", "most": 2, "steps": {"_x": {"value": 1}}}
PLANTED: list[tuple[dict[str, Any], list[str]]] = [
    ({"cal": "fetch", "args": {"week": 1}}, ["unknown_field .cal"]),
    ({"call": "fetch", "arg": {"week": 1}}, ["unknown_field .arg"]),
    ({**FETCH, "colour": "red"}, ["unknown_field .colour"]),
    ({"call": "fetch", "args": "week"}, ["invalid .args"]),
    ({**FETCH, "value": 1}, ["invalid "]),
    ({"when": "=true"}, ["invalid "]),
    ({**FETCH, "when": 1}, ["invalid .when"]),
    ({**FETCH, "timeout": "3s"}, ["invalid .timeout"]),
    ({**FETCH, "retry": {"attempts": "many"}}, ["invalid .retry.attempts"]),
    ({**FETCH, "retry": {"attemps": 3}}, ["unknown_field .retry.attemps"]),
    ({**FETCH, "on_failure": "explode"}, ["invalid .on_failure"]),
    ({**FETCH, "after": 3}, ["invalid .after"]),
    ({**FETCH, "after": [3]}, ["invalid .after[0]"]),
    ({**FETCH, "after": ["nowhere"]}, ["unknown_step .after[0]"]),
    ({"wait": {"signal": "go", "seconds": 3}}, ["invalid .wait"]),
    ({"wait": {"signal": "go on"}}, ["invalid .wait.signal"]),
    ({"wait": {"signal": "go"}, "timeout": 3}, ["bad_timeout .timeout"]),
    ({"call": "fetsh", "args": {"week": 1}}, ["unknown_tool .call"]),
    ({"call": "fetch"}, ["missing_argument .args"]),
    ({"call": "fetch", "args": {"week": 1, "weak": 1}}, ["unknown_argument .args.weak"]),
    ({"call": "fetch", "args": {"week": "one"}}, ["wrong_type .args.week"]),
    ({"call": "fetch", "args": {"week": "=inputs.weak"}}, ["unknown_input .args.week"]),
    ({"value": "=nothing"}, ["unknown_name .value"]),
    ({"value": ["=p.nme", "=p.boss.nme"]}, ["unknown_field .value[0]", "unknown_field .value[1]"]),
    ({"value": "=1 +"}, ["bad_expression .value"]),
    ({"value": "=p.tags.sum()"}, ["unknown_function .value"]),
    ({"value": "=size(inputs.week)"}, ["wrong_type .value"]),
    ({"value": "=p.tags[0].size"}, ["unknown_field .value"]),
    ({"value": "=[p].map(x, x.nme)"}, ["unknown_field .value"]),
    ({"value": "=skipped.name"}, ["may_be_skipped .value"]),
    ({"value": 1, "when": "=false"}, ["unreachable .when"]),
    ({"call": "send", "args": {"to": "a"}, "timeout": 3}, ["unsafe_timeout "]),
    ({"workflow": "fien"}, ["unknown_step .workflow"]),
    ({"workflow": "fine"}, ["missing_argument .inputs"]),
    ({"each": {**BLOCK, "over": "=inputs.week"}}, ["wrong_type .each.over"]),
    ({"each": {**BLOCK, "ovr": "=[1]"}}, ["unknown_field .each.ovr"]),
    ({"each": {"steps": BLOCK["steps"]}}, ["missing_field .each.over"]),
    ({"each": {**BLOCK, "steps": {}}}, ["invalid .each.steps"]),
    ({"each": {**BLOCK}, "retry": {"attempts": 2}}, ["bad_retry .retry"]),
    ({"repeat": {**ROUND, "most": 0}}, ["invalid .repeat.most"]),
    ({"repeat": {**ROUND, "until": "='yes'"}}, ["wrong_type .repeat.until"]),
    ({"team": {"mode": "quorum", "members": {"_x": STEP}}}, ["invalid .team.quorum"]),
    ({"team": {"mode": "race", "members": {"_x": {"call": "send", "args": {"to": "a"}}}}},
     ["no_undo .team.members._x"]),
    ({"value": 1, "next": {"to": "nowhere", "when": "=true"}}, ["unknown_step .next.to"]),
    ({"value": 1, "args": {"x": 1}}, ["invalid "]),
]  # fmt: skip
FINE = Plan.model_validate(
    {"name": "fine", "inputs": {"n": {"type": "integer"}}, "steps": {"a": {"value": 1}}}
)


class Growing:
    """A plan that grows, and what is wrong with it."""

    def __init__(self, draw: Callable[[Any], Any]) -> None:
        self.draw = draw
        self.count = 0
        self.expected: list[str] = []

    def steps(self, path: str, deep: int) -> dict[str, Any]:
        steps: dict[str, Any] = {}
        for _ in range(self.draw(st.integers(1, 5 if deep else 12))):
            self.count += 1
            name = f"s{self.count}"
            at = f"{path}.{name}"
            kind = self.draw(st.sampled_from(["valid", "wrong", "wrong", "block", "named"]))
            if kind == "block" and deep < 3:
                steps[name] = self.block(at, deep + 1)
            elif kind == "wrong":
                step, wrong = self.draw(st.sampled_from(PLANTED))
                steps[name] = copy.deepcopy(step)
                self.expected += [each.replace(" ", f" {at}") for each in wrong]
            elif kind == "named":
                name = f"{name}-{self.draw(st.sampled_from(['x', 'ä', '?']))}"
                steps[name] = {"value": 1}
                self.expected.append(f"invalid {path}.{name}")
            else:
                steps[name] = copy.deepcopy(self.draw(st.sampled_from(VALID)))
        return steps

    def block(self, at: str, deep: int) -> dict[str, Any]:
        kind = self.draw(st.sampled_from(["each", "repeat", "team"]))
        if kind == "team":
            self.count += 1
            name = f"s{self.count}"
            return {"team": {"members": {name: self.block(f"{at}.team.members.{name}", deep + 1)}}}
        inside: dict[str, Any] = {"steps": self.steps(f"{at}.{kind}.steps", deep)}
        more = {"over": "=p.tags"} if kind == "each" else {"until": "=round > 1", "most": 2}
        return {kind: inside | more}


@st.composite
def plans(draw: Any) -> tuple[dict[str, Any], list[str]]:
    growing = Growing(draw)
    skipped = {"call": "person", "when": "=inputs.week > 3"}
    steps = {**PERSON, "skipped": skipped, **growing.steps("steps", 0)}
    data: dict[str, Any] = {"name": "law", "inputs": {"week": {"type": "integer"}}, "steps": steps}
    for more, wrong in (
        ({"output": "=no_such"}, "unknown_name output"),
        ({"inputs": {"week": {"type": "integer"}, "n": 3}}, "invalid inputs.n"),
        ({"descripton": ""}, "unknown_field descripton"),
    ):
        if draw(st.booleans()):
            data |= more
            growing.expected.append(wrong)
    return data, sorted(growing.expected)


@given(plans())
def test_all_planted_mistakes_are_found_and_nothing_else(
    planned: tuple[dict[str, Any], list[str]],
) -> None:
    data, expected = planned
    if expected:
        assert told(data, workflows={"fine": FINE}) == expected
    else:
        assert check(data, TOOLS, {"fine": FINE}).plan.name == "law"


WHOLE: dict[str, Any] = {
    "name": "whole",
    "inputs": {"week": {"type": "integer", "default": 3}},
    "steps": {
        **PERSON,
        **{f"v{n}": step for n, step in enumerate(VALID)},
        "each": {"each": {"over": "=p.tags", "size": 2, "steps": {"x": {"value": "=item"}}}},
        "again": {"repeat": {**ROUND, "then": "go_on", "result": {"x": "=_x"}}},
        "team": {"team": {"mode": "quorum", "quorum": 1, "members": {"m": FETCH, "n": FETCH}}},
        "jump": {"value": "=again.x", "next": {"to": "again", "when": "=last > 3", "most": 2}},
    },
    "output": {"x": "=jump"},
    "on_failure": "stop",
}
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
    | st.sampled_from(["=p", "=p.name", "=", "==", "rollback", "keep", "fetch", "p", "x", "=x[0]"])
    | st.binary(max_size=3) | st.builds(object) | st.builds(lambda: {"$ref": "#"}),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from([*Plan.model_fields, *WHOLE["steps"]["each"], "team", "over", "members"])
        | st.text(max_size=5) | st.integers() | st.none(), inner, max_size=4),
    max_leaves=8,
)  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(
        value, list) else ()  # fmt: skip
    return [path, *(each for name, part in inside for each in places(part, (*path, name)))]


def test_the_plan_that_is_mutated_is_valid() -> None:
    assert isinstance(check(WHOLE, TOOLS, {"fine": FINE}), Checked)


@given(st.data())
def test_whatever_is_no_plan_is_told_as_findings(data: st.DataObject) -> None:
    plan = copy.deepcopy(WHOLE)
    for _ in range(data.draw(st.integers(1, 4))):
        path = data.draw(st.sampled_from(places(plan)[1:]))
        around: Any = plan
        for part in path[:-1]:
            around = around[part]
        what = data.draw(st.sampled_from(["set", "drop", "add", "rename"]))
        if what == "drop":
            del around[path[-1]]
        elif what == "set" or isinstance(around, list):
            around[path[-1]] = copy.deepcopy(data.draw(ANYTHING))
        elif what == "add":
            around[data.draw(st.text(max_size=6) | st.sampled_from([*Plan.model_fields]))] = (
                copy.deepcopy(data.draw(ANYTHING))
            )
        else:
            around[data.draw(st.text(max_size=6) | st.integers())] = around.pop(path[-1])
        if not plan:
            break
    told_twice = [each for each, times in Counter(findings(plan)).items() if times > 1]
    assert not told_twice


def findings(plan: Any) -> list[PlanFinding]:
    """What is found in a plan; nothing only if it is one."""
    try:
        checked = check(plan, TOOLS, {"fine": FINE})
    except PlanInvalid as error:
        return list(error.findings) or pytest.fail("nothing is found")
    assert Plan.model_validate(plan) == checked.plan
    return []
