"""The flow of a step, written once (DESIGN §3): a generator that yields effects.

Errors of a body travel as data (`Raised`), so that nothing a body raises, StopIteration and
cancellation included, can be mistaken for an event of the flow itself.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Generator
from concurrent.futures import Future
from hashlib import sha256
from typing import Any, assert_never

import orjson

from rollcage.contract.contract import Contract
from rollcage.errors import ForkEnded
from rollcage.fingerprint.identity import idempotency_key
from rollcage.gate import Verdict
from rollcage.gate.verdict import stronger
from rollcage.replay.finding import ProbeResult, StandIn
from rollcage.replay.path import Entry
from rollcage.step.admission import Admission, Precondition
from rollcage.step.approving import approved, changed, edited_again, in_place
from rollcage.step.call import Arrival, OpenStep, Prepared, Progress
from rollcage.step.capture import (
    LARGE,
    Setting,
    capture,
    keep_large,
    keep_request,
    observed,
    plan_late,
    probed,
    revived,
)
from rollcage.step.halts import diverged
from rollcage.step.labelled import begin_stream, mark, noted
from rollcage.step.metering import tally_begun, tally_ended
from rollcage.step.outcomes import (
    NOT_STARTED,
    Read,
    answer_on_record,
    ended,
    keep_large_value,
    kept_whole,
    outcome_of,
)
from rollcage.step.recorded import compared, give_back
from rollcage.step.requests import (
    Admit,
    Consult,
    Execute,
    Flow,
    Raised,
    Request,
    Returned,
    Settle,
    Stop,
    Sync,
    WaitForCall,
)
from rollcage.undo.compensation import DidNotHappen, Happened, digests_of
from rollcage.values.copies import own_copy
from rollcage.values.decoding import decode

__all__ = ["happened", "run_step"]


def run_step(  # noqa: C901, PLR0912 - from top to bottom: each part of its own is a generator more
    body: Callable[..., Any],
    setting: Setting,
    read: Read | None,
    waits: bool,  # noqa: FBT001 - all of these are bound by position: that takes half as long
    progress: Progress,
    verdict: Verdict,
    is_async: bool | None = None,  # noqa: FBT001
) -> Flow:
    """The flow of one call, from its verdict on.

    Args:
        body: of the tool.
        setting: what the session gives all of its calls.
        read: reads a model's answer off its value.
        waits: whether async functions can be called.
        progress: of the call.
        verdict: what the gate says of it.
        is_async: what the body is; None: what the flow's drive is.
    """
    answer: Returned | Raised
    if progress.tallied_by:
        tally_begun(progress)
    try:
        arguments = progress.call.arguments
        is_model = progress.call.kind == "model"
        if is_model or len(arguments.digest_input) >= LARGE:
            keep = keep_request(arguments) if is_model else keep_large(arguments.canonical)
            progress.shown = progress.compared = yield from keep
        admission: Admission = yield Admit(progress, verdict)
        if admission.first is not None:
            admission = yield from _prepared(progress, verdict, admission, setting, waits=waits)
        if admission.error is not None:
            return Raised(admission.error)
        step, entry = admission.step, admission.entry
        progress.recorded = entry
        if step is None:
            assert entry is not None
            return noted((yield from give_back(progress.call.contract, entry, setting)), progress)
        if entry is not None:
            begin_stream(progress)
            return noted((yield from compared(admission, step, entry, body, setting)), progress)
        wait = setting.barrier and step.world_effect
        if wait:
            synced = yield Sync(step)
            if isinstance(synced, Raised):  # cancelled, or no disk: before anything happened
                yield _not_started(progress, step)
                return synced
        if progress.stand_in is None and progress.consent.response is None:
            if progress.streamed:
                begin_stream(progress)
            progress.began = True
            called = body if progress.call.instead is None else _body(progress, body)
            answer = yield Execute(step, called, is_async)
        else:
            answer = yield from _answered(progress, setting)
        if isinstance(answer, Raised) and isinstance(answer.error, ForkEnded):
            # A fork of this fork, with an answer for what ended it, makes this call again.
            yield _not_started(progress, step)
            return answer
        settled = ended(step, answer, setting, read)
        if step.captured is not None or len(settled.encoded) >= LARGE:
            answer = yield from kept_whole(settled, answer, setting)
        progress.outcome = settled.outcome
        yield settled if progress.labels is None else mark(settled, progress)
        if wait and isinstance(answer, Returned):
            answer = yield from _synced(answer)
        return noted(answer_on_record(step.call, settled.outcome, answer), progress)
    finally:
        if progress.tallied_by:
            tally_ended(progress)


def _not_started(progress: Progress, step: OpenStep) -> Settle:
    """The end of a step whose body has not begun."""
    progress.outcome = NOT_STARTED
    return mark(Settle(step, NOT_STARTED, orjson.dumps(NOT_STARTED)), progress)


def _answered(progress: Progress, setting: Setting) -> Flow:
    """The answer to a call whose body does not run: a person's, or the one given to a fork."""
    if progress.stand_in is not None:
        return (yield from _stood_in(progress, progress.stand_in, setting))
    response = progress.consent.response
    assert response is not None
    return Returned(response.value)


def _stood_in(progress: Progress, given: StandIn, setting: Setting) -> Flow:
    """What a fork was given in place of the tool; the fork ends if the tool could not give that."""
    call = progress.call
    if given.error is not None:
        return Raised(given.error)
    value = given.given
    if given.is_called:
        words = {name: own_copy(each) for name, each in call.arguments.values.items()}
        what = f"what stands in for {call.contract.name}"
        answer: Returned | Raised = yield Consult(_whole(given.given), what, words=words)
        if isinstance(answer, Raised):
            return answer
        value = answer.value
    is_stream = call.contract.streams and isinstance(value, list)
    chunks: list[Any] = value if is_stream else [value]
    try:
        made = [in_place(call, chunk, setting) for chunk in chunks]
        return Returned([each for one in made for each in one] if is_stream else made[0])
    except ValueError as error:
        message = f"what the fork was given for {call.contract.name} can't be used: {error}"
        stop = ForkEnded(message, "halted", call.contract.name)
        yield Stop(stop)
        return Raised(stop)


def _whole(given: Callable[..., Any]) -> Callable[..., Any]:
    """The stand-in for a tool; of a stream, the list of its chunks."""
    if inspect.isgeneratorfunction(given):
        return functools.wraps(given)(lambda **words: [*given(**words)])
    if not inspect.isasyncgenfunction(given):
        return given

    async def collected(**words: Any) -> list[Any]:
        return [each async for each in given(**words)]

    return collected


def _body(progress: Progress, body: Callable[..., Any]) -> Callable[..., Any]:
    """What is called; with arguments that an approver has edited, by the adapter's own way."""
    instead = progress.call.instead
    if instead is None or not progress.is_edited:
        return body
    assert instead.edited is not None  # else that was refused
    return instead.edited


def _synced(answer: Returned) -> Flow:
    """What a body gave, once that survives the death of this process."""
    synced: Returned | Raised = yield Sync(sent=True)
    return synced if isinstance(synced, Raised) else answer


# --- before it may run ---------------------------------------------------------------------------


def _prepared(
    progress: Progress, verdict: Verdict, admission: Admission, setting: Setting, *, waits: bool
) -> Generator[Request, Any, Admission]:
    """Do what has to be done first, then admit the call again: it may run now, or is refused."""
    verdict, admission = yield from _unpaused(progress, verdict, admission, setting)
    first = admission.first
    if not isinstance(first, Precondition):
        return admission
    turn, slot = first.arrival.turn, first.arrival.slot
    try:
        return (yield from _made_ready(progress, verdict, first, setting, waits=waits))
    finally:
        turn.asked(slot)


def _made_ready(
    progress: Progress, verdict: Verdict, first: Precondition, setting: Setting, *, waits: bool
) -> Generator[Request, Any, Admission]:
    while True:
        stopped: BaseException | None = None
        match first.what:
            case "approve":
                assert first.asked is not None
                verdict, stopped = yield from approved(progress, verdict, first.asked, setting)
            case "edit":
                assert first.entry is not None
                verdict, stopped = yield from edited_again(progress, verdict, first.entry, setting)
            case "change":
                assert first.args is not None
                verdict, stopped = yield from changed(progress, first.args, setting)
            case "probe":
                assert first.entry is not None
                stopped = yield from _probed(progress, first.entry, setting)
            case "undo":
                left = yield from setting.undo_orphans(first.orphans, waits)
                if left:
                    halt = diverged(
                        first.arrival, first.orphans, setting.run, setting.at, left=left
                    )
                    yield Stop(halt)
                    stopped = halt
            case "capture":
                stopped = yield from capture(progress, first.entry, setting)
            case "wait":
                assert first.until is not None
                answer = yield WaitForCall(first.until)
                stopped = answer.error if isinstance(answer, Raised) else None
            case _:
                assert_never(first.what)
        if stopped is not None:
            return Admission(None, error=stopped)  # nothing happened, nothing is written
        admission: Admission = yield Admit(progress, verdict, first.arrival)
        verdict, admission = yield from _unpaused(
            progress, verdict, admission, setting, first.arrival
        )
        if not isinstance(admission.first, Precondition):
            return admission
        first = admission.first


def _unpaused(
    progress: Progress,
    verdict: Verdict,
    admission: Admission,
    setting: Setting,
    arrival: Arrival | None = None,
) -> Generator[Request, Any, tuple[Verdict, Admission]]:
    """Wait until the run is not paused; how the call is admitted then, and its verdict.

    What was found out for it before may no longer hold. The gate decides on it again: what is now
    denied does not run, and nothing is loosened.
    """
    while isinstance(admission.first, Future):
        answer: Returned | Raised = yield WaitForCall(admission.first)
        if isinstance(answer, Raised):
            return verdict, Admission(None, error=answer.error)  # nothing is written
        progress.prepared = Prepared()
        verdict = stronger(verdict, setting.decide(progress))
        if progress.has_changed(setting.seal):
            message = "its arguments were changed while the run was paused"
            verdict = Verdict("deny", message, "arguments_changed")
        admission = yield Admit(progress, verdict, arrival)
    return verdict, admission


def _probed(
    progress: Progress, entry: Entry, setting: Setting
) -> Generator[Request, Any, BaseException | None]:
    """Find out what became of a recorded step, and let the call know."""
    call = progress.call
    contract, values = call.contract, call.arguments.values
    key = idempotency_key(setting.root, entry.branch, entry.fingerprint)
    answered = yield from probed(contract, values, key, entry.undo, setting.seal)
    if isinstance(answered, BaseException):
        return answered
    if isinstance(answered, DidNotHappen):
        result = ProbeResult(False)
    elif isinstance(answered, Happened):
        result = yield from happened(contract, values, entry.undo, answered, setting)
    else:
        result = ProbeResult(None, why=answered)
    progress.prepared = progress.prepared._replace(probe=result)
    return None


def happened(
    contract: Contract,
    arguments: dict[str, Any],
    undo: dict[str, Any] | None,
    answered: Happened,
    setting: Setting,
) -> Generator[Request, Any, ProbeResult]:
    """What a probe's answer makes of a step whose outcome is unknown."""
    answer = Returned(answered.result)
    outcome, encoded = outcome_of(contract, answer, setting, None)
    if len(encoded) >= LARGE:
        outcome, encoded = yield from keep_large_value(outcome)
    states: dict[str, Any] = {}
    if undo is not None and "before" in undo:
        states = yield from revived(undo["before"])
    before = {resource: decode(state) for resource, state in states.items()}
    undoing = yield from plan_late(contract, arguments, before, answered.result, setting)
    if contract.observe is not None:  # from here on, a change by somebody else is noticed
        now = yield from observed(contract, arguments, setting.seal)
        if not isinstance(now, Raised):
            undoing["after"] = digests_of(now)
    return ProbeResult(True, outcome, sha256(encoded).hexdigest(), undoing)
