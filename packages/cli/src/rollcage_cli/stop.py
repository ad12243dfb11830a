"""`rollcage stop`: the kill switch of a run, for every process that has it open or resumes it."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text
from rollcage import Store, stop_run
from rollcage.stages.orders import lift_stop
from rollcage.trace.store import store_option

from rollcage_cli.errors import UsageError
from rollcage_cli.lookup import find_kept
from rollcage_cli.options import DEFAULT_STORE, OFF, JsonOption, RunArgument, StoreOption, who
from rollcage_cli.output import console, print_json

__all__ = ["stop"]


def stop(
    run: RunArgument,
    reason: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Why; shown in the run's error.")
    ] = None,
    by: Annotated[
        str | None, typer.Option(metavar="NAME", help="Who does this (by default, this user).")
    ] = None,
    lift: Annotated[
        bool, typer.Option("--lift", help="End the stop: the run may be resumed.")
    ] = OFF,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = OFF,
) -> None:
    """Stop a run: its next call is refused.

    So is each call of a session that resumes the run, until --lift lifts the order. A running tool
    is not interrupted; its end is recorded. To undo the run's effects, use `undo`.
    """
    own, id_ = find_kept(store, run, "stop")
    if lift:
        if reason is not None or by is not None:
            raise UsageError("--reason and --by are for a new stop, not for --lift")
        _lift(own, id_, as_json=as_json)
        return
    order = stop_run(own, id_, by=who(by, required=False), reason=reason or "")
    if as_json:
        print_json({"run": id_, "stopped": True, "by": order.by, "reason": order.reason})
        return
    out = console()
    out.print(Text(f"run {id_} is stopped", style="green"), soft_wrap=True)
    out.print(
        f"Nothing more runs in it, and nothing resumes it. To let it go on: "
        f"rollcage stop {id_} --lift{store_option(own)}",
        soft_wrap=True,
    )


def _lift(store: Store, run: str, *, as_json: bool) -> None:
    lift_stop(store, run)
    if as_json:
        print_json({"run": run, "stopped": False})
        return
    console().print(Text(f"run {run} may be resumed", style="green"), soft_wrap=True)
