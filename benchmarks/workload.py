"""Define the call that every case makes: a tool that does nothing, with five small arguments."""

from __future__ import annotations

from typing import TypedDict


class Mail(TypedDict):
    """The arguments of a call; no two calls of a run have the same."""

    to: str
    subject: str
    body: str
    priority: int
    urgent: bool


RESULT = "sent"


def mail(number: int) -> Mail:
    """Return the arguments of a run's `number`-th call."""
    return {
        "to": "ann@example.org",
        "subject": "Weekly report",
        "body": "It is attached.",
        "priority": number,
        "urgent": False,
    }


def send_mail(to: str, subject: str, body: str, priority: int = 1, urgent: bool = False) -> str:  # noqa: FBT002 - a tool is called by name
    """Send nothing."""
    return RESULT


async def asend_mail(  # the same, async
    to: str,
    subject: str,
    body: str,
    priority: int = 1,
    urgent: bool = False,  # noqa: FBT002 - a tool is called by name
) -> str:
    """Send nothing, later."""
    return RESULT
