"""A page of a run is what the whole run says of these steps, wherever their ends stand."""

from pathlib import Path

import pytest
from rollcage import Compensation, Session, compensate, open_store, tool, undo_run
from rollcage.errors import TraceCorrupt
from rollcage.trace.recorded import trace_of
from rollcage_views import read_run, sheet_of


def _undo(args: dict[str, int]) -> list[Compensation]:
    return [compensate(sheet_put, number=-args["number"])]


@tool(name="sheet_put", effect="write", undo=_undo)
def sheet_put(number: int) -> int:
    return number


@tool(name="sheet_outer", effect="scope")
def sheet_outer(steps: int) -> int:
    for number in range(steps):
        sheet_put(number)
    return steps


@pytest.mark.parametrize("undone", [False, True])
def test_a_sheet_shows_the_steps_as_the_whole_run_does(tmp_path: Path, undone: bool) -> None:
    store = open_store(tmp_path)
    with Session("job", store=store) as session:
        sheet_outer(23)  # which ends behind all of its calls
        for number in range(20):
            sheet_put(number)
    if undone:
        undo_run(store, session.run_id, to=30, tools=[sheet_put, sheet_outer])
    trace = trace_of(store, session.run_id)
    whole = read_run(trace, schema=False)
    seen = []
    place = 1
    while place:
        sheet = sheet_of(trace, first=place, count=7)
        assert (sheet.total, sheet.lines) == (len(whole.steps), trace.data.count(b"\n"))
        assert sheet.run.status == whole.status
        seen += sheet.run.steps
        place = sheet.next
    assert seen == whole.steps
    assert sheet_of(trace, first=999).run.steps == []


@pytest.mark.damaged
def test_a_sheet_of_a_changed_run_is_refused(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    with Session("job", store=store) as session:
        for number in range(20):
            sheet_put(number)
    path = tmp_path / "logs" / f"{session.run_id}.jsonl"
    path.write_bytes(path.read_bytes().replace(b'{"number":15}', b'{"number":16}', 1))
    with pytest.raises(TraceCorrupt, match="hash"):
        sheet_of(trace_of(store, session.run_id), count=5)
