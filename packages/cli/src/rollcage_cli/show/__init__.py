"""`rollcage show`: the steps of a run, as a table and over time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Final, NamedTuple

import typer
from rich.console import Console
from rich.text import Text
from rollcage import run_info
from rollcage.stages.orders import Order
from rollcage_views import (
    MARKS,
    STATES,
    Run,
    Step,
    StepFilter,
    duration_text,
    pause_of,
    pause_text,
    read_run,
    run_data,
    standing,
    words,
)

from rollcage_cli.errors import StepNotFound, UsageError
from rollcage_cli.files import page_file
from rollcage_cli.lookup import Found, find
from rollcage_cli.moments import moment
from rollcage_cli.options import (
    DEFAULT_STORE,
    NEWEST,
    OFF,
    ForceOption,
    HtmlOption,
    JsonOption,
    NewestRunArgument,
    StoreOption,
)
from rollcage_cli.output import arguments_text, counted, paged, print_json, visible
from rollcage_cli.show.attempts import print_attempts
from rollcage_cli.show.head import print_head
from rollcage_cli.show.rows import STYLES, cell, styled_state, table_of
from rollcage_cli.show.step import print_step
from rollcage_cli.show.timeline import over_time
from rollcage_cli.show.tree import print_tree

__all__ = ["STYLES", "show", "styled_state"]

_STATES: Final = (*STATES, *MARKS)


def show(
    run: NewestRunArgument = NEWEST,
    store: StoreOption = DEFAULT_STORE,
    step: Annotated[int | None, typer.Option(min=1, metavar="N", help="One step, in full.")] = None,
    limit: Annotated[int, typer.Option(min=0, help="Only the last steps; 0 shows all.")] = 200,
    tool: Annotated[
        list[str] | None, typer.Option(metavar="GLOB", help="Only these tools, or models.")
    ] = None,
    state: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STATE",
            help="Only steps in this state: unknown, undone, ...",
            autocompletion=lambda: [*_STATES],
        ),
    ] = None,
    agent: Annotated[
        list[str] | None, typer.Option(metavar="GLOB", help="Only steps of these agents.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="From this time on: 2026-03-01T12:30, or 24h ago."),
    ] = None,
    grep: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Only steps that hold this text, in capitals or not."),
    ] = None,
    tree: Annotated[
        bool, typer.Option("--tree", help="As a tree: agents, turns, calls, nested calls.")
    ] = OFF,
    html: HtmlOption = None,
    force: ForceOption = OFF,
    as_json: JsonOption = OFF,
) -> None:
    """Show the steps of a run; by default, of the newest run.

    A step is a hit (replayed, nothing ran), seen (held by the framework's own memory, so not
    requested), ran, failed, blocked, waiting (for a decision), unknown (it may have happened: see
    `rollcage resolve`), cut off or not started. A page has all values except likely secrets.
    """
    if html is not None and (as_json or tree or step is not None):
        raise UsageError("--html is a page of a whole run: leave out --json, --tree and --step")
    found = find(store, run)
    seen = read_run(found.read())
    wanted = StepFilter(
        tuple(tool or ()),
        tuple(map(_state, state or ())),
        tuple(agent or ()),
        None if since is None else moment(since, datetime.now().astimezone()),
        grep or "",
    )
    rows = wanted.of(seen.steps) if step is None else [_wanted(seen, found.run, step)]
    if as_json:
        print_json(run_data(seen, standing(seen), rows, pause=_pause(found)))
        return
    if html is not None:
        from rollcage_views.html import write_run  # templates, only for a page

        with page_file(html, force=force) as page:
            write_run(page, seen, at=found.at, steps=rows)
        return
    with paged() as out:
        if step is not None:
            print_step(out, rows[0], len(seen.attempts))
        else:
            _print(out, found, seen, rows, _Layout(limit, tree, _pause(found)))


class _Layout(NamedTuple):
    """The layout of a printed run."""

    limit: int
    tree: bool
    pause: Order | None


def _print(out: Console, found: Found, seen: Run, rows: Sequence[Step], how: _Layout) -> None:
    """Print a whole run, or the selected steps."""
    print_head(out, seen)
    print_attempts(out, seen)
    if how.pause is not None:
        helps = f"rollcage unpause {found.run}{found.at}"
        note = f"It is {pause_text(how.pause)}. To let it go on: {helps}"
        out.print(Text(note, style="bold yellow"), soft_wrap=True)
    if rows:
        _print_steps(out, seen, rows, how)
    else:
        out.print("No such steps." if seen.steps else "No steps.")
    _print_refused(out, seen)
    for note in words(standing(seen), seen.status, found.run, found.at):
        out.print(Text(note, style="yellow"), soft_wrap=True)


def _pause(found: Found) -> Order | None:
    return pause_of(found.store, run_info(found.store, found.run))


def _state(word: str) -> str:
    """Return a state by its typed name.

    Raises:
        UsageError: there is no such state.
    """
    state = word.lower().replace(" ", "_").replace("-", "_")
    if state not in _STATES:
        raise UsageError(f"{visible(word)!r} is no state of a step: {', '.join(_STATES)}")
    return state


def _print_steps(out: Console, seen: Run, rows: Sequence[Step], how: _Layout) -> None:
    shown = rows[-how.limit :] if how.limit else rows
    if len(rows) < len(seen.steps):
        out.print(f"{len(rows)} of {counted(len(seen.steps), 'step')}.")
    if len(shown) < len(rows):
        out.print(f"The first {len(rows) - len(shown)} steps are not shown (--limit 0 shows all).")
    if how.tree:
        print_tree(out, shown)
    else:
        out.print(table_of(shown, out.width))
        out.print()
        out.print(over_time(shown, ascii_only=out.options.ascii_only))
    out.print()
    out.print(_sums(seen))


def _wanted(seen: Run, run: str, number: int) -> Step:
    row = seen.step(number)
    if row is None:
        raise StepNotFound(
            f"run {run} has no step {number}; it has {counted(len(seen.steps), 'step')}"
        )
    return row


def _sums(seen: Run) -> Text:
    totals = seen.totals
    text = Text(counted(totals.steps, "step"))
    for state, count in totals.states.items():
        if count:
            text.append(", ").append(f"{count} {state.replace('_', ' ')}", style=STYLES[state])
    if totals.refused:
        text.append(f"; {counted(totals.refused, 'call')} refused", style="magenta")
    if totals.states["hit"]:
        text.append(f"; saved {duration_text(round(totals.seconds_saved * 1e6))}")
        text.append(f" and {totals.tokens_saved} tokens")
    return text


def _print_refused(out: Console, seen: Run) -> None:
    """Print the calls that never became steps."""
    for row in seen.refused:
        asked = f"{visible(row.name)}({arguments_text(row.args)})"
        agent = f" by {visible(row.agent)}" if row.agent else ""
        text = Text(f"refused{agent}: ", style="magenta").append(cell(asked, out.width))
        out.print(text.append(f": {visible(row.code)}: {visible(row.reason)}"), soft_wrap=True)
