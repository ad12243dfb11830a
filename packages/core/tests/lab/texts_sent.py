"""A tool that sends texts, sync and async."""

import pytest
from rollcage import tool

__all__ = ["asend", "nothing_ran", "ran", "send"]

ran: list[str] = []


@tool
def send(text: str) -> str:
    """Send a text."""
    ran.append(text)
    return f"sent {text}"


@tool
async def asend(text: str) -> str:
    """Send a text, later."""
    ran.append(text)
    return f"sent {text}"


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    """Begin with nothing."""
    ran.clear()
