"""What the commands say of outputs that drift, and of what bodies touch undeclared."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from rollcage import OutputDrift, Session, tool
from rollcage_policy.permissions import Permissions

Cli = Callable[..., Any]


@pytest.fixture
def run(store: Path, tmp_path: Path) -> str:
    """A run with one of each; its id."""

    @tool(effect="read", on_drift="error")
    def look(what: str) -> dict[str, int]:
        return cast("dict[str, int]", {what: "canary-value"})

    @tool(effect="read", on_drift="report")
    def loose() -> int:
        return cast("int", "3")

    @tool(effect="read", permissions=["none"])
    def peek(name: str) -> str:
        return (tmp_path / name).read_text()

    (tmp_path / "canary-file").write_text("x")
    with Session("job", store=store, stages=[Permissions("report")]) as session:
        with pytest.raises(OutputDrift):
            look("canary-key")
        loose()
        peek("canary-file")
    return session.run_id


def test_show_tells_of_both(cli: Cli, run: str, tmp_path: Path) -> None:
    table = cli("show", run, "--json").data
    first, second, third = table["steps"]
    assert first["outcome"]["drift"]["code"] == "output_wrong_type"
    assert second["outcome"]["drift"]["reported"] is True
    assert third["undeclared"] == [f"fs:read:{tmp_path}/canary-file"]
    out = cli("show", run).out
    assert "output_wrong_type at $.c" in out
    assert "undeclared: fs:read" in out


@pytest.mark.parametrize("options", [["--redact", "what", "--redact", "name"], ["--no-values"]])
def test_an_export_leaves_out_what_they_quote(
    cli: Cli, run: str, tmp_path: Path, options: list[str]
) -> None:
    exported = cli("export", run, *options)
    assert exported.code == 0, exported.err
    assert "$.canary-key" not in exported.out
    assert "canary-file" not in exported.out
    path = tmp_path / f"{run}.jsonl"
    path.write_text(exported.out, encoding="utf-8", newline="")
    assert cli("verify", path, "--json").data["findings"] == []
