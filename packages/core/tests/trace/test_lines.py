"""What the lines of a log say beside what a resume needs: for whoever shows or audits a run."""

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import orjson
import pytest
from pydantic import SecretStr
from rollcage import Session, StepView, compensate, tool
from rollcage.contract.contract import Contract
from rollcage.errors import ApprovalRequired, ArgumentsInvalid, Blocked, RunStopped
from rollcage.gate.approval import Approval
from rollcage.gate.verdict import Verdict
from rollcage.session.options import Clock, Options
from rollcage.stages.orders import stop_run
from rollcage.stages.secrets import Secrets
from rollcage.trace.folder import Folder
from rollcage.trace.resolution import abandon_run
from rollcage.values.answer import Answer

ticks = [0]


@tool(effect="write", version="7")
def send(to: str) -> str:
    ticks[0] += 1_500_000
    return f"sent to {to}"


@tool(effect="read")
def look(at: str) -> str:
    ticks[0] += 2_000
    return f"saw {at}"


@tool(effect="write", version="7")
async def asend(to: str) -> str:
    ticks[0] += 1_500_000
    return f"sent to {to}"


def options() -> Options:
    """The clock moves in bodies only."""
    return Options(clock=dataclasses.replace(Clock(), monotonic=lambda: ticks[0]))


def lines(store: Path, run: str, *kinds: str) -> list[dict[str, Any]]:
    events = [orjson.loads(line) for line in Folder(store).read(run)]
    return [each for each in events if each["event"] in kinds]


def test_duration_is_that_of_the_body(tmp_path: Path) -> None:
    with Session("job", store=tmp_path, options=options()) as session:
        send("ann")
        look("it")
    step, outcome, read = lines(tmp_path, session.run_id, "step", "outcome")
    assert outcome["duration"] == 1500
    assert read["duration"] == 2
    assert "duration" not in step
    assert step["version"] == "7"
    assert "version" not in read


def test_async_bodies_have_durations(tmp_path: Path) -> None:
    async def main() -> str:
        async with Session("job", store=tmp_path, options=options()) as session:
            await asyncio.gather(session.acall(asend, to="a"), session.acall(send, to="b"))
            return session.run_id

    found = lines(tmp_path, asyncio.run(main()), "outcome")
    assert [each["duration"] >= 1500 for each in found] == [True, True]


def test_stream_durations_end_with_the_stream(tmp_path: Path) -> None:
    contract = Contract(name="count", parameters={}, effect="read")

    def body() -> Any:
        for n in range(3):
            ticks[0] += 1_000
            yield n

    with Session("job", store=tmp_path, options=options()) as session:
        assert list(session.stream(contract, {}, body)) == [0, 1, 2]
    (step,) = lines(tmp_path, session.run_id, "step")
    assert step["duration"] == 3


def test_failed_bodies_have_durations(tmp_path: Path) -> None:
    @tool(effect="read")
    def fails() -> None:
        ticks[0] += 4_000
        raise ValueError("no")

    with (
        Session("job", store=tmp_path, options=options()) as session,
        pytest.raises(ValueError, match="no"),
    ):
        fails()
    (step,) = lines(tmp_path, session.run_id, "step")
    assert step["duration"] == 4
    assert step["outcome"]["status"] == "error"


def test_hits_write_no_duration(tmp_path: Path) -> None:
    with pytest.raises(KeyError), Session("job", store=tmp_path) as first:
        send("ann")
        raise KeyError
    with Session("job", store=tmp_path):
        send("ann")
    assert len(lines(tmp_path, first.run_id, "outcome")) == 1


def test_granted_verdicts_stand_in_the_step(tmp_path: Path) -> None:
    def gate(view: Any) -> Verdict | None:
        return Verdict.ask("it leaves the house") if view.name == "send" else None

    def approve(_: Any) -> Approval:
        return Approval(True, by="bob")

    with Session("job", store=tmp_path, gate=[gate], approver=approve) as session:
        send("ann")
        look("it")
    waits, asked, read = lines(tmp_path, session.run_id, "step")
    assert waits["waits"]
    assert asked["verdict"]["decision"] == "ask"
    assert asked["verdict"]["rule"].endswith("gate")
    (decided,) = lines(tmp_path, session.run_id, "decided")
    assert (decided["id"], decided["by"]) == (asked["approval"], "bob")
    assert "verdict" not in read


def test_refused_calls_say_what_was_asked(tmp_path: Path) -> None:
    def gate(view: Any) -> Verdict | None:
        return Verdict.deny("not today", code="closed") if view.name == "send" else None

    with Session("job", store=tmp_path, gate=[gate]) as session:
        with session.turn() as turn, session.place(turn=turn, slot=1, agent="eve", call_id="c1"):
            look("it")
        with pytest.raises(Blocked), session.place(agent="eve", call_id="c2"):
            send("ann")
        with pytest.raises(ArgumentsInvalid):
            session.call(look, at={"no": "text"})
        session.refused("fly", {"to": "mars"}, call_id="c3")
        session.refused(vars(send)["__rollcage_contract__"], {}, call_id="c4")
    denied, invalid, missing, unfit = lines(tmp_path, session.run_id, "refused")
    assert (denied["args"], denied["version"]) == ({"to": "ann"}, "7")
    assert (denied["agent"], denied["call_id"], denied["effect"]) == ("eve", "c2", "write")
    assert denied["verdict"]["code"] == "closed"
    assert invalid["args"] == {"at": {"no": "text"}}
    assert invalid["verdict"]["code"] == "arguments_invalid"
    assert (missing["name"], missing["verdict"]["code"]) == ("fly", "tool_missing")
    assert missing["args"] == {"to": "mars"}
    assert "effect" not in missing
    assert (unfit["call_id"], unfit["verdict"]["code"]) == ("c4", "arguments_invalid")
    assert (session.stats.blocked, session.stats.refused) == (1, 3)


def test_refused_calls_take_no_place(tmp_path: Path) -> None:
    with Session("job", store=tmp_path) as session:
        session.refused("fly", {"to": "mars"})
        send("ann")
    (step,) = lines(tmp_path, session.run_id, "step")
    assert (step["step"], step["turn"], step["slot"]) == (1, 1, 0)


def test_refused_calls_show_no_secret(tmp_path: Path) -> None:
    contract = Contract(
        name="login",
        parameters={"type": "object", "properties": {"password": {"type": "string"}, "n": {}}},
        secret=frozenset({"password"}),
    )
    with Session("job", store=tmp_path, stages=[Secrets()]) as session:
        session.refused(contract, {"password": "hunter2hunter2", "n": SecretStr("s3cr3ts3cr3t")})
        session.refused("nothing", {"text": "hunter2hunter2"})
    data = b"".join(Folder(tmp_path).read(session.run_id))
    assert b"hunter2" not in data
    assert b"s3cr3t" not in data


MODEL = Contract(
    name="claude", parameters={}, effect="read", framework="langchain", version="2026-01"
)


def test_model_answers_stand_in_neutral_form(tmp_path: Path) -> None:
    def read(value: Any) -> Answer:
        return Answer(text=value[0], usage={"input_tokens": 3, "output_tokens": 2})

    with Session("job", store=tmp_path) as session:
        given = session.run_call(MODEL, {}, lambda: ["hello"], kind="model", answer=read)
    assert given == ["hello"]
    (step,) = lines(tmp_path, session.run_id, "step")
    assert step["outcome"]["answer"] == {"text": "hello"}
    assert step["outcome"]["usage"] == {"input_tokens": 3, "output_tokens": 2}
    assert (step["framework"], step["version"]) == ("langchain", "2026-01")


def test_unreadable_answers_lose_no_outcome(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def read(value: Any) -> Answer:
        raise TypeError(value)

    with Session("job", store=tmp_path) as session:
        session.run_call(MODEL, {}, lambda: ["hello"], kind="model", answer=read)
    (step,) = lines(tmp_path, session.run_id, "step")
    assert step["outcome"] == {"status": "ok", "value": ["hello"]}
    assert "can't be read" in caplog.text


def test_large_answers_stand_beside_the_log(tmp_path: Path) -> None:
    text = "a" * 70_000
    with Session("job", store=tmp_path) as session:
        session.run_call(MODEL, {}, lambda: 1, kind="model", answer=lambda _: Answer(text=text))
    (step,) = lines(tmp_path, session.run_id, "step")
    blob = step["outcome"]["answer"]
    assert blob["$rollcage"] == "blob"
    data = Folder(tmp_path).get("blobs", blob["sha256"])
    assert data is not None
    assert orjson.loads(data) == {"text": text}


def test_ended_says_what_ended_it(tmp_path: Path) -> None:
    with pytest.raises(KeyError), Session("job", store=tmp_path) as session:
        raise KeyError("the matter")
    (ended,) = lines(tmp_path, session.run_id, "ended")
    assert ended["status"] == "error"
    assert ended["error"] == {"type": "KeyError", "message": "'the matter'"}


def test_ended_names_the_halt(tmp_path: Path) -> None:
    def gate(_: Any) -> Verdict:
        return Verdict.ask("why not")

    with pytest.raises(ApprovalRequired), Session("job", store=tmp_path, gate=[gate]) as session:
        send("ann")
    (ended,) = lines(tmp_path, session.run_id, "ended")
    assert ended["status"] == "paused"
    assert ended["error"]["type"].endswith("ApprovalRequired")


def test_attempts_say_how_they_were_made(tmp_path: Path) -> None:
    with Session("job", store=tmp_path, options=Options(seed="s")) as session:
        send("ann")
    with Session("job", store=tmp_path, replay="continue", on_divergence="warn"):
        pass
    first, second = lines(tmp_path, session.run_id, "attempt")
    assert "replay" not in first
    assert (second["replay"], second["on_divergence"]) == ("continue", "warn")
    (run,) = lines(tmp_path, session.run_id, "run")
    assert run["seed"] == "s"


def test_every_line_but_outcomes_has_a_time(tmp_path: Path) -> None:
    with pytest.raises(RunStopped), Session("job", store=tmp_path) as session:
        send("ann")
        with pytest.raises(KeyError), session.transaction():
            raise KeyError
        with session.branch("b"):
            send("bob")
        session.undo()
        stop_run(tmp_path, session.run_id, by="eve")
        send("cyn")
    events = [orjson.loads(line) for line in Folder(tmp_path).read(session.run_id)]
    assert {each["event"] for each in events} > {"undoing", "undone", "ordered", "ended"}
    for each in events:
        is_of_a_body = each["event"] == "outcome" and "duration" in each
        assert ("time" in each) is not is_of_a_body, each


def test_abandoned_says_when(tmp_path: Path) -> None:
    with Session("job", store=tmp_path) as session:
        send("ann")
    abandon_run(tmp_path, session.run_id, by="eve", reason="done by hand")
    *_, ended = lines(tmp_path, session.run_id, "ended")
    assert (ended["by"], ended["status"]) == ("eve", "abandoned")
    assert ended["time"] > 0


@tool(name="lines.back", idempotent=True)
def back(n: int) -> None:
    """Take nothing back."""


@tool(name="lines.put", undo=lambda args: [compensate(back, n=args["n"])])
def put(n: int) -> None:
    """Do nothing."""


def test_times_are_in_microseconds(tmp_path: Path) -> None:
    def decides(view: StepView) -> Verdict | None:
        verdicts = {1: Verdict.deny("no"), 2: Verdict.ask("sure?")}
        return verdicts.get(view.args.get("n", 0))

    clock = dataclasses.replace(Clock(), wall=lambda: 1_700_000_000_123_456_789)
    how: dict[str, Any] = {
        "options": Options(clock=clock), "gate": [decides], "store": tmp_path,
        "approver": lambda _: Approval(True, by="ann"),
    }  # fmt: skip
    with pytest.raises(InterruptedError), Session("job", **how):
        with pytest.raises(Blocked):
            put(1)
        put(2)
        inner = Session("inner", store=tmp_path)
        with pytest.raises(KeyError), inner, inner.transaction():
            put(3)
            raise KeyError
        look("it")
        raise InterruptedError
    with Session("job", on_divergence="warn", **how) as session:
        put(4)
        with pytest.raises(ArgumentsInvalid):
            session.call(put, n="x")
        assert session.undo().complete
    found = lines(tmp_path, session.run_id, *KINDS)
    assert {line["event"] for line in found} == {*KINDS}
    assert {line["time"] for line in found if "time" in line} == {1_700_000_000_123_456}
    asked = next(line for line in found if line["event"] == "requested")
    assert asked["expires"] - asked["time"] == 24 * 60 * 60 * 1_000_000


KINDS = (
    "run", "attempt", "step", "refused", "requested", "decided", "undoing", "back", "rolled",
    "undone", "ended",
)  # fmt: skip
