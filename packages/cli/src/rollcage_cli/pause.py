"""`rollcage pause` and `rollcage unpause`: the next call of a run waits until `unpause`."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text
from rollcage import order_of, pause_run
from rollcage.stages.orders import unpause_run
from rollcage.trace.store import store_option
from rollcage_views import order_data, pause_text

from rollcage_cli.lookup import find_kept
from rollcage_cli.options import DEFAULT_STORE, OFF, JsonOption, RunArgument, StoreOption, who
from rollcage_cli.output import console, print_json

__all__ = ["pause", "unpause"]


def pause(
    run: RunArgument,
    reason: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Why; shown with the run.")
    ] = None,
    by: Annotated[
        str | None, typer.Option(metavar="NAME", help="Who does this (by default, this user).")
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = OFF,
) -> None:
    """Pause a run: its next call waits until `unpause`.

    So does the next call of a session that resumes the run. A running tool is not interrupted; its
    end is recorded. An undo does not wait. To end the run instead, use `stop`, also while it is
    paused.
    """
    own, id_ = find_kept(store, run, "pause")
    before = order_of(own, id_)
    order = pause_run(own, id_, by=who(by, required=False), reason=reason or "")
    if as_json:
        print_json({"run": id_, "paused": True, "order": order_data(order)})
        return
    out = console()
    out.print(Text(f"run {id_} is paused", style="green"), soft_wrap=True)
    if before is not None:
        out.print(
            f"It was {pause_text(before)}. This order replaces the earlier one.", soft_wrap=True
        )
    out.print(
        f"Its next call waits. To let it go on: rollcage unpause {id_}{store_option(own)}",
        soft_wrap=True,
    )


def unpause(
    run: RunArgument, store: StoreOption = DEFAULT_STORE, as_json: JsonOption = OFF
) -> None:
    """Let a paused run continue, no matter who paused it.

    The waiting calls are made now.
    """
    own, id_ = find_kept(store, run, "unpause")
    order = unpause_run(own, id_)
    if as_json:
        print_json({"run": id_, "paused": False, "lifted": order_data(order)})
        return
    out = console()
    out.print(f"Run {id_} was {pause_text(order)}.", soft_wrap=True)
    out.print(Text("It goes on.", style="green"), soft_wrap=True)
