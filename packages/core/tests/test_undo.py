"""Undo in a live session: what was done is undone, looked at, and never claimed unseen."""

import asyncio
import contextvars
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from rollcage import (
    Approval,
    Diverged,
    SessionError,
    SessionHalted,
    ToolMissing,
    TraceUnwritable,
    UndoneStep,
    UndoReport,
    Verdict,
    compensate,
    tool,
)
from rollcage.replay.path import Entry
from rollcage.replay.recording import Recording, recording_of
from rollcage.session import lineage
from rollcage.session.session import Session
from rollcage.store import JsonlStore

Events = Callable[[str], list[dict[str, Any]]]


def content(disk: Path) -> dict[str, str]:
    """The texts of the files in it."""
    return {p.name: p.read_text() for p in disk.iterdir() if p.name != "effects"}


def effects(disk: Path) -> list[str]:
    """What was done to them, in order."""
    path = disk / "effects"
    return (
        [line.split(" ", 1)[1] for line in path.read_text().splitlines()] if path.exists() else []
    )


def statuses(report: UndoReport) -> list[str]:
    return [each.status for each in report.steps]


# --- what an undo does ---------------------------------------------------------------------------


def test_everything_is_taken_back_the_newest_first(
    store: JsonlStore, files: Any, disk: Path, events: Events
) -> None:
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
    kinds = [event["event"] for event in events(session.run_id)]
    assert kinds.count("undo.started") == kinds.count("undo.finished") == 3
    made = [e for e in events(session.run_id) if e["event"] == "step.started" and "undoes" in e]
    assert [each["undoes"] for each in made] == [[session.run_id, n] for n in (3, 2, 1)]


def test_up_to_a_step(store: JsonlStore, files: Any, disk: Path) -> None:
    with Session("job", store=store) as session:
        for name in "abc":
            files.put_file(path=str(disk / name), text=name)
        report = session.undo(to=2)
        assert (report.to, [each.step for each in report.steps]) == (2, [3])
        assert content(disk) == {"a": "a", "b": "b"}
        assert [each.step for each in session.undo(to=1).steps] == [2], "what is undone stays so"
        assert [each.step for each in session.undo().steps] == [1]
        assert session.undo().steps == ()
    assert content(disk) == {}


def test_by_the_result_of_the_call(store: JsonlStore, files: Any, disk: Path) -> None:
    rows = disk / "rows"
    rows.write_text("1 first\n")
    with Session("job", store=store) as session:
        assert files.add_row(path=str(rows), text="x") == 2
        assert files.add_row(path=str(rows), text="y") == 3
        assert statuses(session.undo()) == ["verified", "verified"]
    assert rows.read_text() == "1 first\n"


async def test_in_an_async_session(store: JsonlStore, files: Any, disk: Path) -> None:
    async with Session("job", store=store) as session:
        await files.aput_file(path=str(disk / "a"), text="x")
        with session.turn():
            await asyncio.gather(
                *(session.acall(files.put_file, path=str(disk / n), text=n) for n in "bcd")
            )
        report = await session.aundo()
        assert statuses(report) == ["verified"] * 4
    assert content(disk) == {}


def test_a_batch_in_the_reverse_order_of_its_slots(
    store: JsonlStore, files: Any, disk: Path
) -> None:
    with Session("job", store=store) as session:
        files.put_file(path=str(disk / "first"), text="x")
        with session.turn() as turn:
            for slot in (2, 0, 1):
                with turn.slot(slot):
                    files.put_file(path=str(disk / str(slot)), text="x")
        session.undo()
    assert effects(disk)[4:] == ["restored 2", "restored 1", "restored 0", "restored first"]


def test_parallel_calls_on_one_file(store: JsonlStore, files: Any, disk: Path) -> None:
    (disk / "a").write_text("old")
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
        assert not report.complete or content(disk) == {"a": "old"}


def test_nested_calls(store: JsonlStore, files: Any, disk: Path) -> None:
    with Session("job", store=store) as session:
        files.both(one=str(disk / "a"), two=str(disk / "b"))
        files.plain_outer(path=str(disk / "c"))
        report = session.undo()
        said = [(each.name, each.status) for each in report.steps]
        assert said == [
            ("put_file", "verified"),
            ("plain_outer", "irreversible"),
            ("append_file", "verified"),
            ("put_file", "verified"),
        ]
        assert not report.complete
    assert content(disk) == {}


def test_the_plan_of_a_tool_stands_for_what_it_calls(
    store: JsonlStore, files: Any, disk: Path
) -> None:
    @tool(effect="write", observe=files.observe, undo=files.restore)
    def rewrite(path: str) -> None:
        files.put_file(path=path, text="first")
        files.put_file(path=path, text="second")

    with Session("job", store=store) as session:
        rewrite(path=str(disk / "a"))
        report = session.undo()
        assert [(e.name, e.status) for e in report.steps] == [("rewrite", "verified")]
    assert content(disk) == {}


def test_what_has_no_undo_is_listed(store: JsonlStore, files: Any, disk: Path) -> None:
    with Session("job", store=store) as session:
        files.put_file(path=str(disk / "a"), text="x")
        files.mail(to="ann")
        report = session.undo()
    assert statuses(report) == ["irreversible", "verified"]
    assert not report.complete
    assert "step 2 (mail)" in str(report)
    assert "declares no undo" in str(report)
    assert content(disk) == {}


def test_without_a_look_nothing_is_called_verified(store: JsonlStore) -> None:
    box = ["old"]

    @tool(effect="write", name="test_undo.take")
    def take(thing: str) -> None:
        box.remove(thing)

    @tool(effect="write", undo=lambda args: [compensate(take, thing=args["thing"])])
    def put(thing: str) -> None:
        box.append(thing)

    with Session("job", store=store) as session:
        put("new")
        report = session.undo()
    assert statuses(report) == ["compensated"]
    assert report.complete
    assert box == ["old"]


def test_a_failed_write_that_changed_something(store: JsonlStore, files: Any, disk: Path) -> None:
    with Session("job", store=store) as session:
        with pytest.raises(OSError, match="full"):
            files.half_file(path=str(disk / "a"), text="half")
        assert statuses(session.undo()) == ["verified"]
    assert content(disk) == {}


def test_a_failed_write_that_changed_nothing(store: JsonlStore, files: Any, disk: Path) -> None:
    @tool(effect="write", observe=files.observe, undo=files.restore)
    def refuse(path: str) -> None:
        raise OSError("no")

    with Session("job", store=store) as session:
        with pytest.raises(OSError, match="no"):
            refuse(path=str(disk / "a"))
        assert session.undo().steps == ()


def test_a_failed_write_that_nobody_looked_at(store: JsonlStore, files: Any, disk: Path) -> None:
    path = str(disk / "a")

    @tool(effect="write", undo=lambda: [compensate("restore_file", path=path, text=None)])
    def half() -> None:
        Path(path).write_text("half")
        raise OSError("no")

    with Session("job", store=store, tools=[files.restore_file]) as session:
        with pytest.raises(OSError, match="no"):
            half()
        report = session.undo()
        assert statuses(report) == ["unknown"]
        assert "it failed" in report.steps[0].reason
        assert statuses(session.undo(in_doubt="restore")) == ["compensated"]
    assert content(disk) == {}


# --- conflicts -----------------------------------------------------------------------------------


def test_what_somebody_else_changed_is_left_alone(
    store: JsonlStore, files: Any, disk: Path, events: Events
) -> None:
    with Session("job", store=store) as session:
        files.put_file(path=str(disk / "a"), text="ours")
        files.put_file(path=str(disk / "b"), text="ours")
        (disk / "a").write_text("theirs")
        before = content(disk)
        report = session.undo()
        assert statuses(report) == ["conflict"]
        assert report.steps[0].differs == {f"file:{disk / 'a'}": ["text"]}
        assert [left[1:] for left in report.left] == [(2, "put_file")]
        assert "not tried" in str(report)
        assert f"file:{disk / 'a'} (text)" in str(report)
        assert content(disk) == before
        (last,) = [e for e in events(session.run_id) if e["event"] == "undo.finished"]
        assert (last["status"], last["of"]) == ("conflict", [session.run_id, 1])
        (disk / "a").write_text("ours")
        assert session.undo().complete, "once they agree, it goes on"
    assert content(disk) == {}


def test_a_change_between_two_of_ours_is_seen_too(
    store: JsonlStore, files: Any, disk: Path
) -> None:
    with Session("job", store=store) as session:
        files.put_file(path=str(disk / "a"), text="one")
        (disk / "a").write_text("theirs")
        files.append_file(path=str(disk / "a"), text=" two")
        report = session.undo()
        assert statuses(report) == ["conflict"]
        assert report.steps[0].step == 1
    assert content(disk) == {"a": "theirs two"}


def test_what_was_put_back_already_needs_nothing(store: JsonlStore, files: Any, disk: Path) -> None:
    (disk / "a").write_text("old")
    with Session("job", store=store) as session:
        files.put_file(path=str(disk / "a"), text="one")
        files.put_file(path=str(disk / "a"), text="two")
        (disk / "a").write_text("old")
        report = session.undo()
        assert statuses(report) == ["verified", "verified"]
        assert "as it was before" in report.steps[0].reason
    assert effects(disk) == ["put a", "put a"]


# --- failures ------------------------------------------------------------------------------------


@tool(effect="write", name="test_undo.jam")
def jam(path: str) -> None:
    """Bring something back, but not what was there."""
    Path(path).write_text("jammed")


def test_a_compensation_that_does_not_bring_it_back(
    store: JsonlStore, files: Any, disk: Path
) -> None:
    path = str(disk / "a")

    @tool(effect="write", observe=files.observe, undo=lambda: [compensate(jam, path=path)])
    def put(path: str) -> None:
        Path(path).write_text("x")

    with Session("job", store=store) as session:
        files.put_file(path=str(disk / "b"), text="x")
        put(path)
        report = session.undo()
        assert statuses(report) == ["failed"]
        assert report.steps[0].differs == {f"file:{path}": ["exists", "text"]}
        assert [left[2] for left in report.left] == ["put_file"]
        assert content(disk) == {"a": "jammed", "b": "x"}
        (disk / "a").unlink()
        assert session.undo().complete


def test_a_compensation_that_raises_is_tried_again(
    store: JsonlStore, files: Any, disk: Path, events: Events
) -> None:
    path, broken = str(disk / "a"), [True]

    @tool(effect="write", name="test_undo.first")
    def first(path: str) -> None:
        files.note("first", path)

    @tool(effect="write", name="test_undo.second")
    def second(path: str) -> None:
        if broken:
            raise OSError("busy")
        Path(path).unlink()
        files.note("second", path)

    def undo(args: dict[str, Any]) -> Any:
        return [compensate(first, **args), compensate(second, **args)]

    @tool(effect="write", observe=files.observe, undo=undo)
    def put(path: str) -> None:
        Path(path).write_text("x")

    with Session("job", store=store) as session:
        put(path)
        report = session.undo()
        assert statuses(report) == ["failed"]
        assert "OSError: busy" in report.steps[0].reason
        broken.clear()
        assert statuses(session.undo()) == ["verified"]
    assert effects(disk) == ["first a", "second a"], "what was done of it is not done twice"


def test_a_rule_that_denies_stops_it_before_anything_is_changed(
    store: JsonlStore, files: Any, disk: Path
) -> None:
    def keep_a(step: Any) -> Verdict | None:
        denied = step.name == "restore_file" and step.args["path"].endswith("a")
        return Verdict.deny("a stays") if denied else None

    with Session("job", store=store, rules=[keep_a]) as session:
        for name in "ab":
            files.put_file(path=str(disk / name), text=name)
        report = session.undo()
        assert [(e.name, e.status, e.step) for e in report.steps] == [("put_file", "failed", 1)]
        assert "a stays" in report.steps[0].reason
    assert content(disk) == {"a": "a", "b": "b"}


def test_compensating_calls_are_asked_for(store: JsonlStore, files: Any, disk: Path) -> None:
    asked: list[str] = []

    def approver(request: Any) -> Approval:
        asked.append(request.name)
        return Approval(True, by="ann")

    def ask(step: Any) -> Verdict | None:
        return Verdict.ask("sure?") if step.name == "restore_file" else None

    with Session("job", store=store, rules=[ask], approver=approver) as session:
        files.put_file(path=str(disk / "a"), text="x")
        assert session.undo().complete
    assert asked == ["restore_file"]


def test_a_tool_that_is_not_here_is_named_before_anything_is_changed(
    store: JsonlStore, files: Any, disk: Path
) -> None:
    with Session("job", store=store, tools=[files.put_file]) as session:
        files.put_file(path=str(disk / "a"), text="x")
    with Session("job", store=store, replay="resume", tools=[files.put_file]) as session:
        files.put_file(path=str(disk / "a"), text="x")
        with pytest.raises(ToolMissing, match="restore_file") as caught:
            session.undo()
        assert caught.value.tool == "restore_file"
    assert content(disk) == {"a": "x"}


def test_a_sync_undo_calls_no_async_tool(store: JsonlStore, disk: Path, files: Any) -> None:
    @tool(effect="write", name="test_undo.away")
    async def away(path: str) -> None:
        await asyncio.to_thread(Path(path).unlink)

    @tool(effect="write", observe=files.observe, undo=lambda args: [compensate(away, **args)])
    def put(path: str) -> None:
        Path(path).write_text("x")

    with Session("job", store=store) as session:
        put(path=str(disk / "a"))
        with pytest.raises(SessionError, match="is async: await the undo"):
            session.undo()
        assert content(disk) == {"a": "x"}
        assert asyncio.run(session.aundo()).complete
    assert content(disk) == {}


def test_not_from_inside_of_a_tool(store: JsonlStore) -> None:
    with Session("job", store=store) as session:

        @tool
        def inner() -> None:
            session.undo()

        with pytest.raises(SessionError, match="can't undo the run that it is in"):
            inner()


@pytest.mark.parametrize("replay", ["offline", "verify"])
def test_looking_back_undoes_nothing(
    store: JsonlStore, files: Any, disk: Path, replay: Any
) -> None:
    with Session("job", store=store):
        files.put_file(path=str(disk / "a"), text="x")
    opened = Session("job", store=store, replay=replay)
    with opened as session, pytest.raises(SessionError, match="nothing to undo"):
        session.undo()
    assert content(disk) == {"a": "x"}


def test_a_session_that_was_stopped_undoes_nothing(
    store: JsonlStore, files: Any, disk: Path
) -> None:
    with pytest.raises(TraceUnwritable), Session("job", store=store) as session:
        files.put_file(path=str(disk / "a"), text="x")
        session.halt(TraceUnwritable("the disk is full"))
        report = session.undo()
        assert statuses(report) == ["failed"]
        assert SessionHalted.__name__ in report.steps[0].reason
    assert content(disk) == {"a": "x"}


# --- what never replays --------------------------------------------------------------------------


def test_what_was_undone_runs_again_under_a_key_of_its_own(
    store: JsonlStore, files: Any, disk: Path
) -> None:
    with pytest.raises(KeyError), Session("job", store=store) as session:
        for name in "abc":
            files.put_file(path=str(disk / name), text=name)
        session.undo(to=1)
        raise KeyError
    with Session("job", store=store) as session:
        for name in "abc":
            files.put_file(path=str(disk / name), text=name)
        assert (session.stats.hits, session.stats.misses) == (1, 2)
    assert content(disk) == {"a": "a", "b": "b", "c": "c"}
    lines = (disk / "effects").read_text().splitlines()
    keys = [line.split()[0] for line in lines if " put " in line]
    assert len(set(keys)) == 5, "a service must not take the second put of b for the first"
    with Session("job", store=store, replay="offline") as session:
        for name in "abc":
            files.put_file(path=str(disk / name), text=name)
        assert session.stats.hits == 3


def test_reads_behind_the_save_point_look_anew(store: JsonlStore, files: Any, disk: Path) -> None:
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


def test_what_could_not_be_undone_is_an_orphan(store: JsonlStore, files: Any, disk: Path) -> None:
    with pytest.raises(KeyError), Session("job", store=store) as session:
        files.put_file(path=str(disk / "a"), text="x")
        files.mail(to="ann")
        assert statuses(session.undo()) == ["irreversible", "verified"]
        raise KeyError
    with pytest.raises(Diverged, match="mail") as caught, Session("job", store=store):
        files.put_file(path=str(disk / "a"), text="x")
    assert [step for _, step in caught.value.orphans] == [2]


def test_a_session_goes_on_after_an_undo(store: JsonlStore, files: Any, disk: Path) -> None:
    def work(session: Session) -> list[Any]:
        return [
            files.put_file(path=str(disk / "b"), text="y"),
            files.read_file(path=str(disk / "b")),
        ]

    with pytest.raises(KeyError), Session("job", store=store) as session:
        files.put_file(path=str(disk / "a"), text="x")
        assert session.undo().complete
        work(session)
        raise KeyError
    with Session("job", store=store) as session:
        assert work(session) == [1, "y"], "what came after the undo stands"
        assert session.stats.hits == 2
        assert [each.step for each in session.undo().steps] == [3]
    assert content(disk) == {}


# --- replayed steps ------------------------------------------------------------------------------


def test_replayed_steps_are_taken_back_wherever_they_first_ran(
    store: JsonlStore, files: Any, disk: Path
) -> None:
    with pytest.raises(KeyError), Session("job", store=store) as first:
        for name in "abc":
            files.put_file(path=str(disk / name), text=name)
        raise KeyError
    with Session("job", store=store) as session:
        files.put_file(path=str(disk / "a"), text="a")
        report = session.undo()
        assert [(each.run, each.step) for each in report.steps] == [
            (first.run_id, 3), (first.run_id, 2), (first.run_id, 1),
        ]  # fmt: skip
        assert report.complete
        files.put_file(path=str(disk / "d"), text="d")
        assert session.stats.orphans == 0, "an undone effect is no orphan"
    assert content(disk) == {"d": "d"}


def test_a_replay_can_be_undone_without_its_source(
    store: JsonlStore, files: Any, disk: Path
) -> None:
    large = "old" * 40_000
    (disk / "a").write_text(large)
    (disk / "rows").write_text("")
    with Session("job", store=store) as first:
        files.put_file(path=str(disk / "a"), text="new")
        files.add_row(path=str(disk / "rows"), text="x")
        files.both(one=str(disk / "b"), two=str(disk / "c"))
    elsewhere = JsonlStore(store.root.parent / "elsewhere")
    source = store.root / "runs" / f"{first.run_id}.jsonl"
    with Session("job", store=elsewhere, source=source, replay="resume") as session:
        files.put_file(path=str(disk / "a"), text="new")
        files.add_row(path=str(disk / "rows"), text="x")
        files.both(one=str(disk / "b"), two=str(disk / "c"))
        assert session.stats.hits == 3
        shutil.rmtree(store.root)
        report = session.undo()
    assert [(e.name, e.status) for e in report.steps] == [
        ("both", "unknown"), ("add_row", "verified"), ("put_file", "verified"),
    ]  # fmt: skip
    assert "which is gone" in report.steps[0].reason
    assert (disk / "a").read_text() == large


# --- on_divergence="undo" ------------------------------------------------------------------------


def test_a_new_write_takes_back_what_it_leaves_behind(
    store: JsonlStore, files: Any, disk: Path, events: Events
) -> None:
    with pytest.raises(KeyError), Session("job", store=store) as first:
        for name in "abc":
            files.put_file(path=str(disk / name), text=name)
        raise KeyError
    with Session("job", store=store, on_divergence="undo") as session:
        files.put_file(path=str(disk / "a"), text="a")
        files.put_file(path=str(disk / "B"), text="reworded")
        assert session.stats.hits == 1
    assert content(disk) == {"a": "a", "B": "reworded"}
    undone = [e["of"] for e in events(session.run_id) if e["event"] == "undo.finished"]
    assert undone == [[first.run_id, 3], [first.run_id, 2]]
    with Session("job", store=store, replay="offline") as session:
        files.put_file(path=str(disk / "a"), text="a")
        files.put_file(path=str(disk / "B"), text="reworded")


def test_a_session_changes_nothing_of_the_steps_that_it_replays(
    store: JsonlStore, files: Any, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[Entry] = []

    def keeping(*given: Any, **how: Any) -> Recording:
        recording = recording_of(*given, **how)
        loaded.extend(recording.entries)
        before.extend(map(fields, recording.entries))
        return recording

    def fields(entry: Entry) -> dict[str, Any]:
        return {
            name: getattr(entry, name)
            for name in Entry.__annotations__
            if name not in ("row", "rows")
        }

    before: list[dict[str, Any]] = []
    with pytest.raises(KeyError), Session("job", store=store):
        for name in "abc":
            files.put_file(path=str(disk / name), text=name)
        raise KeyError
    monkeypatch.setattr(lineage, "recording_of", keeping)
    with Session("job", store=store, on_divergence="undo") as session:
        files.put_file(path=str(disk / "a"), text="a")
        files.put_file(path=str(disk / "B"), text="reworded")
        assert session.stats.hits == 1
    assert len(loaded) == 3
    assert [*map(fields, loaded)] == before


def test_a_divergence_that_can_not_be_undone_halts(
    store: JsonlStore, files: Any, disk: Path
) -> None:
    with pytest.raises(KeyError), Session("job", store=store):
        files.put_file(path=str(disk / "a"), text="a")
        files.mail(to="ann")
        raise KeyError
    again = Session("job", store=store, on_divergence="undo")
    with pytest.raises(Diverged, match="Not all of them could be undone"), again:
        files.put_file(path=str(disk / "b"), text="reworded")
    assert "b" not in content(disk)


async def test_an_async_divergence_calls_async_tools(
    store: JsonlStore, files: Any, disk: Path
) -> None:
    box: list[str] = []

    @tool(effect="write", name="test_undo.atake")
    async def take(thing: str) -> None:
        await asyncio.sleep(0)
        box.remove(thing)

    @tool(effect="write", undo=lambda args: [compensate(take, thing=args["thing"])])
    async def put(thing: str) -> None:
        box.append(thing)

    with pytest.raises(KeyError):
        async with Session("job", store=store):
            await put("a")
            raise KeyError
    async with Session("job", store=store, on_divergence="undo"):
        await put("b")
    assert box == ["b"]


def test_two_things_are_observed_under_one_name(tmp_path: Path) -> None:
    """The later one gone, the name says that the first is gone, too: a look says that it is not."""
    there: set[int] = set()

    @tool(effect="write")
    def take(n: int) -> None:
        there.discard(n)

    def is_there(args: dict[str, Any]) -> dict[str, Any]:
        return {"there": args["n"] in there}

    @tool(effect="write", observe=is_there, undo=lambda args: [compensate(take, n=args["n"])])
    def put(n: int) -> None:
        there.add(n)

    with Session("one name", store=tmp_path) as session:
        put(1)
        put(2)
        report = session.undo()
    assert there == set()
    assert [step.status for step in report.steps] == ["verified", "verified"]


def test_the_text_of_a_report_is_short_however_much_is_left() -> None:
    failed = UndoneStep(run="r", step=9, name="pay", status="failed", reason="no")
    left = tuple(("r", step, "pay") for step in range(1000))
    lines = str(UndoReport(run="r", to=None, steps=(failed,), left=left)).splitlines()
    assert lines[0] == "step 9 (pay) of run r: failed: no"
    assert lines[20:] == ["and 981 more steps that are not undone"]
    few = UndoReport(run="r", to=None, steps=(failed,), left=left[:19])
    assert len(str(few).splitlines()) == 20
    assert "more" not in str(few)
