"""Whatever is recorded is text on every page: no element, attribute or address is made of it."""

import re
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from markup import HOSTILE, Markup
from mission import World
from rollcage import ApprovalRequired, QueueApprover, Session, UnknownOutcome, Verdict, tool
from rollcage_policy import UserInput
from rollcage_server import Role
from rollcage_server.access import rights_of
from rollcage_views import visible
from rollcage_workflow.orders import Commands

TAGS = {
    "html", "head", "meta", "title", "link", "script", "body", "header", "nav", "main", "section",
    "article", "h1", "h2", "p", "span", "div", "b", "i", "em", "small", "code", "pre", "a", "dl",
    "dt", "dd", "ul", "ol", "li", "br", "table", "thead", "tbody", "tfoot", "tr", "th", "td",
    "details", "summary", "svg", "rect", "ins", "del", "form", "label", "input", "select",
    "option", "output", "fieldset", "legend", "button", "textarea", "figure", "desc", "defs",
    "marker", "path", "g", "text", "tspan",
}  # fmt: skip
SCRIPTS = {"/static/htmx-2.0.11.min.js", "/static/htmx-ext-sse-2.2.4.min.js", "/static/page.js"}


@tool(name="hostile_keep", effect="write")
def hostile_keep(key: str, text: str, more: Any = None) -> Any:
    if key == "lost":
        raise TimeoutError(text)
    if key == "fails":
        raise ValueError(text)
    return {"kept": text, "more": more}


def _rule(view: Any) -> Verdict | None:
    said = view.args["text"]
    return {"no": Verdict.deny(said), "ask": Verdict.ask(said)}.get(view.args["key"])


@pytest.fixture
def hostile(tmp_path: Path) -> World:
    """A server of runs whose every text would act on a page."""
    world = World(tmp_path, str(tmp_path / "store"))
    queue = QueueApprover(world.store)
    for number, text in enumerate(HOSTILE):
        given: dict[str, Any] = {"store": world.url, "approver": queue}
        given["actor"] = text if text.isprintable() else "carl"  # none other names a person
        with (
            Session(f"{text} job", **given, gate=[_rule, UserInput(text)]) as session,
            session.place(agent=text),
        ):
            hostile_keep("yes", text, {text: [text, f"{text}\n{text}"]})
            for key in ("fails", "no"):
                with pytest.raises(Exception, match=r"[\s\S]*"):
                    hostile_keep(key, text)
        world.runs[f"job {number}"] = session.run_id
        with (
            pytest.raises(ApprovalRequired),
            Session(f"{text} ask", **given, gate=[_rule]) as session,
            session.place(agent=text),
        ):
            hostile_keep("ask", text)
        with (
            pytest.raises(UnknownOutcome),
            Session(f"{text} lost", **given, gate=[_rule]) as session,
            session.place(agent=text),
        ):
            hostile_keep("lost", text)
        world.runs[f"lost {number}"] = session.run_id
    return world


def pages_of(world: World) -> list[str]:
    """The address of every page, of each run."""
    found: list[str] = []
    for method, path in rights_of(world.app):
        if method != "GET" or path.startswith(("/api/", "/static/")) or path.endswith("/live"):
            continue
        for run in world.runs.values():
            filled = path.replace("{run}", run).replace("{number}", "1")
            filled = f"{filled}?a={run}&b={run}" if path == "/diff" else filled
            if not re.search(r"\{\w+\}", filled):
                found.append(filled)
    return list(dict.fromkeys(found))


async def test_text_stays_text_on_every_page(hostile: World) -> None:
    told = ""
    async with hostile.client(Role.ADMIN) as client:
        for address in pages_of(hostile):
            answer = await client.get(address)
            if "text/html" not in answer.headers["content-type"]:
                continue
            page = Markup(answer.text)
            told += page.text
            assert page.tags <= TAGS, address
            scripts = [given for tag, given in page.elements if tag == "script"]
            assert {given.get("src") for given in scripts} <= SCRIPTS
            assert page.script == page.style == ""
            for name in page.attributes:
                assert not name.startswith("on"), (address, name)
                assert name not in ("style", "srcdoc"), (address, name)
            for each in page.addresses:
                parts = urlsplit(each)
                assert (parts.scheme, parts.netloc) == ("", ""), (address, each)
                assert each.startswith(("/", "#")), (address, each)
    for text in HOSTILE:
        assert visible(text) in told
    assert not {*"\x1b\x07\u202e\u2028\u200b"} & {*told}


async def test_an_address_that_would_act_on_a_page_does_not(hostile: World) -> None:
    async with hostile.client(Role.ADMIN) as client:
        for text in HOSTILE:
            for path, name in (("/", "name"), ("/runs", "name"), ("/runs", "status")):
                page = Markup((await client.get(path, params={name: text})).text)
                assert page.tags <= TAGS
                assert all(each.startswith(("/", "#")) for each in page.addresses)
                values = [given.get("value") for tag, given in page.elements if tag == "input"]
                assert text in values or visible(text) in values


@pytest.mark.parametrize("role", [Role.OBSERVER, Role.ADMIN])
async def test_workflows_and_tools_are_text_too(hostile: World, role: Role) -> None:
    orders = Commands(hostile.store)
    for number, text in enumerate(HOSTILE):
        orders.start(f"{text} plan", {"text": text}, id=f"{number} {text}", by="ann")
    async with hostile.client(role) as client:
        addresses = ["/workflows", "/tools"]
        addresses += [f"/workflow?id={quote(f'{n} {text}')}" for n, text in enumerate(HOSTILE)]
        told = ""
        for address in addresses:
            answer = await client.get(address)
            assert answer.status_code == 200, (address, answer.text)
            page = Markup(answer.text)
            told += page.text
            assert page.tags <= TAGS
            assert all(each.startswith(("/", "#")) for each in page.addresses)
    for number, text in enumerate(HOSTILE):
        assert visible(f"{number} {text}") in told
