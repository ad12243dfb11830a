"""Each page in a browser: it is read in the dark, on a telephone, live, and after a failure."""

import signal
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect
from rollcage import Session, tool
from rollcage_governance import Registry

from tests.browser.served import Server, SignIn

HOSTILE = '<img src=x onerror="document.title=1">\u202e\x1b[31m<script>alert(1)</script>'

VALUE = "xyzzy-17"


@tool(effect="write", name="browser.pay")
def pay(to: str) -> str:
    """Pay somebody."""
    return f"paid {to}"


@pytest.fixture
def run(store: str) -> str:
    """A run whose values are hostile."""
    with Session(f"job {HOSTILE}", store=store) as session:
        for number in range(3):
            pay(f"{HOSTILE} {VALUE} {number}")
    return session.run_id


PAGES = (
    "/", "/runs", "/search?text=browser", "/inbox", "/diff", "/policies", "/workflows", "/tools",
    "/audit",
)  # fmt: skip


@pytest.mark.parametrize("colours", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_every_page_is_read_by_everybody(
    server: Server,
    sign_in: SignIn,
    seen: Callable[[Page, str], None],
    run: str,
    colours: str,
    width: int,
) -> None:
    page = sign_in("adam", color_scheme=colours, viewport={"width": width, "height": 800})
    of_run = (f"/runs/{run}", *(f"/runs/{run}/{each}" for each in ("tree", "standing", "steps/1")))
    for path in (*PAGES, *of_run, f"/diff?a={run}&b={run}"):
        answer = page.goto(path)
        assert answer is not None
        assert answer.ok, path
        name = path.replace(run, "run").partition("?")[0].strip("/").replace("/", "-")
        seen(page, f"{name or 'jobs'}-{colours}-{width}")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
        expect(page.locator("main img, main script")).to_have_count(0)


def test_an_observer_sees_no_value(server: Server, sign_in: SignIn, run: str) -> None:
    page = sign_in("vera")
    page.goto(f"/runs/{run}")
    assert VALUE in page.content()
    page = sign_in("otto")
    for path in (f"/runs/{run}", f"/runs/{run}/tree", f"/runs/{run}/steps/1"):
        page.goto(path)
        expect(page.locator("main")).to_contain_text("browser.pay")
        assert VALUE not in page.content()
        expect(page.get_by_role("button", name="Stop")).to_have_count(0)


def test_a_step_is_on_an_open_page_at_once_and_the_page_outlives_its_server(
    server: Server, sign_in: SignIn, store: str
) -> None:
    page = sign_in("vera")
    with Session("live", store=store) as session:
        pay("one")
        page.goto(f"/runs/{session.run_id}")
        rows = page.locator("#steps [role=row]", has_text="browser.pay")
        expect(rows).to_have_count(1)
        pay("two")
        expect(rows).to_have_count(2, timeout=5000)
        server.stop(signal.SIGKILL)
        pay("three")
        server.start()
        pay("four")
        expect(rows).to_have_count(4, timeout=20_000)
        expect(rows.nth(3)).to_contain_text("paid four")
    expect(page.locator("#status")).to_contain_text("ok", timeout=20_000)


def test_who_signs_out_sees_nothing_any_more(server: Server, sign_in: SignIn, run: str) -> None:
    page = sign_in("vera")
    page.goto(f"/runs/{run}")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Token")).to_be_visible()
    page.goto(f"/runs/{run}")
    expect(page.get_by_label("Token")).to_be_visible()
    page.go_back()
    expect(page.locator("main")).not_to_contain_text("paid")


@pytest.mark.parametrize("scripts", [True, False])
def test_a_step_is_searched_for_with_the_keyboard(
    server: Server, sign_in: SignIn, run: str, scripts: bool
) -> None:
    page = sign_in("vera", scripts=scripts)
    page.goto("/search")
    page.get_by_label("Text").focus()
    page.keyboard.type(f"{VALUE} 1")
    page.keyboard.press("Enter")
    found = page.get_by_role("link", name="step 2")
    expect(found).to_have_count(1)
    found.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#step-2")).to_contain_text(f"{VALUE} 1")
    assert page.url.endswith(f"/runs/{run}?first=1#step-2")


@pytest.mark.parametrize("scripts", [True, False])
def test_a_tool_is_approved_by_somebody_who_has_looked_at_it(
    server: Server,
    sign_in: SignIn,
    seen: Callable[[Page, str], None],
    store: str,
    run: str,
    scripts: bool,
) -> None:
    registry = Registry(store)
    registry.propose(pay, by="pam", why=HOSTILE)
    assert sign_in("vera").request.get("/tools").ok
    page = sign_in("ann", scripts=scripts)
    page.goto("/tools")
    page.get_by_text("What it is").press("Enter")
    expect(page.locator("main pre")).to_contain_text("Pay somebody.")
    expect(page.locator("main img, main script")).to_have_count(0)
    if scripts:
        seen(page, "tools-proposed")
    page.get_by_label("Reason").focus()
    page.keyboard.type("looked at it")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_role("row", name="browser.pay")).to_contain_text("ann")
    approved = registry.history("browser.pay")[-1]
    assert (approved["event"], approved["by"]) == ("tool.approved", "ann")
    assert approved["why"] == "looked at it"
    page.get_by_role("link", name="Calls of browser.pay").press("Enter")
    expect(page.get_by_role("link", name="step 3")).to_have_count(1)
