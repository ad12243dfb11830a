"""A plan is the same in YAML, in JSON and in Python."""

import json
from pathlib import Path
from typing import Any

import pytest
from rollcage import tool
from rollcage_workflow import Plan, PlanBuilder, PlanInvalid, check, literal, run, steps
from rollcage_workflow.files import read_file
from rollcage_workflow.plan import KINDS, Retry

YAML = """\
name: all kinds
description: One of each.
inputs:
  shop: {type: string, default: corner}
steps:
  orders:
    call: builder.orders
    args: {shop: "=inputs.shop"}
    timeout: 30
  each:
    each:
      over: "=orders"
      steps:
        taken: {call: builder.take, args: {item: "=item"}, retry: {attempts: 2, wait: 0.5}}
      max_concurrent: 2
  asked:
    agent: builder.ask
    args: {text: "==5 apples"}
    on_failure: keep
    after: [each]
  votes:
    team:
      members:
        ann: {value: 1}
        bob: {value: 2}
      mode: quorum
      quorum: 1
  rounds:
    repeat:
      steps:
        n: {value: "=round"}
      until: "=last > 2"
      most: 5
      then: go_on
  inner:
    workflow: inner
    inputs: {n: "=rounds"}
  go: {wait: {signal: go, accepts: {type: boolean}}, after: [inner]}
  later: {wait: {seconds: 60}, when: "=go"}
  sum:
    value: {all: "=size(each)", votes: "=votes"}
    next: {to: go, when: "=sum.all > 100", most: 1}
    after: [later]
output: "=sum"
on_failure: rollback
time_limit: 3600
"""


@tool(effect="read", name="builder.orders")
def orders(shop: str) -> list[str]:
    return [shop, shop]


@tool(effect="write", name="builder.take", undo=list, idempotent=True)
def take(item: str) -> str:
    return item


@tool(effect="scope", name="builder.ask")
def ask(text: str) -> str:
    return text


def built() -> PlanBuilder:
    return (
        PlanBuilder(
            "all kinds",
            description="One of each.",
            inputs={"shop": {"type": "string", "default": "corner"}},
            on_failure="rollback",
            time_limit=3600,
        )
        .call("orders", orders, {"shop": "=inputs.shop"}, timeout=30)
        .each(
            "each",
            over="=orders",
            steps=steps().call("taken", take, {"item": "=item"}, retry=Retry(attempts=2, wait=0.5)),
            max_concurrent=2,
        )
        .agent("asked", ask, literal({"text": "=5 apples"}), on_failure="keep", after=["each"])
        .team("votes", steps().value("ann", 1).value("bob", 2), mode="quorum", quorum=1)
        .repeat("rounds", steps().value("n", "=round"), until="=last > 2", most=5, then="go_on")
        .workflow("inner", "inner", {"n": "=rounds"})
        .wait("go", signal="go", accepts={"type": "boolean"}, after=("inner",))
        .wait("later", seconds=60, when="=go")
        .value(
            "sum",
            {"all": "=size(each)", "votes": "=votes"},
            next={"to": "go", "when": "=sum.all > 100", "most": 1},
            after=["later"],
        )
        .output("=sum")
    )


def test_the_three_forms_have_one_digest(tmp_path: Path) -> None:
    plan = built().build()
    assert {step.kind for step in plan.steps.values()} == set(KINDS)
    (tmp_path / "plan.yaml").write_text(YAML)
    (tmp_path / "plan.json").write_text(json.dumps(plan.data()))
    for name in ("plan.yaml", "plan.json"):
        read = Plan.model_validate(read_file(tmp_path / name).data)
        assert read.data() == plan.data()
        assert read.digest == plan.digest
    inner = PlanBuilder("inner", inputs={"n": {"type": "integer"}}).value("v", "=inputs.n").build()
    check(plan, [orders, take, ask], {"inner": inner})


def test_all_that_has_not_the_form_of_a_plan_is_told_at_once() -> None:
    options: Any = {"on_failure": "explode"}
    plan = (
        PlanBuilder("bad").call("a-b", "x", **options).repeat("r", steps(), until="=true", most=0)
    )
    with pytest.raises(PlanInvalid) as raised:
        plan.build()
    found = {finding.path for finding in raised.value.findings}
    assert {"steps.a-b", "steps.a-b.on_failure", "steps.r.repeat.most"} <= found


def test_a_step_is_there_once() -> None:
    with pytest.raises(PlanInvalid, match="a: is there twice"):
        PlanBuilder("two").value("a", 1).value("a", 2)


async def test_what_comes_from_outside_is_no_expression(tmp_path: Path) -> None:
    given = {"text": "=1 + 1", "list": ["==x", 7]}
    plan = PlanBuilder("outside").value("v", literal(given)).build()
    assert (await run(plan, id="one", store=tmp_path)).output == given
