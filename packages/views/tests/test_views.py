"""Jobs, short ids and live runs cost what they show, not what lies beside them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rollcage import Session, open_store
from rollcage.trace.recorded import trace_of
from rollcage_views import Following, Step, jobs_of, read_run, short_ids, tree_of

Record = Callable[..., str]


def test_no_more_is_asked_of_a_store_than_is_shown(
    store: Path, record: Record, monkeypatch: Any
) -> None:
    for number in range(3):
        record(f"job {number}")
    own = open_store(store)
    asked: list[Any] = []
    runs = type(own).runs

    def counted(self: Any, before: str, limit: int) -> Any:
        asked.append(limit)
        return runs(self, before, limit)

    monkeypatch.setattr(type(own), "runs", counted)
    assert len(jobs_of(own, limit=2)) == 2
    assert asked == [50]


def test_a_short_id_is_long_enough_to_mean_one_run(store: Path, record: Record) -> None:
    runs = [record(), record()]
    own = open_store(store)
    assert short_ids(own, runs) == {run: run[-8:] for run in runs}
    alike = ["01890a5d-ac96-774b-bcce-b302099a8057", "01890a5d-ac96-774b-bccf-b302099a8057"]
    ids = short_ids(own, alike)
    assert set(ids.values()) == {"e-b302099a8057", "f-b302099a8057"}
    assert set(short_ids(own, ["01890a5d-ac96-774b-bcce-b30201890a5d", alike[0]]).values()) == {
        "201890a5d", "2099a8057",
    }  # fmt: skip


def test_only_what_is_new_is_read(store: Path, tools: Any) -> None:
    with Session("live", store=store) as session:
        following = Following(open_store(store), session.run_id)
        tools.look("one")
        told = [each.args["path"] for each in following.news() if isinstance(each, Step)]
        assert told == ["one"]
        assert [*following.news()] == []
        tools.look("two")
        told = [each.args["path"] for each in following.news() if isinstance(each, Step)]
        assert told == ["two"]
        assert following.finished is None
    assert following.finished is None
    assert [each["event"] for each in following.news() if isinstance(each, dict)][-1] == (
        "run.finished"
    )


def test_each_step_has_one_place_in_a_tree(store: Path, record: Record) -> None:
    seen = read_run(trace_of(store, record()))
    walked = [each for root in tree_of(seen.steps) for each in root.walk()]
    assert sorted(node.step.step for _, node in walked if node.step) == [*range(1, 9)]
    depths = {node.step.name: depth for depth, node in walked if node.step and node.step.parent}
    assert depths == {"put": 2}
    assert "turn 1" in {node.title for _, node in walked}
    (side,) = (node for _, node in walked if node.step and node.step.name == "side")
    assert [node.step.name for node in side.children if node.step] == ["put"]
