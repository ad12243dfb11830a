"""`rollcage runs`: list the runs, and their open problems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import typer
from rich.text import Text
from rollcage import RunInfo, Store, list_runs
from rollcage.errors import RollcageError
from rollcage.stages.orders import Order
from rollcage.trace.recorded import trace_of
from rollcage_views import (
    Standing,
    order_data,
    pause_of,
    pause_text,
    read_run,
    short_ids,
    standing,
    time_text,
)
from rollcage_views.infos import info_data, is_pruned, mode_of

from rollcage_cli.completion import complete_name
from rollcage_cli.lookup import named, opened
from rollcage_cli.options import DEFAULT_STORE, OFF, JsonOption, StoreOption
from rollcage_cli.output import console, paged, print_json, value_text, visible
from rollcage_cli.table import Table

__all__ = ["STATUS_STYLES", "runs"]

STATUS_STYLES = {
    "ok": "green", "error": "red", "halted": "yellow", "paused": "cyan", "partial": "yellow",
    "unfinished": "yellow", "abandoned": "dim", "would_write": "magenta", "would_ask": "magenta",
    "running": "cyan", "died": "bold yellow", "undone": "magenta",
}  # fmt: skip

_WIDE: Final = 120  # columns from which on whole ids have room
_LONG: Final = 24  # characters of an input that are shown
_JOINED: Final = {"resume": "goes on from", "fork": "fork of"}


def runs(
    store: StoreOption = DEFAULT_STORE,
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Only the runs of this job.", autocompletion=complete_name
        ),
    ] = None,
    status: Annotated[
        str | None,
        typer.Option(metavar="STATUS", help="Only the runs with this status, as shown here."),
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="Only the newest; 0 lists all.")] = 50,
    as_json: JsonOption = OFF,
) -> None:
    """List the runs, newest first.

    An unfinished run is being written, or its process died; a paused run waits for an approval, an
    interrupt or a signal; a partial run never asked for all effects that earlier attempts had made.
    The next session of its name resumes any run that is not ok or abandoned.
    """
    own = opened(store)
    # One more than displayed, to know whether there are more.
    found = list_runs(own, name=name, status=status, limit=limit + 1 if limit else None)
    shown = found[:limit] if limit else found
    open_ = {info.run: _standing(own, info) for info in shown}
    refused = {info.run: _refused(own, info.run) for info in shown}
    pauses = {info.run: pause_of(own, info) for info in shown}
    if as_json:
        print_json(
            {
                "store": named(own, store),
                "more": len(shown) < len(found),
                "runs": [
                    _data(info, open_[info.run])
                    | {"refused": refused[info.run], "paused": order_data(pauses[info.run])}
                    for info in shown
                ],
            }
        )
        return
    if not found:
        which = "No runs" if name is None and status is None else "No such runs"
        console().print(f"{which} in {named(own, store)}.")
        return
    with paged() as out:
        if out.width >= _WIDE:
            out.print(_table(shown, open_, refused, pauses))
        else:
            ids = short_ids(own, [run for info in shown for run in (info.run, info.origin) if run])
            out.print(_narrow(shown, open_, refused, ids, pauses))
        if len(shown) < len(found):
            out.print("Older ones are not shown (--limit 0 lists all).")


def _standing(store: Store, info: RunInfo) -> Standing | None:
    """Return the open problems of a run; None if there can't be any, or its log can't be read."""
    try:
        trace = trace_of(store, info.run)
        if info.status == "ok" and b'"left":' not in trace.data:
            return None
        return standing(read_run(trace))
    except RollcageError:
        return None  # reading the run reports it


def _refused(store: Store, run: str) -> int | None:
    """Return how many calls never became steps; None if the log can't be read."""
    try:
        return sum(line.startswith(b'{"event":"refused",') for line in store.read(run))
    except RollcageError:
        return None


def _data(info: RunInfo, stands: Standing | None) -> dict[str, Any]:
    effects = {} if stands is None else stands.as_data()
    names = ("unknown", "unclear", "left_behind", "not_asked_for")
    left = {name: effects.get(name, []) for name in names}
    return info_data(info) | {"status": _status(info)} | left


def _open_text(stands: Standing | None, pause: Order | None) -> str:
    """Return the open problems in words: who paused the run, and its unsettled writes."""
    paused = [] if pause is None else [pause_text(pause)]
    if stands is None:
        return ", ".join(paused)
    counts = (
        (stands.unknown, "unknown"), (stands.unclear, "unclear"), (stands.left, "left behind"),
        (stands.ahead, "not asked for"),
    )  # fmt: skip
    return ", ".join(paused + [f"{len(effects)} {what}" for effects, what in counts if effects])


def _status(info: RunInfo) -> str:
    return info.status or "unfinished"


def _table(
    found: Sequence[RunInfo],
    open_: Mapping[str, Standing | None],
    refused: Mapping[str, int | None],
    pauses: Mapping[str, Order | None],
) -> Table:
    table = Table()
    inputs, refusals = any(map(_input, found)), any(refused.values())
    titles = ["run", "name", *["input"] * inputs, "status", "mode", "started", "source", "open"]
    for title in [*titles, *["refused"] * refusals]:
        table.add_column(title, no_wrap=True)
    for info in found:
        table.add_row(
            Text(visible(info.run)),
            Text(visible(info.name)),
            *[Text(_input(info))] * inputs,
            _status_text(info),
            Text(mode_of(info)),
            Text(time_text(info.begun)),
            Text(visible(info.origin[-12:])),
            Text(_open_text(open_[info.run], pauses[info.run]), style="yellow"),
            *[Text(str(refused[info.run] or ""))] * refusals,
        )
    return table


def _narrow(
    found: Sequence[RunInfo],
    open_: Mapping[str, Standing | None],
    refused: Mapping[str, int | None],
    ids: Mapping[str, str],
    pauses: Mapping[str, Order | None],
) -> Table:
    """Return the row for a terminal of 80 columns: short ids, and open problems in words."""
    table = Table()
    table.add_column("run", no_wrap=True)
    table.add_column("name", no_wrap=True, max_width=20)
    table.add_column("status", no_wrap=True)
    table.add_column("started", no_wrap=True)
    table.add_column("")
    for info in found:
        source = f"{_JOINED[mode_of(info)]} {ids[info.origin]}" if info.origin else ""
        source = source or (mode_of(info) if info.imported else "")
        refusals = f"{refused[info.run]} refused" if refused[info.run] else ""
        attempts = f"{info.attempts} attempts" if info.attempts > 1 else ""
        notes = [_input(info), source, attempts, refusals]
        text = Text(visible(", ".join(filter(None, notes))))
        left = _open_text(open_[info.run], pauses[info.run])
        text.append(f"{', ' if text.plain and left else ''}{left}", style="yellow")
        started = time_text(info.begun)[5:16]
        table.add_row(ids[info.run], Text(visible(info.name)), _status_text(info), started, text)
    return table


def _input(info: RunInfo) -> str:
    """Return the input of a run as text, not longer than a column has room; empty without one."""
    text = "" if info.given is None else value_text(info.given)
    return text if len(text) <= _LONG else f"{text[: _LONG - 1]}…"


def _status_text(info: RunInfo) -> Text:
    status = _status(info)
    pruned = ", pruned" if is_pruned(info) else ""
    return Text(f"{visible(status)}{pruned}", style=STATUS_STYLES.get(status, ""))
