"""A stage whose session begins a copy of a run, given by the program or by the environment."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from copying import Copy
from put_world import (
    agent,
    new_world,  # noqa: F401 - pytest finds it here
    put,
    recorded,
    world,
)
from rollcage import ForkEnded, Session, SessionError, Stage, Verdict, list_runs, undo_run
from rollcage.errors import Blocked
from rollcage.trace.folder import Folder

CHANGED = {"outcome": {"status": "ok", "value": 5}}


def test_a_copy_answers_and_leaves_the_job_alone(tmp_path: Path) -> None:
    run = recorded(tmp_path)
    with Session("job", store=tmp_path, stages=[Copy(run)]) as session:
        assert agent() == [1, 10]
    assert world.ran == []
    assert Folder(tmp_path).get("names", "job") == run.encode()
    assert [each.fork for each in list_runs(tmp_path)] == ["dry", ""]
    with pytest.raises(SessionError, match="runs nothing"):
        undo_run(tmp_path, session.run_id)
    assert undo_run(tmp_path, run).complete  # its effects stayed its own
    assert world.state == {}


def test_a_dry_copy_ends_before_a_write_also_resumed(tmp_path: Path) -> None:
    run = recorded(tmp_path)
    session = Session("job", store=tmp_path, stages=[Copy(run, 2, CHANGED)])
    with pytest.raises(ForkEnded, match="put"), session:
        agent()
    resumed = Session("job", store=tmp_path, run=session.run_id)  # the log says that it is dry
    with pytest.raises(ForkEnded, match="put"), resumed:
        agent()
    assert world.state == {"a": 1, "b": 10}


def test_a_dry_copy_of_nothing_writes_nothing(tmp_path: Path) -> None:
    """Of a run that was left before its first step."""
    with Session("job", store=tmp_path) as empty:
        pass
    with (
        pytest.raises(ForkEnded, match="put"),
        Session("job", store=tmp_path, stages=[Copy(empty.run_id)]),
    ):
        put("a", 1)
    assert (world.ran, world.state) == ([], {})


def test_a_live_copy_takes_back_its_own(tmp_path: Path) -> None:
    run = recorded(tmp_path)
    with Session(
        "job", store=tmp_path, stages=[Copy(run, 2, CHANGED, live=True)], on_divergence="warn"
    ) as session:
        assert agent() == [5, 50]
    assert world.ran == ["put b 50", "look b"]
    assert undo_run(tmp_path, session.run_id).complete
    assert world.state == {"a": 1, "b": 10}


def test_one_thing_says_which_run_it_is(tmp_path: Path) -> None:
    run = recorded(tmp_path)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"stages": [Copy(run), Copy(run)]}, "one run is copied, not 2"),
        ({"stages": [Copy(run)], "source": run}, "leave source= out"),
        ({"stages": [Copy(run)], "run": run}, "was not begun as a copy of run"),
        ({"stages": [Copy(run)], "replay": "off"}, "not with replay='off'"),
        ({"stages": [Copy(run)], "replay": "offline"}, "not with replay='offline'"),
        ({"gate": [Copy(run)]}, "give it to Session in stages="),
    ]
    for how, said in wrong:
        with pytest.raises(SessionError, match=said), Session("job", store=tmp_path, **how):
            pass
    with pytest.raises(SessionError, match="in stages="):
        Session("job", store=tmp_path).add(Copy(run))
    assert len(list_runs(tmp_path)) == 1


def test_a_copy_that_was_left_is_gone_on_with(tmp_path: Path) -> None:
    run = recorded(tmp_path)
    with Session("what if", store=tmp_path, stages=[Copy(run)]) as first:
        agent()
    for replay in ("auto", "continue"):
        with Session(
            "what if", store=tmp_path, run=first.run_id, stages=[Copy(run)], replay=replay
        ) as again:
            agent()
        assert again.run_id == first.run_id
        assert (again.stats.hits, again.copier is not None) == (4, True)
    assert len(list_runs(tmp_path)) == 2


def test_a_copy_inside_another_session_is_its_own_run(tmp_path: Path) -> None:
    run = recorded(tmp_path)
    with Session("outer", store=tmp_path) as outer:
        with Session("inner", store=tmp_path, stages=[Copy(run)]) as inner:
            assert agent() == [1, 10]
        put("c", 3)
    assert inner.run_id != outer.run_id
    assert world.ran == ["put c 3"]


def test_a_stage_replaces_what_is_in_the_gate(tmp_path: Path) -> None:
    def lenient(view: Any) -> Verdict | None:
        return None

    def strict(view: Any) -> Verdict | None:
        return Verdict.deny("no", code="no")

    class Swaps(Stage):
        def gating(self, entries: tuple[Any, ...]) -> tuple[Any, ...]:
            return tuple(strict if each is lenient else each for each in entries)

    session = Session("job", store=tmp_path, gate=[lenient], stages=[Swaps()])
    with pytest.raises(Blocked), session:
        put("a", 1)
    assert world.ran == []


# --- brought by the environment ------------------------------------------------------------------


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installed package that brings the stage `again`."""
    site = tmp_path / "site"
    info = site / "again-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: again\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[rollcage.stages]\nagain = brings_again:made\n")
    (site / "brings_again.py").write_text(
        "from copying import Copy\n"
        "def made(text, session):\n"
        "    assert session.name == 'job', session.name\n"
        "    return Copy(text)\n"
    )
    monkeypatch.syspath_prepend(str(site))
    yield
    sys.modules.pop("brings_again", None)


@pytest.mark.usefixtures("installed")
def test_the_environment_brings_a_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = recorded(tmp_path)
    monkeypatch.setenv("ROLLCAGE_STAGE", f"again:{run}")
    said: list[dict[str, Any]] = [{}, {"replay": "off"}, {"source": run}]
    for how in said:  # the variable goes before it
        with Session("job", store=tmp_path, **how) as session:
            assert agent() == [1, 10]
            with Session("within", store=tmp_path):  # a part of it, and brought nothing
                assert world.ran == []
        assert session.run_id != run
    assert [each.fork for each in list_runs(tmp_path)] == ["dry", "dry", "dry", ""]
    for replay in ("offline", "verify"):  # they only look
        with Session("job", store=tmp_path, replay=replay, source=run) as session:
            agent()
        assert session.run_id == run


def test_a_stage_that_nobody_brings_stops_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLCAGE_STAGE", "nowhere:x")
    with pytest.raises(SessionError, match="brings a stage 'nowhere', so nothing runs"):
        Session("job", store=tmp_path)
    assert list(tmp_path.iterdir()) == []
