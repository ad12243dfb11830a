"""Runs are copied, moved, pruned, examined and mended."""

from pathlib import Path
from typing import Any

import pytest
import shop_runs as shop
from cuts import cut_log
from rollcage import Session, open_store
from rollcage.errors import RollcageError
from rollcage.stages.orders import stop_run


@pytest.fixture(autouse=True)
def project(tmp_path: Path) -> None:
    shop.shelf.clear()
    shop.program_file(tmp_path)


@pytest.mark.parametrize("to", ["other", "sqlite:///other.db"])
def test_runs_are_copied(cli: Any, store: Path, to: str) -> None:
    old, new = shop.finished(store, "old job"), shop.resumed_twice(store, "new job")
    told = cli("copy", "--to", to)
    assert told.code == 0, told.err
    assert "2 runs copied" in told.out
    rows = cli("runs", "--store", to, "--json").data["runs"]
    assert {row["run"]: row["status"] for row in rows} == {old: "ok", new: "ok"}
    again = cli("copy", "--to", to, "--json").data["runs"]
    assert {row["what"] for row in again} == {"already there"}
    here, there = open_store(store).read(new), open_store(to).read(new)
    assert there[: len(here)] == here


def test_a_copy_is_read_only_until_it_is_moved(cli: Any, store: Path) -> None:
    run = shop.crashed(store)
    assert cli("copy", run, "--to", "other").code == 0
    refused = cli("resolve", run, 2, "--undone", "--store", "other")
    assert refused.code == 2
    with pytest.raises(RollcageError) as error, Session("job", store="other"):
        raise AssertionError("it goes on in two places")
    command = str(error.value).partition("move it here: ")[2]
    assert command.startswith(f"rollcage copy {run} --move --from ")
    moved = cli(*command.split()[1:])
    assert moved.code == 0, moved.err
    assert "1 run moved" in moved.out
    with Session("job", store="other"):
        shop.look("pen")
        shop.add("pen")
        shop.add("ink")
    assert shop.shelf == ["pen", "ink"]
    with pytest.raises(RollcageError, match="goes on in"), Session("job", store=store):
        raise AssertionError("it goes on in two places")
    assert cli("copy", run, "--to", "third", "--json").data["runs"][0]["what"] == "elsewhere"


def test_a_run_in_use_is_left_out(cli: Any, store: Path) -> None:
    done = shop.finished(store, "done")
    with Session("job", store=store) as session:
        shop.add("pen")
        told = cli("copy", "--to", "other", "--json")
    assert told.code == 4
    what = {row["run"]: row["what"] for row in told.data["runs"]}
    assert what == {done: "copied", session.run_id: "in use"}


def test_old_runs_are_pruned(cli: Any, store: Path) -> None:
    old, new = shop.finished(store, "old job"), shop.finished(store, "new job")
    stays = shop.crashed(store, "other job")
    dry = cli("prune", "--older", "0s", "--json").data
    assert {row["run"] for row in dry["pruned"]} == {old, new}
    assert [row["run"] for row in dry["stay"]] == [stays]
    assert dry["stay"][0]["helps"] == f"rollcage abandon {stays}"
    assert f"{stays} stays: error, and the next session" in cli("prune", "--older", "0s").out
    held = cli("prune", "--older", "0s", "--hold", new, "--json").data
    assert {row["run"] for row in held["pruned"]} == {old}
    told = cli("prune", "--older", "0s", "--yes", "--by", "ann")
    assert told.code == 0, told.err
    assert "2 runs with" in told.out
    lines = open_store(store).read(new)
    assert b'"by":"ann"' in lines[-1]
    assert not any(b"shop.add" in line for line in lines)
    listed = {row["run"]: row["pruned"] for row in cli("runs", "--json").data["runs"]}
    assert listed == {old: True, new: True, stays: False}


def test_the_doctor_names_what_is_wrong(cli: Any, store: Path, dead: str) -> None:
    clean = shop.finished(store, "clean")
    unknown = shop.died(store)
    stopped = shop.crashed(store, "stopped")
    stop_run(store, stopped, by="ann")
    told = cli("doctor", "--json")
    assert told.code == 1
    assert told.data["runs"] == 4
    found = {(each["code"], each["run"]) for each in told.data["findings"]}
    assert found == {
        ("outcome_unknown", dead), ("outcome_unknown", unknown), ("stop_order", stopped),
    }  # fmt: skip
    (path,) = store.glob(f"logs/{clean}.jsonl")
    path.write_bytes(path.read_bytes().replace(b'"item":"ink"', b'"item":"inc"'))
    damaged = cli("doctor")
    assert damaged.code == 3
    assert f"damaged: run {clean}:" in damaged.out
    assert f"rollcage copy {clean} --from BACKUP" in damaged.out


def test_what_the_doctor_names_is_mended(cli: Any, store: Path) -> None:
    run = shop.finished(store)
    shop.forked(store, run)
    (fork,) = {row["run"] for row in cli("runs", "--json").data["runs"]} - {run}
    (path,) = store.glob(f"logs/{fork}.jsonl")
    cut_log(path, 4)  # the copy was cut off
    (found,) = cli("doctor", "--json").data["findings"]
    assert (found["code"], found["run"]) == ("copy_cut_off", fork)
    told = cli(*found["helps"].split()[1:])
    assert told.code == 0
    assert f"mended: run {fork}: it is a copy of run {run} that was cut off" in told.out
    assert cli("doctor", "--json").data["findings"] == []
