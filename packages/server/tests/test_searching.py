"""Search on its page and over HTTP."""

import pytest
from markup import HOSTILE, Markup
from mission import SECRET, World
from rollcage_server import Role
from rollcage_views import visible


async def test_what_is_found_leads_to_its_step(world: World) -> None:
    async with world.client(Role.VIEWER) as client:
        answer = await client.get("/search", params={"text": f"{SECRET} 2"})
        assert answer.status_code == 200
        run = world.runs["fine"]
        assert f'href="/runs/{run}?first=1#step-2"' in answer.text
        assert "3 runs looked through" in answer.text
        there = await client.get(f"/runs/{run}?first=1")
        assert 'id="step-2"' in there.text
        found = (await client.get("/api/v1/search", params={"tool": "served_write"})).json()
        assert {each["run"]["name"] for each in found["runs"]} == {"fine", "lost", "asked"}
        assert (found["looked"], found["behind"]) == (3, None)
        (each,) = (await client.get("/api/v1/search?state=unknown")).json()["runs"]
        assert (each["run"]["name"], each["count"]) == ("lost", 1)


async def test_an_empty_form_looks_at_nothing(world: World) -> None:
    async with world.client(Role.VIEWER) as client:
        text = (await client.get("/search")).text
    assert "looked through" not in text
    assert "/runs/" not in text


async def test_an_observer_is_told_the_same_of_a_value_that_is_there_and_of_another(
    world: World,
) -> None:
    async with world.client(Role.OBSERVER) as client:
        for path in ("/search", "/api/v1/search"):
            told = []
            for text in (SECRET, "zzz-not-there"):
                answer = await client.get(path, params={"text": text})
                told.append(answer.text.replace(text, ""))
            assert told[0] == told[1]
        named = (await client.get("/search", params={"tool": "served_write"})).text
    assert "served_write" in named
    assert SECRET not in named


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("state=nothing", 400), ("since=yesterday", 400), ("since=2027-13-01", 400),
        ("since=0001-01-01", 200), ("since=9999-12-31", 200), ("behind=x", 200),
        ("behind=" + "9" * 201, 422), ("text=x&behind=%00", 404), ("text=" + "a" * 201, 422),
        ("tool=" + "*a" * 100, 200), ("tool=[", 200), ("text=%00%FF%ED%A0%80", 200),
    ],
)  # fmt: skip
async def test_what_can_not_be_looked_for_is_refused(world: World, query: str, status: int) -> None:
    async with world.client(Role.VIEWER) as client:
        assert (await client.get(f"/search?{query}")).status_code == status


@pytest.mark.parametrize("field", ["text", "name", "tool", "agent"])
async def test_what_is_looked_for_is_text(world: World, field: str) -> None:
    async with world.client(Role.VIEWER) as client:
        for text in HOSTILE:
            page = Markup((await client.get("/search", params={field: text})).text)
            assert all(each.startswith(("/", "#")) for each in page.addresses)
            assert not any(name.startswith("on") for name in page.attributes)
            assert not {"img", "svg"} & page.tags
            values = [given.get("value") for tag, given in page.elements if tag == "input"]
            assert text in values or visible(text) in values
