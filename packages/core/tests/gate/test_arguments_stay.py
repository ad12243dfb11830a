"""What was decided on is what runs: nobody changes a call's arguments behind a decision."""

import dataclasses
import threading
from typing import Any

import pydantic
import pytest
from rollcage import (
    Approval,
    ApprovalRequest,
    Blocked,
    Compensation,
    Contract,
    Session,
    StepView,
    Store,
    Verdict,
    compensate,
    tool,
)
from rollcage.gate.approval import Instead
from rollcage_policy import Policy

ran: list[Any] = []


class Mail(pydantic.BaseModel):
    to: list[str]
    more: Any = None


@dataclasses.dataclass
class Letter:
    to: list[str]


class Box(list[Any]):
    """A subclass of a list."""


@pytest.fixture(autouse=True)
def afresh() -> None:
    ran.clear()


@tool
def send(mail: Any) -> None:
    ran.append(mail)


@tool
def post(mail: Mail) -> None:
    ran.append(mail)


@tool
def send_more(**more: Any) -> None:
    ran.append(more)


def ask(_: StepView) -> Verdict:
    return Verdict.ask("look at it")


KINDS: dict[str, tuple[Any, Any, Any]] = {
    "dict": (lambda: {"to": ["ann"]}, lambda it: it["to"].append("mallory"), send),
    "list": (lambda: ["ann"], lambda it: it.append("mallory"), send),
    "nested": (lambda: [({"to": ["ann"]},)], lambda it: it[0][0].update(to="mallory"), send),
    "set": (lambda: {"ann"}, lambda it: it.add("mallory"), send),
    "bytes": (lambda: bytearray(b"ann"), lambda it: it.extend(b"mallory"), send),
    "model": (lambda: Mail(to=["ann"]), lambda it: it.to.append("mallory"), send),
    "typed model": (lambda: Mail(to=["ann"]), lambda it: it.to.append("mallory"), post),
    "field": (lambda: Mail(to=["ann"]), lambda it: setattr(it, "to", ["mallory"]), post),
    "dataclass": (lambda: Letter(["ann"]), lambda it: it.to.append("mallory"), send),
    "subclass": (lambda: Box(["ann"]), lambda it: it.append("mallory"), send),
    "keywords": (lambda: ["ann"], lambda it: it.append("mallory"), send_more),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_caller_changes_while_somebody_thinks_does_not_run(
    store: Store, events: Any, kind: str
) -> None:
    make, change, sender = KINDS[kind]
    given = make()

    def approver(request: ApprovalRequest) -> Approval:
        assert "mallory" not in str(request.args)
        thread = threading.Thread(target=change, args=(given,))
        thread.start()
        thread.join()
        assert "mallory" not in str(request.args)
        return Approval(True, "bob")

    with Session("mail", store=store, gate=[ask], approver=approver) as session:
        session.call(sender, mail=given)
    assert "mallory" in str(given)
    assert len(ran) == 1
    assert "mallory" not in str(ran)
    assert "mallory" not in str(events(session.run_id))


async def test_also_while_an_async_approver_waits(store: Store) -> None:
    given = ["ann"]

    async def approver(_: ApprovalRequest) -> Approval:
        given.append("mallory")
        return Approval(True, "bob")

    async with Session("mail", store=store, gate=[ask], approver=approver) as session:
        await session.acall(send, mail=given)
    assert ran == [["ann"]]


@pytest.mark.parametrize("what", ["args", "data"])
def test_a_rule_changes_nothing_of_what_it_is_shown(store: Store, events: Any, what: str) -> None:
    def meddling(view: StepView) -> None:
        shown: Any = getattr(view, what)
        shown["mail"]["to"].append("mallory")
        assert "mallory" in str(shown)

    def next_one(view: StepView) -> Verdict | None:
        return Verdict.deny("mallory") if "mallory" in f"{view.args} {view.data}" else None

    asked: list[str] = []

    def approver(request: ApprovalRequest) -> Approval:
        asked.append(str(request.args))
        return Approval(True, "bob")

    policy = Policy.parse(
        'version = 1\ndefault = "allow"\n[[rules]]\nid = "a"\ndecision = "ask"\nreason = "a"\n'
    )
    with Session(
        "mail", store=store, gate=[meddling, next_one, policy], approver=approver
    ) as session:
        session.call(send, mail={"to": ["ann"]})
    assert ran == [{"to": ["ann"]}]
    assert asked == ["{'mail': {'to': ['ann']}}"]
    assert "mallory" not in str(events(session.run_id))


def test_a_rule_can_not_put_another_argument_in_its_place(store: Store) -> None:
    def meddling(view: StepView) -> None:
        view.args["mail"] = "mallory"  # type: ignore[index] # that is what it tries  # pyright: ignore[reportIndexIssue] - wrong on purpose

    with Session("mail", store=store, gate=[meddling]) as session, pytest.raises(Blocked):
        session.call(send, mail="ann")
    assert ran == []


def test_an_approver_changes_nothing_but_by_what_it_says(store: Store) -> None:
    def approver(request: ApprovalRequest) -> Approval:
        request.args["mail"]["to"].append("mallory")
        return Approval(True, "bob")

    with Session("mail", store=store, gate=[ask], approver=approver) as session:
        session.call(send, mail={"to": ["ann"]})
    assert ran == [{"to": ["ann"]}]


def test_an_undo_is_planned_by_the_arguments_that_were_decided_on(
    store: Store, events: Any
) -> None:
    def undo(args: Any, result: Any) -> list[Compensation]:
        return [compensate(send, mail=args["mail"])]

    @tool(undo=undo)
    def meddle(mail: Any) -> None:
        mail.append("mallory")

    with Session("mail", store=store) as session:
        session.call(meddle, mail=["ann"])
    (ended,) = [e for e in events(session.run_id) if e["event"] == "outcome"]
    assert ended["plan"][0]["args"] == {"mail": ["ann"]}


@pytest.mark.parametrize("changes", [False, True])
def test_a_framework_that_runs_its_own_arguments_is_refused_if_they_have_changed(
    store: Store, *, changes: bool
) -> None:
    """Its body takes what the framework holds, whatever the session was told."""
    contract = Contract(
        name="send", parameters={"properties": {"mail": {}}}, framework="somebody's"
    )
    given = {"mail": {"to": ["ann"]}}

    def approver(_: ApprovalRequest) -> Approval:
        if changes:
            given["mail"]["to"].append("mallory")
        return Approval(True, "bob")

    def body(**_: Any) -> None:
        ran.append(str(given))

    with Session("mail", store=store, gate=[ask], approver=approver) as session:
        if changes:
            with pytest.raises(Blocked, match="changed while somebody was asked") as refused:
                session.run_call(contract, given, body, instead=Instead())
            assert refused.value.verdict_code == "approval_other_call"
        else:
            session.run_call(contract, given, body, instead=Instead())
    assert ran == ([] if changes else ["{'mail': {'to': ['ann']}}"])


def test_a_default_that_is_made_anew_is_no_change(store: Store) -> None:
    made = iter(range(100))

    class Given(pydantic.BaseModel):
        mail: Any = pydantic.Field(alias="letter")
        number: int = pydantic.Field(default_factory=lambda: next(made))

    contract = Contract(name="send", parameters=Given, framework="somebody's")
    given = {"letter": ["ann"]}
    approve: list[Any] = [lambda: None, lambda: given["letter"].append("mallory")]

    def approver(_: ApprovalRequest) -> Approval:
        approve.pop(0)()
        return Approval(True, "bob")

    with Session("mail", store=store, gate=[ask], approver=approver) as session:
        session.run_call(contract, given, lambda **_: ran.append(str(given)), instead=Instead())
        with pytest.raises(Blocked, match="changed while somebody was asked"):
            session.run_call(contract, given, lambda **_: ran.append(str(given)), instead=Instead())
    assert ran == ["{'letter': ['ann']}"]
