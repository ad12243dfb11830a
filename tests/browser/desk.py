"""An agent of the incident: it orders, pays what somebody approves, and writes it into a file.

It is run as a program of its own, and stands still where it is told to, so that a page can be
looked at. `rollcage worker --tools desk` can undo what it did.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

from rollcage import QueueApprover, Session, Verdict, compensate, tool
from rollcage.gate import StepView

NAME = "expense-desk"
LAB = Path(os.environ.get("DESK_LAB", "."))
LEDGER = LAB / "ledger.txt"
ORDERS = LAB / "orders.txt"


def _observed(args: dict[str, Any]) -> dict[str, Any]:
    return {"ledger": LEDGER.read_text() if LEDGER.exists() else None}


@tool(effect="write", name="restore_ledger", observe=_observed, idempotent=True)
def restore_ledger(text: str | None) -> None:
    """Put the ledger back as it was."""
    if text is None:
        LEDGER.unlink(missing_ok=True)
    else:
        LEDGER.write_text(text)


def _undo(args: dict[str, Any], before: dict[str, Any]) -> Any:
    return [compensate(restore_ledger, text=before["ledger"])]


@tool(effect="read", name="read_receipt")
def read_receipt(number: int) -> str:
    """Read a receipt."""
    return f"<b>receipt {number}</b>"


@tool(effect="write", name="enter", observe=_observed, undo=_undo)
def enter(line: str) -> str:
    """Write a line into the ledger."""
    with LEDGER.open("a") as file:
        file.write(line + "\n")
    return "entered"


@tool(effect="write", name="order")
def order(item: str) -> str:
    """Order something; the shop's answer is lost the first time."""
    with ORDERS.open("a") as file:
        file.write(item + "\n")
    if len(ORDERS.read_text().splitlines()) == 1:
        raise TimeoutError("the shop did not answer")
    return f"ordered {item}"


@tool(effect="write", name="pay")
def pay(to: str, amount: int) -> str:
    """Pay somebody."""
    with (LAB / "payments.txt").open("a") as file:
        file.write(f"{to} {amount}\n")
    return f"paid {amount} to {to}"


def _large(step: StepView) -> Verdict:
    if step.name == "pay" and step.args["amount"] > 100:
        return Verdict.ask("somebody looks at what is over 100")
    return Verdict.allow()


def stand_still(until: str) -> None:
    """Wait for whoever looks at the page."""
    while not (LAB / until).exists():
        time.sleep(0.02)  # the sign is a file, made by another process


def main() -> None:
    """The job, resumed where it is called again."""
    store = os.environ["ROLLCAGE_STORE"]
    with Session(NAME, store=store, gate=[_large], approver=QueueApprover(store), actor="desk"):
        for number in range(3):
            read_receipt(number)
        enter("begun")
        stand_still("opened")
        order("a desk lamp")
        pay("the shop", 900)
        enter("paid")


if __name__ == "__main__":
    sys.tracebacklimit = 0
    main()
