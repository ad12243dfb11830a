"""Resolutions and undos that a model asks for, and the person at the client confirms.

A step that did not happen runs again, and an undo makes compensating calls: both let effects
happen, and can free the key of an effect that happens once. So each is shown to a person first.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from rollcage import PlannedStep, UndoPlan
from rollcage.errors import StepNotFound, StepNotUnknown
from rollcage.trace.recorded import trace_of
from rollcage.trace.store import store_option
from rollcage_cli.errors import UsageError
from rollcage_cli.lookup import find_kept
from rollcage_cli.options import json_given
from rollcage_views import Run, Step, escape_json, read_run, visible

from rollcage_mcp.approving import arguments_of, dialog, named
from rollcage_mcp.dialog import ask_person, through
from rollcage_mcp.errors import NotConfirmed

__all__ = ["confirm_resolution", "confirm_undo"]


async def confirm_resolution(store: str, arguments: Mapping[str, Any], *, by: str) -> list[str]:
    """Ask the person at the client whether a step happened as the model says.

    Args:
        store: the URL of the store.
        arguments: of the tool: `run`, `step`, `happened`, and perhaps `result`, as JSON.
        by: the person's name.

    Returns:
        The command that records the confirmed statement: options and arguments of
        `rollcage resolve`.

    Raises:
        NotConfirmed: the client has no dialog, or the person did not confirm.
        RollcageError: there is no such step, or nothing to say of it.
    """
    happened, result = arguments["happened"], arguments.get("result")
    if result is not None and not happened:
        raise UsageError("a step that did not happen has no result")
    given = None if result is None else json_given("result", result)
    own, run = await asyncio.to_thread(find_kept, store, arguments["run"], "resolve")
    seen = await asyncio.to_thread(lambda: read_run(trace_of(own, run)))
    step = _resolvable(seen, arguments["step"], adds=result is not None)
    flag = "--happened" if happened else "--did-not-happen"
    words = [] if result is None else [f"--result={result}"]
    said = "happened" if happened else "did not happen"
    job = visible(str(seen.started["name"]))
    paragraphs = [
        f"An agent asks to record that a call {said}. Whether it did is unknown: find out first.",
        f"Run {run}, job {job}, step {step.step}: {named(step.name)}",
        arguments_of(step.args),
        *_causes(step, happened=happened),
    ]
    if result is not None:
        shown = json.dumps(given, indent=2, ensure_ascii=False)
        paragraphs += ["Its result, with which it is replayed:", _escaped(shown)]
    paragraphs.append("The statement can't be taken back. It is recorded under your name.")
    await _confirmed(paragraphs, f"rollcage resolve {run} {step.step}{store_option(own)} {flag}")
    return [flag, *words, f"--by={through(by)}", "--", run, str(step.step)]


async def confirm_undo(store: str, plan: UndoPlan) -> list[str]:
    """Ask the person at the client whether a planned undo may be carried out.

    Args:
        store: the URL of the store.
        plan: what the undo would do.

    Returns:
        The command that carries out this plan and no other: options and arguments of
        `rollcage undo`.

    Raises:
        NotConfirmed: the client has no dialog, or the person did not confirm.
    """
    own, run = await asyncio.to_thread(find_kept, store, plan.run, "undo")
    to = [] if plan.to is None else [f"--to={plan.to}"]
    after = "" if plan.to is None else f", all steps after step {plan.to}"
    causes = (
        "If you approve, an undone call runs again when its program asks for it, and the key of an "
        "undone effect that happens once is free."
    )
    paragraphs = [
        f"An agent asks to undo run {run}{after}. The newest effect is undone first:",
        *(line for each in plan.steps for line in _planned(each, run)),
        causes,
    ]
    await _confirmed(paragraphs, " ".join(["rollcage undo", run, *to]) + store_option(own))
    return ["--yes", f"--expected={plan.digest}", *to, "--", run]


def _resolvable(seen: Run, number: int, *, adds: bool) -> Step:
    """Return the step, if there is something to say of it.

    Args:
        seen: its run.
        number: the number of the step.
        adds: whether a result is added.
    """
    step = seen.step(number)
    if step is None:
        raise StepNotFound(f"run {seen.id} has no step {number}; it has {len(seen.steps)}")
    is_open = step.state in ("unknown", "cut_off") or step.unclear
    if not is_open and not (adds and step.unreplayable):
        raise StepNotUnknown(
            f"step {number} ({visible(step.name)}) of run {seen.id} is "
            f"{step.state.replace('_', ' ')}: there is nothing to resolve"
        )
    return step


def _causes(step: Step, *, happened: bool) -> list[str]:
    """Return what follows from a statement about a step."""
    if happened:
        return ["If you approve, the call does not run again."]
    causes = ["If you approve, the call runs again when its program asks for it."]
    if step.once is not None and step.once[0] == "mine":
        key = visible(str(step.once[1]))
        causes.append(f"Its effect key {key} is free then: any run of this store can use it.")
    return causes


def _planned(step: PlannedStep, run: str) -> list[str]:
    """Return the lines of a dialog about one step of an undo."""
    of = "" if step.run == run else f" of run {visible(step.run)}"
    reason = f": {visible(step.reason)}" if step.reason else ""
    lines = [f"step {step.step}{of}, {_call(step.name, step.args)}: {step.state}{reason}"]
    lines += [f"  by {_call(each.name, each.args)}" for each in step.calls]
    lines += [
        f"  {visible(resource)} differs {visible(', '.join(fields))}".rstrip()
        for resource, fields in step.differs.items()
    ]
    return lines


def _call(name: str, args: Mapping[str, Any]) -> str:
    text = json.dumps(dict(args), default=str, ensure_ascii=False)
    return f"{named(name)} {escape_json(text)}"


def _escaped(text: str) -> str:
    return "\n".join(map(escape_json, text.split("\n")))


async def _confirmed(paragraphs: list[str], command: str) -> None:
    """Ask the person at the client; raise `NotConfirmed` without a clear yes."""
    try:
        said = await ask_person(dialog(*paragraphs))
    except NotConfirmed as error:
        raise NotConfirmed(
            f"{error}, and only a person can confirm this: nothing was done. Have somebody run "
            f"`{command}` in a terminal"
        ) from None
    if said.decision != "approve":
        reason = f": {said.reason}" if said.reason else ""
        raise NotConfirmed(f"the person at the client did not confirm it{reason}")
