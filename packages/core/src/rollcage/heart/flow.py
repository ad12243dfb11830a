"""The flow of a call: decide, run its body if nothing answers it, and record its outcome.

`perform` is all of it. In each round `begin` decides on the call, under the attempt's lock: a
recorded step answers it, or its intent is written, or something has to be done first. Then its body
runs, and `end` writes how it ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
from collections.abc import Callable
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from rollcage.errors import Halt, NotReplayable, SessionError, SessionHalted, StoreError
from rollcage.gate.verdict import Verdict
from rollcage.heart.arrival import release
from rollcage.heart.beginning import begin, let_go
from rollcage.heart.branches import ended
from rollcage.heart.call import Call, Place, here, refusal, reset
from rollcage.heart.ending import end, failed, is_clean, is_lost, returned
from rollcage.heart.outcome import failure, given, success
from rollcage.heart.run import CHANGES, Step

if TYPE_CHECKING:
    from rollcage.heart.attempt import Attempt
    from rollcage.heart.driver import Flow

__all__ = ["admit", "give_back", "inside", "perform", "run_body"]

_tuple: Final = tuple.__new__  # makes a named tuple without a call of Python's
_TAG: Final = b'"$rollcage":"blob"'


def perform(attempt: Attempt, call: Call) -> Flow:
    """Perform a call: decide, run its body if nothing answers it, and record its outcome."""
    try:
        yield from admit(attempt, call)
        if call.recorded is not None:
            return (yield from give_back(attempt, call, call.recorded))
        token = here.set(inside(attempt, call))
        try:
            try:
                value = yield run_body(attempt, call)
            finally:
                reset(token)
        except BaseException as error:
            yield from failed(attempt, call, error)
            raise
        return (yield from returned(attempt, call, value))
    except Exception as error:
        if call.place.around is not None:  # it says nothing of what that one's body itself did
            call.place.around.keep("nested", error)
        raise


def admit(attempt: Attempt, call: Call) -> Flow:
    """Begin a call; before a body runs, its intent is on record."""
    try:
        while True:
            with attempt.lock:
                work = begin(attempt, call)
            if work is not None:
                yield from work
                continue
            if call.recorded is not None or call.effect not in CHANGES:
                return
            yield from attempt.settle(is_async=call.is_async)
            for begun in call.hooks.begun:
                yield from begun(call) or ()
            if all(ready(call) for ready in call.hooks.ready):
                return
            _withdraw(attempt, call)
            for dropped in call.hooks.dropped:
                yield from dropped(call) or ()
            call.kept = None  # what stages found out is too old
    except BaseException as error:
        _cut_off(attempt, call)
        if call.place.call_id and isinstance(error, (Halt, SessionHalted)):
            _put_halted(attempt, call, error)
        if not isinstance(error, GeneratorExit):
            for dropped in call.hooks.dropped:
                yield from dropped(call) or ()
        raise


def _withdraw(attempt: Attempt, call: Call) -> None:
    """A call may not begin any more: its place is kept, and it is decided anew."""
    with attempt.lock:
        n = call.event["step"]
        attempt.note({"event": "outcome", "step": n, "outcome": None})
        call.waiting, call.is_on_record = n, False


def _put_halted(attempt: Attempt, call: Call, error: Halt | SessionHalted) -> None:
    """Put on record that a halt kept a framework's call from being made.

    Its framework may hold what halted it as the answer to the call, in a memory of its own.
    """
    with attempt.lock:
        if call.waiting or call.is_on_record or attempt.log is None:
            return
        verdict = Verdict.deny(str(error), code=error.code)
        event = refusal(call.contract, call.kind, call.arguments, verdict, call.place)
        with contextlib.suppress(Halt, SessionError):
            attempt.note({**event, "halted": True})


def _cut_off(attempt: Attempt, call: Call) -> None:
    """A call was cut off before its body: that is put on record, if it can be."""
    with attempt.lock:
        release(call)
        if not call.is_on_record or call.effect not in CHANGES:
            let_go(attempt, call)
        elif not attempt.closed and attempt.log is not None:
            with contextlib.suppress(Halt):
                line = {"event": "outcome", "step": call.event["step"], "outcome": None}
                attempt.note(line)
                ended(attempt, call.branch, None)


def inside(attempt: Attempt, call: Call) -> Place:
    """Return the place of the calls that a body makes, which begins now."""
    call.began = attempt.ticks()
    branch = "#" + call.event["fingerprint"]
    return _tuple(Place, (attempt, call.session, branch, None, None, call, "", ""))


def run_body(attempt: Attempt, call: Call) -> Callable[[], Any]:
    """Return what runs the body, with what stages put around it."""

    def plain() -> Any:
        return call.body(**call.values)

    body: Callable[[], Any] = plain
    if call.is_async and not inspect.iscoroutinefunction(call.body):
        body = _in_thread(attempt, call)
    for around in call.hooks.around:
        body = around(call, body)
    return body


def _in_thread(attempt: Attempt, call: Call) -> Callable[[], Any]:
    """A sync body in an async session; it may outlive the call that waits for it."""

    def run() -> Any:
        try:
            value = call.body(**call.values)
        except BaseException as error:
            if call.cut and isinstance(error, Exception):
                _late(attempt, call, error=error)
            raise
        if call.cut:
            _late(attempt, call, value)
        return value

    async def thread() -> Any:
        try:
            value = await asyncio.to_thread(run)
        except asyncio.CancelledError:
            call.cut = True
            raise
        return await value if inspect.isawaitable(value) else value

    return thread


def _late(attempt: Attempt, call: Call, value: Any = None, error: Exception | None = None) -> None:
    """Record the end of a write whose caller was cut off, if the session is still open."""
    if call.effect != "write":
        return
    call.took = attempt.ticks() - call.began
    contract, seal, types = call.contract, attempt.seal, attempt.types
    if error is None:
        outcome = success(contract, value, seal, types)
    elif is_lost(attempt, call, error):
        return
    else:
        unclear = not is_clean(attempt, call, error)
        outcome = failure(contract, error, seal, types, unclear=unclear)
    with contextlib.suppress(Halt, SessionError):
        end(attempt, call, outcome)


def give_back(attempt: Attempt, call: Call, step: Step) -> Flow:
    """Return what a recorded step gave, or raise its error."""
    for hit in call.hooks.hit:
        yield from hit(call, step) or ()
    fetch: Callable[[str], bytes] = functools.partial(_fetch, attempt)
    if call.is_async and _TAG in (step.outcome or b""):
        encoded = step.result.get("value")
        if isinstance(encoded, dict) and encoded.get("$rollcage") == "blob":
            data: bytes = yield lambda: asyncio.to_thread(fetch, encoded["sha256"])
            fetch = functools.partial(_given, data)
    try:
        return given(call.contract, step, attempt.types, fetch)
    except NotReplayable as error:
        if step.effect in CHANGES:
            raise attempt.halt(error) from None
        raise


def _fetch(attempt: Attempt, digest: str) -> bytes:
    data = attempt.recorded_in[0].get("blobs", digest)
    if data is None or sha256(data).hexdigest() != digest:
        raise StoreError(f"the large value {digest} of run {attempt.run.id} is gone or damaged")
    return data


def _given(data: bytes, _digest: str) -> bytes:
    """Give bytes that were fetched before."""
    return data
