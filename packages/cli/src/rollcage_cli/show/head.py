"""The head of a run, above its steps: its identity and its origin."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text
from rollcage_views import Run, time_text

from rollcage_cli.output import value_text, visible

__all__ = ["print_head"]


def print_head(out: Console, seen: Run) -> None:
    """Print the job, the run, its status and its source."""
    started = seen.started
    out.print(
        Text(f"{visible(started['name'])}  ", style="bold").append(started["run"], style="dim")
    )
    what = "fork of" if started["mode"] == "fork" else "resumes"
    source = f", {what} {started['source']}" if started.get("source") else ""
    how = started["mode"] if len(seen.attempts) < 2 else f"{len(seen.attempts)} attempts"
    out.print(f"{seen.status}, {how}{source}, started {time_text(started['time'])}")
    if seen.shut is not None:
        out.print(Text(_shut_text(seen.shut), style="yellow"), soft_wrap=True)
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
        out.print(
            Text(
                f"{visible(str(error.get('type')))}: {visible(str(error.get('message')))}",
                style="red",
            ),
            soft_wrap=True,
        )
    if started.get("redacted"):
        out.print("An export: values were taken out.")
    out.print()


def _fork_text(fork: dict[str, Any]) -> str:
    """Return what a fork changes, and which of its effects really happened."""
    where = f"from step {fork['step']} on" if fork.get("step") else "from the start"
    named = f" {visible(fork['to'])}" if fork.get("to") else ""
    if fork["change"] in ("result", "args", "error"):
        change = f"a fork: step {fork['step']} has another {fork['change'].replace('args', 'call')}"
    elif fork["change"] == "code":
        change = f"a fork: other code, {where}"
    else:
        change = f"a fork: other {fork['change']}{named}, {where}"
    wrote = "its new writes were made" if fork.get("live") else "it made no write"
    return f"{change}; {wrote}, and the steps replayed from run {fork['run']} are not its own."


def _imported_text(imported: dict[str, Any]) -> str:
    skipped = ", ".join(f"{visible(why)}: {n}" for why, n in imported.get("skipped", {}).items())
    left_out = f" Spans that are not a step: {skipped}." if skipped else ""
    return (
        f"imported from {imported['format']}, trace {visible(imported['trace'])}: its effects are "
        f"not known, and it can be neither resumed nor undone.{left_out}"
    )


def _shut_text(event: dict[str, Any]) -> str:
    """Return why nothing may be added to a run."""
    if event["event"] == "held":
        return f"A copy: the run may go on in {visible(event['from'])}, not here."
    if event["event"] == "gone":
        return f"The run was moved, and goes on in {visible(event['to'])}."
    by = f" by {visible(event['by'])}" if event.get("by") else ""
    return f"It was pruned{by}: its effects are not known any more."


def _abandoned_text(event: dict[str, Any]) -> str:
    by = f" by {visible(event['by'])}" if event["by"] else ""
    reason = f": {visible(event['reason'])}" if event["reason"] else ""
    return f"abandoned{by}, {time_text(event['time'])}{reason}"
