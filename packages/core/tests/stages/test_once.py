"""Effects that happen once: `@tool(once="refund/{payment}")`."""

import asyncio
import contextlib
import contextvars
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from cuts import cut_log
from mortal import Killed, Mortal, until_it_dies
from rollcage import (
    Approval,
    Blocked,
    ContractError,
    DidNotHappen,
    Diverged,
    NotReplayable,
    Options,
    Session,
    SessionError,
    StepEvent,
    StepNotUnknown,
    UnknownOutcome,
    Verdict,
    abandon_run,
    aundo_run,
    compensate,
    plan_undo,
    resolve_step,
    tool,
    undo_run,
)
from rollcage.errors import PlanChanged, RunInUse, RunNotFound, StoreError
from rollcage.stages import once
from rollcage.stages.once import keep_claims, key_of, once_of
from rollcage.trace import claims
from rollcage.trace.chain import Chain
from rollcage.trace.claims import Claim
from rollcage.trace.folder import Folder


def claim_of(root: Path, key: str) -> Any:
    """The claim of a key that somebody has claimed."""
    found = once_of(root, key)
    assert found is not None
    return found


class World:
    """What was refunded."""

    def __init__(self) -> None:
        self.refunds: list[int] = []
        self.gone: list[int] = []
        self.during: Callable[[], None] = lambda: None
        self.error: Exception | None = None


world = World()


@pytest.fixture(autouse=True)
def new_world() -> None:
    world.__init__()  # type: ignore[misc] # a new one of the same name


@tool(effect="write", idempotent=True)
def unrefund(payment: int) -> None:
    """Take a refund back, if it stands."""
    if payment in world.refunds:
        world.refunds.remove(payment)
        world.gone.append(payment)


@tool(
    once="refund/{payment}",
    undo=lambda args: [compensate(unrefund, payment=args["payment"])],
    raises=[ValueError],
)
def refund(payment: int, amount: int = 5) -> str:
    """Refund a payment."""
    if world.error is not None:
        raise world.error
    world.refunds.append(payment)
    world.during()
    return f"{payment}: {amount}, no. {len(world.refunds) + len(world.gone)}"


@tool(once="mail/{text}")
def mail(text: str) -> str:
    """Send what can't be taken back."""
    world.refunds.append(0)
    return f"sent {text}"


@tool(once="refund/{payment}")
async def arefund(payment: int) -> str:
    """Refund a payment, in its own time."""
    world.refunds.append(payment)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return f"async {payment}"


def events(root: Path, run: str) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in Folder(root).read(run)]


# --- declaring -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "more"),
    [
        ("a/{other}", {}), ("a/{payment.real}", {}), ("a/{payment[0]}", {}), ("a/{payment!r}", {}),
        ("a/{payment:03}", {}), ("a/{}", {}), ("a/{", {}), ("a/{payment}", {"effect": "read"}),
        ("a/{payment}", {"secret": ["payment"]}),
    ],
)  # fmt: skip
def test_a_template_names_parameters_only(template: str, more: dict[str, Any]) -> None:
    def refund(payment: int) -> None: ...

    with pytest.raises(ContractError):
        tool(once=template, **more)(refund)


def test_keys_show_the_arguments_and_are_short() -> None:
    assert key_of("a/{x}/{y}", {"x": "it", "y": 1.5}) == "a/it/1.5"
    assert key_of("{{x}}", {}) == "{x}"
    assert key_of("{x}", {"x": [1, {"b": None}]}) == '[1,{"b":null}]'
    for odd in ("a" * 2000, "a\0b", "a\nb", "\udc80"):
        key = key_of("{x}", {"x": odd})
        assert len(key.encode()) < 200
        assert key.isprintable()
    assert key_of("{x}", {"x": "a\0b"}) != key_of("{x}", {"x": "a\nb"})


# --- one after the other -------------------------------------------------------------------------


def test_a_second_call_is_given_the_first_ones_outcome(tmp_path: Path) -> None:
    with Session("one", store=tmp_path) as first:
        given = refund(7)
        assert refund(7) == given  # in the same run
        assert first.stats.supplied == 1
    seen: list[Any] = []

    def observe(event: StepEvent) -> None:
        if event.what != "started":
            seen.append((event.what, event.origin, event.status))

    with Session("two", store=tmp_path, observers=[observe]) as second:
        assert refund(7) == given
        assert refund(8) != given
    assert world.refunds == [7, 8]
    assert second.stats.supplied == 1
    assert seen == [("replayed", (first.run_id, 1), "ok"), ("settled", None, "ok")]
    line = next(e for e in events(tmp_path, second.run_id) if e["event"] == "step")
    assert line["once"] == [first.run_id, 1, "refund/7"]
    with Session("two", store=tmp_path, replay="continue") as again:
        assert refund(7) == given
    assert (again.stats.hits, again.stats.supplied) == (1, 0)
    report = undo_run(tmp_path, second.run_id)  # the first one's effect is not this run's
    assert world.refunds == [7]
    assert report.complete
    with Session("two", store=tmp_path, replay="offline", run=first.run_id):
        assert refund(7) == given


def test_other_arguments_are_refused_and_told(tmp_path: Path) -> None:
    with Session("one", store=tmp_path) as first:
        refund(7)
    with Session("two", store=tmp_path):
        with pytest.raises(Blocked, match=rf"{first.run_id}.*amount: 5 there, 6 here") as refused:
            refund(7, amount=6)
        assert refused.value.verdict_code == "once_differs"
        with pytest.raises(Blocked, match="a call of refund, not of arefund"):
            another(7)
    assert world.refunds == [7]


@tool(name="arefund", once="refund/{payment}")
def another(payment: int) -> str:
    """Refund a payment with another tool."""
    world.refunds.append(payment)
    return ""


def test_undo_frees_the_key_and_what_stands_keeps_it(tmp_path: Path) -> None:
    with Session("one", store=tmp_path) as first:
        refund(7)
        mail("hi")
    undo_run(tmp_path, first.run_id)
    assert world.refunds == [0]
    assert claim_of(tmp_path, "refund/7").state == "free"
    with Session("two", store=tmp_path):
        refund(7)
        assert mail("hi") == "sent hi"  # it could not be taken back
    assert world.refunds == [0, 7]
    with Session("one", store=tmp_path, on_divergence="warn"):  # the mail lies ahead
        refund(7)
        mail("hi")
    assert world.refunds == [0, 7]


def test_a_rolled_back_block_frees_its_keys(tmp_path: Path) -> None:
    with Session("one", store=tmp_path) as session:
        with pytest.raises(KeyError), session.transaction():
            refund(7)
            raise KeyError
        assert world.refunds == []
        assert refund(7).startswith("7")
    assert world.refunds == [7]


def test_a_clean_failure_frees_the_key(tmp_path: Path) -> None:
    with Session("one", store=tmp_path):
        world.error = ValueError("refused")
        with pytest.raises(ValueError, match="refused"):
            refund(7)
        world.error = None
        refund(8)
    with Session("two", store=tmp_path):
        refund(7)
    with Session("one", store=tmp_path, replay="continue"):
        with pytest.raises(ValueError, match="refused"):
            refund(7)
        refund(8)
        assert refund(7).endswith("no. 2")
    assert world.refunds == [8, 7]


@pytest.mark.parametrize("error", [TimeoutError("no answer"), KeyError("who knows")])
def test_nobody_knows_so_it_halts_until_somebody_says(tmp_path: Path, error: Exception) -> None:
    world.error = error
    first = Session("one", store=tmp_path, replay="off")
    with contextlib.suppress(UnknownOutcome), first, pytest.raises(type(error)):
        refund(7)
    world.error = None
    two = Session("two", store=tmp_path)
    said = r"rollcage once refund/7 .*; or resume that run"
    with pytest.raises(UnknownOutcome, match=said) as halt, two:
        refund(7)
    assert (halt.value.run, halt.value.step) == (first.run_id, 1)
    with pytest.raises(UnknownOutcome), Session("three", store=tmp_path):
        refund(7, amount=5)
    effect = once_of(tmp_path, "refund/7")
    assert effect is not None
    assert (effect.state, effect.run, effect.step) == ("unknown", first.run_id, 1)
    effect.resolve(happened=True, result="by hand")
    with pytest.raises(StepNotUnknown):
        claim_of(tmp_path, "refund/7").resolve(happened=False)
    with Session("two", store=tmp_path):
        assert refund(7) == "by hand"
    assert world.refunds == []


@pytest.mark.parametrize("is_idempotent", [True, False])
def test_a_call_that_may_have_happened_is_made_again_by_its_own_run(
    tmp_path: Path, is_idempotent: bool
) -> None:
    """If it is idempotent, or somebody says so."""

    @tool(once="post/{number}", idempotent=is_idempotent)
    def post(number: int, text: str = "") -> str:
        """Post a text."""
        if world.error is not None:
            raise world.error
        world.refunds.append(number)
        return text

    def fails() -> None:
        world.error = KeyError("who knows")
        with pytest.raises(KeyError, match="who knows"):
            post(7)
        world.error = None

    approver = None if is_idempotent else lambda _: Approval(True, by="ann")
    with Session("one", store=tmp_path, approver=approver):
        fails()
        with pytest.raises(Blocked, match="text"):
            post(7, text="another")
        assert post(7) == ""
    with Session("one", store=tmp_path / "two"):
        fails()
    with pytest.raises(UnknownOutcome), Session("other", store=tmp_path / "two"):
        post(7)
    assert world.refunds == [7]


def test_it_did_not_happen_so_the_key_is_free(tmp_path: Path) -> None:
    world.error = TimeoutError()
    with pytest.raises(UnknownOutcome), Session("one", store=tmp_path):
        refund(7)
    world.error = None
    claim_of(tmp_path, "refund/7").resolve(happened=False)
    with Session("two", store=tmp_path):
        refund(7)
    with Session("one", store=tmp_path) as one:
        assert refund(7) == "7: 5, no. 1"
    assert world.refunds == [7]
    assert one.stats.supplied == 1


# --- at the same time ----------------------------------------------------------------------------


def test_threads_of_one_run_wait_for_the_first(tmp_path: Path) -> None:
    begun, going = threading.Event(), threading.Event()

    def during() -> None:
        begun.set()
        assert going.wait(30)

    world.during = during
    given: list[str] = []
    with Session("one", store=tmp_path) as session:
        threads = [
            threading.Thread(target=lambda: given.append(session.call(refund, payment=7)))
            for _ in range(4)
        ]
        threads[0].start()
        assert begun.wait(30)
        for each in threads[1:]:
            each.start()
        going.set()
        for each in threads:
            each.join(30)
    assert world.refunds == [7]
    assert len(given) == 4
    assert len(set(given)) == 1
    assert session.stats.supplied == 3


def test_gathered_calls_of_one_run_wait_for_the_first(tmp_path: Path) -> None:
    async def run() -> tuple[list[str], int]:
        async with Session("one", store=tmp_path) as session:
            given = await asyncio.gather(*(arefund(payment=7) for _ in range(5)))
            return given, session.stats.supplied

    assert asyncio.run(run()) == (["async 7"] * 5, 4)
    assert world.refunds == [7]
    given, supplied = asyncio.run(run())
    assert (given, supplied) == (["async 7"] * 5, 5)


def test_a_run_waits_for_another_one(tmp_path: Path) -> None:
    begun, going = threading.Event(), threading.Event()

    def during() -> None:
        begun.set()
        assert going.wait(30)

    world.during = during
    given: list[str] = []

    def job(name: str) -> None:
        with Session(name, store=tmp_path):
            given.append(refund(7))

    threads = [threading.Thread(target=job, args=(name,)) for name in ("one", "two")]
    threads[0].start()
    assert begun.wait(30)
    threads[1].start()
    going.set()
    for each in threads:
        each.join(30)
    assert world.refunds == [7]
    assert len(given) == 2
    assert len(set(given)) == 1


def test_it_waits_so_long_and_says_for_whom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(once, "PATIENCE", 0.0)
    halts: list[UnknownOutcome] = []

    def during() -> None:
        def other() -> None:
            two = Session("two", store=tmp_path)
            with pytest.raises(UnknownOutcome, match="has not ended in 0 seconds") as halt, two:
                refund(7)
            halts.append(halt.value)

        thread = threading.Thread(target=other)
        thread.start()
        thread.join(30)

    world.during = during
    with Session("one", store=tmp_path) as first:
        refund(7)
    assert [(each.run, each.step) for each in halts] == [(first.run_id, 1)]
    assert world.refunds == [7]


@pytest.mark.parametrize("ends", [True, False])
def test_how_often_a_call_looks_at_a_run_of_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    """The pauses double up to half a second, and begin anew when the run has written a line."""
    now, slept, halts, given = [0.0], list[float](), list[UnknownOutcome](), list[str]()
    writes: dict[int, Callable[[], object]] = {}

    def sleep(seconds: float) -> None:
        now[0] += seconds
        slept.append(seconds)
        if len(slept) in writes:
            writes[len(slept)]()

    def let_it_end() -> None:
        free.set()
        done.wait(30)

    def during() -> None:
        monkeypatch.setattr(once, "_flights", {})  # as it is in another process
        monkeypatch.setattr(once, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
        writes[4] = lambda: first.attempt.note({"event": "moved", "step": 1, "call_id": "c1"})

        def other() -> None:
            two = Session("two", store=tmp_path)
            if ends:
                writes[6] = let_it_end
            try:
                with two:
                    given.append(refund(7))
            except UnknownOutcome as halt:
                halts.append(halt)
            free.set()

        thread = threading.Thread(target=other)
        thread.start()
        threads.append(thread)
        assert free.wait(30)

    free, done, threads = threading.Event(), threading.Event(), list[threading.Thread]()
    world.during = during
    with Session("one", store=tmp_path) as first:
        made = refund(7)
        done.set()
        threads[0].join(30)
    assert slept[:6] == [0.005, 0.01, 0.02, 0.04, 0.005, 0.01]
    assert world.refunds == [7]
    if ends:
        assert (given, halts) == ([made], [])
        return
    assert [(each.run, each.step) for each in halts] == [(first.run_id, 1)]
    assert slept[4:11] == [0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32]
    assert slept[11] == 0.005
    assert 60 < now[0] < 61


def test_inside_of_itself_it_is_refused(tmp_path: Path) -> None:
    def during() -> None:
        with pytest.raises(Blocked, match="this call is a part of that one"):
            refund(7)

        def elsewhere() -> None:
            with pytest.raises(Blocked, match="this call is a part of that one"):
                refund(7)

        thread = threading.Thread(target=contextvars.copy_context().run, args=(elsewhere,))
        thread.start()
        thread.join(30)

    world.during = during
    with Session("one", store=tmp_path):
        refund(7)
    assert world.refunds == [7]


def test_a_cancelled_waiter_leaves_no_claim(tmp_path: Path) -> None:
    begun = asyncio.Event()
    going = asyncio.Event()

    @tool(name="arefund", once="refund/{payment}")
    async def slow(payment: int) -> str:
        world.refunds.append(payment)
        begun.set()
        await going.wait()
        return "slow"

    async def run() -> str:
        async with Session("one", store=tmp_path):
            first = asyncio.ensure_future(slow(payment=7))
            await begun.wait()
            second = asyncio.ensure_future(slow(payment=7))
            await asyncio.sleep(0)
            second.cancel()
            with pytest.raises(asyncio.CancelledError):
                await second
            going.set()
            return await first

    flights = dict(once._flights)
    assert asyncio.run(run()) == "slow"
    assert world.refunds == [7]
    assert once._flights == flights


RACER = """
import os, sys
from rollcage import Session, tool
from rollcage.errors import Halt

@tool(once="refund/{payment}")
def refund(payment: int) -> str:
    with open(sys.argv[2], "a") as file:
        file.write(f"{os.getpid()}\\n")
    if sys.argv[3] == "dies":
        os._exit(9)
    return f"by {os.getpid()}"

sys.stdin.readline()
try:
    with Session(f"job {os.getpid()}", store=sys.argv[1]):
        print(refund(7))
except Halt as halt:
    print(type(halt).__name__)
"""


@pytest.mark.parametrize("fate", ["lives", "dies"])
def test_processes_race_for_one_key(tmp_path: Path, fate: str) -> None:
    effects = tmp_path / "effects"
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, str(tmp_path / "store"), str(effects), fate],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for _ in range(8 if fate == "lives" else 4)
    ]  # fmt: skip
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("\n")
        racer.stdin.flush()
    told = [racer.communicate(timeout=120)[0].strip() for racer in racers]
    (made,) = effects.read_text().split()
    if fate == "lives":
        assert set(told) == {f"by {made}"}
    else:
        assert sorted(told) == ["", *["UnknownOutcome"] * 3]


# --- owners that go ------------------------------------------------------------------------------


def test_a_pruned_owner_leaves_its_outcome_in_the_claim(tmp_path: Path) -> None:
    big = "x" * 200_000
    with Session("one", store=tmp_path) as first:
        given = refund(7)
        mail(big)
        world.error = ValueError("refused")
        with pytest.raises(ValueError, match="refused"):
            refund(8)
        world.error = None
    store = Folder(tmp_path)
    assert len(keep_claims(store, first.run_id)) == 2
    assert keep_claims(store, first.run_id) == []
    (tmp_path / "logs" / f"{first.run_id}.jsonl").unlink()
    for blob in store.keys("blobs"):
        store.swap("blobs", blob, store.get("blobs", blob), None)
    effect = once_of(tmp_path, "refund/7")
    assert effect is not None
    assert (effect.state, effect.step, effect.run) == ("done", 1, first.run_id)
    with Session("two", store=tmp_path):
        assert refund(7) == given
        assert mail(big) == f"sent {big}"
        with pytest.raises(Blocked, match="with other arguments"):
            refund(7, amount=6)
        refund(8)
    assert world.refunds == [7, 0, 8]


def test_an_owner_of_whom_nobody_knows_can_not_be_pruned(tmp_path: Path) -> None:
    world.error = TimeoutError()
    with pytest.raises(UnknownOutcome), Session("one", store=tmp_path) as first:
        refund(7)
    world.error = None
    with pytest.raises(UnknownOutcome, match="rollcage once"):
        keep_claims(Folder(tmp_path), first.run_id)


@pytest.mark.parametrize("happened", [True, False])
def test_an_owner_that_was_removed_by_hand(tmp_path: Path, happened: bool) -> None:
    with Session("one", store=tmp_path) as first:
        refund(7)
    (tmp_path / "logs" / f"{first.run_id}.jsonl").unlink()
    with pytest.raises(UnknownOutcome, match="whose log is gone"), Session("two", store=tmp_path):
        refund(7)
    with pytest.raises(RunNotFound):
        Folder(tmp_path).read(first.run_id)  # nobody has made an empty one of it
    effect = once_of(tmp_path, "refund/7")
    assert effect is not None
    if happened:
        effect.resolve(happened=True, result="it was")
    else:
        effect.resolve(happened=False)
    with Session("two", store=tmp_path):
        assert refund(7) == ("it was" if happened else "7: 5, no. 2")


def test_a_claim_whose_lock_was_lost_is_looked_at_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A live owner between its claim and its intent, which others take for dead."""
    given: list[str] = []

    def other() -> None:
        with Session("two", store=tmp_path):
            given.append(refund(7))

    store = Mortal(tmp_path)
    monkeypatch.setattr(Folder, "is_live", lambda _store, _run: False)

    def at(moment: int) -> None:
        if store.get("once", "refund/7") is not None and not given:
            given.append("")
            thread = threading.Thread(target=other)
            thread.start()
            thread.join(30)

    store.at = at
    with pytest.raises(UnknownOutcome, match="taken for dead"), Session("one", store=store):
        refund(7)
    assert given == ["", "7: 5, no. 1"]
    assert world.refunds == [7]
    store.at = None
    with Session("one", store=store):
        assert refund(7) == "7: 5, no. 1"
    assert world.refunds == [7]


# --- kills ---------------------------------------------------------------------------------------


def job(name: str, payments: list[int], how: Any = "halt") -> Callable[[Any], list[str]]:
    def program(store: Any) -> list[str]:
        with Session(name, store=store, replay="continue", on_divergence=how):
            return [refund(each) for each in payments]

    return program


def settle(root: Path, run: str, step: int) -> None:
    """Say the truth about a step of which nobody knows."""
    called = next(e for e in events(root, run) if e["event"] == "step" and e["step"] == step)
    payment = called["args"]["payment"]
    happened = world.refunds.count(payment) == 1
    told: dict[str, Any] = {"result": f"{payment}: told"} if happened else {}
    effect = once_of(root, f"refund/{payment}")
    if effect is not None and (effect.run, effect.step) == (run, step):
        effect.resolve(happened=happened, **told)
    else:
        resolve_step(root, run, step, happened=happened, **told)


def through(root: Path, program: Callable[[Any], list[str]]) -> list[str]:
    for _ in range(20):
        try:
            return program(root)
        except UnknownOutcome as halt:
            settle(root, halt.run, halt.step)
    raise AssertionError("it halts for ever")


def test_killed_at_every_moment_it_is_made_once(tmp_path: Path) -> None:
    program = job("one", [7, 8, 7])
    whole, store = until_it_dies(tmp_path / "whole", 0, program)
    assert not isinstance(whole, Killed)
    for life in range(1, store.moments + 1):
        for first, second in (("one", "two"), ("two", "one")):
            world.__init__()  # type: ignore[misc] # a new one
            root = tmp_path / f"{life}-{first}"
            gave, _ = until_it_dies(root, life, program)
            assert isinstance(gave, Killed)
            jobs = {"one": [7, 8, 7], "two": [8, 7]}
            given = {name: through(root, job(name, jobs[name])) for name in (first, second)}
            assert sorted(world.refunds) == [7, 8], (life, first)
            seven, eight, again = given["one"]
            assert given["two"] == [eight, seven], (life, first)
            assert again == seven, (life, first)


@pytest.mark.parametrize("seed", range(40))
def test_random_jobs_killed_and_undone(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - no secret
    jobs = {
        f"job {n}": [chance.randint(1, 4) for _ in range(chance.randint(1, 4))] for n in range(3)
    }
    runs: dict[str, str] = {}
    for _ in range(12):
        name = chance.choice(list(jobs))
        program = job(name, jobs[name], "warn")  # what answered another job stays
        try:
            until_it_dies(tmp_path, chance.randint(1, 40), program)
        except UnknownOutcome as halt:
            if chance.random() < 0.7:
                settle(tmp_path, halt.run, halt.step)
        assert len(set(world.refunds)) == len(world.refunds)
        pointer = Folder(tmp_path).get("names", name)
        if pointer is not None:
            runs[name] = pointer.decode()
        if runs and chance.random() < 0.15:
            undone = runs[chance.choice(list(runs))]
            for _ in range(5):
                report = undo_run(tmp_path, undone)
                for each in report.steps:
                    if each.status == "unknown":
                        settle(tmp_path, undone, each.step)
                if report.complete:
                    break
    given = {name: through(tmp_path, job(name, each, "warn")) for name, each in jobs.items()}
    made = [payment for payments in jobs.values() for payment in payments]
    assert sorted(world.refunds) == sorted(set(made))
    for name, payments in jobs.items():
        for payment, gave in zip(payments, given[name], strict=True):
            assert gave.startswith(f"{payment}: ")


# --- with the rest -------------------------------------------------------------------------------


def test_a_step_that_runs_again_keeps_its_claim(tmp_path: Path) -> None:
    @tool(once="pay/{n}", probe=lambda args: DidNotHappen())
    def pay(n: int) -> str:
        world.refunds.append(n)
        if len(world.refunds) == 1:
            world.refunds.clear()
            world.refunds.append(-1)
            raise TimeoutError
        return f"paid {n}"

    with pytest.raises(UnknownOutcome), Session("one", store=tmp_path) as one:
        pay(1)
    with Session("one", store=tmp_path):
        assert pay(1) == "paid 1"
    with Session("two", store=tmp_path):
        assert pay(1) == "paid 1"
    effect = once_of(tmp_path, "pay/1")
    assert effect is not None
    assert (effect.state, effect.run) == ("done", one.run_id)
    assert world.refunds == [-1, 1]


def test_a_guard_may_still_say_no(tmp_path: Path) -> None:
    from rollcage.gate.verdict import Verdict

    with Session("one", store=tmp_path):
        refund(7)
    denies = Session("two", store=tmp_path, gate=[lambda _: Verdict.deny("no")])
    with denies, pytest.raises(Blocked):
        refund(7)


def test_a_failed_preparation_gives_the_claim_back(tmp_path: Path) -> None:
    def observe(args: dict[str, Any]) -> Any:
        if world.error is not None:
            raise world.error
        return {}

    @tool(once="pay/{n}", observe=observe)
    def pay(n: int) -> str:
        return f"paid {n}"

    world.error = OSError("can't look")
    with Session("one", store=tmp_path):
        with pytest.raises(Blocked):
            pay(1)
        assert once_of(tmp_path, "pay/1") is None
        world.error = None
        with pytest.raises(RunInUse):
            Session("one", store=tmp_path, run=once_run(tmp_path)).__enter__()
        assert pay(1) == "paid 1"


def once_run(root: Path) -> str:
    found = Folder(root).get("names", "one")
    assert found is not None
    return found.decode()


def test_a_take_over_leaves_no_stale_claim(tmp_path: Path) -> None:
    """Who is taken over between claim and intent loses the claim, and its body never runs."""
    store = Mortal(tmp_path)
    given: list[str] = []

    def at(_: int) -> None:
        if store.get("once", "refund/7") is not None and not given:
            given.append("")

            def other() -> None:
                options = Options(take=True)
                with Session("one", store=tmp_path, options=options):
                    given.append(refund(7))

            thread = threading.Thread(target=other)
            thread.start()
            thread.join(30)

    store.at = at
    with pytest.raises(Exception, match="took its run over"), Session("one", store=store):
        refund(7)
    assert given == ["", "7: 5, no. 1"]
    assert world.refunds == [7]


# --- what somebody says of an effect -------------------------------------------------------------


@tool(name="once.fails", idempotent=True)
def fails(n: int) -> None:
    """Take nothing back."""
    raise OSError("it is away")


@tool(once="pay/{n}", undo=lambda args: [compensate(fails, n=args["n"])])
def pay(n: int, note: str = "") -> str:
    """Pay, for good."""
    world.refunds.append(n)
    return f"paid {n}, no. {len(world.refunds)}{note}"


@pytest.mark.parametrize("size", [0, 200_000])
@pytest.mark.parametrize("told", [{}, {"result": "by hand"}])
def test_what_an_undo_left_half_done_did_happen(
    tmp_path: Path, told: dict[str, Any], size: int
) -> None:
    note = "x" * size
    with Session("one", store=tmp_path) as first:
        given = pay(7, note)
    assert not undo_run(tmp_path, first.run_id).complete
    effect, late = claim_of(tmp_path, "pay/7"), claim_of(tmp_path, "pay/7")
    assert (effect.state, effect.run, effect.step, effect.tool) == (
        "unknown", first.run_id, 1, "pay",
    )  # fmt: skip
    two = Session("two", store=tmp_path)
    with pytest.raises(UnknownOutcome, match="nobody knows whether it happened") as halt, two:
        pay(7, note)
    assert (halt.value.run, halt.value.step) == (first.run_id, 1)
    effect.resolve(happened=True, **told)
    with pytest.raises(StepNotUnknown, match="has changed meanwhile"):
        late.resolve(happened=False)
    effect = claim_of(tmp_path, "pay/7")
    assert (effect.state, effect.step) == ("done", 1)
    assert effect.outcome == {"status": "ok", "value": told.get("result", given)}
    with Session("two", store=tmp_path):
        assert pay(7, note) == told.get("result", given)
    assert world.refunds == [7]


def test_what_an_undo_left_half_done_did_not_happen(tmp_path: Path) -> None:
    with Session("one", store=tmp_path) as first:
        pay(7)
    undo_run(tmp_path, first.run_id)
    claim_of(tmp_path, "pay/7").resolve(happened=False)
    assert once_of(tmp_path, "pay/7") is None
    with Session("two", store=tmp_path):
        assert pay(7) == "paid 7, no. 2"


def test_what_is_being_taken_back_is_to_be_undone(tmp_path: Path) -> None:
    with Session("one", store=tmp_path) as first:
        refund(7)
    undo_run(tmp_path, first.run_id)
    lines = Folder(tmp_path).read(first.run_id)
    begun = next(at for at, line in enumerate(lines) if b'"event":"undoing"' in line)
    cut_log(tmp_path / "logs" / f"{first.run_id}.jsonl", begun + 1)
    effect = claim_of(tmp_path, "refund/7")
    assert effect.state == "unknown"
    with pytest.raises(StepNotUnknown, match=f"is being taken back.*rollcage undo {first.run_id}"):
        effect.resolve(happened=True)
    with pytest.raises(UnknownOutcome), Session("two", store=tmp_path):
        refund(7)
    world.refunds.append(7)  # as if it had been cut before its call
    undo_run(tmp_path, first.run_id)
    assert claim_of(tmp_path, "refund/7").state == "free"


def test_an_effect_that_is_taken_back_for_a_call_does_not_answer_it(tmp_path: Path) -> None:
    with pytest.raises(KeyError), Session("one", store=tmp_path):
        refund(7)
        raise KeyError
    session = Session("one", store=tmp_path, on_divergence="undo")
    with session, session.branch("elsewhere"):
        refund(7)
    assert (world.gone, world.refunds) == ([7], [7])


@tool(undo=lambda: [compensate(unrefund, payment=7)])
def refund_all() -> str:
    return refund(7)


@pytest.mark.parametrize(("job", "whose"), [("one", "step 1"), ("two", "another run")])
def test_a_plan_does_not_take_back_what_was_done_elsewhere(
    tmp_path: Path, job: str, whose: str
) -> None:
    with contextlib.suppress(KeyError), Session("one", store=tmp_path) as first:
        refund(7)
        raise KeyError
    with Session(job, store=tmp_path) as session:
        refund(7)
        refund_all()
        (step,) = session.undo(to=1 if session.run_id == first.run_id else None).steps[:1]
    assert (step.name, step.status) == ("refund_all", "irreversible")
    assert step.reason == f"its plan would take back what {whose} did, too"
    assert world.gone == []


def test_an_effect_that_answers_a_call_that_stays_is_not_taken_back(tmp_path: Path) -> None:
    def work(session: Session, *names: str) -> None:
        with session.turn(opens={"one": [], "two": []}):
            for name in names:
                with session.branch(name):
                    refund(7)

    with pytest.raises(KeyError), Session("job", store=tmp_path) as session:
        work(session, "one", "two")
        raise KeyError
    assert session.stats.supplied == 1
    session = Session("job", store=tmp_path, on_divergence="undo")
    with pytest.raises(Diverged, match="step 4 was answered with its effect, and stays"), session:
        work(session, "two")
    report = undo_run(tmp_path, session.run_id, branch="one")
    assert [each.status for each in report.steps] == ["irreversible"]
    assert (world.gone, world.refunds) == ([], [7])
    assert undo_run(tmp_path, session.run_id).complete
    assert (world.gone, world.refunds) == ([7], [])


def test_what_nobody_has_a_result_of(tmp_path: Path) -> None:
    with Session("one", store=tmp_path) as first:
        pay(7)
    (tmp_path / "logs" / f"{first.run_id}.jsonl").unlink()
    claim_of(tmp_path, "pay/7").resolve(happened=True)
    effect = claim_of(tmp_path, "pay/7")
    assert (effect.state, effect.step) == ("done", 0)
    two = Session("two", store=tmp_path)
    with pytest.raises(NotReplayable, match="its result is not known"), two:
        pay(7)
    assert world.refunds == [7]


def test_who_said_it_is_on_record(tmp_path: Path) -> None:
    world.error = TimeoutError()
    with pytest.raises(UnknownOutcome), Session("one", store=tmp_path) as first:
        refund(7)
    claim_of(tmp_path, "refund/7").resolve(happened=True, result="told", by="ann")
    said = events(tmp_path, first.run_id)[-1]
    assert (said["event"], said["by"], said["outcome"]["value"]) == ("outcome", "ann", "told")
    assert claim_of(tmp_path, "refund/7").outcome == said["outcome"]


def test_only_claims_of_the_run_itself_are_kept(tmp_path: Path) -> None:
    with Session("one", store=tmp_path) as first:
        refund(7)
    with Session("two", store=tmp_path) as second:
        refund(7)
        world.error = ValueError("refused")
        with pytest.raises(ValueError, match="refused"):
            refund(8)
    store = Folder(tmp_path)
    assert keep_claims(store, second.run_id) == []
    assert once_of(store, "refund/8") is None
    assert keep_claims(store, first.run_id) == ["refund/7"]


def test_one_that_is_being_made_can_not_be_pruned(tmp_path: Path) -> None:
    session = Session("one", store=tmp_path)

    def during() -> None:
        with pytest.raises(RunInUse, match=f"refund/7 is being made by run {session.run_id}"):
            keep_claims(Folder(tmp_path), session.run_id)
        assert claim_of(tmp_path, "refund/7").state == "flying"
        with pytest.raises(StepNotUnknown, match="refund/7 is flying"):
            claim_of(tmp_path, "refund/7").resolve(happened=True)

    world.during = during
    with session:
        refund(7)
    assert claim_of(tmp_path, "refund/7").state == "done"


def test_a_claim_that_can_not_be_read(tmp_path: Path) -> None:
    Folder(tmp_path).swap("once", "refund/7", None, b"{}")
    with pytest.raises(StoreError, match="the claim of 'refund/7' in the store can't be read"):
        once_of(tmp_path, "refund/7")


def test_each_argument_that_differs_is_told(tmp_path: Path) -> None:
    @tool(name="pay", once="pay/{n}")
    def other(n: int, to: str = "ann", note: str = "") -> str:
        return f"{n} to {to}"

    with Session("one", store=tmp_path):
        pay(7, "y" * 70)
        pay(8, "y" * 58)
    with Session("two", store=tmp_path):
        for n, told in ((7, f'"{"y" * 59}…'), (8, f'"{"y" * 58}"')):  # up to 60 characters
            with pytest.raises(Blocked) as refused:
                other(n, note="z")
            there = f'note: {told} there, "z" here; to: nothing there, "ann" here'
            assert there in str(refused.value)


def test_keys_of_a_thousand_bytes_are_hashed() -> None:
    assert key_of("{x}", {"x": "é" * 450}) == "é" * 450
    long = key_of("{x}", {"x": "é" * 450 + "a"})
    assert long.startswith("é" * 100 + "~")
    assert len(long) == 100 + 1 + 64


@pytest.mark.parametrize("is_other", [False, True])
def test_a_waiting_call_is_woken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_other: bool
) -> None:
    """It looks again when the call before it ends, and not only after a pause."""
    monkeypatch.setattr(once, "_PAUSES", (1000.0, 1000.0))
    monkeypatch.setattr(once, "PATIENCE", 1000.0)
    begun, waits = threading.Event(), threading.Event()
    ended, given = once._ended, list[str]()

    def waited(*args: Any, **how: Any) -> Any:
        waits.set()
        return ended(*args, **how)

    monkeypatch.setattr(once, "_ended", waited)

    def during() -> None:
        begun.set()
        assert waits.wait(30)

    world.during = during

    def first(session: Session) -> None:
        given.append(session.call(refund, payment=7))

    def second(session: Session) -> None:
        assert begun.wait(30)
        if is_other:
            with Session("two", store=tmp_path):
                given.append(refund(7))
        else:
            given.append(session.call(refund, payment=7))

    with Session("one", store=tmp_path) as session:
        threads = [threading.Thread(target=each, args=(session,)) for each in (first, second)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(30)
    assert given == ["7: 5, no. 1"] * 2


async def test_a_waiting_task_is_woken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(once, "_PAUSES", (1000.0, 1000.0))
    async with Session("one", store=tmp_path) as session:
        calls = asyncio.gather(*(session.acall(arefund, payment=7) for _ in range(2)))
        assert await asyncio.wait_for(calls, 30) == ["async 7"] * 2
    assert world.refunds == [7]


def test_an_approved_effect_is_claimed_once_approved(tmp_path: Path) -> None:
    """While somebody thinks, another run may make it; and it is made once."""
    states: list[Any] = []

    def approver(_: Any) -> Approval:
        states.append(once_of(tmp_path, "refund/7"))
        return Approval(True, by="ann")

    for name in ("one", "two"):
        with Session(name, store=tmp_path, gate=[lambda _: Verdict.ask("?")], approver=approver):
            assert refund(7) == "7: 5, no. 1"
    assert states[0] is None
    assert world.refunds == [7]


def test_a_part_of_the_call_waits_for_nothing(tmp_path: Path) -> None:
    @tool(effect="scope")
    def part() -> None:
        with pytest.raises(Blocked, match="step 1 of this run") as refused:
            refund(7)
        assert refused.value.verdict_code == "once_inside"

    def during() -> None:
        part()
        thread = threading.Thread(target=contextvars.copy_context().run, args=(part,))
        thread.start()
        thread.join(30)

    world.during = during
    with Session("one", store=tmp_path) as session:
        refund(7)
    assert session.stats.blocked == 2


@pytest.mark.parametrize("is_other", [False, True])
async def test_a_sync_call_holds_up_no_task_that_it_waits_for(
    tmp_path: Path, is_other: bool
) -> None:
    begun, goes_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def during() -> None:
        loop.call_soon_threadsafe(begun.set)
        assert goes_on.wait(30)

    world.during = during
    async with Session("one", store=tmp_path) as session:
        first = asyncio.create_task(session.acall(refund, payment=7))
        await begun.wait()
        with pytest.raises(SessionError, match="await the call"):
            if is_other:
                with Session("two", store=tmp_path):
                    refund(7)
            else:
                refund(7)
        goes_on.set()
        assert await first == "7: 5, no. 1"
        assert await session.acall(refund, payment=7) == "7: 5, no. 1"
    assert world.refunds == [7]


def test_a_part_of_the_call_on_a_loop_waits_for_nothing(tmp_path: Path) -> None:
    async def again() -> None:
        async with Session("two", store=tmp_path) as session:
            with pytest.raises(Blocked, match="is a part of that one"):
                await session.acall(refund, payment=7)

    world.during = lambda: asyncio.run(again())
    with Session("one", store=tmp_path):
        refund(7)
    assert world.refunds == [7]


async def test_a_key_is_not_free_while_a_call_that_did_not_happen_is_made(tmp_path: Path) -> None:
    world.error = TimeoutError()
    with pytest.raises(UnknownOutcome):
        async with Session("one", store=tmp_path) as session:
            await session.acall(refund, payment=7)
    claim_of(tmp_path, "refund/7").resolve(happened=False)
    world.error = None
    async with Session("one", store=tmp_path) as session:
        given = await asyncio.gather(*(session.acall(refund, payment=7) for _ in range(2)))
    assert given == ["7: 5, no. 1"] * 2
    assert world.refunds == [7]


def test_a_killed_undo_keeps_no_key_of_a_call_that_did_nothing(tmp_path: Path) -> None:
    with Session("one", store=tmp_path) as session:
        refund(8)
        world.error = ValueError("refused")
        with pytest.raises(ValueError, match="refused"):
            refund(7)
    world.error = None
    undo_run(tmp_path, session.run_id, tools=[refund, unrefund])
    kinds = [each["event"] for each in events(tmp_path, session.run_id)]
    cut_log(tmp_path / "logs" / f"{session.run_id}.jsonl", kinds.index("undoing") + 1)
    half = pytest.raises(UnknownOutcome, match="refund/8 is being taken back: an undo of run")
    with half, Session("two", store=tmp_path):
        refund(7)
        refund(8)
    assert world.refunds == [7]


# --- beside a transaction ------------------------------------------------------------------------


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("where", ["branch", "session", "run"])
async def test_what_a_transaction_may_take_back_is_waited_for(
    tmp_path: Path, where: str, fails: bool
) -> None:
    paid, given = asyncio.Event(), list[str]()

    async def first(session: Session) -> None:
        with contextlib.suppress(KeyError), session.branch("first"):
            async with session.transaction():
                await session.acall(refund, payment=7)
                assert await session.acall(refund, payment=7) == "7: 5, no. 1"
                paid.set()
                await asks
                if fails:
                    raise KeyError

    async def second(session: Session) -> None:
        await paid.wait()
        asks.get_loop().call_later(0.05, asks.set_result, None)
        if where == "branch":
            with session.branch("second"):
                given.append(await session.acall(refund, payment=7))
            return
        async with Session("two", store=tmp_path) as another:
            given.append(await another.acall(refund, payment=7))

    asks = asyncio.get_running_loop().create_future()
    async with Session("one", store=tmp_path) as session:
        with session.turn(opens={"first": (), "second": ()}):
            around = contextvars.Context() if where == "run" else contextvars.copy_context()
            other = asyncio.create_task(second(session), context=around)
            await asyncio.gather(first(session), other)
    assert given == ["7: 5, no. 2" if fails else "7: 5, no. 1"]
    assert world.refunds == [7]


async def test_a_sync_call_holds_up_no_transaction_that_it_waits_for(tmp_path: Path) -> None:
    def elsewhere() -> None:
        with Session("two", store=tmp_path):
            refund(7)

    async with Session("one", store=tmp_path) as session:
        async with session.transaction():
            await session.acall(refund, payment=7)
            with pytest.raises(SessionError, match="await the call"):
                contextvars.Context().run(elsewhere)
        contextvars.Context().run(elsewhere)
    assert world.refunds == [7]


def left_in_a_transaction(root: Path) -> str:
    """A run that was killed in a transaction, behind a refund."""
    with Session("one", store=root) as session, session.transaction():
        refund(7)
    kinds = [each["event"] for each in events(root, session.run_id)]
    cut_log(root / "logs" / f"{session.run_id}.jsonl", kinds.index("outcome") + 1)
    return session.run_id


def halted_at(root: Path, run: str) -> None:
    """Check that another run halts, and says how the first one is ended."""
    wanted = f"refund/7 was made by step 2 of run {run}, in a transaction .* rollcage undo {run}"
    with pytest.raises(UnknownOutcome, match=wanted), Session("two", store=root):
        refund(7)
    effect = claim_of(root, "refund/7")
    assert effect.state == "unknown"
    for happened in (False, True):
        with pytest.raises(StepNotUnknown, match="Resume that run"):
            effect.resolve(happened=happened)
    with pytest.raises(UnknownOutcome, match="Resume that run"):
        keep_claims(Folder(root), run)


def test_a_transaction_that_was_killed_is_ended_by_its_run(tmp_path: Path) -> None:
    halted_at(tmp_path, left_in_a_transaction(tmp_path))
    with Session("one", store=tmp_path) as session, session.transaction():
        refund(7)
    with Session("two", store=tmp_path):
        assert refund(7) == "7: 5, no. 1"
    assert world.refunds == [7]


def test_a_transaction_that_was_killed_is_taken_back(tmp_path: Path) -> None:
    run = left_in_a_transaction(tmp_path)
    halted_at(tmp_path, run)
    undo_run(tmp_path, run, tools=[refund, unrefund])
    with Session("two", store=tmp_path):
        assert refund(7) == "7: 5, no. 2"
    assert world.refunds == [7]


def test_a_transaction_of_an_abandoned_run_is_not_taken_back(tmp_path: Path) -> None:
    run = left_in_a_transaction(tmp_path)
    abandon_run(tmp_path, run)
    with Session("two", store=tmp_path):
        assert refund(7) == "7: 5, no. 1"


def test_a_transaction_that_was_left_behind_keeps_its_key(tmp_path: Path) -> None:
    left_in_a_transaction(tmp_path)
    with Session("one", store=tmp_path, on_divergence="warn"):
        mail("hi")
        assert refund(7) == "7: 5, no. 1"
    assert world.refunds == [7, 0]


# --- of a run that goes on elsewhere -------------------------------------------------------------


def move_on(root: Path, run: str) -> None:
    """Close the log of a run as a move into another store does."""
    log = Chain(Folder(root).open(run))
    log.read()
    more = {"status": "ok", "ended": 7, "attempts": 1}
    log.append({"event": "gone", "to": "/elsewhere", "id": "0" * 16, "time": 7, **more})
    log.close()


def test_what_was_taken_back_is_free_elsewhere(tmp_path: Path) -> None:
    with Session("one", store=tmp_path) as first:
        refund(7)
    undo_run(tmp_path, first.run_id)
    move_on(tmp_path, first.run_id)
    assert claim_of(tmp_path, "refund/7").state == "free"
    with Session("two", store=tmp_path):
        assert refund(7) == "7: 5, no. 2"
    assert (world.refunds, world.gone) == ([7], [7])


def test_whether_an_effect_stands_is_known_elsewhere(tmp_path: Path) -> None:
    with Session("one", store=tmp_path) as first:
        refund(7)
    move_on(tmp_path, first.run_id)
    effect = claim_of(tmp_path, "refund/7")
    assert (effect.state, effect.elsewhere[-10:]) == ("unknown", "/elsewhere")
    with (
        pytest.raises(UnknownOutcome, match=r"in the store of that run alone: .* in /elsewhere"),
        Session("two", store=tmp_path),
    ):
        refund(7)
    assert world.refunds == [7]


# --- what answered another run stays -------------------------------------------------------------


def made_and_told(root: Path) -> tuple[str, str]:
    """Have a run make an effect, and another run be answered with it; return both."""
    with Session("one", store=root) as first:
        given = refund(7)
    with Session("two", store=root) as second:
        assert refund(7) == given
    return first.run_id, second.run_id


def test_an_effect_that_answered_another_run_is_not_taken_back(tmp_path: Path) -> None:
    first, second = made_and_told(tmp_path)
    assert plan_undo(tmp_path, first).steps[0].state == "irreversible"
    (step,) = undo_run(tmp_path, first).steps
    assert (step.status, world.refunds) == ("irreversible", [7])
    assert step.reason == (
        f"refund/7 answered step 1 of run {second}, and stays until that is undone: "
        f"rollcage undo {second} --store {tmp_path}"
    )
    assert [(each.run, each.step) for each in claim_of(tmp_path, "refund/7").answered] == [
        (second, 1)
    ]
    assert undo_run(tmp_path, second).complete
    assert claim_of(tmp_path, "refund/7").answered == ()
    assert undo_run(tmp_path, first).complete
    assert (world.refunds, world.gone) == ([], [7])
    with Session("two", store=tmp_path):
        assert refund(7) == "7: 5, no. 2"


def test_another_program_does_not_take_back_what_answered_another_run(tmp_path: Path) -> None:
    with pytest.raises(KeyError), Session("one", store=tmp_path):
        refund(7)
        raise KeyError
    with Session("two", store=tmp_path) as second:
        refund(7)
    edited = Session("one", store=tmp_path, on_divergence="undo")
    with pytest.raises(Diverged, match=f"answered step 1 of run {second.run_id}"), edited:
        mail("hi")
    assert world.refunds == [7]
    undo_run(tmp_path, second.run_id)
    with Session("one", store=tmp_path, on_divergence="undo"):
        mail("hi")
    assert (world.refunds, world.gone) == ([0], [7])


def test_an_undo_of_a_part_takes_back_the_rest(tmp_path: Path) -> None:
    with Session("one", store=tmp_path) as first:
        refund(7)
        refund(8)
        refund(9)
    with Session("two", store=tmp_path):
        refund(8)
    report = undo_run(tmp_path, first.run_id, to=1)
    assert [each.status for each in report.steps] == ["compensated", "irreversible"]
    assert world.refunds == [7, 8]


def test_a_person_may_accept_what_answered_another_run(tmp_path: Path) -> None:
    first, _ = made_and_told(tmp_path)
    assert undo_run(tmp_path, first, accept=[1]).complete
    assert world.refunds == [7]
    claim_of(tmp_path, "refund/7").resolve(happened=True)
    with Session("three", store=tmp_path):
        assert refund(7) == "7: 5, no. 1"


async def test_an_async_undo_sees_who_was_answered(tmp_path: Path) -> None:
    first, _ = made_and_told(tmp_path)
    assert [each.status for each in (await aundo_run(tmp_path, first)).steps] == ["irreversible"]
    async with Session("three", store=tmp_path) as third:
        await arefund(8)
    assert not (await aundo_run(tmp_path, third.run_id)).complete


class Counting(Folder):
    """A folder that counts the swaps of claims."""

    swaps = 0

    def swap(self, kind: str, key: str, was: bytes | None, new: bytes | None) -> bool:
        self.swaps += kind == "once"
        return super().swap(kind, key, was, new)


def test_a_mark_costs_one_swap_and_a_hit_none(tmp_path: Path) -> None:
    with Session("one", store=tmp_path):
        refund(7)
    store = Counting(tmp_path)
    with pytest.raises(KeyError), Session("two", store=store):
        refund(7)
        refund(7)
        raise KeyError
    assert store.swaps == 1
    with Session("two", store=store):
        refund(7)
        refund(7)
    assert store.swaps == 1


def ask_as_two(store: Any) -> str:
    with Session("two", store=store):
        return refund(7)


def dead_behind_its_mark(root: Path) -> tuple[Path, str]:
    """Kill a run that has marked a claim and recorded no answer; return the store and the maker."""
    for life in range(1, 20):
        world.__init__()  # type: ignore[misc] # a new one
        store = root / str(life)
        with Session("one", store=store) as first:
            refund(7)
        until_it_dies(store, life, ask_as_two)
        if claim_of(store, "refund/7").answered:
            return store, first.run_id
    raise AssertionError("it never marks a claim")


@pytest.mark.parametrize("ends", ["abandoned", "undone", "resumed"])
def test_a_run_that_died_before_its_answer_keeps_the_effect(tmp_path: Path, ends: str) -> None:
    root, first = dead_behind_its_mark(tmp_path)
    pointer = Folder(root).get("names", "two")
    assert pointer is not None
    second = pointer.decode()
    (step,) = undo_run(root, first).steps
    assert step.reason == (
        f"refund/7 may have answered run {second}, which has not ended, and stays until that run "
        f"ends or is undone: rollcage undo {second} --store {root}"
    )
    if ends == "abandoned":
        abandon_run(root, second)
    elif ends == "undone":
        undo_run(root, second)
    else:
        assert ask_as_two(root) == "7: 5, no. 1"
    assert undo_run(root, first).complete == (ends != "resumed")


def test_a_pruned_run_was_answered_unless_it_was_undone(tmp_path: Path) -> None:
    first, second = made_and_told(tmp_path)
    with Session("three", store=tmp_path) as third:
        refund(7)
    undo_run(tmp_path, second)
    for run in (second, third.run_id):
        assert keep_claims(Folder(tmp_path), run) == []
        (tmp_path / "logs" / f"{run}.jsonl").unlink()
    (step,) = undo_run(tmp_path, first).steps
    assert step.reason == f"refund/7 answered run {third.run_id}, whose log is gone, and stays"
    assert keep_claims(Folder(tmp_path), first) == ["refund/7"]
    assert [each.run for each in claim_of(tmp_path, "refund/7").answered] == [third.run_id]


def test_an_effect_that_answered_many_runs_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "_MARKS", 1)
    first, second = made_and_told(tmp_path)
    with Session("three", store=tmp_path) as third:
        refund(7)
    for run in (second, third.run_id):
        undo_run(tmp_path, run)
    (step,) = undo_run(tmp_path, first).steps
    assert step.reason == "refund/7 answered more than 1 other runs, and stays"


@pytest.mark.parametrize("full", [(True, False), (False, True), (False, False)])
def test_copies_of_a_claim_know_all_marks(full: tuple[bool, bool]) -> None:
    """Of a run that both name, the own mark stays."""
    claim = Claim("r", "a", "t", "refund", "f" * 64)
    one = claim._replace(told=(("x", "1"), ("y", "1")), more=full[0])
    other = claim._replace(told=(("y", "2"), ("z", "2")), more=full[1])
    merged = one.merged(other)
    assert merged.more == any(full)
    added = () if merged.more else (("z", "2"),)
    assert merged == one._replace(more=any(full), told=(*one.told, *added))


def test_a_fork_that_borrows_an_answer_is_not_asked(tmp_path: Path) -> None:
    first, second = made_and_told(tmp_path)
    with Session("three", store=tmp_path, source=second):
        assert refund(7) == "7: 5, no. 1"
    undo_run(tmp_path, second)
    assert undo_run(tmp_path, first).complete


def test_a_plan_does_not_take_back_what_its_body_told_another_run(tmp_path: Path) -> None:
    with Session("one", store=tmp_path) as first:
        refund_all()
    with Session("two", store=tmp_path) as second:
        refund(7)
    (step,) = undo_run(tmp_path, first.run_id).steps
    assert (step.name, step.status) == ("refund_all", "irreversible")
    assert step.reason.startswith(
        f"its plan would take back step 2, too: refund/7 answered step 1 of run {second.run_id}"
    )
    assert world.gone == []


def test_an_answer_is_undone_with_its_effect_beside_what_stays(tmp_path: Path) -> None:
    with Session("one", store=tmp_path) as first:
        with first.turn():
            refund(7)
            refund(7)
        mail("hi")
    assert not undo_run(tmp_path, first.run_id).complete
    with Session("one", store=tmp_path, replay="continue", on_divergence="warn"):
        assert [refund(7), refund(7)] == ["7: 5, no. 3", "7: 5, no. 3"]
    assert (world.refunds, world.gone) == ([0, 7], [7])


def test_a_plan_that_names_the_answer_of_another_run_is_never_carried_out(tmp_path: Path) -> None:
    with Session("one", store=tmp_path):
        refund(7)
    with Session("two", store=tmp_path) as second:
        mail("hi")
        refund_all()
    for _ in range(2):
        (step,) = undo_run(tmp_path, second.run_id, to=1).steps
        assert (step.status, step.reason) == (
            "irreversible", "its plan would take back what another run did, too",
        )  # fmt: skip
    assert world.refunds == [7, 0]


def test_a_plan_that_names_an_answer_in_a_transaction_is_never_carried_out(tmp_path: Path) -> None:
    """The transaction was rolled back, but the call may tell what it was answered in it."""

    @tool(undo=lambda: [compensate(unrefund, payment=7)])
    def refund_in_vain() -> str:
        told = ""
        with contextlib.suppress(KeyError), second.transaction():
            told = refund(7)
            raise KeyError
        return told

    with Session("one", store=tmp_path):
        refund(7)
    with Session("two", store=tmp_path) as second:
        assert refund_in_vain() == "7: 5, no. 1"
    (step,) = undo_run(tmp_path, second.run_id, tools=[refund_in_vain, unrefund]).steps
    assert (step.name, step.status) == ("refund_in_vain", "irreversible")
    assert step.reason == "its plan would take back what another run did, too"
    assert world.gone == []


def test_what_answered_in_a_call_that_stays_is_kept(tmp_path: Path) -> None:
    """The call tells of it, and an undo that is asked for again finds the same."""
    with Session("one", store=tmp_path) as first:
        refund(7)
        mail("hi")
        refund_all()
        refund(7)
    reasons = [
        "its plan would take back what step 1 did, too",
        "step 4 was answered with its effect, in step 3, which stays",
    ]
    for _ in range(2):
        found = {step.step: step for step in undo_run(tmp_path, first.run_id).steps}
        assert [found[n].reason for n in (3, 1)] == reasons
        assert world.refunds == [7, 0]
    with Session("one", store=tmp_path, replay="continue") as again:
        refund(7)
        mail("hi")
        refund_all()
        assert again.stats.hits == 3


def test_what_a_person_said_of_half_an_undo_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Session("one", store=tmp_path) as first:
        pay(7)
    assert not undo_run(tmp_path, first.run_id).complete
    claim_of(tmp_path, "pay/7").resolve(happened=True)
    with Session("two", store=tmp_path) as second:
        assert pay(7) == "paid 7, no. 1"
    (step,) = undo_run(tmp_path, first.run_id).steps
    assert step.status == "irreversible"
    undo_run(tmp_path, second.run_id)
    works = tool(name="once.fails", idempotent=True)(unpay)
    assert undo_run(tmp_path, first.run_id, tools=[pay, works]).complete
    assert claim_of(tmp_path, "pay/7").state == "free"
    assert world.refunds == []


def unpay(n: int) -> None:
    """Take a payment back."""
    world.refunds.remove(n)


def asked_meanwhile(root: Path, life: int) -> None:
    """Have another job ask for the effect, in a process that lives so long; 0: for ever."""
    with contextlib.suppress(UnknownOutcome):
        until_it_dies(root, life, job("two", [7]))


@pytest.mark.parametrize("how", ["undo", "divergence"])
@pytest.mark.parametrize("dies", [False, True])
def test_a_call_at_each_moment_of_an_undo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, dies: bool
) -> None:
    """Killed or not, an undo takes nothing back that a call was answered with meanwhile."""
    monkeypatch.setattr(once, "PATIENCE", 0.0)

    def undoes(root: Path, store: Any) -> None:
        if how == "undo":
            pointer = Folder(root).get("names", "one")
            assert pointer is not None
            undo_run(store, pointer.decode())
            return
        edited = Session("one", store=store, on_divergence="undo")
        with contextlib.suppress(Diverged), edited:
            mail("hi")

    moment, moments = 0, 1
    while moment < moments:
        moment += 1
        for life in (0, 7, 8, 9):
            world.__init__()  # type: ignore[misc] # a new one
            root = tmp_path / f"{moment}-{life}"
            with contextlib.suppress(KeyError), Session("one", store=root):
                refund(7)
                raise KeyError
            store = Mortal(root, moment + 1 if dies else 0)

            def at(now: int, root: Path = root, life: int = life, when: int = moment) -> None:
                if now == when:
                    asked_meanwhile(root, life)

            store.at = at
            with contextlib.suppress(Killed):
                undoes(root, store)
            store.bury()
            moments = max(moments, store.moments)
            if dies:
                with contextlib.suppress(UnknownOutcome):  # of the mail
                    undoes(root, root)
            through(root, job("two", [7]))
            assert [each for each in world.refunds if each] == [7], (moment, life)
            two = Folder(root).get("names", "two")
            assert two is not None
            made = [each["once"][0] for each in events(root, two.decode()) if "once" in each]
            assert (made[-1] == "mine") == (world.gone == [7]), (moment, life)


def test_an_undo_at_each_moment_of_a_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moment, moments = 0, 1
    while moment < moments:
        moment += 1
        world.__init__()  # type: ignore[misc] # a new one
        root = tmp_path / str(moment)
        with Session("one", store=root) as first:
            refund(7)
        store = Mortal(root)

        def at(now: int, root: Path = root, run: str = first.run_id, when: int = moment) -> None:
            if now == when:
                undo_run(root, run)

        store.at = at
        (given,) = job("two", [7])(store)
        moments = max(moments, store.moments)
        assert world.refunds == [7], moment
        assert given == f"7: 5, no. {1 + len(world.gone)}", moment


def test_a_mark_behind_a_begun_undo_does_not_stop_it(tmp_path: Path) -> None:
    """A call that dies once it has marked the claim, while an undo is killed at each moment."""
    begun: set[bool] = set()
    for life in range(1, 14):
        world.__init__()  # type: ignore[misc] # a new one
        root = tmp_path / str(life)
        with Session("one", store=root) as first:
            refund(7)
        store = Mortal(root, 8)

        def undoes(store: Any, run: str = first.run_id) -> Any:
            return undo_run(store, run)

        def at(now: int, root: Path = root, life: int = life, undoes: Any = undoes) -> None:
            if now == 7:  # before the mark
                until_it_dies(root, life, undoes)

        store.at = at
        with pytest.raises(Killed):
            job("two", [7])(store)
        store.bury()
        is_open = claim_of(root, "refund/7").state != "free"
        has_begun = any(each.get("branch") == "-1" for each in events(root, first.run_id))
        if is_open:
            begun.add(has_begun)
            assert undo_run(root, first.run_id).complete == has_begun
        through(root, job("two", [7]))
        assert world.refunds == [7]
    assert begun == {True, False}


def test_a_plan_that_a_call_changes_at_the_last_moment_is_not_carried_out(tmp_path: Path) -> None:
    with Session("one", store=tmp_path) as first:
        refund(7)
    seen = plan_undo(tmp_path, first.run_id)
    store = Mortal(tmp_path)
    begun: list[int] = []

    def at(now: int) -> None:
        lines = Folder(tmp_path).read(first.run_id, -1)
        if b'"event":"attempt"' in lines[0] and not begun:
            begun.append(now)
        elif begun == [now - 1]:  # before the line `undoing`
            asked_meanwhile(tmp_path, 0)

    store.at = at
    with pytest.raises(PlanChanged, match="was reversible and is irreversible now"):
        undo_run(store, first.run_id, expected=seen)
    kinds = [each["event"] for each in events(tmp_path, first.run_id)]
    assert kinds[-3:] == ["undoing", "undone", "ended"]
    assert world.refunds == [7]
