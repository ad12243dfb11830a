"""Run the flow of a call: decide, run its body if no recorded step answers, record its outcome.

`enter` decides on the call, under the attempt's lock: a recorded step answers, or the intent is
written, or a stage has work to do first. An answered call is at its end: `give`. Any other call is
performed: the work is done and the call decided anew, its body runs, and `end` writes its outcome.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from rollcage.calls.arrival import release
from rollcage.calls.beginning import begin, let_go
from rollcage.calls.branches import ended
from rollcage.calls.ending import end, failed, is_clean, is_lost, lose, returned
from rollcage.errors import ForkEnded, Halt, NotReplayable, SessionError, SessionHalted, StoreError
from rollcage.gate.verdict import Verdict
from rollcage.replay.call import Call, Place, here, refusal, reset
from rollcage.replay.outcome import failure, given, success
from rollcage.trace.run import CHANGES

if TYPE_CHECKING:
    from rollcage.calls.attempt import Attempt
    from rollcage.calls.driver import Flow
    from rollcage.calls.stage import Work

__all__ = [
    "admit", "collected", "enter", "give", "give_back", "gives_at_once", "in_thread", "inside",
    "perform", "run_body", "stream_returned", "surrounded",
]  # fmt: skip

_TAG: Final = b'"$rollcage":"blob"'


def enter(call: Call) -> Work | None:
    """Decide on a call for the first time.

    A call that a recorded step answers is done: see `gives_at_once`.

    Returns:
        The work before the call may begin, for `perform` or `admit`.
    """
    attempt = call.attempt
    if call.hooks.arriving:
        return _arriving(call)
    try:
        with attempt.lock:
            return begin(attempt, call)
    except BaseException as error:  # noqa: BLE001 - `admit` raises it again
        return _fails(error)


def _arriving(call: Call) -> Work:
    """Do the work before a call gets its place."""
    for arriving in call.hooks.arriving:
        yield from arriving(call.place, is_async=call.is_async) or ()


def _fails(error: BaseException) -> Work:
    """Fail once the work for a failed call is done."""
    raise error
    yield  # for it is a flow


def gives_at_once(call: Call, work: Work | None) -> bool:
    """Tell whether a call was answered, and its outcome can be given without waiting."""
    step = call.recorded
    if step is None or work is not None or call.hooks.hit:
        return False
    return not (call.is_async and _TAG in (step.outcome or b""))


def perform(call: Call, work: Work | None) -> Flow:
    """Run the body of a call if no recorded step answers, and record its outcome.

    Args:
        call: a call that was decided on once.
        work: the result of `enter`.
    """
    attempt = call.attempt
    try:
        if work is not None or call.changes:
            yield from admit(call, work)
        if call.recorded is not None:
            return (yield from give_back(call))
        token = here.set(inside(attempt, call))
        try:
            try:
                if call.hooks.inside:
                    with surrounded(call):
                        value = yield run_body(attempt, call)
                else:
                    value = yield run_body(attempt, call)
            finally:
                reset(token)
        except BaseException as error:
            if call.is_entered:
                yield from failed(attempt, call, error)
            else:
                _cut_off(attempt, call, error)
            raise
        return (yield from returned(attempt, call, value))
    except BaseException as error:
        lose(attempt, call, error)
        if isinstance(error, Exception):
            _note_error(call, error)
        raise


def admit(call: Call, work: Work | None) -> Flow:
    """Begin a call; before a body runs, its intent is on record. See `perform`."""
    attempt, hooks = call.attempt, call.hooks
    try:
        while True:
            if work is not None:
                yield from work
            elif call.recorded is not None or not call.changes:
                return
            else:
                if call.is_async:
                    yield from attempt.settle(is_async=True)
                else:
                    attempt.wait()
                _check_goes_on(attempt, call)
                for begun in hooks.begun:
                    yield from begun(call) or ()
                for ready in hooks.ready:
                    if not ready(call):
                        break
                else:
                    return
                yield from _withdraw(attempt, call)
            with attempt.lock:
                work = begin(attempt, call)
    except GeneratorExit as error:
        _cut_off(attempt, call, error)
        raise
    except BaseException as error:
        _cut_off(attempt, call, error)
        _put_halted(attempt, call, error)
        yield from _dropped(call)
        raise


def _check_goes_on(attempt: Attempt, call: Call) -> None:
    """Refuse a body that was to begin in a session that meanwhile was halted or left.

    Raises:
        SessionHalted: it was halted.
        SessionError: it was left.
    """
    if attempt.halted is not None:
        raise SessionHalted(f"the session was halted: {attempt.halted}") from attempt.halted
    if attempt.closed:
        raise SessionError(
            f"{call.contract.name} was to begin in session {call.session.name!r}, which was left"
        )


def _note_error(call: Call, error: Exception) -> None:
    """Tell an outer call that an error says nothing about its own body."""
    around = call.place.around
    if around is not None:
        around.keep("nested", error)


def _withdraw(attempt: Attempt, call: Call) -> Work:
    """Withdraw the intent of a call: its place is kept, and the call is decided anew."""
    with attempt.lock:
        n = call.event["step"]
        attempt.note({"event": "outcome", "step": n, "outcome": None})
        call.waiting, call.is_on_record = n, False
    yield from _dropped(call)
    call.kept = None  # what stages found out is too old


def _dropped(call: Call) -> Work:
    """Tell the stages that a call ends before it began."""
    for dropped in call.hooks.dropped:
        yield from dropped(call) or ()


def _put_halted(attempt: Attempt, call: Call, error: BaseException) -> None:
    """Record that a halt prevented a framework's call.

    The framework may keep the halt as the answer to the call, in its own memory. At the end of a
    fork, the record shows the call that would have been made next.
    """
    if isinstance(error, ForkEnded):
        if error is not attempt.halted or (call.kept or {}).get("ended") is error:
            return
        call.keep("ended", error)
    elif not call.place.call_id or not isinstance(error, (Halt, SessionHalted)):
        return
    with attempt.lock:
        if call.waiting or call.is_on_record or attempt.log is None:
            return
        verdict = Verdict.deny(str(error), code=error.code)
        event = refusal(call.contract, call.kind, call.arguments, verdict, call.place)
        with contextlib.suppress(Halt, SessionError):
            attempt.note({**event, "halted": True})


def _cut_off(attempt: Attempt, call: Call, error: BaseException) -> None:
    """Record a call that was cut off before its body, if possible."""
    if call.recorded is not None:
        _interrupted(call, error)
    with attempt.lock:
        release(call)
        if not call.is_on_record or not call.changes:
            let_go(attempt, call)
        elif not attempt.closed and attempt.log is not None:
            call.is_ended = True
            with contextlib.suppress(Halt):
                line = {"event": "outcome", "step": call.event["step"], "outcome": None}
                attempt.note(line)
                ended(attempt, call.branch, None)


def inside(attempt: Attempt, call: Call) -> Place:
    """Return the place of the calls in a body that begins now."""
    call.began = attempt.ticks()
    branch = "#" + call.event["fingerprint"]
    return Place(attempt, call.session, branch, None, None, call, "", "", call.place.works)


@contextlib.contextmanager
def surrounded(call: Call) -> Iterator[None]:
    """Enter the context managers of stages around a body that runs here."""
    with contextlib.ExitStack() as entered:
        for inside_of in call.hooks.inside:
            entered.enter_context(inside_of(call))
        yield


def run_body(attempt: Attempt, call: Call) -> Callable[[], Any]:
    """Return a function that runs the body, wrapped by the stages."""
    body: Callable[[], Any] = call.run
    if call.is_async and not inspect.iscoroutinefunction(call.body):
        body = in_thread(attempt, call)
    for around in call.hooks.around:
        body = around(call, body)
    return body


def collected(stream: Any) -> Callable[[], Any]:
    """Return a function that collects the chunks of a body's stream, sync or async."""
    if not hasattr(stream, "__aiter__"):
        return lambda: list(stream)

    async def collect() -> list[Any]:
        return [chunk async for chunk in stream]

    return collect


def stream_ended(call: Call, chunks: list[Any], error: BaseException | None = None) -> Any:
    """Show the end of a stream to the stages, as they see the end of a body.

    Returns:
        The chunks; in an async session, an awaitable of them.

    Raises:
        BaseException: the given error.
    """

    def body() -> Any:
        if error is not None:
            raise error
        return chunks

    surrounding: Callable[[], Any] = body
    for around in call.hooks.around:
        surrounding = around(call, surrounding)
    return surrounding()


def stream_returned(call: Call, chunks: list[Any]) -> Flow:
    """Record that a stream was read to its end."""
    try:
        yield from returned(call.attempt, call, chunks)
    except BaseException as error:
        lose(call.attempt, call, error)
        raise


def in_thread(attempt: Attempt, call: Call) -> Callable[[], Any]:
    """Return a sync body for an async session; it may outlive the call that waits for it."""
    call.is_entered = False

    def run() -> Any:
        with attempt.lock:  # it may have waited for a thread
            _check_goes_on(attempt, call)
            if call.cut:
                raise SessionHalted("its caller was cut off before it began")
            call.is_entered = True
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
            with attempt.lock:
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


def give_back(call: Call) -> Flow:
    """Return the value of the recorded step that answers a call, or raise its error."""
    step = call.recorded
    assert step is not None
    fetched: Callable[[str], bytes] | None = None
    try:
        for hit in call.hooks.hit:
            yield from hit(call, step) or ()
        if call.is_async and _TAG in (step.outcome or b""):
            encoded = step.result.get("value")
            if isinstance(encoded, dict) and encoded.get("$rollcage") == "blob":
                fetch = functools.partial(call.attempt.fetch, encoded["sha256"])
                fetched = yield lambda: asyncio.to_thread(_tried, fetch)
    except BaseException as error:
        _interrupted(call, error)
        raise
    return give(call, fetched)


def give(call: Call, fetch: Callable[[str], bytes] | None = None) -> Any:
    """Return the value of the recorded step that answers a call, or raise its error.

    Args:
        call: a call that was answered.
        fetch: gets bytes kept beside the log, by digest; by default from the store.
    """
    attempt, step = call.attempt, call.recorded
    assert step is not None
    try:
        return given(call.contract, step, attempt.types, fetch or attempt.fetch)
    except BaseException as error:
        if isinstance(error, Exception):
            _note_error(call, error)
        if isinstance(error, NotReplayable) and step.effect in CHANGES:
            raise attempt.halt(error) from None
        if not isinstance(error, Exception):
            _interrupted(call, error)
        raise


def _interrupted(call: Call, error: BaseException) -> None:
    """Let nothing more run if a recorded effect was used up, and its caller never got the result.

    The same call again would find nothing recorded, and be made.
    """
    step, attempt = call.recorded, call.attempt
    if step is None or step.effect not in CHANGES:
        return
    if not attempt.closed:
        attempt.halt(
            NotReplayable(
                f"{call.contract.name} was interrupted by {type(error).__name__} while it was "
                f"given what is recorded of it, at step {step.n}; nothing ran, and the next "
                f"session goes on there"
            )
        )


def _tried(fetch: Callable[[], bytes]) -> Callable[[str], bytes]:
    """Fetch bytes; return what gives them, or raises what the store raised."""
    try:
        data = fetch()
    except StoreError as error:
        return functools.partial(_raise, error)
    return functools.partial(_given, data)


def _given(data: bytes, _digest: str) -> bytes:
    """Return bytes that were fetched before."""
    return data


def _raise(error: StoreError, _digest: str) -> bytes:
    """Raise what kept bytes from being fetched."""
    raise error
