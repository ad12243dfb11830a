"""Steps as rows of a page: shortened texts, and the details of an opened row."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import orjson

from rollcage_views.changes import DiffLine, changes_of
from rollcage_views.runs import Run, Step
from rollcage_views.states import States
from rollcage_views.steps import call_text, outcome_text, state_text
from rollcage_views.text import duration_text, utc_text, value_text, visible
from rollcage_views.values import items_of, mapping_of, tag_of
from rollcage_views.viewer import SEES_ALL, Viewer

__all__ = ["Cut", "Message", "RowChange", "StepRow", "cut", "row_changes", "step_row", "step_rows"]

_IN_ROW: Final = 300  # characters of the arguments, and of the outcome, in a row
_LONGEST: Final = 4000  # characters of one value in an opened row
_NAME: Final = 200  # characters of a name
_MESSAGES: Final = 50  # new messages of a step that are shown
_NONE: Final = States()
_DEEPEST: Final = 40  # levels of a value that are written out
_NESTED: Final = re.compile("#([0-9a-f]{8})[0-9a-f]{56}")  # a fingerprint, in a branch's name


@dataclasses.dataclass(frozen=True, slots=True)
class Cut:
    """A text, or its beginning.

    Attributes:
        text: the displayed text.
        left: how many characters are left out.
    """

    text: str
    left: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Message:
    """A message of a model's request or answer."""

    role: str
    content: Cut


@dataclasses.dataclass(frozen=True, slots=True)
class RowChange:
    """The change by a write, line by line."""

    resource: str
    lines: list[DiffLine]


@dataclasses.dataclass(frozen=True, slots=True)
class StepRow:
    """A step, as texts.

    Attributes:
        run: the id of its run.
        step: its number.
        group: the agent, branch and turn that begin with it; empty within a group.
        depth: in how many bodies it was called.
        kind: `tool`, `model` or `branch`.
        name: the name of the tool or the model, with a sign for special calls, such as `↺`.
        args: its arguments, as one line.
        effect: its effect, if notable: `write`, `reversible write`, `scope`, `model`.
        began: its beginning, in words.
        state: one of `rollcage_views.STATES`; `undone` if it was undone since; `running`.
        label: the state in words.
        outcome: its outcome, as one line.
        took: its duration, in words.
        start: its beginning on the time line, from 0 to 1, or None; `length`: of its bar there.
        facts: further facts: a title and a text each.
        origin: where a replayed step first ran (run, step).
        messages: the messages of a model's request that its last request did not have.
        arguments: each argument in full, as lines.
        result: its result in full, as lines.
        changes: its changes.
        undone: whether these changes were undone since.
        whole: the command that shows the rest of cut values; empty without any.
    """

    run: str
    step: int
    group: str
    depth: int
    kind: str
    name: str
    args: Cut
    effect: str
    began: str
    state: str
    label: str
    outcome: Cut
    took: str
    start: float | None
    length: float
    facts: list[tuple[str, str]]
    origin: tuple[str, int] | None
    messages: list[Message]
    arguments: list[tuple[str, Cut]]
    result: Cut | None
    changes: list[RowChange]
    undone: bool
    whole: str

    @property
    def opens(self) -> bool:
        """Whether the step has more details than the row has room for."""
        inside = self.messages or self.arguments or self.result or self.changes
        return bool(self.facts or self.origin or inside)


def step_rows(
    seen: Run,
    steps: Sequence[Step] | None = None,
    recorded: Run | None = None,
    *,
    viewer: Viewer = SEES_ALL,
    at: str = "",
    live: bool = False,
) -> Iterator[StepRow]:
    """Yield the rows of a run's steps, one by one, so that a page of ten thousand is streamed.

    Args:
        seen: the run, as its viewer may see it.
        steps: the displayed steps; all of them by default.
        recorded: the run as recorded, for the changes of writes and the messages of
            models. Without it, they come from `seen`.
        viewer: the viewer.
        at: the store for a command: see `store_option`.
        live: whether the run is being written: a step without an end still runs.
    """
    span = seen.started["time"], max(seen.last_time - seen.started["time"], 1)
    asked: dict[tuple[str, str], list[Any]] = {}
    depths: dict[int, int] = {}
    group, by_turn = "", _has_turns(seen)
    states = States(recorded or seen) if viewer.values else _NONE
    by_number = {} if recorded is None else {step.step: step for step in recorded.steps}
    for step in seen.steps if steps is None else steps:
        depth = depths[step.step] = 0 if step.parent is None else depths.get(step.parent, 0) + 1
        title = group if depth else _group(step, by_turn=by_turn)
        whole = by_number.get(step.step, step)
        new = [viewer.value(each) for each in _new_messages(whole, asked)[: _MESSAGES + 1]]
        yield step_row(
            seen.id, step, group="" if title == group else title, depth=depth, messages=new,
            span=None if live else span, states=states, recorded=whole, viewer=viewer,
            at=at, live=live,
        )  # fmt: skip
        group = title


def step_row(
    run: str,
    step: Step,
    *,
    span: tuple[int, int] | None = None,
    group: str = "",
    depth: int = 0,
    messages: Sequence[Any] = (),
    states: States = _NONE,
    recorded: Step | None = None,
    viewer: Viewer = SEES_ALL,
    at: str = "",
    live: bool = False,
) -> StepRow:
    """Return one step as a row.

    Args:
        run: the id of its run.
        step: the step.
        span: when the time line begins (Unix, µs), and how long it is (µs); None for no bar.
        group: the group that begins with it.
        depth: in how many bodies it was called.
        messages: the new messages of a model's request, encoded.
        states: the states that the writes of its run found.
        recorded: the step as recorded, if it is shown without credentials.
        viewer: the viewer.
        at: the store for a command.
        live: whether the run is being written.
    """
    begun, whole = span or (step.time, 1)
    ran = 0 if step.state == "hit" else step.duration or 0
    undone = step.undone in ("verified", "compensated")
    runs_on = live and step.ended is None and step.state in ("unknown", "cut_off")
    args, outcome = cut(call_text(step), _IN_ROW), cut(outcome_text(step), _IN_ROW)
    arguments = _arguments(step) if args.left or _has_lines(step.args) else []
    result, listed = _result(step, outcome), [_message(each) for each in messages[:_MESSAGES]]
    shown = [*(value for _, value in arguments), *(each.content for each in listed)]
    is_cut = len(messages) > _MESSAGES or any(each.left for each in (*shown, result) if each)
    mark = "join of " if step.kind == "branch" else "↺ " if step.undoes else ""
    return StepRow(
        run=run,
        step=step.step,
        group=group,
        depth=min(depth, 8),
        kind=step.kind,
        name=f"{mark}{_name(step.name)}",
        args=args,
        effect=_effect(step),
        began=utc_text(step.time),
        state="running" if runs_on else "undone" if undone else step.state,
        label="running" if runs_on else state_text(step),
        outcome=outcome,
        took=duration_text(step.duration),
        start=None if span is None else (step.time - begun) / whole,
        length=ran / whole,
        facts=_facts(step),
        origin=None if step.origin is None else (str(step.origin[0]), int(step.origin[1])),
        messages=listed,
        arguments=arguments,
        result=result,
        changes=row_changes(recorded or step, states, viewer),
        undone=undone,
        whole=f"rollcage show {run}{at} --step {step.step} --json" if is_cut else "",
    )


def row_changes(
    step: Step, states: States, viewer: Viewer, *, back: bool = False
) -> list[RowChange]:
    """Return the changes by a write or its undo: digests prove them for recorded values."""
    found: list[RowChange] = []
    for each in changes_of(step, states) if viewer.values else ():
        if each.changed:
            resource = visible(viewer.text(each.resource))[:_NAME]
            found.append(RowChange(resource, each.seen_by(viewer.value).lines(back=back)))
    return found


def cut(text: str, longest: int = _LONGEST) -> Cut:
    """Return a text that is safe to show, cut if it is too long."""
    left = len(text) - longest
    return Cut(text[:longest], left) if left > 0 else Cut(text)


def _name(text: str) -> str:
    return cut(visible(text), _NAME).text


def _effect(step: Step) -> str:
    effect = step.simulated or step.effect
    if step.kind == "tool":
        written = "reversible write" if step.reversible else "write"
        return {"write": written, "scope": "scope"}.get(effect, "")
    return "model" if step.kind == "model" else step.block


def _has_turns(seen: Run) -> bool:
    """Return whether there are turns of several calls: otherwise each call would be a group."""
    turns = [(step.agent, step.branch, step.turn) for step in seen.steps if step.parent is None]
    return len(set(turns)) < len(turns)


def _group(step: Step, *, by_turn: bool) -> str:
    if step.undoes:
        return "undo"
    parts = [f"agent {_name(step.agent)}"] if step.agent else []
    branch = _NESTED.sub(lambda found: f"#{found[1]}", step.branch)
    parts += [f"branch {_name(branch)}"] if branch else []
    return " · ".join([*parts, *([f"turn {step.turn}"] if by_turn else [])])


def _facts(step: Step) -> list[tuple[str, str]]:
    """Return the facts that a row has no room for; none for an ordinary step."""
    verdict: Mapping[str, Any] = step.verdict or {}
    shadow: Mapping[str, Any] = verdict.get("shadow") or {}
    decided = step.decided_by and f"by {step.decided_by}"
    facts = [
        ("decision", _verdict(verdict) if verdict else ""),
        ("in shadow mode", _verdict(shadow) if shadow else ""),
        ("approved" if step.state != "blocked" else "rejected", decided or ""),
        ("undo", step.undone or ""),
        ("undoes", f"step {step.undoes[1]} of run {step.undoes[0]}" if step.undoes else ""),
        ("resolved", f"by {step.resolved_by}" if step.resolved_by else ""),
        ("tokens", f"{step.tokens:,}" if step.tokens else ""),
        ("labels", ", ".join(step.labels)),
    ]
    return [(title, cut(visible(text), _LONGEST).text) for title, text in facts if text]


def _verdict(verdict: Mapping[str, Any]) -> str:
    rule = f" by {verdict['rule']}" if verdict.get("rule") else ""
    code = f" ({verdict['code']})" if verdict.get("code") else ""
    reason = f": {verdict['reason']}" if verdict.get("reason") else ""
    return f"{verdict.get('decision', '')}{rule}{code}{reason}"


# --- values in full ------------------------------------------------------------------------------


def _arguments(step: Step) -> list[tuple[str, Cut]]:
    if step.kind == "model" and items_of(step.args.get("messages")):
        return []  # they are listed one by one
    return [(_name(name), _written(value)) for name, value in step.args.items()]


def _result(step: Step, short: Cut) -> Cut | None:
    outcome = step.outcome or {}
    value = outcome.get("value")
    if outcome.get("status") == "ok" and (short.left or _has_lines(value)):
        answer = mapping_of(outcome.get("answer")) or {}
        return _written(answer.get("text") or value)
    if outcome.get("error") and (short.left or _has_lines(outcome["error"])):
        return _written((mapping_of(outcome["error"]) or {}).get("message"))
    return None


def _has_lines(value: Any, depth: int = 0) -> bool:
    """Return whether a value has texts of several lines, which a row joins into one."""
    if isinstance(value, str):
        return "\n" in value
    inside = mapping_of(value)
    parts = items_of(value) or ([] if inside is None else [*inside.values()])
    return depth < _DEEPEST and any(_has_lines(each, depth + 1) for each in parts)


def _written(value: Any) -> Cut:
    """Return a value as people write it: a text with its lines, other values as JSON."""
    if isinstance(value, str):
        return _lines(value)
    if tag_of(value) is not None or not isinstance(value, dict | list):
        return cut(value_text(value))
    if _too_deep(value):
        return cut(value_text(value))
    return _lines(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode(errors="replace"))


def _lines(text: str) -> Cut:
    whole = cut(text)
    return Cut("\n".join(visible(line) for line in whole.text.split("\n")), whole.left)


def _too_deep(value: Any) -> bool:
    level, depth = [value], 0
    while level and depth <= _DEEPEST:
        inside = [items_of(each) or [*(mapping_of(each) or {}).values()] for each in level]
        level = [part for parts in inside for part in parts]
        depth += 1
    return bool(level)


# --- messages of models --------------------------------------------------------------------------


def _new_messages(step: Step, asked: dict[tuple[str, str], list[Any]]) -> list[Any]:
    """Return the messages that the agent's last request did not have: each is shown once."""
    messages = items_of(step.args.get("messages")) if step.kind == "model" else None
    if messages is None:
        return []
    known = asked.get((step.agent, step.branch), [])
    asked[step.agent, step.branch] = messages
    return messages[len(known) :] if messages[: len(known)] == known else messages


def _message(encoded: Any) -> Message:
    message = mapping_of(encoded)
    if message is None or "content" not in message:
        return Message("message", _written(encoded))
    content, calls = message["content"], items_of(message.get("tool_calls"))
    texts = [(mapping_of(part) or {}).get("text") for part in items_of(content) or []]
    if texts and all(isinstance(text, str) for text in texts):
        content = "\n".join(map(str, texts))
    shown = _written(content) if content or not calls else Cut("")
    if calls:
        asked = cut(value_text(calls))
        shown = Cut(f"{shown.text}\n→ {asked.text}".lstrip("\n"), shown.left + asked.left)
    return Message(_name(str(message.get("role", "message"))), shown)
