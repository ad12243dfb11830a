"""The workspace: governed, undoable file tools for one folder."""

from __future__ import annotations

import functools
import inspect
import os
import re
import typing
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final, ParamSpec, Self, TypeVar, cast

import rollcage

from rollcage_toolbox.errors import ToolboxError
from rollcage_toolbox.workspace import archives, changes
from rollcage_toolbox.workspace.changes import Change
from rollcage_toolbox.workspace.images import Image, Images, Limits, Settings
from rollcage_toolbox.workspace.perform import perform
from rollcage_toolbox.workspace.reads import Reads
from rollcage_toolbox.workspace.tree import Tree

__all__ = ["Workspace"]

P = ParamSpec("P")
F = TypeVar("F", bound=Callable[..., Any])

_NAME: Final = re.compile(r"[a-z][a-z0-9_]*")
_RISKS: Final = {"move_file": "high", "delete_file": "high", "delete_dir": "high"}
_VERSION: Final = "1"


class Workspace:
    """Tools over one folder, each a function declared with `@rollcage.tool`.

    No tool reaches anything outside of the folder: paths are resolved name by name from a
    descriptor that is opened once, and links are not followed. Every change is one step (readers
    see the state before or after), keeps its before-image in the trace, and can be undone exactly:
    content and mode, not times and owners.

    ::

        workspace = Workspace("./work")
        agent_tools = as_tools(workspace.tools())  # of any framework's adapter
        workspace.write_file("notes.txt", "Hello")  # guarded inside of a session

    Args:
        root: the folder. It is opened here; a later replacement is not seen.
        name: distinguishes the tools of two workspaces: `Workspace("in", name="inbox")` has
            `inbox_read_file`. Undo finds them by these names, so keep the name.
        create: make the folder if it does not exist.
        limits: the limits of the tools.
        file_mode: permissions of new files.
        dir_mode: permissions of new directories.
        sync: flush each change to the disk (fsync), for machines that lose power.
        read_hard_links: also read files that have a second name, which may be outside.

    Raises:
        FileNotFoundError: the folder does not exist.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        name: str = "",
        create: bool = False,
        limits: Limits | None = None,
        file_mode: int = 0o644,
        dir_mode: int = 0o755,
        sync: bool = False,
        read_hard_links: bool = False,
    ) -> None:
        if name and not _NAME.fullmatch(name):
            raise ValueError(f"name={name!r}: lower-case letters, digits and _, from a letter on")
        if file_mode & ~0o777 or dir_mode & ~0o1777 or dir_mode & 0o700 != 0o700:
            raise ValueError("modes are permissions, and the owner must get into directories")
        self.root = Path(root)
        self.name = name
        if create:
            self.root.mkdir(parents=True, exist_ok=True)
        fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._closing = weakref.finalize(self, os.close, fd)
        self._tree = Tree(
            fd,
            Settings(
                limits=limits or Limits(),
                file_mode=file_mode,
                dir_mode=dir_mode,
                sync=sync,
                read_hard_links=read_hard_links,
            ),
        )
        reads = Reads(self._tree)
        self.read_file = self._reading(reads.read_file)
        self.list_dir = self._reading(reads.list_dir)
        self.find_files = self._reading(reads.find_files)
        self.hash_file = self._reading(reads.hash_file)
        self.disk_space = self._reading(reads.disk_space)
        self.write_file = self._writing(changes.write_file)
        self.append_file = self._writing(changes.append_file)
        self.edit_file = self._writing(changes.edit_file)
        self.copy_file = self._writing(changes.copy_file)
        self.move_file = self._writing(changes.move_file)
        self.delete_file = self._writing(changes.delete_file)
        self.make_dir = self._writing(changes.make_dir)
        self.delete_dir = self._writing(changes.delete_dir)
        self.archive = self._writing(archives.archive)
        self.unarchive = self._writing(archives.unarchive)
        self.restore_file = self._writing(changes.restore_file, idempotent=True)
        self.restore_dir = self._writing(changes.restore_dir, idempotent=True)
        self.remove_entry = self._writing(changes.remove_entry, idempotent=True)
        self.remove_unpacked = self._writing(archives.remove_unpacked, idempotent=True, final=True)

    # --- the tools -------------------------------------------------------------------------------

    def tools(self, *, read_only: bool = False) -> list[Callable[..., Any]]:
        """Return the tools for an agent; with `read_only`, only tools that change nothing."""
        reading: list[Callable[..., Any]] = [
            self.read_file, self.list_dir, self.find_files, self.hash_file, self.disk_space,
        ]  # fmt: skip
        if read_only:
            return reading
        return [
            *reading, self.write_file, self.append_file, self.edit_file, self.copy_file,
            self.move_file, self.delete_file, self.make_dir, self.delete_dir, self.archive,
            self.unarchive,
        ]  # fmt: skip

    def undo_tools(self) -> list[Callable[..., Any]]:
        """Return the compensating tools. They are found by name, and are not for agents."""
        return [self.restore_file, self.restore_dir, self.remove_entry, self.remove_unpacked]

    def __iter__(self) -> Iterator[Callable[..., Any]]:
        """Yield all tools, for undo in another process.

        For example `rollcage undo RUN --tools module:workspace`.
        """
        return iter([*self.tools(), *self.undo_tools()])

    def sweep(self) -> None:
        """Remove unfinished files of killed processes in the folder.

        No tool shows them, and the tools that access the same files again, `observe` and `probe`
        remove them by themselves. Files of live processes are left alone.
        """
        self._tree.sweep_all()

    def close(self) -> None:
        """Release the folder; no tool works afterwards."""
        self._closing()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    # --- declarations ----------------------------------------------------------------------------

    def _named(self, function: Callable[..., Any]) -> str:
        return f"{self.name}_{function.__name__}" if self.name else function.__name__

    def _reading(self, function: F) -> F:
        return rollcage.tool(
            name=self._named(function),
            version=_VERSION,
            effect="read",
            risk="low",
            permissions=[f"fs:read:{self.root}"],
            raises=[ToolboxError],
        )(function)

    def _writing(
        self, make: Callable[P, Change], *, idempotent: bool = False, final: bool = False
    ) -> Callable[P, dict[str, Any]]:
        """Return a tool that carries out the change described by `make`, with its undo.

        Args:
            make: a function with the tool's own parameters.
            idempotent: whether doing it twice has the effect of doing it once.
            final: whether it can't be undone.
        """
        tree = self._tree
        described = cast("Callable[..., Change]", make)  # arguments that passed its own schema

        def body(*args: P.args, **kwargs: P.kwargs) -> dict[str, Any]:
            return perform(tree, make(*args, **kwargs))

        def observe(args: dict[str, Any]) -> dict[str, Image]:
            paths = described(**args).paths
            for path in paths:
                tree.sweep(path)
            return {self._resource(path): tree.image(path) for path in paths}

        def undo(args: dict[str, Any], before: dict[str, Image]) -> list[rollcage.Compensation]:
            change = described(**args)
            if change.undone_by is not None:
                planned = change.undone_by(tree)
                return [rollcage.compensate(getattr(self, n), **more) for n, more in planned]
            return self._restoring({path: before[self._resource(path)] for path in change.paths})

        def probe(args: dict[str, Any], before: dict[str, Image]) -> object:
            return self._described(lambda: described(**args), before)

        functools.update_wrapper(body, make)
        del body.__dict__["__wrapped__"]  # it makes a description; it is not the tool
        hints = {**typing.get_type_hints(make, include_extras=True), "return": dict[str, Any]}
        signature = inspect.signature(make)
        body.__annotations__ = hints
        body.__dict__["__signature__"] = signature.replace(
            parameters=[p.replace(annotation=hints[n]) for n, p in signature.parameters.items()],
            return_annotation=hints["return"],
        )
        return rollcage.tool(
            name=self._named(make),
            version=_VERSION,
            effect="write",
            idempotent=idempotent,
            risk=_RISKS.get(make.__name__, "medium"),
            permissions=[f"fs:read:{self.root}", f"fs:write:{self.root}"],
            raises=[ToolboxError],
            observe=observe,
            undo=None if final else undo,
            probe=probe,
        )(body)

    def _resource(self, path: str) -> str:
        return f"file:{self.name}:{path}" if self.name else f"file:{path}"

    def _restoring(self, images: Images) -> list[rollcage.Compensation]:
        """Return the calls that restore these images: existing paths first, then absent ones."""
        calls: list[rollcage.Compensation] = []
        for path, image in sorted(images.items()):
            mode = image.get("mode")
            if image["kind"] == "file":
                data = image["data"]
                calls.append(
                    rollcage.compensate(self.restore_file, path=path, data=data, mode=mode)
                )
            elif image["kind"] == "dir":
                calls.append(rollcage.compensate(self.restore_dir, path=path, mode=mode))
        for path, image in sorted(images.items(), reverse=True):
            if image["kind"] == "absent":
                calls.append(rollcage.compensate(self.remove_entry, path=path))
        return calls

    def _described(self, make: Callable[[], Change], before: dict[str, Image]) -> object:
        """Return whether a change happened, by the current state; None if it does not tell."""
        try:
            change = make()
            for path in change.paths:
                self._tree.sweep(path)
            now = {path: self._tree.image(path) for path in change.paths}
            then = {path: before[self._resource(path)] for path in now}
            if now == then:
                return rollcage.DidNotHappen()
            after = change.after(then, self._tree)
            whole = True
            if change.members is not None:
                (target,) = change.paths
                inside = self._tree.subtree(tuple(target.split("/")), reading=False)
                whole = inside == change.members(self._tree)
        except (ToolboxError, OSError, KeyError):
            return None
        return (
            rollcage.Happened(after.result) if whole and now == {**then, **after.images} else None
        )
