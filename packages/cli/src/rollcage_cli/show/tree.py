"""The steps of a run as a tree."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text
from rollcage_views import Step, call_text, outcome_text, state_text, tree_of

from rollcage_cli.output import visible
from rollcage_cli.show.rows import STYLES, block_name, cell

__all__ = ["print_tree"]


def print_tree(out: Console, rows: Sequence[Step]) -> None:
    """Print agents, branches and turns, each with its calls."""
    ascii_only = out.options.ascii_only
    rail = ("|  ", "|- ", "`- ", "   ") if ascii_only else ("│  ", "├─ ", "└─ ", "   ")
    # By depth, whether a node is the last of its siblings: the prefix of a line.
    todo = [(node, "", at == 0, "") for at, node in enumerate(reversed(tree_of(rows)))]
    while todo:
        node, front, last, sign = todo.pop()
        text = Text(f"{front}{sign}", style="dim")
        row = node.step
        if row is None:
            text.append(visible(node.title), style="bold")
        else:
            name = (
                block_name(row)
                if row.kind == "branch"
                else f"{visible(row.name)}({call_text(row)})"
            )
            undoes = "↺ " if row.undoes is not None else ""
            text.append(f"{row.step} ", style="default")
            text.append(f"{state_text(row)} ", style=STYLES[row.state])
            text.append(cell(f"{undoes}{name}", out.width * 3 // 5))
            text.append(f"  {outcome_text(row)}", style="default")
        text.truncate(out.width, overflow="ellipsis")
        out.print(text)
        below = front + (rail[3 if last else 0] if sign else "")
        children = [*enumerate(reversed(node.children))]
        todo += [(child, below, at == 0, rail[2 if at == 0 else 1]) for at, child in children]
