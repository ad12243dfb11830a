"""Everything that tries to get out of a workspace, and what looks like it but is fine.

    python packages/toolbox/tests/escapes.py [--json]

Each hostile path goes through every tool, in each of its parameters, in a workspace with planted
links, devices and twins. None may come back with a result, and neither the folder outside nor the
workspace may have changed, which is looked at by this program itself. The benign twins must pass.
"""

import argparse
import base64
import contextlib
import functools
import io
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rollcage_toolbox import ToolboxError, Workspace

SECRET = "the secret of the folder outside"
DECOMPOSED = "nai\u0308ve.txt"  # planted by somebody who did not go through the tools
RACES = 1_500  # calls against a thread that swaps a link in


class Row(NamedTuple):
    """What one group of attempts came to."""

    group: str
    hostile: int  # paths, addresses or members
    calls: int
    through: int  # calls that came back with a result
    benign: int
    passed: int


# --- hostile paths -------------------------------------------------------------------------------

UP = [
    "..", "../", "../secret.txt", "../outside/secret.txt", "../desk/notes.txt", "docs/..",
    "docs/../..", "docs/../notes.txt", "docs/../../outside/secret.txt", "./..", "./../outside",
    "docs/./guide.md", "docs/.", ".", "./", "./.", "docs/deep/../../../outside/secret.txt",
    "../outside/", "..//outside", "docs//guide.md", "docs/deep/..",
    *(f"{'../' * depth}etc/passwd" for depth in range(2, 14)),
    *(f"docs/{'../' * depth}outside/secret.txt" for depth in range(2, 8)),
    *(f"{'docs/../' * depth}../outside/secret.txt" for depth in range(1, 6)),
]  # fmt: skip

_DOTS = [
    "%2e%2e", "%2E%2e", ".%2e", "%2e.", "%252e%252e", "%25252e%25252e", "%c0%ae%c0%ae",
    "%u002e%u002e", "%C0%AE%C0%AE", "%c0%2e%c0%2e",
]  # fmt: skip
_SLASHES = ["/", "%2f", "%2F", "%252f", "%5c", "%c0%af", "%u002f", "%u005c"]
ENCODED = [
    *(f"{dots}{slash}outside{slash}secret.txt" for dots in _DOTS for slash in _SLASHES),
    *(f"..{slash}outside{slash}secret.txt" for slash in _SLASHES[1:]),
    "notes.txt%00.png", "%00", "notes%0a.txt", "%2fetc%2fpasswd", "docs%2fguide.md",
]  # fmt: skip

ABSOLUTE = [
    "/", "//", "/etc/passwd", "//etc/passwd", "///etc/passwd", "/proc/self/environ", "/dev/null",
    "/proc/self/fd/0", "/proc/self/root/etc/passwd", "/proc/self/cwd", "/var/x", "/.", "/..",
    "~", "~/notes.txt", "~root", "~root/.ssh/id_ed25519", "~/.ssh/authorized_keys", "~+/x", "~-/x",
    "file:///etc/passwd", "file:/etc/passwd", "http://127.0.0.1/x", "ftp:/x", "data:/x",
    "C:", "C:\\Windows\\win.ini", "C:/Windows/win.ini", "c:notes.txt", "Z:/",
    "\\\\server\\share\\x", "//server/share/x", "\\\\?\\C:\\x", "\\\\.\\pipe\\x", "//?/C:/x", "\\",
    "\\etc\\passwd",
]  # fmt: skip

BACKSLASHES = [
    "..\\secret.txt", "..\\..\\etc\\passwd", "docs\\..\\..\\outside", "docs\\guide.md", "a\\",
    "docs/..\\..\\outside", "..\\/outside", "\\..\\outside", "docs/\\etc", "....\\\\outside",
]  # fmt: skip

NUL_AND_CONTROL = [
    "\0", "notes.txt\0", "notes.txt\0.png", "\0/etc/passwd", "docs/\0", "..\0/outside", "a\0b",
    *(f"notes{chr(code)}.txt" for code in (1, 7, 8, 9, 10, 11, 12, 13, 27, 31, 127, 128, 133, 159)),
]  # fmt: skip

UNICODE = [
    # not shown as what they are: directions, joiners, spaces of no width, separators, tags
    *(f"notes{c}.txt" for c in "\u200b\u200c\u200d\u200e\u200f\u202a\u202b\u202c\u202d\u202e"),
    *(f"notes{c}.txt" for c in "\u2060\u2066\u2067\u2068\u2069\u061c\u00ad\ufeff\u2028\u2029"),
    "txt.\u202eexe.fdp", "\U000e0041notes.txt", "notes\ufff9.txt", "\ud800.txt", "a\udc80",
    # not NFC, and another spelling of what is there
    "cafe\u0301.txt", "e\u0301tude/x.txt", "\u212b.txt", "o\u0302\u0323.md", "\u1100\u1161.txt",
    "\u2126.txt", "\u0958.txt", "=\u0338.txt", "docs/re\u0301sume\u0301.md",
    # characters that others take for slashes and dots
    "\uff0e\uff0e/outside", "\u2024\u2024/outside", "\u2025/outside", "\uff0e\uff0e\uff0foutside",
    "..\u2215outside", "..\u2044outside", "..\uff0foutside", "..\u29f8outside", "..\uff3coutside",
    "\ufe52\ufe52/outside", "..\u2216outside", "docs\u2215guide.md", "..\u29f9outside",
]  # fmt: skip

NAMES = [
    "", " ", "  ", "...", "....", ".. ", " ..", ".. /outside", "..../outside", "notes.txt ",
    "notes.txt.", "notes.txt. ", " notes.txt", "docs /guide.md", "docs./guide.md", "docs/ guide.md",
    "a//b", "docs///guide.md", "//docs", "./", "././notes.txt", "notes.txt//",
    ".rollcage-tmp-", ".rollcage-tmp-0123", "docs/.rollcage-tmp-x", ".ROLLCAGE-TMP-x",
    "x" * 256, "é" * 128, "docs/" + "y" * 256, "/".join(["d"] * 65), "a/" * 3000 + "b",
    "z" * 5000, "docs/" + "\U0001f600" * 64,
]  # fmt: skip

CASE = [
    "NOTES.TXT", "Notes.txt", "notes.TXT", "nOtEs.TxT", "DOCS/guide.md", "Docs", "docs/GUIDE.md",
    "docs/Deep/x.txt", "DOCS/DEEP/X.TXT", "CAFÉ.TXT", "Café.txt", "STRASSE.txt", "strasse.txt",
    "docs/deep/X.txt", "naïve.txt", "NAÏVE.txt",
]  # fmt: skip


def links_and_devices(root: Path) -> list[str]:
    """The planted entries, and paths through those that lead somewhere."""
    through = ["", "/secret.txt", "/inner/more.txt", "/new.txt", "/outside/secret.txt"]
    linked = ["link_dir", "docs/link_dir", "link_up", "link_root", "link_self", "link_chain"]
    paths = [link + rest for link in linked for rest in through]
    paths += ["link_file", "docs/link_file", "dangling", "dangling/x", "link_rel", "loop", "loop/x"]
    paths += ["hard.txt", "docs/hard.md", "link_fd", "link_inside", "link_proc/environ"]
    paths += ["fifo", "fifo/x", "socket", "socket/x"]
    return paths + [name for name in ("device", "device/x") if (root / "device").exists()]


def plant(base: Path) -> Path:
    """A folder outside, and a workspace with all that may lead there."""
    outside, work = base / "outside", base / "desk"
    (outside / "inner").mkdir(parents=True)
    (outside / "secret.txt").write_text(SECRET)
    (outside / "inner/more.txt").write_text(SECRET)
    (outside / "single.txt").write_text(SECRET)  # no link of the workspace leads to this one
    (base / "secret.txt").write_text(SECRET)
    (work / "docs/deep").mkdir(parents=True)
    for name in (
        "notes.txt",
        "docs/guide.md",
        "docs/deep/x.txt",
        "café.txt",
        "straße.txt",
        DECOMPOSED,
    ):
        (work / name).write_text("benign")
    links: dict[str, str | Path] = {
        "link_dir": outside, "docs/link_dir": "../../outside", "link_up": "..", "link_root": "/",
        "link_self": ".", "link_chain": "link_dir", "link_file": outside / "secret.txt",
        "docs/link_file": "../../outside/secret.txt", "dangling": "nowhere", "loop": "loop",
        "link_rel": "../secret.txt", "link_fd": "/proc/self/fd/0", "link_inside": "notes.txt",
        "link_proc": "/proc/self",
    }  # fmt: skip
    for name, target in links.items():
        (work / name).symlink_to(target)
    (work / "hard.txt").hardlink_to(outside / "secret.txt")
    (work / "docs/hard.md").hardlink_to(outside / "inner/more.txt")
    os.mkfifo(work / "fifo")
    with contextlib.suppress(PermissionError):  # only root makes devices
        os.mknod(work / "device", 0o666 | stat.S_IFCHR, os.makedev(1, 5))
    here = Path.cwd()
    os.chdir(work)  # a socket's whole path may have 107 bytes only
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("socket")
    finally:
        os.chdir(here)
    return work


def snapshot(root: Path) -> dict[str, Any]:
    """All that is in a folder: kinds, modes, content, link targets. No link is followed."""
    found: dict[str, Any] = {}
    for folder, folders, files in os.walk(root):
        for name in folders + files:
            path = Path(folder, name)
            status = path.lstat()
            content: Any = None
            if stat.S_ISREG(status.st_mode):
                content = path.read_bytes()
            elif stat.S_ISLNK(status.st_mode):
                content = str(path.readlink())
            found[str(path.relative_to(root))] = (status.st_mode, status.st_nlink, content)
    return found


def calls(workspace: Workspace, path: str) -> list[Callable[[], Any]]:
    """Every tool with this path, in each of its parameters; and what undo asks of them."""
    w = workspace
    arguments: list[tuple[Callable[..., Any], dict[str, Any]]] = [
        (w.read_file, {"path": path}),
        (w.hash_file, {"path": path}),
        (w.write_file, {"path": path, "content": "owned"}),
        (w.append_file, {"path": path, "content": "owned"}),
        (w.edit_file, {"path": path, "old": "secret", "new": "owned"}),
        (w.copy_file, {"source": path, "target": "copied.txt"}),
        (w.copy_file, {"source": "notes.txt", "target": path, "overwrite": True}),
        (w.move_file, {"source": path, "target": "moved.txt"}),
        (w.move_file, {"source": "notes.txt", "target": path, "overwrite": True}),
        (w.delete_file, {"path": path}),
        (w.make_dir, {"path": path}),
        (w.delete_dir, {"path": path}),
        (w.archive, {"source": "docs/deep", "target": path, "overwrite": True}),
        (w.unarchive, {"source": path, "target": "unpacked"}),
        (w.unarchive, {"source": "deep.zip", "target": path}),
        (w.restore_file, {"path": path, "data": b"owned", "mode": 0o644}),
        (w.restore_dir, {"path": path, "mode": 0o755}),
        (w.remove_entry, {"path": path}),
        (w.remove_unpacked, {"path": path, "entries": {}}),
    ]
    if path not in {".", "./"}:  # the workspace itself may be looked at
        arguments += [
            (w.make_dir, {"path": f"{path}/new", "parents": True}),
            (w.list_dir, {"path": path}),
            (w.find_files, {"pattern": "*", "path": path}),
            (w.find_files, {"pattern": f"{path}/*"}),
            (w.archive, {"source": path, "target": "packed.zip"}),
        ]
    return [functools.partial(tool, **given) for tool, given in arguments]


def refused(call: Callable[[], Any]) -> bool:
    """Whether a call ends without a result, in one of the ways that tools end."""
    try:
        call()
    except (ToolboxError, OSError):
        return True
    return False


def finds(call: Callable[[], Any]) -> bool:
    """Whether a search finds nothing; a pattern names no file by itself."""
    try:
        return not call()
    except (ToolboxError, OSError):
        return False


def run_paths(base: Path, group: str, paths: list[str], benign: list[str]) -> Row:
    """All calls with all hostile paths of a group, then its benign twins."""
    work = plant(base)
    with Workspace(work) as workspace:
        workspace.archive("docs/deep", "deep.zip")
        before = snapshot(base)
        count = through = 0
        for path in paths:
            for call in calls(workspace, path):
                count += 1
                through += not (refused(call) or finds(call))
        if snapshot(base) != before:
            through += 1
        passed = sum(passes(workspace, path) for path in benign)
    return Row(group, len(paths), count, through, len(benign), passed)


def passes(workspace: Workspace, path: str) -> bool:
    """Whether a harmless path can be used by all tools, and nothing is left of it in the end."""
    w = workspace
    before = snapshot(w.root)
    folders = path.removeprefix("./").split("/")[:-1]
    try:
        if folders:
            w.make_dir("/".join(folders), parents=True)
        w.write_file(path, "one")
        w.append_file(path, " two")
        w.edit_file(path, "one", "1")
        found = w.read_file(path)
        size = w.hash_file(path)["size"]
        w.copy_file(path, "copied.txt")
        w.move_file(path, "moved.txt")
        w.move_file("moved.txt", path)
        w.delete_file("copied.txt")
        w.delete_file(path)
        made = folders
        while made and "/".join(made) not in before:
            w.delete_dir("/".join(made))
            made = made[:-1]
    except (ToolboxError, OSError) as error:
        print(f"benign, and refused: {path!r}: {error!r}", file=sys.stderr)
        return False
    return found == "1 two" and size == 5 and snapshot(w.root) == before


PATHS: dict[str, tuple[list[str], list[str]]] = {
    "up and around": (UP, ["..notes", "...a", "a..b", "docs/..x/y.txt", "./plain.txt", ".hidden"]),
    "encoded": (ENCODED, ["50%.txt", "100%off", "a%zz.txt", "%41.txt", "docs/%7Euser"]),
    "absolute": (ABSOLUTE, ["etc/passwd", "c-drive.txt", "~$lock.docx", "a~", "12:30 log.txt"]),
    "backslashes": (BACKSLASHES, ["docs/back-slash", "n.txt"]),
    "NUL and control": (NUL_AND_CONTROL, ["tab-le.txt", "nul", "con.txt"]),
    "Unicode": (UNICODE, ["résumé.md", "日本語/ファイル.txt", "Ω.txt", "😀.txt", "ñandú/ü.md"]),
    "names": (NAMES, ["a b.txt", "x" * 255, "d/" * 60 + "e", "rollcage-tmp-x", "-rf", "$HOME"]),
    "case and twins": (CASE, ["notes2.txt", "docs/guides.md", "cafe.txt"]),
}


# --- races ---------------------------------------------------------------------------------------


SWAPPER = """
import os, sys
one, other = sys.argv[1:]
print(flush=True)
while True:
    os.rename(one, one + ".aside")
    os.rename(other, one)
    os.rename(one, other)
    os.rename(one + ".aside", one)
"""


@contextlib.contextmanager
def swapping(one: Path, other: Path) -> Iterator[None]:
    """Let a process swap two entries of a folder, over and over, meanwhile."""
    command = [sys.executable, "-c", SWAPPER, str(one), str(other)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield
        finally:
            process.kill()


def run_races(base: Path, count: int = RACES) -> Row:
    """Directories and files that turn into links to the outside while tools go through them."""
    work = plant(base)
    (work / "swap").mkdir()
    (work / "swap/single.txt").write_text("benign")
    (work / "swap_link").symlink_to(base / "outside")
    (work / "file.txt").write_text("benign")
    (work / "file_link").symlink_to(base / "secret.txt")  # which has one name only
    outside = snapshot(base / "outside"), (base / "secret.txt").read_text()
    through = done = 0
    with Workspace(work) as w:
        for one, other, path in (
            ("swap", "swap_link", "swap/single.txt"),
            ("file.txt", "file_link", "file.txt"),
        ):
            with swapping(work / one, work / other):
                for turn in range(count):
                    calls_here: list[Callable[[], object]] = [
                        functools.partial(w.read_file, path),
                        functools.partial(w.write_file, path, "benign"),
                        functools.partial(w.append_file, path, ""),
                        functools.partial(w.copy_file, path, f"copy-{turn}"),
                    ]
                    with contextlib.suppress(ToolboxError, OSError):
                        through += SECRET in str(calls_here[turn % 4]())
                    done += 1
    through += sum(SECRET in each.read_text() for each in work.glob("copy-*"))
    through += outside != (snapshot(base / "outside"), (base / "secret.txt").read_text())
    return Row("races", 2, done, through, 0, 0)


# --- archives ------------------------------------------------------------------------------------


def tar_of(*members: tuple[str, bytes, dict[str, Any]]) -> bytes:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as packed:
        for name, data, more in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            for field, value in more.items():
                setattr(info, field, value)
            packed.addfile(info, io.BytesIO(data))
    return held.getvalue()


def zip_of(*members: tuple[str, bytes, int]) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, data, mode in members:
            info = zipfile.ZipInfo("x")
            info.filename = name
            info.external_attr = mode << 16
            packed.writestr(info, data)
    return held.getvalue()


def hostile_archives() -> list[bytes]:
    names = [
        "../x", "/etc/x", "a/../../x", "..\\x", "C:\\x", "a/./b", "x\u202ey", "cafe\u0301",
        ".rollcage-tmp-x", "a//b", "~/x", "%2e%2e/x",
    ]  # fmt: skip
    link = {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"}
    hard = {"type": tarfile.LNKTYPE, "linkname": "../outside/secret.txt"}
    kinds = [tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.GNUTYPE_SPARSE]
    found = [tar_of((name, b"owned", {})) for name in names]
    found += [zip_of((name, b"owned", 0o100644)) for name in names]
    found += [tar_of(("x", b"", link)), tar_of(("x", b"", hard))]
    found += [tar_of(("d", b"", link), ("d/x", b"owned", {}))]
    found += [tar_of(("x", b"", {"type": kind})) for kind in kinds]
    found += [zip_of(("x", b"/etc/passwd", 0o120777)), zip_of(("x", b"", 0o020666))]
    found += [zip_of(("x", b"1", 0), ("X", b"2", 0)), tar_of(("x", b"1", {}), ("x", b"2", {}))]
    found += [zip_of(("x", b"1", 0), ("x/y", b"2", 0))]
    found += [
        zip_of(("bomb", bytes(70 * 2**20), 0)),
        zip_of(*((f"{n}", b"", 0) for n in range(2001))),
    ]
    found += [b"", b"PK\x03\x04", b"\x1f\x8b\x08", os.urandom(600), zip_of(("x", b"1", 0))[:-9]]
    return found


def run_archives(base: Path) -> Row:
    """Archives whose members try it; none may leave anything behind."""
    work = plant(base)
    hostile = hostile_archives()
    through = 0
    with Workspace(work) as w:
        for data in hostile:
            (work / "given").write_bytes(data)
            before = snapshot(base)
            through += not refused(lambda: w.unarchive("given", "unpacked"))
            through += snapshot(base) != before
        benign = [
            zip_of(("a/b.txt", b"1", 0o100755), ("c.txt", b"2", 0)),
            tar_of(("./a.txt", b"1", {}), ("b/", b"", {"type": tarfile.DIRTYPE})),
        ]
        passed = 0
        for data in benign:
            w.write_file("given", base64.b64encode(data).decode(), encoding="base64")
            passed += bool(w.unarchive("given", "unpacked")["entries"])
            shutil.rmtree(work / "unpacked")
    return Row("archive members", len(hostile), len(hostile), through, len(benign), passed)


# --- all -----------------------------------------------------------------------------------------


def run(base: Path, races: int = RACES) -> list[Row]:
    """Every group, each in a folder of its own below `base`."""
    rows = [
        run_paths(base / str(number), group, list(dict.fromkeys(hostile)), benign)
        for number, (group, (hostile, benign)) in enumerate(PATHS.items())
    ]
    planted = links_and_devices(plant(base / "planted"))
    benign = ["link.txt", "docs/dev/null", "sockets/fifo"]
    rows.append(run_paths(base / "links", "links and devices", planted, benign))
    rows.append(run_races(base / "races", races))
    rows.append(run_archives(base / "archives"))
    return rows


def table(rows: list[Row]) -> str:
    """The rows as a table with their sums."""
    sums = Row("all", *(sum(column) for column in list(zip(*rows, strict=True))[1:]))
    lines = [Row._fields, *rows, sums]
    return "\n".join(
        f"{each[0]:<20}" + "".join(f"{cell:>9}" for cell in each[1:]) for each in lines
    )


def sound(rows: list[Row]) -> bool:
    """Whether nothing got through, and all that is harmless did."""
    return all(row.through == 0 and row.passed == row.benign for row in rows)


def main() -> int:
    """Print the table; 1 where anything got through, or a benign twin did not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    wants = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rollcage-escapes-") as folder:
        rows = run(Path(folder))
    print(json.dumps([row._asdict() for row in rows]) if wants.json else table(rows))
    return 0 if sound(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
