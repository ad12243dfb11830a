"""`rollcage once`: effects that happen once in a store: show or resolve them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from itertools import islice
from typing import Annotated, Any, Final

import typer
from rich.text import Text
from rollcage import Store
from rollcage.errors import RollcageError
from rollcage.stages.once import Effect, once_of
from rollcage.trace.store import every_key, store_option

from rollcage_cli.errors import UsageError
from rollcage_cli.lookup import named, opened
from rollcage_cli.options import DEFAULT_STORE, OFF, JsonOption, StoreOption, json_given, who
from rollcage_cli.output import console, counted, paged, print_json, value_text, visible
from rollcage_cli.table import Table

__all__ = ["once"]

_STYLES: Final = {"done": "green", "flying": "cyan", "unknown": "bold yellow", "free": "dim"}
_WORDS: Final = {"flying": "in flight"}


def once(
    key: Annotated[
        str | None,
        typer.Argument(metavar="[KEY]", help="The effect; by default all.", show_default=False),
    ] = None,
    happened: Annotated[
        bool | None,
        typer.Option(
            "--happened/--did-not-happen", show_default=False, help="Whether it happened."
        ),
    ] = None,
    result: Annotated[
        str | None, typer.Option(metavar="JSON", help="The call's result, if known.")
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="Only the first keys; 0 lists all.")] = 50,
    by: Annotated[
        str | None, typer.Option(metavar="NAME", help="Who does this (by default, this user).")
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = OFF,
) -> None:
    """Show the effects that happen once, or resolve one.

    A tool names such an effect with `once=`: `refund/{payment}`. A done effect answers each call
    with its key; a free one may be made; calls wait for one in flight. A call for an unknown effect
    halts until a person says whether the effect happened.
    """
    if happened is None and result is not None:
        raise UsageError("--result goes with --happened")
    if happened is False and result is not None:
        raise UsageError("--did-not-happen takes no --result")
    own = opened(store)
    if key is None:
        if happened is not None:
            raise UsageError("name the effect: rollcage once KEY --happened")
        _list(own, named(own, store), limit, as_json=as_json)
        return
    found = _known(own, key)
    if happened is not None:
        given = {} if result is None else {"result": json_given("--result", result)}
        found.resolve(happened=happened, by=who(by, required=False), **given)
        now = once_of(own, key)
        if as_json:
            print_json(_data(found) | {"state": "free"} if now is None else _data(now))
            return
        what = "happened" if happened else "did not happen: it may be made"
        console().print(Text(f"{visible(key)} {what}", style="green"), soft_wrap=True)
    elif as_json:
        print_json(_data(found))
    else:
        _print(own, found)


def _known(store: Store, key: str) -> Effect:
    """Return the state of an effect.

    Raises:
        UsageError: no run has claimed the effect.
    """
    found = once_of(store, key)
    if found is None:
        raise UsageError(
            f"no call has claimed {visible(key)!r} in {visible(store.url)}; "
            f"list the claimed effects: rollcage once{store_option(store)}"
        )
    return found


def _data(found: Effect) -> dict[str, Any]:
    names = ("key", "state", "tool", "run", "step", "outcome", "elsewhere")
    answered = [{"run": each.run, "step": each.step} for each in found.answered]
    return {name: getattr(found, name) for name in names} | {"answered": answered}


def _styled(state: str) -> Text:
    return Text(_WORDS.get(state, state), style=_STYLES[state])


def _print(store: Store, found: Effect) -> None:
    out, at = console(), store_option(store)
    out.print(Text(f"{visible(found.key)}  ", style="bold").append_text(_styled(found.state)))
    step = f"step {found.step} of " if found.step else ""
    out.print(f"a call of {visible(found.tool)}, {step}run {visible(found.run)}", soft_wrap=True)
    if found.outcome is not None:
        lossy = found.outcome.get("lossy")
        shown = value_text(found.outcome.get("value")) if lossy is None else visible(lossy)
        out.print(f"result {shown}", soft_wrap=True)
    for each in found.answered:
        out.print(visible(each.reason(found.key, store)), soft_wrap=True)
    if found.elsewhere:
        out.print(visible(found.elsewhere), soft_wrap=True)
    if found.state == "unknown":
        command = f"rollcage once {shlex.quote(found.key)}{at}"
        out.print(
            Text(
                f"Its outcome is unknown. Find out, then run: {command} --happened; or, "
                f"if not: {command} --did-not-happen",
                style="yellow",
            ),
            soft_wrap=True,
        )


def _list(store: Store, where: str, limit: int, *, as_json: bool) -> None:
    """Print all effects, by their keys; mark the unreadable ones."""
    keys = [*islice(every_key(store, "once"), limit + 1 if limit else None)]
    shown = keys[:limit] if limit else keys
    found: list[Effect] = []
    damaged: dict[str, str] = {}
    for key in shown:
        try:
            effect = once_of(store, key)
        except RollcageError as error:
            damaged[key] = str(error)
            continue
        if effect is not None:
            found.append(effect)
    if as_json:
        data = {"store": where, "more": len(shown) < len(keys)}
        print_json(data | {"effects": [_data(each) for each in found], "damaged": damaged})
        return
    if not keys:
        console().print(f"No effect was claimed in {where}.")
        return
    with paged() as out:
        out.print(_table(found))
        for key, why in damaged.items():
            out.print(Text(f"{visible(key)}: {visible(why)}", style="red"), soft_wrap=True)
        if len(shown) < len(keys):
            out.print("Older effects are not shown (--limit 0 lists all).")
        unknown = sum(each.state == "unknown" for each in found)
        if unknown:
            text = f"{counted(unknown, 'effect')} of unknown outcome: rollcage once KEY says more."
            out.print(Text(text, style="yellow"), soft_wrap=True)


def _table(found: Sequence[Effect]) -> Table:
    table = Table()
    for title in ("key", "state", "call", "run", "step"):
        table.add_column(title, right=title == "step", no_wrap=title != "key")
    for each in found:
        table.add_row(
            Text(visible(each.key)),
            _styled(each.state),
            Text(visible(each.tool)),
            Text(visible(each.run[-12:])),
            str(each.step or ""),
        )
    return table
