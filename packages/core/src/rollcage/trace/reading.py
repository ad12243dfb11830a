"""Fold a log into its run: check, parse and fold each line, and keep none."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from rollcage.trace.chain import checked_lines
from rollcage.trace.lines import BAD, check_line
from rollcage.trace.run import Outcome, Run, misfit

if TYPE_CHECKING:
    from rollcage.trace.run import Fold

__all__ = ["fold_log"]

_VALUE: Final = b',"outcome":'
_TAIL: Final = -76  # where `,"hash":"…"}` and a newline begin
_PLAIN: Final = 5  # fields of an outcome's line that has a duration and nothing else
_BRACE: Final = 125


def fold_log(lines: Iterable[bytes], where: str, folds: dict[str, list[Fold]]) -> Run:
    """Return the run folded from the lines of a log; no line is kept.

    An outcome is taken as the recorded bytes if it can be cut out of its line: only numbers stand
    before it then, and the hash behind it.

    Args:
        lines: all lines, from the first.
        where: the name of the log in errors.
        folds: by kind of line, functions that receive each line.

    Raises:
        TraceCorrupt: the lines were changed or damaged, or belong to no run.
        StoreError: the log has another format, or can't be read.
    """
    run = Run(folds)
    apply = run.apply
    number = 0
    with _no_garbage():
        try:
            for event, line in checked_lines(lines, where):
                number += 1
                check_line(run, event)
                outcome: Outcome | None = None
                if (
                    len(event) == _PLAIN
                    and event["event"] == "outcome"
                    and "duration" in event
                    and line[_TAIL - 1] == _BRACE
                ):
                    data = line[line.find(_VALUE) + 11 : _TAIL]
                    outcome = Outcome.of(event["outcome"], data)
                apply(event, outcome)
        except BAD as error:
            raise misfit(where, number, error) from None
    return run


@contextmanager
def _no_garbage() -> Iterator[None]:
    """Keep the garbage collector from scanning a growing run again and again."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
