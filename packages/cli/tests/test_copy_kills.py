"""`rollcage copy` is killed anywhere, and run again: all is there, once, in every kind of store."""

import contextlib
import itertools
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, Final

import orjson
import pytest
from command_line import Cli
from postgres import new_store
from rollcage import (
    ApprovalRequired,
    QueueApprover,
    RunPruned,
    RunStopped,
    Session,
    StepView,
    UnknownOutcome,
    Verdict,
    compensate,
    open_store,
    tool,
    undo_run,
)
from rollcage.store import StopOrder, Store, check_attested
from rollcage.trace import check_events
from rollcage_governance import Registry

KILLS = 3  # between two stores
# Dies at the so many-th call of a function, wherever that is; or tells how many there were.
COPY: Final = """
import os, signal, sys
from rollcage_cli.app import main

left = int(sys.argv[1])
total = left

def count(frame, event, given):
    global left
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)

sys.setprofile(count)
code = main(["copy", "--from", sys.argv[2], "--to", sys.argv[3]])
sys.setprofile(None)
print("calls", total - left, code)
"""
DOCUMENTS: Final = (
    "approvals", "commands", "holds", "pruned", "results", "schedules", "signals"
)  # fmt: skip
world: list[str] = []


@tool(effect="write", name="moved.drop")
def drop(text: str) -> None:
    world.remove(text)


@tool(
    effect="write",
    name="moved.keep",
    secret=["password"],
    undo=lambda args: [compensate(drop, text=args["text"])],
)
def keep(text: str, password: str = "") -> str:
    if text == "unknown":
        raise TimeoutError
    world.append(text)
    return text * 100_000 if text == "large" else text


def asks(view: StepView) -> Verdict | None:
    return Verdict.ask("so?") if view.args.get("text") in ("ask", "wait") else None


def work(where: Any, name: str, *texts: str) -> str:
    ends = contextlib.suppress(KeyError, UnknownOutcome, ApprovalRequired)
    settings: dict[str, Any] = {"rules": [asks], "approver": QueueApprover(where)}
    with ends, Session(name, store=where, input=name, **settings) as session:
        for text in texts:
            if text == "fail":
                raise KeyError
            keep(text, password="hunter2")
    return session.run_id


def again_in(where: str, name: str, *texts: str) -> None:
    """A request for the same job comes again, after the move."""
    settings: dict[str, Any] = {"rules": [asks], "approver": QueueApprover(where)}
    with Session(name, store=where, input=name, replay="continue", **settings):
        for text in texts:
            keep(text, password="hunter2")


def everything(cli: Cli, where: str) -> None:
    """Runs of every kind, and what goes with them."""
    store = open_store(where)
    gone, skeleton = work(where, "gone", "a", "large"), work(where, "skeleton", "a", "large")
    prune = ("prune", "--older", "0s", "--yes", "--store", where)
    assert cli(*prune, "--hold", skeleton).code == 0
    assert cli(*prune, "--keep-skeleton").code == 0
    assert all(store.info(run).pruned is not None for run in (gone, skeleton))
    work(where, "values", "large", "b", "fail")
    work(where, "values", "large", "b", "c")
    undo_run(store, work(where, "undone", "d", "e"), to=1)
    undo_run(store, work(where, "all undone", "f"))
    work(where, "lost", "unknown")
    work(where, "waits", "g", "wait")
    work(where, "asked", "h", "ask")
    (approval,) = {
        each["id"]
        for each in cli("approvals", "--json", "--store", where).data["approvals"]
        if each["args"]["text"] == "ask"
    }
    assert cli("approve", approval, "--by", "bob", "--store", where).code == 0
    work(where, "asked", "h", "ask")
    stopped = work(where, "stopped", "i", "fail")
    store.stop(StopOrder(stopped, "ann", "enough", 5))
    for kind in ("signals", "holds"):
        for execution in ("values", "not begun"):
            said = orjson.dumps({"execution": execution, "content": kind})
            assert store.put_once(kind, f"{execution.replace(' ', '-')}.{kind}", said)
    for name in ("values", "not begun"):
        asked = {"format": "?", "content": {"execution": name}}
        assert store.put_once("commands", f"{name.replace(' ', '-')}.wake", orjson.dumps(asked))
    done = {"format": "?", "content": {"command": {"execution": "values"}}}
    assert store.put_once("results", "values.start", orjson.dumps(done))
    assert store.put_once("schedules", "nightly", b'{"name":"nightly"}')
    registry = Registry(where)
    registry.propose(keep, by="ann")
    registry.approve("moved.keep", by="bob")
    registry.activate("moved.keep", "pack", by="bob")


def same(one: Store, other: Store) -> None:
    """Both hold the same, byte for byte, once, and all of it is whole."""
    assert list(other.runs()) == list(one.runs())
    for info in one.runs():
        assert other.stop_order(info.run) == one.stop_order(info.run)
        if info.count is None and info.pruned is not None:
            continue
        trace = other.read(info.run)
        assert trace.data == one.read(info.run).data
        check_events(trace.data, trace.where)
        check_attested(trace)
    for kind in DOCUMENTS:
        assert list(other.keys(kind)) == list(one.keys(kind)), kind
        assert [other.get(kind, key) for key in other.keys(kind)] == [
            one.get(kind, key) for key in one.keys(kind)
        ]
    begins = "registry.started"
    assert other.log("registry", begins).read() == one.log("registry", begins).read()
    assert list(other.blobs()) == list(one.blobs())
    for digest in one.blobs():
        assert other.get_blob(digest) == one.get_blob(digest)
    assert other.secret_key() == one.secret_key()


def copied(source: str, target: str, calls: int = -1) -> int:
    """Copy, and be killed at a call; how many there were, or 0 where it was killed."""
    ended = subprocess.run(
        [sys.executable, "-c", COPY, str(calls), source, target],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    if ended.returncode == -9:
        return 0
    words = ended.stdout.split()
    assert words[-1:] == ["0"], ended.stdout + ended.stderr
    return int(words[-2])


@pytest.fixture
def stores() -> Iterator[list[str]]:
    with new_store() as postgres:
        yield ["first", "sqlite:///second.db", postgres, "last"]


def test_a_copy_that_is_killed_anywhere_is_brought_to_an_end(cli: Cli, stores: list[str]) -> None:
    world.clear()
    everything(cli, stores[0])
    done = list(world)
    calls = copied(stores[0], "measured")
    same(open_store(stores[0]), open_store("measured"))
    killed = 0
    for hop, (source, target) in enumerate(itertools.pairwise(stores), start=1):
        for kill in range(1, KILLS + 1):
            killed += not copied(source, target, calls * (kill * 3 + hop) // (KILLS * 3 + 4))
            for info in open_store(target).runs():  # what is there is there whole
                if info.pruned is None:
                    trace = open_store(target).read(info.run)
                    assert trace.data == open_store(source).read(info.run).data
        assert copied(source, target)
        same(open_store(source), open_store(target))
        again = cli("copy", "--from", source, "--to", target)
        assert (again.code, "copied," in again.out) == (0, False), again.out
    assert killed >= 2 * KILLS
    same(open_store(stores[0]), open_store(stores[-1]))
    assert cli("copy", "--from", stores[-1], "--to", stores[0]).code == 0  # and back
    same(open_store(stores[-1]), open_store(stores[0]))
    assert world == done
    for job, texts, error in (
        ("values", ["large", "b", "c"], None),
        ("gone", ["a", "large"], RunPruned),
        ("skeleton", ["a", "large"], RunPruned),
        ("lost", ["unknown"], UnknownOutcome),
        ("stopped", ["i"], RunStopped),
        ("waits", ["g", "wait"], ApprovalRequired),
        ("asked", ["h", "ask"], None),
    ):
        expected = contextlib.nullcontext() if error is None else pytest.raises(error)
        with expected:
            again_in(stores[-1], job, *texts)
    assert world == done
