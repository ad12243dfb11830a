"""Runs and steps with possible credentials removed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from rollcage_views.alignment import Change
from rollcage_views.runs import AskedApproval, Run, Step
from rollcage_views.screen import Screen
from rollcage_views.values import items_of, mapping_of

__all__ = ["screened_change", "screened_run", "screened_step"]

_WORDS = ("reason", "message", "remedy")

Event = dict[str, Any]


def screened_run(seen: Run, step: Callable[[Step], Step]) -> Run:
    """Return a run, with each step converted by `step`."""
    return dataclasses.replace(
        seen,
        started=_event(seen.started),
        finished=seen.finished and _event(seen.finished),
        abandoned=seen.abandoned and _event(seen.abandoned),
        steps=[step(each) for each in seen.steps],
        refused=[
            dataclasses.replace(
                each,
                args=Screen().fields(each.args),
                reason=Screen().words_of(each.reason),
                verdict=None if each.verdict is None else _words(each.verdict),
            )
            for each in seen.refused
        ],
        approvals=[
            AskedApproval(_event(each.request), each.decision and _event(each.decision), each.line)
            for each in seen.approvals
        ],
        undos=[_event(each) for each in seen.undos],
        attempts=[
            dataclasses.replace(
                each,
                error=each.error and _words(each.error),
                waits=Screen().words_of(each.waits),
                gate=[_words(rule) for rule in each.gate],
            )
            for each in seen.attempts
        ],
        policies=[_event(each) for each in seen.policies],
        stops=[_event(each) for each in seen.stops],
    )


def screened_step(step: Step) -> Step:
    """Return a step; of a model's request, only the last message, which a row shows."""
    args = step.args
    messages = items_of(args.get("messages")) if step.kind == "model" else None
    if messages:
        args = {**args, "messages": messages[-1:]}
    args = Screen().fields(args)
    if messages:
        args["messages"] = [*([None] * (len(messages) - 1)), *args["messages"]]
    return dataclasses.replace(
        step,
        args=args,
        outcome=None if step.outcome is None else _outcome(step.outcome),
        verdict=None if step.verdict is None else _words(step.verdict),
        undeclared=step.undeclared and [Screen().words_of(each) for each in step.undeclared],
        before=None if step.before is None else Screen().fields(step.before),
        plan=step.plan and [each | {"args": Screen().fields(each["args"])} for each in step.plan],
        happened=None if step.happened is None else _outcome(step.happened),
        once=step.once and [Screen().words_of(e) if isinstance(e, str) else e for e in step.once],
    )


def screened_change(change: Change) -> Change:
    """Return a difference of two steps; the name of the place may mark a credential."""
    name = change.path.rsplit(".", 1)[-1]
    both = (Screen().fields({name: each})[name] for each in (change.a, change.b))
    return Change(change.path, *both)


def _outcome(outcome: Mapping[str, Any]) -> Event:
    screened: Event = {**outcome}
    if "value" in screened:
        screened["value"] = Screen().value(screened["value"])
    if screened.get("answer"):
        screened["answer"] = Screen().fields(mapping_of(screened["answer"]) or {})
    for name in ("error", "drift"):
        if screened.get(name):
            screened[name] = _words(mapping_of(screened[name]) or {})
    if screened.get("lossy"):
        screened["lossy"] = Screen().words_of(screened["lossy"])
    return screened


def _words(event: Mapping[str, Any]) -> Event:
    """Return an event with the prose under known names screened; the rest are codes and places."""
    screened: Event = {
        name: Screen().words_of(text) if name in _WORDS and isinstance(text, str) else text
        for name, text in event.items()
    }
    if isinstance(screened.get("shadow"), dict):
        screened["shadow"] = _words(screened["shadow"])
    return screened


def _event(event: Event) -> Event:
    screened = _words(event)
    for name in ("error", "verdict"):
        if isinstance(screened.get(name), dict):
            screened[name] = _words(screened[name])
    for name in ("args", "input"):
        if isinstance(screened.get(name), dict):
            screened[name] = Screen().fields(screened[name])
    if screened.get("user_input"):
        screened["user_input"] = Screen().value(screened["user_input"])
    return screened
