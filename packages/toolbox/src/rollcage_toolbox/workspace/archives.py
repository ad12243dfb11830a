"""Archives: packed the same way each time, unpacked all or nothing (zip, tar, tar.gz).

An archive is hostile input. Its members are read into memory, up to the limits, before anything is
written; a link, a device, an encrypted member, or a name that is no valid path of a workspace makes
the whole archive refused.
"""

from __future__ import annotations

import errno
import gzip
import io
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from typing import Any, Final, Literal, NamedTuple

from rollcage_toolbox.errors import ArchiveRefused, Changed, LimitExceeded, PathRefused
from rollcage_toolbox.workspace.changes import After, Change, FilePath, summary
from rollcage_toolbox.workspace.images import ABSENT, Image, Images, Limits, dir_image, file_image
from rollcage_toolbox.workspace.names import canonical, folded, parts
from rollcage_toolbox.workspace.tree import Tree

__all__ = ["Format", "archive", "remove_unpacked", "unarchive"]

Format = Literal["zip", "tar", "tar.gz"]

_EPOCH: Final = (1980, 1, 1, 0, 0, 0)  # the earliest time in a zip
_BROKEN: Final = (
    zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, NotImplementedError,
    RuntimeError, UnicodeError, OSError, ValueError, OverflowError,
)  # fmt: skip


# --- tools ---------------------------------------------------------------------------------------


def archive(
    source: FilePath,
    target: FilePath,
    format: Format = "zip",  # noqa: A002 - the word that agents know
    overwrite: bool = False,  # noqa: FBT001, FBT002 - agents pass arguments by name
) -> Change:
    """Pack a directory and all that is in it ("." is the whole workspace) into an archive.

    The same files always make the same bytes: their times and owners are left out.
    """
    names, target = parts(source, root=True), canonical(target)
    if names == parts(target)[: len(names)] and names:
        raise PathRefused(f"{target!r} is in {source!r}: an archive can't hold itself", "path_name")

    def after(before: Images, tree: Tree) -> After:
        if before[target]["kind"] == "dir":
            raise IsADirectoryError(errno.EISDIR, "a directory, not a file", target)
        if before[target]["kind"] == "file" and not overwrite:
            raise FileExistsError(errno.EEXIST, "the target is there already", target)
        images = tree.subtree(names, reading=True)
        if not names:
            images.pop(target, None)
        data = _pack(images, format)
        if len(data) > tree.settings.limits.file_bytes:
            raise LimitExceeded(f"{target!r} would have {len(data)} bytes")
        image = file_image(data, before[target].get("mode", tree.settings.file_mode))
        return After({target: image}, {**summary(target, image), "entries": len(images)})

    return Change(paths=[target], after=after)


def unarchive(source: FilePath, target: FilePath) -> Change:
    """Unpack an archive (zip, tar, tar.gz) into a new directory; it appears whole or not at all."""
    source, target = canonical(source), canonical(target)

    def members(tree: Tree) -> Images:
        image = tree.image(source, reading=True)
        if image["kind"] != "file":
            raise FileNotFoundError(errno.ENOENT, "no such file in the workspace", source)
        return _unpack(image["data"], tree)

    def after(before: Images, tree: Tree) -> After:
        if before[target]["kind"] != "absent":
            raise FileExistsError(errno.EEXIST, "the target is there already", target)
        found = members(tree)
        size = sum(each.get("size", 0) for each in found.values())
        mode = tree.settings.dir_mode
        return After(
            {target: dir_image(mode)}, {"path": target, "entries": len(found), "size": size}
        )

    def undone_by(tree: Tree) -> list[tuple[str, dict[str, Any]]]:
        entries = {path: _identity(image) for path, image in members(tree).items()}
        return [("remove_unpacked", {"path": target, "entries": entries})]

    return Change(paths=[target], after=after, members=members, undone_by=undone_by)


def remove_unpacked(path: FilePath, entries: dict[str, str]) -> Change:
    """Take away an unpacked directory, if it still holds these entries and nothing else.

    `entries` are the SHA-256 of each file by its path in the directory, and "dir" for directories.
    """
    path = canonical(path)

    def after(before: Images, tree: Tree) -> After:
        if before[path]["kind"] == "dir":
            now = tree.subtree(parts(path), reading=False)
            found = {name: _identity(image) for name, image in now.items()}
            differ = sorted(
                name
                for name in found.keys() | entries.keys()
                if found.get(name) != entries.get(name)
            )
            if differ:
                raise Changed(
                    f"{path!r} was changed since it was unpacked: {', '.join(differ[:5])}"
                )
        return After({path: ABSENT}, {"deleted": path, "entries": len(entries)})

    return Change(paths=[path], after=after, removes=True, removal=True)


def _identity(image: Image) -> str:
    return str(image.get("sha256", "dir"))


# --- packing -------------------------------------------------------------------------------------


def _pack(images: Images, form: Format) -> bytes:
    held = io.BytesIO()
    if form == "zip":
        _pack_zip(images, held)
        return held.getvalue()
    with tarfile.open(fileobj=held, mode="w", format=tarfile.PAX_FORMAT) as packed:
        for path, image in images.items():
            member = tarfile.TarInfo(path)
            member.mode, member.size = image["mode"], image.get("size", 0)
            member.type = tarfile.DIRTYPE if image["kind"] == "dir" else tarfile.REGTYPE
            packed.addfile(member, io.BytesIO(image.get("data", b"")))
    return gzip.compress(held.getvalue(), mtime=0) if form == "tar.gz" else held.getvalue()


def _pack_zip(images: Images, held: io.BytesIO) -> None:
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as packed:
        for path, image in images.items():
            is_dir = image["kind"] == "dir"
            member = zipfile.ZipInfo(path + "/" * is_dir, _EPOCH)
            kind = stat.S_IFDIR if is_dir else stat.S_IFREG
            member.external_attr = (kind | image["mode"]) << 16
            member.create_system = 3  # Unix: the mode is in it
            member.compress_type = zipfile.ZIP_STORED if is_dir else zipfile.ZIP_DEFLATED
            packed.writestr(member, image.get("data", b""))


# --- unpacking -----------------------------------------------------------------------------------


class _Member(NamedTuple):
    name: str
    is_dir: bool
    executable: bool
    data: bytes


def _unpack(data: bytes, tree: Tree) -> Images:
    """Return the members of an archive as images, parents first, by their paths in it."""
    limits = tree.settings.limits
    images: Images = {}
    size = 0
    try:
        members = _zip_members if zipfile.is_zipfile(io.BytesIO(data)) else _tar_members
        for member in members(data, limits):
            path = canonical(member.name)
            if not member.is_dir and path in images:
                raise ArchiveRefused(f"{path!r} is in the archive twice")
            size += len(member.data)
            if size > limits.archive_bytes:
                raise LimitExceeded(f"the archive holds more than {limits.archive_bytes} bytes")
            names = path.split("/")
            for depth in range(1, len(names) + member.is_dir):
                above = "/".join(names[:depth])
                if images.setdefault(above, dir_image(tree.settings.dir_mode))["kind"] != "dir":
                    raise ArchiveRefused(f"{above!r} is a file and a directory in the archive")
            if not member.is_dir:
                mode = tree.settings.file_mode | (0o111 if member.executable else 0)
                images[path] = file_image(member.data, mode)
            if len(images) > limits.archive_entries:
                raise LimitExceeded(f"the archive has more than {limits.archive_entries} entries")
    except _BROKEN as error:
        raise ArchiveRefused(f"the archive can't be read: {error}") from None
    _refuse_twins(images)
    return dict(sorted(images.items(), key=lambda each: each[0].split("/")))


def _refuse_twins(images: Images) -> None:
    shapes: dict[str, str] = {}
    for path in images:
        other = shapes.setdefault(folded(path), path)
        if other != path:
            raise ArchiveRefused(f"{other!r} and {path!r} differ in case or Unicode form only")


def _zip_members(data: bytes, limits: Limits) -> Iterator[_Member]:
    with zipfile.ZipFile(io.BytesIO(data)) as packed:
        for info in packed.infolist():
            mode = info.external_attr >> 16
            kind = stat.S_IFMT(mode)
            if kind not in {0, stat.S_IFREG, stat.S_IFDIR} or info.flag_bits & 1:
                raise ArchiveRefused(f"{info.filename!r} is a link, a device or encrypted")
            name = info.orig_filename
            if name.endswith("/"):
                yield _Member(name, is_dir=True, executable=False, data=b"")
                continue
            with packed.open(info) as member:
                content = member.read(limits.archive_bytes + 1)
            yield _Member(name, is_dir=False, executable=bool(mode & 0o100), data=content)


def _tar_members(data: bytes, limits: Limits) -> Iterator[_Member]:
    bound = limits.archive_bytes + 2048 * limits.archive_entries  # headers and padding
    if data[:2] == b"\x1f\x8b":
        unzip = zlib.decompressobj(wbits=31)
        data = unzip.decompress(data, bound + 1)
        if not unzip.eof:
            raise ArchiveRefused("the archive is cut short, or larger than the limit")
    if len(data) > bound:
        raise LimitExceeded(f"the archive holds more than {limits.archive_bytes} bytes")
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as packed:
        for member in packed:
            if member.type not in {tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE}:
                raise ArchiveRefused(f"{member.name!r} is a link, a device or sparse")
            content = packed.extractfile(member) if member.isreg() else None
            held = content.read(limits.archive_bytes + 1) if content else b""
            if len(held) != (member.size if content else 0):
                raise ArchiveRefused(f"{member.name!r} is cut short")
            yield _Member(member.name, member.isdir(), bool(member.mode & 0o100), held)
