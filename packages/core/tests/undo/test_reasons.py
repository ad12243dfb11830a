"""What a plan says of each step: whether it can be undone, and why not."""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
from cuts import cut_log
from rollcage import (
    DidNotHappen,
    Happened,
    PlannedStep,
    Session,
    SessionError,
    Store,
    ToolMissing,
    aplan_undo,
    aundo_run,
    compensate,
    open_store,
    plan_undo,
    resolve_step,
    tool,
    undo_run,
)
from rollcage.errors import Halt

world: dict[str, str] = {}


@pytest.fixture(autouse=True)
def empty() -> None:
    world.clear()


@tool(name="reasons.set", idempotent=True)
def give_back(key: str, text: str | None) -> None:
    if text is None:
        world.pop(key, None)
    else:
        world[key] = text


def look(args: dict[str, Any]) -> dict[str, Any]:
    return {args["key"]: world.get(args["key"])}


def look_none(_: dict[str, Any]) -> dict[str, Any]:
    raise OSError("it is away")


def by_state(args: dict[str, Any], before: dict[str, Any]) -> Any:
    return [compensate(give_back, key=args["key"], text=before.get(args["key"]))]


def by_args(args: dict[str, Any]) -> Any:
    return [compensate(give_back, key=args["key"], text=None)]


def by_result(args: dict[str, Any], result: str) -> Any:
    return [compensate(give_back, key=args["key"], text=None if result == "new" else result)]


def fails_to_plan(result: str) -> Any:
    raise LookupError(f"no plan for {result}")


Ends = Literal["well", "unclear", "lost"]


def setter(ends: Ends = "well", *, after: Callable[[], None] = lambda: None, **how: Any) -> Any:
    """A tool that sets a key, and may fail behind that."""

    @tool(name="reasons.put", **how)
    def put(key: str, text: str) -> str:
        was = world.get(key, "new")
        world[key] = text
        after()
        if ends == "unclear":
            raise KeyError("who knows")
        if ends == "lost":
            raise TimeoutError("no answer")
        return was

    return put


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(tmp_path / "store")


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def planned(request: pytest.FixtureRequest, store: Store) -> Any:
    """Makes a plan, sync and async."""

    def plan(run: str, *tools: Any, **how: Any) -> list[PlannedStep]:
        given = {"tools": [give_back, *tools], **how}
        if request.param:
            return list(asyncio.run(aplan_undo(store, run, **given)).steps)
        return list(plan_undo(store, run, **given).steps)

    return plan


def made(store: Store, put: Any, *texts: str) -> str:
    """Set a key to these texts; return the run."""
    session = Session("job", store=store, replay="off")
    with contextlib.suppress(Halt), session:
        for text in texts or ("b",):
            with contextlib.suppress(KeyError, TimeoutError):
                session.call(put, key="k", text=text)
    return session.run_id


ALL: dict[str, Any] = {"observe": look, "undo": by_state}
LATER: dict[str, Any] = {"observe": look, "undo": by_result}
IN_DOUBT = "it may have happened or not"
HALF = "what it changed was not observed"
NO_UNDO = "its tool declares no undo"
CASES: list[Any] = [
    # declared, how it ends, how the plan is asked for; what it says
    ({}, "well", {}, ("irreversible", NO_UNDO)),
    ({"undo": by_args}, "well", {}, ("reversible", "")),
    ({"undo": lambda: None}, "well", {}, ("irreversible", NO_UNDO)),
    (ALL, "well", {}, ("reversible", "")),
    (LATER, "well", {}, ("reversible", "")),
    ({"observe": look}, "well", {}, ("irreversible", NO_UNDO)),
    ({"undo": by_args}, "unclear", {}, ("unknown",
     "it failed, and what it had changed by then is not known")),
    ({"undo": by_args}, "unclear", {"in_doubt": "restore"}, ("reversible",
     "it failed, and what it had changed by then is not known: the earlier state is restored")),
    ({}, "unclear", {}, ("unknown", IN_DOUBT)),
    (ALL, "unclear", {}, ("reversible", "")),
    ({"undo": by_result}, "unclear", {}, ("unknown", "it failed, and its undo needs its result")),
    ({"undo": by_args}, "lost", {}, ("unknown", IN_DOUBT)),
    ({"undo": by_args}, "lost", {"in_doubt": "restore"}, ("reversible",
     f"{IN_DOUBT}: the earlier state is restored")),
    ({}, "lost", {"in_doubt": "restore"}, ("unknown", IN_DOUBT)),
    (ALL, "lost", {}, ("unknown", IN_DOUBT)),
    (ALL, "lost", {"in_doubt": "restore"}, ("reversible",
     f"{IN_DOUBT}: the earlier state is restored")),
]  # fmt: skip


@pytest.mark.parametrize(("declared", "ends", "how", "said"), CASES)
def test_by_what_is_declared_and_how_it_ended(
    store: Store, planned: Any, declared: Any, ends: Ends, how: Any, said: tuple[str, str]
) -> None:
    put = setter(ends, **declared)
    (step,) = planned(made(store, put), put, **how)
    assert (step.state, step.reason) == said
    assert (step.name, step.args) == ("reasons.put", {"key": "k", "text": "b"})
    assert bool(step.calls) is (step.state == "reversible")


def raises(*_: Any, **__: Any) -> Any:
    raise OSError("it is away")


PROBES: list[Any] = [
    (lambda args: Happened("new"), ("reversible", "")),
    (lambda args, before: Happened("new") if args["key"] == "k" else None, ("reversible", "")),
    (lambda key: Happened("new") if len(key) > 9 else None, ("reversible", "")),
    (lambda args: DidNotHappen(), ("nothing", "its probe reports that it did not happen")),
    (lambda args: None, ("unknown", IN_DOUBT)),
    (lambda args: raises(), ("unknown", "its probe failed: OSError: it is away")),
]


@pytest.mark.parametrize(("probe", "said"), PROBES)
@pytest.mark.parametrize("undo", [by_args, by_result])
def test_a_probe_is_asked_about_one_in_doubt(
    store: Store, planned: Any, probe: Any, said: tuple[str, str], undo: Any
) -> None:
    put = setter("lost", undo=undo, probe=probe)
    (step,) = planned(made(store, put), put)
    assert (step.state, step.reason) == said
    assert [call.args for call in step.calls] == (
        [{"key": "k", "text": None}] if said[0] == "reversible" else []
    )


def test_what_happened_by_its_probe_can_not_be_undone_without_an_undo(
    store: Store, planned: Any
) -> None:
    put = setter("lost", probe=lambda args: Happened("new"))
    (step,) = planned(made(store, put), put)
    assert (step.state, step.reason) == ("irreversible", NO_UNDO)


def test_a_plan_that_was_made_before_a_probe_is_asked_is_not_made_again(store: Store) -> None:
    plans: list[str] = []

    def undo(args: dict[str, Any]) -> Any:
        plans.append(args["key"])
        return by_args(args)

    put = setter("lost", undo=undo, probe=lambda args: Happened("new"))
    run = made(store, put)
    assert undo_run(store, run, tools=[give_back, put]).complete
    assert plans == ["k"]
    (said,) = [line for line in store.read(run) if b'"by":"probe"' in line]
    assert b'"plan":' not in said


def test_a_probe_tells_what_a_failed_call_gave(store: Store, planned: Any) -> None:
    put = setter("unclear", undo=by_result, probe=lambda args: Happened("old"))
    (step,) = planned(made(store, put), put)
    assert (step.state, step.calls[0].args) == ("reversible", {"key": "k", "text": "old"})


def test_what_a_probe_says_is_on_record_once_it_is_undone(store: Store) -> None:
    asked: list[str] = []

    def probe(args: dict[str, Any]) -> Any:
        asked.append(args["key"])
        return Happened("old")

    put = setter("lost", undo=by_result, probe=probe)
    run = made(store, put)
    assert plan_undo(store, run, tools=[give_back, put]).complete
    assert store.read(run, -1)[0].startswith(b'{"event":"ended"')
    assert undo_run(store, run, tools=[give_back, put]).complete
    assert world == {"k": "old"}
    assert asked == ["k", "k"]
    (said,) = [line for line in store.read(run) if b'"by":"probe"' in line]
    assert b'"value":"old"' in said
    assert b'"plan":[' in said


def test_one_that_did_not_happen_is_not_undone(store: Store) -> None:
    put = setter("lost", undo=by_args, probe=lambda args: DidNotHappen())
    run = made(store, put)
    report = undo_run(store, run, tools=[give_back, put])
    assert [(each.status, each.reason) for each in report.steps] == [
        ("compensated", "its probe reports that it did not happen")
    ]
    assert world == {"k": "b"}
    assert any(b'"by":"probe"' in line for line in store.read(run))


@pytest.mark.parametrize(
    ("declared", "now", "said"),
    [
        (ALL, "b", ("reversible", "")),
        (ALL, "other", ("conflict", "somebody else has changed it since")),
        (ALL, "old", ("nothing", "the state is as it was before")),
        (LATER, "other", ("conflict", "somebody else has changed it since")),
        ({"observe": look}, "old", ("nothing", "its state was restored by somebody else")),
        ({"observe": look}, "other", ("irreversible", NO_UNDO)),
        ({"undo": by_args}, "other", ("reversible", "")),
    ],
)
def test_by_what_was_done_since(
    store: Store, planned: Any, declared: Any, now: str, said: tuple[str, str]
) -> None:
    put = setter(**declared)
    world["k"] = "old"
    run = made(store, put)
    world["k"] = now
    (step,) = planned(run, put)
    assert (step.state, step.reason) == said
    assert step.differs == ({"k": []} if said[0] == "conflict" else {})


def test_one_that_changed_nothing(store: Store, planned: Any) -> None:
    put = setter(observe=look)
    world["k"] = "b"
    (step,) = planned(made(store, put), put)
    assert (step.state, step.reason) == ("nothing", "the state is as it was before")


def test_the_earlier_one_names_the_later_one_that_stays(store: Store, planned: Any) -> None:
    world["k"] = "old"
    first = setter(**ALL)
    with Session("job", store=store) as session:
        session.call(first, key="k", text="b")
        stays = tool(name="reasons.stays", observe=look)(first.__wrapped__)
        session.call(stays, key="k", text="c")
    later, earlier = planned(session.run_id, first, stays)
    assert (later.state, later.reason) == ("irreversible", NO_UNDO)
    assert (earlier.state, earlier.differs) == ("irreversible", {})
    assert earlier.reason.startswith("step 2 (reasons.stays) changed the same state later")
    assert earlier.reason.endswith("it is irreversible")


@pytest.mark.parametrize("undo", [by_state, by_result])
def test_each_state_is_followed_back(store: Store, planned: Any, undo: Any) -> None:
    world["k"] = "old"
    put = setter(observe=look, undo=undo)
    run = made(store, put, "b", "c", "d")
    steps = planned(run, put)
    assert [(step.step, step.state, step.calls[0].args["text"]) for step in steps] == [
        (3, "reversible", "c"), (2, "reversible", "b"), (1, "reversible", "old")
    ]  # fmt: skip
    world["k"] = "c"
    steps = planned(run, put)
    assert [step.state for step in steps] == ["nothing", "reversible", "reversible"]
    world["k"] = "old"
    steps = planned(run, put)
    assert [step.state for step in steps] == ["nothing"] * 3
    assert undo_run(store, run, tools=[give_back, put]).complete
    assert world == {"k": "old"}


def test_it_can_be_told_that_it_happened(store: Store, planned: Any, tmp_path: Path) -> None:
    cases: list[tuple[Any, str, str]] = [
        (setter(undo=by_result), "reversible", ""),
        (setter(undo=fails_to_plan), "irreversible",
         "its plan could not be made: LookupError: no plan for told"),
    ]  # fmt: skip
    for put, state, reason in cases:
        run = made(store, put)
        cut_log(tmp_path / "store" / "logs" / f"{run}.jsonl", 3)  # the intent is the last
        resolve_step(store, run, 1, happened=True, result="told")
        (step,) = planned(run, put)
        assert (step.state, step.reason) == (state, reason)
        (step,) = planned(run, setter())
        assert step.reason == "its plan was not made: its tool declares no undo now"
        (step,) = planned(run)
        assert step.state == "irreversible"
        assert step.reason.startswith("its plan was not made: no tool named 'reasons.put'")


def test_one_in_doubt_whose_probe_is_not_there(store: Store, planned: Any) -> None:
    run = made(store, setter("lost", undo=by_args, probe=lambda args: None))
    (step,) = planned(run)
    assert step.state == "unknown"
    assert step.reason.startswith("its outcome is unknown, and its probe can't be called: no tool")


def test_a_step_that_can_not_be_looked_at_is_named(store: Store, planned: Any) -> None:
    run = made(store, setter(**ALL))
    named = rf"step 1 of run {run} \(reasons.put\) can't be undone here: "
    with pytest.raises(SessionError, match=f"{named}its state can't be observed: OSError"):
        planned(run, setter(observe=look_none, undo=by_state))
    with pytest.raises(ToolMissing, match=f"{named}no tool named") as missing:
        planned(run)
    assert missing.value.tool == "reasons.put"
    with pytest.raises(ToolMissing, match=f"{named}.* declares no observe now") as missing:
        planned(run, setter(undo=by_args))
    assert missing.value.tool == "reasons.put"
    with pytest.raises(ToolMissing, match=f"{named}no tool named 'reasons.set'"):
        plan_undo(store, run, tools=[setter(**ALL)])


class Stop(Halt):
    """What a tool of one's own halts by."""


def test_a_halt_of_what_looks_stays_itself(store: Store, planned: Any) -> None:
    def halts(*_: Any, **__: Any) -> Any:
        raise Stop("not now")

    run = made(store, setter(**ALL))
    with pytest.raises(Stop, match="not now"):
        planned(run, setter(observe=halts, undo=by_state))
    lost = made(store, setter("lost", undo=by_args))
    with pytest.raises(Stop, match="not now"):
        planned(lost, setter(undo=by_args, probe=lambda args: halts()))


@pytest.fixture
def undone(store: Store) -> Callable[..., Any]:
    def undo(run: str, *tools: Any, **how: Any) -> Any:
        report = undo_run(store, run, tools=[give_back, *tools], **how)
        return [(each.step, each.status, each.reason) for each in report.steps]

    return undo


def test_what_an_undo_says_of_each_step(store: Store, undone: Any) -> None:
    cases: list[tuple[Any, str, str, dict[str, str]]] = [
        (setter(**ALL), "verified", "", {}),
        (setter(undo=by_args), "compensated", "nothing observes what it changes", {}),
        (setter(), "irreversible", NO_UNDO, {"k": "b"}),
        (setter("lost", undo=by_args), "unknown", IN_DOUBT, {"k": "b"}),
        (setter("unclear", **ALL), "verified", "", {}),
    ]
    for put, status, reason, left in cases:
        world.clear()
        assert undone(made(store, put), put) == [(1, status, reason)]
        assert world == left


def test_what_an_undo_says_of_a_compensation_that_fails(store: Store) -> None:
    @tool(name="reasons.fails", idempotent=True)
    def fails(key: str) -> None:
        raise OSError("it is away")

    put = setter(observe=look, undo=lambda args: [compensate(fails, key=args["key"])])
    run = made(store, put)
    report = undo_run(store, run, tools=[fails, put])
    assert [(each.status, each.reason, each.differs) for each in report.steps] == [
        ("failed", "reasons.fails: OSError: it is away", {})
    ]
    wrong = setter(observe=look, undo=lambda args: [compensate(give_back, key="k", text="wrong")])
    world.clear()
    run = made(store, wrong)
    report = undo_run(store, run, tools=[give_back, wrong])
    assert [(each.status, each.reason, each.differs) for each in report.steps] == [
        ("failed", "the state is not what it was before", {"k": []})
    ]


def test_an_async_undo_says_the_same(store: Store) -> None:
    put = setter(**ALL)
    run = made(store, put)
    report = asyncio.run(aundo_run(store, run, tools=[give_back, put]))
    assert [(each.status, each.reason) for each in report.steps] == [("verified", "")]
    assert world == {}


def test_what_can_not_be_seen_any_more_is_not_undone(store: Store) -> None:
    def looks(args: dict[str, Any]) -> dict[str, Any]:
        return look_none(args) if "away" in world else look(args)

    put = setter(observe=looks, undo=by_state)
    later = tool(
        name="reasons.later", undo=lambda: [compensate(give_back, key="away", text="yes")]
    )(lambda: None)
    with Session("job", store=store) as session:
        session.call(put, key="k", text="b")
        session.call(later)
    report = undo_run(store, session.run_id, tools=[give_back, put, later])
    assert [(each.step, each.status, each.reason) for each in report.steps] == [
        (2, "compensated", "nothing observes what it changes"),
        (1, "failed", "its state can't be observed: OSError: it is away"),
    ]
    assert world == {"k": "b", "away": "yes"}


def test_a_report_is_data_and_text(store: Store) -> None:
    @tool(name="reasons.fails", idempotent=True)
    def fails(key: str) -> None:
        raise OSError("it is away")

    put = setter(**ALL)
    broken = tool(name="reasons.broken", undo=lambda: [compensate(fails, key="k")])(lambda: None)
    with Session("job", store=store) as session:
        session.call(put, key="k", text="b")
        session.call(broken)
        session.call(put, key="k", text="c")
    run = session.run_id
    report = undo_run(store, run, tools=[give_back, fails, put, broken])
    back = {"name": "reasons.set", "version": "", "args": {"key": "k", "text": "b"}}
    failed = {"name": "reasons.fails", "version": "", "args": {"key": "k"}}
    assert report.as_data() == {
        "run": run, "to": None, "complete": False,
        "steps": [
            {"run": run, "step": 3, "name": "reasons.put", "status": "verified", "reason": "",
             "calls": [back], "differs": {}},
            {"run": run, "step": 2, "name": "reasons.broken", "status": "failed",
             "reason": "reasons.fails: OSError: it is away", "calls": [failed], "differs": {}},
        ],
        "left": [{"run": run, "step": 1, "name": "reasons.put"}],
    }  # fmt: skip
    assert str(report) == (
        f"step 2 (reasons.broken) of run {run}: failed: reasons.fails: OSError: it is away\n"
        f"step 1 (reasons.put) of run {run}: not tried"
    )
    _, first = plan_undo(store, run, tools=[give_back, fails, put, broken]).steps
    assert first.as_data()["args"] == {"key": "k", "text": "b"}
