"""The arguments and options that commands share."""

from __future__ import annotations

import getpass
from pathlib import Path
from typing import Annotated, Final

import typer

__all__ = ["DEFAULT_STORE", "OFF", "JsonOption", "RunArgument", "StoreOption", "this_user"]

DEFAULT_STORE: Final = Path(".rollcage")
OFF: Final = False  # the default of a flag, which Typer declares as a parameter

RunArgument = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="An id, its beginning or end, @NAME (the newest so named), latest, or a .jsonl file.",
        show_default=False,
    ),
]
StoreOption = Annotated[
    Path,
    typer.Option(
        "--store", envvar="ROLLCAGE_STORE", metavar="DIR", help="Where the runs are kept."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Write JSON, for machines.")]


def this_user() -> str:
    """Who runs this command, as the operating system has it; empty where it has no name."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # nobody of a name, as in some containers
        return ""
