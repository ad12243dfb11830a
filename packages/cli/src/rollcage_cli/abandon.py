"""`rollcage abandon`: set a run aside, so that its job starts over."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text
from rollcage import abandon_run
from rollcage.trace.recorded import trace_of
from rollcage.trace.store import store_option
from rollcage_views import read_run, standing

from rollcage_cli.lookup import find_kept
from rollcage_cli.options import DEFAULT_STORE, OFF, JsonOption, RunArgument, StoreOption, who
from rollcage_cli.output import console, counted, print_json

__all__ = ["abandon"]


def abandon(
    run: RunArgument,
    reason: Annotated[str | None, typer.Option(metavar="TEXT", help="Why; it is recorded.")] = None,
    by: Annotated[
        str | None, typer.Option(metavar="NAME", help="Who does this (by default, this user).")
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = OFF,
) -> None:
    """Set a run aside: the next session of its job starts over.

    Nothing is undone. The run's effects stay, and are made again if the job asks for them: to undo
    them, use `undo`. The run can still be shown, audited and replayed offline.
    """
    own, id_ = find_kept(store, run, "abandon")
    name = who(by, required=False)
    seen = read_run(trace_of(own, id_))
    abandon_run(own, id_, by=name, reason=reason or "")
    stands = standing(seen)
    done = [row for row in seen.effects if row.state != "unknown"]
    stay = len(done)
    if as_json:
        details = {
            "by": name,
            "reason": reason or "",
            "effects": [row.step for row in seen.effects],
        }
        rest = {each: stands.as_data()[each] for each in ("not_asked_for", "unknown")}
        print_json({"run": id_, "abandoned": True} | details | rest)
        return
    out = console()
    out.print(Text(f"run {id_} is abandoned", style="green"), soft_wrap=True)
    if stay:
        one = stay == 1
        out.print(
            f"{counted(stay, 'effect')} of the run {'stays' if one else 'stay'} done. To undo "
            f"{'it' if one else 'them'}: "
            f"rollcage undo {id_}{store_option(own)}",
            soft_wrap=True,
        )
    for each in stands.unknown:
        out.print(f"{each} may be done, too: its outcome is unknown", soft_wrap=True)
