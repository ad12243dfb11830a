"""`rollcage copy`: takes runs over into another store, with all that goes with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import typer
from rich.text import Text
from rollcage.errors import (
    RollcageError,
    RunConflict,
    RunInUse,
    StoreError,
    StoreReadOnly,
    TraceCorrupt,
)
from rollcage.store import RunInfo, RunTrace, Store, check_attested, job_name
from rollcage.trace import check_events
from rollcage_views.both import Both, heart_with, info_of, open_store

from rollcage_cli.blobs import blobs_of
from rollcage_cli.documents import (
    Beside,
    Sent,
    What,
    copy_approvals,
    copy_beside,
    copy_commands,
    copy_of_heart,
    copy_plans,
    put,
    sent_in,
)
from rollcage_cli.errors import OK, UsageError, exit_code
from rollcage_cli.lookup import find
from rollcage_cli.options import DEFAULT_STORE, OFF, JsonOption
from rollcage_cli.output import console, counted, print_json, visible
from rollcage_cli.table import Table

__all__ = ["copy"]

_STYLES: Final = {
    "copied": "green", "moved": "green", "already there": "dim", "in use": "yellow",
    "elsewhere": "yellow", "conflict": "red", "unreadable": "red",
}  # fmt: skip


class Copied(NamedTuple):
    """What became of one run."""

    info: RunInfo
    what: What
    error: RollcageError | None = None


def copy(
    to: Annotated[
        str, typer.Option("--to", metavar="URL", help="The store that they are copied into.")
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
        bool, typer.Option("--move", help="They go on there, and not here any more.")
    ] = OFF,
    as_json: JsonOption = OFF,
) -> None:
    """Copy runs into another store, each with what it builds on.

    Traces stay the same bytes, with their attested ends; large values, approvals, signals, pauses,
    open commands and stop orders come along, and where no run is named, the registry of tools and
    the schedules of workflows, too. What is there already is left alone, so it can be run again
    after it was cut off. A new store takes over the key that secrets and inputs are hashed with;
    one that has another key is refused. Runs in use are left out. A copy of a run is read-only:
    its job goes on where the run was, unless --move has it go on there. Exits with 4 if a run was
    in use, with 1 after a conflict, and with 3 if a trace is damaged.
    """
    source, target = open_store(origin), open_store(to)
    if not source.exists():
        raise UsageError(f"there is no store at {visible(origin)}; say where with --from")
    if _place(source) == _place(target):
        raise UsageError("--from and --to name the same store")
    every = _chosen(source, origin, runs or ())
    chosen = [info for info in every if heart_with(source, info.run) is None]
    if move and chosen:
        raise UsageError(
            f"run {chosen[0].run} has the format rollcage/1: it can be copied, and not moved"
        )
    copied = _of_heart(source, target, [i.run for i in every if i not in chosen], move=move)
    if chosen or not runs:
        _take_key(source.old, target.old)
    ours, beside = _all_copied(source.old, target.old, chosen, whole=not runs)
    copied += ours
    if source.heart is not None and target.heart is not None:
        names = {job_name(info.name) for info in every} if runs else None
        beside += copy_of_heart(source.heart, target.heart, names, move=move)
    if as_json:
        more = [_document(each) for each in beside]
        parts = {"from": origin, "to": to, "runs": [_data(each) for each in copied]}
        print_json(parts | {"documents": more})
    else:
        _print(copied, beside, target)
    outcomes: list[Copied | Beside] = [*copied, *beside]
    errors = (each.error for each in outcomes)
    code = next((exit_code(error) for error in errors if error is not None), OK)
    if code:
        raise typer.Exit(code)


def _of_heart(source: Both, target: Both, runs: Sequence[str], *, move: bool) -> list[Copied]:
    """Copy runs of the heart, or move them.

    Raises:
        UsageError: the target can't keep them, or has a key of its own.
    """
    if not runs:
        return []
    from rollcage_stores.copies import copy_runs

    if source.heart is None or target.heart is None:
        raise UsageError(f"{visible(target.url)} keeps no runs of the format rollcage/2")
    done = copy_runs(source.heart, target.heart, runs, move=move)
    return [Copied(info_of(each.info), each.what, each.error) for each in done]


def _place(store: Store) -> str:
    """Where a store is, however it was named."""
    return store.url if "://" in store.url else str(Path(store.url).resolve())


def _chosen(store: Store, named: str, references: Sequence[str]) -> Sequence[RunInfo]:
    """The runs that are meant, and all that they build on, in the order in which they began."""
    known = store.runs()
    if not references:
        return known
    infos = {info.run: info for info in known}
    meant: set[str] = set()
    for reference in references:
        found = find(named, reference)
        if found.run not in infos:
            raise UsageError(f"{visible(reference)} is not in the store {visible(named)}")
        same = store.runs(name=infos[found.run].name) if reference.startswith("@") else ()
        waiting = [found.run, *(info.run for info in same)]
        while waiting:
            run = waiting.pop()
            if run in infos and run not in meant:
                meant.add(run)
                waiting.append(infos[run].source or "")
    return [info for info in known if info.run in meant]


def _take_key(source: Store, target: Store) -> None:
    """Have the target hash secrets with the source's key.

    Raises:
        UsageError: it has another one.
    """
    try:
        key = source.secret_key()
    except StoreReadOnly:  # it has none: nothing in it was hashed with one
        return
    if not target.take_key(key):
        raise UsageError(
            f"{visible(target.url)} has a key of its own. Secrets, inputs and approvals of the "
            f"runs to be copied are hashed with the key of {visible(source.url)}: under another "
            f"one, no session would find what was done, and do it again. Copy into a new store"
        )


def _all_copied(
    source: Store, target: Store, chosen: Sequence[RunInfo], *, whole: bool
) -> tuple[list[Copied], list[Beside]]:
    """Copy runs, and then what has to find them there; of a `whole` store, what has no run, too."""
    sent = sent_in(source)
    names = {job_name(info.name) for info in chosen}
    copied = [_copied(source, target, info, sent.get(job_name(info.name), {})) for info in chosen]
    for name in names:
        sent.pop(name, None)
    beside = list(copy_beside(source, target, sent)) if whole else []
    there = {each.info.run for each in copied if each.error is None}
    beside += copy_commands(source, target, there, None if whole else names)
    return copied, beside


def _copied(source: Store, target: Store, info: RunInfo, sent: Sent) -> Copied:
    try:
        new = _copy(source, target, info, sent)
    except RunInUse as error:
        return Copied(info, "in use", error)
    except RunConflict as error:
        return Copied(info, "conflict", error)
    except TraceCorrupt as error:
        return Copied(info, "unreadable", error)
    return Copied(info, "copied" if new else "already there")


def _copy(source: Store, target: Store, info: RunInfo, sent: Sent) -> bool:
    """Copy one run; whether anything was new of it. What belongs to it is there before it is."""
    run = info.run
    if info.pruned is not None and info.count is None:
        new = _put_sent(target, run, sent)
        return target.restore(RunTrace(run, source.url, b"", b"", info)) or new
    _check_free(source, run)
    trace = source.read(run)
    check_events(trace.data, trace.where)
    check_attested(trace)
    for held in (blobs := dict(blobs_of(source, trace.data))).values():
        if isinstance(held, StoreError):
            raise TraceCorrupt(trace.where, 1, f"it can't be copied whole: {held}")
    for digest, held in blobs.items():
        assert isinstance(held, bytes)
        _put_blob(target, digest, held)
    copy_plans(source, target, trace)
    new = copy_approvals(source, target, trace)
    new = _put_sent(target, run, sent) or new
    _check_free(source, run)
    new = target.restore(trace) or new
    order = source.stop_order(run)
    if order is not None and order.run == run and target.stop_order(run) is None:
        target.stop(order)
        new = True
    return new


def _put_sent(target: Store, run: str, sent: Sent) -> bool:
    """Keep what was sent to a run's execution; whether anything was new."""
    copied = [put(target, *at, data, f"run {run}: its {at[0][:-1]}") for at, data in sent.items()]
    return any(copied)


def _put_blob(target: Store, digest: str, data: bytes) -> None:
    """Keep a large value, also in place of one that is damaged."""
    try:
        target.get_blob(digest)
    except StoreError:
        target.drop_blob(digest)
        target.put_blob(digest, data)


def _check_free(store: Store, run: str) -> None:
    if store.live(run):
        raise RunInUse(f"run {run} is being written or resumed by another session")


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
        for info, what, _ in copied:
            table.add_row(
                Text(visible(info.run)),
                Text(visible(info.name)),
                Text(visible(info.status or "unfinished")),
                Text(what, style=_STYLES[what]),
            )
        out.print(table)
    outcomes: list[Copied | Beside] = [*copied, *beside]
    for each in outcomes:
        if each.error is not None:
            out.print(Text(visible(str(each.error)), style=_STYLES[each.what]), soft_wrap=True)
    out.print(f"{_counts(copied, beside)}; now in {visible(target.url)}", soft_wrap=True)


def _counts(copied: Iterable[Copied], beside: Sequence[Beside]) -> str:
    whats = Counter[str](each.what for each in copied)
    parts = [f"{counted(whats[what], 'run')} {what}" for what in _STYLES if whats[what]]
    kinds = Counter(each.kind for each in beside if each.what == "copied")
    parts += ["the registry copied"] if kinds.pop("registry", 0) else []
    parts += [f"{counted(kinds[kind], kind[:-1])} copied" for kind in sorted(kinds)]
    return ", ".join(parts) or "No runs"
