"""Runs of the old format become logs: what they did is given back there, and the rest is done."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

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
from rollcage_adapter import model_contract
from rollcage_import.generations import ImportRefused, import_generations
from rollcage_import.old_store import OldFolder

Recorded = Callable[[str | int], tuple[Path, Any]]

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
    step = current_step()
    assert step is not None
    return step.idempotency_key


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


def load(found: Any) -> None:
    """Have done what was done when the recording was made."""
    done[:] = [(label, key) for label, key in found["done"]]


def imported(old: Path, runs: list[str], new: Path) -> str:
    store = OldFolder(old)
    generations = [store.read(run) for run in runs]
    run, _ = import_generations(open_store(new), generations, store.blob)
    return run


@pytest.mark.parametrize("program", range(64))
def test_an_imported_run_is_hits_and_goes_on(
    recorded: Recorded, tmp_path: Path, program: int
) -> None:
    old, found = recorded(program)
    ops, values, runs = found["ops"], found["values"], found["runs"]
    new = tmp_path / "new"
    load(found)
    if found["undoing"]:
        with pytest.raises(ImportRefused, match=r"an undo in run .* was cut off"):
            imported(old, runs, new)
        return
    run = imported(old, runs, new)
    assert list(recorded_events(open_store(new).read(run)))
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


def test_a_run_is_imported_once(recorded: Recorded, tmp_path: Path) -> None:
    old, found = recorded("once")
    new, run = tmp_path / "new", found["known"]["run"]
    first = imported(old, [run], new)
    lines = open_store(new).read(first)
    with pytest.raises(RunInUse, match="imported before"):
        imported(old, [run], new)
    assert open_store(new).read(first) == lines


def test_an_import_that_was_killed_is_finished(recorded: Recorded, tmp_path: Path) -> None:
    """Without its pointer the job would begin anew, and do everything again."""
    old, found = recorded("once")
    new, run = tmp_path / "new", found["known"]["run"]
    first, store = imported(old, [run], new), open_store(new)
    assert store.swap("names", "job", first.encode(), None)
    with pytest.raises(RunInUse, match="imported before"):
        imported(old, [run], new)
    assert store.get("names", "job") == first.encode()


def test_what_was_done_can_be_taken_back(recorded: Recorded, tmp_path: Path) -> None:
    old, found = recorded("undo")
    load(found)
    assert {label for label, _ in done} == {"a", "b.1", "b.2"}
    report = undo_run(tmp_path / "new", imported(old, [found["known"]["run"]], tmp_path / "new"))
    assert [each.status for each in report.steps] == ["compensated"] * 3
    assert done == []


def test_what_was_taken_back_is_done_again(recorded: Recorded, tmp_path: Path) -> None:
    old, found = recorded("undone")
    imported(old, [found["known"]["run"]], tmp_path / "new")
    load(found)
    assert [label for label, _ in done] == ["a"]
    with Session("job", store=tmp_path / "new"):
        assert [put("a"), put("b")] == ["put a", "put b"]
    assert ran == ["b"]


def test_large_values_and_inputs_come_along(recorded: Recorded, tmp_path: Path) -> None:
    @rollcage.tool(name="old.large", effect="read")
    def large(text: str) -> str:
        ran.append("large")
        return text

    (old, found), text = recorded("large"), "x" * 100_000
    imported(old, [found["known"]["run"]], tmp_path / "new")
    with Session("job", store=tmp_path / "new", input=7) as again:
        assert large(text) == text
    assert (ran, again.stats.hits) == ([], 1)


def test_what_only_looks_is_refused(recorded: Recorded, tmp_path: Path) -> None:
    old, found = recorded("look")
    with pytest.raises(ImportRefused, match="replays another run for inspection"):
        imported(old, [found["known"]["run"]], tmp_path / "new")


def test_a_conversation_with_a_model_goes_on(recorded: Recorded, tmp_path: Path) -> None:
    """Its messages stand in the line of the step that had them first."""
    old, found = recorded("models")
    imported(old, [found["known"]["run"]], tmp_path / "new")
    load(found)
    asked: list[Any] = []

    def ask(**given: Any) -> list[str]:
        asked.append(given)
        return ["another answer"]

    talk = [{"role": "user", "content": "hello " * 200}]
    model = model_contract("gpt", "")
    with Session("chat", store=tmp_path / "new") as session:
        for n in range(5):
            said = session.run_call(model, {"messages": list(talk)}, ask, kind="model")
            assert said == ["another answer" if n == 4 else f"answer {n}"]
            with session.place(turn=n + 1, slot=0, call_id=f"c{n}", agent="chatter"):
                put(f"m{n}")
            talk += [
                {"role": "assistant", "content": f"answer {n} " * 100},
                {"role": "user", "content": f"go on {n} " * 100},
            ]
        answers = session.recorded_answers()
    assert len(asked) == 1
    assert ran == ["m4"]
    assert [answer.text for answer in answers] == [f"answer {n}" for n in range(4)]
