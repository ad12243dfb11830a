"""Carry out a change: under locks, each step atomic."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable
from typing import Any, NamedTuple

from rollcage_toolbox.errors import PathRefused
from rollcage_toolbox.workspace.changes import Change
from rollcage_toolbox.workspace.images import ABSENT, Image, Images
from rollcage_toolbox.workspace.place import NamedPlace, enter, remove_tree
from rollcage_toolbox.workspace.tree import Tree

__all__ = ["perform"]


class _Held(NamedTuple):
    """A locked place while it changes."""

    place: NamedPlace
    temporary: int  # descriptor of the file for the new content


def perform(tree: Tree, change: Change) -> dict[str, Any]:
    """Carry out a change and return its result.

    The state is read again under the locks, so that two tools that append to one file at once both
    succeed.

    Raises:
        OSError: the file system refuses.
        ToolboxError: the change refuses the current state.
    """
    if change.removal:
        before = {path: tree.image(path) for path in change.paths}
        if all(image == ABSENT for image in before.values()):
            return change.after(before, tree).result
    with contextlib.ExitStack() as stack:
        held: dict[str, _Held] = {}
        for path in _outermost(change.paths):
            place = stack.enter_context(tree.place(path))
            held[path] = _Held(place, stack.enter_context(place.locked()))
        before = {
            path: held[path].place.image() if path in held else tree.image(path)
            for path in change.paths
        }
        after, result = change.after(before, tree)
        if change.renames is not None:
            _rename(*(held[path].place for path in change.renames))
        elif change.members is not None:
            (only,) = held.values()
            _appear(only.place, change.members(tree), after[only.place.path], tree)
        elif change.removes:
            (only,) = held.values()
            _vanish(only.place, before[only.place.path])
        else:
            _become(tree, held, before, after)
        return result


def _outermost(paths: Iterable[str]) -> list[str]:
    """Return the paths that are in none of the others, in the order of locking."""
    found: list[str] = []
    for path in sorted(set(paths)):
        if not any(path.startswith(f"{above}/") for above in found):
            found.append(path)
    return found


def _become(tree: Tree, held: dict[str, _Held], before: Images, after: Images) -> None:
    new = [path for path, will in after.items() if before[path] == ABSENT and will["kind"] == "dir"]
    if new:  # nested: all of them appear with the outermost
        top = new[0]
        with contextlib.ExitStack() as stack:
            place = held[top].place if top in held else stack.enter_context(tree.place(top))
            if top not in held:
                stack.enter_context(place.locked())
            inside = {path.removeprefix(f"{top}/"): after[path] for path in new[1:]}
            _appear(place, inside, after[top], tree)
    for path, will in after.items():
        if path in new:
            continue
        if path in held:
            held[path].place.become(held[path].temporary, before[path], will)
            continue
        with tree.place(path) as place:
            place.become(None, before[path], will)


def _rename(source: NamedPlace, target: NamedPlace) -> None:
    os.rename(source.name, target.name, src_dir_fd=source.fd, dst_dir_fd=target.fd)
    source.synced()
    target.synced()


def _appear(place: NamedPlace, members: Images, image: Image, tree: Tree) -> None:
    """Fill a directory under a temporary name, then rename it."""
    unfinished = place.temporary + ".d"
    os.mkdir(unfinished, 0o700, dir_fd=place.fd)
    try:
        fd = enter(place.fd, unfinished, place.path)
        try:
            inside = Tree(fd, tree.settings)
            for path, will in members.items():
                with inside.place(path) as member:
                    member.make(will)
            os.fchmod(fd, image["mode"])
        finally:
            os.close(fd)
        os.rename(unfinished, place.name, src_dir_fd=place.fd, dst_dir_fd=place.fd)
    except BaseException:
        remove_tree(place.fd, unfinished)
        raise
    place.synced()


def _vanish(place: NamedPlace, was: Image) -> None:
    """Remove a directory with its content: first its name, then the rest."""
    if was == ABSENT:
        return
    status = place.status()
    if status is None or not stat.S_ISDIR(status.st_mode):
        raise PathRefused(f"{place.path!r} is not a directory any more", "path_special")
    gone = place.temporary + ".d"
    os.rename(place.name, gone, src_dir_fd=place.fd, dst_dir_fd=place.fd)
    remove_tree(place.fd, gone)
    place.synced()
