"""The documentation's tables say of each tool what its contract says."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rollcage_toolbox import Workspace, clock, system, text

PAGE = Path(__file__).parents[3] / "docs/toolbox.md"
ROWS = {
    row[1]: row
    for row in re.finditer(
        r"^\| `(\w+)\((.*?)\)` \| (\w+) \| (\w+) \|.*?\|(?: (.*?) ?\|)?$",
        PAGE.read_text(encoding="utf-8"),
        re.MULTILINE,
    )
}


def test_each_tool_is_documented_with_its_contract(workspace: Workspace) -> None:
    tools: list[Callable[..., Any]] = [*workspace, *text.TOOLS, *clock.TOOLS, *system.TOOLS]
    for tool in tools:
        contract: Any = vars(tool)["__rollcage_contract__"]
        row = ROWS[contract.name]
        assert [name for name in row[2].split(", ") if name] == list(
            contract.parameters.model_fields
        )
        assert (row[3], row[4]) == (contract.effect, contract.risk)
        if contract.effect == "write":
            assert (row[5] != "none") == (contract.undo is not None)


@pytest.mark.parametrize("name", ["path_absolute", "path_case", "path_hard_link", "path_encoded"])
def test_codes_of_refusals_stand_there(name: str) -> None:
    assert f"`{name}`" in PAGE.read_text(encoding="utf-8")
