"""The job of the quickstart's agents: remind three customers, by mails that can be recalled."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from rollcage import Compensation, compensate, tool

__all__ = [
    "CUSTOMERS",
    "FINAL",
    "QUESTION",
    "SETTING",
    "TURNS",
    "YOURS",
    "Functions",
    "IssuedCall",
    "declared",
    "for_undo",
    "functions",
    "mails",
]  # fmt: skip

OUTBOX: Final = "outbox"
CUSTOMERS: Final = ("ann", "bob", "cid")
SETTING: Final = f'[tool.rollcage]\ntools = ["{__name__}:for_undo"]\n'
"""The setting that tells `rollcage undo`, in the quickstart's folder, the place of its tools."""
QUESTION: Final = "Remind the customers who have not paid."
FINAL: Final = "3 reminders are sent."
YOURS: Final = "yours"
"""The name of the run that is left for the user."""


class IssuedCall(NamedTuple):
    """A tool call that the model issues."""

    tool: str
    args: dict[str, Any]


def _reminder(customer: str) -> IssuedCall:
    return IssuedCall("send", {"customer": customer, "text": "Your invoice is due."})


TURNS: Final[Sequence[Sequence[IssuedCall]]] = (
    (IssuedCall("unpaid", {}),),
    (_reminder("ann"), _reminder("bob")),
    (_reminder("cid"),),
    (IssuedCall("paid", {"customer": "dee"}),),
)
"""The messages of the model before its last one, `FINAL`: with the five of them, ten steps."""


class Functions(NamedTuple):
    """The tools, as plain functions."""

    unpaid: Callable[[], list[str]]
    send: Callable[[str, str], int]
    paid: Callable[[str], bool]


def functions(outbox: Path, *, dies: bool = False) -> Functions:
    """Return the tools on a folder of mails; with `dies`, the ninth step kills the process."""

    def unpaid() -> list[str]:
        """List the customers who have not paid."""
        return list(CUSTOMERS)

    def send(customer: str, text: str) -> int:
        """Put a mail into a customer's box; return the number of mails in it."""
        outbox.mkdir(parents=True, exist_ok=True)
        with (outbox / f"{customer}.txt").open("a", encoding="utf-8") as box:
            box.write(f"{text}\n")
        return mails(outbox)[customer]

    def paid(customer: str) -> bool:
        """Find out whether a customer has paid."""
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        return customer not in CUSTOMERS

    return Functions(unpaid, send, paid)


def declared(outbox: Path, *, dies: bool = False) -> list[Callable[..., Any]]:
    """Return the same tools with declarations for Rollcage; the last one is for undo only."""

    def text_in(customer: str) -> str | None:
        path = outbox / f"{customer}.txt"
        return path.read_text(encoding="utf-8") if path.exists() else None

    def observe(args: dict[str, Any]) -> dict[str, Any]:
        customer = args["customer"]
        return {f"{OUTBOX}:{customer}": {"text": text_in(customer)}}

    @tool(effect="write", idempotent=True, observe=observe)
    def recall(customer: str, text: str | None) -> None:
        """Restore the previous content of a customer's box."""
        box = outbox / f"{customer}.txt"
        if text is None:
            box.unlink(missing_ok=True)
        else:
            box.write_text(text, encoding="utf-8")

    def undo(args: dict[str, Any], before: dict[str, Any]) -> list[Compensation]:
        (was,) = before.values()
        return [compensate(recall, customer=args["customer"], text=was["text"])]

    plain = functions(outbox, dies=dies)
    return [
        tool(effect="read")(plain.unpaid),
        tool(effect="write", observe=observe, undo=undo)(plain.send),
        tool(effect="read")(plain.paid),
        recall,
    ]


def for_undo() -> list[Callable[..., Any]]:
    """Return the tools on the outbox in the working directory."""
    return declared(Path(OUTBOX))


def mails(outbox: Path) -> dict[str, int]:
    """Return how many mails lie in each customer's box."""
    boxes = sorted(outbox.glob("*.txt"))
    return {box.stem: box.read_text(encoding="utf-8").count("\n") for box in boxes}
