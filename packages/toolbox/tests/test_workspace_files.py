"""What each tool of a workspace does, and how it refuses."""

import base64
import hashlib
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from rollcage_toolbox import (
    EditRefused,
    InputRefused,
    LimitExceeded,
    Limits,
    NotText,
    PathRefused,
    Workspace,
)
from rollcage_toolbox.workspace.names import TEMPORARY


def names(folder: Path) -> list[str]:
    """What is really in a folder, unfinished files too."""
    return [each.name for each in folder.iterdir()]


# --- the workspace -------------------------------------------------------------------------------


def test_a_folder_must_be_there_or_is_made(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Workspace(tmp_path / "no")
    Workspace(tmp_path / "a/b", create=True).close()
    assert (tmp_path / "a/b").is_dir()


@pytest.mark.parametrize(
    "wrong", [{"name": "A b"}, {"file_mode": 0o4755}, {"dir_mode": 0o644}, {"name": "1"}]
)
def test_settings_that_can_not_be_meant_are_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"name=|modes"):
        Workspace(tmp_path, **wrong)


def test_a_closed_workspace_does_nothing(tmp_path: Path) -> None:
    with Workspace(tmp_path) as workspace:
        workspace.write_file("a", "1")
    with pytest.raises(OSError, match="descriptor"):
        workspace.read_file("a")


def test_what_takes_the_folders_place_is_not_looked_at(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    with Workspace(tmp_path / "work") as workspace:
        (tmp_path / "work").rename(tmp_path / "moved")
        (tmp_path / "work").symlink_to("/etc")
        workspace.write_file("a", "1")
    assert (tmp_path / "moved/a").read_text() == "1"


def test_contracts_say_what_each_tool_does(tmp_path: Path) -> None:
    with Workspace(tmp_path, name="inbox") as workspace:
        contracts = {f.__name__: contract_of(f) for f in workspace}
    for name, contract in contracts.items():
        assert contract.name == f"inbox_{name}"
        assert contract.version == "1"
        assert contract.description
        assert contract.risk in {"low", "medium", "high"}
        writes = contract.effect == "write"
        assert writes == (
            name not in {"read_file", "list_dir", "find_files", "hash_file", "disk_space"}
        )
        assert (f"fs:write:{tmp_path}" in contract.permissions) == writes
        assert bool(contract.observe) == writes
        assert bool(contract.undo) == (writes and name != "remove_unpacked")
    assert contracts["write_file"].parameter_names == {"path", "content", "encoding", "overwrite"}


def test_an_agent_gets_no_undo_tools_and_can_be_kept_from_writing(workspace: Workspace) -> None:
    given = [f.__name__ for f in workspace.tools()]
    assert not {f.__name__ for f in workspace.undo_tools()} & set(given)
    assert len(given) == len(set(given)) == 15
    only = workspace.tools(read_only=True)
    assert {contract_of(f).effect for f in only} == {"read"}


def contract_of(function: Callable[..., Any]) -> Any:
    return vars(function)["__rollcage_contract__"]


# --- reading -------------------------------------------------------------------------------------


def test_text_is_read_as_it_is(workspace: Workspace) -> None:
    text = "one\r\ntwo\n\u2028three\n\nfünf"
    workspace.write_file("a.txt", text)
    assert workspace.read_file("a.txt") == workspace.read_file("./a.txt") == text
    assert workspace.read_file("a.txt", first_line=2, max_lines=1) == "two\n"
    assert workspace.read_file("a.txt", first_line=4) == "\nfünf"
    assert workspace.read_file("a.txt", first_line=9) == ""


def test_bytes_are_read_and_written_in_base64(workspace: Workspace) -> None:
    data = bytes(range(256))
    workspace.write_file("a.bin", base64.b64encode(data).decode(), encoding="base64")
    assert (workspace.root / "a.bin").read_bytes() == data
    assert base64.b64decode(workspace.read_file("a.bin", encoding="base64")) == data
    with pytest.raises(NotText, match=r"byte 128.*base64"):
        workspace.read_file("a.bin")
    with pytest.raises(NotText, match="not base64"):
        workspace.write_file("a.bin", "ä", encoding="base64")
    with pytest.raises(NotText, match="not Unicode"):
        workspace.write_file("a.bin", "\ud800")
    with pytest.raises(InputRefused, match="no lines"):
        workspace.read_file("a.bin", encoding="base64", first_line=2)
    with pytest.raises(InputRefused, match="count from 1"):
        workspace.read_file("a.bin", first_line=0)


def test_a_directory_is_listed_with_what_no_tool_takes(workspace: Workspace) -> None:
    workspace.write_file("b.txt", "12")
    workspace.make_dir("a")
    (workspace.root / "link").symlink_to("b.txt")
    (workspace.root / (TEMPORARY + "x")).touch()
    (workspace.root / os.fsdecode(b"\xff")).mkdir()
    assert workspace.list_dir() == [
        {"name": "a", "kind": "dir", "size": 0},
        {"name": "b.txt", "kind": "file", "size": 2},
        {"name": "link", "kind": "refused", "size": 0},
        {"name": "\\xff", "kind": "refused", "size": 0},
    ]
    assert workspace.list_dir("a/") == []
    with pytest.raises(NotADirectoryError):
        workspace.list_dir("b.txt")
    with pytest.raises(FileNotFoundError):
        workspace.list_dir("c")


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*.txt", ["a.txt"]),
        ("**/*.txt", ["a.txt", "d/b.txt", "d/e/c.txt"]),
        ("d/**", ["d/b.txt", "d/e/c.txt"]),
        ("d/**/c.*", ["d/e/c.txt"]),
        ("**/[ab].txt", ["a.txt", "d/b.txt"]),
        ("**/[!a]*", ["d/b.txt", "d/e/c.txt"]),
        ("**", ["a.txt", "d/b.txt", "d/e/c.txt"]),
        ("?.md", []),
    ],
)
def test_files_are_found_by_pattern(workspace: Workspace, pattern: str, found: list[str]) -> None:
    workspace.make_dir("d/e", parents=True)
    for name in ("a.txt", "d/b.txt", "d/e/c.txt"):
        workspace.write_file(name, "")
    (workspace.root / "d/link.txt").symlink_to("b.txt")
    (workspace.root / "around").symlink_to("d")
    assert workspace.find_files(pattern) == found


def test_files_are_found_below_a_directory(workspace: Workspace) -> None:
    workspace.make_dir("d/e", parents=True)
    workspace.write_file("d/e/c.txt", "")
    assert workspace.find_files("e/*", path="d") == ["d/e/c.txt"]
    for pattern in ("/".join(["**"] * 9), "*a*a*a*a*a*a*a*a*b"):
        with pytest.raises(InputRefused, match="wildcards"):
            workspace.find_files(pattern)


def test_hash_and_disk(workspace: Workspace) -> None:
    workspace.write_file("a", "x" * 3_000_000)
    digest = hashlib.sha256(b"x" * 3_000_000).hexdigest()
    assert workspace.hash_file("a") == {"path": "a", "size": 3_000_000, "sha256": digest}
    space = workspace.disk_space()
    assert 0 < space["free"] <= space["total"]


# --- writing -------------------------------------------------------------------------------------


def test_a_file_is_made_and_overwritten_with_its_mode_kept(workspace: Workspace) -> None:
    made = workspace.write_file("a.sh", "one")
    assert made == {
        "path": "a.sh",
        "size": 3,
        "created": True,
        "sha256": hashlib.sha256(b"one").hexdigest(),
    }
    assert mode(workspace, "a.sh") == 0o644
    (workspace.root / "a.sh").chmod(0o750)
    assert workspace.write_file("a.sh", "two")["created"] is False
    assert mode(workspace, "a.sh") == 0o750
    with pytest.raises(FileExistsError):
        workspace.write_file("a.sh", "three", overwrite=False)
    assert workspace.read_file("a.sh") == "two"


def mode(workspace: Workspace, path: str) -> int:
    return stat.S_IMODE((workspace.root / path).stat().st_mode)


def test_modes_of_new_files_and_directories_are_the_workspaces(tmp_path: Path) -> None:
    with Workspace(tmp_path, file_mode=0o600, dir_mode=0o700, sync=True) as workspace:
        workspace.make_dir("d")
        workspace.write_file("d/a", "")
        assert (mode(workspace, "d"), mode(workspace, "d/a")) == (0o700, 0o600)


def test_append_makes_a_file_or_adds_to_it(workspace: Workspace) -> None:
    assert workspace.append_file("log", "a\n")["created"] is True
    assert workspace.append_file("log", "b\n")["created"] is False
    assert workspace.read_file("log") == "a\nb\n"


def test_edit_replaces_what_occurs_exactly_once(workspace: Workspace) -> None:
    workspace.write_file("a", "one two aaa")
    workspace.edit_file("a", "two", "2")
    assert workspace.read_file("a") == "one 2 aaa"
    for old in ("three", "", "a", "aa"):
        with pytest.raises(EditRefused):
            workspace.edit_file("a", old, "x")
    with pytest.raises(FileNotFoundError):
        workspace.edit_file("b", "x", "y")


def test_copy_and_move_keep_content_and_mode(workspace: Workspace) -> None:
    workspace.write_file("a", "1")
    (workspace.root / "a").chmod(0o640)
    workspace.make_dir("d")
    inode = (workspace.root / "a").stat().st_ino
    workspace.copy_file("a", "d/b")
    assert workspace.move_file("a", "d/c")["moved"] == "a"
    assert workspace.find_files("**") == ["d/b", "d/c"]
    assert mode(workspace, "d/b") == mode(workspace, "d/c") == 0o640
    assert (workspace.root / "d/c").stat().st_ino == inode


@pytest.mark.parametrize("tool", ["copy_file", "move_file"])
def test_copy_and_move_overwrite_only_when_asked(workspace: Workspace, tool: str) -> None:
    call = getattr(workspace, tool)
    workspace.write_file("a", "1")
    workspace.write_file("b", "2")
    workspace.make_dir("d")
    with pytest.raises(FileExistsError):
        call("a", "b")
    with pytest.raises(FileExistsError):
        call("a", "a", overwrite=True)
    with pytest.raises(IsADirectoryError):
        call("a", "d", overwrite=True)
    with pytest.raises(IsADirectoryError):
        call("d", "e")
    with pytest.raises(FileNotFoundError):
        call("no", "e")
    with pytest.raises(FileNotFoundError):
        call("a", "no/e")
    call("a", "b", overwrite=True)
    assert workspace.read_file("b") == "1"


def test_directories_are_made_and_deleted_empty(workspace: Workspace) -> None:
    assert workspace.make_dir("a/b/c", parents=True)["made"] == ["a", "a/b", "a/b/c"]
    assert workspace.make_dir("a/b", parents=True)["made"] == []
    with pytest.raises(FileExistsError):
        workspace.make_dir("a")
    with pytest.raises(FileNotFoundError):
        workspace.make_dir("x/y")
    with pytest.raises(OSError, match="not empty"):
        workspace.delete_dir("a/b")
    workspace.delete_dir("a/b/c")
    workspace.write_file("f", "")
    with pytest.raises(NotADirectoryError):
        workspace.delete_dir("f")
    with pytest.raises(FileNotFoundError):
        workspace.delete_dir("a/b/c")
    with pytest.raises(FileExistsError):
        workspace.make_dir("f", parents=True)


def test_delete_takes_files_only(workspace: Workspace) -> None:
    workspace.write_file("a", "1")
    workspace.make_dir("d")
    workspace.delete_file("a")
    assert [each["name"] for each in workspace.list_dir()] == ["d"]
    with pytest.raises(FileNotFoundError):
        workspace.delete_file("a")
    with pytest.raises(IsADirectoryError):
        workspace.delete_file("d")
    with pytest.raises(IsADirectoryError):
        workspace.write_file("d", "")
    workspace.write_file("a", "1")
    with pytest.raises(NotADirectoryError):
        workspace.write_file("a/b", "")


# --- limits --------------------------------------------------------------------------------------


def test_limits_refuse_and_change_nothing(tmp_path: Path) -> None:
    limits = Limits(file_bytes=10, read_bytes=4, hash_bytes=10, entries=3, archive_bytes=10)
    with Workspace(tmp_path, limits=limits) as workspace:
        workspace.write_file("a", "1234567890")
        for call in (
            lambda: workspace.write_file("b", "12345678901"),
            lambda: workspace.append_file("a", "1"),
            lambda: workspace.read_file("a"),
            lambda: workspace.read_file("a", max_lines=1),
        ):
            with pytest.raises(LimitExceeded):
                call()
        (tmp_path / "a").write_text("x" * 11)
        for call in (
            lambda: workspace.hash_file("a"),
            lambda: workspace.delete_file("a"),
            lambda: workspace.copy_file("a", "b"),
            lambda: workspace.write_file("a", ""),
        ):
            with pytest.raises(LimitExceeded):
                call()
        assert names(tmp_path) == ["a"]
        for name in "bcde":
            (tmp_path / name).touch()
        for look in (workspace.list_dir, lambda: workspace.find_files("*")):
            with pytest.raises(LimitExceeded, match="3 entries"):
                look()


def test_a_hard_linked_file_is_read_where_that_is_wanted(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "one").write_text("1")
    (tmp_path / "work/two").hardlink_to(tmp_path / "one")
    with Workspace(tmp_path / "work") as strict, pytest.raises(PathRefused) as caught:
        strict.read_file("two")
    assert caught.value.code == "path_hard_link"
    with Workspace(tmp_path / "work", read_hard_links=True) as workspace:
        assert workspace.read_file("two") == "1"
        workspace.copy_file("two", "three")
        with pytest.raises(PathRefused):
            workspace.write_file("two", "owned")
    assert (tmp_path / "one").read_text() == "1"


def test_set_user_id_files_are_not_changed(workspace: Workspace) -> None:
    workspace.write_file("a", "1")
    (workspace.root / "a").chmod(0o4755)
    with pytest.raises(PathRefused, match="set-user-id"):
        workspace.write_file("a", "2")
    with pytest.raises(PathRefused, match="permissions"):
        workspace.restore_file("b", b"", 0o4755)


# --- at once, and after a kill -------------------------------------------------------------------


def test_tools_that_add_to_one_file_at_once_lose_nothing(workspace: Workspace) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: workspace.append_file("log", f"{n}\n"), range(200)))
    lines = workspace.read_file("log").split()
    assert sorted(map(int, lines)) == list(range(200))
    assert names(workspace.root) == ["log"]


def test_a_reader_sees_the_old_file_or_the_new_one_whole(workspace: Workspace) -> None:
    texts = {letter * 50_000 for letter in "ab"}
    workspace.write_file("a", "a" * 50_000)
    with ThreadPoolExecutor(2) as pool:
        writes = pool.map(lambda n: workspace.write_file("a", "ab"[n % 2] * 50_000), range(100))
        reads = pool.map(lambda _: workspace.read_file("a"), range(100))
        assert set(reads) <= texts
        list(writes)


KILLED = """
import os, sys
from rollcage_toolbox import Workspace
from rollcage_toolbox.workspace import place

def die(*_, **__): os.kill(os.getpid(), 9)
place.os.rename = die
workspace = Workspace(sys.argv[1])
if sys.argv[2] == "write":
    workspace.write_file("d/a", "half done")
else:
    workspace.unarchive("d/x.zip", "d/out")
"""


@pytest.mark.parametrize("what", ["write", "unarchive"])
def test_what_a_killed_process_left_is_not_shown_and_is_swept(
    workspace: Workspace, what: str
) -> None:
    workspace.make_dir("d")
    workspace.make_dir("packed")
    workspace.write_file("packed/x", "1")
    workspace.archive("packed", "d/x.zip")
    done = subprocess.run([sys.executable, "-c", KILLED, workspace.root, what], check=False)
    assert done.returncode == -9
    left = [each for each in names(workspace.root / "d") if each.startswith(TEMPORARY)]
    assert left
    assert [each["name"] for each in workspace.list_dir("d")] == ["x.zip"]
    workspace.sweep()
    assert names(workspace.root / "d") == ["x.zip"]


def test_what_a_killed_process_left_is_swept_by_looking_at_the_same_file(
    workspace: Workspace,
) -> None:
    workspace.make_dir("d")
    subprocess.run([sys.executable, "-c", KILLED, workspace.root, "write"], check=False)
    assert names(workspace.root / "d")
    contract_of(workspace.write_file).observe({"path": "d/a", "content": ""})
    assert names(workspace.root / "d") == []


def test_a_foreign_file_under_a_temporary_name_is_not_written_through(
    workspace: Workspace, tmp_path: Path
) -> None:
    (tmp_path / "outside").write_text("1")
    name = TEMPORARY + hashlib.sha256(b"a").hexdigest()[:32]
    (workspace.root / name).hardlink_to(tmp_path / "outside")
    with pytest.raises(PathRefused):
        workspace.write_file("a", "owned")
    (workspace.root / name).unlink()
    (workspace.root / name).symlink_to(tmp_path / "outside")
    with pytest.raises(OSError, match="symbolic"):
        workspace.write_file("a", "owned")
    assert (tmp_path / "outside").read_text() == "1"
