"""The steps of a run as a table, which fits on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.text import Text
from rollcage_views import Step, call_text, duration_text, outcome_text, state_text

from rollcage_cli.output import visible
from rollcage_cli.table import Table

__all__ = ["STYLES", "block_name", "cell", "name_of", "styled_state", "table_of"]

STYLES: Final = {
    "hit": "cyan", "ran": "green", "simulated": "magenta", "failed": "red",
    "blocked": "magenta", "unknown": "bold yellow", "cut_off": "yellow", "not_started": "dim",
    "waiting": "yellow",
}  # fmt: skip
_FIXED: Final = 47  # columns of the table besides the call, its arguments and its outcome
_WIDE: Final = 110  # columns from which on effects, turns and arguments have their own column
_STATE: Final = 12  # columns of a state on a narrow terminal
_LONG_STATE: Final = 24  # columns of a long state
_ATTEMPT: Final = "attempt"  # of the run, in which a step ran
_RIGHT: Final = ("step", _ATTEMPT, "turn", "took")
_NARROW_FIXED: Final = 34  # columns besides the call and its outcome


def styled_state(row: Step) -> Text:
    """Return a step's state, in its colour."""
    text = Text(state_text(row), style=STYLES[row.state])
    if row.state == "hit":
        text.highlight_regex(r"\(.*\)", "red")
    return text


def table_of(rows: Sequence[Step], width: int) -> Table:
    """Return a table with a line a step, for a terminal of this width."""
    names = [name_of(row) for row in rows]
    agents = [visible(row.agent) for row in rows]
    by = min(max(map(len, agents)), 12 if width < _WIDE else 20)
    left = width - (by + 2 if by else 0)
    several = any(row.attempt > 1 for row in rows)
    left -= len(_ATTEMPT) + 2 if several else 0
    states = min(max(len(state_text(row)) for row in rows), _LONG_STATE)
    if width < _WIDE:
        state = max(states, _STATE)
        room = max(left - _NARROW_FIXED - (state - _STATE), 20)
        return _narrow(rows, names, by, room, state=state, several=several)
    call = min(max(map(len, names)), 28)
    left = max(left - call - _FIXED - max(states - _STATE, 0), 20)
    arguments = left * 2 // 5
    table = Table()
    titles = ["step", *([_ATTEMPT] if several else []), "turn", *(["agent"] if by else [])]
    for title in (*titles, "call", "effect", "state", "arguments", "outcome", "took"):
        table.add_column(title, right=title in _RIGHT, no_wrap=True)
    for row, name in zip(rows, names, strict=True):
        table.add_row(
            str(row.step),
            *([_attempt_text(row)] if several else []),
            str(row.turn),
            *([cell(visible(row.agent), by)] if by else []),
            cell(name, call),
            row.simulated or row.effect,
            cell(styled_state(row), _LONG_STATE),
            cell(call_text(row), arguments),
            cell(outcome_text(row), left - arguments),
            duration_text(row.duration),
        )
    return table


def _attempt_text(row: Step) -> str:
    return str(row.attempt) if row.attempt else ""  # the step ran in another run


def _narrow(
    rows: Sequence[Step], names: Sequence[str], by: int, room: int, *, state: int, several: bool
) -> Table:
    """Return the row for a terminal of 80 columns: call and arguments in one column."""
    calls = [
        f"{name}({call_text(row)})" if row.kind != "branch" else name
        for row, name in zip(rows, names, strict=True)
    ]
    call = min(max(map(len, calls)), room * 3 // 5)
    table = Table()
    titles = ["step", *([_ATTEMPT] if several else []), *(["agent"] if by else [])]
    for title in (*titles, "call", "state", "outcome", "took"):
        table.add_column(title, right=title in _RIGHT, no_wrap=True)
    for row, shown in zip(rows, calls, strict=True):
        table.add_row(
            str(row.step),
            *([_attempt_text(row)] if several else []),
            *([cell(visible(row.agent), by)] if by else []),
            cell(shown, call),
            cell(styled_state(row), state),
            cell(outcome_text(row), room - call),
            duration_text(row.duration),
        )
    return table


def cell(text: str | Text, width: int) -> Text:
    """Return a text, cut if it is too long."""
    shown = text if isinstance(text, Text) else Text(text[: 2 * width])
    shown.truncate(width, overflow="ellipsis")
    return shown


def name_of(row: Step) -> str:
    """Return a step's name, with a sign if it is nested or undoes another step."""
    name = visible(row.name)
    if row.kind == "branch":
        return block_name(row)
    if row.undoes is not None:
        return f"  ↺ {name}"
    return f"  ↳ {name}" if row.parent is not None else name


def block_name(row: Step) -> str:
    """Return a block's name, by its kind."""
    name = visible(row.name)
    return name if row.block == name else f"{row.block} {name}"
