"""`rollcage doctor`: the problems of a store, and the command that fixes each."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.text import Text
from rollcage import Store, all_runs
from rollcage.errors import RegistryCorrupt, StoreError, StoreInvalid

from rollcage_cli.errors import CORRUPT, DIFFERENT, OK
from rollcage_cli.lookup import named, opened
from rollcage_cli.options import DEFAULT_STORE, OFF, JsonOption, StoreOption
from rollcage_cli.output import console, counted, print_json, visible

if TYPE_CHECKING:
    from rollcage_stores.doctor import Finding

__all__ = ["doctor"]

_STYLES: Final = {"damaged": "bold red", "open": "yellow", "note": "dim"}
_NOTHING: Final = "no command of Rollcage mends this; restore the undamaged data from a backup"


def doctor(
    store: StoreOption = DEFAULT_STORE,
    no_blobs: Annotated[bool, typer.Option("--no-blobs", help="Read no large values.")] = OFF,
    as_json: JsonOption = OFF,
) -> None:
    """List the problems of a store, and the command that helps.

    It reads everything and changes nothing. Exits with 3 if something is damaged, with 1 if a
    person has to decide or fix something.
    """
    own = opened(store, needed=True)
    found, runs = _examined(own, blobs=not no_blobs)
    if as_json:
        listed = [dataclasses.asdict(each) for each in found]
        print_json({"store": named(own, store), "runs": runs, "findings": listed})
    else:
        _print(found, runs, own)
    kinds = {finding.kind for finding in found}
    code = CORRUPT if "damaged" in kinds else DIFFERENT if "open" in kinds else OK
    if code:
        raise typer.Exit(code)


def _examined(own: Store, *, blobs: bool) -> tuple[list[Finding], int]:
    """Return all problems, and the number of runs."""
    from rollcage_stores.doctor import Finding, examine  # imported only for this command

    try:
        found = [*examine(own, blobs=blobs), *_in_registry(own)]
        return found, sum(1 for _ in all_runs(own))
    except StoreInvalid:
        raise
    except StoreError as error:  # its schema, its key, its disk: no other command works either
        return [Finding("damaged", "store_unusable", "", str(error))], 0


def _in_registry(own: Store) -> list[Finding]:
    """Return the problems of the registry of tools, if its package is installed."""
    from rollcage_stores.doctor import Finding  # as above

    try:
        from rollcage_governance import Registry
    except ModuleNotFoundError as error:
        # the package is installed, but one of its libraries is not
        if error.name != "rollcage_governance":
            raise
        return []
    try:
        Registry(own).state()
    except RegistryCorrupt as error:
        return [Finding("damaged", error.code, "", str(error))]
    return []


def _print(found: Sequence[Finding], runs: int, own: Store) -> None:
    out = console()
    for each in found:
        whose = f" run {visible(each.run)}:" if each.run else ""
        text = Text(f"{each.kind}:", style=_STYLES[each.kind])
        text.append(f"{whose} {visible(each.message)} ({each.code})", style="default")
        out.print(text, soft_wrap=True)
        if each.helps or each.kind == "damaged":
            out.print(f"  {visible(each.helps or _NOTHING)}", soft_wrap=True)
    counts: dict[str, Any] = {kind: sum(each.kind == kind for each in found) for kind in _STYLES}
    message = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
    out.print(f"{counted(runs, 'run')} in {visible(own.url)}: {message or 'nothing is wrong'}")
