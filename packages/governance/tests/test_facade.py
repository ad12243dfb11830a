"""What a facade gives, what it says of the rest, and what a session does with it."""

import contextlib
import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import pytest
from cores import Core
from pydantic import AfterValidator
from rollcage import (
    Blocked,
    Contract,
    FacadeMissing,
    RegistryCorrupt,
    StepView,
    Verdict,
    open_store,
    tool,
)
from rollcage_governance import Registry

Approve = Callable[..., Registry]


@tool(effect="write")
def send(to: str) -> str:
    """Send a mail."""
    return to


@tool(effect="read")
def look(at: str) -> str:
    """Look at it."""
    return at


SEND: Contract = vars(send)["__rollcage_contract__"]
LOOK: Contract = vars(look)["__rollcage_contract__"]
MODEL = Contract(name="gpt", parameters={"type": "object"}, effect="read")


def code(verdict: Verdict | None) -> str:
    return "" if verdict is None else verdict.code


# --- what it gives -------------------------------------------------------------------------------


def test_a_facade_gives_the_active_tools_of_its_packs(approve: Approve) -> None:
    registry = approve(send)
    approve(look, pack="other", facade="both")
    registry.define_facade("both", ["pack", "other"], by="bob")
    one, both = registry.facade("agent"), registry.facade("both")
    assert list(one.tools) == ["send"]
    assert list(both.tools) == ["look", "send"]
    assert one.tools["send"] == both.tools["send"]
    assert one.check(SEND) is None
    refused = one.check(LOOK)
    assert refused is not None
    assert refused.decision == "deny"
    assert refused.code == "tool_outside_facade"
    assert refused.rule == "facade agent"
    assert refused.message == ("The tool look is not one of this agent's. Go on without it.")
    assert both.check(LOOK) is None


def test_its_digest_is_that_of_what_it_gives(approve: Approve) -> None:
    registry = approve(send)
    first = registry.facade("agent").digest
    registry.define_facade("same", ["pack"], by="bob")
    assert registry.facade("same").digest == first
    approve(look, facade="more")
    assert registry.facade("agent").digest != first


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        (lambda r: None, "tool_unapproved"),
        (lambda r: r.propose(LOOK, by="ann"), "tool_unapproved"),
        (lambda r: (r.propose(LOOK, by="ann"), r.reject("look", by="bob")), "tool_unapproved"),
        (lambda r: (r.propose(LOOK, by="a"), r.approve("look", by="b")), "tool_outside_facade"),
    ],
)
def test_a_tool_on_its_way_is_not_given(
    approve: Approve, before: Callable[[Registry], object], expected: str
) -> None:
    registry = approve(send)
    before(registry)
    assert code(registry.facade("agent").check(LOOK)) == expected


def test_what_is_taken_away_is_no_longer_given(
    approve: Approve, caplog: pytest.LogCaptureFixture
) -> None:
    registry = approve(send, look)
    open_since = registry.facade("agent")
    registry.freeze("send", by="eve")
    registry.deactivate("look", "pack", by="eve")
    facade = registry.facade("agent")
    assert code(facade.check(SEND)) == "tool_frozen"
    assert code(facade.check(LOOK)) == "tool_outside_facade"
    assert open_since.check(SEND) is None  # a snapshot
    registry.unfreeze("send", by="eve")
    registry.deprecate("send", by="eve", why="use post")
    assert registry.facade("agent").check(SEND) is None
    assert "tool send is deprecated by eve: use post" in caplog.text


def test_a_changed_tool_is_denied_with_a_diff(
    approve: Approve, caplog: pytest.LogCaptureFixture
) -> None:
    facade = approve(send).facade("agent")
    other = dataclasses.replace(SEND, effect="read", description="Send any mail.")
    refused = facade.check(other)
    assert refused is not None
    assert refused.code == "tool_changed"
    assert refused.reason == "The tool send is not what was approved: other description, effect"
    assert facade.diff(other) == (
        "description: Send a mail. -> Send any mail.\neffect: write -> read"
    )
    assert "effect: write -> read" in caplog.text
    assert facade.diff(LOOK) == ""


def test_what_is_approved_anew_is_given_by_the_next_facade(approve: Approve) -> None:
    registry = approve(send)
    before = registry.facade("agent")
    other = dataclasses.replace(SEND, version="2")
    registry.propose(other, by="ann")
    assert registry.facade("agent").check(SEND) is None  # until somebody approves it
    registry.approve("send", by="bob")
    assert code(registry.facade("agent").check(SEND)) == "tool_changed"
    assert registry.facade("agent").check(other) is None
    assert before.check(SEND) is None


@pytest.mark.parametrize(
    ("step", "before", "contract"),
    [
        ("propose MODULE:FUNCTION{at}; then let another person approve", lambda r: None, LOOK),
        ("approve look{at}", lambda r: r.propose(LOOK, by="ann"), LOOK),
        ("unfreeze send{at}", lambda r: r.freeze("send", by="ann"), SEND),
        ("activate send PACK{at}; PACK is one of agent",
         lambda r: r.deactivate("send", "pack", by="b"), SEND),
        ("propose MODULE:FUNCTION{at}", lambda r: None, dataclasses.replace(SEND, version="2")),
    ],
)  # fmt: skip
def test_the_next_step_is_reported(
    approve: Approve, step: str, before: Callable[[Registry], object], contract: Contract
) -> None:
    registry = approve(send)
    before(registry)
    facade = registry.facade("agent")
    verdict = facade.check(contract)
    assert verdict is not None
    error = facade.refusal(contract, verdict)
    at = f" --store {registry.where.removeprefix('the registry of ')}"
    assert f"Next: rollcage tools {step.format(at=at)}" in str(error)
    assert "by the facade 'agent'" in str(error)
    assert error.contract is contract
    assert error.verdict_code == verdict.code
    assert bool(error.diff) is (verdict.code == "tool_changed")


def test_in_an_undo_whatever_was_approved_once_may_run(approve: Approve) -> None:
    registry = approve(send)
    other = dataclasses.replace(SEND, version="2")
    registry.propose(other, by="ann")
    registry.approve("send", by="bob")
    registry.freeze("send", by="eve")
    facade = registry.facade("agent")
    assert facade.check(SEND, undo=True) is None
    assert facade.check(other, undo=True) is None
    assert code(facade.check(dataclasses.replace(SEND, version="3"), undo=True)) == "tool_frozen"
    assert code(facade.check(LOOK, undo=True)) == "tool_unapproved"


def test_models_are_free_until_a_facade_has_one(approve: Approve) -> None:
    registry = approve(send)
    assert registry.facade("agent").check(MODEL, kind="model") is None
    assert registry.facade("agent").check(LOOK, kind="model") is None  # no tool's call says so
    registry.propose(MODEL, by="ann", kind="model")
    registry.approve("gpt", by="bob", kind="model")
    registry.activate("gpt", "pack", by="bob", kind="model")
    facade = registry.facade("agent")
    assert list(facade.models or ()) == ["gpt"]
    assert facade.check(MODEL, kind="model") is None
    refused = facade.check(dataclasses.replace(MODEL, name="other"), kind="model")
    assert code(refused) == "tool_unapproved"
    assert refused is not None
    assert "rollcage tools propose other --model --store" in str(
        facade.refusal(dataclasses.replace(MODEL, name="other"), refused, kind="model")
    )
    assert code(facade.check(MODEL)) == "tool_unapproved"  # no tool of that name
    registry.freeze("gpt", by="eve", kind="model")
    facade = registry.facade("agent")
    assert code(facade.check(MODEL, kind="model")) == "tool_frozen"  # nor is any other free now
    assert facade.models == {}


# --- looking once --------------------------------------------------------------------------------


def test_a_contract_is_described_once(approve: Approve, monkeypatch: pytest.MonkeyPatch) -> None:
    facade = approve(send).facade("agent")
    assert facade.check(SEND) is None

    def described(_: Contract) -> Any:
        raise AssertionError("once is enough")

    monkeypatch.setattr("rollcage_governance.facade.described", described)
    for _ in range(3):
        assert facade.check(SEND) is None
        assert facade.check(SEND, SEND.function) is None


def test_however_many_contracts_there_are(
    approve: Approve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollcage_governance.facade._SEEN", 3)
    facade = approve(send).facade("agent")
    for _ in range(10):
        assert facade.check(dataclasses.replace(SEND)) is None
        assert code(facade.check(dataclasses.replace(LOOK))) == "tool_unapproved"


def test_a_schema_that_is_changed_in_place(approve: Approve) -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"to": {"type": "string"}}}
    contract = Contract(name="post", parameters=schema)
    facade = approve(contract).facade("agent")
    assert facade.check(contract) is None
    schema["properties"]["to"]["description"] = "and send me a copy"
    assert code(facade.check(contract)) == "tool_changed"
    del schema["properties"]["to"]["description"]
    assert facade.check(contract) is None


def test_a_model_of_parameters_that_is_built_anew(approve: Approve) -> None:
    @tool
    def post(to: str) -> None:
        """Post it."""

    contract: Contract = vars(post)["__rollcage_contract__"]
    facade = approve(post).facade("agent")
    assert facade.check(contract) is None
    model: Any = contract.parameters
    model.model_fields["to"].description = "and send me a copy"
    model.model_rebuild(force=True)
    assert code(facade.check(contract)) == "tool_changed"


def test_what_can_not_be_described_is_denied(approve: Approve) -> None:
    odd = Contract(name="send", parameters={"x-odd": object()})
    facade = approve(send).facade("agent")
    refused = facade.check(odd)
    assert refused is not None
    assert refused.code == "tool_changed"
    assert "can't be compared with what was approved" in refused.reason


# --- in a session --------------------------------------------------------------------------------


def test_a_session_says_what_it_gave(core: Core, approve: Approve) -> None:
    facade = approve(send).facade("agent")
    with core.session("job", facade="agent") as session:
        assert core.facade(session).digest == facade.digest
        assert send("ann") == "ann"
        with pytest.raises(Blocked, match="The tool look is not approved") as caught:
            look("there")
    assert caught.value.verdict_code == "tool_unapproved"
    assert caught.value.rule == "facade agent"
    lines = core.lines(session.run_id)
    said = {
        "name": "agent", "digest": facade.digest, "tools": dict(facade.tools), "models": None,
    }  # fmt: skip
    assert core.described(lines, "facade") == said
    (blocked,) = [each for each in lines if each["event"] == "refused"]
    assert blocked["verdict"]["code"] == "tool_unapproved"
    assert session.stats.blocked == 1


def test_without_a_facade_nothing_is_reported(core: Core) -> None:
    with core.session("job") as session:
        assert core.facade(session) is None
        assert look("there") == "there"
    assert core.described(core.lines(session.run_id), "facade") is None


def test_a_facade_that_is_not_there(core: Core, approve: Approve) -> None:
    approve(send)
    session = core.session("job", facade="agnet")
    with pytest.raises(FacadeMissing, match="called 'agnet'; there are: agent"):
        session.__enter__()
    assert core.runs() == []


def test_a_corrupt_registry_opens_no_session(core: Core, approve: Approve) -> None:
    approve(send)
    store = open_store(core.store)
    lines = store.get("registry", "lines")
    assert lines is not None
    assert store.swap("registry", "lines", lines, lines[:-2])
    with pytest.raises(RegistryCorrupt), core.session("job", facade="agent"):
        raise AssertionError("it opened")
    assert core.runs() == []


def test_the_registry_is_read_once(core: Core, approve: Approve) -> None:
    registry = approve(send, look)
    session = core.session("job", facade="agent")
    with session:
        registry.freeze("send", by="eve")
        assert send("ann") == "ann"  # `rollcage stop` ends a session that is open
    with core.session("job", facade="agent"), pytest.raises(Blocked, match="is frozen"):
        send("bob")


def test_the_facade_is_asked_before_any_rule(core: Core, approve: Approve) -> None:
    approve(send)
    asked: list[str] = []

    def rule(view: StepView) -> Verdict:
        asked.append(view.name)
        return Verdict.allow()

    with core.session("job", facade="agent", rules=[rule]):
        send("ann")
        with pytest.raises(Blocked):
            look("there")
    assert asked == ["send"]


def test_a_rule_may_deny_what_a_facade_gives(core: Core, approve: Approve) -> None:
    approve(send)
    no = Verdict.deny("no", code="no")
    with (
        core.session("job", facade="agent", rules=[lambda _: no]),
        pytest.raises(Blocked) as caught,
    ):
        send("ann")
    assert caught.value.verdict_code == "no"


def test_the_validators_of_an_unapproved_tool_are_not_called(core: Core, approve: Approve) -> None:
    called: list[str] = []

    @tool(secret=["key"])
    def sly(to: Annotated[str, AfterValidator(called.append)], key: str = "") -> None:
        """Do it."""

    approve(send)
    with core.session("job", facade="agent") as session:
        with pytest.raises(Blocked):
            sly("ann", key="hunter2")
        with pytest.raises(Blocked):
            session.call(sly, to=object())
    assert called == []
    lines = core.lines(session.run_id)
    first, second = [each for each in lines if each["event"] == "refused"]
    assert first["args"]["to"] == "ann"
    assert first["args"]["key"]["$rollcage"] == "secret"
    assert list(second["args"]) == ["to"]  # no value has been kept


def test_a_run_goes_on_under_the_facade_of_today(core: Core, approve: Approve) -> None:
    registry = approve(send, look)
    with pytest.raises(RuntimeError), core.session("job", facade="agent"):
        assert send("ann") == "ann"
        raise RuntimeError
    registry.freeze("send", by="eve")
    with core.session("job", facade="agent") as session:
        with pytest.raises(Blocked, match="is frozen"):
            send("ann")  # deny wins over what is recorded
        assert session.stats.hits == 0


# --- one session inside of another ---------------------------------------------------------------


def test_a_session_inside_of_another_gets_no_more_than_that(core: Core, approve: Approve) -> None:
    approve(send)
    registry = approve(look, pack="other", facade="looks")
    registry.define_facade("both", ["pack", "other"], by="bob")
    with core.session("outer", facade="agent"):
        with core.session("inner"), pytest.raises(Blocked):
            look("there")
        with core.session("inner", facade="looks"), pytest.raises(Blocked):
            look("there")
        with core.session("inner", facade="both"):
            assert send("ann") == "ann"
            with pytest.raises(Blocked):
                look("there")
    with core.session("inner", facade="looks"):
        assert look("there") == "there"


def test_models_inside_of_another_session(core: Core, approve: Approve) -> None:
    registry = approve(send)
    for name, facade in (("one", "first"), ("two", "second")):
        model = dataclasses.replace(MODEL, name=name)
        registry.propose(model, by="ann", kind="model")
        registry.approve(name, by="bob", kind="model")
        registry.activate(name, facade, by="bob", kind="model")
        registry.define_facade(facade, [facade, "pack"], by="bob")

    def allowed(session: Any) -> list[str]:
        found: list[str] = []
        for name in ("one", "two", "three"):
            model = dataclasses.replace(MODEL, name=name)
            with contextlib.suppress(Blocked):
                core.model(session, model, {}, body=partial(found.append, name))
        return found

    for outer, inner, expected in (
        ("agent", "agent", ["one", "two", "three"]),
        ("agent", "first", ["one"]),
        ("first", "agent", ["one"]),
        ("first", "second", []),
    ):
        with core.session("outer", facade=outer), core.session("inner", facade=inner) as session:
            assert allowed(session) == expected
