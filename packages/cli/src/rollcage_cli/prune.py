"""`rollcage prune`: removes the traces of old runs; that they were done stays known."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.text import Text
from rollcage.store import without_password
from rollcage_views import time_text
from rollcage_views.both import Both, info_of, open_store

from rollcage_cli.errors import UsageError
from rollcage_cli.lookup import find
from rollcage_cli.moments import moment
from rollcage_cli.options import DEFAULT_STORE, OFF, JsonOption, StoreOption, who
from rollcage_cli.output import console, counted, print_json, visible
from rollcage_cli.prunable import Choice, choices, drop_unused, prune_run
from rollcage_cli.table import Table

__all__ = ["prune"]


def prune(
    older: Annotated[
        str,
        typer.Option(metavar="TIME", help="Runs that ended before this: 90d ago, or a date."),
    ],
    hold: Annotated[
        list[str] | None,
        typer.Option(metavar="RUN", help="Keep this run, and all that it builds on (repeatable)."),
    ] = None,
    keep_skeleton: Annotated[
        bool,
        typer.Option("--keep-skeleton", help="Leave which calls there were, without any value."),
    ] = OFF,
    yes: Annotated[
        bool, typer.Option("--yes", help="Remove them; without it, this is a dry run.")
    ] = OFF,
    by: Annotated[
        str | None, typer.Option(metavar="NAME", help="In whose name (this user, by default).")
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = OFF,
) -> None:
    """Remove the traces of old runs.

    Their large values and approvals go, too. A stub of each stays: its name, input, status, when it
    ran, the count and hash of its lines, who removed it and when. So its job still counts as done,
    and is not resumed, undone or replayed. Without --yes, only shows what would go. A run stays if
    it is in use, if the next session of its job would resume it, if a step of it has an unknown
    outcome, or if a run that stays builds on it.
    """
    before = moment(older, datetime.now(UTC))
    own = open_store(store)
    if not own.exists():
        raise UsageError(
            f"there is no store at {visible(without_password(store))}; say where with --store"
        )
    held, name = _held(own, store, hold or ()), who(by, required=False)
    chosen = choices(own.old, before, held)
    going = [each for each in chosen if not each.stays]
    for each in reversed(going) if yes else ():  # what builds on a run goes before it
        run, now = each.info.run, time.time_ns() // 1000
        prune_run(own.old, run, by=name, time=now, keep_skeleton=keep_skeleton)
    dropped = drop_unused(own.old) if yes else 0
    theirs, also = _of_heart(own, before, held, by=name, keep_skeleton=keep_skeleton, yes=yes)
    chosen += theirs
    going = [each for each in chosen if not each.stays]
    dropped = None if dropped is None or also is None else dropped + also
    if as_json:
        print_json(
            {
                "store": without_password(store),
                "dry_run": not yes,
                "pruned": [_data(each) for each in going],
                "stay": [_data(each) for each in chosen if each.stays],
                "blobs": dropped,
            }
        )
        return
    _print(chosen, dropped, done=yes)


def _of_heart(
    own: Both, before: int, held: Sequence[str], *, by: str, keep_skeleton: bool, yes: bool
) -> tuple[list[Choice], int | None]:
    """The runs of the heart, oldest first; and how many large values went: None while one runs."""
    if own.heart is None:
        return [], 0
    from rollcage_stores.prune import prune as prune_heart

    done = prune_heart(
        own.heart, before, hold=held, by=by, keep_skeleton=keep_skeleton, dry=not yes
    )
    chosen = [
        Choice(info_of(each.info), each.lines, each.size, each.stays, each.helps)
        for each in reversed(done.chosen)
    ]
    return chosen, done.blobs


def _held(own: Both, store: str, references: Sequence[str]) -> list[str]:
    """The runs that are to stay; what they build on does, too.

    Raises:
        UsageError: one is not in the store.
    """
    held: list[str] = []
    for reference in references:
        found = find(store, reference)
        own.info(found.run)
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
                Text(time_text(each.info.time)),
                Text(str(each.lines or "")),
                Text("stays", style="yellow") if each.stays else Text(goes, style="green"),
            )
        out.print(table)
    for each in chosen:
        if each.stays:
            out.print(f"{each.info.run} stays: {visible(each.stays)}", soft_wrap=True)
            if each.helps:
                out.print(f"  to let it go: {visible(each.helps)}", soft_wrap=True)
    lines = sum(each.lines for each in going)
    counts = f"{counted(len(going), 'run')} with {counted(lines, 'line')}"
    if not done:
        helps = " Nothing was removed: this is a dry run, and --yes removes them." if going else ""
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
