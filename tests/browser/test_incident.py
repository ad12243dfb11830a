"""The whole of an incident, as people live it: a run halts, is resolved, approved, undone.

Once with a mouse, once with a keyboard alone, once in a browser without JavaScript.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect
from rollcage import all_runs, open_store
from rollcage.trace.recorded import trace_of, verify_trace

from tests.browser.served import SignIn

DESK = Path(__file__).parent / "desk.py"
WORKER_TOOLS = "desk"


class Hands:
    """How somebody uses a page: with a mouse."""

    scripts = True

    def press(self, what: Locator) -> None:
        """Activate a link, a button or a choice."""
        what.click()

    def write(self, where: Locator, text: str) -> None:
        """Fill a field in."""
        where.fill(text)


class Keyboard(Hands):
    """With a keyboard alone: what the Tab key does not come to can't be used."""

    def press(self, what: Locator) -> None:
        self._to(what)
        kind = what.evaluate("each => each.type || each.localName")
        what.page.keyboard.press("Space" if kind in ("radio", "checkbox") else "Enter")

    def write(self, where: Locator, text: str) -> None:
        self._to(where)
        where.page.keyboard.press("Control+A")
        where.page.keyboard.type(text)

    @staticmethod
    def _to(what: Locator) -> None:
        page = what.page
        what.wait_for()
        # A choice is one stop of the Tab key; the arrows lead on in it.
        group = what.evaluate("each => each.type === 'radio'")
        for _ in range(150):
            if what.evaluate("each => each === document.activeElement"):
                return
            at = page.evaluate("document.activeElement.name || ''")
            inside = group and at == what.get_attribute("name")
            page.keyboard.press("ArrowDown" if inside else "Tab")
        raise AssertionError(f"the keyboard does not come to {what}")


class NoScripts(Hands):
    """With a mouse, in a browser that runs no script."""

    scripts = False


class Desk:
    """The agent, its files, and a worker that can undo what it did."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._env = os.environ | {"DESK_LAB": str(folder), "PYTHONPATH": str(DESK.parent)}
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self) -> "subprocess.Popen[bytes]":
        return self._run(str(DESK))

    def worker(self) -> None:
        command = ("-m", "rollcage", "worker", "--tools", WORKER_TOOLS, "--every", "0.05")
        self._run(*command)

    def _run(self, *arguments: str) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen(
            [sys.executable, *arguments], env=self._env, stderr=subprocess.DEVNULL
        )
        self._started.append(process)
        return process

    def text(self, name: str) -> str:
        return (self.folder / name).read_text()

    def end(self) -> None:
        for process in self._started:
            process.terminate()
            process.wait(20)


@pytest.fixture
def desk(tmp_path: Path, store: str) -> Iterator[Desk]:
    made = Desk(tmp_path)
    yield made
    made.end()


def row(page: Page, name: str) -> Locator:
    """The rows of a tool's steps."""
    return page.locator("#steps [role=row]").filter(has=page.get_by_text(name, exact=True))


class Story:
    """What the people of an incident do, each in a browser of their own.

    Args:
        desk: the agent.
        sign_in: opens a browser for somebody.
        keep: keeps what a page looks like.
        hands: how all of them use their browsers.
    """

    def __init__(
        self, desk: Desk, sign_in: SignIn, keep: Callable[[Page, str], None], hands: Hands
    ) -> None:
        self.desk, self.hands, self._sign_in = desk, hands, sign_in
        self._keep = keep if type(hands) is Hands else lambda _page, _name: None
        self.olga = self.signed_in("olga")

    def signed_in(self, name: str) -> Page:
        return self._sign_in(name, scripts=self.hands.scripts)

    def halts(self) -> None:
        """A run goes on while its page is open, and halts."""
        page, hands = self.olga, self.hands
        first = self.desk.start()
        _jobs_until(page, "expense-desk")
        self._keep(page, "incident-1-jobs")
        hands.press(page.get_by_role("link", name="expense-desk"))
        _look_until(page, hands, lambda: expect(row(page, "enter")).to_have_count(1))
        (self.desk.folder / "opened").touch()
        assert first.wait(60) != 0
        if not hands.scripts:
            page.reload()  # with scripts it is there by itself
        expect(row(page, "order")).to_contain_text("unknown")
        expect(page.locator("#status")).to_contain_text("halted")
        self._keep(page, "incident-2-halted")

    def is_resolved(self) -> None:
        """Somebody finds out what became of the order, and says so."""
        page, hands = self.olga, self.hands
        hands.press(page.get_by_role("link", name="Inbox"))
        self._keep(page, "incident-3-unknown")
        hands.press(page.get_by_label("It happened"))
        hands.write(page.get_by_label("Its result, as JSON"), '"ordered a desk lamp"')
        hands.press(page.get_by_role("button", name="Record it"))
        expect(row(page, "order")).to_contain_text("ordered a desk lamp")

    def is_approved(self) -> None:
        """It goes on and asks; who may decide approves, with another amount; it ends."""
        page, hands = self.olga, self.hands
        assert self.desk.start().wait(60) != 0
        assert self.desk.text("orders.txt") == "a desk lamp\n"  # not twice
        hands.press(page.get_by_role("link", name="Inbox"))
        expect(page.get_by_role("article")).to_contain_text("somebody looks at what is over 100")
        expect(page.get_by_role("button", name="Approve")).to_have_count(0)  # that is not hers
        ann = self.signed_in("ann")
        hands.press(ann.get_by_role("link", name="Inbox"))
        self._keep(ann, "incident-4-approval")
        article = ann.get_by_role("article")
        edited = article.get_by_label("Other arguments, as JSON")
        hands.write(edited, '{"to": "the shop", "amount": 90}')
        reason = article.locator("form", has_text="Approve").get_by_label("Reason")
        hands.write(reason, "as agreed")
        hands.press(article.get_by_role("button", name="Approve"))
        expect(ann.get_by_text("Nothing waits.")).to_be_visible()
        assert self.desk.start().wait(60) == 0
        assert self.desk.text("payments.txt") == "the shop 90\n"
        assert self.desk.text("ledger.txt") == "begun\npaid\n"

    def is_undone(self) -> None:
        """An undo is planned; the world changes; it is refused, planned anew, and done."""
        page, hands, ledger = self.olga, self.hands, self.desk.folder / "ledger.txt"
        self.desk.worker()
        hands.press(page.get_by_role("link", name="Jobs", exact=True))
        hands.press(page.get_by_role("link", name="expense-desk"))
        self._keep(page, "incident-5-ended")
        hands.press(page.locator("summary", has_text="Steer"))
        hands.press(page.get_by_role("button", name="Plan its undo"))
        _planned(page, hands)
        self._keep(page, "incident-6-undo")
        ledger.write_text("begun\npaid\nand more\n")
        hands.press(page.get_by_role("button", name="Undo this"))
        expect(page.get_by_role("alert")).to_contain_text("Nothing was undone: look at it again")
        self._keep(page, "incident-7-refused")
        assert ledger.read_text() == "begun\npaid\nand more\n"
        ledger.write_text("begun\npaid\n")
        page.go_back()
        hands.press(page.get_by_role("button", name="Plan it anew"))
        _planned(page, hands)
        hands.press(page.get_by_role("button", name="Undo this"))
        _look_until(page, hands, lambda: expect(page.locator("main")).to_contain_text("verified"))
        self._keep(page, "incident-8-undone")
        assert not ledger.exists()

    def is_on_record(self) -> None:
        """All of it is in the audit log: by whom, and what came of it."""
        adam = self.signed_in("adam")
        self.hands.press(adam.get_by_role("link", name="Audit"))
        self._keep(adam, "incident-9-audit")
        lines = json.loads(adam.request.get("/api/v1/audit").text())["lines"]
        told = {(each["who"], each["action"], each["outcome"]) for each in lines}
        actions = (("olga", "resolve"), ("ann", "approve"), ("olga", "undo-plan"), ("olga", "undo"))
        assert {(*each, "done") for each in actions} <= told
        assert ("olga", "undo", "refused") in told


@pytest.mark.parametrize(
    "hands", [Hands(), Keyboard(), NoScripts()], ids=lambda each: type(each).__name__
)
def test_an_incident(
    desk: Desk,
    store: str,
    sign_in: SignIn,
    seen: Callable[[Page, str], None],
    hands: Hands,
) -> None:
    story = Story(desk, sign_in, seen, hands)
    story.halts()
    story.is_resolved()
    story.is_approved()
    story.is_undone()
    story.is_on_record()
    kept = open_store(store)
    for run in all_runs(kept):
        verify_trace(trace_of(kept, run.run))


def _jobs_until(page: Page, name: str) -> None:
    for _ in range(100):
        page.goto("/")
        if page.get_by_role("link", name=name).count():
            return
        page.wait_for_timeout(100)
    raise AssertionError(f"no job {name} appears")


def _look_until(page: Page, hands: Hands, shown: Callable[[], Any]) -> None:
    """A page without scripts is looked at again; one with them goes on by itself."""
    for last in (*(False,) * (0 if hands.scripts else 10), True):
        try:
            shown()
            return
        except AssertionError:
            if last:
                raise
            page.reload()


def _planned(page: Page, hands: Hands) -> None:
    """A plan is there, or comes: with the link that looks again, in any browser."""
    again = page.get_by_role("link", name="Look again")
    confirm = page.get_by_role("button", name="Undo this")
    for _ in range(60):
        if confirm.count():
            return
        if again.count():
            hands.press(again)
        page.wait_for_timeout(100)
    raise AssertionError("no plan comes")
