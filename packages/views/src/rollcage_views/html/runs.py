"""A run as a page: its head, its attempts over time, its steps, and the rest of its trace."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TextIO

from rollcage_views.html.links import Links
from rollcage_views.html.rendering import write_report
from rollcage_views.html.rows import Cut, StepRow, cut, step_rows
from rollcage_views.policies import Hit, RuleCount, hits_of, rule_counts
from rollcage_views.runs import Run, Step
from rollcage_views.status import Standing, standing, words
from rollcage_views.text import arguments_text, duration_text, utc_text, value_text
from rollcage_views.text import visible as safe
from rollcage_views.timeline import Timeline, timeline_of
from rollcage_views.usage import Usage, usage_of
from rollcage_views.viewer import SEES_ALL, TO_GIVE_AWAY, Viewer

__all__ = ["RunHead", "RunPage", "TrackRow", "run_head", "run_page", "track_rows", "write_run"]

_LONGEST: Final = 1000  # characters of a note
_HITS: Final = 500  # policy hits that are listed
_COUNTED: Final = ("took", "steps", "replay saved")
_WAIT_STATES: Final = {"resumed": "waited"}


@dataclasses.dataclass(frozen=True, slots=True)
class RunHead:
    """The head of a page of a run.

    Attributes:
        name: the name of its job.
        run: its id.
        status: its status.
        facts: a title and a text each.
        source: the run that it continues or forks; empty if none.
        error: the error that ended it; empty without one.
        notes: notes for a person, with the command that helps.
        states: how many steps are in which state, without zeros.
    """

    name: str
    run: str
    status: str
    facts: list[tuple[str, str]]
    source: str
    error: str
    notes: list[str]
    states: list[tuple[str, int]]


@dataclasses.dataclass(frozen=True, slots=True)
class TrackRow:
    """An attempt, or a wait, on the time line of a job."""

    kind: str
    run: str
    title: str
    state: str
    began: str
    took: str
    start: float
    length: float


@dataclasses.dataclass(frozen=True, slots=True)
class RunPage:
    """The values of the template `run_body.html`.

    Attributes:
        head: the run.
        tracks: its attempts and waits, if there is more than one; else nothing.
        span: how long all of it took.
        rows: the steps, made on demand.
        shown: how many of them there are; `total`: how many the run has.
        states: the states by which the list can be filtered.
        refused: calls that never became steps: the agent, the call, and the reason.
        rules: the rules that decided, with their decisions; `hits`: the calls.
        usage: the usage by tool and model.
    """

    head: RunHead
    tracks: list[TrackRow]
    span: str
    rows: Iterable[StepRow]
    shown: int
    total: int
    states: list[str]
    refused: list[tuple[str, Cut, str]]
    rules: list[RuleCount]
    hits: list[Hit]
    more_hits: int
    usage: Usage


def run_page(
    run: Run,
    stands: Standing,
    *,
    at: str = "",
    steps: Sequence[Step] | None = None,
    viewer: Viewer = SEES_ALL,
) -> RunPage:
    """Return the page of a run.

    Args:
        run: the run.
        stands: its open problems.
        at: its store for a command line.
        steps: the displayed steps; all of them by default.
        viewer: the viewer.
    """
    seen = viewer.run(run)
    line = timeline_of(seen)
    wanted = None if steps is None else {step.step for step in steps}
    listed = [step for step in seen.steps if wanted is None or step.step in wanted]
    hits = hits_of(seen)
    return RunPage(
        head=run_head(seen, words(stands, seen.status, seen.id, at)),
        tracks=track_rows(line),
        span=duration_text(line.length),
        rows=step_rows(seen, listed, run if viewer.values else None, viewer=viewer, at=at),
        shown=len(listed),
        total=len(seen.steps),
        states=_states(listed),
        refused=[*_refused(seen)],
        rules=rule_counts(hits),
        hits=hits[:_HITS],
        more_hits=max(len(hits) - _HITS, 0),
        usage=usage_of(seen),
    )


def write_run(
    out: TextIO,
    seen: Run,
    *,
    at: str = "",
    steps: Sequence[Step] | None = None,
    viewer: Viewer = TO_GIVE_AWAY,
) -> None:
    """Write a run as one self-contained page.

    Args:
        out: the output.
        seen: the run.
        at: its store for a command line.
        steps: the displayed steps; all of them by default.
        viewer: the viewer.
    """
    page = run_page(seen, standing(seen), at=at, steps=steps, viewer=viewer)
    write_report("run.html", out, links=Links(seen.id), page=page)


def run_head(
    seen: Run, notes: Sequence[str] = (), *, status: str = "", whole: bool = True
) -> RunHead:
    """Return the head of a run.

    Args:
        seen: the run, as its viewer may see it.
        notes: notes for a person.
        status: its status, if it is known better than from the trace.
        whole: whether these are all its steps; otherwise no counts are shown.
    """
    error = (seen.finished or {}).get("error")
    failure = f"{error.get('type')}: {error.get('message')}" if error else ""
    listed = [*notes]
    if seen.started.get("redacted"):
        listed.append("An export: values were taken out.")
    counts = {state: number for state, number in seen.totals.states.items() if number}
    undone = sum(step.undone in ("verified", "compensated") for step in seen.steps)
    return RunHead(
        name=cut(safe(seen.started["name"]), 200).text,
        run=seen.id,
        status=status or seen.status,
        facts=[
            (title, cut(safe(text), _LONGEST).text)
            for title, text in _facts(seen)
            if text and (whole or title not in _COUNTED)
        ],
        source=str(seen.started.get("source") or ""),
        error=cut(safe(failure), _LONGEST).text,
        notes=listed,
        states=[*counts.items(), *([("undone", undone)] if undone else [])] if whole else [],
    )


def _facts(seen: Run) -> list[tuple[str, str]]:
    started = seen.started
    policy = started.get("policy") or {}
    named = f"{policy.get('name') or 'policy'}@{str(policy.get('digest', ''))[:12]}"
    given = started.get("input") or {}
    totals = seen.totals
    fork = started.get("fork") or {}
    abandoned = seen.abandoned or {}
    is_replayed = any(each.replayed for each in seen.attempts)
    is_replayed = is_replayed or any(step.state == "hit" for step in seen.steps)
    saved = f"{duration_text(round(totals.seconds_saved * 1e6))}, {totals.tokens_saved:,} tokens"
    return [
        ("mode", str(started["mode"])),
        ("started", utc_text(started["time"])),
        ("took", duration_text(seen.last_time - started["time"])),
        ("steps", f"{totals.steps:,}"),
        ("acts for", str(started.get("actor", ""))),
        ("input", value_text(given["value"]) if "value" in given else ""),
        ("policy", f"{named} ({policy['mode']})" if policy.get("mode") else ""),
        ("fork", f"another {fork['change']} {fork.get('to', '')}".strip() if fork else ""),
        ("imported from", str((started.get("imported") or {}).get("format", ""))),
        ("waits for", str((seen.finished or {}).get("reason") or "")),
        ("abandoned", f"by {abandoned.get('by') or '?'}: {abandoned.get('reason', '')}"
         if abandoned else ""),
        ("replay saved", saved if is_replayed else ""),
    ]  # fmt: skip


def track_rows(line: Timeline) -> list[TrackRow]:
    """Return the attempts and waits of a job, if there is more than one; else nothing."""
    listed = [bar for bar in line.bars if bar.kind != "step"]
    if len(listed) < 2:
        return []
    return [
        TrackRow(
            kind=bar.kind,
            run=bar.run,
            title=cut(safe(bar.title), 200).text,
            state=_WAIT_STATES.get(bar.state, bar.state) if bar.kind == "wait" else bar.state,
            began=utc_text(bar.start),
            took=duration_text(bar.length),
            start=line.place(bar)[0],
            length=line.place(bar)[1],
        )
        for bar in listed
    ]


def _states(steps: Sequence[Step]) -> list[str]:
    found = {step.state for step in steps}
    undone = any(step.undone in ("verified", "compensated") for step in steps)
    return sorted(found | ({"undone"} if undone else set()))


def _refused(seen: Run) -> Iterator[tuple[str, Cut, str]]:
    for call in seen.refused:
        asked = cut(f"{safe(call.name)}({arguments_text(call.args)})", _LONGEST)
        yield safe(call.agent), asked, cut(safe(f"{call.code}: {call.reason}"), _LONGEST).text
