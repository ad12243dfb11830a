"""Output files: written whole or not at all, and never over an old file by mistake."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Final, TextIO

from rollcage.errors import StoreError

from rollcage_cli.errors import UsageError
from rollcage_cli.output import console, visible

__all__ = ["STDOUT", "page_file", "whole_file"]

STDOUT: Final = Path("-")
"""The name that stands for stdout, in place of a file."""


@contextlib.contextmanager
def whole_file(path: Path, *, replace: bool) -> Generator[TextIO]:
    """Open a file to write; it appears when it is complete.

    Args:
        path: its path.
        replace: whether it replaces an existing file.

    Raises:
        UsageError: the file exists, and `replace` is false.
        StoreError: the file can't be written.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        if not replace and path.exists():  # before the slow part
            raise FileExistsError
        with part.open("w", encoding="utf-8", newline="") as out:
            yield out
        if replace:
            part.replace(path)
        else:
            os.link(part, path)  # fails if another process has made the file meanwhile
    except FileExistsError:
        message = f"{visible(str(path))} exists; --force replaces it"
        raise UsageError(message) from None
    except OSError as error:
        raise StoreError(f"{visible(str(path))} can't be written: {error.strerror}") from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


@contextlib.contextmanager
def page_file(path: Path, *, force: bool) -> Generator[TextIO]:
    """Open a page to write, to a file or (`-`) to stdout, and print its path.

    Raises:
        UsageError: the file exists, and `--force` is not given.
        StoreError: the file can't be written.
    """
    if path == STDOUT:
        yield sys.stdout
        sys.stdout.flush()
        return
    with whole_file(path, replace=force) as out:
        yield out
    size = path.stat().st_size
    size_text = f"{size / 1e6:.1f} MB" if size >= 1_000_000 else f"{size / 1e3:.0f} kB"
    console(error=True).print(f"Wrote {visible(str(path))} ({size_text}).", soft_wrap=True)
