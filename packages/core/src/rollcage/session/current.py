"""The step whose body is running in this context."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from contextvars import Token
from pathlib import Path
from typing import Any

from rollcage.contract.permissions import Enforce, Grants, grants_of
from rollcage.fingerprint.identity import idempotency_key
from rollcage.session.scope import Enclosing, Scope, around, scope_of
from rollcage.step.call import OpenStep
from rollcage.step.watch import Watch, install

__all__ = ["CurrentStep", "current_step", "entering", "step_here"]


@dataclasses.dataclass(frozen=True, slots=True)
class CurrentStep:
    """The step whose body is running.

    Attributes:
        run: the run's id.
        number: its number in the run's trace.
        name: the tool's name.
        idempotency_key: the same whenever this step is run again in a resume of the run (64 hex
            digits); hand it to the service that the tool calls.
        before: what the tool's `observe` saw, for its undo; None if it declares none. A body that
            locks what it changes can refuse if somebody else has changed it since.
    """

    run: str
    number: int
    name: str
    idempotency_key: str
    before: Mapping[str, Any] | None = None


def current_step() -> CurrentStep | None:
    """The step whose body is running in this context; None outside of one."""
    scope = around.get()
    if scope is None or scope.step is None:
        return None
    step = scope.step
    contract, captured = step.call.contract, step.captured
    return CurrentStep(
        step.run,
        step.number,
        contract.name,
        idempotency_key(scope.calls.root, step.branch.name, step.fingerprint.hex()),
        captured.before if captured is not None and contract.observe is not None else None,
    )


def step_here() -> tuple[str, int] | None:
    """The run and number of the step whose body is running in this context; None outside of one."""
    scope = around.get()
    if scope is None or scope.step is None:
        return None
    return scope.step.run, scope.step.number


def entering(session: Enclosing, enforce: Enforce) -> Callable[[OpenStep], Any]:
    """What enters the bodies of this session's steps, and enforces their permissions that far."""
    if enforce == "off":
        return functools.partial(_enter_body, session)
    based = functools.partial(grants_of, base=str(Path.cwd()))
    grants = functools.lru_cache(maxsize=1024)(based)
    return functools.partial(_enter_watched, enforce, grants, session)


def _enter_body(session: Enclosing, step: OpenStep) -> Token[Scope | None]:
    """Make `step` the one whose body is running in its session, until `around.reset`."""
    inside = scope_of(session).inside
    agent, branch = step.call.agent, step.branch.name
    return around.set(Scope(session, agent=agent, branch=branch, step=step, inside=inside))


def _enter_watched(
    enforce: Enforce,
    grants: Callable[[tuple[str, ...]], Grants],
    session: Enclosing,
    step: OpenStep,
) -> Token[Scope | None]:
    """`_enter_body`, and hold what the body does to the permissions that its tool declares."""
    contract = step.call.contract
    if contract.permissions and step.watch is None:  # a stream is entered for each chunk
        install(_watched)
        step.watch = Watch(contract.name, grants(contract.permissions), enforce)
    return _enter_body(session, step)


def _watched() -> Watch | None:
    """The watch of the body that runs in this context: the innermost."""
    scope = around.get()
    while scope is not None and scope.step is None:
        scope = scope.calls.nesting.outer  # a session that a body has entered counts as its own
    return None if scope is None or scope.step is None else scope.step.watch
