"""A table has room for its cells, or makes some: nothing is lost where a column may wrap."""

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text
from rollcage_cli.table import Table


def printed(table: Table, width: int, *, colours: bool = False) -> list[str]:
    out = io.StringIO()
    forced = {"force_terminal": True, "color_system": "standard"} if colours else {}
    Console(file=out, width=width, **forced).print(table)  # type: ignore[arg-type]
    return out.getvalue().splitlines()


def two_columns(*rows: tuple[str | Text, str | Text]) -> Table:
    table = Table()
    table.add_column("step", right=True, no_wrap=True)
    table.add_column("what")
    for row in rows:
        table.add_row(*row)
    return table


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    assert printed(two_columns(("1", "short"), ("100000", "a longer one")), 80) == [
        "  step  what        ",
        "     1  short       ",
        "100000  a longer one",
    ]


def test_what_is_too_long_goes_on_below() -> None:
    assert printed(two_columns(("1", "one two three four five six")), 20) == [
        "step  what          ",
        "   1  one two three ",
        "      four five six ",
    ]


def test_what_may_not_wrap_is_cut() -> None:
    table = Table()
    table.add_column("name", no_wrap=True, max_width=6)
    table.add_row("abcdefghij")
    assert printed(table, 80) == ["name  ", "abcde…"]


def test_styles_reach_a_terminal_only() -> None:
    table = two_columns(("1", Text("ran", style="green")), ("2", Text("ok").append("!", "red")))
    assert printed(table, 80)[1:] == ["   1  ran ", "   2  ok! "]
    first, second = printed(table, 80, colours=True)[1:]
    assert "\x1b[32mran\x1b[0m" in first
    assert "ok\x1b[31m!\x1b[0m" in second


@pytest.mark.parametrize("styled", [False, True])
@given(st.lists(st.text("ab 界é", max_size=40), min_size=1, max_size=5), st.integers(20, 60))
def test_every_line_fits_and_every_letter_is_there(
    styled: bool, cells: list[str], width: int
) -> None:
    rows = [("1", Text(cell, style="red") if styled else cell) for cell in cells]
    lines = printed(two_columns(*rows), width, colours=styled)
    plain = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in lines]
    assert all(cell_len(line) <= width for line in plain)
    shown = "".join(line[6:] for line in plain[1:]).replace(" ", "")
    assert shown == "".join(cells).replace(" ", "")
