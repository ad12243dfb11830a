"""`rollcage watch`: follow a live run, a line a step."""

from __future__ import annotations

import time
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.text import Text
from rollcage import order_of
from rollcage.errors import RunNotFound
from rollcage.stages.orders import Order
from rollcage_views import (
    Following,
    Step,
    arguments_text,
    call_text,
    duration_text,
    outcome_text,
    pause_text,
    state_text,
)  # fmt: skip

from rollcage_cli.completion import complete_run
from rollcage_cli.errors import DIED, DIFFERENT, OK, PAUSED
from rollcage_cli.lookup import Found, find
from rollcage_cli.options import DEFAULT_STORE, NEWEST, StoreOption
from rollcage_cli.output import console, visible
from rollcage_cli.runs import STATUS_STYLES
from rollcage_cli.show import STYLES
from rollcage_cli.show.rows import block_name

__all__ = ["watch"]

_CODES: Final = {"ok": OK, "paused": PAUSED, "died": DIED}
_TOLD: Final = {"run.stopped": "stopped", "approval.decided": "decided"}


def watch(
    run: Annotated[
        str,
        typer.Argument(
            metavar="[NAME]",
            help="A job by its name, or a run as in every command; by default the newest.",
            show_default=False,
            autocompletion=complete_run,
        ),
    ] = NEWEST,
    store: StoreOption = DEFAULT_STORE,
    every: Annotated[
        float, typer.Option(min=0.05, metavar="SECONDS", help="How often to look at the run.")
    ] = 0.5,
) -> None:
    """Follow a run: each step as it ends, until the run does.

    Exits with 0 if the run ended ok, 1 if it ended otherwise (an error, halted, partial), 6 if it
    is paused, 7 if its process died. Ctrl-C ends the watching, not the run.
    """
    found = _found(store, run)
    following = Following(found.store, found.run)
    out = console()
    paused: Order | None = None
    while True:
        # Asked before the log is read, so that the last lines are not missed.
        live = found.store.is_live(found.run)
        for each in following.news():
            _tell(out, each)
        if not live:
            break
        paused = _tell_pause(out, order_of(found.store, found.run), paused)
        time.sleep(every)
    end = following.finished
    status = "died" if end is None else str(end.get("status", "abandoned"))
    line = f"run {found.run}: {visible(status)}"
    reason = (end or {}).get("reason")
    text = Text(f"{line}: {visible(str(reason))}" if reason else line)
    text.stylize(STATUS_STYLES.get(status, ""))
    out.print(text, soft_wrap=True)
    code = _CODES.get(status, DIFFERENT)
    if code:
        raise typer.Exit(code)


def _found(store: str, reference: str) -> Found:
    """Return the chosen run; a name alone is a job's name."""
    try:
        return find(store, reference)
    except RunNotFound:
        if reference.startswith("@") or reference == NEWEST or "/" in reference:
            raise
        return find(store, f"@{reference}")


def _tell_pause(out: Console, order: Order | None, before: Order | None) -> Order | None:
    """Print that the run was paused or continues, if that is new; return the current order."""
    now = order if order is not None and order.kind == "pause" else None
    if now is not None and now != before:
        out.print(Text(f"   = {pause_text(now)}", style="bold yellow"), soft_wrap=True)
    elif now is None and before is not None and order is None:
        out.print(Text("   = it goes on", style="green"), soft_wrap=True)
    out.file.flush()
    return now


def _tell(out: Console, each: Step | dict[str, Any]) -> None:
    if isinstance(each, Step):
        text = _step_text(each)
    elif each["event"] == "run.started":
        head = Text(f"{visible(str(each['name']))}  ", style="bold")
        text = head.append(str(each["run"]), style="dim")
    elif each["event"] == "approval.requested":
        text = Text(f"   ? {_call(each)} waits for approval", style="bold yellow")
    elif each["event"] == "call.refused":
        text = Text(f"   - {_call(each)} refused: {visible(str(each['code']))}", style="magenta")
    elif each["event"] == "attempt":
        if each["number"] == 1:
            return
        text = Text(f"   = attempt {each['number']}", style="bold")
    elif each["event"] in _TOLD:
        by = visible(str(each.get("by", "")))
        text = Text(f"   ! {_TOLD[each['event']]}{f' by {by}' if by else ''}", style="yellow")
    else:
        return
    text.truncate(out.width, overflow="ellipsis")
    out.print(text)
    out.file.flush()  # readers of a pipe see it now


def _call(event: dict[str, Any]) -> str:
    return f"{visible(str(event['name']))}({arguments_text(event['args'])})"


def _step_text(step: Step) -> Text:
    agent = f"{visible(step.agent)}: " if step.agent else ""
    inside = "↳ " if step.parent is not None else ""
    text = Text(f"{step.step:>4} ").append(f"{state_text(step):<8} ", style=STYLES[step.state])
    name = block_name(step) if step.block else f"{visible(step.name)}({call_text(step)})"
    called = f"{agent}{inside}{name}"
    text.append(called if len(called) <= 120 else f"{called[:120]}…")
    text.append(f"  {duration_text(step.duration)}", style="dim")
    return text.append(f"  {outcome_text(step)[:4000]}")
