"""`rollcage repair`: makes the store's index again from the traces, and says what it found."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import typer
from rich.text import Text
from rollcage.store import without_password
from rollcage_views.both import Both, open_store

from rollcage_cli.errors import CORRUPT, UsageError
from rollcage_cli.options import DEFAULT_STORE, OFF, JsonOption, StoreOption
from rollcage_cli.output import console, counted, print_json, visible

if TYPE_CHECKING:
    from rollcage_stores.doctor import Finding

__all__ = ["repair"]


def repair(store: StoreOption = DEFAULT_STORE, as_json: JsonOption = OFF) -> None:
    """Rebuild the index of a store from its traces.

    For an index that is damaged, lost or out of date. No trace is changed. Sessions do the same on
    their own, and need no repair; it says more. Exits with 3 where a trace can't be read whose run
    the index has lost.
    """
    own = open_store(store)
    if not own.exists():
        raise UsageError(
            f"there is no store at {visible(without_password(store))}; say where with --store"
        )
    found = own.old.repair()
    mended = _of_heart(own)
    if as_json:
        data = {"store": without_password(store), **dataclasses.asdict(found)}
        print_json(data | {"mended": [dataclasses.asdict(each) for each in mended]})
    else:
        out = console()
        lines = ", ".join(map(str, found.damaged))
        if found.damaged:
            out.print(f"damaged lines of the index, left out: {lines}", soft_wrap=True)
        for run in found.lost:
            out.print(f"run {run} was missing, and is in the index again", soft_wrap=True)
        for run in found.outdated:
            out.print(f"the index was out of date about run {run}", soft_wrap=True)
        for run in found.stubs:
            out.print(f"what is left of run {run}, which was pruned, was damaged", soft_wrap=True)
        for name in found.left:
            out.print(f"removed what a killed process left: {visible(name)}", soft_wrap=True)
        for run in found.unattested:
            out.print(
                f"run {run} ended, and only its own last lines attest that it is whole",
                soft_wrap=True,
            )
        for message in found.unreadable:
            out.print(Text(visible(message), style="red"), soft_wrap=True)
        for each in mended:
            whose = f"run {each.run}: " if each.run else ""
            out.print(f"mended: {whose}{visible(each.message)}", soft_wrap=True)
        rebuilt = found.damaged or found.lost or found.outdated or found.stubs
        whole = not (rebuilt or found.unreadable)
        message = "the index was complete" if whole else "the index was rebuilt"
        out.print(f"{message}: {counted(found.runs, 'run')}", soft_wrap=True)
    if found.unreadable:
        raise typer.Exit(CORRUPT)


def _of_heart(own: Both) -> list[Finding]:
    """What was mended of the runs of the heart."""
    if own.heart is None:
        return []
    from rollcage_stores.doctor import repair as repair_heart

    return repair_heart(own.heart)
