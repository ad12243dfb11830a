"""The help of each command, on a terminal of 80 columns."""

from collections.abc import Iterator
from typing import Any

import pytest
from rollcage_cli.app import rollcage
from typer.main import get_group


def groups(group: Any, *names: str) -> Iterator[tuple[str, Any]]:
    """Yield the command and all its groups, each with its words."""
    yield " ".join(names), group
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        if hasattr(command, "commands"):
            yield from groups(command, *names, name)


GROUPS = dict(groups(get_group(rollcage), "rollcage"))


def test_all_packages_bring_their_commands() -> None:
    assert {"rollcage", "rollcage workflow", "rollcage mcp", "rollcage token"} <= GROUPS.keys()


@pytest.mark.parametrize("group", GROUPS)
def test_no_description_of_a_command_is_cut_off(group: str) -> None:
    with GROUPS[group].make_context(group, [], resilient_parsing=True, terminal_width=80) as made:
        _, _, commands = GROUPS[group].get_help(made).partition("Commands:\n")
    assert commands
    assert max(len(line) for line in commands.splitlines()) <= 80
    assert [line for line in commands.splitlines() if line.endswith(("...", "…"))] == []
