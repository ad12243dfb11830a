"""How a user's code looks to mypy and pyright; checked by both, run by nobody."""

from collections.abc import AsyncGenerator, Generator
from typing import Any, assert_type

from rollcage import (
    ApprovalRequired,
    Blocked,
    Contract,
    CurrentStep,
    Diverged,
    Halt,
    RollcageError,
    Rule,
    RunInfo,
    Session,
    Stats,
    StepView,
    Store,
    TraceCorrupt,
    UnknownOutcome,
    Verdict,
    current_step,
    list_runs,
    open_store,
    tool,
)
from rollcage.trace import check_events, decode
from rollcage.trace.recorded import trace_of

# A declared function stays that function.


@tool
def bare(a: int, b: str = "x") -> float:
    return a / len(b)


@tool(
    name="send-mail",
    version="2",
    effect="write",
    idempotent=True,
    risk="high",
    permissions=["mail"],
    raises=[ConnectionError],
    secret=["password"],
    on_miss="fail",
    source="recorded",
)
def full(to: str, password: str) -> dict[str, int]:
    return {to: len(password)}


@tool(effect="read")
async def later(a: int) -> list[str]:
    return [str(a)]


assert_type(bare(1, "y"), float)
assert_type(full(to="a", password="b"), dict[str, int])
bare("1")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] # still the function's own types
bare(c=1)  # type: ignore[call-arg] # pyright: ignore[reportCallIssue] # and names
tool(effect="reads")(full)  # type: ignore[call-overload] # pyright: ignore[reportArgumentType] # no such effect
tool(efect="read")(full)  # type: ignore[call-overload] # pyright: ignore[reportCallIssue] # no such field


# A session, and what its calls give.


def same_line(step: StepView) -> Verdict | None:
    assert_type(step.contract, Contract)
    assert_type(step.name, str)
    if step.args["to"] == "everybody":
        return Verdict.deny("not everybody", code="too_many")
    return Verdict.ask("sure?") if step.effect == "write" else None


def anything(step: StepView) -> str:
    return "allow"


rules: list[Rule] = [same_line]
wrong: list[Rule] = [anything]  # type: ignore[list-item] # pyright: ignore[reportAssignmentType] # a rule gives a verdict


def sync() -> None:
    with Session("job", store="./.rollcage", replay="auto", gate=rules) as session:
        assert_type(session, Session)
        assert_type(session.call(bare, a=1), float)
        assert_type(session.call(full, to="a", password="b"), dict[str, int])
        assert_type(session.call(len, obj="abc"), int)
        bound = session.tool(bare)
        assert_type(bound(1), float)

        @session.tool(effect="pure")
        def inner(a: int) -> str:
            return str(a)

        assert_type(inner(1), str)
        with session.turn() as turn, turn.slot(0):
            assert_type(bare(1), float)
        with session.branch("left") as left:
            assert_type(left.call(bare, a=1), float)
        with session.place(turn="message 1", slot=0, agent="ann", call_id="c1"):
            session.halt(Halt("enough"))
        assert_type(session.run_id, str)
        assert_type(session.stats, Stats)
        assert_type(session.stats.hits, int)
        assert_type(session.halted, Halt | None)
        contract = Contract(name="x", parameters={"properties": {}}, effect="read")
        assert_type(session.run_call(contract, {}, bare), Any)
        assert_type(session.stream(contract, {}, bare), Generator[Any, None, None])


async def asynchronous() -> None:
    async with Session("job", replay="offline", source="trace.jsonl") as session:
        assert_type(session, Session)
        assert_type(await session.acall(later, a=1), list[str])
        assert_type(await session.acall(bare, a=1), float)
        assert_type(await later(1), list[str])
        with session.branch("left") as left:
            assert_type(await left.acall(later, a=1), list[str])
        contract = Contract.of(later, effect="read")
        assert_type(await session.arun_call(contract, {}, later), Any)
        assert_type(session.astream(contract, {}, later), AsyncGenerator[Any, None])


Session("job", replay="again")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] # no such mode
Session("job", on_divergence="go")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] # no such choice


# What else a user holds in hand.

step = current_step()
assert_type(step, CurrentStep | None)
if step is not None:
    assert_type((step.run, step.number, step.name, step.idempotency_key), tuple[str, int, str, str])

try:
    sync()
except Blocked as error:
    assert_type((error.reason, error.rule, error.verdict_code), tuple[str, str, str])
except Diverged as error:
    assert_type(error.orphans, tuple[tuple[str, int], ...])
except UnknownOutcome as error:
    assert_type((error.run, error.step), tuple[str, int])
except TraceCorrupt as error:
    assert_type((error.where, error.line, error.reason), tuple[str, int, str])
except ApprovalRequired as error:
    halt: Halt = error
except RollcageError as error:
    assert_type(error.code, str)

store: Store = open_store("./.rollcage")
for info in list_runs(store):
    assert_type(info, RunInfo)
    trace = trace_of(store, info.run)
    for event in check_events(trace.data, trace.where):
        assert_type(event, dict[str, Any])
        assert_type(decode(event["args"]), Any)
