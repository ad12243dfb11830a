"""`rollcage runs`: what runs there are, by the store's index alone."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text
from rollcage.store import JsonlStore, RunInfo, job_name

from rollcage_cli.lookup import time_text
from rollcage_cli.options import DEFAULT_STORE, OFF, JsonOption, StoreOption
from rollcage_cli.output import console, print_json, visible

__all__ = ["runs"]

_STYLES = {
    "ok": "green", "error": "red", "halted": "yellow", "paused": "cyan", "partial": "yellow",
    "unfinished": "yellow", "abandoned": "dim",
}  # fmt: skip


def runs(
    store: StoreOption = DEFAULT_STORE,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only the runs of this job.")
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="Only the newest; 0 lists all.")] = 50,
    as_json: JsonOption = OFF,
) -> None:
    """List the runs, newest first.

    A run that is unfinished is being written, or its process died; one that is paused waits for an
    approval, an interrupt or a signal; one that is partial never asked for all that its source had
    done. The next session of its name builds on any that is not ok or abandoned.
    """
    wanted = None if name is None else job_name(name)
    found = [i for i in JsonlStore(store).runs() if wanted in (None, job_name(i.name))]
    found.reverse()
    shown = found[:limit] if limit else found
    if as_json:
        print_json({"store": str(store), "total": len(found), "runs": [*map(_data, shown)]})
        return
    out = console()
    if not found:
        out.print(f"No runs in {visible(str(store))}.")
        return
    out.print(_table(shown))
    if len(shown) < len(found):
        out.print(f"{len(found) - len(shown)} older ones are not shown (--limit 0 lists all).")


def _data(info: RunInfo) -> dict[str, Any]:
    return dataclasses.asdict(info) | {"status": _status(info)}


def _status(info: RunInfo) -> str:
    return info.status or "unfinished"


def _table(found: list[RunInfo]) -> Table:
    table = Table(box=None, pad_edge=False)
    for title in ("run", "name", "status", "mode", "started", "source"):
        table.add_column(title, overflow="fold" if title == "run" else "ellipsis", no_wrap=True)
    for info in found:
        status = _status(info)
        table.add_row(
            Text(visible(info.run)),
            Text(visible(info.name)),
            Text(visible(status), style=_STYLES.get(status, "")),
            Text(visible(info.mode)),
            Text(time_text(info.time)),
            Text(visible(info.source[-12:]) if info.source else ""),
        )
    return table
