"""Runs in another store: the same bytes, with all that goes with them, and nothing done twice."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
from command_line import Cli
from rollcage import (
    ApprovalRequired,
    QueueApprover,
    ReplayMiss,
    RunStopped,
    Session,
    StepView,
    Store,
    Verdict,
    compensate,
    list_runs,
    open_store,
    tool,
    undo_run,
)

URL = "sqlite:///copy.db"
world: list[str] = []


@tool(effect="write", name="copied.drop")
def drop(text: str) -> None:
    world.remove(text)


@tool(
    effect="write",
    name="copied.keep",
    secret=["password"],
    undo=lambda args: [compensate(drop, text=args["text"])],
)
def keep(text: str, password: str = "") -> str:
    world.append(text)
    return text * 100_000 if text == "large" else text


def asks(view: StepView) -> Verdict | None:
    return Verdict.ask("so?") if view.args.get("text") == "ask" else None


@pytest.fixture(autouse=True)
def afresh() -> None:
    world.clear()


def work(where: Any, *texts: str, name: str = "job", **more: Any) -> str:
    """A run of these; of `fail`, it ends there."""
    settings: dict[str, Any] = {"gate": [asks], "approver": QueueApprover(where)} | more
    with contextlib.suppress(KeyError), Session(name, store=where, **settings) as session:
        for text in texts:
            if text == "fail":
                raise KeyError
            keep(text, password="hunter2")
    return session.run_id


def runs_in(where: Any) -> list[str]:
    """The runs of a store, oldest first."""
    return [info.run for info in reversed(list_runs(where))]


def same(one: Store, other: Store) -> None:
    """Both hold the same runs; a copy has a line more, which says so."""
    assert runs_in(one) == runs_in(other)
    for run in runs_in(one):
        here, there = one.read(run), other.read(run)
        assert there[: len(here)] == here
        assert b'"event":"held"' in there[-1]


def test_there_and_back(cli: Cli, store: Path) -> None:
    run = work(store, "a", "large", "fail")
    undo_run(open_store(store), run, to=1)
    other = work(store, "c", name="other", input=1)
    result = cli("copy", "--to", URL)
    assert result.code == 0, result.err
    assert "2 runs copied; now in sqlite:///" in result.out
    same(open_store(store), open_store(URL))
    assert "2 runs already there" in cli("copy", "--to", URL).out
    moved = cli("copy", "--to", URL, "--move", "--json")
    assert [(each["run"], each["what"]) for each in moved.data["runs"]] == [
        (run, "moved"), (other, "moved"),
    ]  # fmt: skip
    world.clear()
    with Session("other", store=URL, input=1, replay="offline"):
        keep("c", password="hunter2")  # the secret is found again: the key came along
    with pytest.raises(ReplayMiss), Session("other", store=URL, input=1, replay="offline"):
        keep("c", password="hunter3")
    with Session("job", store=URL) as resumed:  # what was undone runs again
        for text in ("a", "large", "b"):
            keep(text, password="hunter2")
    assert (resumed.run_id, resumed.stats.hits) == (run, 1)
    assert world == ["large", "b"]


def test_runs_are_named_one_by_one(cli: Cli, store: Path) -> None:
    first, second = work(store, "a"), work(store, "c")
    other = work(store, "d", name="other")
    assert cli("copy", second, "--to", "target").code == 0
    assert runs_in("target") == [second]
    assert cli("copy", "@job", "--to", "target").code == 0
    assert runs_in("target") == [first, second]
    assert cli("copy", "@nobody", "--to", "target").code == 2
    assert cli("copy", "latest", "--to", "target").code == 0
    assert runs_in("target") == [first, second, other]


def test_an_approval_goes_with_a_run_that_is_moved(cli: Cli, store: Path) -> None:
    with pytest.raises(ApprovalRequired):
        work(store, "a", "ask", actor="agent")
    (waiting,) = cli("approvals", "--json").data["approvals"]
    assert cli("approve", waiting["id"], "--by", "bob").code == 0
    assert cli("copy", "--to", URL, "--move").code == 0
    work(URL, "a", "ask", actor="agent")
    assert world == ["a", "ask"]


def test_a_store_with_a_key_of_its_own_is_refused(cli: Cli, store: Path) -> None:
    work(store, "a")
    work(URL, "b")
    before = runs_in(URL)
    result = cli("copy", "--to", URL)
    assert result.code == 2
    assert "has a key of its own" in result.err
    assert runs_in(URL) == before


def test_runs_in_use_are_left_out_and_the_others_are_copied(cli: Cli, store: Path) -> None:
    work(store, "a", "fail")
    other = work(store, "b", name="other")
    with Session("job", store=store) as live:
        keep("a", password="hunter2")
        result = cli("copy", "--to", "target")
        assert result.code == 4
        assert live.run_id in result.err + result.out
        assert runs_in("target") == [other]
    assert cli("copy", "--to", "target").code == 0
    assert {*runs_in("target")} == {other, live.run_id}


def test_a_run_that_was_ordered_to_stop_stays_stopped(cli: Cli, store: Path) -> None:
    run = work(store, "a", "fail")
    assert cli("stop", run, "--reason", "enough").code == 0
    assert cli("copy", "--to", URL, "--move").code == 0
    with pytest.raises(RunStopped):
        work(URL, "a", "b")
    assert world == ["a"]


def test_a_command_is_moved_with_its_execution(cli: Cli, store: Path) -> None:
    one, other = open_store(store), open_store("target")
    work(store, "a")
    for name in ("fine", "done"):
        said = b'{"content":{"execution":"%s"}}' % name.encode()
        one.swap("commands", f"{name}.start", None, said)
    assert cli("copy", "--to", "target").code == 0
    assert other.keys("commands") == []
    other.swap("results", "done.start", None, b"{}")  # a worker did it there
    assert cli("copy", "--to", "target", "--move").code == 0
    assert other.keys("commands") == ["fine.start"]
    assert one.keys("commands") == ["done.start"]
    result = b'{"said":{"command":{"execution":"fine"}}}'
    one.swap("results", "fine.start", None, result)
    assert "elsewhere" in cli("copy", "--to", "target").out  # the run was moved
    assert (other.keys("commands"), other.get("results", "fine.start")) == ([], result)


def test_what_limits_trust_comes_with_any_run(cli: Cli, store: Path) -> None:
    one, other = open_store(store), open_store("target")
    for kind in ("servers", "conversations"):
        one.swap(kind, "k", None, b"{}")
    assert cli("copy", work(store, "a"), "--to", "target").code == 0
    assert [other.get(kind, "k") for kind in ("servers", "conversations")] == [b"{}", b"{}"]


def test_schedules_come_with_a_whole_store(cli: Cli, store: Path) -> None:
    one, other = open_store(store), open_store("target")
    one.swap("schedules", "nightly", None, b"[1]")
    run = work(store, "a")
    assert cli("copy", run, "--to", "target").code == 0
    assert other.keys("schedules") == []
    result = cli("copy", "--to", "target")
    assert (result.code, "1 schedule copied" in result.out) == (0, True)
    assert other.get("schedules", "nightly") == b"[1]"
    other.swap("schedules", "nightly", b"[1]", b"[2]")
    result = cli("copy", "--to", "target")
    assert (result.code, "schedules nightly says something else" in result.out) == (1, True)
    assert other.get("schedules", "nightly") == b"[2]"


def test_how_far_a_schedule_was_started_is_no_conflict(cli: Cli, store: Path) -> None:
    one, other = open_store(store), open_store("target")
    one.swap("schedules", "nightly", None, b'{"cron":"0 3 * * *","progress":{"handled":1}}')
    assert cli("copy", "--to", "target").code == 0
    was = other.get("schedules", "nightly")
    other.swap("schedules", "nightly", was, b'{"cron":"0 3 * * *","progress":{"handled":2}}')
    assert cli("copy", "--to", "target").code == 0
    assert b'"handled":2' in (other.get("schedules", "nightly") or b"")
    other.swap("schedules", "nightly", other.get("schedules", "nightly"), b'{"cron":"0 4 * * *"}')
    assert cli("copy", "--to", "target").code == 1


@pytest.mark.damaged
def test_what_can_not_be_copied_whole_is_left_out(cli: Cli, store: Path, edit: Any) -> None:
    damaged, fine = (work(store, text, name=text) for text in ("a", "c"))
    edit(damaged, lambda lines: [x.replace(b"copied.keep", b"copied.kept") for x in lines])
    result = cli("copy", "--to", "target", "--json")
    assert result.code == 3
    whats = {each["run"]: each["what"] for each in result.data["runs"]}
    assert whats == {damaged: "unreadable", fine: "copied"}
    assert runs_in("target") == [fine]


def test_requests_that_make_no_sense(cli: Cli, store: Path) -> None:
    assert cli("copy", "--to", "target").code == 2
    assert not Path("target").exists()
    work(store, "a")
    assert cli("copy", "--to", store).code == 2
    assert cli("copy", "--from", store, "--to", ".rollcage").code == 2
    assert cli("copy").code == 2
    assert cli("copy", "--to", "redis://a").code == 2
