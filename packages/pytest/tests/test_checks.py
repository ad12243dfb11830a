"""The assertions about runs, on runs of sessions and on their logs."""

from pathlib import Path
from typing import Any

import pytest
from rollcage import Contract, Session, StepView, Store, Verdict, compensate, tool
from rollcage.session.adapters import Answer
from rollcage.trace.recorded import trace_of
from rollcage_pytest import (
    assert_cost,
    assert_no_new_writes,
    assert_no_writes_outside,
    assert_policy,
    assert_same_effects,
    assert_undoable,
)
from rollcage_views import Run, read_run


@tool(name="checked.take")
def take(thing: str) -> None:
    pass


@tool(name="checked.put", undo=lambda args: [compensate("checked.take", **args)])
def put(thing: str) -> None:
    pass


@tool(name="checked.send")
def send(text: str) -> None:
    pass


@tool(name="checked.look", effect="read")
def look(thing: str) -> str:
    return thing


MODEL = Contract(name="gpt", parameters={"type": "object"}, effect="read")


def ask(session: Session) -> None:
    session.run_call(
        MODEL, {"messages": []}, lambda **_: "hello", kind="model",
        answer=lambda value: Answer(text=value, usage={"input_tokens": 3, "output_tokens": 4}),
    )  # fmt: skip


def run_of(store: Store, session: Session) -> Run:
    return read_run(trace_of(store, session.run_id))


def recorded(store: Store, job: Any, **options: Any) -> Run:
    with Session("job", store=store, **{"replay": "off", **options}) as session:
        job(session)
    return run_of(store, session)


def test_the_same_effects_whatever_was_read_and_in_which_order_of_a_turn(store: Store) -> None:
    def one(session: Session) -> None:
        look("a")
        with session.turn():
            put("a")
            put("b")
        send("c")

    def two(session: Session) -> None:
        with session.turn():
            put("b")
            put("a")
        send("c")

    def three(session: Session) -> None:
        send("c")
        put("a")
        put("b")

    first = recorded(store, one)
    assert_same_effects(first, recorded(store, two))
    assert_same_effects(first, trace_of(store, first.id).where)
    with pytest.raises(AssertionError, match=r"(?s)different effects.*\+checked.send"):
        assert_same_effects(recorded(store, three), first)

    def undone(session: Session) -> None:
        one(session)
        with pytest.raises(ValueError, match="x"), session.transaction():
            put("d")
            raise ValueError("x")

    assert_same_effects(recorded(store, undone), first)


def test_new_writes_are_those_that_ran(store: Store) -> None:
    first = recorded(store, lambda _: put("a"))
    with pytest.raises(AssertionError, match=r'step 1: checked.put\(thing="a"\)'):
        assert_no_new_writes(first)

    def job(_: Session) -> None:
        put("a")
        look("b")

    def interrupted(session: Session) -> None:
        put("a")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        recorded(store, interrupted)
    assert_no_new_writes(recorded(store, job, replay="resume"))


def test_writes_outside_of_some_tools(store: Store) -> None:
    def job(_: Session) -> None:
        look("a")
        put("a")
        send("b")

    run = recorded(store, job)
    assert_no_writes_outside(run, ["checked.put", "checked.s*"])
    assert_no_writes_outside(run, "checked.*")
    with pytest.raises(
        AssertionError, match=r"(?s)other than checked.put wrote:.*step 3: checked.send"
    ):
        assert_no_writes_outside(run, ["checked.put"])


def test_the_cost_of_a_run(store: Store) -> None:
    def job(session: Session) -> None:
        ask(session)
        look("a")
        with session.branch("left"):
            put("b")

    run = recorded(store, job)
    assert_cost(run, calls=2, model_calls=1, tokens=7)
    assert_cost(run)
    with pytest.raises(AssertionError, match="tokens: 7, allowed are 6"):
        assert_cost(run, calls=2, tokens=6)


def test_a_policy_is_tried_on_what_was_done(store: Store) -> None:
    def rule(step: StepView) -> Verdict | None:
        return Verdict.deny("not there") if step.args.get("thing") == "b" else None

    class Policy:
        def decide(self, view: StepView) -> Verdict | None:
            return Verdict.ask("sure?") if view.effect == "write" else None

    run = recorded(store, lambda _: [look("a"), look("b")])
    assert_policy(run, Policy())
    with pytest.raises(AssertionError, match=r'step 2: checked.look\(thing="b"\): deny: not there'):
        assert_policy(run, Policy(), rule)
    with pytest.raises(AssertionError, match="ask: sure"):
        assert_policy(recorded(store, lambda _: send("c")), Policy())


def test_effects_that_can_be_undone(store: Store, tmp_path: Path) -> None:
    assert_undoable(recorded(store, lambda _: [look("a"), put("a")]))
    with pytest.raises(AssertionError, match=r"can't be undone:\n  step 1: checked.send"):
        assert_undoable(recorded(store, lambda _: send("a")))
