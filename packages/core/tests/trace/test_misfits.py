"""Lines that can't follow the lines before them are damage, which an error names."""

from typing import Any

import pytest
from rollcage import Session, TraceCorrupt, recorded_events, tool
from rollcage.trace.chain import chained, parse
from rollcage.trace.folder import Folder
from rollcage.trace.run import fold_lines

Event = dict[str, Any]
NEVER = "0" * 64


@tool(name="misfits.write")
def write(text: str) -> str:
    return text


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    """A run of a write (1), and of a block (2) with a write in it (3)."""
    store = tmp_path_factory.mktemp("store")
    with Session("job", store=store) as session:
        write("a")
        with session.branch("b"):
            write("b")
    return parse(Folder(store).read(session.run_id), "it")


def folded(events: list[Event]) -> Any:
    return fold_lines(events, "it", {})


def following(log: list[Event], event: Event) -> list[Event]:
    """A log with one more line: what the event leaves out is as in a line that fits."""
    step = next(line for line in log if line.get("step") == 1)
    block = next(line for line in log if line.get("step") == 2)
    like = {
        "step": {**step, "step": 4, "pos": 2, "fingerprint": "1" * 64},
        "outcome": {"event": "outcome", "step": 1, "outcome": {"status": "ok", "value": 1}},
    }
    base = like.get(event["event"], {})
    if event.get("effect") == "branch":
        base = {**block, **base, "effect": "branch"}
    return [*log, {**base, **event}]


def step(**fields: Any) -> Event:
    return {"event": "step", **fields}


def block(**fields: Any) -> Event:
    return step(effect="branch", **fields)


def outcome(**fields: Any) -> Event:
    return {"event": "outcome", **fields}


def line(kind: str, /, **fields: Any) -> Event:
    return {"event": kind, **fields}


BAD_STEPS: list[Event] = [
    *(step(**{name: 1.0}) for name in ("step", "start", "pos", "turn", "slot", "time")),
    *(step(**{name: True}) for name in ("step", "start", "pos", "turn", "slot", "time")),
    *(step(**{name: -1}) for name in ("start", "pos", "turn", "slot")),
    *(step(step=n) for n in (0, -1, 1, 3)),
    step(effect="other"), step(args=[]), step(args=None), step(effect=""),
    step(fingerprint="1" * 62), step(fingerprint="x" * 64), step(fingerprint=5),
    step(key="1" * 63), step(key=5),
    step(branch=f"#{NEVER}"), step(branch=5),
    *(step(**{name: 99}) for name in ("again", "from", "retries")),
    *(step(**{name: bad}) for name in ("rank", "epoch") for bad in (-1, 1.0, "1", True, None)),
    *(step(**{name: 1}) for name in ("version", "agent", "call_id", "framework", "approval")),
    *(step(once=bad) for bad in (5, ["mine"], ["mine", "k", "t", "x"], ["mine", 3], ["r", "k"],
                                 [5, "k"], [5, 5], [])),
    block(after=[99]), block(beyond=[[1, 99]]), block(beyond=[[2, 1]]), block(after=5),
    block(outcome={"status": "ok", "value": "zz"}),
    step(outcome={"status": "other"}), step(outcome={}),
]  # fmt: skip
GOOD_STEPS: list[Event] = [
    *(step(**{name: 0}) for name in ("start", "pos", "slot", "rank", "epoch")),
    step(again=1), {**step(), "from": 1}, step(retries=1), step(branch="-1"), step(args={}),
    *(step(**{name: ""}) for name in ("version", "agent", "call_id", "framework", "approval")),
    step(once=["mine", "k", "t"]), step(once=["r", 1]),  step(once=["r", 1, "k"]),
    block(after=[2]), block(beyond=[[1, 3]]), block(after=[]),
    block(outcome={"status": "ok", "value": None}), block(outcome={"status": "ok", "value": "a0"}),
    step(outcome={"status": "error"}), step(after=[99]),
]  # fmt: skip
SPANS: list[Any] = [[[1, 99]], [[2, 1]], [[0, 1]], [[1.0, 2]], [[1, "2"]], [[True, 2]], [1], 5]
BAD_LINES: list[Event] = [
    outcome(step=99), outcome(outcome={"status": "?"}), outcome(outcome={"value": 1}),
    outcome(step=2, outcome={"status": "ok", "value": "zz"}), outcome(unasked=[99]),
    *(line("attempt", id="x", **{name: bad}) for name in ("replayed", "left") for bad in SPANS),
    line("run", run="r"), line("attempt"), line("attempt", id=5), line("ended", status=None),
    line("attempt", id="x", imported=[]), line("held", status="ok"), line("held", status=1),
    line("held", **{"status": "ok", "from": 5}), line("gone", status="ok", to=5),
    line("pruned", status=5), line("forked", **{"run": "r", "from": 5}),
    line("forked", **{"run": 5, "from": "r"}),
    line("undoing", steps=[99], why="undo", forgive=True), line("undoing", steps=[1], why="undo"),
    line("undoing", steps=[1], why=5, forgive=True), line("undoing", why="undo", forgive=True),
    line("undoing", steps=[1], why="undo", forgive=True, block=99),
    line("undone", steps=[99]), line("undone"), line("undone", steps=[1], reopens=[99]),
    line("undone", steps=[1], places=[99]), line("rolled", steps=[1], branch=5),
    line("rolled", steps=[99], branch=""), line("back", step=1, status=5), line("back", step=99,
    status="verified"), line("changed", step=99, args={}), line("changed", step=1, args=[]),
    line("changed", step=1), line("changed", step=1, outcome={"status": "?"}), line("changed"),
    line("changed", remakes=[[1, 99]]), line("changed", step=2, outcome={"status": "ok",
    "value": "zz"}),
]  # fmt: skip
GOOD_LINES: list[Event] = [
    outcome(), outcome(outcome=None), outcome(unasked=[2]),
    line("attempt", id="x", replayed=[[1, 2], [3, 3]]), line("attempt", id="x", left=[[1, 3]]),
    line("ended", status="ok"), line("undoing", steps=[1], why="undo", forgive=True, block=2),
    line("undone", steps=[1], reopens=[2], places=[]), line("rolled", steps=[1], branch=""),
    line("back", step=1, status="verified"), line("changed", step=1, args={}),
    line("changed", step=1, outcome={"status": "ok", "value": 2}), line("changed", remakes=[]),
    line("changed", remakes=[[1, 3]]), line("acme.own", step=99),
]  # fmt: skip


@pytest.mark.parametrize("event", [*BAD_STEPS, *BAD_LINES, step(once=("mine", "k"))], ids=str)
def test_a_line_that_does_not_fit(log: list[Event], event: Event) -> None:
    events = following(log, event)
    with pytest.raises(TraceCorrupt, match="the line does not fit a run: ") as damage:
        folded(events)
    assert damage.value.line == len(events)


@pytest.mark.parametrize("event", [*BAD_STEPS, *BAD_LINES], ids=str)
def test_observers_hear_of_a_misfit_as_damage(log: list[Event], event: Event) -> None:
    events = following(log, event)
    lines = chained({k: v for k, v in each.items() if k != "hash"} for each in events)
    with pytest.raises(TraceCorrupt, match="the line does not fit a run: ") as damage:
        list(recorded_events(lines, "it"))
    assert damage.value.line == len(events)


@pytest.mark.parametrize("event", [*GOOD_STEPS, *GOOD_LINES], ids=str)
def test_a_line_that_fits(log: list[Event], event: Event) -> None:
    folded(following(log, event))


@pytest.mark.parametrize("event", [line("attempt", id="x"), line("acme.own")])
def test_a_log_begins_with_its_run(log: list[Event], event: Event) -> None:
    with pytest.raises(TraceCorrupt, match="a log begins with its one line `run`"):
        folded([event, *log])


def test_a_step_in_two_branches(log: list[Event]) -> None:
    mark = next(line["fingerprint"] for line in log if line.get("step") == 3)
    with pytest.raises(TraceCorrupt, match="step 3 has its fingerprint, in another branch"):
        folded(following(log, step(fingerprint=mark)))
