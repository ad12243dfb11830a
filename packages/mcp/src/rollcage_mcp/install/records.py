"""The changes of clients' files, recorded so that they can be reverted."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pydantic
from rollcage_cli.output import visible

from rollcage_mcp.install.errors import ConfigInvalid
from rollcage_mcp.install.file import replace
from rollcage_mcp.install.json_text import Place

__all__ = ["FileChange", "Records"]


class FileChange(pydantic.BaseModel):
    """A changed value of a client's file.

    Attributes:
        place: its place.
        before: its original text; None if it was new.
        after: its text since.
    """

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    place: Place
    before: str | None
    after: str


class _Server(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    place: Place
    changes: tuple[FileChange, ...]


class _Records(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")

    version: int = 1
    files: dict[str, list[_Server]] = {}


class Records:
    """The recorded changes, in a file that only this user can read."""

    def __init__(self) -> None:
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        self.path: Final = Path(state) / "rollcage" / "mcp-install.json"

    def of(self, file: Path) -> dict[Place, tuple[FileChange, ...]]:
        """Return the changes of a file, server by server. Raises `ConfigInvalid`."""
        return {each.place: each.changes for each in self._read().files.get(str(file), [])}

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Lock the records against other processes."""
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self.path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def keep(self, file: Path, changed: dict[Place, tuple[FileChange, ...]]) -> None:
        """Record the changes of a file. Call it within `alone`."""
        self._write(file, self.of(file) | changed)

    def drop(self, file: Path, servers: list[Place]) -> None:
        """Drop the records of servers. Call it within `alone`."""
        self._write(file, {at: own for at, own in self.of(file).items() if at not in servers})

    def _write(self, file: Path, servers: dict[Place, tuple[FileChange, ...]]) -> None:
        whole = self._read()
        whole.files[str(file)] = [_Server(place=at, changes=own) for at, own in servers.items()]
        if not servers:
            del whole.files[str(file)]
        replace(self.path, whole.model_dump_json(indent=2).encode())

    def _read(self) -> _Records:
        try:
            return _Records.model_validate_json(self.path.read_bytes())
        except FileNotFoundError:
            return _Records()
        except (OSError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise ConfigInvalid(
                f"{visible(str(self.path))}, the list of guards, can't be read: {reason}"
            ) from None
