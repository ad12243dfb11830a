"""What forks are tried on: an agent that buys."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from rollcage import RollcageError, Session, tool
from rollcage.trace.recorded import trace_of
from rollcage_fork import Fork
from rollcage_views import Run, Step, read_run

DONE: list[Any] = []
SEEN: list[str] = []
PRICES = {"tea": 10, "milk": 2}


@pytest.fixture(autouse=True)
def world() -> Iterator[None]:
    """Nothing is done, and nothing seen."""
    DONE.clear()
    SEEN.clear()
    yield
    DONE.clear()
    SEEN.clear()


@tool(effect="read")
def fork_price(item: str) -> int:
    SEEN.append(item)
    return PRICES.get(item, 1)


@tool(effect="pure")
def fork_double(number: int) -> int:
    SEEN.append(f"double {number}")
    return 2 * number


@tool(effect="write")
def fork_buy(item: str, count: int) -> str:
    DONE.append((item, count))
    return f"bought {count} {item}"


@tool(effect="write")
def fork_note(text: str) -> str:
    DONE.append(text)
    return "noted"


@tool(effect="scope")
def fork_basket(item: str) -> str:
    price = fork_price(item=item)
    return fork_buy(item=item, count=3 if price < 20 else 1)


@tool(effect="write")
def fork_press(item: str) -> int:
    return fork_price(item=item)


def shop(session: Session) -> None:
    """Buys by the price of tea, then notes what milk costs."""
    with session:
        count = 3 if fork_price(item="tea") < 20 else 1
        said = fork_buy(item="tea", count=count)
        fork_note(text=f"{said}, milk {fork_price(item='milk')}")


def recorded(url: str, agent: Callable[[Session], None] = shop, name: str = "shop") -> str:
    session = Session(name, store=url)
    agent(session)
    DONE.clear()
    SEEN.clear()
    return session.run_id


def forked(
    url: str, fork: Fork, agent: Callable[[Session], None] = shop, **options: Any
) -> tuple[Run, RollcageError | None]:
    """The fork's run, and what ended it."""
    session, ended = Session("shop", store=url, stages=[fork], **options), None
    try:
        agent(session)
    except RollcageError as error:
        ended = error
    return read_run(trace_of(url, session.run_id)), ended


def told(run: Run) -> list[tuple[str, str]]:
    steps = sorted(run.steps, key=lambda each: (each.turn, each.slot, each.step))
    return [(step.name.removeprefix("fork_"), step.state) for step in steps]


def ended_before(run: Run) -> list[tuple[str, dict[str, Any]]]:
    """The calls that a fork ended before."""
    return [
        (call.name.removeprefix("fork_"), call.args)
        for call in run.refused
        if call.code == "fork_ended"
    ]


def value(step: Step) -> Any:
    return (step.outcome or {}).get("value")
