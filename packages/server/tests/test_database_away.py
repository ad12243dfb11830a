"""A server whose database goes away, or falls silent, and is there again."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import httpx
import pytest
from listening import WAIT, messages, next_message, serving, token
from mission import World, served_write
from postgres import Network, new_store
from rollcage import Session, order_of
from rollcage_server import Authority, Role, create_app
from rollcage_server.audit import Audit
from rollcage_server.events import Hub
from rollcage_server.stores import Stores

MANY = 50  # more requests at once than threads serve them


@pytest.mark.parametrize("how", ["down", "silent"])
async def test_a_database_that_goes_away_is_said_soon_nothing_is_done_and_viewers_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr("rollcage_server.stores._PATIENCE", 1.0)
    with new_store() as url, contextlib.closing(Network(url)) as network:
        world = World(tmp_path, url)
        world.fill()
        lost = world.runs["lost"]
        app = create_app(f"{network.url}&connect_timeout=2", Authority(tokens=world.tokens))
        hub: Hub = app.state.means.hub
        with Session("live", store=url) as session, serving(app) as address:
            served_write("one")
            headers = token(world, Role.ADMIN)
            async with (
                httpx.AsyncClient(base_url=address, headers=headers, timeout=WAIT) as client,
                client.stream("GET", f"/runs/{session.run_id}/live") as answer,
            ):
                news = messages(answer)
                assert (await next_message(news))["event"] == "rows"
                if how == "down":
                    network.take_down()
                else:
                    network.freeze()
                stale = await next_message(news)
                assert (stale["event"], "stale" in stale["data"]) == ("stale", True)
                asked = [client.get("/runs") for _ in range(MANY)]
                stop = client.post(f"/api/v1/runs/{lost}/stop", json={"reason": "enough"})
                page = client.get("/static/page.js")  # no thread has to be free for that
                found = await asyncio.gather(page, stop, client.get("/healthz"), *asked)
                assert [each.status_code for each in found] == [200, *[503] * (MANY + 2)]

                network.is_down = False
                network.thaw()
                served_write("two")
                assert (await next_message(news))["data"] == "", "the page is not stale any more"
                row = await next_message(news)
                assert 'id="step-2"' in row["data"]
                assert (await client.get("/healthz")).text == "ok\n"
                assert (await client.get("/runs")).status_code == 200
                assert (hub.viewers, hub.followers) == (1, 1)
        assert order_of(world.store, lost) is None
        assert list(Audit(world.store).lines()) == []


def test_a_url_says_for_how_long_its_database_may_be_away() -> None:
    pytest.importorskip("psycopg")
    store: Any = Stores("postgresql://localhost/x?store_timeout=7").open()
    assert (store.database.timeout, store.database.silence) == (7.0, 4.0)
