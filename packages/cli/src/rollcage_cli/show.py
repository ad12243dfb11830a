"""`rollcage show`: the steps of a run, as a table and over time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Final, NamedTuple

import typer
from rich.console import Console
from rich.text import Text
from rollcage.trace import REPLAYED, STATES, Run, Step, read_run
from rollcage_views import (
    StepFilter,
    call_text,
    duration_text,
    lineage_of,
    outcome_text,
    run_data,
    standing,
    state_text,
    time_text,
    tree_of,
    words,
)  # fmt: skip

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
from rollcage_cli.output import arguments_text, counted, paged, print_json, value_text, visible
from rollcage_cli.table import Table

__all__ = ["STYLES", "show", "styled_state"]

STYLES: Final = {
    "hit": "cyan", "seen": "blue", "ran": "green", "simulated": "magenta", "failed": "red",
    "blocked": "magenta", "unknown": "bold yellow", "cut_off": "yellow", "not_started": "dim",
}  # fmt: skip
_STATES: Final = (*STATES, "undone")
_WIDTH: Final = 40  # columns of the timeline
_FIXED: Final = 47  # columns of the table besides the call, its arguments and its outcome
_WIDE: Final = 110  # columns from which on effects, turns and arguments have their own
_STATE: Final = 12  # columns of a state on a narrower terminal
_NARROW_FIXED: Final = 34  # and of all besides the call and its outcome


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
        list[str] | None, typer.Option(metavar="GLOB", help="Only what these agents did.")
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="From then on: 2026-03-01T12:30, or 24h ago.")
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
    """Show the steps of a run: of the newest, where none is given.

    A step is a hit (replayed, nothing ran), seen (the framework's own memory held its result, so it
    was not asked for), ran, failed, blocked, unknown (it may have happened: see `rollcage
    resolve`), cut off or not started.

    With --html, a page with all values but what looks like a secret.
    """
    if html is not None and (as_json or tree or step is not None):
        raise UsageError("--html is a page of a whole run: leave out --json, --tree and --step")
    found = find(store, run)
    trace = found.read()
    seen = read_run(trace)
    wanted = StepFilter(
        tuple(tool or ()),
        tuple(map(_state, state or ())),
        tuple(agent or ()),
        None if since is None else moment(since, datetime.now().astimezone()),
        grep or "",
    )
    rows = wanted.of(seen.steps) if step is None else [_wanted(seen, found.run, step)]
    if as_json:
        stands = standing(lineage_of(found.reader, seen))
        print_json(run_data(seen, stands, rows, torn=len(trace.torn)))
        return
    if html is not None:
        from rollcage_views.html import write_run  # templates, which only a page waits for

        with page_file(html, force=force) as page:
            write_run(page, found.reader, seen, steps=rows, torn=len(trace.torn))
        return
    with paged() as out:
        if step is not None:
            _print_step(out, rows[0])
        else:
            _print(out, found, seen, rows, _Layout(limit, tree, len(trace.torn)))


class _Layout(NamedTuple):
    """How a run is printed."""

    limit: int
    tree: bool
    torn: int


def _print(out: Console, found: Found, seen: Run, rows: Sequence[Step], how: _Layout) -> None:
    """A whole run, or the steps of it that are asked for."""
    _print_head(out, seen, how.torn)
    if rows:
        _print_steps(out, seen, rows, how)
    else:
        out.print("No such steps." if seen.steps else "No steps.")
    _print_refused(out, seen)
    stands = standing(lineage_of(found.reader, seen))
    if stands.sources:
        out.print(f"Builds on {_runs_text(stands.sources)}.", soft_wrap=True)
    for said in words(stands, seen.status, found.run, found.reader):
        out.print(Text(said, style="yellow"), soft_wrap=True)


def _state(word: str) -> str:
    """A state as it is typed.

    Raises:
        UsageError: there is no such state.
    """
    state = word.lower().replace(" ", "_").replace("-", "_")
    if state not in _STATES:
        raise UsageError(f"{visible(word)!r} is no state of a step: {', '.join(_STATES)}")
    return state


def _runs_text(runs: Sequence[tuple[str, str]]) -> str:
    return ", ".join(f"{visible(run)} ({visible(status)})" for run, status in reversed(runs))


def _print_steps(out: Console, seen: Run, rows: Sequence[Step], how: _Layout) -> None:
    shown = rows[-how.limit :] if how.limit else rows
    if len(rows) < len(seen.steps):
        out.print(f"{len(rows)} of {counted(len(seen.steps), 'step')}.")
    if len(shown) < len(rows):
        out.print(f"The first {len(rows) - len(shown)} steps are not shown (--limit 0 shows all).")
    if how.tree:
        _print_tree(out, shown)
    else:
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
        out.print(
            Text(
                f"{visible(str(error.get('type')))}: {visible(str(error.get('message')))}",
                style="red",
            ),
            soft_wrap=True,
        )
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


def styled_state(row: Step) -> Text:
    """A step's state, in its colour."""
    text = Text(state_text(row), style=STYLES[row.state])
    if row.state in REPLAYED:
        text.highlight_regex(r"\(.*\)", "red")
    return text


def _table(rows: Sequence[Step], width: int) -> Table:
    names = [_name(row) for row in rows]
    agents = [visible(row.agent) for row in rows]
    by = min(max(map(len, agents)), 12 if width < _WIDE else 20)
    left = width - (by + 2 if by else 0)
    if width < _WIDE:
        return _narrow(rows, names, by, max(left - _NARROW_FIXED, 20))
    call = min(max(map(len, names)), 28)
    left = max(left - call - _FIXED, 20)
    arguments = left * 2 // 5
    table = Table()
    titles = ("step", "turn", *(["agent"] if by else []), "call", "effect", "state", "arguments")
    for title in (*titles, "outcome", "took"):
        table.add_column(title, right=title in ("step", "turn", "took"), no_wrap=True)
    for row, name in zip(rows, names, strict=True):
        table.add_row(
            str(row.step),
            str(row.turn),
            *([_cell(visible(row.agent), by)] if by else []),
            _cell(name, call),
            row.simulated or row.effect,
            styled_state(row),
            _cell(call_text(row), arguments),
            _cell(outcome_text(row), left - arguments),
            duration_text(row.duration),
        )
    return table


def _narrow(rows: Sequence[Step], names: Sequence[str], by: int, room: int) -> Table:
    """What a terminal of 80 columns has room for: the call with its arguments in one column."""
    calls = [
        f"{name}({call_text(row)})" if row.kind != "branch" else name
        for row, name in zip(rows, names, strict=True)
    ]
    call = min(max(map(len, calls)), room * 3 // 5)
    table = Table()
    for title in ("step", *(["agent"] if by else []), "call", "state", "outcome", "took"):
        table.add_column(title, right=title in ("step", "took"), no_wrap=True)
    for row, said in zip(rows, calls, strict=True):
        table.add_row(
            str(row.step),
            *([_cell(visible(row.agent), by)] if by else []),
            _cell(said, call),
            _cell(styled_state(row), _STATE),
            _cell(outcome_text(row), room - call),
            duration_text(row.duration),
        )
    return table


def _cell(text: str | Text, width: int) -> Text:
    cell = text if isinstance(text, Text) else Text(text[: 2 * width])
    cell.truncate(width, overflow="ellipsis")
    return cell


def _name(row: Step) -> str:
    name = visible(row.name)
    if row.kind == "branch":
        return f"join of {name}"
    if row.undoes is not None:
        return f"  ↺ {name}"
    return f"  ↳ {name}" if row.parent is not None else name


# --- the tree ------------------------------------------------------------------------------------


def _print_tree(out: Console, rows: Sequence[Step]) -> None:
    """Agents, branches and turns, with what was called in each."""
    ascii_only = out.options.ascii_only
    rail = ("|  ", "|- ", "`- ", "   ") if ascii_only else ("│  ", "├─ ", "└─ ", "   ")
    # Last of its siblings or not, by depth: what stands in front of a line.
    todo = [(node, "", at == 0, "") for at, node in enumerate(reversed(tree_of(rows)))]
    while todo:
        node, front, last, sign = todo.pop()
        text = Text(f"{front}{sign}", style="dim")
        row = node.step
        if row is None:
            text.append(visible(node.title), style="bold")
        else:
            name = f"join of {visible(row.name)}" if row.kind == "branch" else visible(row.name)
            undoes = "↺ " if row.undoes is not None else ""
            text.append(f"{row.step} ", style="default")
            text.append(f"{state_text(row)} ", style=STYLES[row.state])
            text.append(_cell(f"{undoes}{name}({call_text(row)})", out.width * 3 // 5))
            text.append(f"  {outcome_text(row)}", style="default")
        text.truncate(out.width, overflow="ellipsis")
        out.print(text)
        below = front + (rail[3 if last else 0] if sign else "")
        children = [*enumerate(reversed(node.children))]
        todo += [(child, below, at == 0, rail[2 if at == 0 else 1]) for at, child in children]


# --- over time -----------------------------------------------------------------------------------


def _timeline(rows: Sequence[Step], *, ascii_only: bool) -> Table:
    """Each step where it stands between the first step's beginning and the last one's end."""
    start = min(row.time for row in rows)
    end = max(row.time + _ran_for(row) for row in rows)
    table = Table()
    table.add_column("step", right=True, no_wrap=True)
    table.add_column(f"over {duration_text(end - start)}", no_wrap=True)
    table.add_column("", no_wrap=True)
    for row in rows:
        table.add_row(
            str(row.step), _bar(row, start, end, ascii_only=ascii_only), styled_state(row)
        )
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
    return Text(" " * left).append(bar, style=STYLES[row.state])


def _sums(seen: Run) -> Text:
    totals = seen.totals
    text = Text(counted(totals.steps, "step"))
    for state, count in totals.states.items():
        if count:
            text.append(", ").append(f"{count} {state.replace('_', ' ')}", style=STYLES[state])
    if totals.refused:
        text.append(f"; {counted(totals.refused, 'call')} refused", style="magenta")
    if totals.states["hit"] or totals.states["seen"]:
        text.append(f"; saved {duration_text(round(totals.seconds_saved * 1e6))}")
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
        styled_state(row)
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
        ("took", duration_text(row.duration)),
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
