"""The change by each writing tool, as a pure step from before-images to after-images.

The same description runs the tool, tells the undo which state to restore, and lets `probe` decide
after a crash whether the change happened: the current state equals the one before, or the one
after.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import errno
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field

from rollcage_toolbox.errors import EditRefused, LimitExceeded, NotText, PathRefused
from rollcage_toolbox.workspace.images import ABSENT, Image, Images, dir_image, file_image
from rollcage_toolbox.workspace.names import canonical
from rollcage_toolbox.workspace.tree import Tree

__all__ = [
    "After",
    "Change",
    "Encoding",
    "FilePath",
    "append_file",
    "as_bytes",
    "as_text",
    "copy_file",
    "delete_dir",
    "delete_file",
    "edit_file",
    "make_dir",
    "move_file",
    "remove_entry",
    "restore_dir",
    "restore_file",
    "summary",
    "write_file",
]

FilePath = Annotated[str, Field(description="relative to the workspace, separated by /")]
Encoding = Literal["utf-8", "base64"]


class After(NamedTuple):
    """The result of a change."""

    images: Images
    result: dict[str, Any]  # the tool's result


@dataclasses.dataclass(frozen=True, kw_only=True)
class Change:
    """One change of a workspace.

    Attributes:
        paths: the paths that it may change, parents first.
        after: returns the images after it; raises if it must not happen.
        renames: the two paths of a move, which is one step of the file system.
        members: the content of a new directory, which appears with it in one step.
        removes: whether a directory is removed with its content in one step.
        removal: whether a missing path is fine.
        undone_by: compensations (tool, arguments) that are not just restored before-images.
    """

    paths: Sequence[str]
    after: Callable[[Images, Tree], After]
    renames: tuple[str, str] | None = None
    members: Callable[[Tree], Images] | None = None
    removes: bool = False
    removal: bool = False
    undone_by: Callable[[Tree], list[tuple[str, dict[str, Any]]]] | None = None


# --- tools ---------------------------------------------------------------------------------------


def write_file(
    path: FilePath,
    content: str,
    encoding: Encoding = "utf-8",
    overwrite: bool = True,  # noqa: FBT001, FBT002 - agents pass arguments by name
) -> Change:
    """Write a file whole; its directory must be there. An overwritten file keeps its mode.

    With encoding="base64" the content is decoded to bytes.
    """
    path, data = canonical(path), as_bytes(content, encoding)

    def after(before: Images, tree: Tree) -> After:
        was = _file_or_nothing(path, before[path])
        if was["kind"] == "file" and not overwrite:
            raise FileExistsError(errno.EEXIST, "the file is there already", path)
        return _written(path, was, data, tree)

    return Change(paths=[path], after=after)


def append_file(path: FilePath, content: str, encoding: Encoding = "utf-8") -> Change:
    """Add to the end of a file; a file that is not there is made."""
    path, data = canonical(path), as_bytes(content, encoding)

    def after(before: Images, tree: Tree) -> After:
        was = _file_or_nothing(path, before[path])
        return _written(path, was, was.get("data", b"") + data, tree)

    return Change(paths=[path], after=after)


def edit_file(path: FilePath, old: str, new: str) -> Change:
    """Replace one exact text in a file; it must stand there exactly once."""
    path = canonical(path)

    def after(before: Images, tree: Tree) -> After:
        was = _file(path, before[path])
        text = as_text(was["data"], path)
        first = text.find(old)
        if not old or first < 0:
            raise EditRefused(f"{path!r}: the text to replace is not there")
        if text.find(old, first + 1) >= 0:
            raise EditRefused(
                f"{path!r}: the text to replace is there more than once: give more of what is "
                f"around it"
            )
        return _written(path, was, text.replace(old, new).encode(), tree)

    return Change(paths=[path], after=after)


def copy_file(source: FilePath, target: FilePath, overwrite: bool = False) -> Change:  # noqa: FBT001, FBT002 - agents pass arguments by name
    """Copy a file with its mode."""
    source, target = canonical(source), canonical(target)
    _apart(source, target)

    def after(before: Images, tree: Tree) -> After:
        copied = _file(source, tree.image(source, reading=True))
        return _placed(target, before[target], copied, overwrite=overwrite)

    return Change(paths=[target], after=after)


def move_file(source: FilePath, target: FilePath, overwrite: bool = False) -> Change:  # noqa: FBT001, FBT002 - agents pass arguments by name
    """Move or rename a file, in one step."""
    source, target = canonical(source), canonical(target)
    _apart(source, target)

    def after(before: Images, _: Tree) -> After:
        moved = _file(source, before[source])
        images, result = _placed(target, before[target], moved, overwrite=overwrite)
        return After({source: ABSENT, **images}, {"moved": source, **result})

    return Change(paths=sorted([source, target]), after=after, renames=(source, target))


def delete_file(path: FilePath) -> Change:
    """Delete a file."""
    path = canonical(path)

    def after(before: Images, _: Tree) -> After:
        was = _file(path, before[path])
        return After({path: ABSENT}, {"deleted": path, "sha256": was["sha256"]})

    return Change(paths=[path], after=after)


def make_dir(path: FilePath, parents: bool = False) -> Change:  # noqa: FBT001, FBT002 - agents pass arguments by name
    """Make a directory; with `parents` those above it too, and one that is there is fine."""
    path = canonical(path)
    names = path.split("/")
    paths = ["/".join(names[:depth]) for depth in range(1, len(names) + 1)] if parents else [path]

    def after(before: Images, tree: Tree) -> After:
        made = [each for each in paths if before[each]["kind"] == "absent"]
        for each in paths:
            if before[each]["kind"] == "file" or (not parents and each not in made):
                raise FileExistsError(errno.EEXIST, "there is something already", each)
        mode = tree.settings.dir_mode
        return After({each: dir_image(mode) for each in made}, {"path": path, "made": made})

    return Change(paths=paths, after=after)


def delete_dir(path: FilePath) -> Change:
    """Delete an empty directory; delete its content first."""
    path = canonical(path)

    def after(before: Images, _: Tree) -> After:
        if before[path]["kind"] == "absent":
            raise FileNotFoundError(errno.ENOENT, "no such directory in the workspace", path)
        if before[path]["kind"] == "file":
            raise NotADirectoryError(errno.ENOTDIR, "a file, not a directory", path)
        return After({path: ABSENT}, {"deleted": path})

    return Change(paths=[path], after=after)


# --- compensating tools --------------------------------------------------------------------------


def restore_file(path: FilePath, data: bytes, mode: int) -> Change:
    """Restore a file: its content and its mode."""
    path = canonical(path)
    if mode & ~0o1777:
        raise PathRefused(f"{path!r}: mode {mode:o} has more than permissions", "path_special")
    image = file_image(data, mode)
    return Change(paths=[path], after=lambda _, __: After({path: image}, summary(path, image)))


def restore_dir(path: FilePath, mode: int) -> Change:
    """Restore a directory and its mode, but not its content."""
    path = canonical(path)
    image = dir_image(mode & 0o7777)
    return Change(paths=[path], after=lambda _, __: After({path: image}, {"path": path}))


def remove_entry(path: FilePath) -> Change:
    """Take away a file or an empty directory that was not there before."""
    path = canonical(path)
    return Change(
        paths=[path],
        after=lambda _, __: After({path: ABSENT}, {"deleted": path}),
        removal=True,
    )


# --- pieces --------------------------------------------------------------------------------------


def as_bytes(content: str, encoding: Encoding) -> bytes:
    """Return the bytes of a content."""
    if encoding == "base64":
        try:
            return base64.b64decode(content, validate=True)
        except (binascii.Error, ValueError) as error:
            raise NotText(f"the content is not base64: {error}") from None
    try:
        return content.encode()
    except UnicodeEncodeError as error:
        raise NotText(f"the content is not Unicode text: {error.reason}") from None


def as_text(data: bytes, path: str) -> str:
    """Return the text in a file."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise NotText(
            f"{path!r} is not UTF-8 text (byte {error.start}); read it with encoding='base64'"
        ) from None


def summary(path: str, image: Image) -> dict[str, Any]:
    """Return a tool's report of a file that it wrote."""
    return {"path": path, "size": image["size"], "sha256": image["sha256"]}


def _file_or_nothing(path: str, image: Image) -> Image:
    if image["kind"] == "dir":
        raise IsADirectoryError(errno.EISDIR, "a directory, not a file", path)
    return image


def _file(path: str, image: Image) -> Image:
    if image["kind"] == "absent":
        raise FileNotFoundError(errno.ENOENT, "no such file in the workspace", path)
    return _file_or_nothing(path, image)


def _written(path: str, was: Image, data: bytes, tree: Tree) -> After:
    limit = tree.settings.limits.file_bytes
    if len(data) > limit:
        raise LimitExceeded(f"{path!r} would have {len(data)} bytes; the limit is {limit}")
    image = file_image(data, was.get("mode", tree.settings.file_mode))
    return After({path: image}, {**summary(path, image), "created": was["kind"] == "absent"})


def _placed(path: str, was: Image, image: Image, *, overwrite: bool) -> After:
    _file_or_nothing(path, was)
    if was["kind"] == "file" and not overwrite:
        raise FileExistsError(errno.EEXIST, "the target is there already", path)
    return After({path: image}, {**summary(path, image), "created": was["kind"] == "absent"})


def _apart(source: str, target: str) -> None:
    if source == target:
        raise FileExistsError(errno.EEXIST, "source and target are the same", target)
