"""A first model call that is another one may be another job's: it leaves no effects behind."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from rollcage import (
    Approval,
    ApprovalRequired,
    Contract,
    Diverged,
    QueueApprover,
    Session,
    StepView,
    Store,
    Verdict,
    compensate,
    tool,
)

MODEL = Contract(name="model", parameters={}, effect="read")
asked: list[str] = []
sent: list[str] = []
down: list[str] = []  # the model fails at these questions

Job = Callable[[Session], object]


@pytest.fixture(autouse=True)
def _nothing_was_said() -> None:
    asked.clear()
    sent.clear()


def ask(session: Session, question: str, *, model: str = "model", told: str = "be kind") -> str:
    def answer(messages: list[dict[str, str]]) -> str:
        if question in down:
            raise ConnectionError
        asked.append(messages[-1]["content"])
        return f"to {question}"

    messages = [{"role": "system", "content": told}, {"role": "user", "content": question}]
    contract = Contract(name=model, parameters={}, effect="read")
    answered: str = session.run_call(contract, {"messages": messages}, answer, kind="model")
    return answered


@tool(name="question.unsend", idempotent=True)
def unsend(text: str) -> None:
    if text in sent:
        sent.remove(text)


@tool(name="question.send", undo=lambda args: [compensate("question.unsend", **args)])
def send(text: str) -> None:
    sent.append(text)


@tool(name="question.look", effect="read")
def look() -> int:
    return len(sent)


def support(question: str, *more: str) -> Job:
    """Return an agent that sends the same mail to everyone."""

    def job(session: Session) -> None:
        ask(session, question)
        send("we look into it")
        for each in more:
            ask(session, each)

    return job


def crashed(store: Store, job: Job, **how: Any) -> None:
    with pytest.raises(InterruptedError), Session("support", store=store, **how) as session:
        job(session)
        raise InterruptedError


def test_the_question_of_somebody_else_halts_before_it_is_asked(store: Store) -> None:
    crashed(store, support("ann"))
    with pytest.raises(Diverged) as halted, Session("support", store=store) as session:
        support("bob")(session)
    assert "the recording begins with another question" in str(halted.value)
    assert "another input=" in str(halted.value)
    assert [step for _, step in halted.value.orphans] == [2]
    assert (asked, sent) == (["ann"], ["we look into it"])
    with Session("support", store=store) as session:
        support("ann")(session)
    assert session.stats.hits == 2
    for _ in range(2):  # with an input, each has a run, and each is resumed
        crashed(store, support("bob"), input="bob")
        crashed(store, support("cid"), input="cid")
    assert asked == ["ann", "bob", "cid"]
    assert len(sent) == 3


def test_a_call_that_waits_for_a_decision_is_not_left_either(store: Store) -> None:
    def sure(call: StepView) -> Verdict | None:
        return Verdict.ask("sure?") if call.effect == "write" else None

    how: Any = {"store": store, "gate": [sure], "approver": QueueApprover(store)}
    with pytest.raises(ApprovalRequired), Session("support", **how) as session:
        support("ann")(session)
    with pytest.raises(Diverged), Session("support", **how) as session:
        support("bob")(session)
    assert (asked, sent) == (["ann"], [])
    how["approver"] = lambda _: Approval(True, by="eve")
    with Session("support", **how) as session:
        support("ann")(session)
    assert (asked, sent) == (["ann"], ["we look into it"])


@pytest.mark.parametrize("where", ["stream", "transaction", "session"])
def test_a_question_is_one_wherever_it_is_asked(store: Store, where: str) -> None:
    def say(messages: list[Any]) -> Iterator[str]:
        yield str(messages)

    def job(question: str) -> Job:
        def inside(session: Session) -> None:
            if where == "stream":
                messages = [{"role": "user", "content": question}]
                said = session.stream(MODEL, {"messages": messages}, say, kind="model")
                assert len(list(said)) == 1
            else:
                ask(session, question)
            send("we look into it")

        def run(session: Session) -> None:
            if where == "session":
                with Session("inner", store=store) as inner:
                    inside(inner)
                    raise InterruptedError
            if where == "transaction":
                with session.transaction("t"):
                    inside(session)
                    raise KeyboardInterrupt
            inside(session)

        return run

    for question, error in (("ann", (InterruptedError, KeyboardInterrupt)), ("bob", Diverged)):
        with pytest.raises(error), Session("support", store=store) as session:
            job(question)(session)
            raise InterruptedError
    assert sent == ["we look into it"]


def test_what_the_other_job_did_is_taken_back_first(store: Store) -> None:
    crashed(store, support("ann"))
    crashed(store, support("bob"), on_divergence="undo")
    assert (asked, sent) == (["ann", "bob"], ["we look into it"])
    with Session("support", store=store) as session:
        support("bob", "and you?")(session)
        assert session.stats.hits == 2
    assert (asked, sent) == (["ann", "bob", "and you?"], ["we look into it"])


def test_a_warning_is_enough_where_it_was_said(store: Store) -> None:
    crashed(store, support("ann"))
    with Session("support", store=store, on_divergence="warn") as session:
        support("bob")(session)
    assert asked == ["ann", "bob"]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (support("ann", "bob", "cid"), support("ann", "bob", "dan")),
        (lambda s: ask(s, "ann"), support("bob")),
        (lambda s: (look(), ask(s, "ann")), support("bob")),
        (lambda s: (send("hi"), ask(s, "ann")), lambda s: (send("hi"), ask(s, "bob"))),
        (lambda _: send("we look into it"), support("bob")),
        (support("ann"), lambda s: (ask(s, "ann", model="other"), send("we look into it"))),
        (support("ann"), lambda s: (ask(s, "ann", told="be quick"), send("we look into it"))),
    ],
    ids=[
        "a later question",
        "no effect",
        "a read",
        "effects before it",
        "no question",
        "another model",
        "other instructions",
    ],
)
def test_a_question_that_leaves_nothing_behind_is_asked(
    store: Store, first: Job, second: Job
) -> None:
    crashed(store, first)
    with Session("support", store=store) as session:
        second(session)


def test_a_question_that_failed_first_is_the_question(store: Store) -> None:
    down.append("ann")
    with pytest.raises(ConnectionError), Session("support", store=store) as session:
        support("ann")(session)
    down.clear()
    crashed(store, support("ann"))
    with pytest.raises(Diverged), Session("support", store=store) as session:
        support("bob")(session)
    assert (asked, sent) == (["ann"], ["we look into it"])


def test_an_effect_that_was_undone_is_not_left_behind(store: Store) -> None:
    with pytest.raises(InterruptedError), Session("support", store=store) as session:
        support("ann")(session)
        session.undo()
        raise InterruptedError
    with Session("support", store=store) as session:
        support("bob")(session)
    assert (asked, sent) == (["ann", "bob"], ["we look into it"])


def test_a_branch_may_ask_otherwise_beside_another_one(store: Store) -> None:
    def agents(*questions: str) -> Job:
        def job(session: Session) -> None:
            with session.turn(opens={"0": (), "1": ()}):
                for name, question in enumerate(questions):
                    with session.branch(str(name)):
                        ask(session, question)
                        send(f"to {name}")

        return job

    crashed(store, agents("ann", "bob"))
    with pytest.raises(Diverged), Session("support", store=store) as session:
        agents("dan", "bob")(session)
    with Session("support", store=store) as session:
        agents("ann", "cid")(session)
    assert (asked, sent) == (["ann", "bob", "cid"], ["to 0", "to 1"])
