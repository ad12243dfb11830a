"""Copies and moves of runs between stores, with a kill between any two of their steps."""

import contextlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from dying import Dying, Killed, Life
from postgres import new_store
from rollcage import (  # fmt: skip
    Approval,
    ApprovalQueue,
    ApprovalRequired,
    Options,
    QueueApprover,
    Session,
    Store,
    UnknownOutcome,
    Verdict,
    abandon_run,
    compensate,
    open_store,
    resolve_step,
    tool,
    undo_run,
)
from rollcage.errors import RunConflict, RunElsewhere, RunInUse, StoreError, TraceCorrupt
from rollcage.stages.once import once_of
from rollcage.stages.orders import order_of, pause_run, stop_run, unpause_run
from rollcage.trace.listing import list_runs, newest_run, run_info
from rollcage.trace.store import drop
from rollcage_fork import Fork
from rollcage_stores.copies import _end, copy_run, copy_runs, move_run
from rollcage_stores.prune import prune_run
from rollcage_stores.seals import export_key

done: list[str] = []


@tool(effect="write", undo=lambda args: [compensate("copied_unwrite", text=args["text"])])
def copied_write(text: str) -> str:
    done.append(text)
    return text if text != "large" else "x" * 200_000


@tool(effect="write")
def copied_unwrite(text: str) -> None:
    done.append(f"-{text}")


@tool(effect="write", once="pay/{text}")
def copied_pay(text: str) -> str:
    done.append(text)
    return f"paid {text}"


@tool(effect="write", once="fee/{text}", undo=lambda args: [compensate("copied_unwrite", **args)])
def copied_fee(text: str) -> None:
    done.append(text)


PAIRS = ["folder-sqlite", "sqlite-postgres", "postgres-folder", "folder-folder"]


@pytest.fixture(params=PAIRS)
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Store, Store]]:
    done.clear()
    with contextlib.ExitStack() as stack:

        def made(kind: str, name: str) -> Store:
            if kind == "postgres":
                return open_store(stack.enter_context(new_store()))
            return open_store(f"{'sqlite:///' if kind == 'sqlite' else ''}{tmp_path}/{name}")

        one, two = request.param.split("-")
        yield made(one, "one"), made(two, "two")


def job(store: Store, *texts: str, name: str = "a", **given: Any) -> str:
    """A session; an empty text ends it with an error."""
    session = Session(name, store=store, **given)
    with contextlib.suppress(ZeroDivisionError), session:
        for text in texts:
            copied_write(text) if text else 1 / 0
    return session.run_id


def asked(store: Store, **given: Any) -> None:
    """A session with a call that somebody decides on later."""
    approver, gate = QueueApprover(store), [lambda _: Verdict.ask("who knows")]
    with Session("a", store=store, gate=gate, approver=approver, **given):
        copied_write("x")


def test_a_copy_is_read_only_and_its_original_goes_on(stores: tuple[Store, Store]) -> None:
    one, two = stores
    run = job(one, "x", "large", "")
    before = one.read(run)
    assert copy_run(one, two, run)
    assert not copy_run(one, two, run)
    assert one.read(run) == before == two.read(run)[:-1]
    for use in (
        lambda: job(two, "x", "large", "y"),
        lambda: undo_run(two, run),
        lambda: abandon_run(two, run),
        lambda: resolve_step(two, run, 1, happened=True),
        lambda: job(two, "x", run=run),
        lambda: move_run(two, one, run),
    ):
        with pytest.raises(RunElsewhere, match="copy of run"):
            use()
    assert two.read(run)[:-1] == before
    with Session("a", store=two, replay="offline") as offline:
        assert (copied_write("x"), len(copied_write("large"))) == ("x", 200_000)
    assert offline.stats.hits == 2
    with Session("a", store=two, stages=[Fork(run)]) as fork:
        assert copied_write("x") == "x"
    assert fork.stats.hits == 1
    assert job(one, "x", "large", "y") == run
    assert done == ["x", "large", "y"]
    assert copy_run(one, two, run)  # it has grown
    assert run_info(two, run).status == "ok"
    assert run_info(two, run).last == "held"


def test_a_job_that_is_over_begins_anew_beside_its_copy(stores: tuple[Store, Store]) -> None:
    one, two = stores
    run = job(one, "x")
    assert [each.what for each in copy_runs(one, two)] == ["copied"]
    new = job(two, "y")
    assert new != run
    newest = newest_run(two, "a")
    assert newest is not None
    assert newest.run == new
    later = job(one, "z")
    assert [each.what for each in copy_runs(one, two)] == ["already there", "copied"]
    newest = newest_run(two, "a")  # what goes on there stays the job's
    assert newest is not None
    assert newest.run == new
    assert {each.run for each in list_runs(two)} == {run, new, later}


def test_a_run_that_was_moved_goes_on_there_alone(stores: tuple[Store, Store]) -> None:
    one, two = stores
    run = job(one, "x", "large", "")
    assert move_run(one, two, run, by="ann")
    assert not move_run(one, two, run)
    for use in (
        lambda: job(one, "x", "large", "y"),
        lambda: undo_run(one, run),
        lambda: copy_run(one, two, run),
        lambda: job(one, run=run),
    ):
        with pytest.raises(RunElsewhere, match="was moved"):
            use()
    assert job(two, "x", "large", "y") == run
    assert done == ["x", "large", "y"]
    assert run_info(two, run).attempts == 2
    assert undo_run(two, run).complete
    assert done[3:] == ["-y", "-large", "-x"]


def test_a_run_moves_to_and_fro(stores: tuple[Store, Store]) -> None:
    one, two = stores
    run = job(one, "a", "")
    here, there = one, two
    texts = ["a"]
    for text in "bcde":
        assert move_run(here, there, run)
        here, there = there, here
        texts.append(text)
        assert job(here, *texts, "") == run
    assert done == texts
    assert job(here, *texts) == run
    assert done == texts
    assert run_info(here, run).attempts == 6


def test_what_belongs_to_a_run_comes_along(stores: tuple[Store, Store]) -> None:
    one, two = stores
    with contextlib.suppress(ZeroDivisionError), Session("a", store=one) as session:
        assert copied_pay("7") == "paid 7"
        raise ZeroDivisionError
    run = session.run_id
    with Session("b", store=one, input={"of": 7}):
        copied_write("x")
    order = stop_run(one, run, by="ann", reason="no")
    assert [each.what for each in copy_runs(one, two, move=True)] == ["moved", "moved"]
    assert (order_of(two, run), order_of(one, run)) == (order, None)
    found = once_of(two, "pay/7")
    assert found is not None
    assert (found.state, found.run) == ("done", run)
    with Session("c", store=two):
        assert copied_pay("7") == "paid 7"
    assert done == ["7", "x"]
    assert newest_run(two, "b", {"of": 7}) is not None


def test_a_move_brings_who_was_answered_since_a_copy(stores: tuple[Store, Store]) -> None:
    one, two = stores
    with contextlib.suppress(ZeroDivisionError), Session("a", store=one) as session:
        copied_pay("7")
        raise ZeroDivisionError
    copy_run(one, two, session.run_id)
    with Session("b", store=one) as answered:
        copied_pay("7")
    move_run(one, two, session.run_id)
    with Session("c", store=two) as there:
        copied_pay("7")
    found = once_of(two, "pay/7")
    assert found is not None
    assert {each.run for each in found.answered} == {answered.run_id, there.run_id}


@pytest.mark.parametrize(
    ("take", "said"),
    [(move_run, "was moved, and goes on in"), (copy_run, "this is a copy of run")],
)
def test_an_effect_is_known_where_its_run_goes_on(
    stores: tuple[Store, Store], take: Callable[[Store, Store, str], bool], said: str
) -> None:
    """There it may be taken back: a call elsewhere is not answered with it."""
    one, two = stores
    with contextlib.suppress(ZeroDivisionError), Session("a", store=one) as session:
        copied_pay("7")
        raise ZeroDivisionError
    take(one, two, session.run_id)
    elsewhere = one if take is move_run else two
    with pytest.raises(UnknownOutcome, match=f"{said}.*Look there"), Session("b", store=elsewhere):
        copied_pay("7")
    found = once_of(elsewhere, "pay/7")
    assert found is not None
    assert (found.state, said in found.elsewhere) == ("unknown", True)
    found.resolve(happened=True)
    with Session("b", store=elsewhere):
        assert copied_pay("7") == "paid 7"
    assert done == ["7"]


@pytest.mark.parametrize("skeleton", [False, True])
def test_an_effect_whose_run_was_moved_and_pruned_is_asked_about(
    stores: tuple[Store, Store], *, skeleton: bool
) -> None:
    one, two = stores
    with Session("a", store=one) as session:
        copied_fee("7")
    move_run(one, two, session.run_id)
    prune_run(one, session.run_id, keep_skeleton=skeleton)
    with pytest.raises(UnknownOutcome, match="whose log is gone"), Session("b", store=one):
        copied_fee("7")
    assert done == ["7"]


def test_an_effect_that_was_resolved_in_a_copy_is_free_once_it_is_taken_back(
    stores: tuple[Store, Store],
) -> None:
    one, two = stores
    with Session("a", store=one) as session:
        copied_fee("7")
    copy_run(one, two, session.run_id)
    found = once_of(two, "fee/7")
    assert found is not None
    found.resolve(happened=True)
    move_run(one, two, session.run_id)
    assert undo_run(two, session.run_id).complete
    with Session("b", store=two):
        copied_fee("7")
    assert done == ["7", "-7", "7"]


def test_an_effect_that_was_taken_back_stays_so_wherever_its_run_goes_on(
    stores: tuple[Store, Store],
) -> None:
    one, two = stores
    with Session("a", store=one) as session:
        copied_fee("7")
    undo_run(one, session.run_id)
    move_run(one, two, session.run_id)
    with Session("b", store=one):
        copied_fee("7")
    assert done == ["7", "-7", "7"]


def test_a_move_brings_the_claim_of_an_effect_that_was_made_anew(
    stores: tuple[Store, Store],
) -> None:
    one, two = stores
    with contextlib.suppress(ZeroDivisionError), Session("a", store=one) as session:
        copied_pay("7")
        raise ZeroDivisionError
    copy_run(one, two, session.run_id)
    undo_run(one, session.run_id, accept=[1])
    found = once_of(one, "pay/7")
    assert found is not None
    found.resolve(happened=False)
    with contextlib.suppress(ZeroDivisionError), Session("a", store=one):
        copied_pay("7")
        raise ZeroDivisionError
    move_run(one, two, session.run_id)
    with Session("b", store=two):
        copied_pay("7")
    assert done == ["7", "7"]


def test_a_move_that_is_repeated_leaves_what_was_done_since(stores: tuple[Store, Store]) -> None:
    one, two = stores

    def pays(store: Store) -> str:
        with contextlib.suppress(ZeroDivisionError), Session("a", store=store) as session:
            copied_fee("7")
            raise ZeroDivisionError
        return session.run_id

    run = pays(one)
    assert move_run(one, two, run)
    assert undo_run(two, run).complete
    assert pays(two) == run
    assert not move_run(one, two, run)
    with Session("b", store=two):
        copied_fee("7")
    assert done == ["7", "-7", "7"]


def test_two_effects_of_one_key_do_not_come_together(stores: tuple[Store, Store]) -> None:
    one, two = stores
    runs = []
    for store, name in ((one, "a"), (two, "b")):
        with Session(name, store=store) as session:
            copied_fee("7")
        runs.append(session.run_id)
    with pytest.raises(RunConflict, match="has made fee/7, and so has run"):
        move_run(one, two, runs[0])
    assert run_info(one, runs[0]).last == "ended"  # it goes on where it was
    assert undo_run(two, runs[1]).complete
    assert move_run(one, two, runs[0])
    with Session("c", store=two):
        copied_fee("7")
    assert done == ["7", "7", "-7"]


@pytest.mark.parametrize("give", [stop_run, pause_run])
def test_an_order_is_given_where_the_run_goes_on(
    stores: tuple[Store, Store], give: Callable[[Store, str], object]
) -> None:
    """In its old store, nobody would hear it."""
    one, two = stores
    run = job(one, "x", "")
    assert copy_run(one, two, run)
    with pytest.raises(RunElsewhere, match="this is a copy"):
        give(two, run)
    assert move_run(one, two, run)
    with pytest.raises(RunElsewhere, match="was moved"):
        give(one, run)
    give(two, run)
    assert order_of(two, run) is not None


def test_what_is_said_during_a_move_comes_along(
    stores: tuple[Store, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An order, or a decision, behind the copy and before the original's last line."""
    one, two = stores
    with pytest.raises(ApprovalRequired):
        asked(one)
    (request,) = ApprovalQueue(one).waiting()

    def end(*given: Any) -> bool:
        ApprovalQueue(one).decide(request.id, Approval(True, by="ann"))
        pause_run(one, request.run)
        return _end(*given)

    monkeypatch.setattr("rollcage_stores.copies._end", end)
    assert move_run(one, two, request.run)
    assert ApprovalQueue(one).waiting() == []
    assert order_of(one, request.run) is None
    assert unpause_run(two, request.run).kind == "pause"
    asked(two, run=request.run)
    assert done == ["x"]


def test_a_run_in_use_is_neither_copied_nor_moved(stores: tuple[Store, Store]) -> None:
    one, two = stores
    with Session("a", store=one) as session:
        copied_write("x")
        for use in (copy_run, move_run):
            with pytest.raises(RunInUse):
                use(one, two, session.run_id)
        assert [each.what for each in copy_runs(one, two)] == ["in use"]
    assert list_runs(two) == []
    assert [each.what for each in copy_runs(one, two)] == ["copied"]


def test_another_run_of_that_id_is_a_conflict(stores: tuple[Store, Store]) -> None:
    one, two = stores
    run = job(one, "x", "")
    copy_run(one, two, run)
    for store in stores:  # else they would be found to be cut
        assert drop(store, "heads", run)
    log = two.open(run)
    lines = log.read()
    log.replace(lines[:2])  # as if it had been begun there
    log.close()
    assert not copy_run(two, one, run)
    log = one.open(run)
    log.read()
    log.replace(lines[:1])
    log.close()
    job(one, "other", run=run)
    with pytest.raises(RunConflict, match="a different run"):
        copy_run(one, two, run)
    assert [each.what for each in copy_runs(one, two)] == ["conflict"]


def test_a_run_whose_large_value_is_gone_is_not_copied(stores: tuple[Store, Store]) -> None:
    one, two = stores
    run = job(one, "large")
    (digest,) = one.keys("blobs")
    assert one.swap("blobs", digest, one.get("blobs", digest), None)
    with pytest.raises(TraceCorrupt, match=f"{digest} is gone"):
        copy_run(one, two, run)
    assert list_runs(two) == []
    assert one.swap("blobs", digest, None, b"other")
    with pytest.raises(TraceCorrupt, match="is damaged"):
        copy_run(one, two, run)


def test_stores_with_keys_of_their_own_exchange_no_runs(stores: tuple[Store, Store]) -> None:
    one, two = stores
    assert one.swap("keys", "seal", None, b"1" * 32)
    run = job(one, "x")
    copy_run(one, two, run)
    assert export_key(two) == b"1" * 32
    assert one.swap("keys", "seal", b"1" * 32, b"2" * 32)
    with pytest.raises(StoreError, match="a key of its own"):
        copy_run(one, two, run)
    with pytest.raises(StoreError, match="the same store"):
        copy_run(one, one, run)


def test_a_store_that_goes_by_two_names_is_one(stores: tuple[Store, Store], tmp_path: Path) -> None:
    one, _ = stores
    run = job(one, "x", "")
    if one.url.startswith("postgresql"):
        alias = open_store(f"{one.url}&application_name=other")
    else:
        (tmp_path / "alias").symlink_to(tmp_path)
        alias = open_store(one.url.replace(str(tmp_path), f"{tmp_path}/alias"))
    assert alias.url != one.url
    with pytest.raises(StoreError, match="the same store"):
        move_run(one, alias, run)
    assert one.keys("probe") == []
    assert job(one, "x", "y") == run


# --- kills ---


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(1, 4))]
)
def test_a_move_that_is_killed_anywhere_leaves_one_place(
    stores: tuple[Store, Store], seed: int
) -> None:
    """Whoever goes on, before the move is asked for again or after: each effect is made once."""
    one, two = stores
    chosen = random.Random(seed)  # noqa: S311 - a test
    died = 0
    for life in range(1, 60):
        done.clear()
        name = f"job {life}"
        run = job(one, "x", "large", "", name=name)
        mine = Life(life)
        try:
            move_run(Dying(one, mine), Dying(two, mine), run)
        except Killed:
            died += 1
        mine.bury()
        places = 0
        for store in chosen.sample([one, two], 2):
            with contextlib.suppress(RunElsewhere, RunInUse):
                if any(each.run == run for each in list_runs(store)):
                    job(store, "x", "large", "y", "", name=name, run=run)
                    places += 1
        assert places <= 1
        with contextlib.suppress(RunElsewhere):  # it went on in the target already, or comes there
            move_run(one, two, run)
        ran = [s for s in (one, two) if run_info(s, run).last not in ("held", "gone")]
        assert ran == [two]
        assert job(two, "x", "large", "y", name=name) == run
        assert done == ["x", "large", "y"]
        with pytest.raises(RunElsewhere):
            job(one, "x", "large", "y", name=name)
    assert 5 < died < 59


def test_of_two_stores_that_claim_a_copy_one_gets_it(
    stores: tuple[Store, Store], tmp_path: Path
) -> None:
    one, two = stores
    three = open_store(tmp_path / "three")
    run = job(one, "x", "")
    copy_run(one, two, run)
    copy_run(two, three, run)  # a copy of a copy
    assert move_run(one, three, run)
    with pytest.raises(RunElsewhere, match="goes on in"):
        move_run(one, two, run)
    with pytest.raises(RunElsewhere):
        job(two, "x", "y")
    assert job(three, "x", "y", options=Options()) == run
    assert done == ["x", "y"]
