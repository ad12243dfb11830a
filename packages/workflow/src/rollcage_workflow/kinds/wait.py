"""`wait:` waits for a signal, a time or an approval."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import functools
import itertools
from typing import TYPE_CHECKING, Any, Final

from rollcage.trace.store import store_option

from rollcage_workflow.approvals import answer_of
from rollcage_workflow.errors import ExpressionFailed, StepFailed
from rollcage_workflow.expressions import fill
from rollcage_workflow.flow import Waits, breakable
from rollcage_workflow.plan import Wait
from rollcage_workflow.records import APPROVAL, SIGNAL, utc
from rollcage_workflow.schemas import ANY, Shape, invalid, unusable

if TYPE_CHECKING:
    from rollcage.gate import ApprovalRequest

    from rollcage_workflow.check.checking import Around, Checking
    from rollcage_workflow.files import Path
    from rollcage_workflow.flow import BlockPlace
    from rollcage_workflow.graph import Node
    from rollcage_workflow.interpret import Interpreter

__all__ = ["check", "run"]

_HERE: Final = contextlib.nullcontext()
_DECIDED: Final = {
    "type": "object",
    "properties": {"by": {"type": "string"}, "reason": {"type": "string"}, "value": {}},
    "required": ["by", "reason", "value"],
    "additionalProperties": False,
}
"""The result of an approval."""


def check(checking: Checking, node: Node, path: Path, around: Around) -> tuple[Node, Shape]:
    """See `Kind.check`."""
    wait = node.step.wait
    assert wait is not None
    if wait.until is not None:
        checking.expression(wait.until, (*path, "wait", "until"), around, takes_null=False)
    if wait.accepts is not None:
        why = unusable(wait.accepts)
        if why is not None:
            checking.find((*path, "wait", "accepts"), "invalid", why)
            return node, ANY
    if wait.approval is not None:
        checking.template(wait.approval, (*path, "wait", "approval"), around)
        return node, Shape.of(_DECIDED)
    if wait.signal is None:
        return node, Shape.of({"type": "string"})
    return node, Shape.of(wait.accepts)


async def run(interpreter: Interpreter, node: Node, place: BlockPlace) -> Any:
    """See `Kind.run`.

    Raises:
        Waits: the signal is not there, and the attempt does not stay for it.
    """
    wait = node.step.wait
    assert wait is not None
    if wait.signal is not None:
        return await _signal(interpreter, wait, f"{place.path}{node.name}{place.suffix}")
    if wait.approval is not None:
        return await _approval(interpreter, node, place)
    if wait.seconds is not None:
        until = await interpreter.reached(node.name) + wait.seconds
    else:
        until = _time(fill(wait.until, place.variables))
    left = until - interpreter.now()
    if left > interpreter.patience:
        at = utc(int(until * 1e9))
        raise Waits([f"{place.path}{node.name} waits until {at}"], until)
    place.flow.check()
    await breakable(asyncio.sleep(max(left, 0.0)), place.flow, "sleeps")
    return utc(int(until * 1e9))


async def _signal(interpreter: Interpreter, wait: Wait, step: str) -> Any:
    name = str(wait.signal)
    there = await asyncio.to_thread(interpreter.signals.take, name, step, wait.accepts)
    waits = Waits([f"waits for the signal {name}"])
    if there is None and interpreter.session.copier is None:
        raise waits  # nothing is recorded: a wait in a race may be undone, and begin again

    async def taken(**_: object) -> Any:
        if there is None:  # and the fork has none
            raise waits
        return there

    sent = await interpreter.session.arun_call(SIGNAL, {"name": name, "step": step}, taken)
    why = None if wait.accepts is None else invalid(sent["data"], Shape.of(wait.accepts))
    if why is not None:
        message = f"the signal {name} was taken under another plan; this one does not accept it"
        raise StepFailed(f"{message}: {why}")
    return sent["data"]


async def _approval(interpreter: Interpreter, node: Node, place: BlockPlace) -> Any:
    wait, session = node.step.wait, interpreter.session
    assert wait is not None
    question = fill(wait.approval, place.variables)
    if not isinstance(question, str):
        raise ExpressionFailed(f"{wait.approval} gives no text to ask with")
    step = f"{place.path}{node.name}{place.suffix}"
    epoch = session.attempt.run.epoch(session.place_here().branch)
    ask = functools.partial(interpreter.approvals.request, step, question, wait,
                            run=session.run_id, epoch=epoch)  # fmt: skip
    for number in itertools.count():
        request = ask(number=number)
        call_id = place.call_id(node.name)
        with session.place(call_id=f"{call_id}~{number + 1}") if call_id and number else _HERE:
            answer = await _asked(interpreter, wait, request, question)
        if "rejected" not in answer:
            return answer
        if wait.on_rejected == "fail" and request.id not in interpreter.approvals.settled:
            raise StepFailed(answer["rejected"])
    raise AssertionError("unreachable")


async def _asked(
    interpreter: Interpreter, wait: Wait, request: ApprovalRequest, question: str
) -> dict[str, Any]:
    """Return the answer of people to a request.

    Raises:
        Waits: there is none yet.
    """
    session, approvals, decided = interpreter.session, interpreter.approvals, False

    def settled(**_: object) -> dict[str, Any]:
        nonlocal decided
        is_fork = session.copier is not None
        asked, decision = approvals.look(request) if is_fork else approvals.ask(request, wait)
        if approvals.is_open(asked, decision):  # nothing is recorded: see `_signal`
            if is_fork:
                raise Waits([f"would ask: {question}"])
            at = store_option(approvals.store)
            message = f"waits for approval as {asked.id}: rollcage approve {asked.id}{at}"
            raise Waits([message], asked.expires / 1e6, [asked.id])
        decided = not is_fork
        return answer_of(asked, decision)

    try:
        answer: dict[str, Any] = await session.arun_call(
            APPROVAL, {"approval": request.id, "question": question}, settled
        )
        return answer
    finally:
        if decided:
            await asyncio.to_thread(approvals.over, request)


def _time(text: Any) -> float:
    try:
        found = dt.datetime.fromisoformat(text)
    except (TypeError, ValueError):
        raise ExpressionFailed(f"{text!r:.80} is not a time: 2027-01-31T08:00:00Z") from None
    if found.tzinfo is None:
        raise ExpressionFailed(f"{text!r:.80} has no offset: 2027-01-31T08:00:00Z")
    return found.timestamp()
