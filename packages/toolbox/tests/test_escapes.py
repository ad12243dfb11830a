"""Nothing gets out of a workspace, and what is harmless passes."""

import json
import os
from pathlib import Path
from types import ModuleType

import pytest
from rollcage_toolbox.workspace import place


def test_no_hostile_path_gets_through_and_every_benign_one_does(
    escapes: ModuleType, tmp_path: Path
) -> None:
    rows = escapes.run(tmp_path)
    assert escapes.sound(rows), escapes.table(rows)
    assert sum(row.hostile for row in rows) >= 200
    assert sum(row.benign for row in rows) >= 40


@pytest.mark.parametrize("flags", ["_DIRECTORY", "_FILE"])
def test_the_corpus_notices_links_that_are_followed(
    escapes: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: str
) -> None:
    monkeypatch.setattr(place, flags, getattr(place, flags) & ~os.O_NOFOLLOW)
    monkeypatch.setattr(place, "refuse_special", lambda status, path: None)
    (tmp_path / "links").mkdir()
    paths = ["link_dir/single.txt", "link_rel"]
    assert escapes.run_paths(tmp_path / "links", "links", paths, []).through


def test_the_command_prints_a_table_or_data(
    escapes: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = escapes.Row("one", 3, 9, 0, 1, 1)
    monkeypatch.setattr(escapes, "run", lambda base: [row])
    monkeypatch.setattr("sys.argv", ["escapes.py"])
    assert escapes.main() == 0
    assert capsys.readouterr().out.split()[-6:] == ["all", "3", "9", "0", "1", "1"]
    monkeypatch.setattr(escapes, "run", lambda base: [row._replace(through=1)])
    monkeypatch.setattr("sys.argv", ["escapes.py", "--json"])
    assert escapes.main() == 1
    assert json.loads(capsys.readouterr().out)[0]["through"] == 1
