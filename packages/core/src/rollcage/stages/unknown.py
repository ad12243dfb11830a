"""Find out whether a write of unknown outcome happened, if its tool can tell."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import orjson

from rollcage.calls.driver import adrive, drive
from rollcage.calls.flow import is_clean, is_lost
from rollcage.calls.stage import Body, Stage, Work
from rollcage.contract.compensation import (
    DidNotHappen,
    Happened,
    differing,
    recorded_states,
    states_of,
)
from rollcage.errors import Halt, SessionHalted
from rollcage.replay.outcome import success
from rollcage.trace.run import Outcome
from rollcage.undo.plan import consult, looking, plain, plan_of, revived

if TYPE_CHECKING:
    from rollcage.contract.contract import Contract
    from rollcage.replay.call import Call, Match
    from rollcage.trace.run import Event, Step

__all__ = ["Probe", "Unknown"]


class Unknown(Stage):
    """Ask about a write of unknown outcome: by its `probe`, or else by the observed state.

    The finding is put on record; the call is then answered, or runs at its place.
    """

    is_about_recorded = True

    def concerns(self, contract: Contract) -> bool:
        """Tell whether a tool writes."""
        return contract.effect == "write"

    def prepare(self, call: Call, match: Match) -> Work | None:
        """Ask about a recorded write of unknown outcome, once.

        The write stands at the place of the call; or the same call failed before, and the agent
        acted upon its error: if the write happened, the new call gets its result.
        """
        attempt, step = call.attempt, match.step
        if call.effect != "write" or match.kind == "hit" or call.supplied is not None:
            return None
        if step is None or step.status == "waiting":
            step = attempt.run.unclear_step(call.key)
        if step is None or not attempt.live or attempt.dry:
            return None
        if step.happened is not None:
            return self._answer(call, step, step.happened)
        contract = call.contract
        if not contract.captures or (contract.idempotent and contract.probe is None):
            return None
        if not (step.status == "unknown" or step.unclear):
            return None
        if (call.kept or {}).get("probed") == step.n:
            return None
        return self._ask(call, step, is_here=step is match.step)

    @staticmethod
    def _answer(call: Call, step: Step, data: bytes) -> Work:
        call.supplied = Outcome("ok", data)
        call.made_at = [call.attempt.run.id, step.n]
        yield from ()

    def _ask(self, call: Call, step: Step, *, is_here: bool) -> Work:
        call.keep("probed", step.n)
        if not is_here and not (yield consult(_has_same_arguments, call.is_async, call, step)):
            return
        answer = yield from find_out(call, step)
        attempt = call.attempt
        line: Event = {"event": "outcome", "step": step.n, "by": "probe"}
        if not is_here:
            line["acted"] = True
        with attempt.lock:
            if not (step.status == "unknown" or step.unclear):
                return  # found out by another process meanwhile
            if isinstance(answer, DidNotHappen):
                attempt.note({**line, "outcome": None})
            elif isinstance(answer, Happened):
                found = success(call.contract, answer.result, attempt.seal, attempt.types)
                plan = (call.kept or {}).get("plan found")
                if plan is not None:
                    line["plan"] = plan
                attempt.note(line, found)


class Probe(Stage):
    """Ask the `probe` of a tool at once when a body fails."""

    def concerns(self, contract: Contract) -> bool:
        """Tell whether a tool writes, and has a probe."""
        return contract.effect == "write" and contract.probe is not None

    def around(self, call: Call, body: Body) -> Body:
        """Ask the probe when the body fails, unless the failure is known to be clean."""
        if call.effect != "write":
            return body
        if call.is_async:

            async def awaited() -> Any:
                try:
                    value = body()
                    return await value if inspect.isawaitable(value) else value
                except Exception as error:
                    if not _is_unclear(call, error):
                        raise
                    answer = await adrive(find_out(call, _begun(call), probe_only=True))
                    if not isinstance(answer, Happened):
                        _note(call, answer)
                        raise
                    return answer.result

            return awaited

        def plain() -> Any:
            try:
                return body()
            except Exception as error:
                if not _is_unclear(call, error):
                    raise
                answer = drive(find_out(call, _begun(call), probe_only=True))
                if not isinstance(answer, Happened):
                    _note(call, answer)
                    raise
                return answer.result

        return plain


def _is_unclear(call: Call, error: Exception) -> bool:
    attempt = call.attempt
    is_halt = isinstance(error, (Halt, SessionHalted))
    return not (is_halt or is_lost(attempt, call, error) or is_clean(attempt, call, error))


def _begun(call: Call) -> Step:
    return call.attempt.run.steps[call.event["step"]]


def _note(call: Call, answer: Any) -> None:
    if isinstance(answer, DidNotHappen):
        call.keep("did not happen", True)


def _has_same_arguments(call: Call, step: Step) -> bool:
    """Tell whether a step ran with the arguments of a call, and not with an approver's edit.

    The tool is asked with the call's arguments, and would answer for another effect.
    """
    for line in call.attempt.store.read(call.attempt.run.id):
        event = orjson.loads(line)
        if event["event"] == "step" and event["step"] == step.n:
            return bool(event["args"] == orjson.loads(call.data))
    return False


def find_out(call: Call, step: Step, *, probe_only: bool = False) -> Any:
    """Ask a tool about a call: `Happened`, `DidNotHappen`, or None for an unknown outcome."""
    contract, attempt = call.contract, call.attempt
    before = (step.undo or {}).get("before")
    if before is not None:
        before = yield consult(revived, call.is_async, attempt.store, before)
    if contract.probe is not None:
        known = {
            "args": dict(call.values), "key": attempt.run.idempotency_key(step),
            "before": plain(before),
        }  # fmt: skip
        words = {word: known[word] for word in contract.probe_words}
        try:
            answer = yield consult(looking(call.place, contract, "probe"), call.is_async, **words)
        except (Halt, SessionHalted):
            raise
        except Exception:  # noqa: BLE001 - the tool's own function may raise anything
            return None
        if isinstance(answer, Happened) and contract.undo is not None:
            _plan_found(call, before, answer.result)
        if answer is not None:
            return answer if isinstance(answer, (Happened, DidNotHappen)) else None
    if probe_only or contract.observe is None or before is None:
        return None
    try:
        observe = looking(call.place, contract, "observe")
        now = yield consult(observe, call.is_async, dict(call.values))
        was = recorded_states(before, (step.undo or {}).get("keyed", {}), attempt.seal)
        same = not differing(was, states_of(now, attempt).states)
    except (Halt, SessionHalted):
        raise
    except Exception:  # noqa: BLE001 - the tool's own function may raise anything
        return None
    return DidNotHappen() if same else None


def _plan_found(call: Call, before: Any, result: Any) -> None:
    """Plan the undo of a call that happened, if the plan needed its result."""
    contract = call.contract
    if "result" not in contract.undo_words:
        return
    known = {"args": dict(call.values), "before": plain(before), "result": result}
    call.keep("plan found", plan_of(contract, call.place, known))
