"""An imported run answers whatever effect a tool has here: no trace of another tool tells effects.

Where a call is recorded as a write, it is one, in its order among the others.
"""

from pathlib import Path

import orjson
import pytest
from rollcage import NotReplayable, ReplayMiss, Session, list_runs, open_store, tool
from rollcage.trace.chain import chained
from rollcage.trace.store import drop


def body(number: int) -> int:
    return 10 * number


TOOLS = {
    "write": tool(effect="write", name="imported.work")(body),
    "read": tool(effect="read", name="imported.work")(body),
    "pure": tool(effect="pure", name="imported.work")(body),
}


def recorded(store: Path, effect: str, *, imported: bool, lossy: bool = False) -> str:
    """Record a run of one tool, as if it had been imported; return its id."""
    with Session("job", store=store) as session:
        for number in (1, 2, 1):
            TOOLS[effect](number)
    path = store / "logs" / f"{session.run_id}.jsonl"
    events = [orjson.loads(line) for line in path.read_bytes().splitlines()]
    for event in events:
        del event["hash"]
        if lossy and "outcome" in event:
            event["outcome"] = {"status": "ok", "value": None, "lossy": "it is not known"}
    if imported:
        events[0]["imported"] = {"format": "otel", "trace": "t", "digest": "0" * 64}
    path.write_bytes(b"".join(chained(events)))
    drop(open_store(store), "heads", session.run_id)
    return session.run_id


@pytest.mark.parametrize("asked", ["write", "read", "pure"])
@pytest.mark.parametrize("effect", ["write", "read"])
@pytest.mark.parametrize("imported", [False, True])
def test_a_call_of_another_effect(
    tmp_path: Path, effect: str, asked: str, *, imported: bool
) -> None:
    run = recorded(tmp_path, effect, imported=imported)
    session = Session("job", store=tmp_path, source=run, replay="offline")
    if asked != effect and not (imported and effect == "write"):
        with pytest.raises(ReplayMiss), session:
            TOOLS[asked](1)
        return
    with session:
        assert [TOOLS[asked](number) for number in (1, 2, 1)] == [10, 20, 10]
    assert (session.stats.calls, session.stats.hits) == (3, 3)
    assert session.report is not None
    assert [each.step for each in session.report.steps] == [1, 2, 3]
    assert session.report.unasked == ()


@pytest.mark.parametrize("imported", [False, True])
def test_a_list_says_what_a_run_was_imported_from(tmp_path: Path, *, imported: bool) -> None:
    recorded(tmp_path, "write", imported=imported)
    assert [info.imported for info in list_runs(tmp_path)] == ["otel" if imported else ""]


def test_a_write_whose_result_is_lost_is_not_made_again(tmp_path: Path) -> None:
    """Whatever the tool that reads here says of a miss."""
    ran: list[int] = []

    @tool(effect="read", name="imported.work", on_miss="live")
    def looks(number: int) -> int:
        ran.append(number)
        return 10 * number

    run = recorded(tmp_path, "write", imported=True, lossy=True)
    session = Session("job", store=tmp_path, source=run, replay="offline")
    with pytest.raises(NotReplayable, match="it is not known"), session:
        looks(1)
    assert ran == []
