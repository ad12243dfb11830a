"""Tools that an adapter guards are named on the command line as others are."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from rollcage import Contract, Session
from rollcage_adapter import GUARD, GuardedTool
from rollcage_cli.tools import load_tools

WEATHER = Contract(name="weather", parameters={"properties": {"city": {"type": "string"}}})


@pytest.mark.parametrize("spec", ["guardedtools:TOOLS", "guardedtools:ONE", "guardedtools"])
def test_a_guarded_tool_is_its_contract(
    spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guarded = SimpleNamespace(**{GUARD: GuardedTool(Session("job", store=tmp_path), WEATHER)})
    module = ModuleType("guardedtools")
    vars(module).update(TOOLS=[guarded], ONE=guarded, OTHER=SimpleNamespace())
    monkeypatch.setitem(sys.modules, "guardedtools", module)
    assert load_tools([spec]) == [WEATHER]
