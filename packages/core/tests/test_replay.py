"""The replay rule by example: modes, what holds where, failures, divergence, lineages."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rollcage import (
    ApprovalRequired,
    Blocked,
    Contract,
    Diverged,
    NotReplayable,
    ReplayMiss,
    RunNotFound,
    SessionError,
    SessionHalted,
    StepView,
    TraceCorrupt,
    UnknownOutcome,
    Verdict,
    tool,
)
from rollcage.session.session import Session
from rollcage.store import JsonlStore
from rollcage.trace import check_events

ran: list[str] = []


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()


@pytest.fixture
def session(tmp_path: Path) -> Callable[..., Session]:
    def make(replay: Any = "auto", **how: Any) -> Session:
        return Session("job", store=tmp_path / "store", replay=replay, **how)

    return make


def events(session: Session) -> list[dict[str, Any]]:
    path = session.store.read(session.run_id)
    return check_events(path.data, path.where)


@tool(effect="write")
def write(what: str) -> str:
    ran.append(f"write {what}")
    return f"wrote {what}"


@tool(effect="read")
def look(at: str = "all") -> str:
    ran.append(f"look {at}")
    return f"saw {at} after {len(ran)}"


@tool(effect="write", raises=[ConnectionError])
def flaky(what: str) -> str:
    ran.append(f"flaky {what}")
    if ran.count(f"flaky {what}") == 1:
        raise ConnectionRefusedError(what)
    return f"finally {what}"


def crash_after(make: Callable[..., Session], *actions: Callable[[], Any], **how: Any) -> Session:
    """Record some calls, then leave the session with an error."""
    with pytest.raises(RuntimeError, match="crash"), make(**how) as opened:
        for action in actions:
            action()
        raise RuntimeError("crash")
    ran.clear()
    return opened


# --- modes ---------------------------------------------------------------------------------------


def test_auto_resumes_what_did_not_finish_and_records_afresh_what_did(session: Any) -> None:
    crash_after(session, lambda: write("a"))
    with session() as resumed:
        assert write("a") == "wrote a"
        write("b")
    assert ran == ["write b"]
    assert (resumed.stats.hits, resumed.stats.misses) == (1, 1)
    with session():
        write("a")
    assert ran == ["write b", "write a"]


def test_off_records_afresh_although_the_last_run_failed(session: Any) -> None:
    crash_after(session, lambda: write("a"))
    with session("off"):
        write("a")
    assert ran == ["write a"]


def test_resume_takes_the_newest_run_even_if_it_finished(session: Any) -> None:
    with session("off"):
        write("a")
    with session("resume") as again:
        write("a")
    assert again.stats.hits == 1


@pytest.mark.parametrize("mode", ["resume", "offline", "verify"])
def test_nothing_to_replay_is_an_error(session: Any, mode: str) -> None:
    with pytest.raises(RunNotFound, match="'job'"), session(mode):
        pass


def test_looking_back_does_not_change_what_is_resumed(session: Any) -> None:
    crashed = crash_after(session, lambda: write("a"))
    with session("offline"):
        write("a")
    with session() as resumed:
        write("a")
    assert ran == []
    assert events(resumed)[0]["source"] == crashed.run_id


def test_offline_runs_nothing_and_names_the_nearest_call(session: Any) -> None:
    with session("off"):
        write("a")
        look("left")
    with pytest.raises(ReplayMiss) as missed, session("offline"):
        write("a")
        look("right")
    assert "step 2 (look)" in str(missed.value)
    assert "argument 'at': recorded 'left', asked for 'right'" in str(missed.value)
    assert ran == ["write a", "look left"]


def test_offline_the_nearest_call_of_another_tool_or_place(session: Any) -> None:
    with session("off"):
        write("a")
    elsewhere = "the tool: recorded 'write', asked for 'look'"
    with pytest.raises(ReplayMiss, match=elsewhere), session("offline"):
        look()
    with pytest.raises(ReplayMiss, match="already replayed"), session("offline"):
        write("a")
        write("a")


def test_a_halted_session_runs_nothing_more_whoever_swallows_the_error(session: Any) -> None:
    with session("off"):
        look()
    ran.clear()
    with pytest.raises(ReplayMiss), session("offline") as halted:
        with pytest.raises(ReplayMiss):
            write("a")
        with pytest.raises(SessionHalted) as second:
            look()
        assert isinstance(second.value.__cause__, ReplayMiss)
        assert isinstance(halted.halted, ReplayMiss)
    assert ran == []
    assert events(halted)[-1]["status"] == "halted"


def test_offline_gives_back_blocks_and_reports_todays_verdict(session: Any) -> None:
    def no_b(view: StepView) -> Verdict | None:
        return Verdict.deny("not b", code="no_b") if view.args == {"what": "b"} else None

    def no_a(view: StepView) -> Verdict | None:
        return Verdict.deny("not a") if view.args == {"what": "a"} else None

    with session("off", rules=[no_b]):
        write("a")
        with pytest.raises(Blocked):
            write("b")
    ran.clear()
    with session("offline", rules=[no_a]) as looked:
        assert write("a") == "wrote a"
        with pytest.raises(Blocked, match="not b") as blocked:
            write("b")
    assert blocked.value.verdict_code == "no_b"
    assert ran == []
    replayed = next(e for e in events(looked) if e["event"] == "step.replayed")
    assert replayed["verdict"]["reason"] == "not a"


def test_verify_runs_reads_again_and_reports_drift(session: Any) -> None:
    value = ["old"]

    @tool(effect="read")
    def observe(what: str) -> str:
        return value[0]

    @tool(effect="read")
    def steady() -> int:
        return 1

    with session("off"):
        observe("early")
        write("a")
        observe("late")
        steady()
    value[0] = "new"
    ran.clear()
    with session("verify") as checked:
        assert observe("early") == "old"
        write("a")
        assert observe("late") == "old"
        steady()
    by_args = [
        (e["args"], e.get("drift")) for e in events(checked) if e["event"] == "step.replayed"
    ]
    assert [drift for _, drift in by_args] == [
        "not comparable: recorded writes came after this read",
        None,
        "it now gives another value",
        None,
    ]
    assert checked.stats.drifted == 1
    assert ran == []


def test_verify_reports_a_read_that_now_fails(session: Any) -> None:
    broken: list[bool] = []

    @tool(effect="read")
    def observe() -> str:
        if broken:
            raise ValueError("gone")
        return "there"

    with session("off"):
        observe()
    broken.append(True)
    with session("verify") as checked:
        assert observe() == "there"
    assert events(checked)[1]["drift"] == "it now raises ValueError: gone"


def test_settings_that_would_change_every_fingerprint_are_refused(session: Any) -> None:
    crash_after(session, lambda: write("a"))
    with pytest.raises(SessionError, match="chain='effects'"), session(chain="all"):
        pass
    with pytest.raises(SessionError, match="seed=''"), session(seed="other"):
        pass


# --- what holds where ----------------------------------------------------------------------------


def test_three_identical_calls_replay_one_two_three(session: Any) -> None:
    crash_after(session, look, look, look)
    with session("offline"):
        values = [look(), look(), look()]
    assert values == ["saw all after 1", "saw all after 2", "saw all after 3"]


def test_a_read_does_not_hold_before_the_write_that_it_came_after(session: Any) -> None:
    crash_after(session, lambda: write("a"), look)
    with session() as early:
        look()
        write("a")
    assert ran == ["look all"]
    assert events(early)[1]["ahead"] is True


def test_a_read_does_not_hold_after_a_later_write(session: Any) -> None:
    crash_after(session, look, lambda: write("a"))
    with session():
        write("a")
        look()
    assert ran == ["look all"]


def test_a_read_of_the_batchs_own_turn_holds_right_after_it(session: Any) -> None:
    def together(make: Any) -> None:
        with pytest.raises(RuntimeError), make() as opened, opened.turn():
            look()
            write("a")
            raise RuntimeError

    together(session)
    ran.clear()
    with session():
        write("a")
        look()
    assert ran == []


def test_the_writes_of_a_turn_share_a_world(session: Any) -> None:
    with session() as opened:
        with opened.turn():
            write("a")
            write("b")
        write("c")
    worlds = [e["world"] for e in events(opened) if e["event"] == "step.started"]
    assert worlds[0] == worlds[1] != worlds[2]


def test_leaving_the_path_inside_a_batch_keeps_the_order(session: Any) -> None:
    """What was written after half a batch depends on that half, in the next generation too."""

    def turn() -> None:
        with first.turn():
            write("a")
            write("b")

    with pytest.raises(RuntimeError), session() as first:
        turn()
        raise RuntimeError
    with pytest.raises(RuntimeError), session(on_divergence="warn"):
        write("a")
        write("c")
        raise RuntimeError
    ran.clear()
    with pytest.raises(Diverged), session():
        write("c")
    with session():
        write("a")
        write("c")
    assert ran == []


def test_a_pure_step_holds_in_any_world_any_number_of_times(session: Any) -> None:
    @tool(effect="pure")
    def double(x: int) -> int:
        ran.append("double")
        return 2 * x

    crash_after(session, lambda: double(2))
    with session():
        write("a")
        assert [double(2), double(2)] == [4, 4]
    assert ran == ["write a"]


def test_chain_all_advances_on_reads_too(session: Any) -> None:
    def agent() -> None:
        look("left")
        look("right")

    crash_after(session, agent, chain="all")
    with session(chain="all"):
        look("new")
        look("left")
        look("right")
    assert ran == ["look new", "look left", "look right"]


# --- failures ------------------------------------------------------------------------------------


def test_a_failure_at_the_frontier_runs_again(session: Any) -> None:
    with pytest.raises(ConnectionError), session():
        write("a")
        flaky("x")
    with session() as resumed:
        write("a")
        assert flaky("x") == "finally x"
    assert ran == ["write a", "flaky x", "flaky x"]
    assert events(resumed)[2]["supersedes"] is not None


def test_a_handled_failure_replays_as_its_error_and_nothing_behind_it_runs_twice(
    session: Any,
) -> None:
    def agent() -> None:
        with pytest.raises(ConnectionError, match="x"):
            flaky("x")
        write("after")

    crash_after(session, agent)
    with session():
        agent()
        write("last")
    assert ran == ["write last"]


@pytest.mark.parametrize(("retry", "runs"), [(False, []), (None, ["flaky x"]), (True, ["flaky x"])])
def test_retry_failed_overrides_the_frontier(session: Any, retry: Any, runs: list[str]) -> None:
    def agent() -> None:
        with pytest.raises(ConnectionError):
            flaky("x")

    crash_after(session, agent)
    with session(retry_failed=retry):
        agent()
    assert ran == runs


def test_retrying_an_earlier_failure_leaves_the_path(session: Any) -> None:
    def agent() -> None:
        with pytest.raises(ConnectionError):
            flaky("x")
        write("after")

    crash_after(session, agent)
    with pytest.raises(Diverged, match=r"step 2 \(write\)"), session(retry_failed=True):
        flaky("x")
    assert ran == []


@pytest.mark.parametrize(
    ("recorded", "said"), [(1, "the one recorded answer"), (3, "all 3 recorded answers")]
)
def test_a_miss_of_a_used_up_model_call_says_so(session: Any, recorded: int, said: str) -> None:
    model = Contract(name="model", parameters={"properties": {"ask": {}}}, effect="read")

    def ask(opened: Session, what: str) -> Any:
        return opened.run(model, {"ask": what}, lambda ask: f"to {ask}", kind="model")

    with session() as first:
        for _ in range(recorded):
            ask(first, "a")
        ask(first, "b")
    used_up = pytest.raises(ReplayMiss, match=f"for model: {said} to this request")
    with used_up as caught, session("offline") as again:
        assert [ask(again, "a") for _ in range(recorded)] == ["to a"] * recorded
        ask(again, "a")
    assert "nearest" not in str(caught.value)
    with pytest.raises(ReplayMiss, match="argument 'ask'"), session("offline") as again:
        ask(again, "c")


def test_a_model_error_runs_again_at_the_frontier_and_replays_before_it(session: Any) -> None:
    model = Contract(name="model", parameters={"properties": {"ask": {}}}, effect="read")
    answers: list[Any] = [TimeoutError("slow"), "late", TimeoutError("slow again")]

    def ask(opened: Session, what: str) -> Any:
        def answer(ask: str) -> str:
            ran.append(f"asked {ask}")
            said = answers.pop(0)
            if isinstance(said, Exception):
                raise said
            return str(said)

        try:
            return opened.run(model, {"ask": what}, answer, kind="model")
        except TimeoutError as error:
            return str(error)

    def agent(opened: Session) -> list[Any]:
        return [ask(opened, "a"), ask(opened, "a"), write("x"), ask(opened, "b")]

    with pytest.raises(RuntimeError), session() as first:
        assert agent(first) == ["slow", "late", "wrote x", "slow again"]
        raise RuntimeError
    ran.clear()
    answers[:] = ["in time"]
    with session() as resumed:
        assert agent(resumed) == ["slow", "late", "wrote x", "in time"]
    assert ran == ["asked b"]


def test_a_step_that_failed_again_in_the_resume_is_the_frontier_once_more(session: Any) -> None:
    @tool(effect="write")
    def always() -> None:
        ran.append("always")
        raise ValueError("no")

    for _ in range(3):
        with pytest.raises(ValueError, match="no"), session():
            write("a")
            always()
    assert ran == ["write a", "always", "always", "always"]


def test_the_idempotency_key_outlives_every_resume(session: Any) -> None:
    from rollcage import current_step

    keys: list[str] = []

    @tool(effect="write")
    def send() -> None:
        step = current_step()
        assert step is not None
        keys.append(step.idempotency_key)
        raise ValueError("no")

    for _ in range(3):
        with pytest.raises(ValueError, match="no"), session():
            send()
    with pytest.raises(ValueError, match="no"), session("off"):
        send()
    assert keys[0] == keys[1] == keys[2] != keys[3]
    assert current_step() is None


# --- divergence ----------------------------------------------------------------------------------


def test_a_reworded_write_halts_before_it_runs_and_lists_the_orphans(session: Any) -> None:
    crash_after(session, lambda: write("a"), lambda: write("b"))
    with pytest.raises(Diverged) as left, session():
        write("A")
    assert ran == []
    assert [step for _, step in left.value.orphans] == [1, 2]
    with session(on_divergence="warn") as warned:
        write("A")
        write("b")
    assert ran == ["write A", "write b"]
    assert warned.stats.orphans == 2
    assert len(events(warned)[1]["orphans"]) == 2


def test_orphans_once_accepted_are_not_listed_again(session: Any) -> None:
    crash_after(session, lambda: write("a"))
    with pytest.raises(RuntimeError), session(on_divergence="warn"):
        write("b")
        raise RuntimeError
    ran.clear()
    with session() as third:
        write("b")
        write("c")
    assert ran == ["write c"]
    assert third.stats.orphans == 0


def test_a_turn_that_was_cut_short_goes_on_whoever_of_it_comes_first(session: Any) -> None:
    with pytest.raises(RuntimeError), session() as cut:
        with cut.turn() as turn, turn.slot(0):
            write("a")
        raise RuntimeError
    ran.clear()
    with session() as resumed, resumed.turn() as turn:
        with turn.slot(1):
            write("never started")
        with turn.slot(0):
            write("a")
    assert ran == ["write never started"]
    assert resumed.stats.orphans == 0


def test_siblings_that_never_come_are_orphans_for_the_next_turn(session: Any) -> None:
    with pytest.raises(RuntimeError), session() as cut:
        with cut.turn() as turn, turn.slot(0):
            write("a")
        raise RuntimeError
    with pytest.raises(Diverged, match=r"step 1 \(write\)"), session() as resumed:
        with resumed.turn() as turn, turn.slot(1):
            write("new")
        write("next")


def test_effects_that_a_finished_run_never_asked_for_are_counted(
    session: Any, caplog: pytest.LogCaptureFixture
) -> None:
    crash_after(session, lambda: write("a"), lambda: write("b"))
    with session() as short:
        write("a")
    assert short.stats.orphans == 1
    assert "never asked for 1 recorded effect: step 2 (write)" in caplog.text


# --- what can't be given back --------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::rollcage.NotReplayableWarning")
def test_a_write_whose_result_was_not_recordable_halts_instead_of_running_again(
    session: Any,
) -> None:
    @tool(effect="write")
    def stream() -> Any:
        ran.append("stream")
        return (n for n in range(3))

    crash_after(session, stream)
    with pytest.raises(NotReplayable, match="generator has no encoding"), session():
        stream()
    assert ran == []


@pytest.mark.filterwarnings("ignore::rollcage.NotReplayableWarning")
def test_it_runs_again_only_where_the_tool_says_so(session: Any) -> None:
    @tool(effect="write", on_miss="live")
    def stream() -> Any:
        ran.append("stream")
        return (n for n in range(3))

    crash_after(session, stream)
    with session():
        assert list(stream()) == [0, 1, 2]
    assert ran == ["stream"]


def test_a_read_whose_result_was_not_recordable_just_runs_again(session: Any) -> None:
    @tool(effect="read")
    def stream() -> Any:
        ran.append("stream")
        return (n for n in range(3))

    crash_after(session, stream)
    with session():
        stream()
    assert ran == ["stream"]
    with pytest.raises(NotReplayable), session("offline"):
        stream()


def test_a_write_under_another_contract_version_halts(session: Any) -> None:
    def send(to: str) -> str:
        ran.append(to)
        return to

    crash_after(session, lambda: tool(version="1")(send)(to="ann"))
    with pytest.raises(NotReplayable, match="as version '1'; the tool is now '2'"), session():
        tool(version="2")(send)(to="ann")
    assert ran == []
    with session(on_divergence="warn"):
        tool(version="2", on_miss="live")(send)(to="ann")
    assert ran == ["ann"]


@pytest.mark.parametrize(("on_miss", "halts"), [("fail", True), ("error_result", False)])
def test_on_miss_of_a_tool(session: Any, on_miss: Any, halts: bool) -> None:
    @tool(effect="read", on_miss=on_miss)
    def strict(x: int) -> int:
        ran.append("strict")
        return x

    crash_after(session, lambda: strict(1))
    resumed = session()
    try:
        with resumed:
            with pytest.raises(ReplayMiss):
                strict(2)
            assert (resumed.halted is not None) is halts
    except ReplayMiss:
        assert halts
    assert ran == []


def test_a_live_source_is_never_answered_from_the_recording(session: Any) -> None:
    @tool(effect="read", source="live")
    def clock() -> int:
        ran.append("clock")
        return len(ran)

    crash_after(session, clock)
    for mode in ("auto", "offline"):
        with session(mode):
            clock()
    assert ran == ["clock", "clock"]


def test_an_idempotent_write_in_doubt_runs_again_under_its_key(session: Any) -> None:
    from rollcage import current_step

    keys: list[str] = []

    @tool(effect="write", idempotent=True)
    def put(x: int) -> int:
        step = current_step()
        assert step is not None
        keys.append(step.idempotency_key)
        if len(keys) == 1:
            raise KeyboardInterrupt
        return x

    with pytest.raises(KeyboardInterrupt), session():
        put(1)
    with session():
        assert put(1) == 1
    assert keys[0] == keys[1]


def test_a_write_in_doubt_halts_until_somebody_says_what_happened(session: Any) -> None:
    @tool(effect="write")
    def cut() -> None:
        ran.append("cut")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), session() as first:
        cut()
    for _ in range(2):
        with pytest.raises(UnknownOutcome, match=f"rollcage resolve {first.run_id} 1"), session():
            cut()
    assert ran == ["cut"]


def test_a_scope_is_entered_again_and_its_calls_replay(session: Any) -> None:
    crash = [True]

    @tool(effect="scope")
    def agent() -> str:
        write("inside")
        if crash:
            raise KeyboardInterrupt
        return write("last")

    with pytest.raises(KeyboardInterrupt), session():
        agent()
    crash.clear()
    ran.clear()
    with session():
        assert agent() == "wrote last"
    assert ran == ["write last"]


# --- nested calls, branches, lineages ------------------------------------------------------------


def test_a_parents_hit_consumes_its_children_and_leaves_the_outer_world_alone(session: Any) -> None:
    @tool(effect="write")
    def outer() -> str:
        return write("inner")

    crash_after(session, outer, lambda: write("after"))
    with session() as resumed:
        outer()
        write("after")
        write("more")
    assert ran == ["write more"]
    assert [e["name"] for e in events(resumed)[1:3]] == ["outer", "write"]


def test_branches_replay_each_in_their_own_world(session: Any) -> None:
    def agent(opened: Session, order: list[str]) -> None:
        with opened.branch("a") as a, opened.branch("b"):
            pass
        for name in order:
            with opened.branch(name) as branch:
                branch.call(write, what="same")
                branch.call(look)
        write("after")
        del a

    with pytest.raises(RuntimeError), session() as first:
        agent(first, ["x", "y"])
        raise RuntimeError
    ran.clear()
    with session() as resumed:
        agent(resumed, ["x", "y"])
        write("more")
    assert ran == ["write more"]


def test_a_new_write_in_a_branch_moves_the_parents_world(session: Any) -> None:
    def agent(opened: Session, *what: str) -> None:
        with opened.branch("a"):
            for each in what:
                write(each)
        look()

    with pytest.raises(RuntimeError), session() as first:
        agent(first, "one")
        raise RuntimeError
    ran.clear()
    with session() as resumed:
        agent(resumed, "one", "two")
    assert ran == ["write two", "look all"]


def test_a_branch_forked_inside_of_a_turn_replays(session: Any) -> None:
    def agent(opened: Session) -> None:
        with opened.turn():
            write("a")
            with opened.branch("b"):
                write("inside")
        write("after")

    with pytest.raises(RuntimeError), session() as first:
        agent(first)
        raise RuntimeError
    ran.clear()
    with session() as resumed:
        agent(resumed)
        write("more")
    assert ran == ["write more"]


async def test_a_failure_run_again_beside_its_replayed_siblings_is_part_of_their_batch(
    session: Any,
) -> None:
    fails = [True]

    @tool(effect="write")
    async def slow(what: str) -> str:
        await asyncio.sleep(0)
        if fails and what == "bad":
            raise ValueError(what)
        return what

    async def together(opened: Session) -> None:
        with opened.turn():
            await asyncio.gather(slow("bad"), slow("good"), return_exceptions=True)

    first = session()
    with pytest.raises(RuntimeError):
        async with first:
            await together(first)
            raise RuntimeError
    fails.clear()
    worlds = set()
    for at_once in (True, False):
        async with session("resume", source=first.run_id) as resumed:
            if at_once:
                await together(resumed)
            else:
                await slow("bad")
                await slow("good")
            await slow("after")
        assert resumed.stats.hits == 1
        after = next(e for e in events(resumed) if e.get("args") == {"what": "after"})
        worlds.add(after["world"])
    assert len(worlds) == 1


@pytest.mark.parametrize("name", ["", "a/b", "#1"])
def test_a_branch_needs_a_plain_name(session: Any, name: str) -> None:
    refused = pytest.raises(SessionError, match="can't name a branch")
    with session() as opened, refused, opened.branch(name):
        pass


def test_each_generation_of_a_lineage_builds_on_all_before_it(session: Any) -> None:
    steps = "abcdefgh"
    crash_after(session, *[lambda s=s: write(s) for s in steps[:5]])
    for length in (1, 2, 3):
        with pytest.raises(RuntimeError), session() as resumed:
            for step in steps[:length]:
                write(step)
            raise RuntimeError
        assert resumed.stats.hits == length
    with session() as last:
        for step in steps:
            write(step)
    assert ran == ["write f", "write g", "write h"]
    assert events(last)[1]["origin"][1] == 1


def test_a_trace_file_is_a_source_too(session: Any, tmp_path: Path) -> None:
    first = crash_after(session, lambda: write("a"), lambda: write("x" * 100_000))
    trace = tmp_path / "store" / "runs" / f"{first.run_id}.jsonl"
    elsewhere = Session("elsewhere", store=tmp_path / "other", replay="resume", source=trace)
    with elsewhere:
        write("a")
        write("x" * 100_000)
    assert ran == []
    trace.unlink()
    (tmp_path / "store" / "blobs").rename(tmp_path / "gone")
    with Session("elsewhere", store=tmp_path / "other", replay="offline"):
        write("a")
        assert write("x" * 100_000) == "wrote " + "x" * 100_000


# --- the gate's place ----------------------------------------------------------------------------


def test_deny_wins_over_a_recorded_result(session: Any) -> None:
    crash_after(session, lambda: write("a"))
    with session(rules=[lambda view: Verdict.deny("no")]) as opened, pytest.raises(Blocked):
        write("a")
    assert opened.stats.blocked == 1


def test_ask_halts_where_nobody_answers_but_not_on_a_hit(session: Any) -> None:
    crash_after(session, lambda: write("a"))
    asking = session(rules=[lambda view: Verdict.ask("sure?")])
    with pytest.raises(ApprovalRequired, match=r"write requires approval: sure\?"), asking:
        assert write("a") == "wrote a"
        write("b")
    assert ran == []


def test_a_trace_is_opened_by_its_content(store: JsonlStore, tmp_path: Path) -> None:
    @tool(name="replayed.long", effect="read")
    def long() -> str:
        return "x" * 100_000

    with Session("job", store=store) as session:
        long()
    runs = store.root / "runs"
    cassette = tmp_path / "any name.txt"
    cassette.write_bytes((runs / f"{session.run_id}.jsonl").read_bytes())
    (store.root / "blobs").rename(tmp_path / "blobs")
    other = JsonlStore(tmp_path / "other")
    with Session("job", store=other, replay="offline", source=cassette) as again:
        assert len(long()) == 100_000
    assert again.stats.hits == 1
    (tmp_path / "text.txt").write_text("hello\n")
    with pytest.raises(TraceCorrupt, match="not a line of a trace"):
        Session("job", store=other, replay="offline", source=tmp_path / "text.txt").__enter__()


def test_steps_that_nobody_asked_for_are_named(store: JsonlStore) -> None:
    @tool(name="replayed.look", effect="read")
    def look(thing: str) -> str:
        return thing

    @tool(name="replayed.both", effect="scope")
    def both(thing: str) -> str:
        return look(thing) + look(f"{thing} again")

    with Session("job", store=store) as recorded:
        look("a")
        both("b")
        both("c")
        with recorded.branch("left"):
            look("d")
        assert recorded.unasked() == ()
    with Session("job", store=store, replay="offline") as session:
        assert session.unasked() == tuple((recorded.run_id, step) for step in (1, 2, 5, 8))
        look("a")
        both("b")
    assert session.unasked() == tuple((recorded.run_id, step) for step in (5, 8))
