"""The steps of a trace as a tree, from spans that may come in any order, twice, or not at all."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable
from typing import Final

from rollcage_adapter import NOT_RECORDED, ToolRequest

from rollcage_import.spans import Span, data_of

__all__ = ["SpanStep", "Tree", "trees"]

_DEEPEST: Final = 24  # nested steps: each takes a part of the stack


@dataclasses.dataclass(slots=True, eq=False)
class SpanStep:
    """A span that becomes a step, and the steps inside of it.

    Attributes:
        span: the span.
        inside: the steps that its body made, by their beginning.
        turn: identifies the message that requested it, the same for its calls; None
            if unknown.
        slot: its place in that message.
    """

    span: Span
    inside: list[SpanStep] = dataclasses.field(default_factory=list)
    turn: object = None
    slot: int | None = None

    def __len__(self) -> int:
        return 1 + sum(map(len, self.inside))


@dataclasses.dataclass(slots=True)
class Tree:
    """The tree of a run.

    Attributes:
        trace: the trace's id.
        top: the span that is the run itself, the agent's or the only one without a parent; None
            if that is a step.
        start: when the first span began (Unix, ns).
        end: when the last one ended.
        steps: the outermost steps, by their beginning.
        skipped: spans that became no step, by reason.
    """

    trace: str
    top: Span | None
    start: int
    end: int
    steps: list[SpanStep]
    skipped: Counter[str]


def trees(spans: Iterable[Span]) -> list[Tree]:
    """Return the traces of these spans, by their beginning."""
    by_trace: dict[str, list[Span]] = {}
    for span in spans:
        by_trace.setdefault(span.trace, []).append(span)
    return sorted((_tree(trace, each) for trace, each in by_trace.items()), key=lambda t: t.start)


def _tree(trace: str, found: list[Span]) -> Tree:
    skipped: Counter[str] = Counter()
    spans: dict[str, Span] = {}
    for span in found:
        before = spans.get(span.id)
        if before is not None:
            skipped["a duplicate: it has the id of another span"] += 1
        if before is None or (before.end is None and span.end is not None):
            spans[span.id] = span
    ordered = sorted(spans.values(), key=lambda span: (span.start, span.end or span.start, span.id))
    children: dict[str, list[Span]] = {}
    roots: list[Span] = []
    for span in ordered:
        is_inside = span.parent in spans and span.parent != span.id
        (children.setdefault(span.parent, []) if is_inside else roots).append(span)
    reached = _reached(roots, children)
    if len(reached) < len(spans):
        skipped["its parents form a circle"] += len(spans) - len(reached)
    around = [each for each in roots if each.kind == "agent"] or roots
    top = around[0] if len(around) == 1 and around[0].kind in ("agent", "other") else None
    start = min(span.start for span in found)
    end = max(span.end or span.start for span in found)
    steps = _Steps(children, skipped, top).of(roots)
    return Tree(trace, top, start, max(start, end), steps, skipped)


def _reached(roots: list[Span], children: dict[str, list[Span]]) -> set[str]:
    found: set[str] = set()
    left = list(roots)
    while left:
        span = left.pop()
        found.add(span.id)
        left += children.get(span.id, ())
    return found


class _Steps:
    """Makes the steps of a trace from its spans, without a recursion."""

    def __init__(
        self, children: dict[str, list[Span]], skipped: Counter[str], top: Span | None
    ) -> None:
        self._children = children
        self._skipped = skipped
        self._top = top

    def of(self, roots: list[Span]) -> list[SpanStep]:
        """Return the steps of these spans; steps inside of a span that is none move up."""
        outermost: list[SpanStep] = []
        # each with its enclosing step, the list for it, and its depth
        left: list[tuple[Span, SpanStep | None, list[SpanStep], int]]
        left = [(span, None, outermost, 0) for span in reversed(roots)]
        lists = [outermost]
        while left:
            span, around, into, depth = left.pop()
            inner = around, into, depth
            why = "" if span is self._top else self._why_not(span, around, depth)
            if why:
                self._skipped[why] += 1
            elif span is not self._top:
                step = SpanStep(span)
                into.append(step)
                if span.kind == "model":  # a model calls no tools: inner steps come after it
                    inner = step, into, depth
                else:
                    lists.append(step.inside)
                    inner = step, step.inside, depth + 1
            around, into, depth = inner
            children = reversed(self._children.get(span.id, []))
            left += [(each, around, into, depth) for each in children]
        for steps in lists:
            steps.sort(
                key=lambda step: step.span.start
            )  # stable: steps that began at once stay in order
            _place(steps)
        return outermost

    def _why_not(self, span: Span, around: SpanStep | None, depth: int) -> str:
        if span.kind == "other":
            return span.name
        if span.is_attempt and self._top is not None and span.parent == self._top.id:
            return "an attempt at the run"
        if depth >= _DEEPEST:
            return f"inside of {_DEEPEST} steps"
        if around is not None and _same_call(around.span, span):
            _complete(around.span, span)
            return "the same call as the span around it, recorded by another instrumentation"
        return ""


def _same_call(outer: Span, inner: Span) -> bool:
    if outer.kind != inner.kind:
        return False
    if outer.kind == "model":
        return True
    known = [each.args for each in (outer, inner) if each.args is not NOT_RECORDED]
    return outer.name == inner.name and (len(known) < 2 or known[0] == known[1])


def _complete(span: Span, twin: Span) -> None:
    """Take the fields that only the other span of a call holds."""
    for field in ("args", "result"):
        if getattr(span, field) is NOT_RECORDED:
            setattr(span, field, getattr(twin, field))
    span.answer = span.answer or twin.answer
    span.error = span.error or twin.error
    for field in ("call_id", "agent"):
        setattr(span, field, getattr(span, field) or getattr(twin, field))


def _place(steps: list[SpanStep]) -> None:
    """Find the calls that one message requested: by their ids, or else by overlapping times."""
    asked: dict[str, tuple[int, ToolRequest]] = {}
    model: SpanStep | None = None
    together: object = None
    until = slot = -1
    for step in steps:
        span = step.span
        if span.kind == "model":
            calls = span.answer.tool_calls if span.answer is not None else ()
            asked = {call.id: (at, call) for at, call in enumerate(calls) if call.id}
            model, until = step, -1
        elif span.call_id in asked and model is not None:
            step.slot, request = asked.pop(span.call_id)
            step.turn = model
            # some instrumentations record only the value of a single argument
            if not isinstance(span.args, dict):
                span.args = data_of(request.arguments) or span.args
        else:
            if span.start >= until:
                together, slot = step, -1
            slot += 1
            step.turn, step.slot = together, slot
            until = max(until, span.end or span.start)
