"""`rollcage backtest`: the effect that a change would have had on many recorded runs."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final, TextIO

import typer
from rollcage_cli.errors import CORRUPT, DIFFERENT, OK, UsageError
from rollcage_cli.files import STDOUT, page_file
from rollcage_cli.forks import Program, asked_fork
from rollcage_cli.lookup import find
from rollcage_cli.moments import moment
from rollcage_cli.options import DEFAULT_STORE, OFF, ForceOption, JsonOption, StoreOption
from rollcage_cli.output import console, print_json
from rollcage_cli.tools import contracts_of, load_tools

from rollcage_policy import Policy, Rerun
from rollcage_policy.commands.backtest.rows import (
    BacktestRow,
    forked_row,
    judged_row,
    over,
)
from rollcage_policy.commands.backtest.telling import as_data, print_table, totals, write_page
from rollcage_policy.commands.meant import Recorded, runs_meant
from rollcage_policy.commands.options import ResolveOption, UserInputOption

__all__ = ["backtest"]

_NEWEST: Final = 50


def backtest(
    program: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- PROGRAM]...",
            help="The program that made the runs; not for --policy, which runs nothing.",
            show_default=False,
        ),
    ] = None,
    policy: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What would this policy have decided?")
    ] = None,
    tools: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODULE[:TOOL]",
            help="What, with these tools? With --policy: the contracts of today's tools.",
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="What, with this model?")
    ] = None,
    run: Annotated[
        list[str] | None, typer.Option("--only", metavar="RUN", help="Only this run (repeatable).")
    ] = None,
    name: Annotated[
        list[str] | None, typer.Option(metavar="GLOB", help="Only runs of these jobs.")
    ] = None,
    status: Annotated[
        str | None, typer.Option(metavar="STATUS", help="Only runs with this status.")
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only runs since then: 7d, or a date.")
    ] = None,
    limit: Annotated[
        int, typer.Option(min=0, help="Only this many runs, the newest first; 0 takes all.")
    ] = _NEWEST,
    answer: Annotated[
        list[str] | None,
        typer.Option(metavar="TOOL=JSON", help="The result of new calls of this tool."),
    ] = None,
    function: Annotated[
        str | None,
        typer.Option(
            "--run", metavar="MODULE:FUNCTION", help="A function in place of the program."
        ),
    ] = None,
    user_input: UserInputOption = None,
    resolve: ResolveOption = OFF,
    max_blocked: Annotated[
        int | None, typer.Option(min=0, help="Fail above this many newly blocked calls.")
    ] = None,
    max_asked: Annotated[
        int | None, typer.Option(min=0, help="Fail above this many new approvals.")
    ] = None,
    max_newly_allowed: Annotated[
        int | None, typer.Option(min=0, help="Fail above this many newly allowed calls.")
    ] = None,
    max_unknown: Annotated[
        int | None,
        typer.Option(
            min=0, help="Fail above this many calls that can't be judged [0 with one of the above]."
        ),
    ] = None,
    max_writes: Annotated[
        int | None, typer.Option(min=0, help="Fail above this many new writes.")
    ] = None,
    max_failed: Annotated[
        int | None, typer.Option(min=0, help="Fail above this many runs that fail.")
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Write a page to this file, too; - is stdout."),
    ] = None,
    force: ForceOption = OFF,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = OFF,
) -> None:
    """Backtest a change on many recorded runs.

    The change is a policy, tools, a model, or the code. A policy is evaluated on the recorded
    calls: nothing runs. For any other change the program runs once for each run, as a fork of it
    (see `rollcage fork`): no new write is made. Forks, replays and runs that were resumed since are
    left out. Exits with 1 if a --max-… is exceeded, with 3 if a run can't be tested.
    """
    limits = {
        "blocked": max_blocked, "asked": max_asked, "newly_allowed": max_newly_allowed,
        "unknown": max_unknown, "writes": max_writes, "failed": max_failed,
    }  # fmt: skip
    if max_unknown is None and not {max_blocked, max_asked, max_newly_allowed} <= {None}:
        limits["unknown"] = 0  # a call that can't be judged may be any of these
    chosen = _chosen(store, run or (), name or (), status, since)
    chosen = chosen[-limit:] if limit else chosen
    if as_json and report == STDOUT:
        raise UsageError("--html - and --json both write to stdout: name a file")
    with contextlib.ExitStack() as files:  # before the slow part
        page = None if report is None else files.enter_context(page_file(report, force=force))
        if policy is not None:
            if program or function or model or answer:
                raise UsageError("--policy runs nothing: leave the program and --model out")
            contracts = contracts_of(load_tools(tools))
            rerun = Rerun(
                Policy.load(policy), tools=contracts, user_input=user_input, resolver=resolve
            )
            rows = over(chosen, functools.partial(judged_row, rerun=rerun))
            change = f"policy {rerun.policy.name or policy.name}"
        else:
            made_by = Program.of(program or (), function)

            def fork(row: BacktestRow, recorded: Recorded) -> None:
                found = find(store, recorded.run)
                asked = asked_fork(found, model=model, tools=tools or (), answers=answer or ())
                forked_row(row, asked, made_by)

            rows = over(chosen, fork)
            change = f"model {model}" if model else f"tools {', '.join(tools)}" if tools else "code"
        code = _tell([*rows], change, limits, page, as_json=as_json)
    raise typer.Exit(code)


def _chosen(
    store: str,
    references: Sequence[str],
    names: Sequence[str],
    status: str | None,
    since: str | None,
) -> list[Recorded]:
    """Return the chosen runs, the oldest first."""
    if references:
        return runs_meant(store, references, ())
    from_then = None if since is None else moment(since, datetime.now(UTC))
    return [
        each
        for each in runs_meant(store, (), names)
        if each.info is not None
        and (status is None or (each.info.status or "unfinished") == status)
        and (from_then is None or each.info.begun >= from_then)
    ]


def _tell(
    rows: list[BacktestRow],
    change: str,
    limits: dict[str, int | None],
    page: TextIO | None,
    *,
    as_json: bool,
) -> int:
    """Print the result; return the exit code."""
    sums = totals(rows)
    over_limit = {
        what: most for what, most in limits.items() if most is not None and sums[what] > most
    }
    if page is not None:
        write_page(page, rows, change, over_limit)
    if as_json:
        print_json(as_data(rows, change, over_limit))
    else:  # next to a page on stdout, for a person
        print_table(console(error=page is sys.stdout), rows, change, over_limit)
    if any(row.error for row in rows):
        return CORRUPT
    return DIFFERENT if over_limit else OK
