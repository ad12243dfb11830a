"""The layout of a plan's drawing: rows of steps, each step below the steps before it."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from rollcage_workflow.outline import Box, Outline

__all__ = ["Layout", "Line", "NodePlace", "layout_of"]

_WIDTH: Final = 208  # of a step without inner steps
_LINE: Final = 17  # of text
_GAP: Final = 18  # between two steps of a row
_ROW: Final = 34  # between two rows
_EDGE: Final = 14  # around the steps inside a step
_BESIDE: Final = 12  # between two jumps
_MOST: Final = 6  # steps in a row; more are split into several rows

Size = tuple[int, int]


@dataclasses.dataclass(frozen=True, slots=True)
class NodePlace:
    """A step in the drawing, from the left and from the top.

    Attributes:
        path: the names of its enclosing steps, and its own.
        lines: how many lines of text it has room for.
    """

    box: Box
    path: tuple[str, ...]
    x: int
    y: int
    width: int
    height: int
    lines: int

    def moved(self, x: int, y: int, inside: str) -> NodePlace:
        """Return the place inside of a step at these coordinates."""
        return dataclasses.replace(self, x=self.x + x, y=self.y + y, path=(inside, *self.path))


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """A line from one step to another: its points; `back` is a jump."""

    points: tuple[tuple[int, int], ...]
    back: bool = False

    def moved(self, x: int, y: int) -> Line:
        """Return the line inside of a step at these coordinates."""
        return Line(tuple((one + x, two + y) for one, two in self.points), self.back)


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """A drawing; inner steps come after their enclosing step."""

    width: int
    height: int
    places: tuple[NodePlace, ...]
    lines: tuple[Line, ...]


def layout_of(outline: Outline) -> Layout:
    """Return the place of each step of a plan."""
    return _block(outline.boxes)


@dataclasses.dataclass(slots=True)
class _Cell:
    """A step in a row; or, without one, room for a line that passes the row."""

    row: int
    box: Box | None = None
    inner: Layout | None = None
    size: Size = (2, 0)
    above: list[_Cell] = dataclasses.field(default_factory=list["_Cell"])
    below: list[_Cell] = dataclasses.field(default_factory=list["_Cell"])
    at: float = 0.0
    x: int = 0
    y: int = 0
    end: int = 0  # the end of its row, from the top


def _block(boxes: Sequence[Box]) -> Layout:
    cells = {box.name: _cell(box) for box in boxes}
    needs = _direct(boxes)
    _set_rows(cells, needs)
    rows: list[list[_Cell]] = [[] for _ in range(1 + max(each.row for each in cells.values()))]
    for cell in (*cells.values(), *_joined(cells, needs)):
        rows[cell.row].append(cell)
    _untangle(rows)
    width, height = _set_places(rows)
    lines = [line for row in rows for cell in row for line in _lines_below(cell)]
    backs = [each for each in cells.values() if each.box is not None and each.box.jump is not None]
    for number, cell in enumerate(backs, 1):
        assert cell.box is not None
        assert cell.box.jump is not None
        target = cells.get(cell.box.jump.to)
        if target is not None:
            lines.append(_way_back(cell, target, width + number * _BESIDE))
    places: list[NodePlace] = []
    for cell in cells.values():
        assert cell.box is not None
        count = _lines_of(cell.box)
        places.append(NodePlace(cell.box, (cell.box.name,), cell.x, cell.y, *cell.size, count))
        if cell.inner is not None:
            x, y = cell.x + _EDGE, cell.y + _head(count)
            places += [each.moved(x, y, cell.box.name) for each in cell.inner.places]
            lines += [each.moved(x, y) for each in cell.inner.lines]
    return Layout(width + (len(backs) + 1) * _BESIDE, height, tuple(places), tuple(lines))


def _cell(box: Box) -> _Cell:
    head = _head(_lines_of(box))
    if not box.inner:
        return _Cell(0, box, None, (_WIDTH, head))
    inner = _block(box.inner)
    size = max(_WIDTH, inner.width + 2 * _EDGE), head + inner.height + _EDGE
    return _Cell(0, box, inner, size)


def _lines_of(box: Box) -> int:
    """Return how many lines a step has: its name, its state, and its caption."""
    return 2 + bool(box.says) + bool(box.when) + (box.jump is not None)


def _head(lines: int) -> int:
    return lines * _LINE + 14


def _direct(boxes: Sequence[Box]) -> dict[str, list[str]]:
    """Return the steps directly before each step."""
    bits: dict[str, int] = {}
    above: dict[str, int] = {}
    found: dict[str, list[str]] = {}
    for number, box in enumerate(boxes):
        bits[box.name] = 1 << number
        further = 0
        for name in box.before:
            further |= above[name]
        found[box.name] = [name for name in dict.fromkeys(box.before) if not bits[name] & further]
        above[box.name] = further
        for name in found[box.name]:
            above[box.name] |= bits[name]
    return found


def _set_rows(cells: dict[str, _Cell], needs: dict[str, list[str]]) -> None:
    """Set each step's row below all steps before it, with a limited number in a row."""
    held: Counter[int] = Counter()
    for name, cell in cells.items():
        cell.row = max((cells[each].row + 1 for each in needs[name]), default=0)
        while held[cell.row] >= _MOST:
            cell.row += 1
        held[cell.row] += 1


def _joined(cells: dict[str, _Cell], needs: dict[str, list[str]]) -> list[_Cell]:
    """Join each step with the steps before it; return the cells that lines pass through.

    Lines from one step, and lines to one step, run together as far as they can.
    """
    leave = Counter(each for names in needs.values() for each in names)
    ways: dict[tuple[str, bool], dict[int, _Cell]] = {}
    made: list[_Cell] = []
    for name, names in needs.items():
        for each in names:
            first, last = cells[each], cells[name]
            comes = len(names) > leave[each]
            way = ways.setdefault((name if comes else each, comes), {})
            chain = [first]
            for row in range(first.row + 1, last.row):
                if row not in way:
                    way[row] = _Cell(row)
                    made.append(way[row])
                chain.append(way[row])
            for one, two in zip(chain, [*chain[1:], last], strict=True):
                if all(other is not two for other in one.below):
                    one.below.append(two)
                    two.above.append(one)
    return made


def _untangle(rows: list[list[_Cell]]) -> None:
    """Order each row by its connections, so that fewer lines cross."""
    for row in rows:
        _number(row)
    for _ in range(2):
        for row in rows[1:]:
            _sort(row, down=True)
        for row in rows[-2::-1]:
            _sort(row, down=False)


def _sort(row: list[_Cell], *, down: bool) -> None:
    for cell in row:
        joined = cell.above if down else cell.below
        if joined:
            cell.at = sum(each.at for each in joined) / len(joined)
    row.sort(key=lambda cell: cell.at)
    _number(row)


def _number(row: Iterable[_Cell]) -> None:
    cells = list(row)
    for number, cell in enumerate(cells):
        cell.at = (number + 0.5) / len(cells)


def _set_places(rows: list[list[_Cell]]) -> Size:
    wide = [sum(cell.size[0] for cell in row) + _GAP * (len(row) - 1) for row in rows]
    width, y = max(wide), 0
    for row, own in zip(rows, wide, strict=True):
        x = (width - own) // 2
        tall = max(cell.size[1] for cell in row)
        for cell in row:
            cell.x, cell.y, cell.end = x, y, y + tall
            if cell.box is None:
                cell.size = cell.size[0], tall
            x += cell.size[0] + _GAP
        y += tall + _ROW
    return width, y - _ROW


def _lines_below(cell: _Cell) -> Iterable[Line]:
    """Yield the lines from a cell to the row below, and past its own row."""
    x, foot = cell.x + cell.size[0] // 2, cell.y + cell.size[1]
    if cell.box is None:
        yield Line(((x, cell.y), (x, foot)))
    elif foot < cell.end and cell.below:
        yield Line(((x, foot), (x, cell.end)))  # beside a taller one
    for each in cell.below:
        yield Line(((x, cell.end), (each.x + each.size[0] // 2, each.y)))


def _way_back(cell: _Cell, target: _Cell, x: int) -> Line:
    """Return the line of a jump: beside the block, up or down to another step."""
    start = cell.x + cell.size[0], cell.y + cell.size[1] // 2
    end = target.x + target.size[0], target.y + target.size[1] // 2 - 8
    return Line((start, (x, start[1]), (x, end[1]), end), back=True)
