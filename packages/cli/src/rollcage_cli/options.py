"""The arguments and options that commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

__all__ = ["DEFAULT_STORE", "JsonOption", "RunArgument", "StoreOption"]

DEFAULT_STORE: Final = Path(".rollcage")

RunArgument = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="An id, its beginning or end, @NAME (the newest of that name), latest, or a .jsonl file.",
        show_default=False,
    ),
]
StoreOption = Annotated[
    Path,
    typer.Option("--store", envvar="ROLLCAGE_STORE", metavar="DIR", help="Where the runs are kept."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Write JSON, for machines.")]
