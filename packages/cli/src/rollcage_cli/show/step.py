"""One step, in full."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text
from rollcage_views import Step, duration_text, outcome_text, time_text

from rollcage_cli.output import value_text, visible
from rollcage_cli.show.rows import name_of, styled_state

__all__ = ["print_step"]


def print_step(out: Console, row: Step, attempts: int = 1) -> None:
    """Print a step's place, times, arguments and outcome."""
    out.print(Text(f"step {row.step}  ", style="bold").append(name_of(row)).append("  ").append(
        styled_state(row)
    ))  # fmt: skip
    facts = [
        ("kind", row.block or row.kind),
        ("version", visible(row.version)),
        ("effect", row.effect),
        ("place", f"turn {row.turn}, slot {row.slot}"),
        ("branch", visible(row.branch)),
        ("agent", visible(row.agent)),
        ("parent", "" if row.parent is None else f"step {row.parent}"),
        ("started", time_text(row.time)),
        ("took", duration_text(row.duration)),
        ("tokens", str(row.tokens or "")),
        ("first ran", f"step {row.origin[1]} of run {row.origin[0]}" if row.origin else ""),
        ("undoes", f"step {row.undoes[1]} of run {row.undoes[0]}" if row.undoes else ""),
        ("undo", visible(row.undone or "")),
        ("attempt", str(row.attempt or "") if attempts > 1 else ""),
        ("ran again as", f"step {row.replacement}" if row.replacement else ""),
        ("left behind by", f"step {row.left_by}" if row.left_by else ""),
        ("once", visible(str(row.once[-1 if row.once[0] != "mine" else 1])) if row.once else ""),
        ("key", row.key),
    ]
    for name, fact in facts:
        if fact:
            out.print(f"  {name}: {fact}", soft_wrap=True)
    for name, value in row.args.items():
        out.print(f"  argument {visible(name)}: {value_text(value)}", soft_wrap=True)
    out.print(f"  outcome: {outcome_text(row) or row.state.replace('_', ' ')}", soft_wrap=True)
