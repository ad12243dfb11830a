"""Runs of the old format become logs: what they did is given back there, and the rest is done."""

import contextlib
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import rollcage
from rollcage import (
    DidNotHappen,
    Happened,
    Session,
    current_step,
    open_store,
    recorded_events,
    undo_run,
)
from rollcage.errors import Diverged, RunInUse
from rollcage.heart.importing import ImportRefused, import_generations
from rollcage.session.session import Session as OldSession
from rollcage.store import JsonlStore
from rollcage.trace.reader import check_events

done: list[tuple[str, str]] = []
seen: list[str] = []
ran: list[str] = []


class Died(BaseException):
    """The process is killed."""


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    done.clear()
    seen.clear()
    ran.clear()
    yield
    done.clear()


def _key() -> str:
    step: Any = rollcage.current_step() or current_step()
    return str(step.idempotency_key)


def _probe(args: dict[str, Any], key: str) -> Any:
    if (args["label"], key) in done:
        return Happened(f"put {args['label']}")
    return DidNotHappen()


@rollcage.tool(name="old.take", effect="write", idempotent=True)
def take(label: str) -> None:
    done[:] = [each for each in done if each[0] != label]


def _undo(args: dict[str, Any]) -> Any:
    return [rollcage.compensate(take, **args)]


@rollcage.tool(name="old.put", effect="write", probe=_probe, undo=_undo)
def put(label: str) -> str:
    ran.append(label)
    done.append((label, _key()))
    return f"put {label}"


@rollcage.tool(name="old.get", effect="read")
def get(label: str) -> int:
    ran.append(f"get {label}")
    return len(done)


@rollcage.tool(name="old.double", effect="pure")
def double(n: int) -> int:
    ran.append("double")
    return 2 * n


@rollcage.tool(name="old.fail", effect="read", raises=[LookupError])
def fail(label: str) -> None:
    ran.append(f"fail {label}")
    raise LookupError(label)


@rollcage.tool(name="old.outer", effect="scope")
def outer(label: str) -> list[Any]:
    return [put(f"{label}.1"), get(label), put(f"{label}.2")]


def program_of(chance: random.Random, at: str = "p", depth: int = 0) -> list[Any]:
    kinds = ["put", "put", "get", "outer", "fail", "double"]
    if depth < 2:
        kinds += ["turn", "branch", "transaction"]
    ops = []
    for number, kind in enumerate(chance.choices(kinds, k=chance.randint(1, 4))):
        label = f"{at}{number}"
        inside = kind in ("branch", "transaction")
        inner = program_of(chance, label, depth + 1) if inside else []
        if kind == "turn":
            inner = [(each, f"{label}.{i}", []) for i, each in enumerate(
                chance.choices(["put", "get", "put"], k=chance.randint(1, 3)))]  # fmt: skip
        ops.append((kind, label, inner))
    return ops


def perform(session: Any, ops: list[Any], left: list[int], values: list[Any]) -> None:
    for kind, label, inner in ops:
        left[0] -= 1
        if left[0] < 0:
            raise Died
        match kind:
            case "put":
                values.append(put(label))
            case "get":
                values.append(get(label))
            case "double":
                values.append(double(3))
            case "outer":
                values.append(outer(label))
            case "fail":
                try:
                    fail(label)
                except LookupError as error:
                    values.append(str(error))
            case "turn":
                with session.turn() as turn:
                    for slot, (what, name, _) in enumerate(inner):
                        with turn.slot(slot):
                            values.append(put(name) if what == "put" else get(name))
            case "branch":
                with session.branch(label):
                    perform(session, inner, left, values)
            case _:
                with session.transaction(label):
                    perform(session, inner, left, values)


def effects(ops: list[Any]) -> Counter[str]:
    found: Counter[str] = Counter()
    for kind, label, inner in ops:
        if kind == "put":
            found[label] += 1
        elif kind == "outer":
            found.update([f"{label}.1", f"{label}.2"])
        else:
            found += effects(inner)
    return found


def old_run(folder: Path, ops: list[Any], left: int) -> tuple[str, list[Any]]:
    values: list[Any] = []
    session = OldSession("job", store=folder)
    with contextlib.suppress(Died), session:
        perform(session, ops, [left], values)
    return session.run_id, values


def imported(old: Path, runs: list[str], new: Path) -> str:
    store = JsonlStore(old)
    generations = [check_events(store.read(run).data, run) for run in runs]
    run, _ = import_generations(open_store(new), generations, store.get_blob)
    return run


@pytest.mark.parametrize("seed", range(80))
def test_an_imported_run_is_all_hits_and_goes_on(
    request: pytest.FixtureRequest, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)  # noqa: S311 - a test
    ops = program_of(chance)
    old, new = tmp_path / "old", tmp_path / "new"
    runs, values = list[str](), list[Any]()
    for _ in range(chance.randint(1, 3)):
        run, values = old_run(old, ops, chance.randint(0, 12))
        runs.append(run)
        if _is_over(old, run):
            break
    if chance.random() < 0.4:
        _cut(old, runs[-1], chance)
        values = []
        request.addfinalizer(lambda: shutil.rmtree(old))  # it knows that lines are gone
    if _is_undoing(old, runs[-1]):
        with pytest.raises(ImportRefused, match=r"an undo in run .* was cut off"):
            imported(old, runs, new)
        return
    run = imported(old, runs, new)
    ran.clear()
    events = list(recorded_events(open_store(new).read(run)))
    assert events
    again: list[Any] = []
    session = Session("job", store=new, replay="continue")
    before = Counter(label for label, _ in done)
    raised: Diverged | None = None
    try:
        with session:
            perform(session, ops, [10**6], again)
    except Diverged as error:
        raised = error
    if raised is not None:  # the old run had taken back a block that others came after
        assert "was rolled back on record" in str(raised)
        assert ran == []
        return
    assert session.run_id == run
    assert again[: len(values)] == values, "what was recorded is given back"
    assert Counter(label for label, _ in done) == effects(ops), "nothing was done twice or lost"
    assert all(count == 1 for count in before.values())
    ran.clear()
    third: list[Any] = []
    with Session("job", store=new, replay="offline") as offline:
        perform(offline, ops, [10**6], third)
    assert (third, ran) == (again, [])


def _is_undoing(old: Path, run: str) -> bool:
    events = [orjson.loads(line)["event"] for line in JsonlStore(old).read(run).data.splitlines()]
    last = {name: max((n for n, each in enumerate(events) if each == name), default=-1)
            for name in ("undo.started", "run.rewound")}  # fmt: skip
    return last["undo.started"] > last["run.rewound"]


def _is_over(old: Path, run: str) -> bool:
    return b'"status":"ok"' in JsonlStore(old).read(run).data.splitlines()[-1]


def _cut(old: Path, run: str, chance: random.Random) -> None:
    """Kill the old process behind one of its last lines."""
    path = old / "runs" / f"{run}.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[: chance.randint(max(1, len(lines) - 4), len(lines))]))
    begun = {
        line["args"]["label"]
        for each in (old / "runs").glob("*.jsonl")
        for line in map(orjson.loads, each.read_bytes().splitlines())
        if line["event"] == "step.started" and line["name"] == "old.put"
    }
    done[:] = [each for each in done if each[0] in begun]  # no body ran before its line was there


def test_a_run_is_imported_once(tmp_path: Path) -> None:
    ops: list[Any] = [("put", "a", []), ("get", "b", [])]
    old, new = tmp_path / "old", tmp_path / "new"
    run, _ = old_run(old, ops, 5)
    first = imported(old, [run], new)
    lines = open_store(new).read(first)
    with pytest.raises(RunInUse, match="imported before"):
        imported(old, [run], new)
    path = new / "logs" / f"{first}.jsonl"
    path.write_bytes(b"".join(lines[:3]))  # an import that was killed
    assert imported(old, [run], new) == first
    assert open_store(new).read(first) == lines


def test_what_was_done_can_be_taken_back(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    run, _ = old_run(old, [("put", "a", []), ("outer", "b", [])], 5)
    assert {label for label, _ in done} == {"a", "b.1", "b.2"}
    report = undo_run(new, imported(old, [run], new))
    assert [each.status for each in report.steps] == ["compensated"] * 3
    assert done == []


def test_large_values_and_inputs_come_along(tmp_path: Path) -> None:
    @rollcage.tool(name="old.large", effect="read")
    def large(text: str) -> str:
        ran.append("large")
        return text

    text = "x" * 100_000
    old, new = tmp_path / "old", tmp_path / "new"
    with contextlib.suppress(ZeroDivisionError), OldSession("job", store=old, input=7) as session:
        assert large(text) == text
        raise ZeroDivisionError
    imported(old, [session.run_id], new)
    ran.clear()
    with Session("job", store=new, input=7) as again:
        assert large(text) == text
    assert (ran, again.stats.hits) == ([], 1)


def test_what_only_looks_is_refused(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    run, _ = old_run(old, [("put", "a", [])], 5)
    with OldSession("job", store=old, replay="offline", source=run) as look:
        put("a")
    with pytest.raises(ImportRefused, match="a look at another one"):
        imported(old, [look.run_id], new)
