"""Limits in a session: what they refuse, and what of a call they count, however it ends."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cores import Core
from rollcage import Approval, ArgumentsInvalid, Blocked, Contract, Verdict, tool
from rollcage.gate import StepView
from rollcage.session.adapters import Answer
from rollcage.session.options import Clock
from rollcage_policy import Policy
from rollcage_policy.tally import Spent

ran: list[Any] = []
clock = [0]


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()
    clock[0] = 0


class Wire:
    """Sessions whose policy has these limits, by a clock of the test's own."""

    def __call__(self, *rules: dict[str, Any], prices: Any = None, loops: Any = None) -> Wire:
        named = [{"id": f"limit-{number}", **rule} for number, rule in enumerate(rules)]
        limits = {"rules": named} if loops is None else {"rules": named, "loops": loops}
        data = {"version": 1, "default": "allow", "limits": limits, "prices": prices or {}}
        self._policy = Policy.parse(json.dumps(data), form="yaml")
        return self

    def job(self, core: Core, **how: Any) -> Any:
        clock_ = Clock(monotonic=lambda: clock[0], wall=lambda: clock[0])
        self._core, self._last = core, core.session("job", self._policy, clock=clock_, **how)
        return self._last

    @property
    def spent(self) -> Spent:
        found: Spent | None = self._core.spent(self._last)
        assert found is not None
        return found


@pytest.fixture
def wire() -> Wire:
    return Wire()


@tool(effect="write", name="limits.put")
def put(what: Any) -> Any:
    ran.append(what)
    if what == "bad":
        raise ValueError(what)
    return what


@tool(effect="read", name="limits.look")
async def look(at: int) -> int:
    ran.append(at)
    await asyncio.sleep(0)
    return at


def blocked(call: Callable[[], Any]) -> str:
    with pytest.raises(Blocked) as refused:
        call()
    return refused.value.verdict_code


def test_a_limit_blocks_and_the_trace_says_which(wire: Wire, core: Core) -> None:
    wire({"calls": 1, "id": "few"})
    with wire.job(core) as session:
        put(1)
        with pytest.raises(Blocked, match=r"may make 1 calls, and has made them\. Finish"):
            put(2)
    assert ran == [1]
    (refused,) = [
        e for e in core.lines(session.run_id) if e["event"] in ("step.blocked", "refused")
    ]
    assert (refused["verdict"]["rule"], refused["verdict"]["code"]) == ("few", "limit_calls")


def test_of_many_threads_as_many_calls_pass_as_there_is_room(wire: Wire, core: Core) -> None:
    wire({"calls": 10})

    def one(number: int) -> bool:
        try:
            bound(number)
        except Blocked:
            return False
        return True

    with wire.job(core) as session, ThreadPoolExecutor(50) as pool:
        bound = core.bound(session, put, "what")
        assert sum(pool.map(one, range(50))) == 10
    assert len(ran) == 10


async def test_of_many_tasks_no_more_are_inside_than_may_be(wire: Wire, core: Core) -> None:
    meter = wire({"concurrency": 10})
    async with wire.job(core) as session:
        calls = [session.acall(look, at=number) for number in range(50)]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert sum(not isinstance(each, Blocked) for each in answers) == 10
        assert await session.acall(look, at=50) == 50
    assert meter.spent.calls == len(ran) == 11


# --- a job has one budget ------------------------------------------------------------------------


def test_what_is_replayed_has_been_spent(wire: Wire, core: Core) -> None:
    for through in (2, 3, 3):
        meter = wire({"calls": 3, "tools": ["limits.*"]})
        with pytest.raises(KeyError), wire.job(core) as session:
            for number in range(through):
                put(number)
            raise KeyError
        assert meter.spent.calls == through
    assert ran == [0, 1, 2]
    wire({"calls": 3})
    with wire.job(core) as session:
        for number in range(3):
            put(number)
        assert blocked(lambda: put(3)) == "limit_calls"
    assert session.stats.hits == 3


MODEL = Contract(name="m-1", parameters={"type": "object", "additionalProperties": True})


def asked(core: Core, session: Any, text: str) -> Any:
    def answer(value: Any) -> Answer:
        return Answer(text=value, usage={"input_tokens": 600, "output_tokens": 400})

    return core.model(session, MODEL, {"text": text}, body=lambda **_: text, answer=answer)


def test_tokens_and_cost_are_those_of_the_answers_recorded_ones_included(
    wire: Wire, core: Core
) -> None:
    prices = {"models": {"m-*": {"input": 1, "output": 10}}}
    for through in (2, 3):
        meter = wire({"tokens": 3000}, prices=prices)
        with pytest.raises(KeyError), wire.job(core) as session:
            for number in range(through):
                asked(core, session, str(number))
            raise KeyError
        assert meter.spent == (through, 1000 * through, 0.0046 * through)
    wire({"cost": 0.0138}, prices=prices)
    with wire.job(core) as session:
        for number in range(3):
            asked(core, session, str(number))
        assert blocked(lambda: asked(core, session, "3")) == "limit_cost"
    assert session.stats.hits == 3


# --- what is given back --------------------------------------------------------------------------


def test_what_a_rule_or_an_approver_denies_takes_nothing(wire: Wire, core: Core) -> None:
    def rule(step: StepView) -> Verdict | None:
        if step.args["what"] == "never":
            return Verdict.deny("never", code="never")
        return Verdict.ask("may it?") if step.args["what"] == "ask" else None

    meter = wire({"calls": 2, "concurrency": 1, "rate": "2/h"}, loops={"same": 1})
    approver = iter([Approval(False), Approval(False), Approval(True, by="ann")])
    with wire.job(core, rules=[rule], approver=lambda _: next(approver)):
        for _ in range(3):
            assert blocked(lambda: put("never")) == "never"
        for _ in range(2):
            assert blocked(lambda: put("ask")) == "approval_rejected"
        assert meter.spent.calls == 0
        assert [put("ask"), put("last")] == ["ask", "last"]
        assert blocked(lambda: put("more")) == "limit_calls"


def test_a_limit_can_ask(wire: Wire, core: Core) -> None:
    reasons: list[str] = []

    def approver(request: Any) -> Approval:
        reasons.append(request.verdict.reason)
        return Approval(approved=len(reasons) == 1, by="ann", reason="enough")

    wire({"calls": 1, "decision": "ask", "reason": "one more?"})
    with wire.job(core, approver=approver):
        assert [put(1), put(2)] == [1, 2]
        assert blocked(lambda: put(3)) == "approval_rejected"
    assert (ran, reasons) == ([1, 2], ["one more?"] * 2)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_call_that_raises_leaves_its_place(
    wire: Wire, core: Core, error: type[BaseException]
) -> None:
    @tool(effect="read", name="limits.raises")
    def raises() -> None:
        raise error

    wire({"concurrency": 1})
    with wire.job(core):
        for _ in range(3):
            with pytest.raises(error):
                raises()
        put(1)


async def test_a_call_that_is_cancelled_leaves_its_place(wire: Wire, core: Core) -> None:
    @tool(effect="read", name="limits.waits")
    async def waits() -> None:
        await asyncio.Event().wait()

    meter = wire({"concurrency": 1})
    async with wire.job(core) as session:
        for _ in range(3):
            waiting = asyncio.create_task(session.acall(waits))
            await asyncio.sleep(0)
            with pytest.raises(Blocked, match="1 calls at once"):
                await session.acall(look, at=1)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        assert await session.acall(look, at=2) == 2
    assert meter.spent.calls == 4  # they began


CHUNKS = Contract(name="limits.chunks", parameters={"type": "object"}, effect="read")


def test_a_stream_holds_its_place_until_it_is_read_or_closed(wire: Wire, core: Core) -> None:
    meter = wire({"concurrency": 1})
    with wire.job(core) as session:

        def stream() -> Iterator[str]:
            found: Iterator[str] = session.stream(CHUNKS, {}, lambda: iter("abc"))
            return found

        unread = stream()  # nobody reads it: it takes nothing
        assert list(stream()) == ["a", "b", "c"]
        left = stream()
        next(left)
        assert blocked(lambda: put(1)) == "limit_concurrency"
        assert blocked(lambda: list(unread)) == "limit_concurrency"
        assert isinstance(left, Generator)
        left.close()
        put(1)
        half = stream()
        for _ in itertools.islice(half, 2):
            pass
        del half
        put(2)
    assert meter.spent.calls == 5


async def test_so_does_an_async_stream(wire: Wire, core: Core) -> None:
    async def chunks() -> AsyncIterator[str]:
        for each in "abc":
            yield each

    wire({"concurrency": 1})
    async with wire.job(core) as session:
        stream = session.astream(CHUNKS, {}, chunks)
        assert await anext(stream) == "a"
        with pytest.raises(Blocked):
            await session.acall(look, at=1)
        assert [each async for each in stream] == ["b", "c"]
        assert await session.acall(look, at=1) == 1


# --- loops ---------------------------------------------------------------------------------------


def test_a_loop_is_noticed_by_its_arguments(wire: Wire, core: Core) -> None:
    wire(loops={"same": 2, "alternating": 2})
    with wire.job(core):
        for what in (1, 1):
            put(what)
        assert blocked(lambda: put(1)) == "loop_same"
        for first in ({"a": 1, "b": 2}, {"b": 2, "a": 1}):
            put(first)
            put(3)
        assert blocked(lambda: put({"a": 1, "b": 2})) == "loop_alternating"
        put(4)


def test_nested_calls_are_calls_of_the_run(wire: Wire, core: Core) -> None:
    @tool(effect="scope", name="limits.plan")
    def plan(steps: int) -> int:
        return sum(put(number) for number in range(steps))

    meter = wire({"calls": 4})
    with wire.job(core):
        assert plan(3) == 3
        assert blocked(lambda: plan(1)) == "limit_calls"
    assert meter.spent.calls == 4


# --- where nothing is limited --------------------------------------------------------------------


@tool(effect="scope", name="limits.nest")
def nest(what: str) -> Any:
    return put(what)


def spends(meter: Wire, core: Core, through: int) -> list[Spent]:
    """What is counted in the course of a job that is cut off."""

    def rule(step: StepView) -> Verdict | None:
        return Verdict.deny("never") if step.args.get("what") == "never" else None

    def look_inside(**_: Any) -> str:
        found.append(meter.spent)
        return "seen"

    found: list[Spent] = []
    unknown: Any = {"who": "nobody"}
    free = Contract(name="inside", parameters={}, effect="pure")
    with pytest.raises(KeyError), meter.job(core, rules=[rule]) as session:
        session.run_call(free, {}, look_inside)
        for what in ("a", "never", "bad", "b")[:through]:
            with contextlib.suppress(Blocked, ValueError):
                nest(what)
            found.append(meter.spent)
        asked(core, session, "hello")
        found.append(meter.spent)
        with pytest.raises(ArgumentsInvalid):
            put(**unknown)
        raise KeyError
    return [*found, meter.spent]


def test_what_is_spent_counts_what_ran_over_attempts(tmp_path: Path) -> None:
    core, meter = Core(tmp_path), Wire()({"calls": 1000})
    for through, made in ((2, 4), (4, 7)):  # the second resumes the first
        assert spends(meter, core, through)[-1] == (made, 1000, 0.0)
