"""`rollcage resolve`: a person says what became of a write, or what it gave, where no trace can."""

from __future__ import annotations

from hashlib import sha256
from time import time_ns
from typing import Annotated, Any, NoReturn

import orjson
import typer
from rich.text import Text
from rollcage.store import RunTrace, Store, Writer, check_attested, store_option
from rollcage.trace import Run, Step, encode, read_run, step_resolved
from rollcage_views import lineage_of, standing

from rollcage_cli.errors import StepNotFound, StepNotUnknown, UsageError
from rollcage_cli.lookup import Found, find
from rollcage_cli.options import DEFAULT_STORE, OFF, JsonOption, RunArgument, StoreOption
from rollcage_cli.output import console, counted, print_json, value_text, visible

__all__ = ["resolve"]


def resolve(
    run: RunArgument,
    step: Annotated[int, typer.Argument(min=1, metavar="STEP", show_default=False)],
    happened: Annotated[
        bool | None,
        typer.Option(
            "--happened/--did-not-happen", show_default=False, help="Whether it happened."
        ),
    ] = None,
    result: Annotated[
        str | None, typer.Option(metavar="JSON", help="Its result (null by default).")
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = OFF,
) -> None:
    """Say what became of an unknown step, or what one gave that can't be given back.

    Then its run can be resumed: a step that happened is replayed with its result, one that did not
    happen runs again. A write that was performed, and whose result has no encoding, is replayed
    with the --result that is said here. Find out first: this can't be undone. Of @NAME, the
    step is looked for in all runs that its newest one builds on.
    """
    outcome = _outcome(happened=happened, result=result)
    given = result is not None
    found = find(store, run)
    if not isinstance(found.reader, Store):
        raise UsageError(f"{visible(run)} is a file outside of a store; resolve it in its store")
    where = _where_in_job(found, step) if run.startswith("@") else found.run
    row, attested = _write(found.reader, where, step, outcome, given=given)
    if as_json:
        print_json(
            {
                "run": where,
                "step": step,
                "name": row.name,
                "outcome": outcome,
                "attested": attested,
            }
        )
        return
    out = console()
    said = "happened" if outcome["status"] == "ok" else "did not happen"
    text = Text(f"step {step} ({visible(row.name)}) {said}", style="green")
    if outcome["status"] == "ok":
        text.append(f", with the result {value_text(outcome['value'])}")
    out.print(text, soft_wrap=True)
    out.print("The next session of this name resumes from there.")


def _where_in_job(found: Found, step: int) -> str:
    """The run of a job in which the step of this number waits for a word; else its newest.

    Raises:
        UsageError: there are several.
    """
    stands = standing(lineage_of(found.reader, read_run(found.read())))
    meant = [each for each in (*stands.unknown, *stands.lost) if each.step == step]
    if len(meant) > 1:
        at = store_option(found.reader)
        listed = "".join(f"\n  rollcage resolve {each.run} {step}{at}" for each in meant)
        raise UsageError(f"step {step} may be that of {len(meant)} runs of the job:{listed}")
    return meant[0].run if meant else found.run


def _outcome(*, happened: bool | None, result: str | None) -> dict[str, Any]:
    """The outcome that the options state."""
    if happened is None:
        raise UsageError("pass --happened [--result JSON], or --did-not-happen")
    if not happened:
        if result is not None:
            raise UsageError("--did-not-happen takes no --result")
        return {"status": "not_started"}
    try:
        value = None if result is None else orjson.loads(result)
    except orjson.JSONDecodeError as error:
        raise UsageError(
            f"--result is not JSON: {error}; a text is written '\"in quotes\"'"
        ) from None
    return {"status": "ok", "value": encode(value, _no_secret)}


def _no_secret(_secret: str) -> NoReturn:
    raise AssertionError("JSON holds no secret")


def _write(
    store: Store, run: str, step: int, outcome: dict[str, Any], *, given: bool
) -> tuple[Step, bool]:
    """Append the word to the run, under its lock; the step, and whether the index was updated."""
    trace = store.read(run)  # a look before anything is locked or set aside
    _check(_in_doubt(read_run(trace), run, step), outcome, given=given)
    writer = store.reopen(run)
    try:
        return _append(store.read(run), writer, step, outcome)
    finally:
        writer.close()


def _append(
    trace: RunTrace, writer: Writer, step: int, outcome: dict[str, Any]
) -> tuple[Step, bool]:
    check_attested(trace)
    seen = read_run(trace)
    row = _in_doubt(seen, trace.run, step)
    digest = sha256(orjson.dumps(outcome)).hexdigest()
    writer.append(
        step_resolved(
            time=time_ns() // 1000, step=step, by="operator", outcome=outcome, digest=digest
        )
    )
    writer.sync()
    status = None if trace.info is None else trace.info.status
    if status is not None:
        writer.attest(status)
    return row, status is not None


def _in_doubt(seen: Run, run: str, number: int) -> Step:
    row = seen.step(number)
    if row is None:
        raise StepNotFound(
            f"run {run} has no step {number}; it has {counted(len(seen.steps), 'step')}"
        )
    if row.origin is not None and row.state == "unknown":
        where, first = row.origin[:2]
        raise StepNotUnknown(
            f"step {number} is a replay of step {first} of run {where}: resolve that one"
        )
    if row.state != "unknown" and not row.unreplayable:
        raise StepNotUnknown(
            f"step {number} ({visible(row.name)}) has a known outcome: {_said(row)}. Only an "
            f"unknown step can be resolved, or one whose result can't be replayed"
        )
    return row


def _check(row: Step, outcome: dict[str, Any], *, given: bool) -> None:
    """Refuse a word that says nothing new of a write that was performed."""
    if row.unreplayable and (outcome["status"] != "ok" or not given):
        raise UsageError(
            f"step {row.step} ({visible(row.name)}) was performed, but its result can't be "
            f"replayed ({visible(row.unreplayable)}). Record it: --happened --result JSON"
        )


def _said(row: Step) -> str:
    if row.resolved_by:
        return f"it was resolved already, by {row.resolved_by}"
    return {
        "hit": "its recorded outcome was replayed",
        "seen": "its recorded outcome was in the framework's own memory",
        "ran": "it ran",
        "failed": "it ran and failed",
        "blocked": "it was blocked, nothing ran",
        "cut_off": f"a {row.effect} that was cut off just runs again",
        "not_started": "it never started",
    }[row.state]
