"""`rollcage show`: the steps of a run, as a table and over time."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.text import Text
from rollcage.trace import REPLAYED, Run, Step, read_run

from rollcage_cli.errors import StepNotFound
from rollcage_cli.lineage import lineage_of, standing, words
from rollcage_cli.lookup import Found, find, time_text
from rollcage_cli.options import (
    DEFAULT_STORE,
    NEWEST,
    OFF,
    JsonOption,
    NewestRunArgument,
    StoreOption,
)
from rollcage_cli.output import arguments_text, console, counted, print_json, value_text, visible
from rollcage_cli.table import Table

__all__ = ["outcome_text", "show", "state_text"]

_STYLES: Final = {
    "hit": "cyan", "seen": "blue", "ran": "green", "simulated": "magenta", "failed": "red",
    "blocked": "magenta", "unknown": "bold yellow", "cut_off": "yellow", "not_started": "dim",
}  # fmt: skip
_WIDTH: Final = 40  # columns of the timeline
_FIXED: Final = 47  # columns of the table besides the call, its arguments and its outcome


def show(
    run: NewestRunArgument = NEWEST,
    store: StoreOption = DEFAULT_STORE,
    step: Annotated[int | None, typer.Option(min=1, metavar="N", help="One step, in full.")] = None,
    limit: Annotated[int, typer.Option(min=0, help="Only the last steps; 0 shows all.")] = 200,
    as_json: JsonOption = OFF,
) -> None:
    """Show the steps of a run: of the newest, where none is given.

    A step is a hit (replayed, nothing ran), seen (the framework's own memory held its result, so it
    was not asked for), ran, failed, blocked, unknown (it may have happened: see `rollcage
    resolve`), cut off or not started.
    """
    found = find(store, run)
    trace = found.read()
    seen = read_run(trace)
    rows = seen.steps if step is None else [_wanted(seen, found.run, step)]
    if as_json:
        print_json(_data(seen, rows, len(trace.torn), found))
        return
    out = console()
    if step is not None:
        _print_step(out, rows[0])
        return
    _print_head(out, seen, len(trace.torn))
    if rows:
        _print_steps(out, seen, rows, limit)
    else:
        out.print("No steps.")
    _print_refused(out, seen)
    stands = standing(lineage_of(found.reader, seen))
    if stands.sources:
        out.print(f"Builds on {_runs_text(stands.sources)}.", soft_wrap=True)
    for said in words(stands, seen.status, found.run, found.reader):
        out.print(Text(said, style="yellow"), soft_wrap=True)


def _runs_text(runs: Sequence[tuple[str, str]]) -> str:
    return ", ".join(f"{visible(run)} ({visible(status)})" for run, status in reversed(runs))


def _print_steps(out: Console, seen: Run, rows: Sequence[Step], limit: int) -> None:
    shown = rows[-limit:] if limit else rows
    if len(shown) < len(rows):
        out.print(f"The first {len(rows) - len(shown)} steps are not shown (--limit 0 shows all).")
    out.print(_table(shown, out.width))
    out.print()
    out.print(_timeline(shown, ascii_only=out.options.ascii_only))
    out.print()
    out.print(_sums(seen))


def _wanted(seen: Run, run: str, number: int) -> Step:
    row = seen.step(number)
    if row is None:
        raise StepNotFound(
            f"run {run} has no step {number}; it has {counted(len(seen.steps), 'step')}"
        )
    return row


def _data(seen: Run, rows: Sequence[Step], torn: int, found: Found) -> dict[str, Any]:
    finished = seen.finished or {}
    return {
        "run": {k: v for k, v in seen.started.items() if k not in ("event", "hash")},
        "status": seen.status,
        "error": finished.get("error"),
        "waits_for": finished.get("reason"),
        "abandoned": seen.abandoned,
        "torn_bytes": torn,
        "standing": standing(lineage_of(found.reader, seen)).as_data(),
        "totals": dataclasses.asdict(seen.totals),
        "steps": [dataclasses.asdict(row) | {"tokens": row.tokens} for row in rows],
        "refused": [dataclasses.asdict(row) for row in seen.refused],
    }


def _print_head(out: Console, seen: Run, torn: int) -> None:
    started = seen.started
    out.print(
        Text(f"{visible(started['name'])}  ", style="bold").append(started["run"], style="dim")
    )
    what = "fork of" if started["mode"] == "fork" else "resumes"
    source = f", {what} {started['source']}" if started.get("source") else ""
    out.print(f"{seen.status}, {started['mode']}{source}, started {time_text(started['time'])}")
    if started.get("imported"):
        out.print(Text(_imported_text(started["imported"]), style="yellow"), soft_wrap=True)
    if started.get("fork"):
        out.print(Text(_fork_text(started["fork"]), style="magenta"), soft_wrap=True)
    given = started.get("input")
    if given:
        shown = value_text(given["value"]) if "value" in given else f"<{given['digest'][:12]}…>"
        out.print(Text(f"input {shown}"), soft_wrap=True)
    if seen.finished and seen.finished.get("reason"):
        out.print(Text(f"waits for: {visible(seen.finished['reason'])}", style="cyan"))
    if seen.abandoned:
        out.print(Text(_abandoned_text(seen.abandoned), style="yellow"), soft_wrap=True)
    error = (seen.finished or {}).get("error")
    if error:
        out.print(Text(_error_text(error), style="red"), soft_wrap=True)
    if torn:
        out.print(Text(f"A torn last line of {torn} bytes is left out.", style="yellow"))
    if started.get("redacted"):
        out.print("An export: values were taken out.")
    out.print()


def _fork_text(fork: dict[str, Any]) -> str:
    """What a fork changes, and what of it really happened."""
    where = f"from step {fork['step']} on" if fork.get("step") else "from the start"
    named = f" {visible(fork['to'])}" if fork.get("to") else ""
    if fork["change"] in ("result", "args", "error"):
        said = f"a fork: step {fork['step']} has another {fork['change'].replace('args', 'call')}"
    elif fork["change"] == "code":
        said = f"a fork: the agent of another day, {where}"
    else:
        said = f"a fork: other {fork['change']}{named}, {where}"
    wrote = "its new writes were made" if fork.get("live") else "it made no write"
    return f"{said}; {wrote}, and what it was given of run {fork['run']} is not its own."


def _imported_text(imported: dict[str, Any]) -> str:
    skipped = ", ".join(f"{visible(why)}: {n}" for why, n in imported.get("skipped", {}).items())
    left_out = f" Spans that are no step: {skipped}." if skipped else ""
    return (
        f"imported from {imported['format']}, trace {visible(imported['trace'])}: its effects are "
        f"not known, and nothing of it can be resumed or undone.{left_out}"
    )


def _abandoned_text(event: dict[str, Any]) -> str:
    by = f" by {visible(event['by'])}" if event["by"] else ""
    reason = f": {visible(event['reason'])}" if event["reason"] else ""
    return f"abandoned{by}, {time_text(event['time'])}{reason}"


# --- the table -----------------------------------------------------------------------------------


def state_text(row: Step) -> Text:
    """A step's state, in its colour."""
    text = Text(row.state.replace("_", " "), style=_STYLES[row.state])
    if row.state in REPLAYED and row.outcome is not None and row.outcome["status"] != "ok":
        text.append(f" ({row.outcome['status']})", style="red")
    if row.undone in ("verified", "compensated"):
        text.append(", undone")
    if row.assumed:
        text.append(", assumed", style="yellow")
    return text


def outcome_text(row: Step) -> str:
    """What a step gave back, or why not, as one line."""
    if row.state == "blocked" and row.verdict is not None:
        return f"{visible(row.verdict['code'])}: {visible(row.verdict['reason'])}"
    outcome = row.outcome or {}
    said = ""
    if outcome.get("status") == "ok":
        said = _drift_text(outcome.get("drift")) + value_text(outcome.get("value"))
    elif outcome.get("error"):
        said = _error_text(outcome["error"])
    if row.resolved_by:
        said = f"{said} (resolved by {row.resolved_by})".lstrip()
    if row.drift:
        said = f"{said} (drift: {visible(row.drift)})"
    if row.unreplayable:
        said = f"not replayable: {visible(row.unreplayable)}; {said}"
    if row.undeclared:
        said = f"undeclared: {visible(', '.join(row.undeclared))}; {said}"
    return said


def _drift_text(drift: dict[str, Any] | None) -> str:
    """How an output breaks its contract, in front of the output."""
    if drift is None:
        return ""
    reported = ", reported only" if drift.get("reported") else ""
    return f"{visible(drift['code'])} at {visible(drift['path'])}{reported}: "


def _error_text(error: dict[str, Any]) -> str:
    return f"{visible(str(error.get('type')))}: {visible(str(error.get('message')))}"


def _table(rows: Sequence[Step], width: int) -> Table:
    names = [_name(row) for row in rows]
    call = min(max(map(len, names)), 28)
    left = max(width - call - _FIXED, 20)
    arguments = left * 2 // 5
    table = Table()
    for title in ("step", "turn", "call", "effect", "state", "arguments", "outcome", "took"):
        table.add_column(title, right=title in ("step", "turn", "took"), no_wrap=True)
    for row, name in zip(rows, names, strict=True):
        table.add_row(
            str(row.step),
            str(row.turn),
            _cell(name, call),
            row.simulated or row.effect,
            state_text(row),
            _cell(arguments_text(row.args), arguments),
            _cell(outcome_text(row), left - arguments),
            _duration_text(row.duration),
        )
    return table


def _cell(text: str, width: int) -> Text:
    cell = Text(text[: 2 * width])
    cell.truncate(width, overflow="ellipsis")
    return cell


def _name(row: Step) -> str:
    name = visible(row.name)
    if row.kind == "branch":
        return f"join of {name}"
    if row.undoes is not None:
        return f"  ↺ {name}"
    return f"  ↳ {name}" if row.parent is not None else name


def _duration_text(microseconds: int | None) -> str:
    if microseconds is None:
        return ""
    if microseconds < 1000:
        return f"{microseconds} µs"
    if microseconds < 1_000_000:
        return f"{microseconds / 1e3:.1f} ms"
    return f"{microseconds / 1e6:.1f} s"


# --- over time -----------------------------------------------------------------------------------


def _timeline(rows: Sequence[Step], *, ascii_only: bool) -> Table:
    """Each step where it stands between the first step's beginning and the last one's end."""
    start = min(row.time for row in rows)
    end = max(row.time + _ran_for(row) for row in rows)
    table = Table()
    table.add_column("step", right=True, no_wrap=True)
    table.add_column(f"over {_duration_text(end - start)}", no_wrap=True)
    table.add_column("", no_wrap=True)
    for row in rows:
        table.add_row(str(row.step), _bar(row, start, end, ascii_only=ascii_only), state_text(row))
    return table


def _ran_for(row: Step) -> int:
    """How long the step took in this run: one that was replayed took nothing."""
    return 0 if row.state in REPLAYED else row.duration or 0


def _bar(row: Step, start: int, end: int, *, ascii_only: bool) -> Text:
    scale = (_WIDTH - 1) / max(end - start, 1)
    left = round((row.time - start) * scale)
    length = max(1, round(_ran_for(row) * scale))
    marks = {"hit": "o", "seen": "o", "blocked": "x", "unknown": "?", "cut_off": "?"}
    if not ascii_only:
        marks |= {"hit": "◆", "seen": "◇", "blocked": "✕"}
    mark = marks.get(row.state, "#" if ascii_only else "━")
    bar = mark if row.state in marks else mark * min(length, _WIDTH - left)
    return Text(" " * left).append(bar, style=_STYLES[row.state])


def _sums(seen: Run) -> Text:
    totals = seen.totals
    text = Text(counted(totals.steps, "step"))
    for state, count in totals.states.items():
        if count:
            text.append(", ").append(f"{count} {state.replace('_', ' ')}", style=_STYLES[state])
    if totals.refused:
        text.append(f"; {counted(totals.refused, 'call')} refused", style="magenta")
    if totals.states["hit"] or totals.states["seen"]:
        text.append(f"; saved {_duration_text(round(totals.seconds_saved * 1e6))}")
        text.append(f" and {totals.tokens_saved} tokens")
    return text


def _print_refused(out: Console, seen: Run) -> None:
    """The calls that never became steps."""
    for row in seen.refused:
        asked = f"{visible(row.name)}({arguments_text(row.args)})"
        agent = f" by {visible(row.agent)}" if row.agent else ""
        text = Text(f"refused{agent}: ", style="magenta").append(_cell(asked, out.width))
        out.print(text.append(f": {visible(row.code)}: {visible(row.reason)}"), soft_wrap=True)


# --- one step ------------------------------------------------------------------------------------


def _print_step(out: Console, row: Step) -> None:
    out.print(Text(f"step {row.step}  ", style="bold").append(_name(row)).append("  ").append(
        state_text(row)
    ))  # fmt: skip
    facts = [
        ("kind", row.kind),
        ("version", visible(row.version)),
        ("effect", row.effect),
        ("place", f"turn {row.turn}, slot {row.slot}"),
        ("branch", visible(row.branch)),
        ("agent", visible(row.agent)),
        ("parent", "" if row.parent is None else f"step {row.parent}"),
        ("started", time_text(row.time)),
        ("took", _duration_text(row.duration)),
        ("tokens", str(row.tokens or "")),
        ("first ran", f"step {row.origin[1]} of run {row.origin[0]}" if row.origin else ""),
        ("undoes", f"step {row.undoes[1]} of run {row.undoes[0]}" if row.undoes else ""),
        ("undo", visible(row.undone or "")),
        ("key", row.key),
    ]
    for name, fact in facts:
        if fact:
            out.print(f"  {name}: {fact}", soft_wrap=True)
    for name, value in row.args.items():
        out.print(f"  argument {visible(name)}: {value_text(value)}", soft_wrap=True)
    out.print(f"  outcome: {outcome_text(row) or row.state.replace('_', ' ')}", soft_wrap=True)
