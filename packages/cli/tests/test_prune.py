"""Old runs go, and stay known as done; what anybody may still need stays."""

import contextlib
import functools
import time
from pathlib import Path
from typing import Any

import pytest
from command_line import Cli
from rollcage import (
    ApprovalRequired,
    Clock,
    Compensation,
    QueueApprover,
    RunPruned,
    Session,
    StepView,
    UnknownOutcome,
    Verdict,
    abandon_run,
    compensate,
    open_store,
    tool,
)
from rollcage.store import Store

URLS = [".rollcage", "sqlite:///prune.db"]
NOW = "0s"
world: list[str] = []


@tool(effect="write", name="pruned.drop")
def drop(text: str) -> None:
    world.remove(text)


def dropped(args: Any) -> list[Compensation]:
    return [compensate(drop, text=args["text"])]


@tool(effect="write", name="pruned.keep", undo=dropped)
def keep(text: str) -> str:
    if text == "unknown":
        raise TimeoutError
    world.append(text)
    return text * 100_000 if text == "large" else text


def asks(view: StepView) -> Verdict | None:
    return Verdict.ask("so?") if view.args.get("text") == "ask" else None


@pytest.fixture(autouse=True)
def afresh() -> None:
    world.clear()


@pytest.fixture(params=URLS)
def url(request: pytest.FixtureRequest, plain_environment: None) -> str:
    where: str = request.param
    return where


@pytest.fixture
def own(url: str) -> Store:
    return open_store(url)


def work(where: Any, *texts: str, name: str = "job", **more: Any) -> str:
    """A run of these; of `fail`, it ends there."""
    settings: dict[str, Any] = {"rules": [asks], "approver": QueueApprover(where)} | more
    ends = contextlib.suppress(KeyError, UnknownOutcome, ApprovalRequired)
    with ends, Session(name, store=where, **settings) as session:
        for text in texts:
            if text == "fail":
                raise KeyError
            keep(text)
    return session.run_id


def prune(cli: Cli, url: str, *options: str, older: str = NOW) -> Any:
    result = cli("prune", "--older", older, "--store", url, "--json", "--by", "ann", *options)
    assert result.code == 0, result.err
    return result.data


def going(data: Any) -> list[str]:
    return [each["run"] for each in data["pruned"]]


def reasons(data: Any) -> dict[str, str]:
    return {each["run"]: each["reason"] for each in data["stay"]}


def test_it_is_a_dry_run_until_somebody_says_yes(cli: Cli, url: str, own: Store) -> None:
    run = work(url, "a")
    before = own.read(run)
    shown = cli("prune", "--older", NOW, "--store", url)
    assert "1 run with 4 lines would go" in shown.out
    assert "this is a dry run" in shown.out
    data = prune(cli, url)
    assert (data["dry_run"], going(data)) == (True, [run])
    assert own.read(run) == before
    data = prune(cli, url, "--yes")
    assert (data["dry_run"], going(data)) == (False, [run])
    with pytest.raises(RunPruned, match="by ann"):
        own.read(run)
    assert going(prune(cli, url, "--yes")) == []


def test_what_was_done_stays_done(cli: Cli, url: str, own: Store) -> None:
    first = work(url, "a", "fail", input=1)
    second = work(url, "a", "b", input=1)
    before = own.info(second)
    assert going(prune(cli, url, "--yes")) == [first, second]
    after = own.info(second)
    assert after.pruned is not None
    assert (after.status, after.name, after.input) == ("ok", "job", before.input)
    assert (after.pruned.count, after.pruned.head) == (before.count, before.head)
    assert (after.pruned.by, after.pruned.time > before.time) == ("ann", True)
    newest = own.newest("job", before.input)
    assert newest is not None
    assert (newest.run, newest.status) == (second, "ok")
    with pytest.raises(RunPruned), Session("job", store=url, input=1, replay="continue"):
        pytest.fail("what was done is not known any more")
    listed = cli("runs", "--store", url, "--json").data["runs"]
    assert [each["run"] for each in listed] == [second, first]
    audited = cli("audit", "--store", url)
    assert (audited.code, "2 runs, 2 of them pruned" in audited.out) == (0, True)
    for command in ("show", "verify", "undo"):
        result = cli(command, second, "--store", url)
        assert result.code == 2
        assert "was pruned by ann" in result.err


def test_what_somebody_may_still_need_stays(cli: Cli, url: str, own: Store) -> None:
    done = work(url, "a", name="done")
    failed = work(url, "a", "fail", name="failed")
    source = work(url, "a", "fail", name="resumed")
    failed_again = work(url, "a", "b", "fail", name="resumed")
    unknown = work(url, "unknown", name="unknown")
    paused = work(url, "ask", name="paused", actor="agent")
    held_source = work(url, "a", "fail", name="held")
    held = work(url, "a", name="held")
    with Session("live", store=url) as live:
        data = prune(cli, url, "--hold", held, "--yes")
    assert going(data) == [done]
    stay = reasons(data)
    assert stay.keys() == {
        failed, source, failed_again, unknown, paused, held_source, held, live.run_id,
    }  # fmt: skip
    assert "resumes it" in stay[failed]
    assert stay[source] == f"run {failed_again} builds on it, and stays"
    assert stay[held_source] == f"run {held} builds on it, and stays"
    assert (stay[held], stay[live.run_id]) == ("held", "in use")
    helps = {each["run"]: each["helps"] for each in data["stay"]}
    assert helps[failed].startswith(f"rollcage abandon {failed}")
    for run in stay:
        assert own.read(run).data


def test_an_unknown_step_is_resolved_first(cli: Cli, url: str) -> None:
    run = work(url, "a", "unknown")
    abandon_run(url, run, by="ann")
    data = prune(cli, url)
    assert "step 2 (pruned.keep)" in reasons(data)[run]
    (stays,) = data["stay"]
    assert stays["helps"].startswith(f"rollcage resolve {run} 2")
    assert cli("resolve", run, "2", "--did-not-happen", "--store", url).code == 0
    assert going(prune(cli, url, "--yes")) == [run]


def test_only_what_is_old_goes(cli: Cli, url: str) -> None:
    now = time.time_ns()
    clocks = [
        Clock(wall=functools.partial(int, now - days * 86_400 * 10**9)) for days in (100, 95, 10)
    ]
    runs = [work(url, "a", name=f"{at}", clock=clock) for at, clock in enumerate(clocks)]
    source = work(url, "a", "fail", name="chain", clock=clocks[0])
    work(url, "a", name="chain")  # of today: the old run is needed to undo it
    assert going(prune(cli, url, older="90d")) == runs[:2]
    assert reasons(prune(cli, url, older="90d")).keys() == {source}
    assert (
        going(
            prune(
                cli,
                url,
                older="98d",
            )
        )
        == runs[:1]
    )
    assert cli("prune", "--older", "soon", "--store", url).code == 2
    assert cli("prune", "--store", url).code == 2


def test_values_that_no_run_needs_go_too(cli: Cli, url: str, own: Store) -> None:
    first = work(url, "large", name="first")
    assert len(own.blobs()) == 1
    second = work(url, "large", "fail", name="second")
    assert going(prune(cli, url, "--yes")) == [first]
    assert len(own.blobs()) == 1  # the other run names it, too
    abandon_run(url, second, by="ann")
    with Session("live", store=url):  # who writes may count on what is there
        data = prune(cli, url, "--yes")
    assert (going(data), data["blobs"], len(own.blobs())) == ([second], None, 1)
    assert prune(cli, url, "--yes")["blobs"] == 1
    assert list(own.blobs()) == []


def test_the_outline_of_a_plan_goes_with_the_last_run_that_names_it(
    cli: Cli, url: str, own: Store
) -> None:
    digest = "c" * 64
    own.put_once("plans", digest, b"{}")
    work(url, digest, name="first")
    second = work(url, digest, "fail", name="second")
    prune(cli, url, "--yes")
    assert list(own.keys("plans")) == [digest]  # the other run names it, too
    abandon_run(url, second, by="ann")
    with Session("live", store=url):
        prune(cli, url, "--yes")
        assert list(own.keys("plans")) == [digest]
    prune(cli, url, "--yes")
    assert list(own.keys("plans")) == []


def test_approvals_go_too(cli: Cli, url: str, own: Store) -> None:
    run = work(url, "ask", actor="agent")
    (waiting,) = cli("approvals", "--json", "--store", url).data["approvals"]
    assert cli("approve", waiting["id"], "--by", "bob", "--store", url).code == 0
    again = work(url, "ask", actor="agent")
    assert len(own.keys("approvals")) == 3
    assert going(prune(cli, url, "--yes")) == [run, again]
    assert list(own.keys("approvals")) == []


def test_a_skeleton_tells_what_was_called_and_no_value(cli: Cli, url: str, own: Store) -> None:
    run = work(url, "my-secret-text", "large")
    assert going(prune(cli, url, "--yes", "--keep-skeleton")) == [run]
    left = own.read(run)
    assert left.data.count(b"pruned.keep") == 2
    assert b"my-secret-text" not in left.data
    assert list(own.blobs()) == []
    shown = cli("show", run, "--store", url)
    assert (shown.code, "pruned.keep" in shown.out) == (0, True)
    verified = cli("verify", run, "--store", url)
    assert verified.code == 0, verified.out
    for command in (["undo", run], ["abandon", run]):
        assert "was pruned" in cli(*command, "--store", url).err
    with pytest.raises(RunPruned), Session("job", store=url, replay="offline"):
        pytest.fail("there is no value to give back")
    assert cli("audit", "--store", url).code == 0


def test_a_pruned_run_is_copied_as_one(cli: Cli, url: str, own: Store) -> None:
    runs = [work(url, "a", name="kept"), work(url, "b", name="gone")]
    for run, options in zip(runs, (["--keep-skeleton"], []), strict=True):
        hold = next(each for each in runs if each != run)
        prune(cli, url, "--yes", "--hold", hold, *options)
    assert cli("copy", "--from", url, "--to", "target").code == 0
    target = open_store("target")
    assert list(target.runs()) == list(own.runs())
    assert target.read(runs[0]).data == own.read(runs[0]).data
    assert "2 runs already there" in cli("copy", "--from", url, "--to", "target").out


@pytest.mark.damaged
def test_a_damaged_trace_stays(cli: Cli, edit: Any) -> None:
    run = work(".rollcage", "a")
    edit(run, lambda lines: [*lines[:1], lines[1].replace(b"pruned.keep", b"pruned.kept")])
    data = prune(cli, ".rollcage", "--yes")
    assert going(data) == []
    assert data["stay"][0]["helps"] == f"rollcage verify {run}"


def test_there_is_a_store_to_prune(cli: Cli) -> None:
    assert cli("prune", "--older", NOW).code == 2
    assert not Path(".rollcage").exists()
