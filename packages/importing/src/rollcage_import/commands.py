"""`rollcage import`: other tools' recordings, as runs."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Final

import typer
from rollcage_cli.errors import UsageError
from rollcage_cli.options import DEFAULT_STORE, OFF, JsonOption, StoreOption
from rollcage_cli.output import console, counted, print_json, visible
from rollcage_cli.tools import contracts_of, load_tools

from rollcage_import.files import FORMATS, Format
from rollcage_import.old import import_old_runs
from rollcage_import.recording import ImportedRun, import_file

__all__ = ["import_"]

_OLD: Final = "rollcage/1"
_ALL: Final = (*FORMATS, _OLD)


def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", show_default=False)],
    format_: Annotated[
        str | None,
        typer.Option("--format", metavar="|".join(_ALL), help="By default, its content shows."),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(metavar="JOB", help="The job's name; by default, the agent's name."),
    ] = None,
    tools: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODULE[:NAME]",
            help="Tools whose declarations say their effects, as a trace does not (repeatable).",
        ),
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = OFF,
) -> None:
    """Import runs that another tool recorded.

    They can be shown, forked, backtested and replayed offline. FILE holds OpenTelemetry spans as
    OTLP (JSON, JSON lines or protobuf), or an export of Langfuse or LangSmith (JSON, JSON lines).
    Each trace becomes a run. Its effects are not known, so no session resumes it, and nothing of it
    can be undone. Credentials are redacted.

    A folder is a store of an earlier version (rollcage/1): each of its runs becomes one log, with
    the runs that it continues, and is resumed, undone and shown like any other.
    """
    if format_ == _OLD or (format_ is None and file.is_dir()):
        _import_old(file, store, as_json=as_json)
        return
    if format_ not in (None, *FORMATS):
        raise UsageError(f"--format {visible(str(format_))} is none of {', '.join(_ALL)}")
    wanted: Format | None = next((each for each in FORMATS if each == format_), None)
    declared = contracts_of(load_tools(tools))
    found = import_file(file, format=wanted, name=name, store=store, tools=declared)
    if as_json:
        print_json(dataclasses.asdict(found))
    else:
        for run in found.runs:
            _print(run)
        for why, count in found.skipped.items():
            console().print(f"skipped: {visible(why)}: {count}", markup=False)
        new = sum(not run.there for run in found.runs)
        console().print(f"{counted(new, 'run')} imported from {found.format}", markup=False)


def _import_old(where: Path, store: str, *, as_json: bool) -> None:
    found = import_old_runs(where, store=store)
    if as_json:
        print_json({"format": _OLD, "runs": [dataclasses.asdict(each) for each in found]})
        return
    for each in found:
        if each.refused:
            said = "was imported before" if each.there else each.refused
            console().print(
                f"{each.old}  {visible(each.name)}: {visible(said)}", markup=False, soft_wrap=True
            )
            continue
        said = f"{each.run}  {visible(each.name)}: {counted(each.generations, 'run')} of the old"
        console().print(f"{said} format", markup=False, soft_wrap=True)
        for why, count in each.left_out.items():
            console().print(f"  left out: {visible(why)}: {count}", markup=False, soft_wrap=True)
    new = sum(not each.refused for each in found)
    console().print(f"{counted(new, 'log')} imported from {_OLD}", markup=False)
    if any(each.refused and not each.there for each in found):
        raise typer.Exit(1)


def _print(run: ImportedRun) -> None:
    result = "was imported before" if run.there else counted(run.steps or 0, "step")
    console().print(f"{run.run}  {visible(run.name)}: {result}", markup=False, soft_wrap=True)
    for why, count in run.skipped.items():
        console().print(f"  no step: {visible(why)}: {count}", markup=False, soft_wrap=True)
