"""Forks: a recorded run in which one step is another; and runs that go on from another one."""

import contextlib
import dataclasses
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cuts import cut_log
from mortal import Killed, until_it_dies
from put_world import (
    agent,
    events,
    look,
    new_world,  # noqa: F401 - pytest finds it here
    numbered,
    put,
    recorded,
    team,
    tell,
    world,
    wrap,
)
from rollcage import (
    Approval,
    ApprovalRequest,
    Blocked,
    ForkEnded,
    ReplayMiss,
    Session,
    SessionError,
    UnknownOutcome,
    Verdict,
    undo_run,
)
from rollcage.trace.folder import Folder
from rollcage.values.exceptions import encode_exception
from rollcage_fork import Fork


def forked(root: Any, fork: Fork, program: Callable[[], Any] = agent, **more: Any) -> Any:
    with Session("what if", store=root, stages=[fork], **more) as session:
        given: Any = session
        given.gave = program()  # so that the test sees it
    return session


OK = {"status": "ok"}


# --- dry -----------------------------------------------------------------------------------------


def test_a_fork_of_which_nothing_is_changed_answers_alike(tmp_path: Path) -> None:
    run = recorded(tmp_path)
    before = Folder(tmp_path).read(run)
    session = forked(tmp_path, Fork(run))
    assert session.gave == [1, 10]
    assert world.ran == []
    assert session.run_id != run
    assert Folder(tmp_path).read(run) == before
    assert Folder(tmp_path).get("names", "job") == run.encode()
    assert Folder(tmp_path).get("names", "what if") is None


def test_a_dry_fork_ends_before_its_first_new_write(tmp_path: Path) -> None:
    run = recorded(tmp_path)
    change = {"outcome": {"status": "ok", "value": 5}}
    with pytest.raises(ForkEnded, match=r"put.*50.*would be written") as ended:
        forked(tmp_path, Fork(run, numbered(tmp_path, run, "look"), change))
    assert (ended.value.status, ended.value.name) == ("would_write", "fork.put")
    assert world.ran == []
    assert world.state == {"a": 1, "b": 10}
    fork = next(f.stem for f in (tmp_path / "logs").iterdir() if f.stem != run)
    with pytest.raises(ForkEnded), Session("x", store=tmp_path, run=fork):  # resumed, it is dry
        agent()
    assert world.ran == []
    live = forked(tmp_path, Fork(fork, live=True))  # a live fork of the dry one writes
    assert live.gave == [5, 50]
    assert world.ran == ["put b 50", "look b"]
    assert undo_run(tmp_path, live.run_id).complete
    assert world.state == {"a": 1, "b": 10}


@pytest.mark.parametrize("replay", ["auto", "off", "offline"])
def test_a_run_of_its_own_inside_of_a_dry_fork_is_refused(tmp_path: Path, replay: Any) -> None:
    with Session("other", store=tmp_path / "other"):
        pass
    run = recorded(tmp_path)

    def program() -> str:
        with Session("other", store=tmp_path / "other", replay=replay) as inner:
            return inner.run_id

    if replay == "offline":  # it writes nothing
        assert forked(tmp_path, Fork(run), program).gave
        return
    with pytest.raises(SessionError, match="inside of a fork that is not live: nothing of it runs"):
        forked(tmp_path, Fork(run), program)
    assert len(Folder(tmp_path / "other").runs()) == 1


def test_a_dry_fork_ends_where_somebody_would_be_asked(tmp_path: Path) -> None:
    run = recorded(tmp_path)

    def rule(step: Any) -> Verdict:
        return Verdict.ask("who knows") if step.contract.name == "fork.look" else Verdict.allow()

    def more() -> None:
        agent()
        look("c")

    with pytest.raises(ForkEnded) as ended:
        forked(tmp_path, Fork(run), more, gate=[rule], approver=lambda _: 1 / 0)
    assert ended.value.status == "would_ask"


@pytest.mark.parametrize("goes_on", [False, True], ids=["live fork", "source="])
def test_an_approval_counts_in_no_copy_of_its_run(tmp_path: Path, goes_on: bool) -> None:
    """Somebody has allowed the call once: a copy that made it too would make it twice."""
    asked: list[str] = []

    def rule(step: Any) -> Verdict:
        return Verdict.ask("who knows") if step.contract.name == "fork.put" else Verdict.allow()

    def allowed(request: ApprovalRequest) -> Approval:
        asked.append(request.id)
        return Approval(True, by="ann")

    def make() -> None:
        put("a", 1)

    with Session("job", store=tmp_path, gate=[rule], approver=allowed) as session:
        make()
    log = tmp_path / "logs" / f"{session.run_id}.jsonl"
    lines = log.read_bytes().splitlines()
    cut_log(log, 1 + next(n for n, line in enumerate(lines) if b'"event":"decided"' in line))
    world.ran.clear()
    how: dict[str, Any] = {"stages": [Fork(session.run_id, live=True)]}
    if goes_on:
        how = {"source": session.run_id}
    with Session("copy", store=tmp_path, gate=[rule], approver=allowed, **how) as copy:
        make()
    assert len(asked) == 2
    assert asked[0] != asked[1]
    with Session("job", store=tmp_path, gate=[rule], approver=lambda _: 1 / 0) as again:
        make()
    assert again.run_id == session.run_id != copy.run_id
    assert world.ran == ["put a 1", "put a 1"]


# --- what can be changed -------------------------------------------------------------------------


def test_an_error_in_the_place_of_a_value(tmp_path: Path) -> None:
    def careful() -> list[Any]:
        try:
            return [put("a", 1)]
        except ValueError as error:
            return [str(error), put("b", 2)]

    run = recorded(tmp_path, careful)
    error = encode_exception(ValueError("full"), str, (ValueError,))
    change = {"outcome": {"status": "error", "error": error}}
    with pytest.raises(ForkEnded):
        forked(tmp_path, Fork(run, 1, change), careful)
    session = forked(tmp_path, Fork(run, 1, change, live=True), careful)
    assert session.gave == ["full", "b is 2"]
    assert world.ran == ["put b 2"]
    with Session("x", store=tmp_path, run=session.run_id):
        assert careful() == ["full", "b is 2"]
    assert world.ran == ["put b 2"]


def test_other_arguments_are_performed_and_asked_for_as_before(tmp_path: Path) -> None:
    run = recorded(tmp_path)
    asked: list[Any] = []

    def rule(step: Any) -> Verdict:
        asked.append(dict(step.args))
        return Verdict.allow()

    change = {"args": {"where": "a", "what": 7}}
    with pytest.raises(ForkEnded):
        forked(tmp_path, Fork(run, 1, change))
    assert world.ran == []
    session = forked(tmp_path, Fork(run, 1, change, live=True), gate=[rule])
    assert asked[0] == {"where": "a", "what": 7}
    assert session.gave == [7, 70]  # what was recorded behind it does not hold any more
    ran = ["put a 7", "look a", "put b 70", "look b"]
    assert world.ran == ran
    (line,) = [e for e in events(tmp_path, session.run_id) if e.get("again") == 1]
    assert line["args"] == {"where": "a", "what": 7}
    # a resume, and a fork of the fork, do it no second time
    with Session("x", store=tmp_path, run=session.run_id):
        assert agent() == [7, 70]
    assert forked(tmp_path, Fork(session.run_id, live=True)).gave == [7, 70]
    assert world.ran == ran
    # undone, it is as before the fork; resumed, it is performed with the other arguments again
    assert undo_run(tmp_path, session.run_id).complete
    assert world.state == {"a": 1, "b": 10}
    with Session("x", store=tmp_path, run=session.run_id):
        assert agent() == [7, 70]
    assert world.state == {"a": 7, "b": 70}
    assert world.ran == ran + ran
    assert len(set(world.keys)) == len(world.keys)


def test_offline_no_recorded_result_answers_for_other_arguments(tmp_path: Path) -> None:
    run = recorded(tmp_path)
    session = Session(
        "f", store=tmp_path, stages=[Fork(run, 1, {"args": {"where": "a", "what": 7}})]
    )
    with pytest.raises(ForkEnded), session:
        agent()
    offline = Session("f", store=tmp_path, run=session.run_id, replay="offline")
    with pytest.raises(ReplayMiss, match="no recorded step"), offline:
        agent()


def test_a_denied_edit_is_denied(tmp_path: Path) -> None:
    run = recorded(tmp_path)

    def rule(step: Any) -> Verdict:
        return Verdict.deny("too much") if step.args.get("what") == 7 else Verdict.allow()

    with pytest.raises(Blocked, match="too much"):
        change = {"args": {"where": "a", "what": 7}}
        forked(tmp_path, Fork(run, 1, change, live=True), gate=[rule])
    assert world.ran == []


def test_inside_of_a_scope_that_is_entered_again(tmp_path: Path) -> None:
    def program() -> list[Any]:
        put("a", 3)
        return [team("a"), look("a2")]

    run = recorded(tmp_path, program)
    inner = numbered(tmp_path, run, "look")
    change = {"outcome": {"status": "ok", "value": 4}}
    with pytest.raises(ForkEnded, match=r"put.*8"):
        forked(tmp_path, Fork(run, inner, change), program)
    assert world.ran == ["team a"]
    world.ran.clear()
    session = forked(tmp_path, Fork(run, inner, change, live=True), program)
    assert session.gave == [4, 8]
    assert world.ran == ["team a", "put a2 8", "look a2"]
    assert world.state == {"a": 3, "a2": 8}
    world.ran.clear()
    with Session("x", store=tmp_path, run=session.run_id):
        assert program() == [4, 8]
    assert world.ran == []
    assert undo_run(tmp_path, session.run_id).complete
    assert world.state == {"a": 3, "a2": 6}


def test_a_scope_with_another_outcome_is_not_entered(tmp_path: Path) -> None:
    def program() -> int:
        put("a", 3)
        return team("a")

    run = recorded(tmp_path, program)
    change = {"outcome": {"status": "ok", "value": 9}}
    fork = Fork(run, numbered(tmp_path, run, "team"), change)
    assert forked(tmp_path, fork, program).gave == 9
    assert world.ran == []


def test_a_write_around_a_changed_step_is_made_anew_in_a_live_fork(tmp_path: Path) -> None:
    def program() -> int:
        put("a", 3)
        return wrap("a")

    run = recorded(tmp_path, program)
    fork = Fork(run, numbered(tmp_path, run, "look"), {"outcome": {"status": "ok", "value": 4}})
    with pytest.raises(ForkEnded, match="wrap"):
        forked(tmp_path, fork, program)
    assert world.ran == []
    assert forked(tmp_path, dataclasses.replace(fork, live=True), program).gave == 4
    assert world.ran == ["wrap a"]


@pytest.mark.parametrize(
    ("step", "change"),
    [
        (99, {"args": {}}), (0, {"args": {}}), (1, {}), (1, {"args": {}, "outcome": OK}),
        (1, {"outcome": OK}), (1, {"outcome": {"status": "unknown"}}), (1, {"value": 1}),
    ],
)  # fmt: skip
def test_what_can_not_be_changed_leaves_no_run(
    tmp_path: Path, step: int, change: dict[str, Any]
) -> None:
    run = recorded(tmp_path)
    with pytest.raises(SessionError):
        forked(tmp_path, Fork(run, step, change))
    with pytest.raises(SessionError, match="does not hold"):
        undo_run(tmp_path, run, to=1)
        forked(tmp_path, Fork(run, 2, {"outcome": {"status": "ok", "value": 1}}))
    left = [f for f in (tmp_path / "logs").iterdir() if f.stem != run]
    assert all(f.stat().st_size == 0 for f in left)


def test_a_copy_that_was_cut_off_is_nobodys_run(tmp_path: Path) -> None:
    run = recorded(tmp_path)
    _, store = until_it_dies(tmp_path, 0, lambda store: forked(store, Fork(run, live=True)))
    moments = store.moments
    done = {f.stem for f in (tmp_path / "logs").iterdir()}
    for life in range(1, moments + 1):
        gave, _ = until_it_dies(tmp_path, life, lambda store: forked(store, Fork(run, live=True)))
        assert isinstance(gave, Killed)
        for fork in {f.stem for f in (tmp_path / "logs").iterdir()} - done:
            done.add(fork)
            lines = (
                events(tmp_path, fork) if (tmp_path / "logs" / f"{fork}.jsonl").read_bytes() else []
            )
            if not lines:
                continue
            kinds = [line["event"] for line in lines]
            if "forked" not in kinds or "attempt" not in kinds[kinds.index("forked") :]:
                with pytest.raises(SessionError, match="cut off"):
                    undo_run(tmp_path, fork)
            else:
                assert undo_run(tmp_path, fork).steps == ()
    assert world.state == {"a": 1, "b": 10}
    assert undo_run(tmp_path, run).complete
    assert world.state == {}


# --- in turns, killed, gone on with --------------------------------------------------------------


class Crash(Exception):
    """What a program that is cut off raises."""


def turn_of(session: Session, slots: tuple[int, ...], more: int = 0) -> dict[int, Any]:
    """Look at the same place in these slots of a turn, in this order; more is put there by each."""
    given: dict[int, Any] = {}
    with session.turn() as turn:
        for slot in slots:
            with turn.slot(slot):
                given[slot] = look("a")
            world.state["a"] = world.state.get("a", 0) + more
    return given


@pytest.mark.parametrize("answers", [{}, {"fork.look": 99}])
@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("slots", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_a_slot_of_a_cut_turn_keeps_its_step(
    tmp_path: Path, slots: tuple[int, ...], answers: dict[str, Any], *, live: bool
) -> None:
    with pytest.raises(Crash), Session("job", store=tmp_path) as base:
        assert turn_of(base, (0, 1), 1) == {0: 0, 1: 1}
        raise Crash
    fork = Fork(base.run_id, answers=answers, live=live)
    given = {0: 0, 1: 1, 2: 99 if answers else 2}
    with Session("what if", store=tmp_path, stages=[fork]) as session:
        assert turn_of(session, slots) == given
    with Session("what if", store=tmp_path, run=session.run_id, stages=[fork]) as session:
        assert turn_of(session, slots) == given


def test_a_call_answers_in_another_slot_of_a_whole_turn(tmp_path: Path) -> None:
    with Session("job", store=tmp_path) as base:
        turn_of(base, (0,))
        look("b")
    with Session("what if", store=tmp_path, stages=[Fork(base.run_id)]) as session:
        assert turn_of(session, (1,)) == {1: 0}
        assert session.stats.supplied == 1


def test_parts_of_a_turn_do_not_wait_for_the_changed_step(tmp_path: Path) -> None:
    """One comes to what was not recorded before another one comes to the change."""

    def parts(session: Session, order: tuple[str, ...], calls: dict[str, int]) -> dict[str, Any]:
        given: dict[str, Any] = {}
        with session.turn(opens={"a": (), "b": ()}):
            for name in order:
                with session.branch(name):
                    given[name] = [look(name) for _ in range(calls[name])]
        return given

    with pytest.raises(Crash), Session("job", store=tmp_path) as base:
        parts(base, ("a", "b"), {"a": 1, "b": 1})
        raise Crash
    step = max(e["step"] for e in events(tmp_path, base.run_id) if e["event"] == "step")
    fork = Fork(base.run_id, at=step, result=7)
    with Session("what if", store=tmp_path, stages=[fork]) as session:
        assert parts(session, ("a", "b"), {"a": 2, "b": 1}) == {"a": [0, 0], "b": [7]}
    with (
        pytest.raises(ReplayMiss),
        Session("what if", store=tmp_path, stages=[fork]) as session,
    ):
        look("c")  # of another turn


def test_a_killed_fork_needs_what_its_log_has_the_names_of(tmp_path: Path) -> None:
    run = recorded(tmp_path)

    def more() -> list[Any]:
        return [*agent(), put("c", 3), put("d", 4)]

    def answer(where: str, what: int) -> str:
        if where == "d":
            raise KeyboardInterrupt
        return f"{where} would be {what}"

    fork = Fork(run, at=2, result=1, answers={"fork.put": answer})
    with pytest.raises(KeyboardInterrupt):
        forked(tmp_path, fork, more)
    killed = next(f.stem for f in (tmp_path / "logs").iterdir() if f.stem != run)
    with (
        pytest.raises(
            SessionError, match=r"answers \(fork.put\).*its log has the names"
        ) as refused,
        Session("what if", store=tmp_path, run=killed),
    ):
        pass
    assert "stages=, beside run=" in str(refused.value)
    others = [
        (Fork(run, at=2, result=1), "was begun as another fork"),
        (Fork(run, at=2, result=2, answers={"fork.put": "x"}), "was begun as another fork"),
        (Fork(run, at=4, result=1, answers={"fork.put": "x"}), "was begun as another fork"),
        (Fork(killed, at=2, result=1), "was not begun as a copy of run"),
    ]
    for other, why in others:
        with (
            pytest.raises(SessionError, match=why),
            Session("what if", store=tmp_path, run=killed, stages=[other]),
        ):
            pass
    same = dataclasses.replace(fork, answers={"fork.put": lambda where, what: f"{where}: {what}"})
    with Session("what if", store=tmp_path, run=killed, stages=[same]) as session:
        assert more() == [1, 10, "c would be 3", "d: 4"]
    assert session.run_id == killed
    assert world.ran == []


@pytest.mark.parametrize("change", ["tools", "model", "policy"])
def test_a_killed_fork_with_other_code_needs_it_again(tmp_path: Path, change: str) -> None:
    run = recorded(tmp_path)
    given: Any = {"tools": [look], "model": "another", "policy": lambda _: Verdict.allow()}[change]
    fork = Fork(run, **{change: given})
    with contextlib.suppress(ForkEnded):
        forked(tmp_path, fork)
    made = next(f.stem for f in (tmp_path / "logs").iterdir() if f.stem != run)
    with (
        pytest.raises(SessionError, match=f"another {change} "),
        Session("what if", store=tmp_path, run=made),
    ):
        pass
    with (
        contextlib.suppress(ForkEnded),
        Session("what if", store=tmp_path, run=made, stages=[fork], replay="continue") as session,
    ):
        agent()
    assert session.run_id == made


def test_a_fork_that_was_cut_before_its_change_is_nobodys_run(tmp_path: Path) -> None:
    run = recorded(tmp_path)
    fork = Fork(run, numbered(tmp_path, run, "look"), {"outcome": {"status": "ok", "value": 5}})
    with pytest.raises(ForkEnded):
        forked(tmp_path, fork)
    made = next(f.stem for f in (tmp_path / "logs").iterdir() if f.stem != run)
    lines = [line["event"] for line in events(tmp_path, made)]
    cut_log(tmp_path / "logs" / f"{made}.jsonl", lines.index("changed"))
    for stages in ([], [fork]):
        with (
            pytest.raises(SessionError, match="cut off before its end"),
            Session("what if", store=tmp_path, run=made, stages=stages),
        ):
            pass
    assert world.ran == []


# --- at random -----------------------------------------------------------------------------------


def random_program(chance: random.Random) -> Callable[[], list[Any]]:
    """A program that acts upon what it sees."""
    plan = [
        (
            chance.choice(["put", "look", "team", "block"]),
            chance.choice("abc"),
            chance.randint(1, 9),
        )
        for _ in range(chance.randint(2, 7))
    ]

    def program() -> list[Any]:
        seen: list[Any] = []
        last = 0
        for n, (what, where, value) in enumerate(plan):
            if what == "put":
                seen.append(put(f"{where}{n}", value + last))
            elif what == "look":
                last = look(f"{where}{chance_of[n]}")
                seen.append(last)
            elif what == "team":
                last = team(f"{where}{chance_of[n]}")
                seen.append(last)
            else:
                with current().branch(f"block {n}"):
                    seen.append(put(f"{where}{n}", value + last))
        return seen

    chance_of = [chance.randint(0, len(plan) - 1) for _ in plan]
    return program


def current() -> Session:
    from rollcage.replay.call import here

    place = here.get()
    assert place is not None
    return place.session


def chosen(root: Path, run: str, chance: random.Random) -> tuple[int, dict[str, Any]]:
    lines = events(root, run)
    gone = {e["again"] for e in lines if "again" in e}
    for e in lines:
        if e["event"] in ("undone", "left"):
            gone.update(e.get("steps", ()))
        for a, b in e.get("left", ()):
            gone.update(range(a, b + 1))
    ended = {
        e["step"] for e in lines if e.get("outcome") and e["outcome"].get("status") == "ok"
    } - gone
    steps = [
        e
        for e in lines
        if e["event"] == "step"
        and e["step"] in ended
        and e["effect"] != "branch"
        and e["branch"][:1] != "-"
    ]
    if not steps or chance.random() < 0.2:
        return 0, {}
    step = chance.choice(steps)
    if step["name"] == "fork.put" and chance.random() < 0.5:
        return step["step"], {"args": {**step["args"], "what": chance.randint(20, 30)}}
    if step["name"] == "fork.put":
        return step["step"], {"outcome": {"status": "ok", "value": "another"}}
    return step["step"], {"outcome": {"status": "ok", "value": chance.randint(40, 50)}}


def resumed(root: Path, run: str, program: Callable[[], Any], life: int = 0) -> Any:
    for _ in range(10):
        try:

            def attempt(store: Any) -> Any:
                with Session("what if", store=store, run=run, on_divergence="warn"):
                    return program()

            return until_it_dies(root, life, attempt)[0]
        except UnknownOutcome as halt:
            tell(root, halt)
    raise AssertionError("it halts for ever")


@pytest.mark.parametrize("seed", range(40))
def test_random_forks_of_forks_killed_and_undone(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - no secret
    program = random_program(chance)
    run = recorded(tmp_path, program)
    original = Folder(tmp_path).read(run)
    states = [dict(world.state)]
    forks = [run]
    for _ in range(3):
        source = forks[-1]
        step, change = chosen(tmp_path, source, chance)
        fork = Fork(source, step, change, live=True)
        ran = len(world.ran)
        with contextlib.suppress(ForkEnded):
            forked(tmp_path, dataclasses.replace(fork, live=False), program)
        assert world.state == states[-1]
        assert not any(each.startswith("put") for each in world.ran[ran:])
        before = {f.stem for f in (tmp_path / "logs").iterdir()}
        made: list[str] = []
        life = chance.choice([0, chance.randint(20, 60)])

        def attempt(store: Any, fork: Fork = fork, made: list[str] = made) -> Any:
            with Session("what if", store=store, stages=[fork], on_divergence="warn") as session:
                made.append(session.run_id)
                return program()

        gave, _ = until_it_dies(tmp_path, life, attempt)
        new = {f.stem for f in (tmp_path / "logs").iterdir()} - before
        if not made:  # the copy was cut off
            assert isinstance(gave, Killed)
            continue
        assert new == set(made)
        while isinstance(gave, Killed):
            gave = resumed(tmp_path, made[0], program, chance.choice([0, chance.randint(5, 40)]))
        ran = len(world.ran)
        assert resumed(tmp_path, made[0], program) == gave  # it is all on record
        assert len(world.ran) == ran
        forks.append(made[0])
        states.append(dict(world.state))
    assert Folder(tmp_path).read(run) == original
    for fork_run in reversed(forks[1:]):
        assert world.state == states.pop()
        assert undo_run(tmp_path, fork_run).complete
        assert world.state == states[-1]
    assert Folder(tmp_path).read(run) == original
