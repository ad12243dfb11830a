"""A server as a process of its own, and a headless Chromium that looks at it."""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright
from rollcage import open_store
from rollcage.trace.seal import StoreSeal

from tests.browser.served import Server, SignIn

SCREENSHOTS = Path("site/screenshots")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a store that commands and tools of the test use, too."""
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    monkeypatch.setenv("ROLLCAGE_STORE", url)
    StoreSeal(open_store(url))("")  # makes the file, as a first session does
    return url


@pytest.fixture
def server(tmp_path: Path, store: str) -> Iterator[Server]:
    """A server that runs, and knows one person for each role."""
    made = Server(tmp_path, store)
    for name, role in (
        ("olga", "operator"), ("ann", "approver"), ("vera", "viewer"), ("otto", "observer"),
        ("adam", "admin"),
    ):  # fmt: skip
        made.known(name, role)
    made.start()
    try:
        yield made
    finally:
        made.stop()
    assert "".join(made.log) == ""


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """Debian's Chromium, or the one that ROLLCAGE_CHROMIUM names."""
    named = os.environ.get("ROLLCAGE_CHROMIUM")
    found = named or shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        pytest.fail("no Chromium is here: nox -s browser installs Debian's")
    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=found, args=options)
        yield browser
        browser.close()


@pytest.fixture
def sign_in(chromium: Browser, server: Server) -> Iterator[SignIn]:
    """Sign somebody in, in a browser of their own; it fails the test if a page's script fails."""
    opened: list[BrowserContext] = []
    failed: list[str] = []

    def sign_in(name: str, *, scripts: bool = True, **more: Any) -> Page:
        context = chromium.new_context(base_url=server.url, java_script_enabled=scripts, **more)
        opened.append(context)
        context.set_default_timeout(15_000)
        page = context.new_page()
        page.on("pageerror", lambda error: failed.append(f"{page.url}: {error}"))
        page.on("console", lambda said: _keep(failed, said))
        page.goto("/login")
        page.get_by_label("Token").fill(server.tokens[name])
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("button", name="Sign out").wait_for()
        return page

    yield sign_in
    for context in opened:
        with contextlib.suppress(Exception):
            context.close()
    assert failed == []


def _keep(failed: list[str], said: Any) -> None:
    """What a Content-Security-Policy refuses stands in the console alone."""
    if said.type == "error" and "Content Security Policy" in said.text:
        failed.append(said.text)


@pytest.fixture
def seen() -> Callable[[Page, str], None]:
    """Keep what a page looks like, and hold it against the rules of accessibility."""
    axe = Axe()

    def seen(page: Page, name: str) -> None:
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True)
        found = axe.run(page)
        assert found.violations_count == 0, found.generate_report()

    return seen
