"""A write whose result can't come back: shown, audited, and gone on with once somebody says it."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rollcage import NotReplayable, NotReplayableWarning, Session, tool

Cli = Callable[..., Any]

did: list[str] = []


class Crash(Exception):
    pass


@tool(effect="write", name="lossy.lease")
def lease(name: str) -> Any:
    did.append(f"lease {name}")
    return threading.Lock()


@tool(effect="write", name="lossy.send")
def send(text: str) -> str:
    did.append(f"send {text}")
    return f"sent {text}"


@tool(effect="scope", name="lossy.plan")
def plan() -> Any:
    leased = lease("inner")
    return [send("inner"), leased == {"id": 8}]


def work(session: Session, *, last: bool = False) -> list[Any]:
    given = [lease("a"), send("b")]
    with session.branch("left"):
        given.append(lease("c"))
    given.append(send("d"))
    if last:
        given.append(send("e"))
    return given


@pytest.fixture
def run(store: Path) -> str:
    did.clear()
    session = Session("job", store=store)
    with pytest.raises(Crash), session:
        with pytest.warns(NotReplayableWarning, match=r"lossy\.lease"):
            work(session)
        raise Crash
    return session.run_id


def test_show_and_audit_say_so_with_the_command(cli: Cli, run: str) -> None:
    shown = cli("show", run)
    assert "not replayable: $: a _thread.lock has no encoding" in cli("show", run, "--step", 1).out
    assert f"rollcage resolve {run} 1" in shown.out
    assert f"rollcage resolve {run} 4" in shown.out
    assert cli("show", run, "--json").data["standing"]["not_replayable"] == [[run, 1], [run, 4]]
    assert (
        "not replayable: $: a _thread.lock has no encoding" in cli("audit", "--format", "csv").out
    )


def test_a_resume_goes_on_with_what_somebody_says(cli: Cli, run: str, store: Path) -> None:
    with (
        pytest.raises(NotReplayable, match=f"rollcage resolve {run} 1 .*--happened --result JSON"),
        Session("job", store=store) as session,
    ):
        work(session)
    assert cli("resolve", "@job", 1, "--happened", "--result", '{"id": 7}').code == 0
    assert cli("resolve", run, 4, "--happened", "--result", "null").code == 0
    did.clear()
    session = Session("job", store=store)
    with pytest.raises(Crash), session:
        assert work(session, last=True) == [{"id": 7}, "sent b", None, "sent d", "sent e"]
        raise Crash
    assert did == ["send e"]
    with Session("job", store=store) as again:  # what was said is a source for the next ones, too
        assert work(again, last=True) == [{"id": 7}, "sent b", None, "sent d", "sent e"]
    assert (again.stats.hits, did) == (5, ["send e"])
    assert session.run_id == again.run_id == run
    assert cli("verify", run).code == 0


def test_one_in_the_calls_of_another_goes_on_too(cli: Cli, store: Path) -> None:
    did.clear()
    session = Session("job", store=store)
    with pytest.raises(Crash), session:
        with pytest.warns(NotReplayableWarning):
            plan()
        raise Crash
    assert cli("resolve", session.run_id, 2, "--happened", "--result", '{"id": 8}').code == 0
    with Session("job", store=store):
        assert plan() == ["sent inner", False]  # the whole is as it was
    assert did == ["lease inner", "send inner"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--did-not-happen"], "was performed"),
        (["--happened"], "Record it: --happened --result JSON"),
    ],
)
def test_no_other_outcome_can_be_recorded_for_it(
    cli: Cli, run: str, options: list[str], said: str
) -> None:
    refused = cli("resolve", run, 1, *options)
    assert refused.code == 2
    assert said in refused.err


def test_it_is_resolved_once(cli: Cli, run: str) -> None:
    assert cli("resolve", run, 1, "--happened", "--result", "1").code == 0
    refused = cli("resolve", run, 1, "--happened", "--result", "2")
    assert "there is nothing to resolve" in refused.err
