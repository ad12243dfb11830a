"""`rollcage mcp accept`: accept what a server says about its tools now."""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final

import typer
from rich.text import Text
from rollcage import open_store
from rollcage_adapter import ListedKind, Pinned, ServerPins, pinned_servers
from rollcage_cli.errors import DIFFERENT, UsageError
from rollcage_cli.options import DEFAULT_STORE, OFF, StoreOption
from rollcage_cli.output import console, is_terminal, visible
from rollcage_cli.table import Table

__all__ = ["accept"]

_WORDS: Final[Mapping[ListedKind, str]] = {
    "tool": "tool", "prompt": "prompt", "resource": "resource", "template": "resource template",
}  # fmt: skip


def accept(
    server: Annotated[
        str | None,
        typer.Argument(
            metavar="[SERVER]",
            help="Its name, or its key as a refusal names it; by default, list the servers.",
            show_default=False,
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask for confirmation.")] = OFF,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Accept what a server has changed: tools, prompts, resources.

    What a server says when it is first used counts as accepted. A later change is withheld from the
    model until it is accepted here. Shows the changes, and asks.
    """
    servers = pinned_servers(open_store(store))
    if server is None:
        _list(servers)
        return
    pins = _named(servers, server)
    shown = pins.pinned
    name = visible(shown.name)
    changes = [*_changes(shown)]
    out = console()
    if not changes:
        out.print(f"{name}: nothing waits to be accepted", soft_wrap=True)
        return
    for line in changes:
        out.print(Text(line), soft_wrap=True)
    if not yes:
        if not is_terminal(sys.stdin):
            raise UsageError("there is no terminal to ask on, nothing was accepted: pass --yes")
        if not typer.confirm(f"Accept this of {name}?"):
            raise typer.Exit(DIFFERENT)

    def as_shown(pinned: Pinned) -> None:
        if pinned.waiting != shown.waiting:
            raise UsageError(f"{name} was changed again meanwhile: look at it again")
        pinned.accept()

    pins.update(as_shown)
    out.print(f"{name}: accepted", soft_wrap=True)


def _list(servers: list[ServerPins]) -> None:
    table = Table()
    for title in ("key", "server", "tools", "waiting"):
        table.add_column(title)
    for each in servers:
        pinned = each.pinned
        new, instructions = pinned.waiting
        waiting = sum(map(len, new.values())) + (instructions is not None)
        tools = len(pinned.of("tool").known)
        table.add_row(each.key, visible(pinned.name), str(tools), str(waiting or ""))
    console().print(table)


def _named(servers: list[ServerPins], named: str) -> ServerPins:
    """Return a server by its key, or by its name. Raises `UsageError`."""
    found = [each for each in servers if named in (each.key, each.pinned.name)]
    if len(found) == 1:
        return found[0]
    if found:
        listed = ", ".join(each.key for each in found)
        raise UsageError(f"{visible(named)} names {len(found)} servers: say which by key: {listed}")
    raise UsageError(f"no server {visible(named)} was used with this store: rollcage mcp accept")


def _changes(pinned: Pinned) -> Iterator[str]:
    """Return the changes that wait, as a difference from the accepted definitions."""
    for kind, each in pinned.lists.items():
        for name, text in each.new.items():
            known = each.known.get(name)
            yield f"{'' if known else 'new '}{_WORDS[kind]} {visible(name)}:"
            yield from _difference(_lines(known[-1]) if known else [], _lines(text))
    if pinned.new_instructions is not None:
        yield "instructions to the model:"
        was, now = pinned.instructions[-1], pinned.new_instructions
        yield from _difference(was.splitlines(), now.splitlines())


def _difference(was: list[str], now: list[str]) -> Iterator[str]:
    lines = difflib.unified_diff(was, now, lineterm="", n=2)
    return (f"  {visible(line)}" for line in [*lines][2:])


def _lines(text: str) -> list[str]:
    definition: Any = json.loads(text)
    return json.dumps(definition, indent=2, ensure_ascii=False).splitlines()
