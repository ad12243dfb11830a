"""Live runs over a real server on loopback: what is new arrives; who is too many or too slow."""

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict
from html import unescape
from typing import Any

import httpx
import orjson
import pytest
from listening import WAIT, messages, next_message, serving, token
from mission import RESULT, SECRET, World, served_write
from rollcage import Session, lift_order, open_store, pause_run
from rollcage_server import Authority, Role, create_app
from rollcage_server.errors import TooMany
from rollcage_server.events import EventStream, Hub, News, message


@pytest.fixture
def address(world: World) -> Iterator[str]:
    with serving(world.app) as found:
        yield found


async def test_a_step_arrives_once_on_pages_and_for_programs_and_after_a_break(
    world: World, address: str
) -> None:
    async with httpx.AsyncClient(base_url=address, timeout=WAIT) as client:
        with Session("live", store=world.url) as session:
            served_write("one")
            at = f"/runs/{session.run_id}"
            page = (await client.get(at, headers=token(world))).text
            after = re.search(r"live\?after=(\d+)", page)
            assert after is not None
            where = {"html": f"{at}/live?after={after[1]}", "json": f"/api/v1{at}/events"}
            async with (
                client.stream("GET", where["html"], headers=token(world)) as html,
                client.stream("GET", where["json"], headers=token(world)) as json,
                client.stream("GET", where["json"], headers=token(world, Role.OBSERVER)) as blind,
            ):
                assert html.headers["content-type"].startswith("text/event-stream")
                pages, programs, veiled = messages(html), messages(json), messages(blind)
                first = await next_message(programs)
                assert [s["step"] for s in orjson.loads(first["data"])["steps"]] == [1]
                served_write(f"{SECRET} <script>two</script>")
                row = await next_message(pages)
                assert row["event"] == "rows"
                assert 'id="step-2"' in row["data"]
                assert 'id="step-1"' not in row["data"]
                assert SECRET in row["data"]
                assert '<small id="total" hx-swap-oob="true">2 steps</small>' in row["data"]
                assert '<small id="total">1 step</small>' in page
                assert "<script>" not in row["data"]
                seen = await next_message(programs)
                assert RESULT in seen["data"]
                hidden = ""
                while '"step":2' not in hidden:
                    hidden += (await next_message(veiled))["data"]
                assert SECRET not in hidden
                assert RESULT not in hidden
                last = seen["id"]
            served_write("three")
        again = token(world) | {"Last-Event-ID": last}
        async with client.stream("GET", where["json"], headers=again) as json:
            news = orjson.loads((await next_message(messages(json)))["data"])
        assert {s["step"] for s in news["steps"]} == {3}
        assert (news["status"], news["total"]) == ("ok", 3)


async def test_a_pause_and_its_end_arrive_on_pages_and_for_programs(
    world: World, address: str
) -> None:
    async with httpx.AsyncClient(base_url=address, timeout=WAIT) as client:
        with Session("live", store=world.url) as session:
            served_write("one")
            at = f"/runs/{session.run_id}"
            page = (await client.get(at, headers=token(world))).text
            where = re.search(r'sse-connect="([^"]+)"', page)
            assert where is not None
            html_at, json_at = unescape(where[1]), f"/api/v1{at}/events"
            async with (
                client.stream("GET", html_at, headers=token(world)) as html,
                client.stream("GET", json_at, headers=token(world)) as json,
                client.stream("GET", json_at, headers=token(world, Role.OBSERVER)) as blind,
            ):
                pages, programs, veiled = messages(html), messages(json), messages(blind)
                for each in (programs, veiled):
                    assert (await next_message(each))["event"] == "news"
                order = pause_run(world.store, session.run_id, by="ann", reason="why")
                assert (await next_message(pages))["event"] == "reset"
                told = await next_message(programs)
                assert (told["event"], orjson.loads(told["data"])) == ("order", asdict(order))
                assert orjson.loads((await next_message(veiled))["data"])["reason"] == ""
                again = (await client.get(at, headers=token(world))).text
                assert "Paused by ann" in again
                lift_order(world.store, session.run_id)
                assert (await next_message(pages))["event"] == "reset"
                assert orjson.loads((await next_message(programs))["data"]) is None
            stale = re.search(r'sse-connect="([^"]+)"', again)
            assert stale is not None  # loaded while it was paused, connected when it was not
            async with client.stream("GET", unescape(stale[1]), headers=token(world)) as html:
                assert (await next_message(messages(html)))["event"] == "reset"


async def test_more_viewers_than_the_cap_are_told_so_and_leave_room_when_they_go(
    world: World,
) -> None:
    app = create_app(world.url, Authority(tokens=world.tokens), viewers=2)
    where = f"/api/v1/runs/{world.runs['fine']}/events"
    hub: Hub = app.state.means.hub
    with serving(app) as address:
        async with httpx.AsyncClient(
            base_url=address, timeout=WAIT, headers=token(world)
        ) as client:
            async with client.stream("GET", where) as one, client.stream("GET", where) as two:
                streams = [messages(one), messages(two)]
                for stream in streams:
                    await next_message(stream)
                assert (hub.viewers, hub.followers) == (2, 1)
                refused = await client.get(where)
                assert refused.status_code == 503
                assert refused.json()["error"]["code"] == "too_many"
            for _ in range(200):
                if not hub.viewers:
                    break
                await asyncio.sleep(0.1)
            assert (hub.viewers, hub.followers) == (0, 0)


async def test_who_reads_too_slowly_is_dropped_and_holds_nobody_up() -> None:
    sent: list[bytes] = []

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 1000

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))
        if len(sent) > 3:
            await asyncio.Event().wait()  # nobody reads any more

    async with asyncio.timeout(WAIT):
        await EventStream(endless(), patience=0.05)({"type": "http"}, receive, send)
    assert len(sent) == 4


async def test_a_viewer_who_falls_behind_is_dropped_and_another_is_not(world: World) -> None:
    def render(news: News, form: Any, values: bool) -> bytes:
        return message("news", str(news.line))

    hub = Hub(lambda: open_store(world.url), render, most=2)
    with Session("busy", store=world.url) as session:
        served_write("first")
        streams = [
            hub.stream(session.run_id, "json", 0, values=True, still=lambda: True) for _ in range(2)
        ]
        slow, fast = streams
        assert await anext(slow) == await anext(fast) == b"retry: 2000\n\n"
        (follower,) = hub._followers.values()
        (first, *_) = list(follower.viewers)
        for _ in range(100):
            first.give(b"more")
        assert first.dropped
        third = hub.stream(session.run_id, "json", 0, values=True, still=lambda: True)
        with pytest.raises(TooMany):
            await anext(third)
        for stream in streams:
            closing: Any = stream
            await closing.aclose()
        assert hub.viewers == 0


async def test_who_may_not_look_any_more_is_told_nothing_more(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollcage_server.events._ALIVE", 0.05)
    where = f"/api/v1/runs/{world.runs['fine']}/events"
    made, text = world.tokens.create("ada", [Role.VIEWER], 60)
    with serving(world.app) as address:
        async with (
            httpx.AsyncClient(base_url=address, timeout=WAIT) as client,
            client.stream("GET", where, headers={"Authorization": f"Bearer {text}"}) as answer,
        ):
            assert answer.status_code == 200
            world.tokens.revoke(made.id)
            async with asyncio.timeout(WAIT):
                async for _ in answer.aiter_lines():
                    pass  # it ends


async def test_a_server_that_listens_is_not_called_by_another_name(address: str) -> None:
    async with httpx.AsyncClient(base_url=address, timeout=WAIT) as client:
        for host, status in (
            ("evil.example", 421), ("localhost.evil.example", 421), ("user@localhost", 421),
            ("", 421), ("LOCALHOST", 303), ("localhost:99", 303), ("[::1]", 303),
        ):  # fmt: skip
            answer = await client.get("/", headers={"Host": host})
            assert answer.status_code == status, host


async def test_two_hosts_or_a_wrong_length_are_refused(address: str) -> None:
    host, port = address.removeprefix("http://").split(":")

    def say(text: bytes) -> bytes:
        with socket.create_connection((host, int(port)), timeout=WAIT) as connection:
            connection.sendall(text)
            return connection.recv(100)

    two = b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n"
    assert (await asyncio.to_thread(say, two)).split()[1] in (b"400", b"421")
    path = b"GET /static/../app.py HTTP/1.1\r\nHost: localhost\r\n\r\n"
    assert (await asyncio.to_thread(say, path)).split()[1] == b"404"
