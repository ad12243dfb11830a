"""Two runs side by side: a line a step, the first difference marked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from rich.console import Console
from rich.text import Text
from rollcage_views import Pair, Step, first_difference

from rollcage_cli.output import arguments_text, value_text, visible
from rollcage_cli.table import Table

__all__ = ["print_beside"]

_STYLES: Final = {"same": "dim", "changed": "yellow", "only_a": "red", "only_b": "green"}
_SIGNS: Final = {"same": "", "changed": "≠", "only_a": "-", "only_b": "+"}
_LONGEST: Final = 200  # characters of a step


def print_beside(out: Console, pairs: Sequence[Pair], titles: tuple[str, str]) -> None:
    """Print two runs, each in a column; `▶` marks the first difference."""
    first = first_difference(pairs)
    signs = _SIGNS | ({"changed": "!", "first": ">"} if out.options.ascii_only else {"first": "▶"})
    table = Table()
    table.add_column("", no_wrap=True)
    for title in titles:
        table.add_column(title, max_width=(out.width - 6) // 2)
    for pair in pairs:
        style = _STYLES[pair.relation]
        sign = signs["first"] if pair is first else signs[pair.relation]
        table.add_row(Text(sign, style=style), *(_cell(each, style) for each in (pair.a, pair.b)))
    out.print(table)


def _cell(step: Step | None, style: str) -> Text:
    if step is None:
        return Text("")
    line = f"{step.step} {visible(step.name)}({arguments_text(step.args)}) {_end(step)}"
    line = line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"
    return Text(line, style=style)


def _end(step: Step) -> str:
    """Return how a step ended: `→ 12`, and where the outcome comes from."""
    outcome: dict[str, Any] = step.outcome or {}
    how = "" if step.state in ("ran", "hit") else f" [{step.state.replace('_', ' ')}]"
    if step.assumed:
        how = " [assumed]"
    elif step.simulated is not None and step.state == "hit":
        how = " [simulated]"
    if step.state == "blocked" and step.verdict is not None:
        return f"✗ {visible(step.verdict['code'])}"
    if outcome.get("status") == "ok":
        return f"→ {value_text(outcome.get('value'))}{how}"
    error: dict[str, Any] = outcome.get("error") or {}
    return f"→ {visible(str(error.get('type', '')))}: {visible(str(error.get('message', '')))}{how}"
