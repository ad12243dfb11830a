"""`rollcage copy`: copy runs into another store, with the data that belongs to them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.text import Text
from rollcage import Store, all_runs, open_store, run_info

from rollcage_cli.documents import Beside, copy_beside
from rollcage_cli.errors import OK, UsageError, exit_code
from rollcage_cli.lookup import find, named, opened
from rollcage_cli.options import DEFAULT_STORE, OFF, JsonOption
from rollcage_cli.output import console, counted, print_json, visible
from rollcage_cli.table import Table

if TYPE_CHECKING:
    from rollcage_stores.copies import Copied

__all__ = ["copy"]

_STYLES: Final = {
    "copied": "green", "moved": "green", "already there": "dim", "in use": "yellow",
    "elsewhere": "yellow", "conflict": "red", "unreadable": "red",
}  # fmt: skip


def copy(
    to: Annotated[
        str, typer.Option("--to", metavar="URL", help="The store to copy the runs into.")
    ],
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN]...",
            help="As in every command; @NAME means all runs of that job. By default, all runs.",
            show_default=False,
        ),
    ] = None,
    origin: Annotated[
        str,
        typer.Option(
            "--from",
            envvar="ROLLCAGE_STORE",
            metavar="URL",
            help="The store that the runs are in: a folder, or sqlite:///FILE.",
        ),
    ] = DEFAULT_STORE,
    move: Annotated[
        bool, typer.Option("--move", help="Move the runs: each goes on in the other store only.")
    ] = OFF,
    as_json: JsonOption = OFF,
) -> None:
    """Copy runs into another store, with the runs they continue.

    Logs stay the same bytes. Large values, approvals, orders and claims are copied as well, and the
    data of workflows: signals, holds, results, plans; without a named run, also the registry of
    tools and the schedules. Existing runs are left alone, so an interrupted copy can be run again.
    A new store takes the key that hashes secrets and inputs; a store with another key is refused.
    Runs in use are left out. A copy of a run is read-only: its job continues in the original store,
    unless --move moves the job. Exits with 4 if a run was in use, with 1 after a conflict, and with
    3 if a log is damaged.
    """
    from rollcage_stores.copies import copy_runs  # imported only for this command

    source, target = opened(origin, option="--from", needed=True), open_store(to)
    if source.url == target.url:
        raise UsageError("--from and --to name the same store")
    chosen = _chosen(source, origin, runs or ())
    copied = copy_runs(source, target, chosen, move=move)
    names = None if chosen is None else {run_info(source, run).name for run in chosen}
    beside = [*copy_beside(source, target, names, move=move)]
    if as_json:
        more = [_document(each) for each in beside]
        parts = {
            "from": named(source, origin),
            "to": named(target, to),
            "runs": [_data(each) for each in copied],
        }
        print_json(parts | {"documents": more})
    else:
        _print(copied, beside, target)
    outcomes: list[Copied | Beside] = [*copied, *beside]
    errors = (each.error for each in outcomes)
    code = next((exit_code(error) for error in errors if error is not None), OK)
    if code:
        raise typer.Exit(code)


def _chosen(store: Store, given: str, references: Sequence[str]) -> list[str] | None:
    """Return the ids of the chosen runs, with the runs they continue; None: all."""
    if not references:
        return None
    infos = {info.run: info for info in all_runs(store)}
    meant: set[str] = set()
    for reference in references:
        found = find(given, reference)
        if found.run not in infos or found.store.url != store.url:
            raise UsageError(f"{visible(reference)} is not in the store {named(store, given)}")
        name = infos[found.run].name if reference.startswith("@") else None
        waiting = [found.run, *(info.run for info in infos.values() if info.name == name)]
        while waiting:
            run = waiting.pop()
            if run in infos and run not in meant:
                meant.add(run)
                waiting.append(infos[run].origin)
    return sorted(meant)


def _data(each: Copied) -> dict[str, Any]:
    data = {"run": each.info.run, "name": each.info.name, "what": each.what}
    return data | ({} if each.error is None else {"error": str(each.error)})


def _document(each: Beside) -> dict[str, Any]:
    data = {"kind": each.kind, "key": each.key, "what": each.what}
    return data | ({} if each.error is None else {"error": str(each.error)})


def _print(copied: Sequence[Copied], beside: Sequence[Beside], target: Store) -> None:
    out = console()
    if copied:
        table = Table()
        for title in ("run", "name", "status", "what"):
            table.add_column(title, no_wrap=True)
        for each in copied:
            table.add_row(
                Text(visible(each.info.run)),
                Text(visible(each.info.name)),
                Text(visible(each.info.status or "unfinished")),
                Text(each.what, style=_STYLES[each.what]),
            )
        out.print(table)
    outcomes: list[Copied | Beside] = [*copied, *beside]
    for end in outcomes:
        if end.error is not None:
            out.print(Text(visible(str(end.error)), style=_STYLES[end.what]), soft_wrap=True)
    out.print(f"{_counts(copied, beside)}; now in {visible(target.url)}", soft_wrap=True)


def _counts(copied: Iterable[Copied], beside: Sequence[Beside]) -> str:
    whats = Counter[str](each.what for each in copied)
    parts = [f"{counted(whats[what], 'run')} {what}" for what in _STYLES if whats[what]]
    kinds = Counter(each.kind for each in beside if each.what == "copied")
    parts += ["the registry copied"] if kinds.pop("registry", 0) else []
    parts += [f"{counted(kinds[kind], kind[:-1])} copied" for kind in sorted(kinds)]
    return ", ".join(parts) or "No runs"
