"""`rollcage doctor`: what is wrong with a store, and the command that mends each of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple

import orjson
import typer
from rich.text import Text
from rollcage.errors import RollcageError, RunNotFound, StoreError, StoreInvalid
from rollcage.heart.listing import all_runs
from rollcage.store import RunInfo, Store, check_attested, store_option
from rollcage.trace import read_run
from rollcage_views import lineage_of, resolve_commands, standing
from rollcage_views.both import Both, open_store

from rollcage_cli.blobs import blobs_of
from rollcage_cli.errors import CORRUPT, DIFFERENT, OK, UsageError
from rollcage_cli.options import DEFAULT_STORE, OFF, JsonOption, StoreOption
from rollcage_cli.output import console, counted, print_json, visible

__all__ = ["doctor"]

Kind = Literal["damaged", "open", "note"]
"""Something is lost or changed; somebody has to decide or mend; nobody has to do anything."""

_STYLES: Final = {"damaged": "bold red", "open": "yellow", "note": "dim"}
_NOTHING: Final = "no command of Rollcage mends this; what is whole comes from a backup"
_BACKUP: Final = "rollcage copy {run} --from BACKUP --to {url}"


class Diagnosis(NamedTuple):
    """One thing that is wrong.

    Attributes:
        kind: how bad it is.
        code: what it is, for machines.
        run: which run it is of; empty where it is of none.
        message: what it is, for people.
        helps: the command that mends it; empty if none does, which is then printed.
    """

    kind: Kind
    code: str
    run: str
    message: str
    helps: str


def doctor(
    store: StoreOption = DEFAULT_STORE,
    no_blobs: Annotated[bool, typer.Option("--no-blobs", help="Read no large values.")] = OFF,
    as_json: JsonOption = OFF,
) -> None:
    """List what is wrong with a store, and the command that helps.

    It reads everything and changes nothing. Exits with 3 if something is damaged, with 1 if
    somebody has to decide or mend something.
    """
    own = open_store(store)
    if not own.exists():
        raise UsageError(f"there is no store at {visible(store)}; say where with --store")
    found, runs = _examined(own.old, blobs=not no_blobs)
    theirs, more = _of_heart(own, blobs=not no_blobs)
    found, runs = [*found, *theirs], runs + more
    if as_json:
        listed = [finding._asdict() for finding in found]
        print_json({"store": store, "runs": runs, "findings": listed})
    else:
        _print(found, runs, own)
    kinds = {finding.kind for finding in found}
    code = CORRUPT if "damaged" in kinds else DIFFERENT if "open" in kinds else OK
    if code:
        raise typer.Exit(code)


def _examined(own: Store, *, blobs: bool) -> tuple[list[Diagnosis], int]:
    """All that is wrong, and how many runs there are."""
    try:
        found = [*_index(own)]
        infos = own.runs()
        found += _beside(own)
    except StoreInvalid:
        raise
    except StoreError as error:  # its schema, its key, its disk: no other command works either
        return [Diagnosis("damaged", "store_unusable", "", str(error), "")], 0
    built_on = {info.source for info in infos if info.mode in ("record", "resume")}
    for info in infos:
        if info.pruned is None:
            found += _run(own, info, blobs=blobs, is_newest=info.run not in built_on)
    return found, len(infos)


def _of_heart(own: Both, *, blobs: bool) -> tuple[list[Diagnosis], int]:
    """All that is wrong with the runs of the heart, and how many there are."""
    if own.heart is None:
        return [], 0
    from rollcage_stores.doctor import examine

    try:
        found = examine(own.heart, blobs=blobs)
        count = sum(1 for _ in all_runs(own.heart))
    except StoreInvalid:
        raise
    except StoreError as error:
        return [Diagnosis("damaged", "store_unusable", "", str(error), "")], 0
    listed = [Diagnosis(e.kind, e.code, e.run, e.message, e.helps) for e in found]
    return listed, count


def _index(own: Store) -> Iterator[Diagnosis]:
    checked, at = own.check(), store_option(own)
    repair = f"rollcage repair{at}"
    if checked.damaged:
        lines = ", ".join(map(str, checked.damaged))
        yield Diagnosis("open", "index_damaged", "", f"damaged lines of the index: {lines}", repair)
    for run in checked.lost:
        yield Diagnosis("open", "index_lost", run, "the index does not know this run", repair)
    for run in checked.outdated:
        yield Diagnosis(
            "open", "index_outdated", run, "the index is out of date about this run", repair
        )
    for run in checked.stubs:
        message = "it was pruned, and what is left of it is damaged: when it ran is unknown"
        yield Diagnosis("open", "stub_damaged", run, message, repair)
    for name in checked.left:
        message = f"a killed process left {name}"
        yield Diagnosis("note", "left_over", "", message, repair)
    for run in checked.unattested:
        message = "it ended, and only its own last lines attest that it is whole"
        yield Diagnosis("note", "unattested", run, message, f"rollcage verify {run}{at}")
    for message in checked.unreadable:
        yield Diagnosis("damaged", "unreadable", "", message, "")


def _beside(own: Store) -> Iterator[Diagnosis]:
    """The documents besides the runs: the registry of tools, and approvals."""
    try:
        own.log("registry", "registry.started").read()
    except StoreError as error:
        yield Diagnosis("damaged", error.code, "", str(error), "")
    for key in own.keys("approvals"):
        try:
            orjson.loads(own.get("approvals", key) or b"null")
        except orjson.JSONDecodeError as error:
            message = f"the document {key} of approvals is damaged: {error}"
            yield Diagnosis("damaged", "document", "", message, "")


def _run(own: Store, info: RunInfo, *, blobs: bool, is_newest: bool) -> Iterator[Diagnosis]:
    run, at = info.run, store_option(own)
    try:
        is_live = own.live(run)
        trace = own.read(run)
        check_attested(trace)
        seen = read_run(trace)
        unknown = standing(lineage_of(own, seen)).unknown if is_newest and not is_live else []
    except RunNotFound as error:
        helps = _BACKUP.format(run=run, url=own.url)
        yield Diagnosis("damaged", "trace_missing", run, str(error), helps)
        return
    except RollcageError as error:
        yield Diagnosis("damaged", error.code, run, str(error), "")
        return
    if trace.torn and not is_live:
        message = (
            f"its last line was cut off after {len(trace.torn)} bytes; the next resume drops it"
        )
        yield Diagnosis("note", "torn", run, message, "")
    for effect in unknown:
        helps = resolve_commands(effect, at)
        yield Diagnosis("open", "outcome_unknown", run, f"{effect} has an unknown outcome", helps)
    order = own.stop_order(run)
    if order is not None and not is_live and order.run in ("", run):
        by = f" by {order.by}" if order.by else ""
        state, helps = "stopped", f"rollcage stop {run}{at} --lift"
        means = "no session resumes it"
        if order.is_pause:
            state, helps = "paused", f"rollcage unpause {run}{at}"
            means = "the next call of a session that resumes it waits"
        yield Diagnosis("open", "stop_order", run, f"it was {state}{by}, so {means}", helps)
    if blobs:
        for _, held in blobs_of(own, trace.data):
            if isinstance(held, StoreError):
                helps = _BACKUP.format(run=run, url=own.url)
                yield Diagnosis("damaged", "blob", run, str(held), helps)


def _print(found: Sequence[Diagnosis], runs: int, own: Store) -> None:
    out = console()
    for kind, code, run, message, helps in found:
        whose = f" run {visible(run)}:" if run else ""
        text = Text(f"{kind}:", style=_STYLES[kind])
        out.print(
            text.append(f"{whose} {visible(message)} ({code})", style="default"), soft_wrap=True
        )
        if helps or kind == "damaged":
            out.print(f"  {visible(helps or _NOTHING)}", soft_wrap=True)
    counts: dict[str, Any] = {kind: sum(each.kind == kind for each in found) for kind in _STYLES}
    message = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
    out.print(f"{counted(runs, 'run')} in {visible(own.url)}: {message or 'nothing is wrong'}")
