"""Two runs as a page, side by side, the first difference marked."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TextIO

from rollcage_views.alignment import Change, Pair, align, first_difference, in_order
from rollcage_views.changes import DiffLine, line_diff
from rollcage_views.html.rendering import write_report
from rollcage_views.html.rows import Cut, cut
from rollcage_views.html.runs import RunHead, run_head
from rollcage_views.runs import Run, Step
from rollcage_views.status import standing, words
from rollcage_views.steps import call_text, outcome_text, state_text
from rollcage_views.text import value_text, visible
from rollcage_views.viewer import SEES_ALL, TO_GIVE_AWAY, Viewer

__all__ = ["DiffPage", "DiffRow", "DiffSide", "diff_page", "write_diff"]

_LONGEST: Final = 400  # characters of a call, and of an outcome
_CHANGES: Final = 50  # differences of one step that are shown
_WORDS: Final = {"only_a": "only in A", "only_b": "only in B"}


@dataclasses.dataclass(frozen=True, slots=True)
class DiffSide:
    """A step of one of two runs, as texts."""

    run: str
    step: int
    name: str
    args: Cut
    state: str
    label: str
    outcome: Cut


@dataclasses.dataclass(frozen=True, slots=True)
class DiffRow:
    """Two matching steps, one of each run; one of them may be missing.

    Attributes:
        number: its place, from 1.
        relation: `same`, `changed`, `only_a` or `only_b`; `label` is the relation in words.
        first: whether it is the first difference.
        a: the step of the first run; `b`: of the second.
        changes: the differences, line by line.
        more: how many differences are not shown.
    """

    number: int
    relation: str
    label: str
    first: bool
    a: DiffSide | None
    b: DiffSide | None
    changes: list[tuple[str, list[DiffLine]]]
    more: int


@dataclasses.dataclass(frozen=True, slots=True)
class DiffPage:
    """The values of the template `diff_body.html`.

    Attributes:
        a: the first run; `b`: the second.
        compared: how many rows there are.
        differing: how many of them are not the same.
        relations: the relations that occur.
        first: the place of the first difference; 0 without one.
        rows: made on demand.
    """

    a: RunHead
    b: RunHead
    compared: int
    differing: int
    relations: list[str]
    first: int
    rows: Iterable[DiffRow]


def diff_page(
    heads: tuple[RunHead, RunHead], pairs: Sequence[Pair], viewer: Viewer = SEES_ALL
) -> DiffPage:
    """Return the page of two runs.

    Args:
        heads: the heads of both: see `run_head`.
        pairs: their steps, aligned: see `align`.
        viewer: the viewer.
    """
    relations = {pair.relation for pair in pairs}
    first = first_difference(pairs)
    return DiffPage(
        a=heads[0],
        b=heads[1],
        compared=len(pairs),
        differing=sum(pair.relation != "same" for pair in pairs),
        relations=sorted(relations),
        first=0 if first is None else next(n for n, p in enumerate(pairs, 1) if p is first),
        rows=_rows(heads, pairs, viewer, first),
    )


def write_diff(
    out: TextIO,
    runs: tuple[Run, Run],
    at: tuple[str, str] = ("", ""),
    viewer: Viewer = TO_GIVE_AWAY,
) -> None:
    """Write the difference of two runs as one self-contained page.

    Args:
        out: the output.
        runs: the two runs.
        at: the store of each for a command line.
        viewer: the viewer.
    """
    pairs = align(*map(in_order, runs))
    a, b = (_head(seen, where, viewer) for seen, where in zip(runs, at, strict=True))
    write_report("diff.html", out, page=diff_page((a, b), pairs, viewer))


def _head(seen: Run, at: str, viewer: Viewer) -> RunHead:
    return run_head(viewer.run(seen), words(standing(seen), seen.status, seen.id, at))


def _rows(
    heads: tuple[RunHead, RunHead], pairs: Sequence[Pair], viewer: Viewer, first: Pair | None
) -> Iterator[DiffRow]:
    for number, pair in enumerate(pairs, 1):
        shown = viewer.pair(pair)
        yield DiffRow(
            number=number,
            relation=pair.relation,
            label=_WORDS.get(pair.relation, pair.relation),
            first=pair is first,
            a=_side(heads[0].run, shown.a),
            b=_side(heads[1].run, shown.b),
            changes=[_change(each) for each in shown.changes[:_CHANGES]],
            more=max(len(shown.changes) - _CHANGES, 0),
        )


def _side(run: str, step: Step | None) -> DiffSide | None:
    if step is None:
        return None
    return DiffSide(
        run=run,
        step=step.step,
        name=cut(visible(step.name), 200).text,
        args=cut(call_text(step), _LONGEST),
        state=step.state,
        label=state_text(step),
        outcome=cut(outcome_text(step), _LONGEST),
    )


def _change(change: Change) -> tuple[str, list[DiffLine]]:
    """Return a difference of two steps: texts by their lines, other values as one line each."""
    place = cut(visible(change.path), 200).text
    if isinstance(change.a, str) and isinstance(change.b, str):
        return place, line_diff(change.a, change.b)
    sides: list[tuple[Any, Any]] = [("-", change.a), ("+", change.b)]
    return place, [(sign, cut(value_text(value), 2000).text) for sign, value in sides]
