"""`with session.transaction():` keeps all of a block's effects, or none."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest
import undo_tools as files
from rollcage import (
    DidNotHappen,
    Diverged,
    Happened,
    Session,
    SessionError,
    SessionHalted,
    StepView,
    Store,
    TraceUnwritable,
    UndoIncomplete,
    UnknownOutcome,
    Verdict,
    compensate,
    list_runs,
    open_store,
    resolve_step,
    tool,
    undo_run,
)
from rollcage.trace.store import store_option
from undo_tools import content, events, put


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(tmp_path / "store")


class Broken(Exception):
    """What breaks a block."""


def effects(disk: Path) -> int:
    return len((disk / "effects").read_text().splitlines())


def test_a_block_that_ends_well_is_kept(store: Store, disk: Path) -> None:
    hits: list[int] = []
    modes: list[Any] = ["off", "continue"]
    for replay in modes:
        with Session("job", store=store, replay=replay) as session:
            put(disk, "a")
            with session.transaction():
                put(disk, "b", "c")
            put(disk, "d")
            hits.append(session.stats.hits)
    assert hits == [0, 4]
    assert content(disk) == {"a": "a", "b": "b", "c": "c", "d": "d"}


def test_a_block_that_raises_is_taken_back(store: Store, disk: Path) -> None:
    with Session("job", store=store) as session:
        put(disk, "a")
        with pytest.raises(Broken) as caught, session.transaction():
            put(disk, "b", "c")
            raise Broken
        assert not hasattr(caught.value, "__notes__")
        put(disk, "d")
    assert content(disk) == {"a": "a", "d": "d"}


def job_with_a_block(
    session: Session, disk: Path, *, way: str = "raises", behind: bool = True
) -> list[object]:
    """A write, a block that looks, writes and is undone, and a write behind it."""
    seen: list[object] = []
    put(disk, "a")
    try:
        with session.transaction():
            seen.append(files.read_file(path=str(disk / "a")))
            put(disk, "b" if way != "writes more" else "c")
            if way != "ends well":
                raise Broken
    except Broken:
        pass
    if behind:
        put(disk, "d")
    return seen


def test_a_block_that_the_job_has_left_behind_is_undone_as_recorded(
    store: Store, disk: Path
) -> None:
    seen: list[object] = []
    with pytest.raises(KeyError), Session("job", store=store) as session:
        seen += job_with_a_block(session, disk)
        raise KeyError
    there = effects(disk)
    for _ in range(2):
        with pytest.raises(KeyError), Session("job", store=store) as session:
            assert job_with_a_block(session, disk) == seen
            assert (session.stats.hits, session.stats.misses) == (4, 0)
            raise KeyError
    with Session("job", store=store, replay="offline") as session:
        assert job_with_a_block(session, disk) == seen
    assert effects(disk) == there
    assert content(disk) == {"a": "a", "d": "d"}


@pytest.mark.parametrize("way", ["ends well", "writes more"])
@pytest.mark.parametrize("policy", ["halt", "warn", "undo"])
def test_a_block_that_was_undone_as_recorded_goes_otherwise(
    store: Store, disk: Path, way: str, policy: Any
) -> None:
    with pytest.raises(KeyError), Session("job", store=store) as session:
        job_with_a_block(session, disk)
        raise KeyError
    with pytest.raises(Diverged), Session("job", store=store, on_divergence=policy) as session:
        job_with_a_block(session, disk, way=way)
    assert content(disk) == ({"a": "a"} if policy == "undo" else {"a": "a", "d": "d"})
    again = Session("job", store=store, on_divergence=policy)
    if policy == "halt":
        with pytest.raises(Diverged), again as session:
            job_with_a_block(session, disk, way=way)
        return
    with again as session:  # nothing came after the block any more: it is made anew
        job_with_a_block(session, disk, way=way)
    assert content(disk) == {"a": "a", "d": "d"} | ({"b": "b"} if way == "ends well" else {})


def test_a_block_that_nothing_came_behind_is_run_again(store: Store, disk: Path) -> None:
    with pytest.raises(KeyError), Session("job", store=store) as session:
        job_with_a_block(session, disk, behind=False)
        raise KeyError
    with Session("job", store=store, replay="offline") as session:
        job_with_a_block(session, disk, behind=False)
        assert session.stats.hits == 3, "what is only looked at is told as it was"
    with pytest.raises(KeyError), Session("job", store=store) as session:
        job_with_a_block(session, disk, way="ends well")
        assert (session.stats.hits, session.stats.misses) == (1, 3)
        raise KeyError
    assert content(disk) == {"a": "a", "b": "b", "d": "d"}
    with Session("job", store=store) as session:
        job_with_a_block(session, disk, way="ends well")
        assert (session.stats.hits, session.stats.misses) == (4, 0)
    assert content(disk) == {"a": "a", "b": "b", "d": "d"}


def test_retried_blocks_have_worlds_of_their_own(store: Store, disk: Path) -> None:
    with Session("job", store=store) as session:
        for attempt in range(3):
            try:
                with session.transaction():
                    put(disk, "a")
                    if attempt < 2:
                        raise Broken
            except Broken:
                assert content(disk) == {}
    lines = [line for line in (disk / "effects").read_text().splitlines() if " put " in line]
    assert len({line.split()[0] for line in lines}) == 3
    assert content(disk) == {"a": "a"}


def test_nested_blocks(store: Store, disk: Path) -> None:
    with Session("job", store=store) as session:
        with session.transaction():
            put(disk, "a")
            with pytest.raises(Broken), session.transaction():
                put(disk, "b")
                raise Broken
            assert content(disk) == {"a": "a"}
            with session.transaction():
                put(disk, "c")
        assert content(disk) == {"a": "a", "c": "c"}
        with pytest.raises(Broken), session.transaction():
            put(disk, "d")
            with session.transaction("inner"):
                put(disk, "e")
            with session.branch("side"):
                put(disk, "f")
            with Session("inner job", store=store):
                put(disk, "i")
            files.both(one=str(disk / "g"), two=str(disk / "h"))
            raise Broken
    assert content(disk) == {"a": "a", "c": "c"}
    run = session.run_id
    assert undo_run(store, run).complete, "what was rolled back is not undone again"
    assert content(disk) == {}


async def test_async_and_in_parallel(store: Store, disk: Path) -> None:
    async with Session("job", store=store) as session:
        with pytest.raises(Broken):
            async with session.transaction() as block:
                with session.turn():
                    await asyncio.gather(
                        *(session.acall(files.aput_file, path=str(disk / n), text=n) for n in "abc")
                    )
                await asyncio.to_thread(block.call, files.put_file, path=str(disk / "d"), text="d")
                raise Broken
        assert content(disk) == {}
        async with session.transaction():
            await files.aput_file(path=str(disk / "a"), text="a")
    assert content(disk) == {"a": "a"}


async def test_inside_of_a_turn_beside_others(store: Store, disk: Path) -> None:
    async def block(session: Session, name: str) -> None:
        with contextlib.suppress(Broken):
            async with session.transaction(name):
                await files.aput_file(path=str(disk / name), text=name)
                await asyncio.sleep(0)
                raise Broken

    async def work(session: Session) -> None:
        with session.turn(opens={"a": (), "b": ()}):
            await asyncio.gather(
                block(session, "a"),
                session.acall(files.aput_file, path=str(disk / "c"), text="c"),
                block(session, "b"),
            )
        await files.aput_file(path=str(disk / "d"), text="d")

    with pytest.raises(KeyError):
        async with Session("job", store=store) as session:
            await work(session)
            raise KeyError
    assert content(disk) == {"c": "c", "d": "d"}
    async with Session("job", store=store) as session:
        await work(session)
        assert session.stats.misses == 0
    assert content(disk) == {"c": "c", "d": "d"}


@pytest.mark.parametrize("goes_on", [False, True])
async def test_a_cancelled_block(store: Store, disk: Path, *, goes_on: bool) -> None:
    started = asyncio.Event()

    async def job(session: Session) -> None:
        async with session.transaction():
            await files.aput_file(path=str(disk / "a"), text="a")
            started.set()
            await asyncio.Event().wait()

    async with Session("job", store=store) as session:
        task = asyncio.create_task(job(session))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        if goes_on:
            await files.aput_file(path=str(disk / "b"), text="b")
    assert content(disk) == ({"b": "b"} if goes_on else {})


def test_inside_of_a_body(store: Store, disk: Path) -> None:
    fails = [True]

    @tool(effect="write", idempotent=True)
    def outer() -> None:
        with contextlib.suppress(Broken), session.transaction():
            put(disk, "a")
            raise Broken
        put(disk, "b")
        if fails:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), Session("job", store=store) as session:
        outer()
    there = effects(disk)
    fails.clear()
    with Session("job", store=store) as session:
        outer()
    assert effects(disk) == there
    assert content(disk) == {"b": "b"}


def test_what_can_not_be_taken_back_halts_and_nothing_is_touched(store: Store, disk: Path) -> None:
    def work(session: Session) -> None:
        with session.transaction():
            put(disk, "a")
            files.mail(to="ann")
            raise Broken

    opened = Session("job", store=store)
    with pytest.raises(UndoIncomplete, match="mail") as halted, opened as session:
        with contextlib.suppress(Broken):
            work(session)
        raise AssertionError("nothing goes on behind it")
    assert isinstance(halted.value.__cause__, Broken)
    assert f"rollcage resolve {session.run_id} 3{store_option(store)} --undone" in str(halted.value)
    assert content(disk) == {"a": "a"}, "all of it, or nothing: a resume goes on in the middle"
    resolve_step(store, session.run_id, 3, undone=True)
    with Session("job", store=store) as session:
        with pytest.raises(Broken):
            work(session)
        put(disk, "b")
    assert content(disk) == {"b": "b"}


def test_a_rule_keeps_a_block_as_it_is(store: Store, disk: Path) -> None:
    def keep_a(step: StepView) -> Verdict | None:
        denied = step.name == "restore_file" and step.args["path"].endswith("a")
        return Verdict.deny("a stays") if denied else None

    session = Session("job", store=store, gate=[keep_a])
    with pytest.raises(UndoIncomplete) as halted, session, session.transaction():
        put(disk, "a", "b")
        raise Broken
    for said in (
        f"a block stays as it is in run {session.run_id}",
        f"step 2 (put_file) of run {session.run_id}: failed: a rule denies restore_file: a stays",
        f"rollcage resolve {session.run_id} 2{store_option(store)} --undone",
    ):
        assert said in str(halted.value)
    assert content(disk) == {"a": "a", "b": "b"}


def test_a_state_that_changes_meanwhile_keeps_a_block_open(store: Store) -> None:
    """What could not be taken back is not said to be; a person says it, and the block ends."""
    shelf = {"a": 0, "b": 0}

    @tool(name="test_transaction.put_back", idempotent=True)
    def put_back(name: str, n: int) -> None:
        shelf[name] = n
        shelf["a"] += 90 * (name == "b")  # as somebody else might

    @tool(
        name="test_transaction.shelve",
        observe=lambda args: {args["name"]: shelf[args["name"]]},
        undo=lambda args, before: [compensate(put_back, name=args["name"], n=before[args["name"]])],
    )
    def shelve(name: str) -> None:
        shelf[name] = 1

    def work() -> str:
        with Session("job", store=store) as session, session.transaction():
            shelve("a")
            shelve("b")
            raise Broken
        return session.run_id

    with pytest.raises(UndoIncomplete, match="not everything was taken back") as halted:
        work()
    assert shelf == {"a": 91, "b": 0}
    run = list_runs(store)[0].run
    assert f"rollcage resolve {run} 2" in str(halted.value)
    assert not [each for each in events(store, run) if each["event"] == "rolled"]
    resolve_step(store, run, 2, undone=True)
    with pytest.raises(Broken):
        work()
    assert shelf == {"a": 91, "b": 0}


def test_a_body_does_not_go_on_behind_a_block_whose_undo_could_not_be_written(
    store: Store, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rollcage.trace.chain import Chain

    sent: list[str] = []
    full = [True]

    def refuse(*_: object) -> None:
        raise TraceUnwritable("the disk is full")

    @tool(effect="write", probe=lambda: Happened(None) if sent else DidNotHappen())
    def order() -> None:
        with contextlib.suppress(Broken), session.transaction():
            put(disk, "a")
            if full:
                monkeypatch.setattr(Chain, "append", refuse)
            raise Broken
        sent.append("order")

    with pytest.raises(TraceUnwritable), Session("job", store=store) as session:
        order()
    assert sent == [], "what stands in front of it was not taken back"
    assert content(disk) == {"a": "a"}
    full.clear()
    monkeypatch.undo()
    with Session("job", store=store) as session:
        order()
        assert session.stats.hits == 1
    assert sent == ["order"]
    assert content(disk) == {}


def test_a_block_with_a_write_of_unknown_outcome_goes_on_in_a_resume(
    store: Store, disk: Path
) -> None:
    lost = [True]

    @tool(effect="write", observe=files.observe, undo=files.restore)
    def cut(path: str) -> None:
        if lost.pop():
            raise TimeoutError

    def block(session: Session, *, raises: bool = False) -> None:
        with session.transaction():
            put(disk, "a")
            cut(path=str(disk / "b"))
            if raises:
                raise Broken

    with pytest.raises(UnknownOutcome), Session("job", store=store) as session:
        block(session)
    assert content(disk) == {"a": "a"}, "the block has not failed: it is resumed"
    lost[:] = [False]
    with Session("job", store=store) as session:
        with pytest.raises(Broken):
            block(session, raises=True)
        assert session.stats.hits == 1, "a look shows what was lost, which runs again"
    assert content(disk) == {}


@pytest.mark.parametrize("happened", [False, True])
@pytest.mark.parametrize("by_result", [False, True])
def test_a_write_that_was_resolved_is_rolled_back(
    store: Store, disk: Path, *, happened: bool, by_result: bool
) -> None:
    orders = [7] if happened else []

    @tool(effect="write", name="test_transaction.cancel", idempotent=True)
    def cancel(number: int) -> None:
        orders.remove(number)

    def late(result: int) -> Any:
        return [compensate(cancel, number=result)]

    @tool(effect="write", undo=late if by_result else lambda: [compensate(cancel, number=7)])
    def order() -> int:
        raise OSError("nobody knows how far it got")

    def block(session: Session) -> None:
        with session.transaction():
            put(disk, "a")
            order()

    with pytest.raises(UnknownOutcome, match="step 3"), Session("job", store=store) as session:
        block(session)
    assert content(disk) == {"a": "a"}
    told: dict[str, Any] = {"result": 7} if happened else {}
    resolve_step(store, session.run_id, 3, happened=happened, **told)
    again = contextlib.nullcontext() if happened else pytest.raises(UnknownOutcome)
    with again, Session("job", store=store) as session:  # noqa: SIM117 - made again, it fails as it did
        with contextlib.suppress(Broken), session.transaction():
            put(disk, "a")
            order()
            raise Broken
    assert orders == []
    assert content(disk) == ({} if happened else {"a": "a"})


def test_a_block_in_a_session_that_was_stopped(store: Store, disk: Path) -> None:
    with pytest.raises(TraceUnwritable), Session("job", store=store) as session:
        told = pytest.raises(SessionHalted, match=r"is not undone.*the disk is full")
        with told as caught, contextlib.suppress(Broken), session.transaction():
            put(disk, "a")  # whoever swallows the block's own error does not go on
            session.halt(TraceUnwritable("the disk is full"))
            raise Broken
        assert isinstance(caught.value.__context__, Broken)
    assert content(disk) == {"a": "a"}


def test_an_async_tool_needs_an_async_block(store: Store) -> None:
    @tool(effect="write", name="test_transaction.atake")
    async def take() -> None: ...

    @tool(effect="write", undo=lambda: [compensate(take)])
    def give() -> None: ...

    with pytest.raises(UndoIncomplete, match="is async"), Session("job", store=store) as session:  # noqa: SIM117 - nested
        with pytest.raises(Broken), session.transaction():
            give()
            raise Broken


def test_a_compensating_call_opens_none(store: Store) -> None:
    @tool(effect="write", name="test_transaction.nested", raises=(SessionError,))
    def nested() -> None:
        with session.transaction():
            pass

    @tool(effect="write", undo=lambda: [compensate(nested)])
    def give() -> None: ...

    with Session("job", store=store) as session:
        give()
        assert "opens no transaction" in session.undo().steps[0].reason


def test_a_rolled_back_block_goes_with_the_rest_that_is_left_behind(
    store: Store, disk: Path
) -> None:
    """Its steps have no effect any more, and nobody asks for them: they do not hold it."""

    def work(session: Session, name: str) -> None:
        put(disk, "a")
        with session.branch(name), contextlib.suppress(Broken), session.transaction():
            put(disk, "b")
            raise Broken
        put(disk, "c")

    with pytest.raises(KeyError), Session("job", store=store) as session:
        work(session, "one")
        raise KeyError
    with Session("job", store=store, on_divergence="undo") as session:
        work(session, "two")
    assert content(disk) == {"a": "a", "c": "c"}
    lines = events(store, session.run_id)
    before = next(n for n, e in enumerate(lines) if n and e["event"] == "attempt" and n > 1)
    recorded = {
        e["step"] for e in lines[:before] if e["event"] == "step" and e["branch"][:1] != "-"
    }
    gone = {n for e in lines[before:] if e["event"] == "undone" for n in e["steps"]}
    assert gone == recorded - {1}
    with Session("job", store=store, replay="offline") as session:
        work(session, "two")


# --- an undo that was killed ---------------------------------------------------------------------


class Killed(BaseException):
    """What stands in for a kill."""


@pytest.fixture
def killed(store: Store, disk: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The run that was killed in a roll-back, behind the effect that gives `b` back."""
    note = files.note

    def dies(what: str, path: str) -> None:
        note(what, path)
        if what == "restored" and path.endswith("b"):
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(files, "note", dies)
        with pytest.raises(Killed), Session("job", store=store) as session:
            put(disk, "a")
            with session.transaction():
                with session.transaction():
                    put(disk, "b", "c")
                raise KeyError
    assert content(disk) == {"a": "a"}
    return session.run_id


def job(session: Session, disk: Path, *, raises: bool = False) -> None:
    put(disk, "a")
    with session.transaction():
        with session.transaction():
            put(disk, "b", "c")
        if raises:
            raise KeyError
        put(disk, "d")


def backs(store: Store, run: str) -> list[str]:
    return [e["status"] for e in events(store, run) if e["event"] == "back"]


def test_it_is_finished_first(killed: str, store: Store, disk: Path) -> None:
    with Session("job", store=store) as session:
        assert session.run_id == killed
        assert backs(store, killed) == ["verified"] * 2
        job(session, disk)
        assert (session.stats.hits, session.stats.misses) == (1, 3), "a is given back, no more"
    assert content(disk) == {name: name for name in "abcd"}
    with Session("job", store=store, replay="offline") as session:
        job(session, disk)
        assert session.stats.hits == 4


async def test_it_is_finished_first_by_an_async_session(
    killed: str, store: Store, disk: Path
) -> None:
    with pytest.raises(KeyError):
        async with Session("job", store=store) as session:
            assert session.attempt.log is not None
            await session.attempt.log.settled()  # a thread writes its lines
            assert backs(store, killed) == ["verified"] * 2
            job(session, disk, raises=True)
    assert content(disk) == {"a": "a"}


def test_it_is_finished_first_by_another_program(killed: str, store: Store, disk: Path) -> None:
    with Session("job", store=store):
        put(disk, "a", "z")
    assert content(disk) == {"a": "a", "z": "z"}


def test_it_is_finished_with_an_undo_of_the_run(killed: str, store: Store, disk: Path) -> None:
    assert undo_run(store, killed).complete
    assert content(disk) == {}
    with Session("job", store=store) as session:
        job(session, disk)
        assert session.stats.hits == 0
    assert content(disk) == {name: name for name in "abcd"}


def test_a_tool_that_it_needs_is_not_here(killed: str, store: Store, disk: Path) -> None:
    from rollcage import Options, ToolMissing

    nothing = Session("job", store=store, options=Options(tools=[]))
    with pytest.raises(ToolMissing, match="put_file"), nothing:
        raise AssertionError("nothing may run")
    assert content(disk) == {"a": "a"}
    with Session("job", store=store) as session:
        job(session, disk)


@pytest.mark.parametrize("is_async", [False, True])
async def test_it_can_not_be_finished(
    killed: str, store: Store, disk: Path, monkeypatch: pytest.MonkeyPatch, *, is_async: bool
) -> None:
    def refuses(*_: object, **__: object) -> None:
        raise PermissionError

    (disk / "b").write_text("b")  # as if it had been killed just before
    session = Session("job", store=store)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", refuses)
        said = r"(?s)not everything was taken back.*PermissionError"
        with pytest.raises(UndoIncomplete, match=said):
            if is_async:
                async with session:
                    raise AssertionError("nothing may run")
            else:
                with session:
                    raise AssertionError("nothing may run")
    with Session("job", store=store) as session:  # now it can
        job(session, disk)
    assert content(disk) == {name: name for name in "abcd"}


def test_who_only_looks_finishes_nothing(killed: str, store: Store, disk: Path) -> None:
    with Session("job", store=store, replay="offline"):
        put(disk, "a")
    assert backs(store, killed) == ["verified"]


def test_nested_blocks_that_were_taken_back_are_made_again(store: Store, disk: Path) -> None:
    """The inner block did nothing but look: what is taken back with the outer one is more."""

    @tool(effect="read", name="tx.look")
    def look() -> str:
        return "seen"

    def job(*, raises: bool) -> None:
        with Session("job", store=store) as session, session.transaction("outer"):
            put(disk, "a")
            with session.transaction("inner"):
                look()
                if raises:
                    raise ValueError("it fails")

    with pytest.raises(ValueError, match="it fails"):
        job(raises=True)
    assert content(disk) == {}
    job(raises=False)
    assert content(disk) == {"a": "a"}
