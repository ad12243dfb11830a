"""`rollcage copy`: takes runs over into another store, with all that goes with them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple

import orjson
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
from rollcage.store import RunInfo, RunTrace, Store, check_attested, open_store
from rollcage.trace import check_events

from rollcage_cli.blobs import blobs_of
from rollcage_cli.errors import OK, UsageError, exit_code
from rollcage_cli.lookup import find
from rollcage_cli.options import DEFAULT_STORE, OFF, JsonOption
from rollcage_cli.output import console, counted, print_json, visible
from rollcage_cli.table import Table

__all__ = ["copy"]

What = Literal["copied", "already there", "in use", "conflict", "unreadable"]

_STYLES: Final = {
    "copied": "green", "already there": "dim", "in use": "yellow", "conflict": "red",
    "unreadable": "red",
}  # fmt: skip
Sent = dict[tuple[str, str], bytes]
"""Documents by kind and key."""
_APPROVALS: Final = "approvals"  # the kind of their documents
_SIGNALS: Final = "signals"  # that of what was sent to executions of workflows
_HOLDS: Final = "holds"  # that of what says that one was paused or cancelled
_WAITS: Final = "workflow.approval"  # what people are asked by a wait of one
_ASKED: Final = b'{"event":"approval.requested"'
_OF: Final = re.compile(r"([0-9a-f]+)(-[0-9]+)?\..*")  # a request's id, in the key of a document


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
    as_json: JsonOption = OFF,
) -> None:
    """Copy runs into another store, each with what it builds on.

    Traces stay the same bytes, with their attested ends; large values, approvals, signals, pauses
    and stop orders come along. What is there already is left alone, so it can be run again after it
    was cut off. A new store takes over the key that secrets and inputs are hashed with; one that
    has another key is refused. Runs in use are left out. Exits with 4 if any was, with 1 after a
    conflict, and with 3 if a trace is damaged.
    """
    source, target = open_store(origin), open_store(to)
    if not source.exists():
        raise UsageError(f"there is no store at {visible(origin)}; say where with --from")
    if _place(source) == _place(target):
        raise UsageError("--from and --to name the same store")
    chosen = _chosen(source, origin, runs or ())
    if chosen:
        _take_key(source, target)
    sent = _sent(source) if chosen else {}
    told = [_copied(source, target, info, sent.get(info.name, {})) for info in chosen]
    if as_json:
        print_json({"from": origin, "to": to, "runs": [_data(each) for each in told]})
    else:
        _print(told, target)
    code = next((exit_code(each.error) for each in told if each.error is not None), OK)
    if code:
        raise typer.Exit(code)


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
        return target.restore(RunTrace(run, source.url, b"", b"", info))
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
    new = _copy_approvals(source, target, trace)
    for (kind, key), data in sent.items():
        new = _put_document(target, kind, key, data, f"run {run}: its {kind[:-1]}") or new
    _check_free(source, run)
    new = target.restore(trace) or new
    order = source.stop_order(run)
    if order is not None and order.run == run and target.stop_order(run) is None:
        target.stop(order)
        new = True
    return new


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


def _copy_approvals(source: Store, target: Store, trace: RunTrace) -> bool:
    """Copy what was asked, decided and used of a run's requests; whether anything was new."""
    asked = {orjson.loads(line)["id"] for line in trace.data.splitlines() if _ASKED in line[:40]}
    if not asked:
        return False
    new = False
    for key in source.keys(_APPROVALS):
        found = _OF.fullmatch(key)
        if found is None or found[1] not in asked:
            continue
        data = source.get(_APPROVALS, key) or b""
        what = f"run {trace.run}: its approval"
        new = _put_document(target, _APPROVALS, key, data, what) or new
    return new


def _sent(store: Store) -> dict[str, Sent]:
    """By the execution that they are about: signals, holds, and what its waits asked people."""
    found: dict[str, Sent] = {}
    for kind in (_SIGNALS, _HOLDS, _APPROVALS):
        for key in store.keys(kind):
            data = store.get(kind, key) or b""
            try:
                said = orjson.loads(data)
                if kind != _APPROVALS:
                    found.setdefault(str(said["execution"]), {})[kind, key] = data
                elif said["part"] == "request" and said["name"] == _WAITS:
                    asked = key.removesuffix("request")
                    own = found.setdefault(str(said["args"]["execution"]), {})
                    own |= {(kind, each): store.get(kind, each) or b"" for each in store.keys(kind)
                            if each.startswith(asked)}  # fmt: skip
            except (ValueError, TypeError, LookupError):
                continue  # no execution could read it either
    return found


def _put_document(target: Store, kind: str, key: str, data: bytes, what: str) -> bool:
    """Keep a document; whether it is new. Raises RunConflict where another one has its key."""
    if target.put_once(kind, key, data):
        return True
    if target.get(kind, key) != data:
        raise RunConflict(
            f"{what} {key} says something else in {target.url}: it was given or used in both "
            f"stores since it was copied"
        )
    return False


def _data(each: Copied) -> dict[str, Any]:
    told = {"run": each.info.run, "name": each.info.name, "what": each.what}
    return told | ({} if each.error is None else {"error": str(each.error)})


def _print(told: Sequence[Copied], target: Store) -> None:
    out = console()
    if told:
        table = Table()
        for title in ("run", "name", "status", "what"):
            table.add_column(title, no_wrap=True)
        for info, what, _ in told:
            table.add_row(
                Text(visible(info.run)),
                Text(visible(info.name)),
                Text(visible(info.status or "unfinished")),
                Text(what, style=_STYLES[what]),
            )
        out.print(table)
    for each in told:
        if each.error is not None:
            out.print(Text(visible(str(each.error)), style=_STYLES[each.what]), soft_wrap=True)
    out.print(f"{_counts(told)}; now in {visible(target.url)}", soft_wrap=True)


def _counts(told: Iterable[Copied]) -> str:
    whats = Counter[str](each.what for each in told)
    said = (f"{counted(whats[what], 'run')} {what}" for what in _STYLES if whats[what])
    return ", ".join(said) or "No runs"
