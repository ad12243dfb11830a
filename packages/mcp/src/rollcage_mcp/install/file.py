"""A foreign file, changed as a whole or not at all."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path

from rollcage_cli.output import visible

from rollcage_mcp.install.errors import ConfigChanged, ConfigInvalid

__all__ = ["ConfigFile", "replace"]

_LARGEST = 32 * 1024 * 1024  # bytes


class ConfigFile:
    """The path, text and mode of a file that was read.

    Args:
        path: its name; for a link, its target is read and written.

    Attributes:
        path: the name.
        real: the real path.
        text: its content.

    Raises:
        ConfigInvalid: the file can't be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.real = Path(os.path.realpath(path))
        try:
            self._raw = self._read()
            self.text = self._raw.decode()
        except FileNotFoundError:
            raise ConfigInvalid(f"{visible(str(path))} is not there") from None
        except (OSError, ValueError) as error:
            raise ConfigInvalid(f"{visible(str(path))} can't be read: {error}") from None

    def _read(self) -> bytes:
        if not stat.S_ISREG(self.real.stat().st_mode):
            raise ValueError("it is not a file")
        with self.real.open("rb") as file:
            raw = file.read(_LARGEST + 1)
        if len(raw) > _LARGEST:
            raise ValueError("it is larger than 32 MiB")
        return raw

    def check(self) -> None:
        """Check that it may be written. Raises `ConfigInvalid`."""
        named = visible(str(self.path))
        if not self.real.stat().st_mode & 0o222 or not os.access(self.real, os.W_OK):
            raise ConfigInvalid(f"{named} is read-only: chmod u+w {named}")
        if not os.access(self.real.parent, os.W_OK):
            raise ConfigInvalid(f"the folder of {named} is read-only, so it can't be replaced")

    def write(self, text: str) -> None:
        """Replace it by a new file, with the same mode and owner.

        Raises:
            ConfigChanged: the file was changed since it was read.
            ConfigInvalid: the file can't be written.
        """
        self.check()
        try:
            replace(self.real, text.encode(), like=self.real, unless=self._has_changed)
        except OSError as error:
            raise ConfigInvalid(f"{visible(str(self.path))} can't be written: {error}") from None

    def _has_changed(self) -> None:
        try:
            same = Path(os.path.realpath(self.path)) == self.real and self._read() == self._raw
        except (OSError, ValueError):
            same = False
        if not same:
            raise ConfigChanged(
                f"{visible(str(self.path))} was changed meanwhile, so nothing was written: run the "
                f"command again"
            )


def replace(path: Path, data: bytes, *, like: Path | None = None, unless: object = None) -> None:
    """Write a file beside another, and replace that one.

    Args:
        path: the file.
        data: its new content.
        like: a file whose mode and owner it gets; otherwise only the user can read it.
        unless: called before the replacement, and raises to prevent it.

    Raises:
        OSError: the file can't be written.
    """
    number, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(number, "wb") as file:
            if like is not None:
                old = like.stat()
                # another user's: only root may give it away
                with contextlib.suppress(PermissionError):
                    os.fchown(file.fileno(), old.st_uid, old.st_gid)
                os.fchmod(file.fileno(), stat.S_IMODE(old.st_mode))
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if callable(unless):
            unless()
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
