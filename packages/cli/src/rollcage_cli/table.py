"""A table without lines, with any number of rows.

Rich itself measures and wraps each cell several times, even a short one: a run of ten thousand
steps took longer to lay out than to read. This table measures a cell once, and never gives short or
plain cells to Rich.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Final, NamedTuple

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.text import Text

__all__ = ["Table"]

_GAP: Final = "  "  # between two columns
_NARROW: Final = 10  # minimal width of a wrapped column while another one can shrink

Cell = str | Text


class _Column(NamedTuple):
    title: str
    right: bool
    no_wrap: bool
    max_width: int | None


class Table:
    """Rows under titles, each column as wide as needed; `Console.print` shows it."""

    def __init__(self) -> None:
        self._columns: list[_Column] = []
        self._rows: list[Sequence[Cell]] = []

    def add_column(
        self,
        title: str,
        *,
        right: bool = False,
        no_wrap: bool = False,
        max_width: int | None = None,
    ) -> None:
        """Add a column; before the rows.

        Args:
            title: its heading.
            right: whether its cells are aligned to the right.
            no_wrap: whether a long cell is cut; otherwise it takes several lines, if the table
                is wider than the terminal.
            max_width: how many characters wide it may be.
        """
        self._columns.append(_Column(title, right, no_wrap, max_width))

    def add_row(self, *cells: Cell) -> None:
        """Add a row, with a cell for each column."""
        self._rows.append(cells)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the output for `Console.print`: each row as a line, or as several."""
        titles = [Text(column.title, style="table.header") for column in self._columns]
        rows = [titles, *self._rows]
        sizes = [[*map(_size, row)] for row in rows]
        widths = self._widths(sizes, options.max_width)
        styled = console.color_system is not None  # otherwise no style would reach the stream
        for row, lengths in zip(rows, sizes, strict=True):
            cells = row if styled else [*map(str, row)]
            if all(map(int.__le__, lengths, widths)):
                yield from self._line(cells, lengths, widths, console)
                continue
            for line in self._lines(cells, lengths, widths, console):
                yield from self._line(line, [*map(_size, line)], widths, console)

    def _widths(self, sizes: Sequence[Sequence[int]], room: int) -> list[int]:
        """Return the widths of the columns, so that all of them have room."""
        widths = [0] * len(self._columns)
        for row in sizes:
            widths = [*map(max, widths, row)]
        for at, column in enumerate(self._columns):
            if column.max_width is not None:
                widths[at] = min(widths[at], column.max_width)
        excess = sum(widths) + len(_GAP) * (len(widths) - 1) - room
        wrapped = [at for at, column in enumerate(self._columns) if not column.no_wrap]
        for giving, least in ((wrapped, _NARROW), (range(len(widths)), 1)):
            while excess > 0 and any(widths[at] > least for at in giving):
                widths[max(giving, key=widths.__getitem__)] -= 1
                excess -= 1
        return widths

    def _lines(
        self,
        cells: Sequence[Cell],
        lengths: Sequence[int],
        widths: Sequence[int],
        console: Console,
    ) -> Iterator[list[Cell]]:
        """Yield the lines of a row with a long cell."""
        columns: list[Sequence[Cell]] = []
        for cell, length, width, column in zip(cells, lengths, widths, self._columns, strict=True):
            if length <= width:
                columns.append([cell])
            elif column.no_wrap:
                text = cell.copy() if isinstance(cell, Text) else Text(cell)
                text.truncate(width, overflow="ellipsis")
                columns.append([text])
            else:
                columns.append(_wrapped(cell, width, console))
        yield from map(list, zip_longest(*columns, fillvalue=""))

    def _line(
        self,
        cells: Sequence[Cell],
        lengths: Sequence[int],
        widths: Sequence[int],
        console: Console,
    ) -> Iterator[Segment]:
        """Return one line, in which every cell fits."""
        text = gap = ""
        for cell, length, width, column in zip(cells, lengths, widths, self._columns, strict=True):
            padding = " " * (width - length)
            text += gap + padding if column.right else gap
            gap = _GAP
            if isinstance(cell, str):
                text += cell
            else:
                yield Segment(text)
                if cell.spans:
                    yield from cell.render(console)
                else:  # `render` leaves the style of the whole text to its caller
                    yield Segment(cell.plain, console.get_style(cell.style, default=""))
                text = ""
            if not column.right:
                text += padding
        yield Segment(f"{text}\n")


def _size(cell: Cell) -> int:
    return cell_len(cell if isinstance(cell, str) else cell.plain)


def _wrapped(cell: Cell, width: int, console: Console) -> Sequence[Cell]:
    """Split a cell into lines of at most `width`."""
    text = str(cell)
    if not text.isascii() or (isinstance(cell, Text) and cell.spans):
        whole = cell if isinstance(cell, Text) else Text(cell)
        return [*whole.wrap(console, width, overflow="fold")]
    lines: list[str] = []
    while len(text) > width:
        end = text.rfind(" ", 1, width + 1)
        if end < 0:
            end = width
        lines.append(text[:end])
        text = text[end:].lstrip(" ")
    lines.append(text)
    return [Text(line, style=cell.style) for line in lines] if isinstance(cell, Text) else lines
