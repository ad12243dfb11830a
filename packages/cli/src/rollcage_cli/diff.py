"""`rollcage diff`: two runs side by side, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.text import Text
from rollcage_views import (
    Pair,
    align,
    first_difference,
    in_order,
    pair_data,
    read_run,
    standing,
    words,
)

from rollcage_cli.errors import DIFFERENT, UsageError
from rollcage_cli.files import page_file
from rollcage_cli.lookup import find
from rollcage_cli.options import (
    DEFAULT_STORE,
    OFF,
    ForceOption,
    HtmlOption,
    JsonOption,
    RunArgument,
    StoreOption,
)
from rollcage_cli.output import console, counted, print_json, value_text, visible

__all__ = ["diff"]

_CHANGES: Final = 20  # of one step that are shown as text
_VALUE: Final = 120  # characters of a value that are shown as text


def diff(
    a: RunArgument,
    b: RunArgument,
    store: StoreOption = DEFAULT_STORE,
    all_steps: Annotated[bool, typer.Option("--all", help="Also list the steps that agree.")] = OFF,
    beside: Annotated[
        bool, typer.Option("--side-by-side", help="Every step, in a column for each run.")
    ] = OFF,
    html: HtmlOption = None,
    force: ForceOption = OFF,
    as_json: JsonOption = OFF,
) -> None:
    """Compare two runs, step by step.

    A step that ran and its replay are the same step. The first difference is marked: later
    differences may follow from it. With --html, a page of both, side by side, with their values.
    Exits with 1 if the runs differ.
    """
    if html is not None and as_json:
        raise UsageError("--html is a page: leave out --json")
    found = find(store, a), find(store, b)
    seen = [read_run(each.read()) for each in found]
    pairs = align(*map(in_order, seen))
    stands = [standing(run) for run in seen]
    first = first_difference(pairs)
    differing = sum(pair.relation != "same" for pair in pairs)
    if html is not None:
        from rollcage_views.html import write_diff  # templates, only for a page

        with page_file(html, force=force) as page:
            write_diff(page, (seen[0], seen[1]), (found[0].at, found[1].at))
    elif as_json:
        shown = [pair_data(pair) for pair in pairs if all_steps or pair.relation != "same"]
        print_json(
            {"a": found[0].run, "b": found[1].run, "same": not differing,
             "compared": len(pairs), "steps": shown,
             "first_difference": None if first is None else pair_data(first),
             "standing": {name: each.as_data() for name, each in zip("ab", stands, strict=True)}}
        )  # fmt: skip
    else:
        if beside:
            from rollcage_cli.beside import print_beside

            print_beside(console(), pairs, (found[0].run[-12:], found[1].run[-12:]))
        else:
            _print(pairs, differing, all_steps=all_steps)
        for each, run, stand in zip(found, seen, stands, strict=True):
            for note in words(stand, run.status, each.run, each.at):
                console().print(Text(note, style="yellow"), soft_wrap=True)
    if differing:
        raise typer.Exit(DIFFERENT)


_SIGNS: Final = {"same": "=", "changed": "~", "only_a": "-", "only_b": "+"}
_STYLES: Final = {"same": "dim", "changed": "yellow", "only_a": "red", "only_b": "green"}


def _print(pairs: Sequence[Pair], differing: int, *, all_steps: bool) -> None:
    out = console()
    first = first_difference(pairs)
    shown = [pair for pair in pairs if all_steps or pair.relation != "same"]
    numbers = [
        ["—" if each is None else str(each.step) for each in (pair.a, pair.b)] for pair in shown
    ]
    a, b = (max((len(pair[side]) for pair in numbers), default=0) for side in (0, 1))
    for pair, (at_a, at_b) in zip(shown, numbers, strict=True):
        row = pair.a or pair.b
        assert row is not None
        mark = "  (the first difference)" if pair is first and differing > 1 else ""
        at = f"{_SIGNS[pair.relation]} {at_a:>{a}} / {at_b:<{b}}"
        out.print(Text(f"{at}  {visible(row.name)}{mark}", _STYLES[pair.relation]), soft_wrap=True)
        _print_changes(out, pair)
    out.print(f"{counted(len(pairs), 'step')} compared, {differing or 'none'} differ")


def _print_changes(out: Console, pair: Pair) -> None:
    """Print the differences of two steps, the values below one another."""
    shown = pair.changes[:_CHANGES]
    place = min(max((len(visible(each.path)) for each in shown), default=0), 40)
    for change in shown:
        was, now = (value_text(each)[:_VALUE] for each in (change.a, change.b))
        path = f"{visible(change.path)}:"
        out.print(f"    {path:<{place + 1}} {was} → {now}", soft_wrap=True)
    if len(pair.changes) > _CHANGES:
        out.print(f"    and {len(pair.changes) - _CHANGES} more")
