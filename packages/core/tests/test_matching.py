"""What becomes of a call is one table; finding it changes nothing, and nothing is put back."""

import itertools
from typing import Any, get_args

import pytest
from rollcage import Approval, Blocked, Contract, Diverged, Verdict, tool
from rollcage.contract.contract import Effect, OnMiss
from rollcage.replay.branches import Branches
from rollcage.replay.finding import Finder, Match
from rollcage.replay.matching import TABLE, MatchCase, matched
from rollcage.replay.recording import load
from rollcage.session.session import Session
from rollcage.step.call import Arrival, Call, Prepared, Progress, key_of
from rollcage.store import JsonlStore
from rollcage.trace import read_run

ROWS: list[tuple[str, str, MatchCase]] = [
    ("new", "run new", MatchCase("nothing", live=False, on_miss="live")),
    ("new in a live run", "run new", MatchCase("nothing")),
    ("missing, as an error", "refuse", MatchCase("nothing", live=False, on_miss="error_result")),
    ("missing", "refuse", MatchCase("nothing", live=False)),
    ("a no that is void", "pass over", MatchCase("blocked")),
    ("blocked", "refuse", MatchCase("blocked", asks=True)),
    ("not started", "run again", MatchCase("not_started", writes=True)),
    ("a scope", "run again", MatchCase("unknown", effect="scope", has_effect=True)),
    (
        "to be probed",
        "probe",
        MatchCase("unknown", has_effect=True, probed="can be", idempotent=True),
    ),
    ("did not happen", "run again", MatchCase("unknown", has_effect=True, probed="did not happen")),
    ("may run twice", "run again", MatchCase("unknown", idempotent=True, probed="nobody knows")),
    ("unknown", "refuse", MatchCase("unknown", has_effect=True, probed="nobody knows")),
    ("a failed write", "run again", MatchCase("error", writes=True, frontier=True)),
    ("a failed look", "pass over", MatchCase("error", effect="pure", frontier=True)),
    ("lossy, on its word", "run again", MatchCase("ok", live=False, flawed=True, on_miss="live")),
    ("lossy, without an effect", "run again", MatchCase("ok", effect="read", flawed=True)),
    ("lossy", "refuse", MatchCase("ok", has_effect=True, flawed=True)),
    ("recorded", "give back", MatchCase("unknown", live=False, has_effect=True)),
]


@pytest.mark.parametrize(("name", "way", "case"), ROWS, ids=[name for name, *_ in ROWS])
def test_each_row_says_what_becomes_of_a_call(name: str, way: str, case: MatchCase) -> None:
    row = matched(case)
    assert (row.name, row.way) == (name, way)


def test_each_row_of_the_table_has_its_case() -> None:
    assert [(row.name, row.way) for row in TABLE] == [(name, way) for name, way, _ in ROWS]


@pytest.mark.parametrize(
    ("case", "name"),
    [
        (MatchCase("ok", has_effect=True), "recorded"),
        (MatchCase("error", writes=True), "recorded"),
        (MatchCase("blocked", live=False), "blocked"),
        (MatchCase("not_started", live=False), "recorded"),
        (MatchCase("ok", flawed=True, on_miss="fail"), "lossy"),
        (MatchCase("ok", live=False, flawed=True), "lossy"),
        (MatchCase("nothing", on_miss="fail"), "missing"),
    ],
)
def test_beside_a_row_another_one_counts(case: MatchCase, name: str) -> None:
    assert matched(case).name == name


def test_what_came_out_well_and_comes_back_is_given_back_whatever_else_there_is() -> None:
    """So a hit need not ask the table."""
    flags = [False, True]
    for live, changed, writes, frontier in itertools.product(flags, flags, flags, flags):
        case = MatchCase("ok", live=live, has_effect=changed, writes=writes, frontier=frontier)
        for effect, miss in itertools.product(get_args(Effect), [*get_args(OnMiss), "undeclared"]):
            for asks in flags:
                each = case._replace(effect=effect, on_miss=miss, asks=asks, idempotent=asks)
                assert matched(each).way == "give back"


# --- finding, and taking -------------------------------------------------------------------------

sent: list[str] = []


@tool(effect="write")
def mail(to: str) -> str:
    sent.append(to)
    return f"to {to}"


@tool(effect="pure")
def upper(word: str) -> str:
    return word.upper()


@pytest.fixture(autouse=True)
def nothing_sent() -> None:
    sent.clear()


def crashed(store: JsonlStore) -> str:
    with pytest.raises(RuntimeError), Session("job", store=store) as session:
        mail("a")
        upper("a")
        mail("b")
        raise RuntimeError
    return session.run_id


def arrival(branches: Branches, contract: Contract, arguments: dict[str, Any]) -> Arrival:
    bound = contract.bind(arguments, str)
    progress = Progress(Call("tool", contract, bound, key_of("tool", contract, bound)))
    turn = branches.new_turn()
    branch = branches.by_name[""]
    here = Arrival(progress, branch, turn, Verdict("allow"), strict=False, now=0)
    branch.arrive(turn)
    return here


def test_what_is_found_is_not_taken(store: JsonlStore) -> None:
    trace = store.read(crashed(store))
    recording = load([(trace.where, trace.data)], offline=False, retry_failed=None)
    branches = Branches(recording, "", strict=False)
    finder = Finder(recording, branches.by_name, live=True)

    def state() -> list[Any]:
        path = recording.paths[""]
        return [
            path.ahead,
            path.position,
            *((e in recording.taken.used, e.status) for e in recording.entries),
        ]

    def find(contract: Contract, **arguments: Any) -> Match:
        return finder.find(arrival(branches, contract, arguments), 0)

    before = state()
    of_mail, of_upper = Contract.of(mail), Contract.of(upper, effect="pure")
    first, again = find(of_mail, to="a"), find(of_mail, to="a")
    assert (first.way, first.entry) == ("give back", recording.entries[0])
    assert again.entry is first.entry
    assert find(of_upper, word="a").way == "give back"
    other = find(of_mail, to="c")
    assert (other.way, [e.step for e in other.orphans]) == ("run new", [1, 3])
    assert state() == before


ASK = Contract(name="model", effect="read", parameters={"type": "object"})


def ask(session: Session, gives: object) -> object:
    return session.run(ASK, {}, lambda: gives, kind="model")


def test_an_answer_that_somebody_is_asked_about_keeps_its_place(store: JsonlStore) -> None:
    with pytest.raises(RuntimeError), Session("job", store=store) as session:
        ask(session, object())  # can't come back, so it is asked for again
        ask(session, "second")
        raise RuntimeError

    def rule(step: Any) -> Verdict:
        return Verdict("ask", "look at it")

    def approver(_: Any) -> Approval:
        return Approval(True, by="ann")

    with Session("job", store=store, rules=[rule], approver=approver) as session:
        assert ask(session, "first, again") == "first, again"
        assert ask(session, "live") == "second"


def test_a_call_that_may_not_run_uses_nothing_up(store: JsonlStore) -> None:
    with pytest.raises(RuntimeError), Session("job", store=store) as session:
        ask(session, object())
        raise RuntimeError
    paces = iter([Verdict("deny", "too many", "rate")])

    class Paced:
        def __call__(self, step: Any) -> Verdict:
            return next(paces, Verdict("allow"))

    with Session("job", store=store, rules=[Paced()]) as session:
        with pytest.raises(Blocked, match="too many"):
            ask(session, "not this time")
        assert ask(session, "now") == "now"
    blocked, ran = read_run(store.read(session.run_id)).steps
    assert (blocked.state, ran.state) == ("blocked", "ran")


def test_nobody_is_asked_about_a_call_that_would_leave_effects_behind(store: JsonlStore) -> None:
    """What a person approves would have been refused all the same."""
    first = crashed(store)
    with (
        pytest.raises(Diverged, match="mail"),
        Session("job", store=store, source=first, replay="resume") as session,
    ):
        mail("c")
    assert session.stats.orphans == 2
    assert sent == ["a", "b"]


# --- a call, and what becomes of it --------------------------------------------------------------


def test_a_call_stays_what_was_asked_for(store: JsonlStore) -> None:
    contract = Contract.of(mail)
    bound = contract.bind({"to": "a"}, str)
    asked = Call("tool", contract, bound, key_of("tool", contract, bound))
    progress = Progress(asked)
    with pytest.raises(AttributeError):
        asked.key = b""  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    progress.edit(contract.bind({"to": "b"}, str))
    assert (asked.arguments.values, progress.call.arguments.values) == ({"to": "a"}, {"to": "b"})
    assert progress.is_edited
    assert progress.consent.decided == {"asked": asked.key.hex()}
    assert progress.prepared == Prepared()


def test_an_approval_of_one_call_says_nothing_of_the_next(store: JsonlStore) -> None:
    def rule(step: Any) -> Verdict:
        return Verdict("ask", "look at it")

    answers = [Approval(True, by="ann", args={"to": "b"}), Approval(False, by="ann")]

    def approver(_: Any) -> Approval:
        return answers.pop(0)

    with Session("job", store=store, rules=[rule], approver=approver) as session:
        assert mail("a") == "to b"
        with pytest.raises(Blocked):
            mail("a")
    assert sent == ["b"]
    first, second = read_run(store.read(session.run_id)).steps
    assert (first.state, first.args) == ("ran", {"to": "b"})
    assert (second.state, second.args) == ("blocked", {"to": "a"})
    assert first.approval != second.approval
