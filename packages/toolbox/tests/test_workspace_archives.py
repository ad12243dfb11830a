"""Archives are the same bytes each time, and are unpacked whole or not at all."""

import io
import stat
import tarfile
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
from rollcage_toolbox import ArchiveRefused, LimitExceeded, Limits, PathRefused, Workspace
from rollcage_toolbox.workspace.archives import Format

FORMATS: list[Format] = ["zip", "tar", "tar.gz"]


@pytest.fixture
def filled(workspace: Workspace) -> Workspace:
    workspace.make_dir("d/sub", parents=True)
    workspace.make_dir("d/empty")
    workspace.write_file("d/a.txt", "a" * 1000)
    workspace.write_file("d/sub/ü.sh", "b")
    (workspace.root / "d/sub/ü.sh").chmod(0o755)
    return workspace


@pytest.mark.parametrize("format", FORMATS)
def test_what_is_packed_comes_back(filled: Workspace, format: Format) -> None:  # noqa: A002 - the tool's word
    packed = filled.archive("d", "p", format)
    assert packed["entries"] == 4
    unpacked = filled.unarchive("p", "out")
    assert unpacked == {"path": "out", "entries": 4, "size": 1001}
    assert filled.find_files("**", path="out") == ["out/a.txt", "out/sub/ü.sh"]
    assert filled.read_file("out/a.txt") == "a" * 1000
    assert (filled.root / "out/empty").is_dir()
    assert stat.S_IMODE((filled.root / "out/sub/ü.sh").stat().st_mode) == 0o755


@pytest.mark.parametrize("format", FORMATS)
def test_the_same_files_make_the_same_bytes(filled: Workspace, format: Format) -> None:  # noqa: A002 - the tool's word
    first = filled.archive("d", "p", format)["sha256"]
    filled.delete_file("d/a.txt")
    filled.write_file("d/a.txt", "a" * 1000)
    again = filled.archive("d", "p", format, overwrite=True)
    assert again["sha256"] == first


def test_others_can_read_our_archives(filled: Workspace) -> None:
    for form in FORMATS:
        filled.archive("d", f"p.{form}", form)
    names = ["a.txt", "empty", "sub", "sub/ü.sh"]
    with zipfile.ZipFile(filled.root / "p.zip") as packed:
        assert packed.testzip() is None
        assert [each.rstrip("/") for each in packed.namelist()] == names
    for form in FORMATS[1:]:
        with tarfile.open(filled.root / f"p.{form}") as packed:
            assert packed.getnames() == names


def test_the_whole_workspace_is_packed_without_the_archive_itself(filled: Workspace) -> None:
    first = filled.archive(".", "all.zip")
    again = filled.archive(".", "all.zip", overwrite=True)
    assert first["entries"] == again["entries"] == 5
    assert first["sha256"] == again["sha256"]


def test_what_is_in_the_way_or_missing(filled: Workspace) -> None:
    with pytest.raises(PathRefused, match="itself"):
        filled.archive("d", "d/p.zip")
    with pytest.raises(FileNotFoundError):
        filled.archive("no", "p.zip")
    with pytest.raises(FileNotFoundError):
        filled.unarchive("no", "out")
    filled.archive("d", "p.zip")
    with pytest.raises(FileExistsError):
        filled.archive("d", "p.zip")
    with pytest.raises(IsADirectoryError):
        filled.archive("d/sub", "d", overwrite=True)
    with pytest.raises(FileExistsError):
        filled.unarchive("p.zip", "d")


def test_a_link_refuses_the_whole_archive(filled: Workspace) -> None:
    (filled.root / "d/link").symlink_to("/etc/passwd")
    with pytest.raises(PathRefused, match="symbolic link"):
        filled.archive("d", "p.zip")
    assert not (filled.root / "p.zip").exists()


def test_limits_of_archives(tmp_path: Path, escapes: ModuleType) -> None:
    limits = Limits(archive_bytes=100, archive_entries=3)
    with Workspace(tmp_path, limits=limits) as workspace:
        for number, data in enumerate(
            [
                escapes.zip_of(("a", b"1" * 101, 0)),
                escapes.zip_of(("a", b"1" * 60, 0), ("b", b"1" * 60, 0)),
                escapes.zip_of(*((name, b"", 0) for name in "abcd")),
                escapes.tar_of(("a", b"1" * 101, {})),
                escapes.tar_of(("a", b"1" * 20_000, {})),
            ]
        ):
            (tmp_path / f"p{number}").write_bytes(data)
            with pytest.raises(LimitExceeded):
                workspace.unarchive(f"p{number}", "out")
        workspace.make_dir("d")
        (tmp_path / "d/big").write_bytes(b"1" * 101)
        with pytest.raises(LimitExceeded):
            workspace.archive("d", "d.zip")
        for name in "abcd":
            (tmp_path / "d" / name).touch()
        (tmp_path / "d/big").unlink()
        with pytest.raises(LimitExceeded):
            workspace.archive("d", "d.zip")


def test_hostile_archives_say_what_is_wrong(workspace: Workspace, escapes: ModuleType) -> None:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w:gz") as packed:
        packed.addfile(tarfile.TarInfo("a"))
    for data, said in [
        (escapes.zip_of(("x", b"", 0o120777)), "'x' is a link"),
        (escapes.tar_of(("x", b"", {"type": tarfile.SYMTYPE})), "'x' is a link"),
        (escapes.zip_of(("x", b"", 0), ("X", b"", 0)), "differ in case"),
        (escapes.zip_of(("x", b"", 0), ("x/y", b"", 0)), "a file and a directory"),
        (escapes.tar_of(("x", b"", {}), ("x", b"", {})), "twice"),
        (held.getvalue()[:-4], "cut short"),
        (b"nothing of the kind", "can't be read"),
    ]:
        (workspace.root / "p").write_bytes(data)
        with pytest.raises(ArchiveRefused, match=said):
            workspace.unarchive("p", "out")
