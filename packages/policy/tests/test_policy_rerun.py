"""A policy over recorded runs: the same decisions as live, and nothing guessed."""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rollcage import (
    Approval,
    Blocked,
    Contract,
    QueueApprover,
    Session,
    Store,
    Verdict,
    compensate,
    open_store,
    tool,
)
from rollcage.errors import ApprovalRequired, StoreError
from rollcage.gate import StepView
from rollcage.session.adapters import Answer
from rollcage.trace.chain import parse
from rollcage.trace.recorded import trace_of
from rollcage_policy import Judged, Policy, Rerun, Trial
from rollcage_views import Run, read_run
from rollcage_views.runs import fold_log

Event = dict[str, Any]


@tool(effect="read", labels=["untrusted"])
def fetch(url: str) -> str:
    return f"page of {url}"


@tool(effect="write", risk="high")
def send(to: str, text: str = "") -> str:
    return f"sent to {to}"


@tool(effect="write", undo=lambda args: [compensate(send, to=args["to"])])
def book(to: str) -> str:
    return to


@tool(effect="write", secret=["password"])
def login(password: str) -> None: ...


@tool(effect="read")
def fail(to: str) -> None:
    raise ValueError(to)


FUNCTIONS: list[Any] = [fetch, send, book, login, fail]
TOOLS: list[Contract] = [each.__rollcage_contract__ for each in FUNCTIONS]


def rule(id_: str, decision: str, **more: object) -> str:
    more = {"id": id_, "decision": decision, **more}
    if decision != "allow":
        more.setdefault("reason", f"{id_} says so")
    return "[[rules]]\n" + "".join(f"{name} = {value!r}\n" for name, value in more.items())


def policy(*parts: str, head: str = "") -> Policy:
    return Policy.parse(f"version = 1\n{head}\n" + "\n".join(parts))


ANY = rule("any", "allow")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(tmp_path)


def no_blob(digest: str) -> bytes:
    raise StoreError(digest)


def lines(store: Store, session: Session) -> list[Event]:
    return list(parse(store.read(session.run_id), "the run"))


def folded(listed: list[Event]) -> Run:
    return fold_log(enumerate(listed, 1), "the run")


@pytest.fixture
def again(store: Store) -> Callable[..., list[Judged]]:
    """Run a policy over a run of the store."""

    def again(made: Policy, run: str, *, explain: int = 0, **how: Any) -> list[Judged]:
        found = read_run(trace_of(store, run))
        return [*Rerun(made, **how).over(found, no_blob, explain=explain)]

    return again


Again = Callable[..., list[Judged]]


def said(found: list[Judged]) -> list[tuple[str, str | None, str]]:
    return [
        (each.was.decision, each.now.decision, each.now.rule)
        if each.now
        else (each.was.decision, None, "?")
        for each in found
    ]


@contextlib.contextmanager
def recorded(store: Store, **how: Any) -> Iterator[Session]:
    with Session("job", store=store, replay="off", **how) as session:
        yield session


# --- the law -------------------------------------------------------------------------------------

FULL = policy(
    rule("mail", "deny", tools=["send"], when='"untrusted" in labels', code="tainted"),
    rule("ann", "deny", tools=["send"], when='args.to == "ann"'),
    rule("third", "deny", tools=["book"], when="run.calls > 6"),
    rule("dear", "deny", tools=["book"], when="run.cost > 0.5"),
    ANY,
    "[labels]\nbook = ['own']\n[prices]\nsend = 0.3\n",
    "[[limits.rules]]\nid = 'sends'\ntools = ['send']\ncalls = 2\n",
    "[[limits.rules]]\nid = 'rate'\ntools = ['fetch']\nrate = '3/min'\n",
    "[limits.loops]\nsame = 2\n",
)


def test_the_same_policy_decides_on_a_run_as_it_did_live(store: Store, again: Again) -> None:
    with recorded(store, gate=[FULL]) as session:
        for call in (
            lambda: send("bob"),
            lambda: send("ann"),
            lambda: fetch("a"),
            lambda: send("cid", fetch("b")),  # derived from what is untrusted
            lambda: book("x"),
            lambda: send("dan"),
            lambda: send("eve"),  # the third
            lambda: book("y"),  # by calls and by cost
            lambda: fetch("a"),
            lambda: fetch("c"),  # the fourth within a minute
            lambda: fail("x"),
            lambda: fail("x"),
            lambda: fail("x"),  # a loop
        ):
            with contextlib.suppress(Blocked, ValueError):
                call()
        run = session.run_id
    found = again(FULL, run, tools=TOOLS)
    assert len(found) == 14
    assert [each.step for each in found if each.changes is not False] == []
    live = [each.was.rule for each in found if each.was.decision == "deny"]
    assert [each.now and each.now.rule for each in found if each.was.decision == "deny"] == live
    assert set(live) == {"mail", "ann", "sends", "third", "rate", "loops"}
    tainted = next(each.now for each in found if each.now and each.now.rule == "mail")
    assert "derived from step" in tainted.reason


def test_calls_at_once_are_counted_at_once(store: Store, again: Again) -> None:
    both = threading.Barrier(2)

    @tool(effect="read")
    def wait(number: int) -> int:
        both.wait(timeout=20)
        return number

    with recorded(store) as session:
        call = functools.partial(session.call, wait)
        threads = [threading.Thread(target=call, kwargs={"number": n}) for n in range(2)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    limit = "[[limits.rules]]\nid = 'one'\nconcurrency = 1\n"
    assert [now for _, now, _ in said(again(policy(ANY, limit), session.run_id))] == [
        "allow",
        "deny",
    ]


# --- what would change ---------------------------------------------------------------------------


def no_ann(view: StepView) -> Verdict | None:
    return Verdict.deny("not ann", code="ann") if view.args.get("to") == "ann" else None


def test_it_says_what_would_change(store: Store, again: Again) -> None:
    with recorded(store, gate=[no_ann]) as session:
        send("bob")
        with pytest.raises(Blocked):
            send("ann")
        with pytest.raises(ValueError, match="cid"):
            fail("cid")
    made = policy(rule("bob", "ask", when='args.to == "bob"'), ANY)
    found = again(made, session.run_id)
    assert said(found) == [
        ("allow", "ask", "bob"),
        ("deny", "allow", "any"),
        ("allow", "allow", "any"),
    ]
    assert [each.changes for each in found] == [True, True, False]
    assert [each.made for each in found] == [True, False, True]
    assert found[1].was == Verdict("deny", "not ann", "ann", "no_ann")


def test_a_replayed_call_counts_as_what_it_was(store: Store, again: Again) -> None:
    with recorded(store) as first:
        send("a")
        send("b")
    with Session("job", store=store, source=first.run_id) as second:
        send("a")
        send("b")
        send("c")
    limit = "[[limits.rules]]\nid = 'two'\ncalls = 2\n"
    rate = "[[limits.rules]]\nid = 'rate'\nrate = '1/day'\n"
    assert [now for _, now, _ in said(again(policy(ANY, limit), second.run_id))] == [
        "allow", "allow", "deny",
    ]  # fmt: skip
    assert {now for _, now, _ in said(again(policy(ANY, rate), second.run_id))} == {"allow"}


def test_calls_that_the_policy_lets_run_count(store: Store, again: Again) -> None:
    with recorded(store, gate=[no_ann]) as session:
        for _ in range(3):
            with pytest.raises(Blocked):
                send("ann")
    limit = "[[limits.rules]]\nid = 'two'\ncalls = 2\n"
    assert [now for _, now, _ in said(again(policy(ANY, limit), session.run_id))] == [
        "allow", "allow", "deny",
    ]  # fmt: skip


def test_tokens_are_the_recorded_ones(store: Store, again: Again) -> None:
    model = Contract(name="m", parameters={"type": "object"}, effect="read")

    answer = Answer(text="hello", usage={"input_tokens": 60, "output_tokens": 40})
    with recorded(store) as session:
        for number in range(2):
            session.run_call(
                model, {"q": number}, lambda **_: "hello", kind="model", answer=lambda _: answer
            )
        send("a")
    limit = "[[limits.rules]]\nid = 'tokens'\nkinds = ['model']\ntokens = 100\n"
    seen = rule("seen", "deny", kinds=["tool"], when="run.tokens == 100 && run.calls == 2")
    found = again(policy(seen, ANY, limit), session.run_id)
    assert said(found) == [
        ("allow", "allow", "any"),
        ("allow", "deny", "tokens"),
        ("allow", "deny", "seen"),
    ]


def test_time_is_the_recorded_one(store: Store, again: Again) -> None:
    with recorded(store) as session:
        send("a")
    made = policy(rule("late", "deny", when="run.elapsed >= 0.0 && run.name == 'job'"), ANY)
    (only,) = again(made, session.run_id)
    assert only.now is not None
    assert only.now.rule == "late"
    assert only.view.run is not None
    assert only.view.run.id == session.run_id
    assert 0 <= only.view.run.elapsed < 60


# --- somebody was asked --------------------------------------------------------------------------


def asks(_: StepView) -> Verdict:
    return Verdict.ask("please")


@pytest.mark.parametrize("decision", ["approved", "rejected"])
def test_what_was_asked_about_was_asked_about(store: Store, again: Again, decision: str) -> None:
    def approver(_: Any) -> Approval:
        return Approval(decision == "approved", by="ann")

    with recorded(store, gate=[asks], approver=approver) as session, contextlib.suppress(Blocked):
        send("a")
    (only,) = again(policy(rule("ask", "ask")), session.run_id)
    assert (only.was.decision, only.changes) == ("ask", False)
    assert only.made is (decision == "approved")


def test_a_call_that_waits_for_an_approval_is_judged(store: Store, again: Again) -> None:
    waits = recorded(store, gate=[asks], approver=QueueApprover(store))
    with contextlib.suppress(ApprovalRequired), waits as session:
        send("a")
    found = again(policy(rule("no", "deny"), ANY), session.run_id)
    assert [(each.was.decision, each.made) for each in found] == [("ask", False)]
    assert {each.now and each.now.decision for each in found} == {"deny"}


# --- what is not known ---------------------------------------------------------------------------

RISKY = rule("risky", "deny", when='tool.risk == "high"')


def test_what_the_trace_does_not_hold_is_not_guessed(store: Store, again: Again) -> None:
    with recorded(store) as session:
        send("a")
        fetch("b")
    made = policy(RISKY, ANY)
    found = again(made, session.run_id)
    assert [(each.now, each.unknown, each.changes) for each in found] == [
        (None, ("tool.risk",), None)
    ] * 2
    assert said(again(made, session.run_id, tools=TOOLS)) == [
        ("allow", "deny", "risky"),
        ("allow", "allow", "any"),
    ]


def test_a_tool_of_another_version_or_effect_is_not_the_recorded_one(
    store: Store, again: Again
) -> None:
    with recorded(store) as session:
        send("a")
    made = policy(RISKY, ANY)
    for other in (
        Contract(name="send", version="2", parameters={"type": "object"}),
        Contract(name="send", effect="read", parameters={"type": "object"}),
    ):
        (only,) = again(made, session.run_id, tools=[other])
        assert only.now is None


def test_another_rule_that_denies_anyway_is_certain(store: Store, again: Again) -> None:
    with recorded(store) as session:
        send("ann")
    made = policy(RISKY, rule("ann", "deny", when='args.to == "ann"'), ANY)
    (only,) = again(made, session.run_id)
    assert (only.now and only.now.rule, only.unknown) == ("ann", ("tool.risk",))


def test_reversible_is_known_where_the_trace_tells(store: Store, again: Again) -> None:
    with recorded(store) as session:
        fetch("a")
        book("b")
        send("c")
    made = policy(rule("undo", "ask", when="!tool.reversible"), ANY)
    assert [now for _, now, _ in said(again(made, session.run_id))] == ["allow", "allow", None]


def test_a_sealed_secret_is_to_a_condition_what_it_is_live(store: Store, again: Again) -> None:
    made = policy(rule("weak", "deny", when='args.password != "[secret]"'), ANY)
    with recorded(store, gate=[made]) as session:
        login("hunter2")
    assert said(again(made, session.run_id)) == [("allow", "allow", "any")]


def test_what_an_export_took_out_is_not_known(store: Store) -> None:
    with recorded(store) as session:
        send("ann", "hello")
    listed = lines(store, session)
    step = next(each for each in listed if each["event"] == "step")
    listed[0]["redacted"] = True
    made = policy(rule("ann", "deny", when='args.to == "ann"'), ANY)
    for shown, now in (
        ({"$rollcage": "redacted"}, None),
        ("mail <redacted> now", None),
        (["x", {"a": "<redacted>"}], None),
        ("ann", "deny"),
    ):
        step["args"]["to"] = shown
        (only,) = Rerun(made).over(folded(listed), no_blob)
        assert (only.now and only.now.decision) == now
        assert only.unknown == (() if now else ("args.to",))


def test_large_arguments_are_looked_up(store: Store) -> None:
    with recorded(store) as session:
        send("ann")
    listed = lines(store, session)
    step = next(each for each in listed if each["event"] == "step")
    step["args"]["text"] = {"$rollcage": "blob", "sha256": "0" * 64, "size": 9}
    made = policy(rule("long", "deny", when="size(args.text) == 5"), ANY)
    (only,) = Rerun(made).over(folded(listed), lambda _: b'"hello"')
    assert (only.now and only.now.rule) == "long"

    def gone(_: str) -> bytes:
        raise StoreError("gone")

    (only,) = Rerun(made).over(folded(listed), gone)
    assert (only.now, only.unknown) == (None, ("args.text",))


def test_labels_are_not_known_where_nobody_wrote_them_down(store: Store, again: Again) -> None:
    with recorded(store) as session:  # no policy, no rules: what results carry is not recorded
        send("ann", fetch("a"))
    made = policy(rule("tainted", "deny", when='"untrusted" in labels', tools=["send"]), ANY)
    found = again(made, session.run_id)
    assert (found[1].now, found[1].unknown) == (None, ("labels",))
    assert said(again(made, session.run_id, tools=TOOLS))[1] == ("allow", "deny", "tainted")
    off = policy(
        rule("tainted", "deny", when='"untrusted" in labels', tools=["send"]),
        ANY,
        head="flow = 'off'",
    )
    assert said(again(off, session.run_id))[1] == ("allow", "allow", "any")


def test_user_input_is_in_no_trace(store: Store, again: Again) -> None:
    with recorded(store) as session:
        send("ann@example.com")
    made = policy(rule("stranger", "deny", when="!named(args.to)"), ANY)
    (only,) = again(made, session.run_id)
    assert (only.now, only.unknown) == (None, ("named()",))
    assert said(again(made, session.run_id, user_input="Mail to ann@example.com")) == [
        ("allow", "allow", "any")
    ]
    assert said(again(made, session.run_id, user_input=["Mail to bob"])) == [
        ("allow", "deny", "stranger")
    ]


def test_no_host_is_looked_up_unless_wanted(store: Store, again: Again) -> None:
    with recorded(store) as session:
        fetch("https://a.example.com/")
        fetch("http://127.0.0.1/")
    made = policy(rule("local", "deny", when="!public_host(host(args.url))"), ANY)
    first, second = again(made, session.run_id)
    assert (first.now, first.unknown) == (None, ("public_host()",))
    assert second.now is not None
    assert second.now.rule == "local"
    asked: list[str] = []

    def resolver(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["93.184.216.34"]

    found = again(made, session.run_id, resolver=resolver)
    assert [now for _, now, _ in said(found)] == ["allow", "deny"]
    assert set(asked) == {"a.example.com"}


# --- one step in full ----------------------------------------------------------------------------


def test_one_step_is_explained_rule_by_rule(store: Store, again: Again) -> None:
    with recorded(store) as session:
        send("ann")
        send("bob")
    made = policy(
        rule("reads", "allow", effects=["read"]),
        rule("bob", "deny", when='args.to == "bob"'),
        rule("broken", "deny", when="args.size > 1"),
        RISKY,
        ANY,
    )
    first, second = again(made, session.run_id, explain=2)
    assert first.rules == ()
    told = [
        (e.rule.id, e.evaluation.passed_over, e.evaluation.holds, e.unknown, e.evaluation.decides)
        for e in second.rules
    ]
    assert told == [
        ("reads", "effects", None, (), False),
        ("bob", "", True, (), True),
        ("broken", "", None, (), False),
        ("risky", "", None, ("tool.risk",), False),
        ("any", "", True, (), False),
    ]
    assert "there is no 'size'" in second.rules[2].evaluation.error


def test_a_limit_that_decides_takes_it_from_the_rules(store: Store, again: Again) -> None:
    with recorded(store) as session:
        send("ann")
    made = policy(ANY, "[[limits.rules]]\nid = 'none'\ncalls = 0\n")
    (only,) = again(made, session.run_id, explain=1)
    assert only.now is not None
    assert only.now.rule == "none"
    assert [each.evaluation.decides for each in only.rules] == [False]


def test_a_trial_of_a_call_that_is_wholly_known_is_the_decision() -> None:
    made = policy(RISKY, rule("ask", "ask", when='args.to == "ann"'), ANY)
    view = StepView("tool", TOOLS[1], {"to": "ann"}, data={"to": "ann"})
    trial = Trial(made)
    assert trial.decide(view).verdict == made.decide(view) == trial.explain(view).verdict
    assert trial.decide(view, {"args": frozenset({"text"})}).verdict == made.decide(view)
    assert trial.decide(view, {"args": frozenset({"to"})}).verdict == made.decide(view)


def test_what_is_missing_fails_no_rule_that_does_not_ask_for_it(store: Store) -> None:
    with recorded(store) as session:
        send("ann", "hello")
    listed = lines(store, session)
    step = next(each for each in listed if each["event"] == "step")
    listed[0]["redacted"] = True
    step["args"]["to"] = {"$rollcage": "redacted"}
    ann = rule("ann", "deny", when='args.to == "ann"')
    hello = rule("hello", "deny", when='args.text == "hello"')
    (only,) = Rerun(policy(ann, hello, ANY)).over(folded(listed), no_blob)
    assert (only.now and only.now.rule, only.unknown) == ("hello", ("args.to",))
    assert only.view.args["to"] == {"$rollcage": "redacted"}


@pytest.mark.parametrize("tag", ["blob", "redacted", "opaque"])
def test_live_a_value_that_is_not_there_denies(tag: str) -> None:
    data = {"to": {"$rollcage": tag, "value": None}}
    view = StepView("tool", TOOLS[1], data, data=data)
    verdict = policy(rule("bad", "deny", when='args.to == "bad"'), ANY).decide(view)
    assert (verdict.decision, verdict.code) == ("deny", "rule_error")
