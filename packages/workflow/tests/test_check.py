"""Every kind of mistake in a plan is found, with its line, before anything runs."""

from pathlib import Path
from typing import Any

import pytest
from rollcage import tool
from rollcage_workflow import PlanInvalid, check


@tool(effect="read")
def fetch(week: int) -> dict[str, int]:
    raise AssertionError


@tool(effect="write")
def send(to: str, text: str = "") -> str:
    raise AssertionError


@tool(effect="write", undo=list, idempotent=True)
def mark(what: str) -> int:
    raise AssertionError


@tool(effect="scope")
def helper(task: str) -> str:
    raise AssertionError


TOOLS: list[Any] = [fetch, send, mark, helper]
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
    (16, "unknown_name", "nothing that comes before this is called 'nothing'"),
    (17, "no_undo", "in a race what comes too late is undone"),
    (18, "unsafe_timeout", "declare probe= or idempotent=True"),
    (19, "no_undo", "o rolls back"),
    (20, "may_be_skipped", "add when: =q != null"),
    (22, "unknown_tool", "is no agent"),
    (23, "wrong_type", "an array is taken"),
    (23, "bad_retry", "put retry: on its steps"),
    (24, "bad_jump", "t does not come after a"),
    (25, "unknown_step", "there is no step 'feetch'"),
    (26, "wrong_type", "a condition is true or false"),
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


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("name: a\nname: b\n", 2, "is there twice"),
        ("name: &x a\nsteps: *x\n", 1, "anchors"),
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
    tools = [fetch, mark, helper, tool(effect="write", undo=list, name="send")(send.__wrapped__)]  # type: ignore[attr-defined]
    assert check(plan, tools).plan.name == "fits"
