"""Many calls at once: threads, tasks, branches, and tools that call tools."""

import asyncio
import contextvars
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import pytest
from rollcage import (
    ReplayMiss,
    Session,
    Store,
    UnguardedCallWarning,
    UnknownOutcome,
    current_step,
    resolve_step,
    tool,
)

Events = Callable[[str], list[dict[str, Any]]]

ROUNDS = 100


class Counted:
    """Tools that give back another number each time they run."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.count = 0

    def number(self) -> int:
        with self.lock:
            self.count += 1
            return self.count

    def poll(self) -> int:
        return self.number()

    async def apoll(self) -> int:
        await asyncio.sleep(0)
        return self.number()


def at_once(calls: Iterable[Callable[[], Any]]) -> list[Any]:
    """Each call in a thread of its own that knows its session; all start together."""
    calls = list(calls)
    together = threading.Barrier(len(calls))

    def start(call: Callable[[], Any]) -> Any:
        together.wait()
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        contexts = [contextvars.copy_context() for _ in calls]
        futures = [
            pool.submit(context.run, start, call)
            for context, call in zip(contexts, calls, strict=True)
        ]
        return [future.result() for future in futures]


# --- identical calls in parallel -----------------------------------------------------------------


def poll_in_threads(store: Store, bodies: Counted, job: str, **how: Any) -> list[int]:
    poll = tool(effect="write", name="poll")(bodies.poll)
    with Session(job, store=store, **how) as session, session.turn() as turn:

        def slot(index: int) -> int:
            with turn.slot(index):
                return poll()

        return at_once([lambda i=i: slot(i) for i in range(5)])  # type: ignore[misc]  # i is bound


def test_identical_calls_in_threads_replay_to_their_own_slots(store: Store) -> None:
    for number in range(ROUNDS):
        bodies = Counted()
        recorded = poll_in_threads(store, bodies, f"job {number}")
        assert sorted(recorded) == [1, 2, 3, 4, 5]
        assert poll_in_threads(store, bodies, f"job {number}", replay="offline") == recorded
        assert bodies.count == 5


async def test_identical_calls_in_tasks_replay_to_their_own_slots(store: Store) -> None:
    async def run(bodies: Counted, job: str, **how: Any) -> list[int]:
        poll = tool(effect="write", name="poll")(bodies.apoll)
        async with Session(job, store=store, **how) as session:
            with session.turn():
                return list(await asyncio.gather(*(poll() for _ in range(5))))

    for number in range(ROUNDS):
        bodies = Counted()
        recorded = await run(bodies, f"job {number}")
        assert await run(bodies, f"job {number}", replay="offline") == recorded
        assert bodies.count == 5


def test_a_turn_that_was_cut_off_keeps_its_writes_apart(store: Store) -> None:
    """Each slot has its own step, and its own idempotency key."""
    keys: list[str] = []

    @tool(effect="write")
    def twin() -> int:
        step = current_step()
        assert step is not None
        keys.append(step.idempotency_key)
        return len(keys)

    def run(slots: list[int], *, ends: bool) -> list[int]:
        with Session("job", store=store) as session, session.turn() as turn:
            told = []
            for index in slots:
                with turn.slot(index):
                    told.append(twin())
            if not ends:
                raise InterruptedError
            return told

    with pytest.raises(InterruptedError):
        run([0], ends=False)
    assert run([1, 0, 2], ends=True) == [2, 1, 3]  # the slot that was recorded comes second
    assert len(set(keys)) == 3


def test_a_turn_that_is_cut_off_twice_still_knows_all_of_its_calls(
    store: Store,
) -> None:
    """A new call of the turn leaves what is recorded, its own siblings excepted, over resumes."""
    ran: list[str] = []

    @tool(effect="write")
    def write(name: str) -> str:
        ran.append(name)
        if len(ran) == 2:
            raise TimeoutError
        return name

    def run(slots: list[int]) -> list[str]:
        with Session("job", store=store) as session, session.turn() as turn:
            told = []
            for index in slots:
                with turn.slot(index):
                    told.append(write("abcd"[index]))
        return told

    with pytest.raises(UnknownOutcome):
        run([0, 2])
    with pytest.raises(UnknownOutcome) as caught:
        run([0, 1, 2, 3])  # the second is new, the third unknown
    assert ran == ["a", "c", "b"]
    resolve_step(store, caught.value.run, caught.value.step, happened=True, result="c")
    assert run([0, 1, 2, 3]) == ["a", "b", "c", "d"]
    assert ran == ["a", "c", "b", "d"]


def test_identical_calls_one_after_another_replay_one_after_another(store: Store) -> None:
    bodies = Counted()
    effects: tuple[Literal["read", "write"], ...] = ("read", "write")
    for effect in effects:
        poll = tool(effect=effect, name=effect)(bodies.poll)
        with Session(effect, store=store):
            recorded = [poll() for _ in range(3)]
        with Session(effect, store=store, replay="offline"):
            assert [poll() for _ in range(3)] == recorded
    assert bodies.count == 6


# --- many threads on one session -----------------------------------------------------------------


def _put(number: int) -> int:
    return number


def test_where_threads_went_another_way_the_replay_says_how_to_give_them_an_order(
    store: Store,
) -> None:
    """A bare pool: each of its writes stands in the world that the ones before it have made."""

    def work(numbers: Iterable[int], **how: Any) -> None:
        with Session("job", store=store, **how) as session:
            put = session.tool(_put)
            with ThreadPoolExecutor(1) as pool:
                assert [pool.submit(put, n).result() for n in numbers] == list(numbers)

    work([1, 2, 3])
    with pytest.raises(ReplayMiss) as missed:
        work([3, 2, 1], replay="offline")
    for said in (
        "was called in a thread",
        "session.turn() as turn",
        "turn.slot(i)",
        "branch(name)",
    ):
        assert said in str(missed.value)


def test_eight_threads_on_one_session_lose_and_mix_up_nothing(store: Store, events: Events) -> None:
    threads, calls = 8, 50
    ran: Counter[tuple[int, int]] = Counter()
    lock = threading.Lock()

    def write(thread: int, number: int) -> list[int]:
        with lock:
            ran[thread, number] += 1
        return [thread, number]

    session = Session("job", store=store)
    with session:
        guarded = session.tool(write)

        def work(thread: int) -> None:
            for number in range(calls):
                assert guarded(thread, number) == [thread, number]

        bare = [threading.Thread(target=work, args=(t,)) for t in range(threads)]
        for each in bare:  # threads that know no session: the function does
            each.start()
        for each in bare:
            each.join()
    assert len(ran) == threads * calls
    assert set(ran.values()) == {1}
    recorded = events(session.run_id)
    started = {e["step"]: e for e in recorded if e["event"] == "step"}
    finished = {e["step"]: e for e in recorded if e["event"] == "outcome"}
    assert sorted(started) == sorted(finished) == list(range(1, threads * calls + 1))
    for number, event in finished.items():
        asked = started[number]["args"]
        assert event["outcome"]["value"] == [asked["thread"], asked["number"]]


def test_threads_that_go_on_when_the_session_is_left_harm_no_trace(store: Store) -> None:
    go = threading.Event()

    @tool(effect="read")
    def look() -> None:
        go.set()

    for _ in range(20):
        go.clear()
        with Session("job", store=store) as session:
            late = threading.Thread(target=_until_refused, args=(lambda s=session: s.call(look),))
            late.start()
            assert go.wait(60)
        late.join()


def _until_refused(call: Callable[[], Any]) -> None:
    while True:
        try:
            call()
        except Exception:  # noqa: BLE001 - whatever says that the session was left
            return


# --- branches ------------------------------------------------------------------------------------


def test_dependent_writes_in_threads_replay_in_their_branches(store: Store) -> None:
    bodies = Counted()

    def write(agent: int, after: int) -> int:
        return bodies.number()

    def run(**how: Any) -> list[list[int]]:
        with Session("job", store=store, **how) as session:
            branches = [session.branch(f"agent {n}") for n in range(4)]
            opened = [branch.__enter__() for branch in branches]

            def work(agent: int) -> list[int]:
                told = [0]
                for _ in range(10):
                    told.append(opened[agent].call(write, agent=agent, after=told[-1]))
                return told

            told = at_once([lambda a=a: work(a) for a in range(4)])  # type: ignore[misc]  # a is bound
            for branch in reversed(branches):
                branch.__exit__(None, None, None)
            session.call(write, agent=9, after=0)
            return told

    recorded = run()
    assert run(replay="offline") == recorded
    assert bodies.count == 41


def test_a_branch_that_went_another_way_is_seen_behind_its_join(store: Store) -> None:
    ran: list[str] = []

    @tool(effect="write")
    def write(name: str) -> str:
        ran.append(name)
        return name

    def run(names: list[str], **how: Any) -> None:
        with Session("job", store=store, replay="resume" if how else "off", **how) as session:
            for name in names:
                with session.branch(name[0]):
                    write(name)
            write("end")

    run(["a1", "b1"])
    run(["a1", "b2"], on_divergence="warn")
    assert ran == ["a1", "b1", "end", "b2", "end"]


# --- tools that call tools -----------------------------------------------------------------------


class Nest:
    """An outer tool and the inner ones that it calls."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.fails = False

        @tool(effect="write")
        def inner(name: str) -> str:
            self.ran.append(f"inner {name}")
            return f"{name}!"

        @tool(effect="write", raises=[ConnectionRefusedError])
        def outer(name: str) -> str:
            self.ran.append(f"outer {name}")
            told = [inner(f"{name} {n}") for n in range(2)]
            if self.fails:
                raise ConnectionRefusedError("half way")
            return " ".join(told)

        self.inner, self.outer = inner, outer


def test_a_hit_of_the_outer_call_consumes_the_inner_ones(store: Store, events: Events) -> None:
    nest = Nest()
    with Session("job", store=store) as first:
        assert nest.outer("a") == "a 0! a 1!"
        assert nest.inner("b") == "b!"
    steps = {e["step"]: e for e in events(first.run_id) if e["event"] == "step"}
    branches = [step["branch"] for step in steps.values()]
    assert branches[0] == branches[3] == ""
    assert branches[1] == branches[2] != ""
    nest.ran.clear()
    with Session("job", store=store, replay="offline") as again:
        assert nest.outer("a") == "a 0! a 1!"
        assert nest.inner("b") == "b!"
    assert nest.ran == []
    assert again.stats.hits == 2


def test_an_outer_call_that_runs_again_replays_its_inner_ones(store: Store) -> None:
    nest = Nest()
    nest.fails = True
    with pytest.raises(ConnectionError), Session("job", store=store):
        nest.outer("a")
    nest.fails = False
    nest.ran.clear()
    with Session("job", store=store) as again:
        assert nest.outer("a") == "a 0! a 1!"
    assert nest.ran == ["outer a"]
    assert (again.stats.hits, again.stats.misses) == (2, 1)


def test_identical_inner_calls_of_two_outer_ones_are_told_apart(store: Store) -> None:
    bodies = Counted()
    poll = tool(effect="write", name="poll")(bodies.poll)

    @tool(effect="write")
    def outer(name: str) -> int:
        return poll()

    def run(**how: Any) -> list[int]:
        with (
            Session("job", store=store, **how) as session,
            session.branch("side"),
            session.turn() as turn,
        ):

            def slot(index: int) -> int:
                with turn.slot(index):
                    return outer("ab"[index % 2])

            return at_once([lambda i=i: slot(i) for i in range(4)])  # type: ignore[misc]  # i is bound

    recorded = run()
    assert run(replay="offline") == recorded
    assert bodies.count == 4


async def test_inner_calls_in_tasks_belong_to_their_outer_call(
    store: Store, events: Events
) -> None:
    @tool(effect="read")
    async def inner(name: str) -> str:
        await asyncio.sleep(0)
        step = current_step()
        assert step is not None
        return step.name

    @tool(effect="write")
    async def outer(name: str) -> list[str]:
        told = list(await asyncio.gather(inner(f"{name} 0"), inner(f"{name} 1")))
        step = current_step()
        assert step is not None
        return [*told, step.name]

    async with Session("job", store=store) as session:
        assert current_step() is None
        told = await asyncio.gather(outer("a"), outer("b"))
    assert list(told) == [["inner", "inner", "outer"]] * 2
    steps = [line for line in events(session.run_id) if line["event"] == "step"]
    by_step = {line["step"]: line["args"]["name"] for line in steps}
    inside = [line for line in steps if line["name"] == "inner"]
    assert len(inside) == 4
    for line in inside:
        around = session.attempt.run.owner(line["branch"])
        assert around is not None
        assert line["args"]["name"].startswith(by_step[around.n])


# --- where a call belongs ------------------------------------------------------------------------


def elsewhere(call: Callable[[], None]) -> None:
    """Call in a thread that knows no session."""
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


def test_a_tool_in_a_bare_thread_warns_that_it_is_unguarded(store: Store) -> None:
    @tool(effect="write")
    def write() -> str:
        return "ran"

    told: list[str] = []
    with Session("job", store=store) as session:
        with pytest.warns(UnguardedCallWarning, match="write was called") as caught:
            elsewhere(lambda: told.append(write()))
        context = contextvars.copy_context()
        elsewhere(lambda: context.run(lambda: told.append(write())))
        bound = session.tool(write)
        elsewhere(lambda: told.append(bound()))
    assert caught[0].filename == __file__
    assert told == ["ran"] * 3
    assert session.stats.calls == 2
    assert write() == "ran"  # no session is open: nothing to warn of


def test_two_sessions_at_once_do_not_mix(store: Store, events: Events) -> None:
    @tool(effect="write")
    def write(name: str) -> str:
        return name

    def work(job: str) -> str:
        with Session(job, store=store) as session:
            for number in range(20):
                write(f"{job} {number}")
        return session.run_id

    for run, job in zip(at_once([lambda: work("a"), lambda: work("b")]), "ab", strict=True):
        asked = [e["args"]["name"] for e in events(run) if e["event"] == "step"]
        assert asked == [f"{job} {n}" for n in range(20)]


def test_a_session_inside_another_takes_its_own_calls(store: Store, events: Events) -> None:
    @tool(effect="write")
    def write(name: str) -> str:
        return name

    with Session("outer", store=store) as outer:
        write("one")
        with Session("inner", store=store) as inner:
            write("two")
            outer.call(write, name="three")
        write("four")
    assert outer.run_id == inner.run_id
    written = [e for e in events(outer.run_id) if e["event"] == "step" and e["name"] == "write"]
    names = {e["args"]["name"]: e["branch"] for e in written}
    assert names["one"] == names["three"] == names["four"] == "" != names["two"]


async def test_tasks_keep_the_session_they_were_started_in(store: Store) -> None:
    @tool(effect="write")
    async def write(name: str) -> str:
        await asyncio.sleep(0)
        return name

    async def work(job: str) -> int:
        async with Session(job, store=store) as session:
            await asyncio.gather(*(write(f"{n}") for n in range(10)))
        return session.stats.calls

    assert await asyncio.gather(*(work(f"job {n}") for n in range(4))) == [10] * 4


def test_a_miss_in_a_bare_thread_says_how_to_give_calls_their_places(store: Store) -> None:
    def run(order: str, **how: Any) -> list[str]:
        with Session("job", store=store, **how) as session:
            put = session.tool(effect="write", name="put")(_upper)
            with ThreadPoolExecutor(1) as pool:
                return list(pool.map(put, order))

    run("ab")
    with pytest.raises(ReplayMiss, match=r"with turn\.slot\(i\)"):
        run("ba", replay="offline")
    assert run("ab", replay="offline") == ["A", "B"]


def test_with_their_places_calls_of_a_thread_pool_replay_in_any_order(store: Store) -> None:
    def run(order: list[int], **how: Any) -> dict[int, str]:
        with Session("placed", store=store, **how) as session:
            put = session.tool(effect="write", name="put")(_upper)
            with session.turn() as turn, ThreadPoolExecutor(2) as pool:

                def one(slot: int) -> tuple[int, str]:
                    with turn.slot(slot):
                        return slot, put("abcdef"[slot])

                return dict(pool.map(one, order))

    first = run(list(range(6)))
    assert run([5, 3, 1, 0, 2, 4], replay="offline") == first


def _upper(text: str) -> str:
    return text.upper()
