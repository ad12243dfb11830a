"""The arguments and options that several commands share."""

from __future__ import annotations

import getpass
import json
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from rollcage_cli.completion import complete_run
from rollcage_cli.errors import UsageError

__all__ = [
    "DEFAULT_STORE",
    "NEWEST",
    "OFF",
    "ForceOption",
    "HtmlOption",
    "JsonOption",
    "NewestRunArgument",
    "RunArgument",
    "StoreOption",
    "json_given",
    "this_user",
    "who",
]

DEFAULT_STORE: Final = ".rollcage"
NEWEST: Final = "latest"
OFF: Final = False  # the default of a flag: Typer takes a parameter

RunArgument = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="An id, its beginning or end, @NAME (the newest so named), latest, or a .jsonl file.",
        show_default=False,
        autocompletion=complete_run,
    ),
]
NewestRunArgument = Annotated[
    str,
    typer.Argument(
        metavar="[RUN]",
        help="As in every command; by default the newest run.",
        show_default=False,
        autocompletion=complete_run,
    ),
]
StoreOption = Annotated[
    str,
    typer.Option(
        "--store",
        envvar="ROLLCAGE_STORE",
        metavar="URL",
        help="Where the runs are kept: a folder, sqlite:///FILE or postgresql://HOST/DB.",
    ),
]
HtmlOption = Annotated[
    Path | None,
    typer.Option("--html", metavar="FILE", help="Write a page to this file instead; - is stdout."),
]
ForceOption = Annotated[
    bool, typer.Option("--force", help="Replace the file of --html if it exists.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Write JSON, for machines.")]


def this_user() -> str:
    """Return the operating system's user; empty without a name."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # the user has no name, as in some containers
        return ""


def who(by: str | None, *, required: bool = True) -> str:
    """Return the person's name: the option `--by`, or else this user.

    If no name is `required`, it is empty for a user without a name: rejecting a call or stopping a
    run needs no name.

    Raises:
        UsageError: the name is not valid.
    """
    from rollcage.gate import person  # few commands need a name and the gate

    try:
        return person(this_user() if by is None else by)
    except ValueError as error:
        if by is None and not required:
            return ""
        raise UsageError(f"say who you are with --by NAME: {error}") from None


def json_given(option: str, text: str) -> Any:
    """Return the value of an option's JSON.

    Raises:
        UsageError: the text is not JSON, or too deep.
    """
    try:
        return json.loads(text, parse_constant=_no_number)
    except ValueError as error:
        why = str(error)
    except RecursionError:
        why = "it is too deep"
    raise UsageError(f"{option} is not JSON: {why}; a text is written '\"in quotes\"'")


def _no_number(word: str) -> Any:
    raise ValueError(f"{word} is not a JSON number")
