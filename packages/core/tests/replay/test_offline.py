"""A look at a run: what is recorded answers, nothing is written, and a report is left."""

import asyncio
import contextlib
import itertools
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from rollcage import Halt, Session, tool
from rollcage.contract.contract import Contract
from rollcage.errors import (
    Blocked,
    Diverged,
    NotReplayable,
    OutputDrift,
    ReplayMiss,
    SessionHalted,
    SourceMissing,
    UnknownOutcome,
)
from rollcage.gate.verdict import StepView, Verdict
from rollcage.trace.folder import Folder

ran: list[str] = []
sight: list[Any] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    ran.clear()
    sight[:] = ["old"]


@tool(effect="write", name="off.write")
def write(what: str) -> str:
    ran.append(what)
    return f"wrote {what}"


@tool(effect="read", name="off.look")
def look(at: str = "all") -> Any:
    ran.append(f"look {at}")
    if isinstance(sight[0], Exception):
        raise sight[0]
    return sight[0]


@tool(effect="pure", name="off.double")
def double(n: int) -> int:
    ran.append("double")
    return 2 * n


@tool(effect="read", name="off.both")
def both() -> list[Any]:
    return [look("inner"), double(2)]


@tool(effect="read", name="off.chunks")
def chunks() -> Iterator[Any]:
    yield from ("a", sight[0])


@tool(effect="read", name="off.achunks")
async def achunks() -> AsyncIterator[Any]:
    for each in ("a", sight[0]):
        yield each


def lines(folder: Path, run: str) -> list[bytes]:
    return Folder(folder).read(run)


# --- offline -------------------------------------------------------------------------------------


def test_a_miss_names_the_nearest_call(tmp_path: Path) -> None:
    with Session("job", store=tmp_path) as first:
        write("a")
        look("left")
    before = lines(tmp_path, first.run_id)
    session = Session("job", store=tmp_path, replay="offline")
    with pytest.raises(ReplayMiss) as missed, session:
        write("a")
        look("right")
    assert "the nearest recorded call is step 2 (off.look)" in str(missed.value)
    assert "argument 'at': recorded 'left', asked for 'right'" in str(missed.value)
    report = session.report
    assert report is not None
    assert (report.run, report.halted) == (first.run_id, str(missed.value))
    assert ([each.step for each in report.steps], report.unasked) == ([1], (2,))
    assert ran == ["a", "look left"]
    assert lines(tmp_path, first.run_id) == before, "nothing was written"


def test_the_nearest_call_of_another_tool_or_place(tmp_path: Path) -> None:
    with Session("job", store=tmp_path):
        write("a")
    elsewhere = "the tool: recorded 'off.write', asked for 'off.look'"
    with (
        pytest.raises(ReplayMiss, match=elsewhere),
        Session("job", store=tmp_path, replay="offline"),
    ):
        look()
    with (
        pytest.raises(ReplayMiss, match="already replayed"),
        Session("job", store=tmp_path, replay="offline"),
    ):
        write("a")
        write("a")


def test_a_halted_session_runs_nothing_whoever_swallows_it(tmp_path: Path) -> None:
    with Session("job", store=tmp_path):
        look()
    ran.clear()
    halted = Session("job", store=tmp_path, replay="offline")
    with pytest.raises(ReplayMiss), halted:
        with pytest.raises(ReplayMiss):
            write("a")
        with pytest.raises(SessionHalted) as second:
            look()
        assert isinstance(second.value.__cause__, ReplayMiss)
    assert ran == []


@pytest.mark.parametrize(("asked", "said"), [(1, "the one recorded"), (3, "all 3 recorded")])
def test_a_used_up_model_answer_says_so(tmp_path: Path, asked: int, said: str) -> None:
    def model(ask: str) -> str:
        return f"to {ask}"

    contract = Contract.of(model)

    def call(session: Session, what: str) -> Any:
        return session.run_call(contract, {"ask": what}, model, kind="model")

    with Session("job", store=tmp_path) as session:
        for _ in range(asked):
            call(session, "a")
        call(session, "b")
    with (
        pytest.raises(ReplayMiss, match=f"{said} answer.* to this request") as caught,
        Session("job", store=tmp_path, replay="offline") as again,
    ):
        assert [call(again, "a") for _ in range(asked)] == ["to a"] * asked
        call(again, "a")
    assert "nearest" not in str(caught.value)


def test_recorded_blocks_count_and_todays_gate_is_told(tmp_path: Path) -> None:
    def no_b(view: StepView) -> Verdict | None:
        return Verdict.deny("not b", code="no_b") if view.args == {"what": "b"} else None

    def no_a(view: StepView) -> Verdict | None:
        return Verdict.deny("not a") if view.args == {"what": "a"} else None

    with Session("job", store=tmp_path, gate=[no_b]):
        write("a")
        with pytest.raises(Blocked):
            write("b")
    ran.clear()
    looked = Session("job", store=tmp_path, replay="offline", gate=[no_a])
    with looked:
        assert write("a") == "wrote a"
        with pytest.raises(Blocked, match="not b") as blocked:
            write("b")
    assert blocked.value.verdict_code == "no_b"
    assert ran == []
    report = looked.report
    assert report is not None
    assert report.blocked == 1
    (checked,) = report.steps
    assert checked.verdict is not None
    assert checked.verdict.reason == "not a"


def test_a_block_before_the_same_call_comes_first(tmp_path: Path) -> None:
    is_open: list[bool] = []

    def gate(view: StepView) -> Verdict | None:
        return None if is_open else Verdict.deny("closed")

    def run(**how: Any) -> None:
        with Session("job", store=tmp_path, **how):
            for _ in range(2):
                with pytest.raises(Blocked):
                    write("a")
            is_open.append(True)
            assert write("a") == "wrote a"

    run(gate=[gate])
    run(replay="offline")
    run(replay="verify")
    assert ran == ["a"]


def test_an_approval_is_not_asked_for_again(tmp_path: Path) -> None:
    def ask(view: StepView) -> Verdict | None:
        return Verdict.ask("is it right?")

    with Session("job", store=tmp_path):
        write("a")
    for replay in ("offline", "verify"):
        mode: Any = replay
        with Session("job", store=tmp_path, replay=mode, gate=[ask]) as session:
            write("a")
        assert session.report is not None
        (checked,) = session.report.steps
        assert checked.verdict is not None
        assert checked.verdict.decision == "ask"


def test_an_unknown_write_is_told_and_others_answer(tmp_path: Path) -> None:
    @tool(effect="write", name="off.cut")
    def cut() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), Session("job", store=tmp_path):
        look()
        cut()
    with Session("job", store=tmp_path, replay="offline"):
        with pytest.raises(UnknownOutcome):
            cut()
        assert look() == "old"


def test_a_run_of_another_store_or_a_file_is_read(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    large = "x" * 100_000
    sight[:] = [large]
    with Session("job", store=there) as first:
        assert look() == large
    path = next(there.rglob("*.jsonl"))
    apart = tmp_path / "apart.jsonl"
    shutil.copy(path, apart)
    sources: list[Any] = [(there, first.run_id), (str(there), first.run_id), path, str(path)]
    for source in sources:
        with Session("job", store=here, source=source, replay="offline") as session:
            assert look() == large
        assert session.run_id == first.run_id
    assert not here.exists(), "nothing was made"
    with Session("job", store=here, source=(there, first.run_id)) as live:
        assert look() == large
        write("b")
    assert live.stats.hits == 1
    shutil.rmtree(there)
    with Session("job", store=here, replay="offline"):  # its large value came along
        assert look() == large
    with pytest.raises(SourceMissing, match=first.run_id):
        Session("job", store=here, source=(there, first.run_id), replay="offline").__enter__()
    assert ran == ["look all", "b"]


# --- on_miss, source -----------------------------------------------------------------------------


@pytest.mark.parametrize(("on_miss", "halts"), [("fail", True), ("error_result", False)])
def test_on_miss_of_a_tool(tmp_path: Path, on_miss: Any, halts: bool) -> None:
    @tool(effect="read", on_miss=on_miss, name="off.strict")
    def strict(x: int) -> int:
        ran.append("strict")
        return x

    with pytest.raises(ValueError, match="late"), Session("job", store=tmp_path):
        strict(1)
        raise ValueError("late")
    resumed = Session("job", store=tmp_path)
    try:
        with resumed:
            with pytest.raises(ReplayMiss, match="argument 'x': recorded 1, asked for 2"):
                strict(2)
            assert (resumed.halted is not None) is halts
    except ReplayMiss:
        assert halts
    assert ran == ["strict"]


@pytest.mark.filterwarnings("ignore::rollcage.errors.NotReplayableWarning")
def test_what_cannot_come_back_runs_where_its_tool_says_so(tmp_path: Path) -> None:
    def give() -> Any:
        ran.append("give")
        return object()

    halting = tool(effect="write", name="off.give")(give)
    living = tool(effect="write", name="off.give", on_miss="live")(give)
    with pytest.raises(ValueError, match="late"), Session("job", store=tmp_path):
        halting()
        raise ValueError("late")
    with (
        pytest.raises(NotReplayable, match="was performed"),
        Session("job", store=tmp_path, replay="resume"),
    ):
        halting()
    with pytest.raises(NotReplayable), Session("job", store=tmp_path, replay="offline"):
        living()
    assert ran == ["give"], "an attempt without a log performs no write"
    with Session("job", store=tmp_path):
        living()
    assert ran == ["give", "give"]


def test_a_live_source_is_never_answered_from_the_recording(tmp_path: Path) -> None:
    @tool(effect="read", source="live", name="off.clock")
    def clock() -> int:
        ran.append("clock")
        return len(ran)

    with pytest.raises(ValueError, match="late"), Session("job", store=tmp_path):
        assert clock() == 1
        raise ValueError("late")
    before = None
    for replay in ("auto", "offline", "verify"):
        mode: Any = replay
        with Session("job", store=tmp_path, replay=mode) as session:
            clock()
        now = lines(tmp_path, session.run_id)
        assert before in (None, now)
        before = now
    assert ran == ["clock"] * 4


def test_a_live_tool_obeys_the_gate_offline(tmp_path: Path) -> None:
    @tool(effect="read", source="live", name="off.clock2")
    def clock() -> int:
        ran.append("clock")
        return len(ran)

    with Session("job", store=tmp_path):
        clock()
    deny = [lambda view: Verdict.deny("closed")]
    looked = Session("job", store=tmp_path, replay="offline", gate=deny)
    with looked, pytest.raises(Blocked, match="closed"):
        clock()
    assert ran == ["clock"]


# --- a tool that has become another --------------------------------------------------------------


def test_a_write_of_another_version_halts(tmp_path: Path) -> None:
    def send(to: str) -> str:
        ran.append(to)
        return to

    with pytest.raises(ValueError, match="late"), Session("job", store=tmp_path):
        tool(version="1", name="off.send")(send)(to="ann")
        raise ValueError("late")
    for how in ("halt", "warn", "undo"):
        mode: Any = how
        with (
            pytest.raises(NotReplayable, match="as version '1'; the tool is now '2'"),
            Session("job", store=tmp_path, on_divergence=mode),
        ):
            tool(version="2", name="off.send")(send)(to="ann")
    assert ran == ["ann"]
    with Session("job", store=tmp_path, on_divergence="warn"):
        tool(version="2", name="off.send", on_miss="live")(send)(to="ann")
    assert ran == ["ann", "ann"]


@pytest.mark.parametrize(
    ("was", "now"),
    [("write", "read"), ("write", "pure"), ("read", "write"), ("pure", "write")],
)
def test_a_tool_that_declares_another_effect_halts(tmp_path: Path, was: Any, now: Any) -> None:
    def act() -> str:
        ran.append("act")
        return "done"

    with pytest.raises(ValueError, match="late"), Session("job", store=tmp_path):
        tool(effect=was, name="off.act")(act)()
        raise ValueError("late")
    with (
        pytest.raises(NotReplayable, match=f"with the effect '{was}'; the tool now declares"),
        Session("job", store=tmp_path),
    ):
        tool(effect=now, name="off.act")(act)()
    assert ran == ["act"]
    with Session("job", store=tmp_path, on_divergence="warn"):
        tool(effect=now, name="off.act", on_miss="live")(act)()
    assert ran == ["act", "act"]


# --- verify --------------------------------------------------------------------------------------


def drifts(session: Session) -> dict[str, str]:
    assert session.report is not None
    return {f"{each.step} {each.name}": each.drift for each in session.report.steps}


def test_verify_runs_reads_again_and_reports_drift(tmp_path: Path) -> None:
    def program(**how: Any) -> Session:
        with Session("job", store=tmp_path, **how) as session:
            assert look("early") == "old"
            write("a")
            assert look("late") == "old"
            assert double(1) == 2
        return session

    first = program()
    before = lines(tmp_path, first.run_id)
    sight[:] = ["new"]
    ran.clear()
    checked = program(replay="verify")
    assert drifts(checked) == {
        "1 off.look": "not comparable: recorded writes came after this read",
        "2 off.write": "",
        "3 off.look": "it now gives another value",
        "4 off.double": "",
    }
    assert checked.report is not None
    assert [each.step for each in checked.report.drifted] == [3]
    assert ran == ["look late", "double"]
    assert lines(tmp_path, first.run_id) == before, "nothing was written"
    assert (checked.stats.hits, checked.stats.misses) == (4, 0)


def test_verify_compares_errors_and_kinds(tmp_path: Path) -> None:
    def program(**how: Any) -> str:
        session = Session("job", store=tmp_path, **how)
        with session, contextlib.suppress(ValueError):
            look()
        return "" if session.report is None else session.report.steps[0].drift

    sight[:] = [1]
    program()
    for now, said in (
        (1, ""),
        (True, "it now gives another value"),
        (1.0, "it now gives another value"),
        (ValueError("gone"), "it now raises ValueError: gone"),
    ):
        sight[:] = [now]
        assert program(replay="verify") == said
    sight[:] = [ValueError("gone")]
    program(replay="off")
    assert program(replay="verify") == ""
    sight[:] = [3]
    assert program(replay="verify") == "it now gives another value"


def test_verify_compares_how_an_output_breaks_its_contract(tmp_path: Path) -> None:
    @tool(effect="read", returns=int, name="off.count")
    def count() -> int:
        return cast("int", sight[0])

    def program(name: str, **how: Any) -> str:
        session = Session(name, store=tmp_path, **how)
        with session, contextlib.suppress(OutputDrift):
            count()
        return "" if session.report is None else session.report.steps[0].drift

    sight[:] = ["<html>"]
    program("broken")
    assert program("broken", replay="verify") == ""
    sight[:] = [3]
    assert program("broken", replay="verify") == "its output now keeps its contract"
    program("sound")
    sight[:] = [None]
    assert "now breaks its contract (output_wrong_type" in program("sound", replay="verify")


def test_verify_runs_what_a_body_calls_against_the_record(tmp_path: Path) -> None:
    def program(**how: Any) -> Session:
        with Session("job", store=tmp_path, **how) as session:
            with session.branch("side"), session.transaction():
                assert both() == ["old", 4]
            session.call(double, n=1)
        return session

    program()
    sight[:] = ["new"]
    checked = program(replay="verify")
    assert drifts(checked) == {
        "3 off.both": "",  # what it calls is answered, so it gives the same
        "4 off.look": "it now gives another value",
        "5 off.double": "",
        "6 off.double": "",
    }


def test_verify_compares_streams_and_large_values(tmp_path: Path) -> None:
    def at(value: Any) -> None:
        sight[:] = [value]

    with Session("job", store=tmp_path):
        assert list(chunks()) == ["a", "old"]
        at("x" * 10**5)
        look()
    for now, said in (("x" * 10**5, ""), ("x" * (10**5 - 1), "it now gives another value")):
        at("old")
        with Session("job", store=tmp_path, replay="verify") as session:
            assert list(chunks()) == ["a", "old"]
            at(now)
            assert look() == "x" * 10**5
        assert [*drifts(session).values()] == ["", said]
    at("other")
    with Session("job", store=tmp_path, replay="verify") as session:
        assert list(chunks()) == ["a", "old"]
    assert [*drifts(session).values()] == ["it now gives another value"]


async def test_verify_is_the_same_async(tmp_path: Path) -> None:
    @tool(effect="read", name="off.alook")
    async def alook(at: str) -> Any:
        await asyncio.sleep(0)
        return [look(at), sight[0]]

    async def program(**how: Any) -> Session:
        async with Session("job", store=tmp_path, **how) as session:
            async with session.transaction():
                got = await asyncio.gather(*(alook(each) for each in "ab"), session.acall(look))
            assert got == [["old", "old"], ["old", "old"], "old"]
            assert [each async for each in achunks()] == ["a", "old"]
        return session

    await program()
    sight[:] = ["new"]
    checked = await program(replay="verify")
    by_name: dict[str, set[str]] = {}
    for key, drift in drifts(checked).items():
        by_name.setdefault(key.partition(" ")[2], set()).add(drift)
    assert by_name.keys() == {"off.alook", "off.look", "off.achunks"}
    assert set().union(*by_name.values()) == {"it now gives another value"}


def test_blocks_in_a_session_inside_of_another_count(tmp_path: Path) -> None:
    def no_b(view: StepView) -> Verdict | None:
        return Verdict.deny("not b") if view.args == {"what": "b"} else None

    def program(**how: Any) -> None:
        rules: Any = [] if "replay" in how else [no_b]
        with Session("job", store=tmp_path, **how):
            write("a")
            with Session("inner", store=tmp_path, gate=rules), pytest.raises(Blocked):
                write("b")

    program()
    program(replay="offline")
    program(replay="verify")
    assert ran == ["a"]


@pytest.mark.parametrize("order", [*itertools.permutations(range(3))])
@pytest.mark.parametrize("replay", ["offline", "verify"])
def test_reads_of_many_turns_are_asked_for_in_one(
    tmp_path: Path, order: tuple[int, ...], replay: Any
) -> None:
    """Each was the first call of its own turn; they come in any order, with slots of their own."""

    @tool(name="offline.send", effect="write")
    def send(text: str) -> str:
        return f"sent {text}"

    @tool(name="offline.look", effect="read")
    def look(place: str) -> str:
        return f"saw {place}"

    with Session("job", store=tmp_path) as session:
        calls: list[Callable[[], str]] = [partial(send, "a")]
        calls += [partial(look, each) for each in "xyx"]
        calls.append(partial(send, "b"))
        for call in calls:
            with session.turn() as turn, turn.slot(0):
                call()
    with Session("job", store=tmp_path, replay=replay) as again:
        with again.turn() as turn, turn.slot(0):
            send("a")
        with again.turn() as turn:
            for slot in order:
                with turn.slot(slot):
                    assert look("xyx"[slot]) == f"saw {'xyx'[slot]}"
        with again.turn() as turn, turn.slot(0):
            send("b")
    assert again.stats.hits == 5


def test_a_divergence_names_the_nearest_call(tmp_path: Path) -> None:
    @tool(effect="write", name="nearest.put")
    def put(thing: str) -> None: ...

    with pytest.raises(KeyError), Session("letters", store=tmp_path):
        put("letter one")
        put("letter two")
        raise KeyError
    with pytest.raises(Diverged) as diverged, Session("letters", store=tmp_path):
        put("letter ONE")
    assert [step for _, step in diverged.value.orphans] == [1, 2]
    assert "it differs in argument 'thing': recorded 'letter one'" in str(diverged.value)


@pytest.mark.parametrize("error", [Halt("over"), SessionHalted("over")], ids=["halt", "halted"])
def test_a_halt_of_what_verify_runs_again_stays_itself(tmp_path: Path, error: Exception) -> None:
    fails: list[Exception] = []

    @tool(effect="read")
    def look() -> str:
        if fails:
            raise fails[0]
        return "seen"

    with Session("job", store=tmp_path):
        look()
    fails.append(error)
    with pytest.raises(type(error), match="over"), Session("job", store=tmp_path, replay="verify"):
        look()
