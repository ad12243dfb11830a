"""`rollcage export`: a run's trace for others, without its secrets."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from rollcage.errors import TraceCorrupt
from rollcage.trace import check_events
from rollcage.trace.seal import StoreSeal

from rollcage_cli.errors import UsageError
from rollcage_cli.logfile import LogFile
from rollcage_cli.lookup import Found, find
from rollcage_cli.options import DEFAULT_STORE, OFF, JsonOption, RunArgument, StoreOption
from rollcage_cli.output import console, visible
from rollcage_cli.redact import Redaction, chained_anew

__all__ = ["export"]


def export(
    run: RunArgument,
    redact: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Redact values of this name, everywhere (repeatable)."),
    ] = None,
    no_values: Annotated[
        bool, typer.Option("--no-values", help="Redact all arguments and results.")
    ] = OFF,
    otlp: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Send its spans to this OpenTelemetry collector instead."),
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    _as_json: JsonOption = OFF,
) -> None:
    """Write a run's log to stdout, or send its spans.

    The log is redacted: secrets are always removed. Saved as RUN.jsonl it can be shown, compared
    and verified. Large values stay in the store, and the lines name them.
    """
    found = find(store, run)
    trace = found.read()
    # A damaged trace must not be sealed again; references to other messages stay references.
    events = check_events(trace.data, trace.where, restore=False)
    if not events:
        raise TraceCorrupt(trace.where, 1, "the trace is empty")
    if isinstance(found.store, LogFile) and found.store.torn:
        console(error=True).print(f"A torn last line of {found.store.torn} bytes is left out.")
    taken_out = Redaction(
        redact or (),
        values=not no_values,
        key=_key(found),
        get_blob=found.blob,
    )
    for event in events:
        taken_out.read(event)
    cleaned = [taken_out(event) for event in events]
    if taken_out.redacted:
        cleaned[0]["redacted"] = True
    lines = chained_anew(cleaned)
    if otlp is not None:
        _send(lines, otlp)
        return
    out = sys.stdout.buffer
    for line in lines:
        out.write(line)
    out.flush()


def _send(lines: Sequence[bytes], url: str) -> None:
    """Send the spans of a run to a collector.

    Raises:
        UsageError: the package for spans is not installed.
    """
    try:
        from rollcage_otel.export import export_otlp
    except ImportError as error:
        raise UsageError(
            f"rollcage export --otlp needs {error.name}, which is not installed: "
            f"pip install 'rollcage-otel[export]'"
        ) from None
    console().print(f"{export_otlp(lines, url)} spans sent to {visible(url)}")


def _key(found: Found) -> bytes:
    """Return the key of the store: it is stable, so two exports can be compared."""
    if isinstance(found.store, LogFile):
        return secrets.token_bytes(32)
    return bytes.fromhex(StoreSeal(found.store)("rollcage export"))
