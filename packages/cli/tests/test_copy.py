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
    Verdict,
    compensate,
    open_store,
    tool,
    undo_run,
)
from rollcage.store import JsonlStore, Store, check_attested
from rollcage.trace import check_events
from rollcage_governance import Facade, Registry

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


@tool(effect="pure", name="copied.plan")
def keep_plan(digest: str) -> str:
    return "kept"


def asks(view: StepView) -> Verdict | None:
    return Verdict.ask("so?") if view.args.get("text") == "ask" else None


@pytest.fixture(autouse=True)
def afresh() -> None:
    world.clear()


def work(where: Any, *texts: str, name: str = "job", **more: Any) -> str:
    """A run of these; of `fail`, it ends there."""
    settings: dict[str, Any] = {"rules": [asks], "approver": QueueApprover(where)} | more
    with contextlib.suppress(KeyError), Session(name, store=where, **settings) as session:
        for text in texts:
            if text == "fail":
                raise KeyError
            keep(text, password="hunter2")
    return session.run_id


def same(one: Store, other: Store) -> None:
    """Both hold the same runs, byte for byte, and these are whole."""
    assert list(one.runs()) == list(other.runs())
    for info in one.runs():
        trace = other.read(info.run)
        assert trace.data == one.read(info.run).data
        check_events(trace.data, trace.where)
        check_attested(trace)


def test_there_and_back(cli: Cli, store: Path) -> None:
    first = work(store, "a", "large", "fail")
    second = work(store, "a", "large", "b")
    undo_run(open_store(store), second, to=2)
    other = work(store, "c", name="other", input=1)
    result = cli("copy", "--to", URL)
    assert result.code == 0, result.err
    assert "3 runs copied; now in sqlite:///copy.db" in result.out
    back = cli("copy", "--from", URL, "--to", "back", "--json")
    assert [each["run"] for each in back.data["runs"]] == [first, second, other]
    assert {each["what"] for each in back.data["runs"]} == {"copied"}
    same(open_store(store), open_store(URL))
    same(open_store(store), open_store("back"))
    for again in (URL, "back"):
        assert "3 runs already there" in cli("copy", "--to", again).out
    world.clear()
    for where in (URL, "back"):  # the secrets are found again: the key came along
        with Session("other", store=where, input=1, replay="offline"):
            keep("c", password="hunter2")
        with (
            pytest.raises(ReplayMiss),
            Session("other", store=where, input=1, replay="offline"),
        ):
            keep("c", password="hunter3")
        with Session("job", store=where) as resumed:  # what was undone runs again
            for text in ("a", "large", "b"):
                keep(text, password="hunter2")
        assert (resumed.root, resumed.stats.hits) == (first, 2)
    assert world == ["b", "b"]


def test_a_run_comes_with_what_it_builds_on(cli: Cli, store: Path) -> None:
    first = work(store, "a", "fail")
    second = work(store, "a", "b")
    third = work(store, "c")
    other = work(store, "d", name="other")
    target = JsonlStore("target")
    assert cli("copy", second, "--to", "target").code == 0
    assert [info.run for info in target.runs()] == [first, second]
    assert cli("copy", "@job", "--to", "target").code == 0
    assert [info.run for info in target.runs()] == [first, second, third]
    assert cli("copy", "@nobody", "--to", "target").code == 2
    assert cli("copy", "latest", "--to", "target").code == 0
    assert [info.run for info in target.runs()] == [first, second, third, other]


def test_an_approval_is_used_in_the_store_that_it_was_copied_to(cli: Cli, store: Path) -> None:
    with pytest.raises(ApprovalRequired):
        work(store, "a", "ask", actor="agent")
    (waiting,) = cli("approvals", "--json").data["approvals"]
    assert cli("approve", waiting["id"], "--by", "bob").code == 0
    assert cli("copy", "--to", URL).code == 0
    work(URL, "a", "ask", actor="agent")
    assert world == ["a", "ask"]
    copied = cli("copy", "--to", URL)  # it was used there, and not here
    assert (copied.code, "1 run already there" in copied.out) == (0, True)


def test_a_store_with_a_key_of_its_own_is_refused(cli: Cli, store: Path) -> None:
    work(store, "a")
    work(URL, "b")
    before = open_store(URL).runs()
    result = cli("copy", "--to", URL)
    assert result.code == 2
    assert "has a key of its own" in result.err
    assert open_store(URL).runs() == before


def test_runs_in_use_are_left_out_and_the_others_are_copied(cli: Cli, store: Path) -> None:
    first = work(store, "a", "fail")
    other = work(store, "b", name="other")
    with Session("job", store=store) as live:
        keep("a", password="hunter2")
        result = cli("copy", "--to", "target")
        assert result.code == 4
        assert live.run_id in result.err + result.out
        assert [info.run for info in JsonlStore("target").runs()] == [other]
    assert cli("copy", "--to", "target").code == 0
    assert {info.run for info in JsonlStore("target").runs()} == {other, first, live.run_id}


def test_what_went_on_in_both_is_a_conflict(cli: Cli, store: Path) -> None:
    run = work(store, "a", "b")
    fine = work(store, "c", name="other")
    assert cli("copy", run, "--to", "target").code == 0
    undo_run(open_store(store), run, to=1)
    world.append("b")
    undo_run(open_store("target"), run)
    before = JsonlStore("target").read(run)
    result = cli("copy", "--to", "target", "--json")
    assert result.code == 1
    conflict, copied = result.data["runs"]
    assert (conflict["what"], copied["what"], copied["run"]) == ("conflict", "copied", fine)
    assert "with other lines after line" in conflict["error"]
    assert JsonlStore("target").read(run) == before


def test_a_copy_that_was_cut_off_is_brought_to_an_end(
    cli: Cli, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [work(store, text, name=text) for text in ("a", "large", "c")]
    restore, calls = JsonlStore.restore, [0]

    def dies(target: JsonlStore, trace: Any) -> bool:
        calls[0] += 1
        if calls[0] == 2:
            raise KeyboardInterrupt
        return restore(target, trace)

    with monkeypatch.context() as patch:
        patch.setattr(JsonlStore, "restore", dies)
        assert cli("copy", "--to", "target").code == 130
    assert [info.run for info in JsonlStore("target").runs()] == runs[:1]
    result = cli("copy", "--to", "target", "--json")
    assert [each["what"] for each in result.data["runs"]] == ["already there", "copied", "copied"]
    same(open_store(store), JsonlStore("target"))


def test_a_run_that_was_ordered_to_stop_stays_stopped(cli: Cli, store: Path) -> None:
    run = work(store, "a", "fail")
    assert cli("stop", run, "--reason", "enough").code == 0
    assert cli("copy", "--to", URL).code == 0
    with pytest.raises(RunStopped):
        work(URL, "a")
    assert world == ["a"]


def govern(where: Any) -> Registry:
    """A registry that gives `copied.keep` to agents."""
    registry = Registry(where)
    for each in (keep, drop):
        name = registry.propose(each, by="ann").name
        registry.approve(name, by="bob")
        registry.activate(name, "pack", by="bob")
    registry.define_facade("agents", ["pack"], by="bob")
    return registry


def test_the_registry_comes_with_a_whole_store(cli: Cli, store: Path) -> None:
    registry = govern(store)
    run = work(store, "a", "fail", gate=[Facade("agents")])
    assert cli("copy", run, "--to", "single").code == 0
    assert not Registry("single").history()  # a run that is named brings what is its own
    result = cli("copy", "--to", URL)
    assert (result.code, "the registry copied" in result.out) == (0, True), result.out
    assert Registry(URL).history() == registry.history()
    work(URL, "a", "b", gate=[Facade("agents")])
    assert world == ["a", "b"]
    registry.freeze("copied.keep", by="bob")
    assert "the registry copied" in cli("copy", "--to", URL).out  # what was decided since
    Registry(URL).unfreeze("copied.keep", by="bob")
    again = cli("copy", "--to", URL)  # it goes farther there
    assert (again.code, "the registry" in again.out) == (0, False)


def test_a_registry_that_was_decided_on_in_both_is_a_conflict(cli: Cli, store: Path) -> None:
    govern(store)
    assert cli("copy", "--to", URL).code == 0
    Registry(store).freeze("copied.keep", by="bob")
    there = Registry(URL)
    there.deactivate("copied.keep", "pack", by="ann")
    before = there.history()
    run = work(store, "a")
    result = cli("copy", "--to", URL, "--json")
    assert result.code == 1
    assert [each["what"] for each in result.data["runs"]] == ["copied"]
    (conflict,) = result.data["documents"]
    assert (conflict["kind"], conflict["what"]) == ("registry", "conflict")
    assert "approved in both stores" in conflict["error"]
    assert (there.history(), open_store(URL).info(run).name) == (before, "job")


def test_a_command_stays_where_a_run_of_its_execution_does(cli: Cli, store: Path) -> None:
    one, other = open_store(store), open_store("target")
    fine, live = (b'{"content":{"execution":"%s"}}' % name for name in (b"fine", b"live"))
    one.put_once("commands", "fine.start", fine)
    one.put_once("commands", "live.wake", live)
    with Session("live", store=store):
        result = cli("copy", "--to", "target", "--json")
    assert result.code == 4
    assert list(other.keys("commands")) == ["fine.start"]
    other.drop("commands", "fine.start")
    other.put_once("results", "fine.start", b"{}")  # a worker did it there
    assert cli("copy", "--to", "target").code == 0
    assert list(other.keys("commands")) == ["live.wake"]
    one.drop("commands", "live.wake")
    done = b'{"said":{"command":{"execution":"live"}}}'
    one.put_once("results", "live.wake", done)
    assert cli("copy", "--to", "target").code == 0
    assert (list(other.keys("commands")), other.get("results", "live.wake")) == ([], done)


def test_schedules_come_with_a_whole_store(cli: Cli, store: Path) -> None:
    one, other = open_store(store), open_store("target")
    one.put_once("schedules", "nightly", b"[1]")
    run = work(store, "a")
    assert cli("copy", run, "--to", "target").code == 0
    assert not other.keys("schedules")
    result = cli("copy", "--to", "target")
    assert (result.code, "1 schedule copied" in result.out) == (0, True)
    assert other.get("schedules", "nightly") == b"[1]"
    other.drop("schedules", "nightly")
    other.put_once("schedules", "nightly", b"[2]")
    result = cli("copy", "--to", "target")
    assert (result.code, "schedules nightly says something else" in result.out) == (1, True)
    assert other.get("schedules", "nightly") == b"[2]"


def test_the_outline_of_a_plan_comes_with_the_runs_that_name_it(cli: Cli, store: Path) -> None:
    one, other = open_store(store), open_store("target")
    digest, unnamed = "a" * 64, "b" * 64
    for each in (digest, unnamed):
        one.put_once("plans", each, b"{}")
    with Session("planned", store=store) as session:
        keep_plan(digest)
    assert cli("copy", session.run_id, "--to", "target").code == 0
    assert list(other.keys("plans")) == [digest]
    assert cli("copy", session.run_id, "--to", "target").code == 0


@pytest.mark.damaged
def test_what_can_not_be_copied_whole_is_left_out(cli: Cli, store: Path, edit: Any) -> None:
    damaged, blobless, fine = (work(store, text, name=text) for text in ("a", "large", "c"))
    edit(damaged, lambda lines: [*lines[:1], lines[1].replace(b"copied.keep", b"copied.kept")])
    for blob in (store / "blobs").rglob("*"):
        if blob.is_file():
            blob.unlink()
    result = cli("copy", "--to", "target", "--json")
    assert result.code == 3
    whats = {each["run"]: each["what"] for each in result.data["runs"]}
    assert whats == {damaged: "unreadable", blobless: "unreadable", fine: "copied"}
    assert [info.run for info in JsonlStore("target").runs()] == [fine]


def test_requests_that_make_no_sense(cli: Cli, store: Path) -> None:
    assert cli("copy", "--to", "target").code == 2
    assert not Path("target").exists()
    work(store, "a")
    assert cli("copy", "--to", store).code == 2
    assert cli("copy", "--from", store, "--to", ".rollcage").code == 2
    assert cli("copy").code == 2
    assert cli("copy", "--to", "redis://a").code == 2
