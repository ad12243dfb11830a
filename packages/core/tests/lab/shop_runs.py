"""Runs to look at and to steer, of each kind that a store may hold.

Each function makes one in a store, and returns its id. The tools are those of this module, so that
a command line finds them: `--tools shop_runs`.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from copying import Copy
from rollcage import Session, compensate, tool, undo_run
from rollcage.errors import RollcageError, SessionHalted
from rollcage.gate import Verdict
from rollcage.stages.queue import QueueApprover

__all__ = [
    "Given",
    "add",
    "asked",
    "asynchronous",
    "branches",
    "cancel",
    "claimed",
    "crashed",
    "died",
    "finished",
    "forked",
    "holds",
    "inner",
    "lossy",
    "mail",
    "refund",
    "resumed_twice",
    "shelf",
    "unclear",
    "undone",
]  # fmt: skip

shelf: list[Any] = []
"""What the tools have changed."""


class Given:
    """A value that has no encoding."""


@tool(effect="read", name="shop.look")
def look(item: str) -> str:
    return f"{item} is on the shelf"


@tool(effect="write", name="shop.cancel", idempotent=True)
def cancel(item: str) -> None:
    shelf.remove(item)


@tool(effect="write", name="shop.add", undo=lambda args: [compensate(cancel, item=args["item"])])
def add(item: str) -> str:
    shelf.append(item)
    return f"added {item}"


@tool(effect="write", name="shop.mail")
def mail(to: str, body: str = "") -> str:
    shelf.append(to)
    return f"sent to {to}"


@tool(effect="write", name="shop.dies")
def dies(item: str) -> str:
    if "dies" in os.environ.get("SHOP", "dies"):
        raise KeyboardInterrupt
    return f"bought {item}"


@tool(effect="write", name="shop.fails")
def fails(item: str) -> str:
    raise ValueError(f"no {item} today")


@tool(effect="write", name="shop.holds")
def holds(item: str) -> Any:
    shelf.append(item)
    return Given()


@tool(effect="write", name="shop.refund", once="refund/{payment}")
def refund(payment: int, amount: int = 10) -> dict[str, int]:
    shelf.append(payment)
    return {"refunded": amount}


@tool(effect="write", name="shop.order")
def order(item: str) -> int:
    add(item)
    return 1


@tool(effect="write", name="shop.acancel", idempotent=True)
async def acancel(item: str) -> None:
    await asyncio.sleep(0)
    shelf.remove(item)


@tool(effect="write", name="shop.aadd", undo=lambda args: [compensate(acancel, item=args["item"])])
async def aadd(item: str) -> str:
    await asyncio.sleep(0)
    shelf.append(item)
    return f"added {item}"


def finished(store: Any, name: str = "job", *items: str) -> str:
    """A run that ended well."""
    with Session(name, store=store, replay="off") as session:
        look("pen")
        for item in items or ("pen", "ink"):
            add(item)
    return session.run_id


def died(store: Any, name: str = "job") -> str:
    """A run whose second step nobody knows the outcome of."""
    session = Session(name, store=store, replay="off")
    with contextlib.suppress(KeyboardInterrupt, RollcageError), session:
        add("pen")
        dies("ink")
    return session.run_id


def crashed(store: Any, name: str = "job") -> str:
    """A run whose program raised behind its first step."""
    with contextlib.suppress(ConnectionError), Session(name, store=store, replay="off") as session:
        look("pen")
        add("pen")
        raise ConnectionError("the line is down")
    return session.run_id


def resumed_twice(store: Any, name: str = "job") -> str:
    """A run that crashed twice, and ended well in its third attempt."""
    run = crashed(store, name)
    with contextlib.suppress(ConnectionError), Session(name, store=store):
        look("pen")
        add("pen")
        add("ink")
        raise ConnectionError("again")
    with Session(name, store=store):
        look("pen")
        add("pen")
        add("ink")
        mail("ann")
    return run


def unclear(store: Any, name: str = "job") -> str:
    """A run with a write that raised, so that it may have happened."""
    with contextlib.suppress(ValueError), Session(name, store=store, replay="off") as session:
        add("pen")
        fails("ink")
    return session.run_id


def lossy(store: Any, name: str = "job") -> str:
    """A run with a write whose result can't be given back."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with contextlib.suppress(ValueError), Session(name, store=store) as session:
            holds("ink")
            raise ValueError("the program ends here")
    return session.run_id


def asynchronous(store: Any, name: str = "job") -> str:
    """A run of an async program, with calls that were gathered."""

    async def program() -> str:
        async with Session(name, store=store, replay="off") as session:
            with session.turn():
                await asyncio.gather(aadd("pen"), aadd("ink"))
        return session.run_id

    return asyncio.run(program())


def branches(store: Any, name: str = "job") -> str:
    """A run with branches, a rolled-back transaction and a tool that calls tools."""
    with Session(name, store=store, replay="off") as session:
        with session.branch("left"):
            add("pen")
        with session.branch("right"):
            order("ink")
        with contextlib.suppress(ValueError), session.transaction():
            add("paper")
            raise ValueError("take that back")
    return session.run_id


def undone(store: Any, name: str = "job") -> str:
    """A run of which an undo has kept the first two steps."""
    run = finished(store, name, "pen", "ink")
    undo_run(store, run, to=2, tools=[add, cancel])
    return run


def ask_first(call: Any) -> Verdict | None:
    return Verdict.ask("mail goes out", code="mail") if call.contract.name == "shop.mail" else None


def asked(store: Any, name: str = "job", program: Callable[[], Any] | None = None) -> str:
    """A run that waits for approval of its second step."""
    with (
        contextlib.suppress(RollcageError),
        Session(
            name,
            store=store,
            gate=[ask_first],
            approver=QueueApprover(store),
            actor="agent",
        ) as session,
    ):
        add("pen")
        mail("ann", "hello") if program is None else program()
    return session.run_id


def forked(store: Any, run: str, step: int = 2, *, live: bool = True) -> str:
    """A fork of a run in which one step gives something else, up to its end or a new write."""
    change = {"outcome": {"status": "ok", "value": "added nothing"}}
    session = Session("what-if", store=store, stages=[Copy(run, step, change, live=live)])
    with contextlib.suppress(RollcageError, SessionHalted), session:
        look("pen")
        add("pen")
        add("paper")
    return session.run_id


def inner(store: Any, name: str = "job") -> str:
    """A run with a session inside of a call of another."""
    with Session(name, store=store, replay="off") as session:
        add("pen")
        with Session("helper", store=store):
            add("ink")
    return session.run_id


def claimed(store: Any, payment: int = 7) -> str:
    """A run of another job with an effect that happens once, if it did: nobody knows."""

    def lost(payment: int, amount: int) -> dict[str, int]:
        raise TimeoutError

    contract: Any = vars(refund)["__rollcage_contract__"]
    session = Session("other", store=store)
    with contextlib.suppress(RollcageError, TimeoutError), session:
        session.run_call(contract, {"payment": payment}, lost)
    return session.run_id


def program_file(folder: Path) -> Path:
    """A project whose tools these are, in a folder."""
    (folder / "pyproject.toml").write_text('[tool.rollcage]\ntools = ["shop_runs"]\n')
    return folder
