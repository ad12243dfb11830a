"""What views, `verify` and `export` make of any log, at each of its lines."""

import io
import random
from typing import Any

import pytest
from hypothesis import given
from rollcage.errors import StoreError
from rollcage.trace import check_events, read_events
from rollcage.trace.recorded import LogTrace
from rollcage_cli.log_check import LogCheck
from rollcage_cli.redact import Redaction, chained_anew
from rollcage_views import (
    Following,
    Step,
    Viewer,
    outcome_text,
    read_run,
    run_data,
    sheet_of,
    standing,
    state_text,
    timeline_of,
    tree_of,
    usage_of,
    words,
)
from rollcage_views.audit import AuditEntry, Damaged, Named, Selection, Summary, audited
from rollcage_views.html import write_run
from rollcage_views.policies import denial_of

from tests.laws.lab import Lab, folder
from tests.laws.law import chances, fewer, order, resumed
from tests.laws.programs import LEAVES, Program, programs, seeds
from tests.laws.test_undo import undo
from tests.laws.timeline import Line

pytestmark = pytest.mark.law

LOSES = ("work", "work", "fail", "lose before", "lose after")


class Lines:
    """A run whose log grows, as far of a store as is read of it."""

    url = ""

    def __init__(self, run: str, lines: list[bytes]) -> None:
        self.run, self.lines, self.count = run, lines, len(lines)

    def read(self, run: str, after: int = 0) -> list[bytes]:
        return self.lines[after : self.count]

    def get(self, kind: str, key: str) -> None:
        return None

    def trace(self) -> LogTrace:
        return LogTrace(self.run, "the log", b"".join(self.read(self.run)))


def no_blob(digest: str) -> bytes:
    raise StoreError(f"there is no {digest}")


def shows(reader: Lines) -> None:
    """Show a run in each way; nothing raises, and the parts fit together."""
    trace = reader.trace()
    seen = read_run(trace, schema=False)
    stands = standing(seen)
    words(stands, seen.status, seen.id, "")
    usage_of(seen)
    run_data(seen, stands, seen.steps)
    for step in seen.steps:
        assert state_text(step)
        outcome_text(step)
    shown = [node.step.step for root in tree_of(seen.steps) for _, node in root.walk() if node.step]
    assert sorted(shown) == sorted(step.step for step in seen.steps)
    bars = sorted(bar.step for bar in timeline_of(seen).bars if bar.step)
    assert bars == sorted(
        step.step for step in seen.steps if step.attempt or len(seen.attempts) < 2
    )
    pages = [sheet_of(trace, first=n, count=2).run.steps for n in range(1, len(seen.steps) + 1, 2)]
    assert [step.step for page in pages for step in page] == [step.step for step in seen.steps]
    hidden = Viewer(values=False).run(seen)
    assert [step.state for step in hidden.steps] == [step.state for step in seen.steps]
    page = io.StringIO()
    write_run(page, seen)
    assert page.getvalue().count('id="step-') == len(seen.steps)
    entries = [*audited([Named(reader.run, reader.trace, None)], Selection(), Summary())]
    calls = [each for each in entries if isinstance(each, AuditEntry) and each.kind == "call"]
    asked = [step for step in seen.steps if step.kind != "branch"]
    assert len(calls) == len(asked) + sum(denial_of(row) is not None for row in seen.refused)
    assert not any(isinstance(each, Damaged) for each in entries)
    open_ = {*stands.unknown, *stands.unclear, *stands.left, *stands.ahead, *stands.lost}
    assert {each.step for each in open_} <= {step.step for step in seen.effects}


def follows(reader: Lines, chance: random.Random) -> None:
    """Follow a log while it grows; what was told last of each step is what it is."""
    reads: Any = reader  # all that is asked of it is to read
    following, told = Following(reads, reader.run), dict[int, Step]()
    whole = len(reader.lines)
    for reader.count in sorted({*(chance.randrange(whole + 1) for _ in range(6)), whole}):
        told.update({each.step: each for each in following.news() if isinstance(each, Step)})
    assert following.lines == whole
    seen = read_run(reader.trace(), schema=False)
    by_number = {step.step: step for step in seen.steps}
    for n, step in by_number.items():
        if not step.gone and step.state in ("ran", "failed"):
            assert told[n].outcome == step.outcome, n
    ended = seen.finished or seen.abandoned
    assert (following.finished is None) == (ended is None)


def exports(reader: Lines, chance: random.Random) -> None:
    """Verify a log and its export; both show the same steps."""
    trace = reader.trace()
    assert verified(reader) == []
    values = chance.random() < 0.5
    taken = Redaction(["value"] if values else [], values=values, key=b"k" * 32, get_blob=no_blob)
    events = check_events(trace.data, "", restore=False)
    for event in events:
        taken.read(event)
    cleaned = [taken(event) for event in events]
    if taken.redacted:
        cleaned[0]["redacted"] = True
    lines = chained_anew(cleaned)
    check_events(b"".join(lines), "the export")
    export = Lines(reader.run, lines)
    assert verified(export) == []
    here, there = (read_run(each.trace()) for each in (reader, export))
    for one, other in zip(here.steps, there.steps, strict=True):
        for field in ("step", "state", "gone", "parent", "attempt", "undone", "rolled"):
            assert getattr(one, field) == getattr(other, field), (one.step, field)
    shows(export)


def verified(reader: Lines) -> list[Any]:
    store: Any = reader  # all that is asked of it is to read
    check = LogCheck(reader.run, store)
    for line, event in read_events(reader.trace().data, ""):
        check.line = line
        if not check.event(event):
            break
    check.end()
    return check.findings


def views(lab: Lab, chance: random.Random) -> None:
    for run in {moment.run for moment in lab.timeline.moments if isinstance(moment, Line)}:
        lines = lab.timeline.lines(run)
        reader = Lines(run, lines)
        follows(reader, chance)
        exports(reader, chance)
        for count in {len(lines), *(chance.randint(1, len(lines)) for _ in range(5))}:
            shows(Lines(run, lines[:count]))


def recorded(program: Program, seed: int, *, undoes: bool = False) -> None:
    """Record a program, cut it, resume it, take a part of it back, and show all of that."""
    chance = chances(seed)
    with folder() as root:
        whole = Lab(root / "whole")
        whole.through(program, **order(program, chance))
        moment = chance.randint(1, len(whole.timeline.moments))
        lab = whole.at(root / "cut", moment, chances(chance.random()))
        resumed(lab, program, chance)
        run = lab.newest()
        steps = [step.step for step in read_run(Lines(run, lab.timeline.lines(run)).trace()).steps]
        if steps and undoes:
            undo(lab, run, chance, to=chance.choice([None, *steps]))
        views(lab, chance)


@fewer(2)
@given(programs(blocks=["outer", "scope", "turn", "branches", "inner"]), seeds)
def test_any_program_that_is_cut_and_resumed(program: Program, seed: int) -> None:
    recorded(program, seed)


@fewer(2)
@given(programs(does=LOSES, blocks=["outer", "scope", "turn", "branches"]), seeds)
def test_calls_that_get_lost(program: Program, seed: int) -> None:
    recorded(program, seed)


@fewer(2)
@given(
    programs(tools=[t for t in LEAVES if t != "thread"], blocks=["block", "turn", "inner"]), seeds
)
def test_transactions_and_undo(program: Program, seed: int) -> None:
    recorded(program, seed, undoes=True)
