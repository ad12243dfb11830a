"""`rollcage repair`: mends what can be mended in a store, and says what that was."""

from __future__ import annotations

import dataclasses

from rich.text import Text
from rollcage import all_runs

from rollcage_cli.lookup import named, opened
from rollcage_cli.options import DEFAULT_STORE, OFF, JsonOption, StoreOption
from rollcage_cli.output import console, counted, print_json, visible

__all__ = ["repair"]


def repair(store: StoreOption = DEFAULT_STORE, as_json: JsonOption = OFF) -> None:
    """Mend what can be mended in a store without losing anything.

    A pruning that was cut off is brought to its end; a copy that was cut off, in which nothing was
    done, goes; a large value that was removed and is named after all comes back. What else is wrong
    `rollcage doctor` says.
    """
    from rollcage_stores.doctor import repair as mend  # which only this command waits for

    own = opened(store, needed=True)
    mended = mend(own)
    runs = sum(1 for _ in all_runs(own))
    if as_json:
        listed = [dataclasses.asdict(each) for each in mended]
        print_json({"store": named(own, store), "runs": runs, "mended": listed})
        return
    out = console()
    for each in mended:
        whose = f"run {each.run}: " if each.run else ""
        out.print(Text(f"mended: {whose}{visible(each.message)}"), soft_wrap=True)
    said = f"{counted(len(mended), 'thing')} mended" if mended else "nothing was to be mended"
    out.print(f"{said}: {counted(runs, 'run')}", soft_wrap=True)
