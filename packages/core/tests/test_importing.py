"""A run that was imported is there to look at and to replay: nothing trusts it with an effect."""

import json
import warnings
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from rollcage import Clock, Contract, NotReplayableWarning, ReplayedError, SessionError, tool
from rollcage.adapter import NOT_RECORDED, import_session, imported_run
from rollcage.replay.fork import Fork
from rollcage.session.abandon import abandon_run
from rollcage.session.finished import plan_undo, undo_run
from rollcage.session.session import Session
from rollcage.store import JsonlStore
from rollcage.trace import Worlds, check_events, read_run

ANY = {"type": "object"}
SECRET = "sk-proj-Jq3l7Ck2mZ8vR5wT9yB1nD4fG6hK0sLpX"  # made up


@tool(effect="write")
def send(to: str) -> str:
    """Send."""
    return f"live to {to}"


CLOCK = Clock(lambda: 10**18, lambda: 0, lambda size: sha256(b"trace").digest()[:size])


def session(store: Any, name: str = "mail") -> Session:
    made = {"format": "otel", "trace": "a1", "source": b"{}", "skipped": {"a chain": 2}}
    return import_session(name, store=store, clock=CLOCK, **made)  # type: ignore[arg-type]  # plain


def imported(store: object) -> str:
    with session(store) as run:
        run.run(Contract(name="send", parameters=ANY), {"to": "a"}, lambda **_: "recorded to a")
        with pytest.raises(ReplayedError), warnings.catch_warnings():
            warnings.simplefilter("ignore", NotReplayableWarning)
            lost = Contract(name="lost", parameters=ANY)
            run.run(lost, {"arguments": NOT_RECORDED}, lambda **_: NOT_RECORDED)
            run.run(Contract(name="fails", parameters=ANY), {}, _fail)
    return run.run_id


def _fail() -> None:
    raise ReplayedError("app.Broken", "no luck")


def test_the_run_says_that_it_was_imported_and_what_is_not_known_of_it(tmp_path: Path) -> None:
    store = JsonlStore(tmp_path)
    trace = store.read(imported(store))
    run = read_run(trace)
    assert run.started["mode"] == "imported"
    assert run.started["imported"]["skipped"] == {"a chain": 2}
    assert "{}" not in run.started["imported"]["digest"]
    sent, lost, failed = run.steps
    assert (sent.outcome or {})["value"] == "recorded to a"
    assert lost.args == {"arguments": {"$rollcage": "redacted"}}
    assert "not recorded" in (lost.outcome or {})["lossy"]
    assert (failed.outcome or {})["error"] == {"type": "app.Broken", "message": "no luck"}
    worlds = Worlds()
    assert [worlds.follow(event) for event in check_events(trace.data, trace.where)] == [None] * 8
    assert worlds.followed


def test_no_session_takes_a_write_from_it(tmp_path: Path) -> None:
    store = JsonlStore(tmp_path)
    run = imported(store)
    for replay in ("auto", "continue", "off"):
        with Session("mail", store=tmp_path / replay, replay=replay) as new:
            pass
        store = JsonlStore(tmp_path / replay)
        run = imported(store)
        with Session("mail", store=store, replay=replay) as new:
            assert new.call(send, to="a") == "live to a"
    for source in (run, tmp_path / "off" / "runs" / f"{run}.jsonl"):
        named = Session("mail", store=store, replay="resume", source=source)
        with pytest.raises(SessionError, match="was imported"), named:
            pass


def test_it_replays_offline_where_it_is_named(tmp_path: Path) -> None:
    run = imported(tmp_path)
    with Session("mail", store=tmp_path, replay="offline", source=run) as looking:
        assert looking.call(send, to="a") == "recorded to a"


def test_a_fork_of_it_says_what_would_be_and_is_never_live(tmp_path: Path) -> None:
    run = imported(tmp_path)
    with Session("mail", store=tmp_path, fork=Fork(run, at=1, result="another")) as fork:
        assert fork.call(send, to="a") == "another"
    for source in (run, tmp_path / "runs" / f"{run}.jsonl"):
        live = Session("mail", store=tmp_path, fork=Fork(source, at=1, result="x", live=True))
        with pytest.raises(SessionError, match="can't be live"), live:
            pass


def test_nothing_of_it_is_undone_or_set_aside(tmp_path: Path) -> None:
    run = imported(tmp_path)
    for refused in (undo_run, plan_undo):
        with pytest.raises(SessionError, match="imported"):
            refused(tmp_path, run)
    with pytest.raises(SessionError, match="imported"):
        abandon_run(tmp_path, run, by="ann", reason="")


def test_the_same_again_is_the_run_that_is_there(tmp_path: Path) -> None:
    assert imported_run(JsonlStore(tmp_path), CLOCK) is None
    run = imported(tmp_path)
    there = imported_run(JsonlStore(tmp_path), CLOCK)
    assert there is not None
    assert (there.run, there.mode) == (run, "imported")


def test_it_is_no_fork_in_a_process_that_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither made one, of a run of the same job, nor refused."""
    with Session("mail", store=tmp_path) as recorded:
        send("a")
    asked = {"store": str(tmp_path), "run": recorded.run_id, "name": "mail"}
    (tmp_path / "fork.json").write_text(json.dumps(asked))
    monkeypatch.setenv("ROLLCAGE_FORK", str(tmp_path / "fork.json"))
    for name in ("mail", "another"):
        with session(tmp_path / name, name) as run:
            pass
        found = read_run(JsonlStore(tmp_path / name).read(run.run_id))
        assert found.started["source"] is None
        assert found.started.get("fork") is None
        assert found.started["mode"] == "imported"


def test_credentials_stay_off_the_disk(tmp_path: Path) -> None:
    with session(tmp_path) as run, warnings.catch_warnings():
        warnings.simplefilter("ignore", NotReplayableWarning)
        run.run(Contract(name="send", parameters=ANY), {"to": SECRET}, lambda **_: {"key": SECRET})
    assert all(SECRET.encode() not in each.read_bytes() for each in tmp_path.rglob("*.jsonl"))
