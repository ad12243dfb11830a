"""The shared parts of the policy commands: their options, and the display of a decision."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.table import Table
from rich.text import Text
from rollcage.gate import Decision, Verdict
from rollcage_cli.output import visible

from rollcage_policy import Judged, PolicyRule

__all__ = [
    "AgentOption",
    "PolicyArgument",
    "ResolveOption",
    "ToolsOption",
    "UserInputOption",
    "decision_text",
    "place_of",
    "plain_table",
    "shown_arguments",
    "verdict_data",
]

PolicyArgument = Annotated[
    Path, typer.Argument(metavar="POLICY", help="A .toml, .yaml or .yml.", show_default=False)
]
ToolsOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="MODULE[:ATTRIBUTE]",
        help="The module with the tools; by default tool.rollcage.tools in pyproject.toml.",
    ),
]
UserInputOption = Annotated[
    list[str] | None, typer.Option(metavar="TEXT", help="The user input, for named().")
]
AgentOption = Annotated[str, typer.Option(metavar="NAME", help="Who makes the call.")]
ResolveOption = Annotated[
    bool,
    typer.Option(
        "--resolve", help="Resolve hosts for public_host(); by default, nothing is looked up."
    ),
]
_STYLES: Final[Mapping[str, str]] = {"allow": "green", "ask": "yellow", "deny": "red"}


def decision_text(decision: Decision | None) -> Text:
    """Return a decision in its colour; `?` if it is unknown."""
    return Text("?" if decision is None else decision, style=_STYLES.get(decision or "", "dim"))


def shown_arguments(judged: Judged) -> Mapping[str, Any]:
    """Return the recorded form of a call's arguments, also for a call that was not recorded."""
    return judged.view.args if judged.time else judged.view.data


def plain_table(*titles: str) -> Table:
    """Return a table without lines; long texts are folded."""
    table = Table(box=None, pad_edge=False)
    for title in titles:
        table.add_column(title, overflow="fold")
    return table


def place_of(rule: PolicyRule) -> str:
    """Return the place of a rule."""
    return visible(f"{rule.where}:{rule.line}")


def verdict_data(verdict: Verdict | None) -> dict[str, Any] | None:
    """Return a verdict for machines, with the text for the model."""
    return None if verdict is None else {**verdict.as_data(), "message": verdict.message}
