"""`rollcage prune`: remove the traces of old runs; the runs still count as done."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text
from rollcage import Store
from rollcage_views import time_text

from rollcage_cli.lookup import find, named, opened
from rollcage_cli.moments import moment
from rollcage_cli.options import DEFAULT_STORE, OFF, JsonOption, StoreOption, who
from rollcage_cli.output import console, counted, print_json, visible
from rollcage_cli.table import Table

if TYPE_CHECKING:
    from rollcage_stores.prune import Choice

__all__ = ["prune"]


def prune(
    older: Annotated[
        str,
        typer.Option(metavar="TIME", help="Runs that ended before this: 90d ago, or a date."),
    ],
    hold: Annotated[
        list[str] | None,
        typer.Option(metavar="RUN", help="Keep this run (repeatable)."),
    ] = None,
    keep_skeleton: Annotated[
        bool,
        typer.Option("--keep-skeleton", help="Keep the list of calls, without any value."),
    ] = OFF,
    yes: Annotated[
        bool, typer.Option("--yes", help="Remove the runs; without --yes, this is a dry run.")
    ] = OFF,
    by: Annotated[
        str | None, typer.Option(metavar="NAME", help="Who does this (by default, this user).")
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = OFF,
) -> None:
    """Remove the traces of old runs.

    Their large values and approvals are removed, too. A stub of each stays: its name, input,
    status, its times, the count and hash of its lines, who removed it and when. So its job still
    counts as done, and the run can't be resumed, undone or replayed. Without --yes, only shows the
    runs to remove. A run stays if it is in use, if the next session of its job would resume it, or
    if the outcome of a step is unknown.
    """
    before = moment(older, datetime.now(UTC))
    from rollcage_stores.prune import prune as prune_runs  # imported only for this command

    own = opened(store, needed=True)
    held, name = _held(own, store, hold or ()), who(by, required=False)
    done = prune_runs(own, before, hold=held, by=name, keep_skeleton=keep_skeleton, dry=not yes)
    chosen = done.chosen[::-1]
    going = [each for each in chosen if not each.stays]
    if as_json:
        print_json(
            {
                "store": named(own, store),
                "dry_run": not yes,
                "pruned": [_data(each) for each in going],
                "stay": [_data(each) for each in chosen if each.stays],
                "blobs": done.blobs,
            }
        )
        return
    _print(chosen, done.blobs, done=yes)


def _held(own: Store, store: str, references: Sequence[str]) -> list[str]:
    """Return the runs to keep.

    Raises:
        UsageError: a run is not in the store.
    """
    held: list[str] = []
    for reference in references:
        found = find(store, reference)
        own.ends(found.run)
        held.append(found.run)
    return held


def _data(each: Choice) -> dict[str, Any]:
    info = each.info
    data = {"run": info.run, "name": info.name, "status": info.status or "unfinished"}
    if each.stays:
        return data | {"reason": each.stays, "helps": each.helps}
    return data | {"lines": each.lines, "bytes": each.size}


def _print(chosen: Sequence[Choice], dropped: int | None, *, done: bool) -> None:
    out = console()
    going = [each for each in chosen if not each.stays]
    if chosen:
        table = Table()
        for title in ("run", "name", "status", "started"):
            table.add_column(title, no_wrap=True)
        table.add_column("lines", right=True, no_wrap=True)
        table.add_column("what")
        goes = "pruned" if done else "goes"
        for each in chosen:
            table.add_row(
                Text(visible(each.info.run)),
                Text(visible(each.info.name)),
                Text(visible(each.info.status or "unfinished")),
                Text(time_text(each.info.begun)),
                Text(str(each.lines or "")),
                Text("stays", style="yellow") if each.stays else Text(goes, style="green"),
            )
        out.print(table)
    for each in chosen:
        if each.stays:
            out.print(f"{each.info.run} stays: {visible(each.stays)}", soft_wrap=True)
            if each.helps:
                out.print(f"  to let it be removed: {visible(each.helps)}", soft_wrap=True)
    lines = sum(each.lines for each in going)
    counts = f"{counted(len(going), 'run')} with {counted(lines, 'line')}"
    if not done:
        helps = (
            " Nothing was removed: this is a dry run; pass --yes to remove them." if going else ""
        )
        out.print(f"{counts} would go, {counted(len(chosen) - len(going), 'run')} stay.{helps}")
        return
    values = "" if dropped is None else f", {counted(dropped, 'large value')} removed"
    out.print(f"{counts} pruned{values}.")
    if dropped is None:
        out.print(
            "Large values that no run needs any more are removed by the next prune, when no run is "
            "in use.",
            soft_wrap=True,
        )
