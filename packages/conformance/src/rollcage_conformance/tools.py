"""The tools of the suites' agents. Most return text, which every framework shows unchanged."""

import itertools
from datetime import datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from rollcage_conformance.scenario import Message, Scenario, ToolSpec

__all__ = ["GIVERS", "LOOK", "ORDER", "PLAN", "SEND", "Broken", "Crash", "notes", "polling"]


class Crash(Exception):
    """The agent dies: its model raises this."""


class Broken(Exception):
    """A tool failed, with an exception that is no builtin."""


def send(text: str) -> str:
    """Send a text."""
    return f"sent {text}"


def look(place: str) -> str:
    """Look at a place."""
    return f"saw {place}"


SEND: Final = ToolSpec(send)
LOOK: Final = ToolSpec(look, effect="read")


def notes(*texts: str, end: Message = "all done") -> Scenario:
    """Return an agent that sends these texts, one a message, and ends."""
    return Scenario([SEND, LOOK], [*([("send", {"text": text})] for text in texts), end])


def polling() -> ToolSpec:
    """Return a tool whose every execution returns the next number: 1, 2, 3."""
    numbers = itertools.count(1)

    def poll() -> str:
        """Ask for news."""
        return f"answer {next(numbers)}"

    return ToolSpec(poll)


# --- arguments with types ------------------------------------------------------------------------


class Colour(Enum):
    """An enum whose members' names are not their values."""

    RED = "r"
    BLUE = "b"


class Item(BaseModel):
    """A part of an order."""

    name: str
    price: Decimal = Decimal("1.50")


class Order(BaseModel):
    """A model within a model."""

    items: list[Item]
    colour: Colour = Colour.RED


def order(count: int, unit: str = "box") -> str:
    """Order some units."""
    return "ordered"


def plan(
    *, what: Order, colour: Colour, when: datetime, price: Decimal, place: Path, tags: list[str]
) -> str:
    """Take a value of each type."""
    return "planned"


ORDER: Final = ToolSpec(order)
PLAN: Final = ToolSpec(plan)


# --- results with types --------------------------------------------------------------------------


def give_list() -> list[Any]:
    """Give a list."""
    return ["a", 1, None]


def give_dict() -> dict[str, Any]:
    """Give a dict."""
    return {"b": [1, 2.5], "a": True}


def give_model() -> Order:
    """Give a model."""
    return Order(items=[Item(name="é")])


def give_none() -> None:
    """Give nothing."""


def give_text() -> str:
    """Give text."""
    return "plain “text”"


def give_number() -> int:
    """Give a number."""
    return 3


GIVERS: Final = tuple(
    ToolSpec(f) for f in (give_list, give_dict, give_model, give_none, give_text, give_number)
)
