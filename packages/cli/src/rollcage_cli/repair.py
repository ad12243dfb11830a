"""`rollcage repair`: repair a store as far as possible without loss, and list the repairs."""

from __future__ import annotations

import dataclasses

from rich.text import Text
from rollcage import all_runs

from rollcage_cli.lookup import named, opened
from rollcage_cli.options import DEFAULT_STORE, OFF, JsonOption, StoreOption
from rollcage_cli.output import console, counted, print_json, visible

__all__ = ["repair"]


def repair(store: StoreOption = DEFAULT_STORE, as_json: JsonOption = OFF) -> None:
    """Repair everything in a store that can be repaired without loss.

    Finishes an interrupted prune; removes an interrupted copy in which nothing was done; puts back
    a removed large value that is named after all. `rollcage doctor` lists the remaining problems.
    """
    from rollcage_stores.doctor import repair as mend  # imported only for this command

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
    said = f"{counted(len(mended), 'thing')} mended" if mended else "there was nothing to mend"
    out.print(f"{said}: {counted(runs, 'run')}", soft_wrap=True)
