"""`rollcage workflow`: check a plan, run it, look at its executions, send them signals."""

from __future__ import annotations

import asyncio
import dataclasses
import textwrap
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from rich.table import Table
from rich.text import Text
from rollcage import Contract, open_store
from rollcage.trace.store import store_option
from rollcage_cli.errors import DIFFERENT, UsageError
from rollcage_cli.options import DEFAULT_STORE, OFF, JsonOption, StoreOption, who
from rollcage_cli.output import console, print_json, visible
from rollcage_cli.tools import load_tools

from rollcage_workflow.check import check as check_plan
from rollcage_workflow.commands.given import (
    FromOption,
    GivenOption,
    IdArgument,
    given_inputs,
    given_json,
    given_results,
)
from rollcage_workflow.commands.progress import ProgressTable
from rollcage_workflow.commands.steering import add_commands
from rollcage_workflow.commands.waiting import commands_for
from rollcage_workflow.errors import PlanInvalid
from rollcage_workflow.example import PLAN, TOOLS
from rollcage_workflow.graph import Checked, blocks_in, nodes_of
from rollcage_workflow.orders import Commands
from rollcage_workflow.outline import Outline, kept_outline, outline_of
from rollcage_workflow.picture import picture as picture_of
from rollcage_workflow.running import run as run_plan
from rollcage_workflow.signals import Signals
from rollcage_workflow.state import Execution, execution, executions

__all__ = ["workflow"]

PlanArgument = Annotated[
    Path, typer.Argument(metavar="PLAN", help="A .yaml or .json file.", show_default=False)
]
ToolsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--tools",
        metavar="MODULE[:NAME]",
        help="The module with the tools; by default tool.rollcage.tools in pyproject.toml.",
        show_default=False,
    ),
]
WorkflowOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--workflow",
        metavar="PLAN",
        help="The file of a plan that a workflow: step names, by the file's name without ending.",
        show_default=False,
    ),
]


class Divergence(StrEnum):
    """What happens to done writes that a changed plan leaves behind."""

    HALT = "halt"
    UNDO = "undo"
    WARN = "warn"


workflow = typer.Typer(
    name="workflow",
    help="Run plans: checked first, resumed after a crash.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@workflow.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Made if needed.")] = Path(),
) -> None:
    """Write an example: a plan and its tools."""
    files = {folder / "orders.yaml": PLAN, folder / "orders_tools.py": TOOLS}
    there = [str(path) for path in files if path.exists()]
    if there:
        raise UsageError(f"{', '.join(there)} is there already; name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")
        console().print(f"wrote {visible(str(path))}")
    inside = "" if folder == Path() else f"cd {folder} && "
    console().print(f"Run it: {inside}rollcage workflow run orders.yaml first --tools orders_tools")


@workflow.command()
def check(
    plan: PlanArgument,
    tools: ToolsOption = None,
    workflows: WorkflowOption = None,
    as_json: JsonOption = OFF,
) -> None:
    """Find all problems of a plan. Exits with 1 if there are any."""
    try:
        checked = _checked(plan, tools, workflows)
    except PlanInvalid as error:
        found = [dataclasses.asdict(finding) for finding in error.findings]
        if as_json:
            print_json({"findings": found})
        else:
            for finding in error.findings:
                _print_finding(visible(str(finding)))
        raise typer.Exit(DIFFERENT) from None
    skips = [
        {"step": f"{block.at}.{node.name}", "to": node.step.next.to, "skips": sorted(node.skips)}
        for block in blocks_in(checked.graph)
        for node in nodes_of(block.units)
        if node.skips and node.step.next is not None
    ]
    if as_json:
        fields = {"name": checked.plan.name, "digest": checked.plan.digest, "jumps": skips}
        print_json({"findings": [], **fields})
        return
    for each in skips:
        text = f"{each['step']} may go on at {each['to']}, without {', '.join(each['skips'])}"
        _print_finding(visible(text))
    console().print(f"{visible(checked.plan.name)}: nothing wrong")


@workflow.command()
def run(
    plan: PlanArgument,
    id: IdArgument,  # noqa: A002 - what it is called everywhere
    tools: ToolsOption = None,
    workflows: WorkflowOption = None,
    given: Annotated[
        list[str] | None,
        typer.Option("--input", metavar="NAME=JSON", help="An input.", show_default=False),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Run a failed execution once more.")] = OFF,
    on_divergence: Annotated[
        Divergence,
        typer.Option(
            "--on-divergence",
            help="If the plan was changed before done writes: take them back, or let them stand.",
        ),
    ] = Divergence.HALT,
    start: FromOption = "",
    results: GivenOption = None,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = OFF,
) -> None:
    """Start an execution of a plan, or continue it."""
    checked = _checked(plan, tools, workflows)
    inputs = given_inputs(given) if given else None

    options: dict[str, Any] = {"id": id, "store": store, "again": again, "start": start}
    options |= {"given": given_results(results), "on_divergence": on_divergence.value}
    if as_json:
        found = asyncio.run(run_plan(checked, inputs, **options))
    else:
        with ProgressTable(console(error=True)) as progress:
            found = asyncio.run(run_plan(checked, inputs, on_step=progress.on_step, **options))
    _show(found, store, as_json=as_json)


@workflow.command(name="list")
def list_(
    limit: Annotated[
        int, typer.Option(min=1, metavar="N", help="At most this many, the newest first.")
    ] = 50,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = OFF,
) -> None:
    """List the newest executions, each with its state."""
    own = open_store(store)
    found = executions(own, limit=limit)
    if as_json:
        print_json({"executions": [_data(each, steps=False) for each in found]})
        return
    table = Table("id", "plan", "status", "attempts", "waits for", box=None, pad_edge=False)
    for each in found:
        row = (each.id, each.plan, each.status, str(each.attempts), each.waits)
        table.add_row(*(Text(visible(text)) for text in row))
    console().print(table if found else f"No executions in {visible(store)}.")


@workflow.command()
def show(id: IdArgument, store: StoreOption = DEFAULT_STORE, as_json: JsonOption = OFF) -> None:  # noqa: A002
    """Show the state of an execution, with its steps."""
    _show(_found(store, id), store, as_json=as_json)


@workflow.command()
def signal(
    id: IdArgument,  # noqa: A002
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the signal.")],
    data: Annotated[str, typer.Option(metavar="JSON", help="What it brings.")] = "null",
    by: Annotated[str | None, typer.Option(metavar="NAME", help="Who sends it.")] = None,
    once: Annotated[
        str, typer.Option(metavar="KEY", help="Send the signal only once for each key.")
    ] = "",
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = OFF,
) -> None:
    """Send an execution a signal.

    Each wait takes the next signal of its name.

    Exits with 1 if it was sent before under the same --once.
    """
    _found(store, id)
    value, sender = given_json(data, "--data"), who(by)
    sent = Signals(open_store(store), id).send(name, value, by=sender, once=once)
    if as_json:
        print_json({"id": id, "signal": name, "sent": sent})
    elif sent:
        console().print(f"sent; go on with it: rollcage workflow run PLAN {visible(id)}")
    else:
        console().print(f"{visible(name)} was sent as {visible(once)} before: nothing changed")
    if not sent:
        raise typer.Exit(DIFFERENT)


@workflow.command()
def picture(
    plan: Annotated[
        Path | None,
        typer.Argument(
            metavar="[PLAN]",
            help="A .yaml or .json file; not needed with --id.",
            show_default=False,
        ),
    ] = None,
    tools: ToolsOption = None,
    workflows: WorkflowOption = None,
    id: Annotated[str | None, typer.Option("--id", help="Colour by this execution.")] = None,  # noqa: A002
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Print a plan as a Mermaid flowchart.

    For an execution, the plan of its newest attempt is in the store.
    """
    found = None if id is None else _found(store, id)
    if plan is not None:
        outline = outline_of(_checked(plan, tools, workflows))
    elif found is not None:
        outline = _kept(store, found)
    else:
        raise UsageError("name the file of a plan, or an execution: --id ID")
    typer.echo(picture_of(outline, found), nl=False)


def _kept(store: str, found: Execution) -> Outline:
    """Return the outline of an execution's plan, as kept at the execution's beginning."""
    outline = kept_outline(open_store(store), found.digest)
    if outline is None:
        raise UsageError(
            f"{visible(store)} has no outline of the plan {visible(found.plan)}: the execution "
            f"began under an older version, or the plan has more than 5,000 steps; name the file: "
            f"rollcage workflow picture PLAN --id "
            f"{visible(found.id)}"
        )
    return outline


def _found(store: str, id: str) -> Execution:  # noqa: A002
    own = open_store(store)
    found = execution(own, id)
    if found.plan:
        return found
    started = Commands(own).started(id)
    if started is None:
        raise UsageError(
            f"{visible(store)} has no execution {visible(id)!r}; see: rollcage workflow list"
            f"{store_option(own)}"
        )
    return dataclasses.replace(found, plan=started.plan)  # no worker has taken it yet


def _checked(plan: Path, tools: list[str] | None, workflows: Sequence[Path] | None) -> Checked:
    loaded: list[Any] = []
    for each in load_tools(tools):
        if isinstance(each, Contract):
            raise UsageError(f"{each.name} is a framework's tool; plans call functions")
        loaded.append(each)
    return check_plan(str(plan), loaded, {path.stem: str(path) for path in workflows or ()})


def _print_finding(text: str) -> None:
    """Print a finding: on a terminal with its further lines indented, elsewhere as one line."""
    if console().is_terminal:
        text = textwrap.fill(
            text,
            console().width,
            subsequent_indent="    ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    console().print(Text(text), soft_wrap=True)


def _show(found: Execution, store: str, *, as_json: bool) -> None:
    if as_json:
        print_json(_data(found, steps=True))
        return
    console().print(Text(visible(f"{found.id}  {found.plan}  {found.status}")))
    if found.waits:
        console().print(Text(visible(found.waits)), soft_wrap=True)
    if found.error:
        at = f"step {found.error['step']}: " if found.error["step"] else ""
        message = f"{at}{found.error['type']}: {found.error['message']}"
        console().print(Text(visible(message)), soft_wrap=True)
    if found.status == "completed":
        text = orjson.dumps(found.output, option=orjson.OPT_INDENT_2).decode()
        for line in text.splitlines():
            console().print(Text(visible(line)), soft_wrap=True)
    table = Table("step", "calls", "state", "seconds", box=None, pad_edge=False)
    for step in found.steps:
        took = "" if step.duration is None else f"{step.duration:.3f}"
        row = (step.path, step.name, step.state, took)
        table.add_row(*(Text(visible(text)) for text in row))
    console().print(table)
    if commands := commands_for(found, open_store(store)):
        console().print("To let it go on:")
        for command in commands:
            console().print(Text(visible(f"  {command}")), soft_wrap=True)


def _data(found: Execution, *, steps: bool) -> dict[str, Any]:
    data = {name: each for name, each in dataclasses.asdict(found).items() if name != "_steps"}
    if steps:
        data["steps"] = [dataclasses.asdict(step) for step in found.steps]
    return data


add_commands(workflow)
