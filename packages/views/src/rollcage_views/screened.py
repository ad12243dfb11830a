"""Runs and steps without what looks like a credential in them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from rollcage.trace import AskedApproval, Run, Step

from rollcage_views.alignment import Change
from rollcage_views.screen import Screen
from rollcage_views.values import items_of, mapping_of

__all__ = ["screened_change", "screened_run", "screened_step"]

_WORDS = ("reason", "message", "remedy")

Event = dict[str, Any]


def screened_run(seen: Run, step: Callable[[Step], Step]) -> Run:
    """A run, with each step as `step` gives it."""
    return dataclasses.replace(
        seen,
        started=_event(seen.started),
        finished=seen.finished and _event(seen.finished),
        abandoned=seen.abandoned and _event(seen.abandoned),
        steps=[step(each) for each in seen.steps],
        refused=[
            dataclasses.replace(
                each, args=Screen().fields(each.args), reason=Screen().words_of(each.reason)
            )
            for each in seen.refused
        ],
        approvals=[
            AskedApproval(_event(each.request), each.decision and _event(each.decision), each.line)
            for each in seen.approvals
        ],
        undos=[_event(each) for each in seen.undos],
        policies=[_event(each) for each in seen.policies],
        stops=[_event(each) for each in seen.stops],
    )


def screened_step(step: Step) -> Step:
    """A step; of the messages that a model was told, the last one, which a row shows."""
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
        drift=step.drift and Screen().words_of(step.drift),
        undeclared=step.undeclared and [Screen().words_of(each) for each in step.undeclared],
        before=None if step.before is None else Screen().fields(step.before),
        plan=step.plan and [each | {"args": Screen().fields(each["args"])} for each in step.plan],
    )


def screened_change(change: Change) -> Change:
    """Where two steps differ; the name of the place may say that it is a credential."""
    name = change.path.rsplit(".", 1)[-1]
    both = (Screen().fields({name: each})[name] for each in (change.a, change.b))
    return Change(change.path, *both)


def _outcome(outcome: Mapping[str, Any]) -> Event:
    told: Event = {**outcome}
    if "value" in told:
        told["value"] = Screen().value(told["value"])
    if told.get("answer"):
        told["answer"] = Screen().fields(mapping_of(told["answer"]) or {})
    for name in ("error", "drift"):
        if told.get(name):
            told[name] = _words(mapping_of(told[name]) or {})
    if told.get("lossy"):
        told["lossy"] = Screen().words_of(told["lossy"])
    return told


def _words(said: Mapping[str, Any]) -> Event:
    """What is said in words, under names that we know; the rest are codes and places."""
    told: Event = {
        name: Screen().words_of(text) if name in _WORDS and isinstance(text, str) else text
        for name, text in said.items()
    }
    if isinstance(told.get("shadow"), dict):
        told["shadow"] = _words(told["shadow"])
    return told


def _event(event: Event) -> Event:
    told = _words(event)
    for name in ("error", "verdict"):
        if isinstance(told.get(name), dict):
            told[name] = _words(told[name])
    for name in ("args", "input"):
        if isinstance(told.get(name), dict):
            told[name] = Screen().fields(told[name])
    if told.get("user_input"):
        told["user_input"] = Screen().value(told["user_input"])
    return told
