"""What people say of runs: stop, pause, approve, resolve, undo, and once."""

from pathlib import Path
from typing import Any

import orjson
import pytest
import shop_runs as shop
from rollcage import Session, open_store
from rollcage.errors import RollcageError, RunStopped
from rollcage.stages.orders import order_of


@pytest.fixture(autouse=True)
def project(tmp_path: Path) -> None:
    shop.shelf.clear()
    shop.program_file(tmp_path)


def lines(store: Path, run: str, kind: str) -> list[dict[str, Any]]:
    found = map(orjson.loads, open_store(store).read(run))
    return [line for line in found if line["event"] == kind]


def test_runs_are_listed(cli: Any, store: Path) -> None:
    old = shop.finished(store, "old job")
    new = shop.resumed_twice(store, "new job")
    fork = shop.forked(store, new)
    rows = cli("runs", "--json").data["runs"]
    assert [(row["run"], row["name"], row["status"]) for row in rows] == [
        (fork, "what-if", "ok"), (new, "new job", "ok"), (old, "old job", "ok"),
    ]  # fmt: skip
    assert (rows[0]["mode"], rows[0]["source"]) == ("fork", new)
    assert [row["run"] for row in cli("runs", "--name", "new job", "--json").data["runs"]] == [new]
    assert [row["run"] for row in cli("runs", "--limit", "2", "--json").data["runs"]] == [fork, new]
    out = cli("runs").out
    assert "new job" in out
    assert "old job" in out


@pytest.mark.parametrize("width", ["80", "160"])
def test_runs_are_listed_with_their_inputs(
    cli: Any, store: Path, monkeypatch: pytest.MonkeyPatch, width: str
) -> None:
    for given in ("Who?", {"order": 7}, "a question that takes more room than there is", None):
        with Session("job", store=store, input=given):
            pass
    monkeypatch.setenv("COLUMNS", width)
    out = cli("runs").out
    for shown in ('"Who?"', "{order: 7}", '"a question that takes …'):
        assert shown in out
    assert ("input" in out) is (width == "160")


@pytest.mark.parametrize("reference", ["latest", "@job", "id", "its end"])
def test_a_run_is_found_by_each_name(cli: Any, store: Path, record: Any, reference: str) -> None:
    record("older")
    run = shop.crashed(store)
    known = {"id": run, "its end": run[-12:]}
    assert cli("pause", known.get(reference, reference), "--json").data["run"] == run


def test_a_stop_is_given_and_lifted(cli: Any, store: Path) -> None:
    run = shop.crashed(store)
    told = cli("stop", run, "--by", "ann", "--reason", "too dear")
    assert told.code == 0
    assert f"rollcage stop {run} --lift" in told.out
    with pytest.raises(RunStopped, match="by ann: too dear"), Session("job", store=store):
        shop.add("ink")
    assert "can't" not in told.err
    refused = cli("unpause", run)
    assert refused.code == 2
    assert f"is not paused but stopped by ann. To let it go on: rollcage stop {run}" in refused.err
    assert cli("stop", run, "--lift", "--json").data == {"run": run, "stopped": False}
    again = cli("stop", run, "--lift")
    assert again.code == 2
    assert "is not stopped: there is nothing to lift" in again.err


def test_a_pause_is_given_replaced_and_lifted(cli: Any, store: Path) -> None:
    run = shop.crashed(store)
    assert cli("pause", run, "--by", "ann", "--json").data["order"]["kind"] == "pause"
    assert "It was paused by ann since" in cli("pause", run, "--by", "bob").out
    assert "paused by bob since" in cli("runs").out
    told = cli("unpause", run)
    assert f"Run {run} was paused by bob since" in told.out
    assert order_of(store, run) is None
    ended = shop.finished(store, "other")
    refused = cli("pause", ended)
    assert refused.code == 2
    assert "can't be paused: it ended as 'ok'" in refused.err


def test_a_call_is_approved_with_another_argument(cli: Any, store: Path) -> None:
    run = shop.asked(store)
    (waits,) = cli("approvals", "--json").data["approvals"]
    assert (waits["state"], waits["name"], waits["run"]) == ("waiting", "shop.mail", run)
    assert 'shop.mail(body="hello", to="ann")' in cli("approvals").out
    assert "asked by" in cli("approvals", waits["id"][:6]).out
    done = cli("approve", waits["id"], "--by", "bob", "--set", 'to="eve"', "--reason", "fine")
    assert done.code == 0
    assert "shop.mail is edited by bob" in done.out
    assert cli("reject", waits["id"], "--by", "carl").code == 2
    assert shop.asked(store) == run
    assert shop.shelf == ["pen", "eve"]
    assert cli("verify", run).code == 0
    assert cli("approvals").out == "Nothing waits for approval.\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["reject", "--reason", "no mail"], "shop.mail is rejected"),
        (["respond", "--value", '"by hand"'], "shop.mail is responded"),
    ],
)
def test_a_call_is_rejected_or_answered(cli: Any, store: Path, words: list[str], said: str) -> None:
    run = shop.asked(store)
    (waits,) = cli("approvals", "--json").data["approvals"]
    command, *options = words
    assert said in cli(command, waits["id"], *options, "--by", "bob").out
    shop.asked(store)
    assert shop.shelf == ["pen"]
    (decided,) = lines(store, run, "decided")
    assert decided["by"] == "bob"


def test_the_one_it_acts_for_approves_nothing(cli: Any, store: Path) -> None:
    shop.asked(store)
    (waits,) = cli("approvals", "--json").data["approvals"]
    refused = cli("approve", waits["id"], "--by", "agent")
    assert refused.code == 2
    assert cli("approvals", "--json").data["approvals"][0]["state"] == "waiting"


def test_who_resolved_a_step_is_on_record(cli: Any, store: Path) -> None:
    run = shop.died(store)
    assert cli("resolve", run, 1, "--happened").code == 2
    told = cli("resolve", "@job", 2, "--happened", "--result", "7", "--by", "ann", "--json")
    assert told.data == {
        "run": run, "step": 2, "name": "shop.dies", "outcome": {"status": "ok", "value": 7},
    }  # fmt: skip
    assert lines(store, run, "outcome")[-1]["by"] == "ann"
    assert cli("resolve", run, 2, "--happened").code == 2
    undone = cli("resolve", run, 1, "--undone", "--json")
    assert undone.data == {"run": run, "step": 1, "name": "shop.add", "undone": True}


def test_an_undo_is_shown_asked_for_and_done(
    cli: Any, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = shop.resumed_twice(store)
    shown = cli("undo", run, "--plan")
    assert shown.code == 1
    rows = [line.split()[:3] for line in shown.out.splitlines()]
    assert rows[1][0] == "4"
    assert "irreversible" in shown.out
    assert 'shop.cancel(item="ink")' in shown.out
    assert shop.shelf == ["pen", "ink", "ann"]
    said = [False, True]
    monkeypatch.setattr("typer.confirm", lambda _: said.pop(0))
    assert cli("undo", run, "--to", 2).code == 1
    assert shop.shelf == ["pen", "ink", "ann"]
    told = cli("undo", run, "--to", 2)
    assert told.code == 1
    assert "step 4 (shop.mail): irreversible" in told.out
    assert "step 3 (shop.add): compensated" in told.out
    assert shop.shelf == ["pen", "ann"]
    assert cli("runs", "--json").data["runs"][0]["status"] == "undone"
    data = cli("undo", run, "--plan", "--json").data["plan"]
    assert [step["name"] for step in data["steps"]] == ["shop.mail", "shop.add"]


def test_an_async_tool_is_undone(cli: Any, store: Path) -> None:
    run = shop.asynchronous(store)
    assert sorted(shop.shelf) == ["ink", "pen"]
    told = cli("undo", run, "--yes", "--tools", "shop_runs")
    assert told.code == 0
    assert shop.shelf == []


def test_effects_that_happen_once(cli: Any, store: Path, record: Any) -> None:
    assert "No effect was claimed" in cli("once").out
    record()
    assert "No effect was claimed" in cli("once").out
    with Session("job", store=store) as session:
        shop.refund(1)
    shop.claimed(store)
    table = cli("once").out
    assert "refund/1" in table
    assert "1 effect of unknown outcome: rollcage once KEY says more." in table
    data = cli("once", "--json").data
    assert [(each["key"], each["state"]) for each in data["effects"]] == [
        ("refund/1", "done"), ("refund/7", "unknown"),
    ]  # fmt: skip
    one = cli("once", "refund/1")
    assert f"a call of shop.refund, step 1 of run {session.run_id}" in one.out
    assert "result {refunded: 10}" in one.out
    asked = cli("once", "refund/7")
    assert "rollcage once refund/7 --happened; or, if not:" in asked.out
    told = cli("once", "refund/7", "--happened", "--result", '{"refunded": 3}', "--by", "ann")
    assert told.out == "refund/7 happened\n"
    with Session("third", store=store):
        assert shop.refund(7) == {"refunded": 3}
    assert cli("once", "refund/7", "--did-not-happen").code == 2


def test_an_effect_names_the_steps_that_it_answered(cli: Any, store: Path) -> None:
    with Session("job", store=store):
        shop.refund(1)
    with Session("other", store=store) as other:
        shop.refund(1)
    said = f"refund/1 answered step 1 of run {other.run_id}, and stays until that is undone"
    assert said in cli("once", "refund/1").out
    answered = [{"run": other.run_id, "step": 1}]
    assert cli("once", "refund/1", "--json").data["answered"] == answered


def test_an_effect_that_did_not_happen_is_free(cli: Any, store: Path) -> None:
    shop.claimed(store)
    told = cli("once", "refund/7", "--did-not-happen", "--json")
    assert told.data["state"] == "free"
    with Session("third", store=store):
        assert shop.refund(7) == {"refunded": 10}
    assert shop.shelf == [7]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["once", "refund/9"], "no call has claimed 'refund/9'"),
        (["once", "--happened"], "name the effect"),
        (["once", "refund/7", "--result", "1"], "--result goes with --happened"),
        (["once", "refund/7", "--did-not-happen", "--result", "1"], "takes no --result"),
        (["once", "refund/7", "--happened", "--result", "{"], "--result is not JSON"),
        (["once", "--store", "elsewhere"], "there is no store at elsewhere"),
    ],
)
def test_once_with_what_makes_no_sense(cli: Any, store: Path, words: list[str], said: str) -> None:
    shop.claimed(store)
    refused = cli(*words)
    assert refused.code == 2
    assert said in refused.err
    assert cli("once", "refund/7", "--json").data["state"] == "unknown"


def test_a_run_in_use_is_left_alone(cli: Any, store: Path) -> None:
    with pytest.raises(ConnectionError), Session("job", store=store) as session:
        shop.add("pen")
        before = open_store(store).read(session.run_id)
        for words in (["undo", "--yes"], ["resolve", "--undone"]):
            command, option = words
            step = [1] if command == "resolve" else []
            assert cli(command, session.run_id, *step, option).code == 4
        assert open_store(store).read(session.run_id) == before
        raise ConnectionError


def test_what_is_damaged_is_named(cli: Any, store: Path) -> None:
    run = shop.died(store)
    (path,) = store.glob(f"*/{run}.jsonl")
    path.write_bytes(path.read_bytes().replace(b"shop.dies", b"shop.adds"))
    for words in (["resolve", run, 2, "--happened"], ["undo", run, "--yes"]):
        refused = cli(*words)
        assert refused.code == 3
        assert "line 5" in refused.err
    with pytest.raises(RollcageError), Session("job", store=store):
        pass
