"""What `on_divergence="warn"` leaves behind is still there: it can be undone as anything else."""

import asyncio
import contextlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from cuts import cut_log
from rollcage import (
    Session,
    Store,
    UndoReport,
    UnknownOutcome,
    compensate,
    open_store,
    plan_undo,
    run_info,
    tool,
    undo_run,
)
from rollcage.trace.chain import Chain

there: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_is_there() -> None:
    there.clear()


@tool(name="accepted.take", idempotent=True)
def take(thing: str) -> None:
    if thing in there:  # an undo that was killed makes its call again
        there.remove(thing)


@tool(name="accepted.put", undo=lambda args: [compensate("accepted.take", **args)])
def put(thing: str) -> None:
    there.append(thing)


Job = Callable[[Session], None]


def crashed(store: Store, job: Job, **how: Any) -> Session:
    with pytest.raises(InterruptedError), Session("job", store=store, **how) as session:
        job(session)
        raise InterruptedError
    return session


def undone(store: Store, session: Session, to: int | None = None) -> UndoReport:
    report = undo_run(store, session.run_id, to=to, tools=[put, take])
    assert report.complete
    return report


def calls(*things: str) -> Job:
    def job(_: Session) -> None:
        for each in things:
            put(each)

    return job


@pytest.fixture
def warned(store: Store) -> Session:
    crashed(store, calls("a", "b", "c"))
    return crashed(store, calls("a", "x", "y"), on_divergence="warn")


def test_all_of_it_is_taken_back_the_newest_first(store: Store, warned: Session) -> None:
    plan = plan_undo(store, warned.run_id, tools=[put, take])
    assert [each.args["thing"] for each in plan.steps] == ["y", "x", "c", "b", "a"]
    undone(store, warned)
    assert there == []
    with Session("job", store=store) as session:
        calls("a", "b", "c")(session)
    assert there == ["a", "b", "c"]


def test_an_undo_to_a_step_behind_which_it_was_left_keeps_it(store: Store, warned: Session) -> None:
    undone(store, warned, to=4)  # x: by then, b and c were there
    assert there == ["a", "b", "c", "x"]
    undone(store, warned, to=1)
    assert there == ["a"]


@pytest.mark.parametrize("to", [None, 1, 4])
def test_in_later_attempts_too(store: Store, warned: Session, to: int | None) -> None:
    with Session("job", store=store) as last:
        calls("a", "x", "y", "z")(last)
    assert last.stats.hits == 3
    undone(store, last, to)
    assert there == ["a", "b", "c", "x"][: {None: 0, 1: 1, 4: 4}[to]]
    with Session("job", store=store) as last:
        calls("a", "x")(last)
    assert sorted(there) == {None: ["a", "x"], 1: ["a", "x"], 4: ["a", "b", "c", "x"]}[to]


def test_from_inside_of_the_session(store: Store) -> None:
    crashed(store, calls("a", "b"))
    with Session("job", store=store, on_divergence="warn") as session:
        put("x")
        assert session.undo().complete
    assert there == []


def in_branch(session: Session) -> None:
    with session.branch("agent"):
        put("a")
        with session.branch("helper"):
            put("b")


def test_what_came_back_with_a_branch_is_left_with_it(store: Store) -> None:
    crashed(store, in_branch)
    crashed(store, calls("x"), on_divergence="warn")
    with Session("job", store=store) as session:
        calls("x")(session)
    assert run_info(store, session.run_id).status == "ok", "nothing of it is asked for any more"
    undone(store, session)
    assert there == []


def test_a_block_that_raises_takes_back_what_it_left_behind(store: Store) -> None:
    def block(*things: str) -> Job:
        def job(session: Session) -> None:
            with session.transaction():
                calls(*things)(session)
                raise InterruptedError

        return job

    def cut(session: Session) -> None:
        with session.branch("transaction"):
            calls("a", "b")(session)
            raise InterruptedError

    crashed(store, cut)
    crashed(store, block("x"), on_divergence="warn")
    assert there == []


def test_what_a_block_left_answers_nothing_once_it_is_rolled_back(store: Store) -> None:
    def job(*things: str, raises: bool) -> Job:
        def block(session: Session) -> None:
            with session.transaction():
                calls(*things)(session)
                if raises:
                    raise LookupError

        return block

    job_before = Session("job", store=store)
    with pytest.raises(Killed), job_before, job_before.transaction():
        calls("a", "b")(job_before)
        raise Killed
    warns = Session("job", store=store, on_divergence="warn")
    with pytest.raises(LookupError), warns as session:
        job("x", raises=True)(session)
    assert there == []
    with Session("job", store=store, on_divergence="warn") as session:
        job("a", "b", "x", raises=False)(session)
    assert there == ["a", "b", "x"]
    undone(store, session)
    assert there == []


class Killed(BaseException):
    """What a process dies of."""


@tool(
    name="accepted.hold", idempotent=True, undo=lambda args: [compensate("accepted.take", **args)]
)
def hold(thing: str) -> None:
    if thing not in there:
        there.append(thing)


Nodes = tuple[Any, ...]


def some_nodes(chance: random.Random, depth: int = 2) -> Nodes:
    """Draw calls, turns, branches, and blocks that raise or do not."""
    nodes: list[Any] = []
    for _ in range(chance.randint(1, 3)):
        kind = chance.choice(["call"] * 3 + ["turn", "branch", "block", "raises"] * (depth > 0))
        if kind == "call":
            nodes.append((kind, f"t{chance.randrange(10**9)}"))
        else:
            nodes.append((kind, some_nodes(chance, depth - 1)))
    return tuple(nodes)


def run_nodes(session: Session, nodes: Nodes, die: Callable[[], bool]) -> None:
    for kind, inside in nodes:
        if die():
            raise Killed
        match kind:
            case "call":
                hold(inside)
            case "turn":
                with session.turn():
                    run_nodes(session, inside, die)
            case "branch":
                with session.branch("agent"):
                    run_nodes(session, inside, die)
            case _:
                try:
                    with session.transaction("inner"):
                        run_nodes(session, inside, die)
                        if kind == "raises":
                            raise LookupError
                except LookupError:
                    pass


@pytest.mark.parametrize("seed", range(16))
def test_a_block_that_leaves_and_raises_is_killed(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)  # noqa: S311 - programs, not secrets
    first, second = some_nodes(chance), some_nodes(chance)
    second = (*first[: chance.randint(0, len(first))], *second)
    noted: list[tuple[bytes, list[str]]] = []
    append = Chain.append

    def noting(self: Chain, *args: Any) -> None:
        append(self, *args)
        noted.append((self.log.last, list(there)))

    monkeypatch.setattr(Chain, "append", noting)
    dies_at = chance.randint(1, 5)
    asked = iter(range(1000))
    with pytest.raises(Killed), Session("job", store=tmp_path / "store") as session:
        put("outside")
        with session.transaction():
            run_nodes(session, first, lambda: next(asked) >= dies_at)
            raise Killed
    start = len(noted)

    def other(where: Path) -> None:
        with Session("job", store=where, on_divergence="warn") as session:
            put("outside")
            with pytest.raises(LookupError), session.transaction():
                run_nodes(session, second, lambda: False)
                raise LookupError

    other(tmp_path / "store")
    assert there == ["outside"]
    for end in chance.sample(range(start, len(noted)), min(8, len(noted) - start)):
        there[:] = noted[end - 1][1]
        killed = open_store(tmp_path / f"killed-{end}")
        log = killed.open(session.run_id)
        for line, _ in noted[:end]:
            log.append(line)
        log.close()
        killed.swap("names", "job", None, session.run_id.encode())
        other(tmp_path / f"killed-{end}")
        assert there == ["outside"], end


def test_an_unknown_write_in_such_a_branch_is_not_left(store: Store) -> None:
    @tool(effect="write")
    def lost() -> None:
        raise TimeoutError

    job = Session("job", store=store)
    with pytest.raises(UnknownOutcome), job, job.branch("agent"):
        lost()
    with pytest.raises(UnknownOutcome), Session("job", store=store, on_divergence="warn"):
        put("x")
    assert there == []


@tool(name="accepted.lost", effect="write")
def lost() -> None:
    raise TimeoutError


@tool(name="accepted.agent", effect="scope")
def agent(*, fails: bool) -> None:
    put("inside")
    if fails:
        lost()


def test_an_unknown_write_in_a_body_is_not_left(store: Store) -> None:
    with pytest.raises(UnknownOutcome), Session("job", store=store):
        agent(fails=True)
    for _ in range(2):
        with (
            pytest.raises(UnknownOutcome, match=r"accepted\.lost"),
            Session("job", store=store, on_divergence="warn"),
        ):
            put("x")
    assert there == ["inside"]


def test_what_a_body_has_called_is_left_with_it(store: Store) -> None:
    crashed(store, lambda _: agent(fails=False))
    session = crashed(store, calls("x", "y"), on_divergence="warn")
    undone(store, session, to=3)
    assert there == ["inside", "x"]
    undone(store, session)
    assert there == []


# --- what may still be asked for -----------------------------------------------------------------

looked: list[str] = []


@tool(name="accepted.look", effect="read")
def look(at: str) -> str:
    looked.append(at)
    return at


def test_a_read_beside_a_new_effect_is_answered(store: Store) -> None:
    def job(session: Session, *things: str) -> None:
        put("a")
        with session.turn():
            for each in things:
                put(each)
            assert look("r") == "r"

    def recorded(_: Session) -> None:
        put("a")
        look("r")
        put("b")

    looked.clear()
    crashed(store, recorded)
    with Session("job", store=store, on_divergence="warn") as session:
        job(session, "x")
    assert (session.stats.hits, looked) == (2, ["r"])
    with Session("job", store=store, replay="continue") as again:
        job(again, "x")
    assert (again.stats.hits, looked, there) == (3, ["r"], ["a", "b", "x"])


@pytest.mark.parametrize("asked", ["bc", "cb", "c"])
def test_a_sibling_of_a_new_effect_is_answered(store: Store, asked: str) -> None:
    def job(session: Session, *things: str) -> None:
        put("a")
        with session.turn():
            for each in things:
                put(each)

    crashed(store, lambda session: job(session, "b", "c"))
    crashed(store, lambda session: job(session, "x", *asked), on_divergence="warn")
    assert there == ["a", "b", "c", "x"]
    with Session("job", store=store) as again:
        job(again, "x", *asked)
    assert (again.stats.hits, there) == (2 + len(asked), ["a", "b", "c", "x"])
    undone(store, again)
    assert there == []


@tool(name="accepted.stream", undo=lambda args: [compensate("accepted.take", **args)])
def stream(thing: str) -> Iterator[str]:
    yield thing
    there.append(thing)


@pytest.mark.parametrize("together", [True, False])
def test_only_siblings_are_answered_beside_a_new_effect(store: Store, together: bool) -> None:
    """Another message that asks for an effect left behind makes it anew."""

    def recorded(session: Session) -> None:
        with session.turn() as turn:
            for slot, each in enumerate("ab"):
                with turn.slot(slot):
                    put(each)

    crashed(store, recorded)
    with Session("job", store=store, on_divergence="warn") as session, session.turn() as turn:
        with turn.slot(2):
            runs = session.call(stream, thing="c")
            assert next(runs) == "c"
        with turn.slot(0):
            put("a")
        with contextlib.ExitStack() as other:
            message = turn if together else other.enter_context(session.turn())
            with message.slot(1):
                put("b")
        assert list(runs) == []
    assert there == (["a", "b", "c"] if together else ["a", "b", "b", "c"])


def test_an_effect_behind_the_place_answers_no_more(store: Store) -> None:
    def job(session: Session, *things: str) -> None:
        with session.turn():
            for each in things:
                put(each)
        put("c")

    crashed(store, lambda session: job(session, "a"))
    crashed(store, lambda session: job(session, "x"), on_divergence="warn")
    assert there == ["a", "c", "x", "c"]


async def test_what_a_body_does_anew_leaves_nothing_around_it(store: Store, tmp_path: Path) -> None:
    """The call was at work beside others, which are on record, when the process died."""
    goes_on = asyncio.Event()
    ran: list[str] = []

    @tool(effect="read", name="accepted.look")
    async def look() -> None: ...

    @tool(effect="write", name="accepted.write")
    async def write(thing: str) -> None:
        ran.append(thing)

    @tool(effect="scope", name="accepted.agent")
    async def agent() -> None:
        await look()
        await goes_on.wait()
        await write("inside")

    async with Session("job", store=store) as session:
        task = asyncio.create_task(session.acall(agent))
        while session.stats.misses < 2:  # noqa: ASYNC110 - until it is on record
            await asyncio.sleep(0)
        await write("beside")
        await write("beside, too")
        goes_on.set()
        await task
    lines = [orjson.loads(line) for line in store.read(session.run_id)]
    at = next(n for n, line in enumerate(lines) if line.get("args") == {"thing": "inside"})
    cut_log(tmp_path / "store" / "logs" / f"{session.run_id}.jsonl", at)
    ran.clear()
    async with Session("job", store=store) as session:
        await agent()
        await write("beside")
        await write("beside, too")
    assert (ran, session.stats.hits) == (["inside"], 3)
