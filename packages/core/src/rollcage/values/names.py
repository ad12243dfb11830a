"""Clean names from outside: the running script's, and texts that UTF-8 can't hold."""

from __future__ import annotations

import logging
import sys
import sysconfig
from pathlib import Path
from typing import Final

from rollcage.errors import SessionError

__all__ = ["name_of_script", "writable"]

_log: Final = logging.getLogger("rollcage")


def name_of_script() -> str:
    """Return the name of the running script, without `.py`, for a job without a name.

    Raises:
        SessionError: no script of the user's own is running.
    """
    main = sys.modules.get("__main__")
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if file is None or not Path(file).is_file():  # a prompt, `-c`, or what comes from stdin
        raise _nameless("no script is running")
    path = Path(file).resolve()
    if any(path.is_relative_to(folder) for folder in _installed()):
        raise _nameless(f"{path.name} is not a script of yours")
    name = path.stem if spec is None else str(spec.name).removesuffix(".__main__")
    _log.warning("this session was given no name: it is called %r, after its script", name)
    return name


def _nameless(why: str) -> SessionError:
    return SessionError(f'{why}, so this session has no name: say which job it is, Session("name")')


def _installed() -> set[Path]:
    """Return the folders of programs that run users' code: pytest, ipython, uvicorn."""
    kinds = ("stdlib", "platstdlib", "purelib", "platlib", "scripts")
    return {Path(sysconfig.get_path(kind)).resolve() for kind in kinds}


def writable(text: str) -> str:
    """Return a text from outside without lone surrogates, which UTF-8 can't hold."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
