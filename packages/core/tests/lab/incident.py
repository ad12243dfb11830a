"""Runs of everything that there is to show, with a text in every value that can be looked for."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from rollcage import (
    Approval,
    ApprovalQueue,
    ApprovalRequired,
    QueueApprover,
    RollcageError,
    Session,
    UnknownOutcome,
    Verdict,
    compensate,
    tool,
)

__all__ = ["Incident", "incident", "view_files"]

SEEN = "xyzzy-17"  # in every value


class Incident(NamedTuple):
    """Runs in one store.

    Attributes:
        job: a run of reads, writes, a failure, a block, a nested call, a branch and an undo.
        waits: a run that waits for an approval.
        unknown: a run that halted on a write of unknown outcome.
        resumed: a run of two attempts: the first waited for an approval, the second had it.
        store: where they are.
        text: what is in each of their values.
    """

    job: str
    waits: str
    unknown: str
    resumed: str
    store: Path
    text: str


def _observe(args: dict[str, Any]) -> dict[str, Any]:
    file = Path(args["path"])
    return {f"file:{file.name}": {"text": file.read_text() if file.exists() else None}}


@tool(effect="write", observe=_observe, idempotent=True)
def view_restore(path: str, text: str | None) -> None:
    Path(path).unlink() if text is None else Path(path).write_text(text)


def _undo(args: dict[str, Any], before: dict[str, Any]) -> Any:
    (was,) = before.values()
    return [compensate(view_restore, path=args["path"], text=was["text"])]


@tool(effect="write", observe=_observe, undo=_undo)
def view_put(path: str, text: str) -> None:
    Path(path).write_text(text)


@tool(effect="write", observe=_observe, undo=_undo)
def view_append(path: str, text: str) -> None:
    with Path(path).open("a") as file:
        file.write(text)


@tool(effect="read")
def view_look(path: str) -> str:
    return f"content of {path}"


@tool
def view_pay(to: str, amount: int) -> str:
    if amount == 13:
        raise TimeoutError(to)
    if amount < 0:
        raise ValueError(f"{to}: {amount}")
    return f"paid {to}"


@tool
def view_outer(path: str, text: str) -> int:
    view_put(path, text)
    return 1


class Files(NamedTuple):
    """The tools, for tests of their own."""

    put: Any
    append: Any
    look: Any
    pay: Any


@pytest.fixture
def view_files() -> Files:
    """Tools that write real files, which can be put back; and one that pays."""
    return Files(view_put, view_append, view_look, view_pay)


def _rules(view: Any) -> Verdict | None:
    if view.args.get("path") == f"/etc/{SEEN}":
        return Verdict.deny(f"not {SEEN}", code="path_escape")
    return None


def _asks(view: Any) -> Verdict | None:
    return Verdict.ask(f"who is {SEEN}?") if view.args.get("amount") == 500 else None


@pytest.fixture
def incident(store: Path, tmp_path: Path) -> Incident:
    """Runs of everything that there is to show."""
    disk = tmp_path / f"disk-{SEEN}"
    disk.mkdir()
    job = _job(store, disk)
    waits = _paying(store, "refund")
    with contextlib.suppress(UnknownOutcome), Session("transfer", store=store) as session:
        view_pay(SEEN, 13)
    unknown = session.run_id
    resumed = _paying(store, "payout")
    queue = ApprovalQueue(store)
    (asked,) = (each.id for each in queue.waiting() if each.run == resumed)
    queue.decide(asked, Approval(True, by="ann"))
    assert _paying(store, "payout") == resumed
    return Incident(job, waits, unknown, resumed, store, SEEN)


def _job(store: Path, disk: Path) -> str:
    (disk / "old.txt").write_text(f"one\ntwo {SEEN}\nthree\n")
    with Session("job", store=store, gate=[_rules], input={"of": SEEN}, actor="carl") as session:
        view_look(SEEN)
        view_put(str(disk / "old.txt"), f"one\n2 {SEEN}\nthree\n")
        view_append(str(disk / "old.txt"), f"four {SEEN}\n")
        view_put(str(disk / "new.txt"), f"new {SEEN}")
        with contextlib.suppress(ValueError):
            view_pay(SEEN, -1)
        with contextlib.suppress(RollcageError):
            view_put(f"/etc/{SEEN}", SEEN)
        view_outer(str(disk / "nested.txt"), SEEN)
        with session.branch("side"):
            view_put(str(disk / "side.txt"), SEEN)
        session.undo(to=7)
    return session.run_id


def _paying(store: Path, name: str) -> str:
    """An attempt at a payment that somebody has to approve."""
    with (
        contextlib.suppress(ApprovalRequired),
        Session(
            name, store=store, gate=[_asks], approver=QueueApprover(store), actor="carl"
        ) as session,
    ):
        view_look(SEEN)
        view_pay(SEEN, 500)
    return session.run_id
