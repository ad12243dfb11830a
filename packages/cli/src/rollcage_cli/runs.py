"""`rollcage runs`: what runs there are, and what of them somebody has to look after."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.text import Text
from rollcage.errors import RollcageError
from rollcage.store import Reader, RunInfo, open_store, without_password
from rollcage.trace import read_run

from rollcage_cli.lineage import Standing, lineage_of, standing
from rollcage_cli.lookup import time_text
from rollcage_cli.options import DEFAULT_STORE, OFF, JsonOption, StoreOption
from rollcage_cli.output import console, print_json, visible
from rollcage_cli.table import Table

__all__ = ["runs"]

_STYLES = {
    "ok": "green", "error": "red", "halted": "yellow", "paused": "cyan", "partial": "yellow",
    "unfinished": "yellow", "abandoned": "dim", "would_write": "magenta", "would_ask": "magenta",
}  # fmt: skip


def runs(
    store: StoreOption = DEFAULT_STORE,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only the runs of this job.")
    ] = None,
    status: Annotated[
        str | None,
        typer.Option(metavar="STATUS", help="Only the runs with this status, as it is shown here."),
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="Only the newest; 0 lists all.")] = 50,
    as_json: JsonOption = OFF,
) -> None:
    """List the runs, newest first.

    A run that is unfinished is being written, or its process died; one that is paused waits for an
    approval, an interrupt or a signal; one that is partial never asked for all that its source had
    done. The next session of its name builds on any that is not ok or abandoned.
    """
    own = open_store(store)
    # One more than is shown tells whether there are others.
    found = own.runs(name=name, status=status, limit=limit + 1 if limit else None)[::-1]
    shown = found[:limit] if limit else found
    open_ = {info.run: _standing(own, info) for info in shown}
    refused = {info.run: _refused(own, info.run) for info in shown}
    if as_json:
        print_json(
            {
                "store": without_password(store),
                "more": len(shown) < len(found),
                "runs": [
                    _data(info, open_[info.run]) | {"refused": refused[info.run]} for info in shown
                ],
            }
        )
        return
    out = console()
    if not found:
        which = "No runs" if name is None and status is None else "No such runs"
        out.print(f"{which} in {visible(without_password(store))}.")
        return
    out.print(_table(shown, open_, refused))
    if len(shown) < len(found):
        out.print("Older ones are not shown (--limit 0 lists all).")


def _standing(reader: Reader, info: RunInfo) -> Standing | None:
    """What is open of a run; None where nothing can be, or its trace can't be read."""
    try:
        trace = reader.read(info.run)
        if info.status == "ok" and b'"orphans":[' not in trace.data:
            return None
        return standing(lineage_of(reader, read_run(trace)))
    except RollcageError:
        return None  # whoever asks for that one is told so


def _refused(reader: Reader, run: str) -> int | None:
    """How many calls never became steps; None where the trace can't be read."""
    try:
        return reader.read(run).data.count(b'\n{"event":"call.refused",')
    except RollcageError:
        return None


def _data(info: RunInfo, stands: Standing | None) -> dict[str, Any]:
    told = {} if stands is None else stands.as_data()
    names = ("unknown", "left_behind", "not_asked_for")
    left = {name: told.get(name, []) for name in names}
    return dataclasses.asdict(info) | {"status": _status(info)} | left


def _open_text(stands: Standing | None) -> str:
    """How many writes of a run somebody has to look after."""
    if stands is None:
        return ""
    counts = (
        (stands.unknown, "unknown"), (stands.left, "left behind"), (stands.ahead, "not asked for"),
    )  # fmt: skip
    return ", ".join(f"{len(effects)} {what}" for effects, what in counts if effects)


def _status(info: RunInfo) -> str:
    return info.status or "unfinished"


def _table(
    found: Sequence[RunInfo], open_: dict[str, Standing | None], refused: dict[str, int | None]
) -> Table:
    table = Table()
    titles = ["run", "name", "status", "mode", "started", "source", "open"]
    for title in [*titles, "refused"] if any(refused.values()) else titles:
        table.add_column(title, no_wrap=True)
    for info in found:
        status = _status(info)
        table.add_row(
            Text(visible(info.run)),
            Text(visible(info.name)),
            Text(
                f"{visible(status)}{', pruned' * bool(info.pruned)}", style=_STYLES.get(status, "")
            ),
            Text(visible(info.mode)),
            Text(time_text(info.time)),
            Text(visible(info.source[-12:]) if info.source else ""),
            Text(_open_text(open_[info.run]), style="yellow"),
            *([Text(str(refused[info.run] or ""))] if any(refused.values()) else []),
        )
    return table
