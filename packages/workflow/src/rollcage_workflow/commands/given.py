"""What the commands of `rollcage workflow` are given: ids and inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import orjson
import typer
from rollcage_cli.errors import UsageError
from rollcage_cli.output import visible

__all__ = ["IdArgument", "given_inputs", "given_json"]

IdArgument = Annotated[
    str, typer.Argument(metavar="ID", help="The execution's id.", show_default=False)
]


def given_inputs(given: Sequence[str]) -> dict[str, Any]:
    """Inputs by name, each given as `NAME=JSON`.

    Raises:
        UsageError: one is not.
    """
    found: dict[str, Any] = {}
    for each in given:
        name, equals, text = each.partition("=")
        if not equals:
            raise UsageError(f"--input {visible(each)}: give it as NAME=JSON")
        found[name] = given_json(text, f"--input {name}")
    return found


def given_json(text: str, where: str) -> Any:
    """A JSON text.

    Raises:
        UsageError: it is none; says `where`.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise UsageError(
            f"{where}: {visible(text[:60])} is no JSON ({error}); a text is quoted: '\"text\"'"
        ) from None
