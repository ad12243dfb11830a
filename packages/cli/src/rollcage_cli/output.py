"""Output for the terminal, which can't command it, and JSON for machines.

A trace is hostile input. `visible` removes the control characters of every printed part of it, and
no console here knows markup, so that `[red]` in a tool's argument is five characters.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Generator
from typing import IO, Any, Final, TextIO

from rich.console import Console
from rollcage_views import arguments_text, counted, escape_json, value_text, visible

__all__ = [
    "arguments_text",
    "console",
    "counted",
    "escape_json",
    "is_terminal",
    "paged",
    "print_json",
    "value_text",
    "visible",
]

_PIPE_WIDTH: Final = 160  # columns, if no terminal tells its width


def is_terminal(stream: IO[str]) -> bool:
    """Return whether the stream goes to a terminal."""
    return stream.isatty()


def console(*, error: bool = False, to: TextIO | None = None) -> Console:
    """Return a console on stdout, stderr or `to`; plain off a terminal and with NO_COLOR."""
    stream = to or (sys.stderr if error else sys.stdout)
    width = None if is_terminal(stream) or "COLUMNS" in os.environ else _PIPE_WIDTH
    return Console(file=stream, markup=False, emoji=False, highlight=False, width=width)


@contextlib.contextmanager
def paged() -> Generator[Console]:
    """Give a console on stdout; on a terminal, long output goes through `PAGER`."""
    out = console()
    if not (is_terminal(sys.stdout) and is_terminal(sys.stdin)):
        yield out
        return
    with out.capture() as captured:
        yield out
    text = captured.get()
    if text.count("\n") < out.height:
        out.file.write(text)
        return
    from rich.pager import SystemPager

    os.environ.setdefault("LESS", "-RX")  # shows colours, and does not clear the screen
    SystemPager().show(text)


def print_json(data: Any, *, error: bool = False) -> None:
    """Print one JSON document on stdout, or on stderr; ASCII only."""
    text = json.dumps(data, indent=2).replace("\x7f", "\\u007f")
    print(text, file=sys.stderr if error else sys.stdout)
