"""What is left of pruned runs, whom a prune leaves alone, and kills in between; and the doctor."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from dying import Dying, Killed, Life
from postgres import new_store
from rollcage import Session, Store, abandon_run, open_store, resolve_step, tool, undo_run
from rollcage.errors import (
    RollcageError,
    RunInUse,
    RunPruned,
    StoreError,
    TraceCorrupt,
    UnknownOutcome,
)
from rollcage.stages.once import once_of
from rollcage.stages.orders import pause_run
from rollcage.trace.chain import HASH, parse
from rollcage.trace.listing import list_runs, newest_run, run_info
from rollcage_fork import Fork
from rollcage_stores.blobs import drop_unused
from rollcage_stores.copies import copy_run, move_run
from rollcage_stores.doctor import examine, repair
from rollcage_stores.prune import choices, prune, prune_run

done: list[str] = []
LATER = 10**18  # µs
SECRET = "nobody-may-read-this"


@tool(effect="write")
def pruned_write(text: str) -> str:
    done.append(text)
    if text == "lost":
        raise TimeoutError("nobody knows")
    return "x" * 200_000 if text == "large" else f"did {text}"


@tool(effect="write", once="pay/{text}")
def pruned_pay(text: str) -> str:
    done.append(text)
    return f"paid {text}"


@pytest.fixture(params=["folder", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    done.clear()
    if request.param == "postgres":
        with new_store() as url:
            yield open_store(url)
    else:
        yield open_store(f"{'sqlite:///' if request.param == 'sqlite' else ''}{tmp_path}/store")


def job(store: Store, *texts: str, name: str = "a", **given: Any) -> str:
    """A session; an empty text ends it with an error, `lost` halts it."""
    session = Session(name, store=store, **given)
    with contextlib.suppress(ZeroDivisionError, UnknownOutcome), session:
        for text in texts:
            pruned_write(text) if text else 1 / 0
    return session.run_id


def events(store: Store, run: str) -> list[dict[str, Any]]:
    return parse(store.read(run), run)


def test_a_pruned_run_counts_as_done_and_keeps_no_value(store: Store) -> None:
    given = {"of": SECRET}
    run = job(store, SECRET, "large", input=given)
    lines, info = store.read(run), run_info(store, run)
    found = prune(store, LATER, by="ann", dry=True)
    assert [(each.info, each.lines, each.stays) for each in found.chosen] == [(info, 7, "")]
    assert store.read(run) == lines
    found = prune(store, LATER, by="ann", dry=False)
    assert found.blobs == 1
    assert store.keys("blobs") == []
    first, last = events(store, run)
    assert (first["name"], first["run"]) == ("a", run)
    assert (last["lines"], last["head"], last["by"]) == (7, lines[-1][HASH].decode(), "ann")
    assert SECRET.encode() not in b"".join(store.read(run))
    left = run_info(store, run)
    assert (left.status, left.ended, left.begun, left.input, left.last) == (
        "ok", info.ended, info.begun, info.input, "pruned",
    )  # fmt: skip
    assert newest_run(store, "a", given) == left
    for use in (
        lambda: job(store, "x", run=run),
        lambda: job(store, "x", input=given, replay="continue"),
        lambda: undo_run(store, run),
        lambda: abandon_run(store, run),
    ):
        with pytest.raises(RunPruned, match="was pruned"):
            use()
    assert prune(store, LATER, dry=False).chosen == ()
    again = job(store, SECRET, input=given)  # the job is over: it begins anew
    assert again != run
    assert done == [SECRET, "large", SECRET]
    assert [each.run for each in list_runs(store)] == [again, run]


def test_a_skeleton_says_which_calls_there_were(store: Store) -> None:
    run = job(store, SECRET, "y")
    before = events(store, run)
    prune_run(store, run, keep_skeleton=True)
    assert SECRET.encode() not in b"".join(store.read(run))
    left = events(store, run)
    assert [each["was"] for each in left[1:-1]] == [each["event"] for each in before[1:]]
    steps = [each["name"] for each in left[1:-1] if each["was"] == "step"]
    assert steps == ["pruned_write"] * 2
    assert run_info(store, run).status == "ok"
    prune_run(store, run)
    assert events(store, run) == left


def test_what_may_be_needed_stays(store: Store, tmp_path: Path) -> None:
    unfinished = job(store, "x", "", name="unfinished")
    lost = job(store, "x", "lost", name="lost")
    held = job(store, "x", name="held")
    old = job(store, "x", "", name="old")
    job(store, "x", name="old", replay="off")
    set_aside = job(store, "lost", name="set aside")
    abandon_run(store, set_aside)
    copied = job(open_store(tmp_path / "other"), "x", name="copied")
    copy_run(tmp_path / "other", store, copied)
    moved = job(store, "x", "", name="moved")
    move_run(store, tmp_path / "other", moved)
    with Session("live", store=store) as live:
        found = {each.info.run: each.stays for each in choices(store, LATER, hold=[held])}
        with pytest.raises(RunInUse):
            prune_run(store, live.run_id)
    assert "the next session of its job" in found[unfinished]
    assert "the next session of its job" in found[lost]
    assert found[held] == "held"
    assert found[old] == ""  # another run of the job is the newest
    assert "step 1 (pruned_write) happened" in found[set_aside]
    assert "a copy" in found[copied]
    assert "goes on in another store" in found[moved]
    assert found[live.run_id] == "in use"
    with pytest.raises(StoreError, match="resumes it: rollcage abandon"):
        prune_run(store, unfinished)
    assert [each.stays for each in choices(store, 1)] == []
    resolve_step(store, set_aside, 1, happened=False)
    abandon_run_again = {each.info.run: each.stays for each in choices(store, LATER)}
    assert abandon_run_again[set_aside] == ""
    before = {each.run: store.read(each.run) for each in list_runs(store)}
    gone = {each.info.run for each in prune(store, LATER, dry=False).chosen if not each.stays}
    for run, lines in before.items():
        assert (store.read(run) != lines) == (run in gone), run


def test_an_effect_that_happens_once_is_known_after_its_run_was_pruned(store: Store) -> None:
    with Session("a", store=store) as session:
        assert pruned_pay("7") == "paid 7"
    prune_run(store, session.run_id)
    found = once_of(store, "pay/7")
    assert found is not None
    assert (found.state, found.run) == ("done", session.run_id)
    with Session("b", store=store):
        assert pruned_pay("7") == "paid 7"
    assert done == ["7"]


def test_a_fork_of_a_pruned_run_goes_on(store: Store) -> None:
    run = job(store, "x", "large")
    with Session("a", store=store, stages=[Fork(run, live=True)]) as fork:
        pruned_write("x")
    prune(store, LATER, hold=[fork.run_id], dry=False)
    assert run_info(store, run).last == "pruned"
    with Session("a", store=store, run=fork.run_id, replay="continue"):
        assert len(pruned_write("x") + pruned_write("large")) == 200_005
    assert done == ["x", "large"]
    with pytest.raises(RunPruned), Session("a", store=store, stages=[Fork(run)]):
        pass


@pytest.mark.parametrize("skeleton", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_a_prune_that_is_killed_anywhere_is_brought_to_its_end(
    store: Store, *, skeleton: bool
) -> None:
    died = 0
    for life in range(1, 40):
        done.clear()
        name = f"job {life}"
        run = job(store, "large", name=name)
        with contextlib.suppress(ZeroDivisionError), Session(f"pay {life}", store=store) as paid:
            pruned_pay(str(life))
        both = [run, paid.run_id]
        mine = Life(life)
        try:
            own: Any = Dying(store, mine)
            for each in both:
                prune_run(own, each, keep_skeleton=skeleton)
            drop_unused(own)
        except Killed:
            died += 1
        mine.bury()
        repair(store)
        for each in both:
            prune_run(store, each, keep_skeleton=skeleton)
        assert drop_unused(store) is not None
        assert [each.code for each in examine(store) if each.kind != "note"] == []
        assert store.keys("blobs") == store.keys("trash") == []
        assert [run_info(store, each).last for each in both] == ["pruned", "pruned"]
        with Session("again", store=store, replay="off") as again:
            pruned_pay(str(life))
        assert done == ["large", str(life)]
        assert run_info(store, run).status == "ok"
        prune_run(store, again.run_id)
    assert 8 < died < 39


# --- large values ---


def test_a_large_value_stays_while_a_log_names_it_or_a_run_is_live(store: Store) -> None:
    one = job(store, "large", name="one")
    job(store, "large", name="two")
    assert drop_unused(store) == 0
    prune_run(store, one)
    assert drop_unused(store) == 0
    assert len(store.keys("blobs")) == 1
    prune_run(store, list_runs(store, name="two")[0].run)
    with Session("live", store=store):
        assert drop_unused(store) is None
        assert len(store.keys("blobs")) == 1
        pruned_write("large")  # it is found there
    assert drop_unused(store) == 0
    with Session("live", store=store, replay="continue"):
        assert len(pruned_write("large")) == 200_000


def test_a_large_value_that_is_named_while_it_goes_comes_back(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session begins, counts on the value, and ends, all while it is being removed."""
    prune_run(store, job(store, "large"))
    swap: Callable[..., bool] = store.swap
    used: list[str] = []

    def between(kind: str, key: str, was: bytes | None, new: bytes | None) -> bool:
        if kind == "trash" and new is not None:
            monkeypatch.setattr(store, "swap", swap)
            used.append(job(store, "large", name="meanwhile"))
            swap(kind, key, was, new)
            return swap("blobs", key, store.get("blobs", key), None)
        return swap(kind, key, was, new)

    monkeypatch.setattr(store, "swap", between)
    assert drop_unused(store) == 0
    with Session("meanwhile", store=store, replay="offline"):
        assert len(pruned_write("large")) == 200_000
    assert used


# --- the doctor ---


def found(store: Store) -> list[tuple[str, str, str]]:
    return [(each.kind, each.code, each.run) for each in examine(store)]


def test_a_sound_store_has_no_findings(store: Store) -> None:
    assert found(store) == []
    job(store, "x", "large")
    with Session("b", store=store):
        pruned_pay("1")
        assert found(store) == []
    prune_run(store, list_runs(store, name="a")[0].run)
    assert found(store) == [("note", "blobs_unused", "")]


def test_what_somebody_has_to_decide_is_found(store: Store) -> None:
    lost = job(store, "x", "lost")
    paused = job(store, "x", "", name="b")
    pause_run(store, paused, by="ann")
    assert sorted(found(store)) == sorted([
        ("open", "outcome_unknown", lost), ("open", "stop_order", paused),
    ])  # fmt: skip
    helps = {each.code: each.helps for each in examine(store)}
    assert helps["outcome_unknown"].startswith(f"rollcage resolve {lost} 2 ")
    assert f"unpause {paused}" in helps["stop_order"]


@pytest.mark.damaged
def test_damage_is_found(store: Store) -> None:
    runs = [job(store, "x", "large", "", name=str(n)) for n in range(3)]
    log = store.open(runs[0])
    lines = log.read()
    log.replace([*lines[:2], lines[2].replace(b'"x"', b'"y"'), *lines[3:]])
    log.close()
    log = store.open(runs[1])
    log.read()
    log.replace([])
    log.close()
    (digest,) = store.keys("blobs")
    store.swap("blobs", digest, store.get("blobs", digest), b"other")
    assert sorted(found(store)) == sorted([
        ("damaged", "trace_corrupt", runs[0]), ("damaged", "run_missing", runs[1]),
        ("damaged", "blob", runs[2]),
    ])  # fmt: skip
    assert repair(store) == []
    with pytest.raises(TraceCorrupt):
        job(store, "x", name="0")
    assert [each.stays for each in choices(store, LATER)] != []
    with pytest.raises(RollcageError):
        prune_run(store, runs[0])
