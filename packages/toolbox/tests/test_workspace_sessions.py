"""A workspace in real sessions: undone, resumed after a kill, and refused where others meddled."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rollcage import CaptureFailed, Session, list_runs, open_store, undo_run
from rollcage_toolbox import Workspace, text


@pytest.fixture
def filled(workspace: Workspace) -> Workspace:
    workspace.make_dir("d")
    workspace.write_file("d/a.txt", "one two\r\n")
    (workspace.root / "d/a.txt").chmod(0o640)
    (workspace.root / "big.bin").write_bytes(bytes(range(256)) * 1000)
    return workspace


def snapshot(root: Path) -> dict[str, Any]:
    """Every entry with its mode and content."""
    return {
        str(path.relative_to(root)): (path.stat().st_mode, path.is_file() and path.read_bytes())
        for path in root.rglob("*")
    }


def wreck(w: Workspace) -> None:
    """Something of everything that can be done to a folder."""
    w.write_file("new.txt", text.render_template("Hi {{ name }}", {"name": "Ann"}))
    w.append_file("d/a.txt", w.read_file("new.txt"))
    w.edit_file("d/a.txt", "two", "2")
    w.make_dir("x/y", parents=True)
    w.copy_file("d/a.txt", "x/y/b.txt")
    w.move_file("d/a.txt", "x/c.txt")
    w.archive("x", "x.zip")
    w.unarchive("x.zip", "out")
    w.write_file("out/c.txt", "changed again")
    w.delete_file("x.zip")
    w.delete_dir("d")
    w.move_file("big.bin", "new.txt", overwrite=True)
    w.delete_file("x/y/b.txt")


def test_everything_that_a_run_did_is_undone_and_verified(
    filled: Workspace, tmp_path: Path
) -> None:
    start = snapshot(filled.root)
    with Session("wreck", store=tmp_path / "store") as session:
        wreck(filled)
        assert snapshot(filled.root) != start
        report = session.undo()
        assert report.complete
        assert {each.status for each in report.steps} == {"verified"}
        assert len(report.steps) == 13
    assert snapshot(filled.root) == start


def test_a_finished_run_is_undone_by_another_process(filled: Workspace, tmp_path: Path) -> None:
    start = snapshot(filled.root)
    with Session("wreck", store=tmp_path / "store") as session:
        wreck(filled)
    program = f"""
import rollcage, rollcage_toolbox
workspace = rollcage_toolbox.Workspace({str(filled.root)!r})
report = rollcage.undo_run({str(tmp_path / "store")!r}, {session.run_id!r}, tools=workspace)
print(report.complete)
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    assert done.stdout.split() == [b"True"]
    assert snapshot(filled.root) == start


def test_large_contents_are_kept_next_to_the_log(filled: Workspace, tmp_path: Path) -> None:
    with Session("delete", store=tmp_path / "store") as session:
        filled.delete_file("big.bin")
    lines = open_store(tmp_path / "store").read(session.run_id)
    assert max(map(len, lines)) < 64 * 1024
    assert all(json.loads(line) for line in lines)


def test_what_somebody_else_changed_is_a_conflict_and_nothing_is_touched(
    filled: Workspace, tmp_path: Path
) -> None:
    with Session("wreck", store=tmp_path / "store") as session:
        filled.write_file("new.txt", "ours")
        filled.append_file("d/a.txt", "ours")
        (filled.root / "new.txt").write_text("theirs")
        now = snapshot(filled.root)
        report = session.undo()
        assert snapshot(filled.root) == now
    assert not report.complete
    conflicts = [each for each in report.steps if each.status == "conflict"]
    assert conflicts[-1].differs.keys() == {"file:new.txt"}
    assert "sha256" in conflicts[-1].differs["file:new.txt"]


def test_a_path_that_can_not_be_observed_never_runs(filled: Workspace, tmp_path: Path) -> None:
    (filled.root / "link").symlink_to("/etc")
    start = snapshot(filled.root / "d")
    with Session("hostile", store=tmp_path / "store"):
        for call in refused(filled):
            with pytest.raises(CaptureFailed, match=r"symbolic link|\.\."):
                call()
    assert snapshot(filled.root / "d") == start


def refused(w: Workspace) -> list[Callable[[], object]]:
    return [
        lambda: w.write_file("link/passwd", ""),
        lambda: w.delete_file("link"),
        lambda: w.move_file("d/a.txt", "../a.txt"),
    ]


def test_a_transaction_that_fails_leaves_the_folder_as_it_was(
    filled: Workspace, tmp_path: Path
) -> None:
    start = snapshot(filled.root)
    with Session("try", store=tmp_path / "store") as session:
        with pytest.raises(FileNotFoundError), session.transaction():
            wreck(filled)
            filled.edit_file("no.txt", "a", "b")
        assert snapshot(filled.root) == start


KILLED = """
import os, sys
import rollcage, rollcage_toolbox
from rollcage_toolbox.workspace import perform

root, store, when = sys.argv[1:]
workspace = rollcage_toolbox.Workspace(root)
rename = os.rename

def dying(source, target, **more):
    if target == "moved" and when == "before":
        os.kill(os.getpid(), 9)
    rename(source, target, **more)
    if target == "moved" and when == "after":
        os.kill(os.getpid(), 9)

os.rename = dying
with rollcage.Session("job", store=store) as session:
    workspace.append_file("d/a.txt", "more")
    print(workspace.move_file("d/a.txt", "moved"), flush=True)
    print(workspace.append_file("moved", "again")["size"], flush=True)
"""


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("then", ["undo", "resume"])
def test_a_run_that_was_killed_is_undone_or_goes_on(
    filled: Workspace, tmp_path: Path, when: str, then: str
) -> None:
    start, store = snapshot(filled.root), tmp_path / "store"
    command = [sys.executable, "-c", KILLED, str(filled.root), str(store)]
    assert subprocess.run([*command, when], check=False).returncode == -9
    if then == "resume":
        done = subprocess.run([*command, "never"], check=True, capture_output=True)
        assert done.stdout.split()[-1] == b"18"
        assert (filled.root / "moved").read_text() == "one two\r\nmoreagain".replace("\r\n", "\n")
        return
    (run,) = list_runs(store)
    report = undo_run(store, run.run, tools=filled)
    assert report.complete
    assert snapshot(filled.root) == start
