"""The plan of an execution, drawn on its page from what the store has."""

from pathlib import Path
from typing import Any

import orjson
import pytest
from markup import HOSTILE, Markup
from mission import World
from rollcage import open_store, tool
from rollcage.trace.store import drop
from rollcage_server import Role
from rollcage_views import visible
from rollcage_workflow import check, execution, run

SEND: dict[str, Any] = {"call": "drawn_send", "args": {"to": "=item"}}
PLAN: dict[str, Any] = {
    "name": "nightly",
    "steps": {
        "fetch": {"call": "drawn_fetch", "args": {"city": "an-argument-of-the-plan"}},
        "mails": {"each": {"over": "=fetch", "steps": {"send": SEND}}},
        "review": {"wait": {"approval": "a-message-to-approvers"}, "after": ["mails"]},
        "ship": {
            "call": "drawn_send",
            "args": {"to": "=review.by"},
            "when": "=size(fetch) == 4711",
            "after": ["review"],
            "next": {"to": "fetch", "when": "=ship == 'a-constant'", "most": 2},
        },
    },
}


@tool(name="drawn_fetch", effect="read")
async def drawn_fetch(city: str) -> list[str]:
    return [city, "b"]


@tool(name="drawn_send", effect="write")
async def drawn_send(to: str) -> str:
    return to


@pytest.fixture
async def drawn(tmp_path: Path) -> World:
    world = World(tmp_path, str(tmp_path / "store"))
    await run(check(PLAN, [drawn_fetch, drawn_send]), id="one", store=world.url)
    return world


async def page(world: World, role: Role, id: str = "one") -> str:  # noqa: A002
    async with world.client(role) as client:
        answer = await client.get("/workflow", params={"id": id})
    assert answer.status_code == 200, answer.text
    return answer.text


async def test_each_step_is_drawn_with_its_state_in_words(drawn: World) -> None:
    text = await page(drawn, Role.VIEWER)
    markup = Markup(text)
    shown = markup.text
    for said in (
        "fetch: completed",
        "mails/send: completed",
        "review: waiting",
        "ship: not started",
    ):
        assert said in shown, said
    assert "if size(fetch) == 4711" in shown
    assert "each of fetch" in shown
    assert "↩ fetch if ship == 'a-constant', at most 2 times" in shown
    assert "1 waiting" in shown
    classes = [given.get("class") for tag, given in markup.elements if tag == "g"]
    assert sorted(classes, key=str) == ["dim", "ok", "ok", "ok around", "waiting"]
    figure = next(given for tag, given in markup.elements if tag == "figure")
    assert figure["tabindex"] == "0"  # it is scrolled with the keyboard
    picture = next(given for tag, given in markup.elements if tag == "svg")
    assert (picture["role"], picture["aria-labelledby"]) == ("img", "graph-title graph-text")


async def test_an_observer_is_shown_no_condition_message_or_argument(drawn: World) -> None:
    async with drawn.client(Role.OBSERVER) as client:
        told = (await client.get("/api/v1/workflow", params={"id": "one"})).text
    for text in (await page(drawn, Role.OBSERVER), told):
        assert "ship" in text
        assert "drawn_send" in text
        for value in ("4711", "a-constant", "a-message-to", "an-argument", "size("):
            assert value not in text, value
    async with drawn.client(Role.VIEWER) as client:
        outline = (await client.get("/api/v1/workflow", params={"id": "one"})).json()["outline"]
    assert outline["boxes"][3]["when"] == "=size(fetch) == 4711"
    assert "an-argument" not in str(outline)


async def test_an_execution_without_an_outline_keeps_its_list_and_says_why(drawn: World) -> None:
    store = open_store(drawn.url)
    digest = execution(store, "one").digest
    drop(store, "plans", digest)
    text = await page(drawn, Role.VIEWER)
    assert "It can&#39;t be drawn" in text
    assert "mails/0/send" in text
    assert "<figure" not in text
    store.swap("plans", digest, None, b'{"name": "<script>", "boxes": [{}]}')
    text = await page(drawn, Role.VIEWER)
    assert "can&#39;t be read" in text
    assert "mails/0/send" in text
    drop(store, "plans", digest)
    many = [{"name": f"s{number}", "kind": "call"} for number in range(2001)]
    store.swap("plans", digest, None, orjson.dumps({"name": "n", "boxes": many}))
    assert "too many to draw" in await page(drawn, Role.VIEWER)


async def test_one_that_has_not_begun_has_no_drawing_yet(drawn: World) -> None:
    async with drawn.client(Role.OPERATOR) as client:
        await client.post("/api/v1/workflows/start", json={"id": "two", "plan": "nightly"})
    assert "It has not begun" in await page(drawn, Role.VIEWER, "two")


async def test_an_outline_that_would_act_on_a_page_is_text(drawn: World) -> None:
    store = open_store(drawn.url)
    digest = execution(store, "one").digest
    boxes = [
        {"name": text, "kind": text, "says": text, "when": text,
         "jump": {"to": text, "when": text, "most": 1}, "inner": [{"name": text, "kind": text}]}
        for text in HOSTILE
    ]  # fmt: skip
    drop(store, "plans", digest)
    store.swap("plans", digest, None, orjson.dumps({"name": HOSTILE[0], "boxes": boxes}))
    markup = Markup(await page(drawn, Role.ADMIN))
    assert {tag for tag, _ in markup.elements} <= {
        *("html", "head", "meta", "title", "link", "script", "body", "header", "nav", "main"),
        *("h1", "h2", "p", "span", "div", "b", "code", "a", "form", "input", "button", "label"),
        *("figure", "svg", "desc", "defs", "marker", "path", "g", "rect", "text", "tspan"),
        *("ol", "li"),
    }
    assert all(each.startswith(("/", "#")) for each in markup.addresses)
    assert all(not name.startswith("on") for name in markup.attributes)
    assert {given.get("class") for tag, given in markup.elements if tag == "g"} == {
        "dim",
        "dim around",
    }
    for text in HOSTILE:
        assert visible(text) in markup.text
    assert not {*"\x1b\x07\u202e\u2028\u200b"} & {*markup.text}


async def test_four_hundred_steps_are_drawn_in_a_page_of_less_than_a_megabyte(
    drawn: World,
) -> None:
    store = open_store(drawn.url)
    digest = execution(store, "one").digest
    many = [
        {
            "name": f"s{n}",
            "kind": "call",
            "says": "drawn_send",
            "before": [f"s{n // 3}"] if n else [],
        }
        for n in range(400)
    ]
    drop(store, "plans", digest)
    store.swap("plans", digest, None, orjson.dumps({"name": "n", "boxes": many}))
    text = await page(drawn, Role.VIEWER)
    assert text.count("<g ") == 400
    assert len(text) < 500_000
