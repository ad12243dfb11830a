"""Capture the needs of an undo: the state before a write, the state after it, and its plan.

Capture is the last stage to prepare: waiting behind it would make the state before outdated.
"""

from __future__ import annotations

import copy
import inspect
import logging
from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Any, Final

from rollcage.calls.stage import Body, Stage, Work
from rollcage.contract.compensation import differing, recorded_states, states_of
from rollcage.errors import CaptureFailed, Halt, SessionHalted
from rollcage.trace.threads import in_thread
from rollcage.undo.plan import consult, has_large, keep_large, looking, plain, plan_of, revived
from rollcage.undo.program import take_back
from rollcage.undo.targets import resources
from rollcage.values.exceptions import describe_error

if TYPE_CHECKING:
    from rollcage.contract.compensation import Digest, Digests, Observed
    from rollcage.contract.contract import Contract
    from rollcage.replay.call import Call, Match
    from rollcage.trace.run import Event, Outcome, Step

__all__ = ["Capture"]

_log: Final = logging.getLogger("rollcage")
_SCALARS: Final = (str, int, float, bool, bytes, type(None))


class Capture(Stage):
    """Observe the state that a write changes, and plan its undo."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], Contract] = {}

    def concerns(self, contract: Contract) -> bool:
        """Tell whether a tool declares its state, or its undo."""
        return contract.observe is not None or contract.undo is not None

    def prepare(self, call: Call, match: Match) -> Work | None:
        """Observe the state that the call will change, once, right before its body."""
        contract = call.contract
        named = contract.name, contract.version
        if self._known.get(named) is not contract:  # a framework's tool is not known otherwise
            self._known[named] = contract
            call.attempt.tools.add(contract)
        if match.kind == "hit" or match.refusal is not None or call.supplied is not None:
            return None
        if "capture" in (call.kept or ()):
            return None
        if call.attempt.on_divergence == "undo" and any(step.acts for step in match.ahead):
            return None  # these are taken back first: then there is another state before it
        return self._observe(call, match)

    def _observe(self, call: Call, match: Match) -> Work:
        contract, attempt = call.contract, call.attempt
        before: dict[str, Any] | None = None
        was: Digests = {}
        keyed: Mapping[str, Digest] = {}
        step, decided = match.step, _own(call.values)
        try:
            if contract.observe is not None:
                recorded = (step.undo or {}).get("before") if step is not None else None
                is_own = step is None or not step.borrowed or call.attempt.run.continues
                is_open = step is not None and step.status == "unknown" and is_own
                if recorded is not None and is_open:
                    # it may have happened: before it was before the first run
                    before = yield consult(revived, call.is_async, attempt.store, recorded)
                    assert before is not None
                    keyed = (step.undo or {}).get("keyed", {}) if step is not None else {}
                    was = recorded_states(before, keyed, attempt.seal)
                else:
                    observe = looking(call.place, contract, "observe")
                    observed = yield consult(observe, call.is_async, dict(call.values))
                    found = states_of(observed, attempt)
                    before, was, keyed = found.shown, found.states, found.keyed
                    rest = _in_the_way(call, match, before)
                    if rest:
                        yield from take_back(
                            attempt, rest, why="divergence", is_async=call.is_async
                        )
                        return  # it is matched anew, and the state before it is another one
            marks: Event = {} if before is None else {"before": before}
            if keyed:
                marks["keyed"] = keyed
            if contract.undo is not None:
                marks["reversible"] = True
                if "result" not in contract.undo_words:
                    known = {"args": dict(call.values), "before": plain(before)}
                    marks["plan"] = plan_of(contract, call.place, known)
            if has_large(marks):
                marks = yield consult(keep_large, call.is_async, attempt.store, marks)
        except (Halt, SessionHalted, CaptureFailed):
            raise
        except Exception as error:
            raise CaptureFailed(
                f"{contract.name} can't be prepared for undo, so it did not run: "
                f"{type(error).__name__}: {error}"
            ) from error
        call.keep("capture", marks)
        call.keep("before", before)
        call.keep("was", None if before is None else was)
        call.keep("decided", decided)

    def marks(self, call: Call) -> Event | None:
        """Return the state before, and the plan if it needs no result."""
        return (call.kept or {}).get("capture")

    def around(self, call: Call, body: Body) -> Body:
        """Observe the state after the body, whether it returned or raised."""
        if call.is_async:

            async def awaited() -> Any:
                try:
                    value = body()
                    if inspect.isawaitable(value):
                        value = await value
                except Exception as error:
                    _compare(call, await _aobserve(call, error), raised=True)
                    raise
                _compare(call, await _aobserve(call, None), raised=False)
                late = _plan_late(call, value)
                if late is not None and has_large(late):
                    late = await in_thread(keep_large, call.attempt.store, late)
                _keep(call, late)
                return value

            return awaited

        def in_turn() -> Any:
            try:
                value = body()
            except Exception as error:
                _compare(call, _observe_now(call, error), raised=True)
                raise
            _compare(call, _observe_now(call, None), raised=False)
            late = _plan_late(call, value)
            if late is not None and has_large(late):
                late = keep_large(call.attempt.store, late)
            _keep(call, late)
            return value

        return in_turn

    def settled(
        self,
        call: Call | None,
        outcome: Outcome,  # noqa: ARG002 - what it keeps was found around the body
        step: Step | None,
    ) -> Event | None:
        """Return the digests of the state after, and the plan if it needed the result."""
        if call is None or step is not None:
            return None
        return (call.kept or {}).get("after")


def _own(values: Mapping[str, Any]) -> dict[str, Any]:
    """Copy arguments, so that a body's changes to its own do not show."""
    if all(isinstance(each, _SCALARS) for each in values.values()):
        return dict(values)
    try:
        return copy.deepcopy(dict(values))
    except Exception:  # noqa: BLE001 - one can't be copied: it is the caller's own object
        return dict(values)


def _decided(call: Call) -> dict[str, Any]:
    """Return a call's arguments as they were before its body ran, for a function of the tool."""
    return _own((call.kept or {}).get("decided", call.values))


def _in_the_way(call: Call, match: Match, before: dict[str, Any]) -> list[Step]:
    """Return the recorded effects ahead, beside a new effect, that changed the same state.

    Effects of its turn, for example, may still be asked for. If they are not, it would be too late
    to take them back behind the new effect: their undo would wipe the new state.
    """
    attempt = call.attempt
    if attempt.on_divergence != "undo" or match.kind != "new":
        return []
    run = attempt.run
    if run.is_undoing(call.place.branch):
        return []
    with attempt.lock:
        return [
            step
            for step in run.untaken.values()
            if step.acts and not step.claimed and not run.is_consumed(step)
            if not resources(step).isdisjoint(before)
        ]


def _plan_late(call: Call, result: Any) -> Event | None:
    """Plan the undo of a call that has happened, if the plan needed its result."""
    contract = call.contract
    if contract.undo is None or "result" not in contract.undo_words:
        return None
    before = (call.kept or {}).get("before")
    known = {"args": _decided(call), "before": plain(before), "result": result}
    try:
        return {"plan": plan_of(contract, call.place, known)}
    except Exception as error:  # noqa: BLE001 - it has happened: its report says that it has no plan
        _tell(call, "its undo can't be planned", error)
        return None


def _compare(call: Call, now: Observed | None, *, raised: bool) -> None:
    """Keep the state after; an error that left the state unchanged is a clean one."""
    was = (call.kept or {}).get("was")
    if now is None or was is None:
        return
    if raised and not differing(was, now.states):
        call.keep("clean", True)
    _keep(call, {"after": now.digests})


def _keep(call: Call, fields: Event | None) -> None:
    """Keep fields for the line with which the call ends."""
    if fields:
        call.keep("after", {**(call.kept or {}).get("after", {}), **fields})


def _tell(call: Call, what: str, error: Exception) -> None:
    """Tell what the tool's own function failed on, without the secrets that its error quotes."""
    _log.error("%s: %s: %s", call.contract.name, what, describe_error(error, call.attempt.seal))


def _observe_now(call: Call, error: Exception | None) -> Observed | None:
    if call.contract.observe is None or isinstance(error, (Halt, SessionHalted)):
        return None
    try:
        observe = looking(call.place, call.contract, "observe")
        return states_of(observe(_decided(call)), call.attempt)
    except Exception as failed:  # noqa: BLE001 - it has happened: its report says what is unknown
        _tell(call, "the state after it can't be observed", failed)
        return None


async def _aobserve(call: Call, error: Exception | None) -> Observed | None:
    if call.contract.observe is None or isinstance(error, (Halt, SessionHalted)):
        return None
    try:
        observe = looking(call.place, call.contract, "observe")
        found = consult(observe, True, _decided(call))()
        if isinstance(found, Awaitable):
            found = await found
        return states_of(found, call.attempt)
    except Exception as failed:  # noqa: BLE001 - it has happened: its report says what is unknown
        _tell(call, "the state after it can't be observed", failed)
        return None
