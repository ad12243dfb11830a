"""What comes from outside and what is recorded, as hostile as can be; and a store that is gone."""

import asyncio
import re
import shutil
from collections.abc import AsyncIterator
from hashlib import sha256
from importlib.resources import files
from pathlib import Path

import pytest
from mission import REASON, World, served_read
from rollcage import Session
from rollcage_server import Authority, Role, create_app
from rollcage_server.audit import Audit
from rollcage_server.signing import STATIC

MARKUP = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'{{7*7}}\x1b[2J\u202e"
HASHES = {  # of what npm has: htmx.org@2.0.11, htmx-ext-sse@2.2.4
    "htmx-2.0.11.min.js": "d6fdc75f204e6bdefa99b69bf1e6d4ac69b8a364f77929f45c13476b4000f717",
    "htmx-ext-sse-2.2.4.min.js": "98a46496de0c3605fbffdce9167ba427bdd9553184f83f149c261891a92c0136",
}


def test_scripts_of_others_are_what_their_makers_published() -> None:
    lie = files("rollcage_server") / "static"
    for name, known in HASHES.items():
        assert sha256((lie / name).read_bytes()).hexdigest() == known
    assert set(HASHES) <= set(STATIC)
    assert {each.name for each in lie.iterdir()} <= set(STATIC)


async def test_recorded_text_is_text_on_every_page(world: World) -> None:
    with Session(MARKUP, store=world.url) as session:
        served_read(MARKUP)
        with session.branch("<img src=x onerror=alert(1)>"):
            served_read(f"again {MARKUP}")
    run = session.run_id
    paths = [
        "/", "/runs", f"/runs/{run}", f"/runs/{run}/steps/1", f"/runs/{run}/tree",
        f"/runs/{run}/standing", f"/diff?a={run}&b={run}", "/inbox", "/policies",
    ]  # fmt: skip
    async with world.client(Role.ADMIN) as client:
        for path in paths:
            answer = await client.get(path)
            assert answer.status_code == 200, (path, answer.text)
            for raw in ("<script>alert", "<img src=x", "\x1b", "\u202e", "49\x1b"):
                assert raw not in answer.text, path


async def test_numbers_and_names_that_nothing_can_hold_are_refused(world: World) -> None:
    run, huge = world.runs["fine"], 10**40
    bad_name = '{"id": "x", "plan": "p", "inputs": {"\\ud800": 1}}'
    async with world.client(Role.ADMIN) as client:
        for path in (f"/runs/{run}?first={huge}", f"/api/v1/runs/{run}/steps?first={huge}"):
            assert (await client.get(path)).status_code == 422, path
        to = await client.post(f"/api/v1/runs/{run}/undo-plan", json={"to": huge})
        assert to.status_code == 422
        kind = {"Content-Type": "application/json"}
        named = await client.post("/api/v1/workflows/start", content=bad_name, headers=kind)
        assert (named.status_code, named.json()["error"]["code"]) == (409, "workflow")


async def test_an_action_that_breaks_has_its_outcome_in_the_audit_log(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("rollcage.stages.orders.stop_run", broken)
    async with world.client(Role.ADMIN) as client:
        answer = await client.post(f"/api/v1/runs/{world.runs['lost']}/stop", json={})
    assert answer.status_code == 500
    told = [(line.outcome, line.detail) for line in Audit(world.store).lines()]
    assert told == [("begun", ""), ("failed", "unexpected")]


async def test_names_and_ids_that_are_paths_reach_no_file(world: World, tmp_path: Path) -> None:
    (tmp_path / "outside.jsonl").write_text(REASON)
    hostile = [
        "%2e%2e%2f", "..%2f..%2foutside", "....//", "%00", "a%00b", "\\..\\", "%c0%ae",
        "/etc/passwd", "%2fetc%2fpasswd", "x" * 5000, "\u202e", "%ff", "1" * 36,
    ]  # fmt: skip
    async with world.client(Role.ADMIN) as client:
        for each in hostile:
            for path in (
                "/static/{}", "/runs/{}", "/runs/{}/undo", "/runs/{}/live", "/api/v1/runs/{}/steps",
                "/api/v1/runs/{}/events", "/api/v1/runs/{}/commands/{}", "/diff?a={}&b={}",
            ):  # fmt: skip
                answer = await client.get(path.replace("{}", each))
                assert answer.status_code in (404, 400), (path, each, answer.status_code)
                assert REASON not in answer.text
            for path in ("/api/v1/approvals/{}/approve", "/api/v1/runs/{}/stop"):
                answer = await client.post(path.replace("{}", each), json={})
                assert answer.status_code in (404, 405, 409), (path, each, answer.status_code)


async def test_bodies_that_are_too_long_too_deep_or_none_are_refused(world: World) -> None:
    at = f"/api/v1/approvals/{world.approval}/approve"
    async with world.client(Role.ADMIN) as client:

        async def endless() -> AsyncIterator[bytes]:
            for _ in range(2000):
                yield b" " * 1000

        kind = {"Content-Type": "application/json"}
        for content, status in (
            (b"x" * 1_000_001, (413,)),
            (endless(), (413,)),
            (b"[" * 100_000, (400, 422)),
            (b"{", (400, 422)),
            (b'{"reason": 1}', (422,)),
            (b'{"more": 1}', (422,)),
            (b'{"args": {"key": "\\ud800"}}', (200,)),  # half a character is on record as it is
            (b"\xff", (400, 422)),
        ):
            answer = await client.post(at, content=content, headers=kind)
            assert answer.status_code in status, (answer.status_code, answer.text)
        assert (await client.post("/login", content=b"a=%ff", headers={
            "Content-Type": "application/x-www-form-urlencoded"})).status_code == 400  # fmt: skip


async def test_every_answer_has_the_headers_that_hold_browsers_to_it(world: World) -> None:
    async with world.client(Role.ADMIN) as client:
        for path in ("/", "/nothing", "/login", "/static/rollcage.css", "/api/v1/me", "/healthz"):
            headers = (await client.get(path)).headers
            policy = headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["referrer-policy"] == "same-origin"
        for path in ("/", "/inbox", f"/runs/{world.runs['fine']}"):
            text = (await client.get(path)).text
            for inline in (" style=", "<style", " onclick", "javascript:", "<script>"):
                assert inline not in text, (path, inline)


async def test_a_store_that_is_gone_is_said_and_is_there_again_when_it_is_back(
    world: World,
) -> None:
    folder, away = Path(world.url), Path(f"{world.url}.away")
    async with world.client(Role.ADMIN) as client:
        assert (await client.get("/api/v1/runs")).status_code == 200
        await asyncio.to_thread(folder.rename, away)
        for path in ("/", "/runs", "/api/v1/runs", "/healthz", "/inbox"):
            answer = await client.get(path)
            assert answer.status_code == 503, path
            assert answer.headers["retry-after"] == "5"
        answer = await client.post(f"/api/v1/runs/{world.runs['fine']}/stop", json={})
        assert answer.status_code == 503
        assert not await asyncio.to_thread(folder.exists)
        await asyncio.to_thread(away.rename, folder)
        assert (await client.get("/runs")).status_code == 200
        assert (await client.get("/healthz")).text == "ok\n"


async def test_a_server_begins_before_its_store_is_there(tmp_path: Path, world: World) -> None:
    app = create_app(str(tmp_path / "later"), Authority(tokens=world.tokens))
    world.app = app
    async with world.client(Role.VIEWER) as client:
        assert (await client.get("/runs")).status_code == 503
        shutil.copytree(world.url, tmp_path / "later")
        assert (await client.get("/runs")).status_code == 200


@pytest.mark.damaged
async def test_a_run_that_is_damaged_is_said_to_be(world: World) -> None:
    run = world.runs["fine"]
    path = Path(world.url) / "logs" / f"{run}.jsonl"
    path.write_bytes(path.read_bytes().replace(b"the-value-of", b"the-VALUE-of", 1))
    async with world.client(Role.OBSERVER) as client:
        answer = await client.get(f"/api/v1/runs/{run}/steps")
        assert answer.status_code == 500
        assert answer.json()["error"] == {"code": "trace_corrupt", "message": "trace corrupt"}


def test_each_test_that_the_threat_model_names_is_there() -> None:
    here = Path(__file__).parent
    named = re.findall(r"`(test_\w+)`", (here.parents[2] / "docs" / "security.md").read_text())
    written = "".join(path.read_text() for path in here.glob("test_*.py"))
    assert len(named) > 20
    assert [each for each in named if f"def {each}(" not in written] == []


def test_the_wheel_stays_below_a_megabyte() -> None:
    own = Path(str(files("rollcage_server")))
    whole = [path for path in own.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert sum(path.stat().st_size for path in whole) < 1_000_000  # before it is compressed
