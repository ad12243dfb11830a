"""Undo in a live session: what was done is taken back, looked at, and never claimed unseen."""

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import undo_tools as files
from copying import Copy
from rollcage import (
    Diverged,
    Options,
    Session,
    SessionError,
    SessionHalted,
    Store,
    ToolMissing,
    TraceUnwritable,
    UndoIncomplete,
    UndoReport,
    Verdict,
    compensate,
    current_step,
    open_store,
    resolve_step,
    tool,
    undo_run,
)
from undo_tools import content, effects, events, put


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(tmp_path / "store")


def statuses(report: UndoReport) -> list[str]:
    return [each.status for each in report.steps]


# --- what an undo does ---------------------------------------------------------------------------


def test_everything_is_taken_back_the_newest_first(store: Store, disk: Path) -> None:
    (disk / "a").write_text("old")
    with Session("job", store=store) as session:
        files.put_file(path=str(disk / "a"), text="new")
        files.append_file(path=str(disk / "a"), text=" and more")
        files.put_file(path=str(disk / "b"), text="other")
        report = session.undo()
        assert report.complete
        assert statuses(report) == ["verified"] * 3
        assert [each.step for each in report.steps] == [3, 2, 1]
        assert str(report) == "3 effects undone"
    assert content(disk) == {"a": "old"}
    assert effects(disk)[3:] == ["restored b", "restored a", "restored a"]
    kinds = [event["event"] for event in events(store, session.run_id)]
    assert kinds.count("back") == 3
    assert (kinds.count("undoing"), kinds.count("undone")) == (1, 1)
    assert events(store, session.run_id)[-1]["status"] == "undone"


def test_up_to_a_step(store: Store, disk: Path) -> None:
    with Session("job", store=store) as session:
        put(disk, *"abc")
        report = session.undo(to=2)
        assert (report.to, [each.step for each in report.steps]) == (2, [3])
        assert content(disk) == {"a": "a", "b": "b"}
        assert [each.step for each in session.undo(to=1).steps] == [2], "what is undone stays so"
        assert [each.step for each in session.undo().steps] == [1]
        assert session.undo().steps == ()
        with pytest.raises(SessionError, match="steps count from 1"):
            session.undo(to=0)
    assert content(disk) == {}


def test_by_the_result_of_the_call(store: Store, disk: Path) -> None:
    rows = disk / "rows"
    rows.write_text("1 first\n")
    with Session("job", store=store) as session:
        assert files.add_row(path=str(rows), text="x") == 2
        assert files.add_row(path=str(rows), text="y") == 3
        assert statuses(session.undo()) == ["verified", "verified"]
    assert rows.read_text() == "1 first\n"


async def test_in_an_async_session(store: Store, disk: Path) -> None:
    async with Session("job", store=store) as session:
        await files.aput_file(path=str(disk / "a"), text="x")
        with session.turn():
            await asyncio.gather(
                *(session.acall(files.put_file, path=str(disk / n), text=n) for n in "bcd")
            )
        report = await session.aundo()
        assert statuses(report) == ["verified"] * 4
    assert content(disk) == {}


def test_a_batch_in_the_reverse_order_of_its_slots(store: Store, disk: Path) -> None:
    with Session("job", store=store) as session:
        put(disk, "first")
        with session.turn() as turn:
            for slot in (2, 0, 1):
                with turn.slot(slot):
                    put(disk, str(slot))
        session.undo()
    assert effects(disk)[4:] == ["restored 2", "restored 1", "restored 0", "restored first"]


def test_what_shares_a_state_is_taken_back_as_it_ran_whatever_its_slots(
    store: Store, disk: Path
) -> None:
    with Session("job", store=store) as session:
        with session.turn() as turn:
            for slot in (2, 0, 1):
                with turn.slot(slot):
                    files.append_file(path=str(disk / "a"), text=str(slot))
        report = session.undo()
        assert [each.step for each in report.steps] == [3, 2, 1]
        assert report.complete
    assert content(disk) == {}


def test_parallel_calls_on_one_file(store: Store, disk: Path) -> None:
    with Session("job", store=store) as session, ThreadPoolExecutor(4) as pool:
        with session.turn() as turn:

            def one(slot: int) -> None:
                with turn.slot(slot):
                    files.put_file(path=str(disk / f"{slot % 2}"), text=str(slot))

            contexts = [contextvars.copy_context() for _ in range(8)]
            list(pool.map(lambda job: job[1].run(one, job[0]), enumerate(contexts)))
        report = session.undo()
        # At once, their states may not add up; then nothing is changed, and that is said.
        assert report.complete or "conflict" in statuses(report)
        assert not report.complete or content(disk) == {}


def test_nested_calls(store: Store, disk: Path) -> None:
    with Session("job", store=store) as session:
        files.both(one=str(disk / "a"), two=str(disk / "b"))
        files.plain_outer(path=str(disk / "c"))
        report = session.undo()
        assert [(each.name, each.status) for each in report.steps] == [
            ("put_file", "verified"),
            ("plain_outer", "irreversible"),
            ("append_file", "verified"),
            ("put_file", "verified"),
        ]
        assert not report.complete
    assert content(disk) == {}


def test_the_plan_of_a_tool_stands_for_what_it_calls(store: Store, disk: Path) -> None:
    done: list[str] = []

    @tool(effect="write", name="test_undo.cancel")
    def cancel(what: str) -> None:
        done.append(what)

    def undo(args: dict[str, Any]) -> Any:
        return [compensate(cancel, what=args["what"])]

    @tool(effect="write", undo=undo)
    def inner(what: str) -> None: ...

    @tool(effect="write", undo=undo)
    def outer(what: str) -> None:
        inner(what="inner")

    with Session("job", store=store) as session:
        outer(what="outer")
        report = session.undo()
        assert [(e.name, e.status) for e in report.steps] == [("outer", "compensated")]
    assert done == ["outer"], "nothing is compensated twice"


def test_what_has_no_undo_is_listed(store: Store, disk: Path) -> None:
    with Session("job", store=store) as session:
        put(disk, "a")
        files.mail(to="ann")
        report = session.undo()
    assert statuses(report) == ["irreversible", "verified"]
    assert not report.complete
    assert "step 2 (mail)" in str(report)
    assert "declares no undo" in str(report)
    assert content(disk) == {}


def test_without_a_look_nothing_is_called_verified(store: Store) -> None:
    box = ["old"]

    @tool(effect="write", name="test_undo.take")
    def take(thing: str) -> None:
        box.remove(thing)

    @tool(effect="write", undo=lambda args: [compensate(take, thing=args["thing"])])
    def give(thing: str) -> None:
        box.append(thing)

    with Session("job", store=store) as session:
        give("new")
        report = session.undo()
    assert statuses(report) == ["compensated"]
    assert report.complete
    assert box == ["old"]


def test_a_failed_write_that_changed_something(store: Store, disk: Path) -> None:
    with Session("job", store=store) as session:
        with pytest.raises(OSError, match="full"):
            files.half_file(path=str(disk / "a"), text="half")
        assert statuses(session.undo()) == ["verified"]
    assert content(disk) == {}


def test_a_failed_write_that_changed_nothing(store: Store, disk: Path) -> None:
    @tool(effect="write", observe=files.observe, undo=files.restore)
    def refuse(path: str) -> None:
        raise OSError("no")

    with Session("job", store=store) as session:
        with pytest.raises(OSError, match="no"):
            refuse(path=str(disk / "a"))
        assert session.undo().steps == ()


def test_a_failed_write_that_nobody_looked_at(store: Store, disk: Path) -> None:
    path = str(disk / "a")

    @tool(effect="write", undo=lambda: [compensate("restore_file", path=path, text=None)])
    def half() -> None:
        Path(path).write_text("half")
        raise OSError("no")

    with Session("job", store=store, options=Options(tools=[files.restore_file])) as session:
        with pytest.raises(OSError, match="no"):
            half()
        report = session.undo()
        assert statuses(report) == ["unknown"]
        assert "it failed" in report.steps[0].reason
        assert statuses(session.undo(in_doubt="restore")) == ["compensated"]
    assert content(disk) == {}


def test_large_states_are_kept_beside_the_log(store: Store, disk: Path) -> None:
    large = "old" * 40_000
    (disk / "a").write_text(large)
    with Session("job", store=store) as session:
        files.put_file(path=str(disk / "a"), text="new")
        (step,) = [e for e in events(store, session.run_id) if e["event"] == "step"]
        (state,) = step["before"].values()
        assert state["$rollcage"] == "blob"
        assert step["plan"][0]["args"]["text"]["$rollcage"] == "blob"
    assert undo_run(store, session.run_id).complete
    assert (disk / "a").read_text() == large


@pytest.mark.parametrize("damaged", [False, True])
def test_a_large_state_that_is_lost_is_named(store: Store, disk: Path, damaged: bool) -> None:
    (disk / "a").write_text("old" * 40_000)
    with Session("job", store=store) as session:
        files.put_file(path=str(disk / "a"), text="new")
    digests = {
        value["sha256"]
        for each in events(store, session.run_id)
        for value in (each.get("before") or {}).values()
    }
    (digest,) = digests
    data = store.get("blobs", digest)
    assert data is not None
    assert store.swap("blobs", digest, data, data + b" " if damaged else None)
    said = f"can't be undone here: the large value {digest}, which an undo needs, is gone"
    with pytest.raises(SessionError, match=said):
        undo_run(store, session.run_id)
    assert (disk / "a").read_text() == "new"


# --- conflicts -----------------------------------------------------------------------------------


def test_what_somebody_else_changed_is_left_alone(store: Store, disk: Path) -> None:
    with Session("job", store=store) as session:
        put(disk, "a", "b")
        (disk / "a").write_text("theirs")
        before = content(disk), len(events(store, session.run_id))
        report = session.undo()
        assert statuses(report) == ["conflict"]
        assert report.steps[0].differs == {f"file:{disk / 'a'}": ["text"]}
        assert [left[1:] for left in report.left] == [(2, "put_file")]
        assert "not tried" in str(report)
        assert (content(disk), len(events(store, session.run_id))) == before
        (disk / "a").write_text("a")
        assert session.undo().complete, "once they agree, it goes on"
    assert content(disk) == {}


def test_a_change_between_two_of_ours_is_seen_too(store: Store, disk: Path) -> None:
    with Session("job", store=store) as session:
        files.put_file(path=str(disk / "a"), text="one")
        (disk / "a").write_text("theirs")
        files.append_file(path=str(disk / "a"), text=" two")
        report = session.undo()
        assert statuses(report) == ["conflict"]
        assert report.steps[0].step == 1
    assert content(disk) == {"a": "theirs two"}


def test_what_was_put_back_already_needs_nothing(store: Store, disk: Path) -> None:
    (disk / "a").write_text("old")
    with Session("job", store=store) as session:
        files.put_file(path=str(disk / "a"), text="one")
        files.put_file(path=str(disk / "a"), text="two")
        (disk / "a").write_text("old")
        report = session.undo()
        assert statuses(report) == ["verified", "verified"]
        assert "as it was before" in report.steps[0].reason
    assert effects(disk) == ["put a", "put a"]


def test_two_things_are_observed_under_one_name(store: Store) -> None:
    """The later one gone, the name says that the first is gone, too: a look says that it is not."""
    there: set[int] = set()

    @tool(effect="write", name="test_undo.take_n")
    def take(n: int) -> None:
        there.discard(n)

    def is_there(args: dict[str, Any]) -> dict[str, Any]:
        return {"there": args["n"] in there}

    @tool(effect="write", observe=is_there, undo=lambda args: [compensate(take, n=args["n"])])
    def put_n(n: int) -> None:
        there.add(n)

    with Session("one name", store=store) as session:
        put_n(1)
        put_n(2)
        report = session.undo()
    assert there == set()
    assert statuses(report) == ["verified", "verified"]


# --- failures ------------------------------------------------------------------------------------


@tool(effect="write", name="test_undo.jam")
def jam(path: str) -> None:
    """Bring something back, but not what was there."""
    Path(path).write_text(Path(path).read_text() + " jammed")


def test_a_compensation_that_does_not_bring_it_back(store: Store, disk: Path) -> None:
    path = str(disk / "a")

    @tool(effect="write", observe=files.observe, undo=lambda: [compensate(jam, path=path)])
    def jammed(path: str) -> None:
        Path(path).write_text("x")

    with Session("job", store=store) as session:
        put(disk, "b")
        jammed(path)
        report = session.undo()
        assert statuses(report) == ["failed"]
        assert report.steps[0].differs == {f"file:{path}": ["exists", "text"]}
        assert [left[2] for left in report.left] == ["put_file"]
        assert content(disk) == {"a": "x jammed", "b": "b"}
        assert statuses(session.undo()) == ["failed"]
        assert content(disk) == {"a": "x jammed jammed", "b": "b"}, "its calls are made anew"
        (disk / "a").unlink()
        assert session.undo().complete
    assert content(disk) == {}


def test_a_compensation_that_raises_is_tried_again(store: Store, disk: Path) -> None:
    path, broken = str(disk / "a"), [True]

    @tool(effect="write", name="test_undo.first")
    def first(path: str) -> None:
        files.note("first", path)

    @tool(effect="write", name="test_undo.second", raises=(OSError,))
    def second(path: str) -> None:
        if broken:
            raise OSError("busy")
        Path(path).unlink()
        files.note("second", path)

    def undo(args: dict[str, Any]) -> Any:
        return [compensate(first, **args), compensate(second, **args)]

    @tool(effect="write", observe=files.observe, undo=undo)
    def give(path: str) -> None:
        Path(path).write_text("x")

    with Session("job", store=store) as session:
        give(path)
        report = session.undo()
        assert statuses(report) == ["failed"]
        assert "OSError: busy" in report.steps[0].reason
        broken.clear()
        assert statuses(session.undo()) == ["verified"]
    assert effects(disk) == ["first a", "second a"], "what was done of it is not done twice"


def test_nothing_goes_on_behind_a_step_that_is_half_undone(store: Store, disk: Path) -> None:
    broken = [True]

    @tool(effect="write", name="test_undo.half", raises=(OSError,))
    def half(path: str) -> None:
        if broken:
            raise OSError("busy")
        Path(path).unlink()

    @tool(effect="write", undo=lambda args: [compensate(half, path=args["path"])])
    def give(path: str) -> None:
        Path(path).write_text("x")

    with (
        pytest.raises(UndoIncomplete, match="--undone"),
        Session("job", store=store) as one,
    ):
        give(path=str(disk / "a"))
        assert statuses(one.undo()) == ["failed"]
        put(disk, "b")
    with pytest.raises(UndoIncomplete), Session("job", store=store):
        raise AssertionError("nothing may run")
    assert content(disk) == {"a": "x"}
    (disk / "a").unlink()
    resolve_step(store, one.run_id, 1, undone=True)
    with Session("job", store=store):
        put(disk, "b")
    assert content(disk) == {"b": "b"}


def test_a_rule_that_denies_stops_it_before_anything_is_changed(store: Store, disk: Path) -> None:
    def keep_a(step: Any) -> Verdict | None:
        denied = step.name == "restore_file" and step.args["path"].endswith("a")
        return Verdict.deny("a stays") if denied else None

    with Session("job", store=store, gate=[keep_a]) as session:
        put(disk, "a", "b")
        report = session.undo()
        assert [(e.name, e.status, e.step) for e in report.steps] == [("put_file", "failed", 1)]
        assert "a stays" in report.steps[0].reason
    assert content(disk) == {"a": "a", "b": "b"}


def test_a_step_is_named_once_however_many_of_its_calls_are_denied(store: Store) -> None:
    @tool(effect="write", name="test_undo.part")
    def part(n: int) -> None:
        raise AssertionError(n)

    @tool(effect="write", undo=lambda: [compensate(part, n=1), compensate(part, n=2)])
    def both() -> None:
        pass

    def no_part(step: Any) -> Verdict | None:
        return Verdict.deny(f"not part {step.args['n']}") if step.name == "test_undo.part" else None

    with Session("job", store=store, gate=[no_part]) as session:
        both()
        (step,) = session.undo().steps
    assert (step.status, step.reason) == ("failed", "a rule denies test_undo.part: not part 1")


def test_a_tool_that_is_not_here_is_named_before_anything_is_changed(
    store: Store, disk: Path
) -> None:
    with Session("job", store=store) as session:
        put(disk, "a")
    few = Options(tools=[files.put_file])
    with Session("job", store=store, replay="continue", options=few) as session:
        put(disk, "a")
        with pytest.raises(ToolMissing, match="restore_file") as caught:
            session.undo()
        assert caught.value.tool == "restore_file"
    assert content(disk) == {"a": "a"}


def test_a_sync_undo_calls_no_async_tool(store: Store, disk: Path) -> None:
    @tool(effect="write", name="test_undo.away")
    async def away(path: str) -> None:
        await asyncio.to_thread(Path(path).unlink)

    @tool(effect="write", observe=files.observe, undo=lambda args: [compensate(away, **args)])
    def give(path: str) -> None:
        Path(path).write_text("x")

    with Session("job", store=store) as session:
        give(path=str(disk / "a"))
        with pytest.raises(SessionError, match="is async: await the undo"):
            session.undo()
        assert content(disk) == {"a": "x"}
        assert asyncio.run(session.aundo()).complete
    assert content(disk) == {}


def test_not_from_inside_of_a_tool(store: Store) -> None:
    with Session("job", store=store) as session:

        @tool(raises=(SessionError,))
        def inner() -> None:
            session.undo()

        with pytest.raises(SessionError, match="can't undo the run that it is in"):
            inner()


@pytest.mark.parametrize("replay", ["offline"])
def test_looking_back_undoes_nothing(store: Store, disk: Path, replay: Any) -> None:
    with Session("job", store=store):
        put(disk, "a")
    opened = Session("job", store=store, replay=replay)
    with opened as session, pytest.raises(SessionError, match="nothing to undo"):
        session.undo()
    assert content(disk) == {"a": "a"}


def test_a_session_that_was_stopped_undoes_nothing(store: Store, disk: Path) -> None:
    with pytest.raises(TraceUnwritable), Session("job", store=store) as session:
        put(disk, "a")
        session.halt(TraceUnwritable("the disk is full"))
        with pytest.raises(SessionHalted):
            session.undo()
    assert content(disk) == {"a": "a"}


# --- what never replays --------------------------------------------------------------------------


def test_what_was_undone_runs_again_under_a_key_of_its_own(store: Store, disk: Path) -> None:
    with pytest.raises(KeyError), Session("job", store=store) as session:
        put(disk, *"abc")
        session.undo(to=1)
        raise KeyError
    with Session("job", store=store) as session:
        put(disk, *"abc")
        assert (session.stats.hits, session.stats.misses) == (1, 2)
    assert content(disk) == {"a": "a", "b": "b", "c": "c"}
    lines = (disk / "effects").read_text().splitlines()
    keys = [line.split()[0] for line in lines if " put " in line]
    assert len(set(keys)) == 5, "a service must not take the second put of b for the first"
    with Session("job", store=store, replay="offline") as session:
        put(disk, *"abc")
        assert session.stats.hits == 3


def test_reads_behind_the_save_point_look_anew(store: Store, disk: Path) -> None:
    a, b = str(disk / "a"), str(disk / "b")

    def work() -> list[Any]:
        return [
            files.put_file(path=a, text="x"), files.read_file(path=a),
            files.put_file(path=b, text="y"), files.read_file(path=b),
        ]  # fmt: skip

    with pytest.raises(KeyError), Session("job", store=store) as session:
        work()
        session.undo(to=1)
        raise KeyError
    with Session("job", store=store) as session:
        assert work() == [1, "x", 1, "y"]
        assert (session.stats.hits, session.stats.misses) == (1, 3)


def test_what_could_not_be_undone_is_an_orphan_until_it_is_accepted(
    store: Store, disk: Path
) -> None:
    with pytest.raises(KeyError), Session("job", store=store) as session:
        put(disk, "a")
        files.mail(to="ann")
        assert statuses(session.undo()) == ["irreversible", "verified"]
        raise KeyError
    with pytest.raises(Diverged, match="mail") as caught, Session("job", store=store):
        put(disk, "a")
    assert [step for _, step in caught.value.orphans] == [2]
    report = undo_run(store, session.run_id, accept=[2])
    assert statuses(report) == ["accepted"]
    with Session("job", store=store):
        put(disk, "a")


def test_a_session_goes_on_after_an_undo(store: Store, disk: Path) -> None:
    def work(session: Session) -> list[Any]:
        return [
            files.put_file(path=str(disk / "b"), text="y"),
            files.read_file(path=str(disk / "b")),
        ]

    with pytest.raises(KeyError), Session("job", store=store) as session:
        put(disk, "a")
        assert session.undo().complete
        work(session)
        raise KeyError
    with Session("job", store=store) as session:
        assert work(session) == [1, "y"], "what came after the undo stands"
        assert session.stats.hits == 2
        assert len(session.undo().steps) == 1
    assert content(disk) == {}


def test_in_the_middle_of_open_blocks(store: Store, disk: Path) -> None:
    def work(session: Session, *, undoes: bool) -> None:
        put(disk, "a")
        with session.branch("one"):
            put(disk, "b")
            with session.branch("two"):
                put(disk, "c", "d")
                if undoes:
                    assert len(session.undo(to=5).steps) == 1
                put(disk, "e")
        put(disk, "f")

    with pytest.raises(KeyError), Session("job", store=store) as session:
        work(session, undoes=True)
        assert sorted(content(disk)) == [*"abcef"]
        raise KeyError
    with Session("job", store=store, replay="offline") as session:
        put(disk, "a")
        with session.branch("one"):
            put(disk, "b")
            with session.branch("two"):
                put(disk, "c", "e")
        put(disk, "f")


def test_an_inner_session_undoes_its_own(store: Store, disk: Path) -> None:
    with Session("outer", store=store):
        put(disk, "a")
        with Session("inner", store=store) as inner:
            put(disk, "b", "c")
            assert [each.name for each in inner.undo().steps] == ["put_file"] * 2
            put(disk, "d")
        put(disk, "e")
    assert sorted(content(disk)) == ["a", "d", "e"]
    with Session("outer", store=store, replay="offline"):
        put(disk, "a")
        with Session("inner", store=store):
            put(disk, "d")
        put(disk, "e")


# --- replayed and borrowed steps -----------------------------------------------------------------


def test_replayed_steps_are_taken_back(store: Store, disk: Path) -> None:
    with pytest.raises(KeyError), Session("job", store=store):
        put(disk, *"abc")
        raise KeyError
    with Session("job", store=store) as session:
        put(disk, "a")
        assert [each.step for each in session.undo().steps] == [3, 2, 1]
        put(disk, "d")
    assert content(disk) == {"d": "d"}


@pytest.mark.parametrize("forks", [False, True])
def test_what_another_run_did_is_not_taken_back(store: Store, disk: Path, forks: bool) -> None:
    with Session("job", store=store) as first:
        put(disk, "a")
    how: dict[str, Any] = {"source": first.run_id}
    if forks:
        how = {"stages": [Copy(first.run_id, live=True)]}
    with Session("job", store=store, **how) as session:
        put(disk, "a", "b")
        assert [each.name for each in session.undo().steps] == ["put_file"]
    assert content(disk) == {"a": "a"}


# --- on_divergence="undo" ------------------------------------------------------------------------


def test_a_new_write_takes_back_what_it_leaves_behind(store: Store, disk: Path) -> None:
    with pytest.raises(KeyError), Session("job", store=store):
        put(disk, *"abc")
        raise KeyError
    with Session("job", store=store, on_divergence="undo") as session:
        put(disk, "a")
        files.put_file(path=str(disk / "B"), text="reworded")
        assert session.stats.hits == 1
    assert content(disk) == {"a": "a", "B": "reworded"}
    back = [e["step"] for e in events(store, session.run_id) if e["event"] == "back"]
    assert back == [3, 2]
    with Session("job", store=store, replay="offline"):
        put(disk, "a")
        files.put_file(path=str(disk / "B"), text="reworded")


def test_a_divergence_that_can_not_be_undone_halts(store: Store, disk: Path) -> None:
    with pytest.raises(KeyError), Session("job", store=store):
        put(disk, "a")
        files.mail(to="ann")
        raise KeyError
    again = Session("job", store=store, on_divergence="undo")
    with pytest.raises(Diverged, match="can't be taken back") as caught, again as session:
        put(disk, "b")
    assert content(disk) == {"a": "a"}, "nothing was touched"
    assert caught.value.orphans == ((session.run_id, 2),)
    resolve_step(store, session.run_id, 2, undone=True)
    with Session("job", store=store, on_divergence="undo"):
        put(disk, "b")
    assert content(disk) == {"b": "b"}


def test_a_divergence_whose_states_were_changed_halts(store: Store, disk: Path) -> None:
    with pytest.raises(KeyError), Session("job", store=store):
        put(disk, "a", "b")
        raise KeyError
    (disk / "a").write_text("theirs")
    with (
        pytest.raises(Diverged, match="conflict"),
        Session("job", store=store, on_divergence="undo"),
    ):
        put(disk, "c")
    assert content(disk) == {"a": "theirs", "b": "b"}


async def test_an_async_divergence_calls_async_tools(store: Store) -> None:
    box: list[str] = []

    @tool(effect="write", name="test_undo.atake")
    async def take(thing: str) -> None:
        await asyncio.sleep(0)
        box.remove(thing)

    @tool(effect="write", undo=lambda args: [compensate(take, thing=args["thing"])])
    async def give(thing: str) -> None:
        box.append(thing)

    with pytest.raises(KeyError):
        async with Session("job", store=store):
            await give("a")
            raise KeyError
    async with Session("job", store=store, on_divergence="undo"):
        await give("b")
    assert box == ["b"]


def cells() -> tuple[dict[str, int], Callable[..., Any]]:
    """A board of cells, and what writes one: they are observed, so that conflicts are seen."""
    board: dict[str, int] = {}

    def observe(args: dict[str, Any]) -> dict[str, Any]:
        return {args["cell"]: board.get(args["cell"])}

    @tool(effect="write", name="test_undo.restore_cell", idempotent=True)
    def restore(cell: str, value: int | None) -> None:
        board.pop(cell, None) if value is None else board.update({cell: value})

    def undo(args: dict[str, Any], before: dict[str, Any]) -> Any:
        return [compensate(restore, cell=args["cell"], value=before[args["cell"]])]

    @tool(effect="write", name="test_undo.write_cell", observe=observe, undo=undo)
    def write(cell: str, value: int) -> int:
        board[cell] = value
        return value

    kept: Any = write
    kept.kept = restore  # tools are known while they live
    return board, write


def test_a_sibling_that_is_dropped_is_taken_back_before_its_state_is_written(store: Store) -> None:
    """A turn drops `c = 9` and writes `c = 12`: taken back late, it would wipe the new value."""
    board, write = cells()

    def job(session: Session, value: int) -> None:
        with session.turn():
            write("a", 1)
            write("c", value)
        write("d", 4)

    with pytest.raises(KeyError), Session("job", store=store) as session:
        job(session, 9)
        raise KeyError
    with Session("job", store=store, on_divergence="undo") as session:
        job(session, 12)
    assert board == {"a": 1, "c": 12, "d": 4}
    with Session("job", store=store, replay="continue") as session:
        job(session, 12)
        assert session.stats.misses == 0


def test_a_sibling_that_another_one_has_overwritten_is_not_taken_back(store: Store) -> None:
    board, write = cells()
    with pytest.raises(KeyError), Session("job", store=store) as session:
        with session.turn():
            write("c", 9)
            write("c", 10)
        raise KeyError
    again = Session("job", store=store, on_divergence="undo")
    with pytest.raises(Diverged, match="conflict"), again as session, session.turn():
        write("c", 10)
        write("c", 12)
    assert board == {"c": 10}, "nothing was touched"


def test_overlapping_divergences_undo_in_turn(store: Store) -> None:
    board, write = cells()
    with pytest.raises(KeyError), Session("job", store=store):
        for n in range(6):
            write(f"old{n}", n)
        raise KeyError

    async def job() -> None:
        async with Session("job", store=store, on_divergence="undo") as session:
            await asyncio.gather(*(session.acall(write, cell=f"new{n}", value=n) for n in range(4)))

    asyncio.run(job())
    assert board == {f"new{n}": n for n in range(4)}


def test_what_a_compensating_call_does_itself_is_no_effect_of_the_run(store: Store) -> None:
    box: list[str] = []

    @tool(effect="write", name="test_undo.log_it")
    def log_it(thing: str) -> None:
        assert current_step() is not None

    @tool(effect="write", name="test_undo.take_logged")
    def take(thing: str) -> None:
        log_it(thing=thing)
        box.remove(thing)

    @tool(effect="write", undo=lambda args: [compensate(take, thing=args["thing"])])
    def give(thing: str) -> None:
        box.append(thing)

    with pytest.raises(KeyError), Session("job", store=store) as session:
        give("a")
        assert session.undo().complete
        assert session.undo().steps == ()
        raise KeyError
    with Session("job", store=store) as session:
        give("b")
    assert events(store, session.run_id)[-1]["status"] == "ok"
    assert box == ["b"]


# --- tools of one name ---------------------------------------------------------------------------


def hotel(told: list[str]) -> tuple[Any, Any]:
    """Return a tool with its own compensating tool, and one with its own state."""

    @tool(name="twice.cancel", effect="write", idempotent=True)
    def cancel(name: str) -> None:
        told.append(f"hotel -{name}")

    @tool(name="twice.book", undo=lambda args: [compensate(cancel, **args)])
    def book(name: str) -> None:
        told.append(f"hotel +{name}")

    def state(_: Any) -> dict[str, list[str]]:
        return {"told": [each for each in told if each.startswith("hotel")]}

    @tool(name="twice.seen", observe=state, undo=lambda args: [compensate(twice_restored, **args)])
    def seen(name: str) -> None:
        told.append(f"hotel +{name}")

    return book, seen


def flight(told: list[str]) -> tuple[Any, Any]:
    """Return other tools of the same names."""

    @tool(name="twice.cancel", effect="write", idempotent=True)
    def cancel(name: str) -> None:
        told.append(f"flight -{name}")

    @tool(name="twice.book", undo=lambda args: [compensate(cancel, **args)])
    def book(name: str) -> None:
        told.append(f"flight +{name}")

    def state(_: Any) -> dict[str, list[str]]:
        return {"told": [each for each in told if each.startswith("flight")]}

    @tool(name="twice.seen", observe=state, undo=lambda args: [compensate(twice_restored, **args)])
    def seen(name: str) -> None:
        told.append(f"flight +{name}")

    return book, seen


@tool(name="twice.restore", effect="write", idempotent=True)
def twice_restored(name: str) -> None:
    """Restore nothing."""


@pytest.mark.parametrize("at", [0, 1], ids=["plans", "states"])
@pytest.mark.parametrize("is_nested", [False, True])
def test_no_step_is_undone_by_another_tool_of_its_name(
    store: Store, at: int, is_nested: bool
) -> None:
    told: list[str] = []
    one, other = hotel(told)[at], flight(told)[at]
    with Session("job", store=store) as session:
        one(name="a")
        if is_nested:
            with Session("inner", store=store):
                other(name="b")
        else:
            other(name="b")
        with pytest.raises(ToolMissing, match="2 tools named"):
            session.undo()
    assert told == ["hotel +a", "flight +b"]


def test_a_factory_that_is_called_again_makes_the_same_tools(store: Store) -> None:
    told: list[str] = []
    with Session("job", store=store) as session:
        for name in ("a", "b"):
            book, _ = hotel(told)
            book(name=name)
        assert session.undo().complete
    assert told == ["hotel +a", "hotel +b", "hotel -b", "hotel -a"]


def test_an_undo_knows_the_tools_that_were_given_to_a_nested_session(store: Store) -> None:
    told: list[str] = []

    @tool(name="given.cancel", effect="write", idempotent=True)
    def cancel(name: str) -> None:
        told.append(f"-{name}")

    @tool(name="given.book", undo=lambda args: [compensate("given.cancel", **args)])
    def book(name: str) -> None:
        told.append(f"+{name}")

    with Session("job", store=store, options=Options(tools=[])) as session:
        with Session("inner", store=store, options=Options(tools=[cancel, book])):
            book(name="a")
        assert session.undo().complete
    assert told == ["+a", "-a"]
