"""`rollcage workflow start|pause|resume|cancel|...`: commands for workers, put into the store."""

from __future__ import annotations

import datetime as dt
import re
import time
from typing import Annotated, Any, Final

import typer
from rich.table import Table
from rich.text import Text
from rollcage import open_store
from rollcage_cli.errors import DIFFERENT, UsageError
from rollcage_cli.options import DEFAULT_STORE, OFF, JsonOption, StoreOption, who
from rollcage_cli.output import console, print_json, visible

from rollcage_workflow.commands.given import (
    FromOption,
    GivenOption,
    IdArgument,
    given_inputs,
    given_results,
)
from rollcage_workflow.engine.reconcile import reconcile as reconcile_store
from rollcage_workflow.engine.schedules import Entry, Progress, Schedule, Schedules
from rollcage_workflow.errors import WorkflowError
from rollcage_workflow.orders import Commands
from rollcage_workflow.state import Execution

__all__ = ["add_commands"]

_SPANS: Final = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_SPAN: Final = re.compile(r"(\d{1,9})([smhd]?)")

ByOption = Annotated[
    str | None, typer.Option("--by", metavar="NAME", help="Who does this (by default, this user).")
]
ReasonOption = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why.")]
InputOption = Annotated[
    list[str] | None,
    typer.Option("--input", metavar="NAME=JSON", help="An input.", show_default=False),
]
PlanName = Annotated[
    str, typer.Argument(metavar="PLAN", help="The name of a plan that workers have.")
]


def add_commands(workflow: typer.Typer) -> None:
    """Add the commands for workers to `rollcage workflow`."""
    for each in (start, pause, resume, cancel, reconcile, schedule, schedules, unschedule):
        workflow.command()(each)


def start(
    plan: PlanName,
    id: IdArgument,  # noqa: A002 - what it is called everywhere
    given: InputOption = None,
    at: Annotated[
        str | None,
        typer.Option(
            "--at", metavar="TIME", help="Start no earlier: 2027-01-31T08:00:00Z, or 90s."
        ),
    ] = None,
    digest: Annotated[
        str, typer.Option(metavar="SHA256", help="Digest of the plan, to accept no other version.")
    ] = "",
    first: FromOption = "",
    results: GivenOption = None,
    by: ByOption = None,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = OFF,
) -> None:
    """Have a worker start an execution. Exits with 1 if its id was started before."""
    commands = Commands(open_store(store))
    when = 0.0 if at is None else _time(at)
    inputs = given_inputs(given) if given else {}
    is_new = commands.start(
        plan,
        inputs,
        id=id,
        by=who(by),
        at=when,
        digest=digest,
        start=first,
        given=given_results(results),
    )
    if as_json:
        print_json({"id": id, "plan": plan, "started": is_new})
    elif is_new:
        console().print(f"{visible(id)} is asked for: rollcage workflow show {visible(id)}")
    else:
        console().print(f"{visible(id)} was started before: nothing changed")
    if not is_new:
        raise typer.Exit(DIFFERENT)


def pause(
    id: IdArgument,  # noqa: A002
    reason: ReasonOption = "",
    by: ByOption = None,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = OFF,
) -> None:
    """Pause an execution: no step begins; steps in flight end."""
    found = Commands(open_store(store)).pause(id, by=who(by), reason=reason)
    _print_state(found, f"to go on: rollcage workflow resume {visible(id)}", as_json=as_json)


def resume(
    id: IdArgument,  # noqa: A002
    again: Annotated[bool, typer.Option("--again", help="Run a failed execution once more.")] = OFF,
    by: ByOption = None,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = OFF,
) -> None:
    """End an execution's pause; a worker makes the next attempt."""
    key = Commands(open_store(store)).resume(id, by=who(by), again=again)
    if as_json:
        print_json({"id": id, "command": key})
    else:
        console().print(f"{visible(id)} goes on when a worker takes it")


def cancel(
    id: IdArgument,  # noqa: A002
    rollback: Annotated[
        bool, typer.Option("--rollback", help="Have a worker undo its effects.")
    ] = OFF,
    reason: ReasonOption = "",
    by: ByOption = None,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = OFF,
) -> None:
    """End an execution permanently; steps in flight end."""
    commands = Commands(open_store(store))
    found = commands.cancel(id, by=who(by), reason=reason, rollback=rollback)
    more = "a worker undoes its effects" if rollback else ""
    _print_state(found, more, as_json=as_json)


def reconcile(store: StoreOption = DEFAULT_STORE, as_json: JsonOption = OFF) -> None:
    """Have a worker continue executions that were cut off or wait."""
    found = reconcile_store(open_store(store))
    if as_json:
        print_json({"woken": found})
    else:
        for id_ in found:
            console().print(Text(visible(id_)), soft_wrap=True)
        console().print(f"{len(found)} go on when a worker takes them")


def schedule(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the schedule.")],
    plan: PlanName,
    cron: Annotated[str, typer.Argument(metavar="CRON", help="When: '0 3 * * *'.")],
    given: InputOption = None,
    zone: Annotated[str, typer.Option(metavar="ZONE", help="Europe/Berlin; UTC by default.")] = "",
    missed: Annotated[
        str,
        typer.Option(
            metavar="newest|all|none",
            help="Which times to start, if several have passed while no worker ran.",
        ),
    ] = "newest",
    catchup: Annotated[
        str,
        typer.Option(metavar="SPAN", help="Start no time that is older: 90, 30m, 12h or 7d."),
    ] = "1d",
    overlap: Annotated[
        str,
        typer.Option(
            metavar="skip|allow",
            help="Whether to start a time while the execution before it is not over.",
        ),
    ] = "skip",
    by: ByOption = None,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Have workers start a plan repeatedly."""
    inputs = given_inputs(given) if given else {}
    how: dict[str, Any] = {"missed": missed, "catchup": _span(catchup), "overlap": overlap}
    made = Schedule(name, plan, cron, who(by), inputs, zone, **how)
    Schedules(open_store(store)).put(made)
    console().print(f"{visible(name)} is scheduled: {visible(cron)} {visible(zone or 'UTC')}")


def schedules(store: StoreOption = DEFAULT_STORE, as_json: JsonOption = OFF) -> None:
    """List the schedules, and the times that were left out.

    Exits with 1 if the document of one is damaged.
    """
    own = Schedules(open_store(store))
    entries: list[Entry] = []
    damaged: dict[str, str] = {}
    for name in own.names():
        try:
            entry = own.entry(name)
        except WorkflowError as error:
            damaged[name] = str(error)
        else:
            entries += [] if entry is None else [entry]
    if as_json:
        print_json({"schedules": [_schedule_data(each) for each in entries], "damaged": damaged})
    else:
        titles = ("name", "plan", "cron", "zone", "by", "missed", "overlap", "left out")
        table = Table(*titles, box=None, pad_edge=False)
        for each in entries:
            table.add_row(*(Text(visible(text)) for text in _schedule_row(each)))
        console().print(table if entries else "No schedules.")
        for each in entries:
            if each.progress is not None and each.progress.why:
                text = f"{each.schedule.name}: the last one was left out: {each.progress.why}"
                console().print(Text(visible(text)), soft_wrap=True)
        for message in damaged.values():
            console(error=True).print(Text(visible(message)), soft_wrap=True)
    if damaged:
        raise typer.Exit(DIFFERENT)


def _schedule_row(entry: Entry) -> tuple[str, ...]:
    each, progress = entry.schedule, entry.progress
    left_out = "0"
    if progress is not None:
        left_out = f"{progress.left_out}" + "+" * progress.is_more
    zone = each.zone or "UTC"
    return (each.name, each.plan, each.cron, zone, each.by, each.missed, each.overlap, left_out)


def _schedule_data(entry: Entry) -> dict[str, Any]:
    each, progress = entry.schedule, entry.progress or Progress(0)
    return {
        "name": each.name,
        "plan": each.plan,
        "cron": each.cron,
        "zone": each.zone or "UTC",
        "by": each.by,
        "missed": each.missed,
        "catchup": each.catchup,
        "overlap": each.overlap,
        "started": progress.started,
        "left_out": progress.left_out,
        "more": progress.is_more,
        "why": progress.why,
    }


def unschedule(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the schedule.")],
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Remove a schedule; executions that it has started continue."""
    if not Schedules(open_store(store)).drop(name):
        raise UsageError(f"there is no schedule {visible(name)!r}: rollcage workflow schedules")
    console().print(f"{visible(name)} is removed")


def _print_state(found: Execution, more: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"id": found.id, "status": found.status, "waits": found.waits})
        return
    message = f"{found.id} is {found.status}"
    if found.status == "running":
        message += ": it ends at its next step"
    console().print(Text(visible(f"{message}; {more}" if more else message)), soft_wrap=True)


def _span(text: str) -> float:
    """Return a span in seconds."""
    found = _SPAN.fullmatch(text)
    if found is None:
        raise UsageError(f"--catchup {visible(text)}: give it as 90, 30m, 12h or 7d")
    return int(found[1]) * _SPANS[found[2]]


def _time(text: str) -> float:
    """Return a time as Unix seconds: from ISO 8601 with an offset, or seconds from now."""
    if text.endswith("s") and text[:-1].isdigit():
        return time.time() + int(text[:-1])
    try:
        found = dt.datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise UsageError(f"--at {visible(text)}: give it as 2027-01-31T08:00:00Z, or as 90s")
    return found.timestamp()
