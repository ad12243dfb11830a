"""`rollcage prune`: what goes, what stays and why, and what stays known."""

import contextlib
from typing import Any

import pytest
from command_line import Cli
from rollcage import (
    ApprovalRequired,
    QueueApprover,
    RunPruned,
    Session,
    StepView,
    Store,
    UnknownOutcome,
    Verdict,
    abandon_run,
    open_store,
    run_info,
    tool,
)

NOW = "0s"
URLS = [".rollcage", "sqlite:///prune.db"]


@tool(effect="write", name="pruned.keep")
def keep(text: str) -> str:
    if text == "unknown":
        raise TimeoutError
    return text


def asks(view: StepView) -> Verdict | None:
    return Verdict.ask("so?") if view.args.get("text") == "ask" else None


@pytest.fixture(params=URLS)
def url(request: pytest.FixtureRequest, plain_environment: None) -> str:
    where: str = request.param
    return where


@pytest.fixture
def own(url: str) -> Store:
    return open_store(url)


def work(where: Any, *texts: str, name: str = "job", **more: Any) -> str:
    """A run of these; of `fail`, it ends there."""
    ends = contextlib.suppress(KeyError, UnknownOutcome, ApprovalRequired)
    settings: dict[str, Any] = {"gate": [asks], "approver": QueueApprover(where)} | more
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


def test_it_is_a_dry_run_until_somebody_says_yes(cli: Cli, url: str, own: Store) -> None:
    run = work(url, "a")
    before = own.read(run)
    shown = cli("prune", "--older", NOW, "--store", url)
    assert f"1 run with {len(before)} lines would go" in shown.out
    assert "this is a dry run" in shown.out
    data = prune(cli, url)
    assert (data["dry_run"], going(data)) == (True, [run])
    assert own.read(run) == before
    data = prune(cli, url, "--yes")
    assert (data["dry_run"], going(data)) == (False, [run])
    assert not any(b"pruned.keep" in line for line in own.read(run))
    assert going(prune(cli, url, "--yes")) == []


def test_what_was_done_stays_done(cli: Cli, url: str, own: Store) -> None:
    run = work(url, "a", input=1)
    before = run_info(own, run)
    assert going(prune(cli, url, "--yes")) == [run]
    after = run_info(own, run)
    assert after.last == "pruned"
    assert (after.status, after.name, after.input) == ("ok", "job", before.input)
    with pytest.raises(RunPruned), Session("job", store=url, input=1, replay="offline"):
        keep("a")
    assert "ok, pruned" in cli("runs", "--store", url).out
    audited = cli("audit", "--store", url)
    assert (audited.code, "1 of them pruned" in audited.out) == (0, True)


def test_what_somebody_may_still_need_stays(cli: Cli, url: str, own: Store) -> None:
    failed, unknown = work(url, "a", "fail", name="failed"), work(url, "unknown", name="unknown")
    held, gone = work(url, "a", name="held"), work(url, "a", name="gone")
    data = prune(cli, url, "--hold", held, "--yes")
    assert going(data) == [gone]
    stay = {each["run"]: each for each in data["stay"]}
    assert stay.keys() == {failed, unknown, held}
    assert f"rollcage abandon {failed}" in stay[failed]["helps"]
    abandon_run(own, failed)
    with Session("live", store=url) as session:
        keep("a")
        data = prune(cli, url, "--hold", held, "--yes")
        assert session.run_id in {each["run"] for each in data["stay"]}
        assert (going(data), data["blobs"]) == ([failed], data["blobs"])


def test_only_what_is_old_goes(cli: Cli, url: str) -> None:
    work(url, "a")
    assert going(prune(cli, url, older="1h")) == []
    assert cli("prune", "--older", "yesterday", "--store", url).code == 2


def test_requests_for_approval_go_too(cli: Cli, url: str, own: Store) -> None:
    run = work(url, "ask", actor="agent")
    assert [*own.keys("requests")]
    abandon_run(own, run)
    assert going(prune(cli, url, "--yes")) == [run]
    assert [*own.keys("requests")] == []


def test_a_skeleton_has_calls_and_no_value(cli: Cli, url: str, own: Store) -> None:
    run = work(url, "a secret text")
    assert going(prune(cli, url, "--yes", "--keep-skeleton")) == [run]
    lines = b"".join(own.read(run))
    assert b"pruned.keep" in lines
    assert b"a secret text" not in lines
    assert cli("copy", "--from", url, "--to", "copied").code == 0
    assert b"a secret text" not in b"".join(open_store("copied").read(run))
