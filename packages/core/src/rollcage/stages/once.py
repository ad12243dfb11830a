"""Make an effect happen once, for all who ask for it: `@tool(once="refund/{payment}")`.

A key names an effect over all runs, jobs, agents and hosts of a store. A call **claims** its key
before its intent is on record; the claim names the claiming run and a token, and holds no outcome.
The outcome is the fold of that run's log, where the intent has the token:

==========  ======================================================================================
`free`      it never began, did not happen, failed cleanly or was taken back: the key is claimed
`done`      its outcome is given, and recorded as a step whose `once` names the run that made it
`flying`    it has not ended, nor has a transaction that may take it back: it is waited for, if its
            run has a live writer
`unknown`   it may or may not have happened, or its run goes on in another store, where it may be
            taken back: the session halts
==========  ======================================================================================

A call with other arguments is refused. A step that runs again keeps its token, and so its claim.
Before a call of another run is answered, it marks the claim: an effect that answered a call that
stays is not taken back (see `rollcage.trace.claims`).

**Why two can't have it.** Claims are compared and swapped, so of two calls that saw the same claim,
one gets it. A claim without an intent is free if its run has no live writer; but a lock can get
lost while its owner lives. So after writing an intent, and before the body, a call checks that the
claim is still its own; and after taking a claim over, a call checks whether the intent was written
meanwhile. At least one of the two sees the other.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import os
import shlex
import threading
import time
from collections.abc import Callable, Generator, Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, cast

import orjson

from rollcage.calls.beginning import refuse
from rollcage.calls.stage import Stage, Work
from rollcage.errors import (
    RunInUse,
    RunNotFound,
    SessionError,
    StepNotUnknown,
    StoreError,
    UnknownOutcome,
)
from rollcage.fingerprint.identity import jcs
from rollcage.gate.verdict import Verdict
from rollcage.trace.claims import Claim, Use, uses
from rollcage.trace.endings import OVER, elsewhere
from rollcage.trace.resolution import resolve_step
from rollcage.trace.run import Event, Outcome, Run, Step, fold_log
from rollcage.trace.store import Store, open_store, store_option
from rollcage.trace.threads import in_thread
from rollcage.undo.plan import consult
from rollcage.undo.program import is_being_undone
from rollcage.values.codec import encode

if TYPE_CHECKING:
    from rollcage.calls.attempt import Attempt
    from rollcage.contract.contract import Contract
    from rollcage.replay.call import Call, Match
    from rollcage.session.session import Session

__all__ = ["Effect", "Once", "keep_claims", "key_of", "once_of"]

PATIENCE: Final = 60.0  # seconds to wait for a call in flight: ends mutual waiting
_BRIEFLY: Final = 1.0  # seconds that a sync call holds an event loop up, for a line on its way
_PAUSES: Final = (0.005, 0.5)  # seconds between looks at a run of another process
_LONGEST: Final = 900  # bytes of a key; a longer one stands for itself by its hash

State = Literal["free", "done", "flying", "unknown"]


class Standing(NamedTuple):
    """Hold the state of a claimed effect, its step, and the outcome if it is done.

    Attributes:
        block: the transaction that has not ended, and may take the effect back.
        end: the last line of the log that says so, if it was read.
        shut: the last line of a log that goes on in another store, which knows the state.
    """

    state: State
    step: int = 0
    outcome: Outcome | None = None
    found: Step | None = None
    block: Step | None = None
    end: bytes = b""
    shut: Event | None = None


_FREE: Final = Standing("free")


def key_of(template: str, arguments: Mapping[str, Any]) -> str:
    """Return the key made from a template and canonical arguments."""
    shown = {
        name: value if isinstance(value, str) else jcs(value).decode()
        for name, value in arguments.items()
    }
    key = template.format(**shown)
    data = key.encode("utf-8", "surrogatepass")
    if len(data) > _LONGEST or b"\0" in data or not key.isprintable():
        return f"{''.join(filter(_is_plain, key[:100]))}~{sha256(data).hexdigest()}"
    return key


def _is_plain(character: str) -> bool:
    return character.isprintable()


def judge(run: Run, claim: Claim, branch: str = "") -> Standing | None:
    """Return the state of a claim by its run; None if its intent is not in the log.

    `flying`: an undo of the effect, or a transaction around it, has begun and not ended.

    Args:
        run: the run that made the claim.
        claim: the claim.
        branch: the branch of the call that asks, if that call is a part of the run.
    """
    step: Step | None = None
    for each in reversed(run.steps.values()):
        if each.once is not None and each.once[0] == "mine" and each.once[2] == claim.token:
            step = each
            break
    if step is None:
        return None
    while step.replacement:
        step = run.steps[step.replacement]
    standing = _standing_of(step)
    is_undone = run.undoing is not None and step.n in run.undoing["steps"] and not step.back
    if is_undone and standing.state != "free":
        return Standing("flying", step.n, None, step)
    if standing.state == "done" and step.gone != "left" and run.status not in OVER:
        block = run.transaction(step, branch)
        if block is not None:
            return Standing("flying", step.n, None, step, block)
    return standing


def _standing_of(step: Step) -> Standing:
    """Return the state of a step. An undo frees a key only if the effect was really taken back."""
    n, outcome = step.n, step.outcome
    is_clean = step.status == "error" and not step.unclear and step.happened is None
    if step.status == "waiting" or is_clean:
        return Standing("free", n, None, step)
    if step.gone == "undone" or step.rolled or step.back:
        is_free = step.back in ("", "verified", "compensated")
        return Standing("free" if is_free else "unknown", n, None, step)
    if step.status == "ok" or step.happened is not None:
        return Standing("done", n, Outcome("ok", step.happened or outcome or b""), step)
    return Standing("unknown", n, None, step)


def look_up(store: Store, claim: Claim) -> Standing:
    """Return the state of another run's claim, from its log.

    The writer's life is checked before the log is read for good: a dead writer writes no more.
    """
    if claim.state:
        outcome = None if claim.outcome is None else Outcome.of(claim.outcome)
        return Standing(cast("State", claim.state), claim.step, outcome)
    standing, _ = _read(store, claim)
    if standing is not None and _is_settled(standing):
        return standing
    live = store.is_live(claim.run)
    standing, attempt = _read(store, claim)
    if standing is None:  # claimed, and its intent is not on record: nothing ran
        return Standing("flying") if live and attempt == claim.attempt else _FREE
    if _is_settled(standing):
        return standing
    return standing._replace(state="flying" if live else "unknown")


def _is_settled(standing: Standing) -> bool:
    """Tell whether the state stays until a person resolves it."""
    if standing.state != "unknown":
        return standing.state != "flying"
    found = standing.found
    return found is None or found.unclear or bool(found.back)


def _is_taken_back(standing: Standing | None) -> bool:
    """Tell whether an effect was made and taken back, which stays so wherever its run goes on."""
    if standing is None or standing.state != "free":
        return False
    return standing.found is not None and standing.found.status == "ok"


def _read(store: Store, claim: Claim) -> tuple[Standing | None, str]:
    where = f"run {claim.run}"
    try:
        lines = store.read(claim.run)
    except RunNotFound:
        return Standing("unknown"), ""
    run = fold_log(lines, where, {})
    standing = judge(run, claim)
    if run.shut is not None and not _is_taken_back(standing):
        if run.shut["event"] == "pruned":  # without a state in the claim: it went on elsewhere
            return Standing("unknown"), run.attempt
        n, found = (0, None) if standing is None else (standing.step, standing.found)
        return Standing("unknown", n, None, found, shut=run.shut), run.attempt
    return None if standing is None else standing._replace(end=lines[-1]), run.attempt


# --- calls ---------------------------------------------------------------------------------------


class _Flight:
    """Track a claim of this process whose call has not ended, and the calls that wait for it."""

    __slots__ = ("attempt", "ended", "task", "thread")

    def __init__(self, call: Call) -> None:
        self.attempt = call.attempt
        self.ended: concurrent.futures.Future[None] = concurrent.futures.Future()
        self.thread = threading.get_ident()
        self.task = _task()

    def is_below(self) -> bool:
        """Tell whether this thread can't go on with the flight before the caller goes on."""
        return self.thread == threading.get_ident()

    def is_here(self) -> bool:
        """Tell whether the caller makes the call itself, so that waiting would never end."""
        return self.is_below() and self.task in (None, _task())


def _task() -> asyncio.Task[Any] | None:
    """Return the task that runs in this thread; None without an event loop."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


_flights: Final[dict[str, _Flight]] = {}
"""By token, the claims of this process that are in flight."""


def _flies(attempt: Attempt, token: str) -> bool:
    """Tell whether a call of this attempt has a claim and has not ended."""
    flight = _flights.get(token)
    return flight is not None and flight.attempt is attempt


@dataclasses.dataclass(slots=True)
class _Held:
    """Hold the claim of a call.

    Attributes:
        key: the key.
        claim: the claim.
        seen: the value in the store before it; None if there was none.
        is_new: whether the call made the claim; False: it goes on with one of an earlier attempt.
    """

    key: str
    claim: Claim
    seen: bytes | None
    is_new: bool


class Once(Stage):
    """Make an effect that is declared with `once=` once in a store."""

    def __init__(self) -> None:
        self._tokens: set[str] = set()
        self._run: Run | None = None  # once one of its calls has a claim

    def concerns(self, contract: Contract) -> bool:
        """Tell whether a tool declares `once=`."""
        return bool(contract.once)

    def prepare(self, call: Call, match: Match) -> Work | None:
        """Claim the call's key, or take the outcome of the call that claimed it before."""
        if match.kind == "hit" or match.refusal is not None:
            return None
        if call.supplied is not None or "once" in (call.kept or ()):
            return None
        if call.verdict is not None and call.granted != call.verdict:
            return None  # it is not approved yet
        return self._claim(call, match)

    def _claim(self, call: Call, match: Match) -> Work:
        attempt, store = call.attempt, call.attempt.store
        key = key_of(call.contract.once, call.arguments)
        mine = Claim(
            attempt.run.id, attempt.run.attempt, os.urandom(12).hex(), call.contract.name,
            _digest(call),
        )  # fmt: skip
        began = time.monotonic()
        while True:
            seen = yield _whole(call, store.get, "once", key)
            claim = None if seen is None else Claim.read(key, seen)
            standing = _FREE
            if claim is not None:
                standing = yield _whole(call, self._standing, call, claim)
                if self._goes_on(attempt, match, standing, claim, mine):
                    self._hold(call, _Held(key, claim, seen, is_new=False))
                    return
            again = claim is not None and self._is_made_again(call, match, standing, claim, mine)
            if standing.state == "free" or again:
                held = _Held(key, mine, seen, is_new=True)
                if (yield from self._take(call, held, claim, standing.state)):
                    return
                continue
            assert claim is not None
            if claim.args != mine.args:
                differs = yield _whole(call, _differs, attempt, claim, standing, call)
                raise _refusal(
                    call, f"{key} is claimed by {_where(claim.run, standing)}, {differs}"
                )
            if standing.state == "done":
                if not (yield from self._is_marked(call, key, claim, seen, standing)):
                    continue
                assert standing.outcome is not None
                call.supplied = standing.outcome
                call.keep("once", [claim.run, standing.step, key])
                return
            if standing.state == "unknown":
                raise attempt.halt(_unknown(attempt, key, claim, standing))
            yield from self._wait(call, key, claim, standing, began)

    @staticmethod
    def _goes_on(
        attempt: Attempt, match: Match, standing: Standing, claim: Claim, mine: Claim
    ) -> bool:
        """Tell whether the call runs a step again that has the claim, and may have happened."""
        step, found = match.step, standing.found
        return (
            step is not None
            and standing.state != "free"
            and step is found
            and (claim.run, claim.args) == (mine.run, mine.args)
            and not step.borrowed
            and not _flies(attempt, claim.token)
        )

    @staticmethod
    def _is_made_again(
        call: Call, match: Match, standing: Standing, claim: Claim, mine: Claim
    ) -> bool:
        """Tell whether a call that may have happened is made again: safely, or with approval."""
        found = standing.found
        if standing.state != "unknown" or found is None or not found.unclear:
            return False
        if (claim.run, claim.args) != (mine.run, mine.args):
            return False
        return (
            call.contract.idempotent or match.asks is not None
        )  # which was granted, as it is here

    @staticmethod
    def _is_marked(
        call: Call, key: str, claim: Claim, seen: bytes | None, standing: Standing
    ) -> Generator[Callable[[], Any], Any, bool]:
        """Mark the claim of a done effect with this attempt; False: look at the effect again.

        See `rollcage.trace.claims`. In the run that made it, an undo sees the answered step itself.
        """
        attempt, store = call.attempt, call.attempt.store
        marked = claim.marked(attempt.run.id, attempt.run.attempt)
        if claim.run == attempt.run.id or marked is claim:
            return True
        if not (yield _whole(call, store.swap, "once", key, seen, marked.data())):
            return False
        return b"".join((yield _whole(call, _last, store, claim.run))) == standing.end

    def _standing(self, call: Call, claim: Claim) -> Standing:
        """Return the state of a claim: of this run from memory, of another run from its log.

        An effect that another thread or task is taking back, or may take back, is in flight.
        """
        attempt = call.attempt
        if claim.run != attempt.run.id or claim.state:
            return look_up(attempt.store, claim)
        with attempt.lock:
            standing = judge(attempt.run, claim, call.place.branch)
            flies = _flies(attempt, claim.token)
            if standing is not None and standing.state == "flying" and not flies:
                is_open = standing.block is not None
                flies = is_open or is_being_undone(attempt, standing.step)
        if standing is None:
            return Standing("flying") if flies else _FREE
        if _is_settled(standing):
            return standing
        return standing._replace(state="flying" if flies else "unknown")

    def _hold(self, call: Call, held: _Held) -> None:
        """Give the call the claim, and begin its flight."""
        if self._run is None:
            self._run = call.attempt.run
            self._run.folds.setdefault("outcome", []).append(self._is_on_record)
        self._tokens.add(held.claim.token)
        _flights[held.claim.token] = _Flight(call)
        call.keep("once", held)

    def _take(
        self, call: Call, held: _Held, before: Claim | None, state: State
    ) -> Generator[Callable[[], Any], Any, bool]:
        """Replace a claim that was found in a state, and tell whether the swap succeeded."""
        store = call.attempt.store
        self._hold(call, held)  # before the store has it, so that no thread takes it for a dead one
        taken = yield _whole(call, store.swap, "once", held.key, held.seen, held.claim.data())
        if taken and before is not None:
            standing = yield _whole(call, self._standing, call, before)
            if standing.state != state:  # its line was written between these two looks
                yield from self.dropped(call)
                return False
        if not taken:
            self._end(call)
        return bool(taken)

    def _wait(self, call: Call, key: str, claim: Claim, standing: Standing, began: float) -> Work:
        """Wait for a call in flight, until its state has changed."""
        attempt = call.attempt
        flight = _flights.get(claim.token)
        n = standing.step
        if (flight is not None and flight.is_here()) or _is_inside(attempt, call, claim, n):
            raise _refusal(
                call,
                f"{key} is being made by step {n} of this run, and this call is a part of that one",
                "once_inside",
            )
        is_held_up = not call.is_async and standing.block is not None and _task() is not None
        is_below = not call.is_async and flight is not None and flight.is_below()
        waited = time.monotonic() - began
        if is_below or (is_held_up and (claim.run == attempt.run.id or waited > _BRIEFLY)):
            raise _held_up(key)
        if waited > PATIENCE:
            raise attempt.halt(
                UnknownOutcome(
                    f"{key} is being made by {_where(claim.run, standing)}, which has not ended in "
                    f"{PATIENCE:.0f} seconds. Start this one again when that has. What became "
                    f"of it: {_command(attempt.store, key)}",
                    claim.run,
                    n,
                )
            )
        pause, longest = _PAUSES
        if flight is not None:
            yield _ended(flight, longest, is_async=call.is_async)
            return
        before: list[bytes] | None = None
        while pause < longest:
            yield _sleep(pause, is_async=call.is_async)
            last = yield _whole(call, _last, attempt.store, claim.run)
            if before not in (None, last):
                return
            before, pause = last, 2 * pause

    def marks(self, call: Call) -> Event | None:
        """Return the claim, or the place where the effect was made."""
        held = (call.kept or {}).get("once")
        if held is None:
            return None
        return {"once": ["mine", held.key, held.claim.token] if isinstance(held, _Held) else held}

    def begun(self, call: Call) -> Work | None:
        """Check that the claim is still this call's, once its intent is on record."""
        held = (call.kept or {}).get("once")
        return self._check(call, held) if isinstance(held, _Held) else None

    def _check(self, call: Call, held: _Held) -> Work:
        attempt = call.attempt
        now = yield _whole(call, attempt.store.get, "once", held.key)
        if now is None or Claim.read(held.key, now).token != held.claim.token:
            raise attempt.halt(
                UnknownOutcome(
                    f"{held.key} was claimed by another run while this one was taken for dead, so "
                    f"{call} did not run. Start this one again",
                    attempt.run.id,
                    call.event["step"],
                )
            )

    def dropped(self, call: Call) -> Work:
        """Give back the claim of a call that never began."""
        held = (call.kept or {}).get("once")
        if not isinstance(held, _Held):
            return
        with contextlib.suppress(StoreError):
            if held.is_new:
                data = held.claim.data()
                yield _whole(call, call.attempt.store.swap, "once", held.key, data, held.seen)
        self._end(call)

    def settled(self, call: Call | None, outcome: Outcome, step: Step | None) -> Event | None:  # noqa: ARG002 - the seam's
        """End the flight of a call that a recorded step answers after all."""
        if (
            step is not None
            and call is not None
            and isinstance((call.kept or {}).get("once"), _Held)
        ):
            self._end(call)
        return None

    def _is_on_record(self, line: Event) -> None:
        """End the flight of a call whose outcome is on record."""
        assert self._run is not None
        once = self._run.steps[line["step"]].once
        if once is not None and once[0] == "mine":
            self._land(once[2])

    def _end(self, call: Call) -> None:
        """Take the claim from a call that has ended."""
        assert call.kept is not None
        self._land(call.kept.pop("once").claim.token)

    def _land(self, token: str) -> None:
        flight = _flights.pop(token, None)
        if flight is not None and not flight.ended.done():
            flight.ended.set_result(None)

    def closed(self, session: Session, error: BaseException | None) -> str | None:  # noqa: ARG002 - the seam's
        """Wake the calls that wait for an outcome which this attempt leaves unknown."""
        for token in self._tokens:
            self._land(token)
        return None


def _digest(call: Call) -> str:
    return sha256(call.contract.name.encode() + b"\n" + call.data).hexdigest()


def _is_inside(attempt: Attempt, call: Call, claim: Claim, n: int) -> bool:
    """Tell whether a call is made inside of the step that has the claim."""
    if claim.run != attempt.run.id or not n:
        return False
    with attempt.lock:
        owner = attempt.run.owner(call.place.branch)
        while owner is not None and owner.n != n:
            owner = attempt.run.owner(owner.branch)
    return owner is not None


def _refusal(call: Call, reason: str, code: str = "once_differs") -> BaseException:
    return refuse(call, Verdict("deny", reason, code))


def _differs(attempt: Attempt, claim: Claim, standing: Standing, call: Call) -> str:
    """Describe how the arguments of a call differ from the arguments of the claim."""
    if claim.tool != call.contract.name:
        return f"a call of {claim.tool}, not of {call.contract.name}"
    theirs: dict[str, Any] | None = None
    with contextlib.suppress(StoreError):
        for line in attempt.store.read(claim.run):
            event = orjson.loads(line)
            if event.get("event") == "step" and event["step"] == standing.step:
                theirs = event["args"]
    if theirs is None:
        return "with other arguments"
    mine = orjson.loads(call.data)
    told = [
        f"{name}: {_shown(theirs, name)} there, {_shown(mine, name)} here"
        for name in sorted({*theirs, *mine})
        if theirs.get(name) != mine.get(name)
    ]
    return f"with other arguments ({'; '.join(told)})"


def _shown(arguments: dict[str, Any], name: str) -> str:
    if name not in arguments:
        return "nothing"
    shown = orjson.dumps(arguments[name]).decode()
    return shown if len(shown) <= 60 else shown[:60] + "…"


def _held_up(key: str) -> SessionError:
    return SessionError(
        f"{key} is being made by another task of this event loop, which a sync call would hold up: "
        f"await the call (session.acall)"
    )


def _where(run: str, standing: Standing) -> str:
    step = f"step {standing.step} of " if standing.step else ""
    return f"{step}run {run}"


def _unknown(attempt: Attempt, key: str, claim: Claim, standing: Standing) -> UnknownOutcome:
    run, n = claim.run, standing.step
    if standing.shut is not None:
        there = elsewhere(run, standing.shut, attempt.store)
        what = (
            f"{key} is claimed by {_where(run, standing)}, and whether its effect stands is known "
            f"in the store of that run alone: {there}. Look there, and say here what became of it: "
            f"{_ways_out(attempt.store, key)}"
        )
        return UnknownOutcome(what, run, n)
    if _is_left_open(standing):
        return UnknownOutcome(_left_open(attempt.store, key, run, standing), run, n)
    if standing.found is None and not claim.state:
        what = f"{key} was claimed by run {run}, whose log is gone from the store"
    else:
        what = (
            f"{key} is claimed by {_where(claim.run, standing)}, of which nobody knows whether it "
        )
        what += "happened"
    ways = _ways_out(attempt.store, key)
    if run != attempt.run.id and standing.found is not None:
        ways += "; or resume that run, if its tool can find out"
    return UnknownOutcome(f"{what}. Find out, and say so: {ways}", run, n)


def _is_left_open(standing: Standing) -> bool:
    """Tell whether an effect that happened is unknown: its undo or transaction has not ended."""
    found = standing.found
    is_made = found is not None and found.status == "ok" and not found.back
    return standing.state == "unknown" and is_made and standing.shut is None


def _left_open(store: Store, key: str, run: str, standing: Standing) -> str:
    """Say that the undo of an effect, or a transaction around it, has not ended; how to end it."""
    undo = f"rollcage undo {run}{store_option(store)}"
    if standing.block is None:
        return (
            f"{key} is being taken back: an undo of run {run} has begun and not ended. To end it: "
            f"{undo}"
        )
    return (
        f"{key} was made by {_where(run, standing)}, in a transaction that has not ended and may "
        f"take it back. Resume that run; or take it back: {undo}"
    )


def _command(store: Store, key: str) -> str:
    """Return the command that shows an effect."""
    return f"rollcage once {shlex.quote(key)}{store_option(store)}"


def _ways_out(store: Store, key: str) -> str:
    """Return the commands that record whether an effect happened."""
    command = _command(store, key)
    return f"{command} --happened; or, if not: {command} --did-not-happen"


# --- waiting, in both colours --------------------------------------------------------------------


def _whole(call: Call, function: Callable[..., Any], *args: Any) -> Callable[[], Any]:
    """Return a call to the store; in an async session, no cancellation cuts it in two."""
    if not call.is_async:
        return consult(function, False, *args)

    async def awaited() -> Any:
        task = asyncio.ensure_future(in_thread(function, *args))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait([task])
            raise

    return awaited


def _ended(flight: _Flight, longest: float, *, is_async: bool) -> Callable[[], Any]:
    if not is_async:
        return lambda: concurrent.futures.wait([flight.ended], longest)

    async def awaited() -> None:
        loop, ended = asyncio.get_running_loop(), asyncio.Event()

        def wake(_: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(ended.set)

        flight.ended.add_done_callback(wake)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(longest):
                await ended.wait()

    return awaited


def _sleep(seconds: float, *, is_async: bool) -> Callable[[], Any]:
    return lambda: asyncio.sleep(seconds) if is_async else time.sleep(seconds)


def _last(store: Store, run: str) -> list[bytes]:
    try:
        return store.read(run, -1)
    except RunNotFound:
        return []


# --- from outside --------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Effect:
    """Describe a claimed effect.

    Attributes:
        key: the key.
        run: the run that made the effect, or is about to.
        step: the number of the step; 0: the intent is not on record.
        tool: the tool's name.
        state: `free`, `done`, `flying` or `unknown`; see `rollcage.stages.once`.
        outcome: the recorded outcome, if it is done.
        answered: the steps of other runs that were answered with the effect, so that it stays.
        elsewhere: why the state is known in another store alone, and in which; empty: here.
    """

    key: str
    run: str
    step: int
    tool: str
    state: State
    outcome: Event | None
    answered: tuple[Use, ...]
    elsewhere: str
    _store: Store = dataclasses.field(repr=False, compare=False)
    _seen: bytes = dataclasses.field(repr=False, compare=False)
    _standing: Standing = dataclasses.field(repr=False, compare=False)

    def resolve(self, *, happened: bool, result: Any = ..., by: str = "") -> None:
        """Record whether the effect happened, if its outcome is unknown.

        The statement goes to the log of the run, if the log exists and has an open question; or
        else to the claim, after a failed undo, without a log, or if the run goes on elsewhere.

        Raises:
            StepNotUnknown: the outcome is known, or the call is in flight.
            RunInUse: another process is writing the run.
        """
        if self.state != "unknown":
            raise StepNotUnknown(f"{self.key} is {self.state}: there is nothing to resolve")
        found = self._standing.found
        if found is not None and not found.back and not self.elsewhere:
            if _is_left_open(self._standing):
                raise StepNotUnknown(_left_open(self._store, self.key, self.run, self._standing))
            given = {} if result is ... else {"result": result}
            resolve_step(self._store, self.run, self.step, happened=happened, by=by, **given)
            return
        new: bytes | None = None
        if happened:
            outcome: Event = {"status": "ok", "value": None}
            if result is not ...:
                outcome["value"] = encode(result, str, path="result")
            elif found is not None and found.status == "ok":
                outcome = _whole_outcome(self._store, found.result)
            else:
                outcome["lossy"] = "its result is not known"
            claim = Claim.read(self.key, self._seen)
            new = claim._replace(state="done", step=self.step, outcome=outcome).data()
        if not self._store.swap("once", self.key, self._seen, new):
            raise StepNotUnknown(f"{self.key} has changed meanwhile: look again")


def once_of(store: str | os.PathLike[str] | Store, key: str) -> Effect | None:
    """Return an effect by its key; None without a claim."""
    opened = open_store(store)
    seen = opened.get("once", key)
    if seen is None:
        return None
    claim = Claim.read(key, seen)
    found = look_up(opened, claim)
    outcome = None if found.outcome is None else orjson.loads(found.outcome.data)
    answered = () if found.state == "free" else tuple(uses(opened, key, claim))
    there = "" if found.shut is None else str(elsewhere(claim.run, found.shut, opened))
    return Effect(
        key, claim.run, found.step, claim.tool, found.state, outcome, answered, there, opened, seen,
        found,
    )  # fmt: skip


def keep_claims(store: Store, run: str) -> list[str]:
    """Record the outcomes of a run's claims before its log is removed; return the keys.

    Claims of effects that never happened are removed. A large result goes into the claim itself,
    because its blob may go with the run. In the claims of other runs, marks of this run stay only
    where its answers stand.

    Raises:
        UnknownOutcome: the outcome of a claim is unknown: the run has to stay.
        RunInUse: a claim is in flight.
    """
    steps = fold_log(store.read(run), f"run {run}", {}).steps.values()
    told = [step.once for step in steps if step.once is not None]
    for key in sorted({each[2] for each in told if each[0] not in ("mine", run)}):
        _unmark(store, key, run)
    mine = {each[1] for each in told if each[0] == "mine"}
    kept: list[str] = []
    for key in sorted(mine):
        seen = store.get("once", key)
        claim = None if seen is None else Claim.read(key, seen)
        if claim is None or claim.run != run or claim.state:
            continue
        found = look_up(store, claim)
        if found.shut is not None:  # its own store knows: a call here asks a person
            continue
        if found.state == "flying":
            raise RunInUse(f"{key} is being made by run {run}")
        if _is_left_open(found):
            raise UnknownOutcome(_left_open(store, key, run, found), run, found.step)
        if found.state == "unknown":
            raise UnknownOutcome(
                f"nobody knows whether {key} happened, at {_where(run, found)}, so that run has to "
                f"stay. Find out, and say so: {_ways_out(store, key)}",
                run,
                found.step,
            )
        new: bytes | None = None
        if found.outcome is not None:
            outcome = _whole_outcome(store, orjson.loads(found.outcome.data))
            new = claim._replace(state="done", step=found.step, outcome=outcome).data()
        if store.swap("once", key, seen, new) and new is not None:
            kept.append(key)
    return kept


def _unmark(store: Store, key: str, run: str) -> None:
    """Remove the mark of a run from a claim, unless it counts."""
    while (seen := store.get("once", key)) is not None:
        claim = Claim.read(key, seen)
        is_marked = run in dict(claim.told)
        if not is_marked or any(use.run == run for use in uses(store, key, claim)):
            return
        if store.swap("once", key, seen, claim.unmarked(run).data()):
            return


def _whole_outcome(store: Store, outcome: Event) -> Event:
    value = outcome.get("value")
    if isinstance(value, dict) and value.get("$rollcage") == "blob":
        data = store.get("blobs", value["sha256"])
        if data is None:
            raise StoreError(f"the large value {value['sha256']} is gone from the store")
        outcome["value"] = orjson.loads(data)
    return outcome
