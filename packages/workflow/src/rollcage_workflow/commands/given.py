"""The arguments of the commands of `rollcage workflow`: ids and inputs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, cast

import orjson
import typer
from rollcage_cli.errors import UsageError
from rollcage_cli.output import visible

__all__ = [
    "FromOption",
    "GivenOption",
    "IdArgument",
    "given_inputs",
    "given_json",
    "given_results",
]

IdArgument = Annotated[
    str, typer.Argument(metavar="ID", help="The execution's id.", show_default=False)
]
FromOption = Annotated[
    str, typer.Option("--from", metavar="STEP", help="Start a new one at this step.")
]
GivenOption = Annotated[
    Path | None,
    typer.Option(
        "--given",
        metavar="FILE",
        help="With --from: a JSON file with the results of the earlier steps, by name.",
        show_default=False,
    ),
]


def given_inputs(given: Sequence[str]) -> dict[str, Any]:
    """Return inputs by name, each given as `NAME=JSON`.

    Raises:
        UsageError: an input has another form.
    """
    found: dict[str, Any] = {}
    for each in given:
        name, equals, text = each.partition("=")
        if not equals:
            raise UsageError(f"--input {visible(each)}: give it as NAME=JSON")
        found[name] = given_json(text, f"--input {name}")
    return found


def given_json(text: str, where: str) -> Any:
    """Return the value of a JSON text.

    Raises:
        UsageError: the text is not JSON; names `where`.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise UsageError(
            f"{where}: {visible(text[:60])} is not JSON ({error}); a text is quoted: '\"text\"'"
        ) from None


def given_results(file: Path | None) -> dict[str, Any] | None:
    """Return the results in a JSON file, by step.

    Raises:
        UsageError: the file can't be read, or is no table.
    """
    if file is None:
        return None
    try:
        found = given_json(file.read_text(encoding="utf-8"), f"--given {file}")
    except (OSError, ValueError) as error:
        raise UsageError(f"--given {visible(str(file))}: {error}") from None
    if not isinstance(found, dict):
        raise UsageError(f"--given {visible(str(file))}: it has to be a table: results by step")
    return cast("dict[str, Any]", found)
