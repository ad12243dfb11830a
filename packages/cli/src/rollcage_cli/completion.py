"""Shell completion: names of jobs, and ids of runs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rollcage import RunInfo

__all__ = ["complete_name", "complete_run"]

_LOOKED_AT = 200  # newest runs: a shell waits for the search


def complete_run(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Return the jobs as `@NAME`, `latest`, and the matching ids, with their jobs."""
    from rollcage_views import visible  # imported only for a completion

    infos = _newest(context)
    found = [("latest", "the newest run")] if infos else []
    found += [(f"@{name}", "its job") for name in _names(infos)]
    found += [(info.run, visible(info.name)) for info in infos]
    return [each for each in found if each[0].startswith(incomplete)]


def complete_name(context: typer.Context, incomplete: str) -> list[str]:
    """Return the names of jobs."""
    return [name for name in _names(_newest(context)) if name.startswith(incomplete)]


def _names(infos: list[RunInfo]) -> list[str]:
    """Return the names that are safe for a shell; hostile ones are left out."""
    from rollcage_views import visible

    return sorted({info.name for info in infos if visible(info.name) == info.name})


def _newest(context: typer.Context) -> list[RunInfo]:
    from rollcage import list_runs
    from rollcage.errors import RollcageError

    store = context.params.get("store") or os.environ.get("ROLLCAGE_STORE") or ".rollcage"
    try:
        return list_runs(str(store), limit=_LOOKED_AT)
    except RollcageError:
        return []  # the command itself reports the error
