"""The graph of an execution in a browser: live, with the keyboard, on a telephone, in the dark."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from rollcage import open_store, tool
from rollcage_workflow import check, run_sync
from rollcage_workflow.signals import Signals

from tests.browser.served import Server, SignIn

HOSTILE = '<img src=x onerror="document.title=1">\u202e\x1b[31m'


@tool(name="graph.orders", effect="read")
async def orders(shop: str) -> list[str]:
    """The orders of a shop."""
    return [f"{shop} {number}" for number in range(3)]


@tool(name="graph.ship", effect="write")
async def ship(order: str) -> str:
    """Ship an order."""
    return f"shipped {order}"


def night(store: str) -> None:
    """An attempt at an execution that goes on when somebody approves it."""
    each = {"over": "=orders", "steps": {
        "reserve": {"call": "graph.ship", "args": {"order": "=item"}},
        "label": {"call": "graph.ship", "args": {"order": "=reserve"}},
    }}  # fmt: skip
    plan: dict[str, Any] = {"name": f"night {HOSTILE}", "steps": {
        "orders": {"call": "graph.orders", "args": {"shop": "corner"}},
        "parcels": {"each": each},
        "count": {"value": "=size(orders)"},
        "quotes": {"team": {"members": {
            "north": {"call": "graph.orders", "args": {"shop": "north"}},
            "south": {"call": "graph.orders", "args": {"shop": "south"}},
        }}},
        "approved": {"wait": {"signal": "approved", "accepts": {"type": "boolean"}},
                     "after": ["parcels", "quotes"]},
        "express": {"call": "graph.ship", "args": {"order": "express"}, "when": "=count > 5"},
        "send": {"call": "graph.ship", "args": {"order": "all"}, "when": "=approved",
                 "after": ["express"]},
    }}  # fmt: skip
    checked = check(plan, [orders, ship])
    with ThreadPoolExecutor(1) as beside:  # Playwright has this thread's event loop
        beside.submit(run_sync, checked, id=f"2026-11-22 {HOSTILE}", store=store).result()


def step(page: Page, said: str) -> Any:
    return page.locator("svg g", has=page.locator("title", has_text=said))


@pytest.mark.parametrize(("colours", "width"), [("dark", 360), ("light", 1280)])
def test_the_graph_is_read_by_everybody(
    server: Server,
    sign_in: SignIn,
    seen: Callable[[Page, str], None],
    store: str,
    colours: str,
    width: int,
) -> None:
    night(store)
    page = sign_in("vera", color_scheme=colours, viewport={"width": width, "height": 800})
    page.goto("/workflows")
    page.get_by_role("link", name="2026-11-22").click()
    figure = page.get_by_role("figure", name="The plan as a graph")
    expect(figure.get_by_role("img", name="The steps of night")).to_be_visible()
    expect(step(page, "approved: waiting")).to_have_count(1)
    expect(step(page, "send: not started")).to_contain_text("if approved")
    seen(page, f"workflow-{colours}-{width}")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    expect(page.locator("main img, main script")).to_have_count(0)
    if width == 360:  # what does not fit is reached with the keyboard
        figure.focus()
        page.keyboard.press("ArrowRight")
        page.wait_for_timeout(300)
        assert figure.evaluate("each => each.scrollLeft") > 0


def test_what_happens_is_in_the_graph_at_once_and_it_stays_where_it_was_scrolled_to(
    server: Server, sign_in: SignIn, store: str
) -> None:
    night(store)
    page = sign_in("vera", viewport={"width": 360, "height": 800})
    page.goto("/workflows")
    page.get_by_role("link", name="2026-11-22").click()
    figure = page.get_by_role("figure", name="The plan as a graph")
    figure.evaluate("each => each.scrollTo(100, 0)")
    Signals(open_store(store), f"2026-11-22 {HOSTILE}").send("approved", True, by="ann")
    night(store)
    expect(step(page, "send: completed")).to_have_count(1)
    expect(step(page, "express: skipped")).to_have_count(1)
    expect(page.get_by_role("status")).to_have_text("completed")
    assert figure.evaluate("each => each.scrollLeft") == 100


def test_without_scripts_the_graph_is_there(server: Server, sign_in: SignIn, store: str) -> None:
    night(store)
    page = sign_in("otto", scripts=False)
    page.goto("/workflows")
    page.get_by_role("link", name="2026-11-22").click()
    expect(step(page, "parcels/reserve: completed")).to_have_count(1)
    expect(page.locator("main")).not_to_contain_text("if approved")
    assert Path(page.url).name.startswith("workflow?id=")
