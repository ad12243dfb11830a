"""`rollcage jobs`: one line a job, with the chain of its attempts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Final

import typer
from rich.text import Text
from rollcage_views import Job, JobRun, jobs_of, short_ids, time_text

from rollcage_cli.completion import complete_name
from rollcage_cli.lookup import named, opened
from rollcage_cli.options import DEFAULT_STORE, OFF, JsonOption, StoreOption
from rollcage_cli.output import console, paged, print_json, visible
from rollcage_cli.runs import STATUS_STYLES
from rollcage_cli.table import Table

__all__ = ["jobs"]

_SHOWN: Final = 4  # attempts of a chain: the first, and the last ones


def jobs(
    store: StoreOption = DEFAULT_STORE,
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Only the jobs of this name.", autocompletion=complete_name
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="Only the newest; 0 lists all.")] = 50,
    as_json: JsonOption = OFF,
) -> None:
    """List the jobs, newest first, each with its runs.

    A job has one run, or several if it continued from a copy: `died → ok`. Forks are not listed.
    """
    own = opened(store)
    found = jobs_of(own, name=name, limit=limit + 1 if limit else None)
    shown = found[:limit] if limit else found
    if as_json:
        data = {"store": named(own, store), "more": len(shown) < len(found)}
        print_json(data | {"jobs": [job.as_data() for job in shown]})
        return
    if not found:
        console().print(f"No jobs in {named(own, store)}.")
        return
    ids = short_ids(own, [each.info.run for job in shown for each in job.attempts])
    with paged() as out:
        out.print(_table(shown, ids, out.width))
        if len(shown) < len(found):
            out.print("Older ones are not shown (--limit 0 lists all).")


def _table(jobs: Sequence[Job], ids: Mapping[str, str], width: int) -> Table:
    table = Table()
    table.add_column("job", no_wrap=True, max_width=max(width // 4, 12))
    table.add_column("status", no_wrap=True)
    table.add_column("started", no_wrap=True)
    table.add_column("attempts")
    for job in jobs:
        table.add_row(
            Text(visible(job.name)),
            _status_text(job),
            Text(time_text(job.began)),
            _chain(job, ids),
        )
    return table


def _status_text(job: Job) -> Text:
    text = Text(visible(job.status), style=STATUS_STYLES.get(job.status, ""))
    return text if job.pause is None else text.append(", paused", style="bold yellow")


def _chain(job: Job, ids: Mapping[str, str]) -> Text:
    """Return the chain in a line: `died 1a2b3c4d → ok 5e6f7a8b`."""
    listed: list[JobRun | None] = [*job.attempts]
    if len(listed) > _SHOWN:
        listed = [listed[0], None, *listed[1 - _SHOWN :]]
    text = Text("… → " if job.more else "")
    for at, each in enumerate(listed):
        if at:
            text.append(" → ")
        if each is None:
            text.append(f"{len(job.attempts) - _SHOWN} more", style="dim")
            continue
        if each.count > 1:
            text.append(f"{each.count - 1} before → ", style="dim")
        text.append(visible(each.status), style=STATUS_STYLES.get(each.status, ""))
        text.append(f" {ids[each.info.run]}")
    return text
