"""Make the calls of a tool's own functions: its `observe`, its `probe` and its `undo`.

These functions look at the world as it is. A recorded step would show them the past, and an undo
would find nothing to be undone. So a guarded read that they call is decided on by the gate and then
runs, confined as any body; it is no step, and no recorded step answers it. Whatever may change the
world is refused before it happens.
"""

from __future__ import annotations

import dataclasses
import inspect
from typing import TYPE_CHECKING

from rollcage.calls.flow import surrounded
from rollcage.errors import Blocked
from rollcage.replay.call import Call, at
from rollcage.replay.walk import Turn
from rollcage.trace.threads import in_thread

if TYPE_CHECKING:
    from rollcage.calls.driver import Flow

__all__ = ["look"]


def look(call: Call) -> Flow:
    """Run the read that a tool's own function calls, and return its result.

    Raises:
        Blocked: the call is no read, or a guard does not allow it.
    """
    _check(call)
    body = call.run
    with at(dataclasses.replace(call.place, around=call)), surrounded(call):
        if call.is_async and not inspect.iscoroutinefunction(call.body):
            return (yield lambda: in_thread(body))
        return (yield body)


def _check(call: Call) -> None:
    """Refuse a call that may change the world, and a read that the gate does not allow."""
    name, looks, attempt = call.contract.name, call.place.looks, call.attempt
    if call.streams or call.effect not in ("pure", "read"):
        what = "streams" if call.streams else f"has the effect {call.effect!r}"
        raise Blocked(
            f"the {looks} called {name}, which {what}: it may only call tools that read",
            rule="",
            code="look_only",
        )
    if not call.session.gate.decides:
        return
    with attempt.lock:
        call.branch, call.turn = attempt.branch(call.place.branch), Turn()
        call.before = attempt.stats.calls + attempt.stats.seen
        verdict = call.session.gate.decide(call)
    if verdict is None:
        return
    if verdict.decision == "deny":
        raise Blocked(verdict.message, rule=verdict.rule, code=verdict.code)
    raise Blocked(
        f"the {looks} called {name}, which needs an approval ({verdict.reason}): nobody can be "
        f"asked there",
        rule=verdict.rule,
        code=verdict.code,
    )
