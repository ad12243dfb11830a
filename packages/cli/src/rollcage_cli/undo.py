"""`rollcage undo`: undo a run's effects, once a person has seen the plan."""

from __future__ import annotations

import asyncio
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from rollcage import (
    PlannedCall,
    PlannedStep,
    Store,
    UndoneStep,
    UndoPlan,
    UndoReport,
    aplan_undo,
    aundo_run,
    plan_undo,
    undo_run,
)
from rollcage.errors import PlanChanged, ToolMissing
from rollcage.session.undoing import PlanOptions

from rollcage_cli.errors import DIFFERENT, UsageError
from rollcage_cli.lookup import find_kept
from rollcage_cli.options import DEFAULT_STORE, OFF, JsonOption, RunArgument, StoreOption
from rollcage_cli.output import arguments_text, console, print_json, visible
from rollcage_cli.tools import Source, any_async, load_tools

__all__ = ["undo"]

_STYLES: Final = {
    "reversible": "green", "nothing": "dim", "conflict": "bold red", "irreversible": "yellow",
    "unknown": "bold yellow", "verified": "green", "compensated": "green", "failed": "bold red",
}  # fmt: skip


def undo(
    run: RunArgument,
    to: Annotated[
        int | None,
        typer.Option(min=1, metavar="STEP", help="Undo only the steps after this one."),
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Dry run: show what would be done.")] = OFF,
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask for confirmation.")] = OFF,
    tools: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODULE[:ATTRIBUTE]",
            help="The module with the tools; by default tool.rollcage.tools in pyproject.toml.",
        ),
    ] = None,
    restore: Annotated[
        bool,
        typer.Option("--restore", help="Also restore the state before steps of unknown outcome."),
    ] = OFF,
    expected: Annotated[
        str | None,
        typer.Option(
            metavar="DIGEST", help="Only if the plan has this digest, which --plan --json shows."
        ),
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = OFF,
) -> None:
    """Undo a run's effects, the newest first.

    First shows the reversible, unknown, conflicting and irreversible steps, and asks. Nothing is
    changed if a state was changed by others since. Exits with 1 if anything is left.
    """
    if as_json and not (plan or yes):
        raise UsageError("--json can't ask: pass --plan, or --yes to undo")
    own, id_ = find_kept(store, run, "undo")
    work = _Work(own, id_, to, load_tools(tools), restore=restore)
    planned = work.plan()
    if expected is not None and planned.digest != expected:
        raise PlanChanged("the plan does not have the expected digest: look at it again (--plan)")
    if not as_json:
        _print_plan(console(), planned)
    if plan or not planned.steps:
        if as_json:
            print_json({"plan": planned.as_data(), "digest": planned.digest})
        raise typer.Exit(0 if planned.complete else DIFFERENT)
    if planned.conflicts and not as_json:
        console().print("Nothing was changed: resolve the conflict first.")
        raise typer.Exit(DIFFERENT)
    if not yes and all(step.state == "irreversible" for step in planned.steps):
        console().print("Nothing was changed: none of its effects can be undone.")
        raise typer.Exit(DIFFERENT)
    if not yes and not typer.confirm("Undo this?"):
        raise typer.Exit(DIFFERENT)
    report = work.undo(planned)
    if as_json:
        print_json({"plan": planned.as_data(), "report": report.as_data()})
    else:
        _print_report(console(), report)
    if not report.complete:
        raise typer.Exit(DIFFERENT)


class _Work:
    """One undo: sync if no tool has to be awaited, so that tools stay in their thread."""

    def __init__(
        self, store: Store, run: str, to: int | None, tools: list[Source], *, restore: bool
    ) -> None:
        self._options: PlanOptions = {
            "to": to, "tools": tools, "in_doubt": "restore" if restore else "list",
        }  # fmt: skip
        self._where = store, run
        self._waits = any_async(tools)

    def plan(self) -> UndoPlan:
        """Return the plan."""
        try:
            if self._waits:
                return asyncio.run(aplan_undo(*self._where, **self._options))
            return plan_undo(*self._where, **self._options)
        except ToolMissing as error:
            parts = "name its module with --tools MODULE, or in tool.rollcage.tools"
            raise ToolMissing(f"{error} ({parts})", error.tool) from error

    def undo(self, planned: UndoPlan) -> UndoReport:
        """Carry out the displayed plan, or change nothing."""
        try:
            if self._waits:
                return asyncio.run(aundo_run(*self._where, expected=planned, **self._options))
            return undo_run(*self._where, expected=planned, **self._options)
        except PlanChanged as error:
            raise PlanChanged(f"{error} (here: --plan)") from error


# --- for people ----------------------------------------------------------------------------------


def _print_plan(out: Console, plan: UndoPlan) -> None:
    if not plan.steps:
        out.print("There is nothing to undo.")
        return
    table = Table(box=None, pad_edge=False)
    for title in ("step", "call", "undo", "by"):
        table.add_column(title, overflow="fold" if title == "by" else "ellipsis")
    for step in plan.steps:
        table.add_row(
            _number(step, plan.run),
            Text(f"{visible(step.name)}({arguments_text(step.args)})"),
            Text(step.state, style=_STYLES[step.state]),
            Text(_by(step)),
        )
    out.print(table)


def _number(step: PlannedStep | UndoneStep, run: str) -> Text:
    return Text(str(step.step) if step.run == run else f"{step.step} of {visible(step.run)[-12:]}")


def _by(step: PlannedStep) -> str:
    parts = [_call_text(call) for call in step.calls]
    parts += [visible(step.reason)] if step.reason else []
    return "; ".join([*parts, *_differences(step)])


def _call_text(call: PlannedCall) -> str:
    return f"{visible(call.name)}({arguments_text(call.args)})"


def _differences(step: PlannedStep | UndoneStep) -> list[str]:
    return [
        f"{visible(resource)} differs" + (f" in {visible(', '.join(fields))}" if fields else "")
        for resource, fields in step.differs.items()
    ]


def _print_report(out: Console, report: UndoReport) -> None:
    for step in report.steps:
        text = Text("step ").append_text(_number(step, report.run))
        text.append(f" ({visible(step.name)}): ").append(step.status, style=_STYLES[step.status])
        parts = ([visible(step.reason)] if step.reason else []) + _differences(step)
        text.append(f": {'; '.join(parts)}" if parts else "")
        out.print(text, soft_wrap=True)
    for run, number, name in report.left:
        where = "" if run == report.run else f" of {visible(run)}"
        out.print(f"step {number}{where} ({visible(name)}): not tried", soft_wrap=True)
    if report.complete:
        out.print(Text(f"{len(report.steps)} effects undone", style="green"))
        out.print("The next session of this name resumes from there.")
