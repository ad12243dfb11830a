"""Who is believed: tokens of a file, JSON Web Tokens, sessions; and what is refused."""

import base64
import contextlib
import hmac
import http.server
import os
import re
import threading
import time
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from joserfc import jws, jwt
from joserfc.jwk import KeySet, RSAKey
from mission import World
from rollcage_server import Authority, Role, create_app
from rollcage_server.audit import Audit
from rollcage_server.auth import OneTime
from rollcage_server.errors import BadRequest, TokensInvalid, Unauthenticated
from rollcage_server.oidc import Issuer, fetch_json
from rollcage_server.roles import Principal
from rollcage_server.tokens import TokenFile

ISSUER = "https://issuer.example"


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


# --- tokens of a file ----------------------------------------------------------------------------


async def test_a_token_is_kept_as_a_hash_and_known_by_its_secret(world: World) -> None:
    text = world.token[Role.VIEWER]
    kept = world.tokens.path.read_text()
    assert text not in kept
    assert text.split("_", 2)[2] not in kept
    assert os.stat(world.tokens.path).st_mode & 0o777 == 0o600  # noqa: PTH116
    async with world.client() as client:
        me = (await client.get("/api/v1/me", headers=bearer(text))).json()
    assert (me["name"], me["roles"]) == ("viewer person", ["viewer"])


async def test_tokens_that_are_forged_expired_or_revoked_are_refused(world: World) -> None:
    fine = world.token[Role.ADMIN]
    made, expired = world.tokens.create("eve", [Role.ADMIN], 0)
    gone, revoked = world.tokens.create("eve", [Role.ADMIN], 60)
    world.tokens.revoke(gone.id)
    other = world.token[Role.VIEWER].split("_")[1]
    forged = [
        expired,
        revoked,
        fine[:-1] + ("A" if fine[-1] != "A" else "B"),
        fine.replace(fine.split("_")[1], other),
        fine + "x",
        f"rct_{made.id}_",
        "rct_../../etc/passwd_x",
        "",
        "é" * 20,
    ]
    async with world.client() as client:
        for token in forged:
            headers = {b"Authorization": f"Bearer {token}".encode()}
            answer = await client.get("/api/v1/me", headers=headers)
            assert answer.status_code == 401, token
            assert answer.headers["www-authenticate"] == "Bearer"
        answer = await client.get("/api/v1/me", headers={"Authorization": f"Basic {fine}"})
        assert answer.status_code == 401


def test_a_thread_that_read_the_file_before_brings_no_revoked_token_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Meanwhile(TokenFile):
        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, value)
            if loaded.is_set() and threading.current_thread() is not slow:
                go_on.set()
                slow.join(5)

    def loads(data: bytes) -> Any:
        found = load(data)
        if threading.current_thread() is slow:
            loaded.set()
            go_on.wait(5)
        return found

    made, text = world.tokens.create("eve", [Role.ADMIN], 60)
    load, loaded, go_on = orjson.loads, threading.Event(), threading.Event()
    slow = threading.Thread(target=lambda: tokens.principal(text))
    tokens = Meanwhile(world.tokens.path)
    monkeypatch.setattr(orjson, "loads", loads)
    slow.start()
    assert loaded.wait(5)
    world.tokens.revoke(made.id)
    assert tokens.principal(text) is None
    slow.join(5)
    assert tokens.principal(text) is None


def test_a_file_of_tokens_that_others_can_read_is_not_used(world: World) -> None:
    world.tokens.path.chmod(0o640)
    os.utime(world.tokens.path, (1, 1))
    with pytest.raises(TokensInvalid, match="chmod 600"):
        world.tokens.list()


async def test_tokens_that_can_not_be_read_shut_everybody_out(world: World) -> None:
    world.tokens.path.write_text("{")
    async with world.client(Role.ADMIN) as client:
        answer = await client.get("/api/v1/runs")
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "tokens_invalid"


# --- sessions ------------------------------------------------------------------------------------


async def signed_in(world: World, client: httpx.AsyncClient, role: Role) -> str:
    """Sign in as a browser does; the token against forged requests of its forms."""
    answer = await client.post("/login", data={"token": world.token[role]})
    assert answer.status_code == 200
    cookie = answer.headers["set-cookie"]
    for mark in ("HttpOnly", "Secure", "SameSite=strict", "Path=/"):
        assert mark in cookie
    page = await client.get("/")
    found = re.search(r'name="csrf" value="([0-9a-f]{64})"', page.text)
    assert found is not None
    return found[1]


async def test_a_form_of_another_site_or_without_the_sessions_token_does_nothing(
    world: World,
) -> None:
    own = {"Origin": "https://localhost"}
    async with world.client() as client:
        csrf = await signed_in(world, client, Role.VIEWER)
        refused: list[dict[str, Any]] = [
            {"headers": own},
            {"headers": own, "data": {"csrf": ""}},
            {"headers": own, "data": {"csrf": "0" * 64}},
            {"headers": own, "data": {"csrf": csrf[:-1]}},
            {"headers": own, "data": {"csrf": "é"}},
            {"data": {"csrf": csrf}},  # a browser says where a form comes from
            {"headers": {"Origin": "https://evil.example"}, "data": {"csrf": csrf}},
            {"headers": {"Origin": "https://localhost.evil.example"}, "data": {"csrf": csrf}},
            {"headers": {"Origin": "https://localhost:1"}, "data": {"csrf": csrf}},
            {"headers": {"Origin": "null"}, "data": {"csrf": csrf}},
            {"headers": own | {"Sec-Fetch-Site": "cross-site"}, "data": {"csrf": csrf}},
        ]
        for each in refused:
            assert (await client.post("/logout", **each)).status_code == 403, each
        done = await client.post("/logout", headers=own, data={"csrf": csrf})
        assert done.status_code == 303


async def test_a_session_ends_with_its_token(world: World) -> None:
    made, text = world.tokens.create("ada", [Role.VIEWER], 60)
    async with world.client() as client:
        await client.post("/login", data={"token": text})
        assert (await client.get("/")).status_code == 200
        world.tokens.revoke(made.id)
        answer = await client.get("/")
        assert (answer.status_code, answer.headers["location"]) == (303, "/login?next=/")


@pytest.mark.parametrize("via", ["token", "oidc"])
async def test_who_signs_out_ends_the_session_for_every_copy_of_its_cookie(
    world: World, via: str, party: "Party"
) -> None:
    app = create_app(world.url, Authority(tokens=world.tokens, issuer=party.issuer))
    other = create_app(world.url, Authority(tokens=world.tokens, issuer=party.issuer))
    text = party.token() if via == "oidc" else world.token[Role.VIEWER]

    def client(of: Any, cookie: str = "") -> httpx.AsyncClient:
        return httpx.AsyncClient(
            transport=httpx.ASGITransport(of),
            base_url="https://localhost",
            headers={"Origin": "https://localhost"}
            | ({"Cookie": f"__Host-rollcage={cookie}"} if cookie else {}),
        )

    async def signed_in() -> str:
        async with client(app) as browser:
            assert (await browser.post("/login", data={"token": text})).status_code == 200
            return browser.cookies["__Host-rollcage"].strip('"')

    stolen, second = await signed_in(), await signed_in()
    assert stolen != second, "or who signs in again would be signed out"
    async with client(app, stolen) as browser:
        page = (await browser.get("/")).text
        csrf = re.search(r'name="csrf" value="(\w+)"', page)
        assert csrf is not None
        assert (await browser.post("/logout", data={"csrf": csrf[1]})).status_code == 303
    for of in (app, other):
        for cookie, status in ((stolen, 303), (second, 200)):
            async with client(of, cookie) as browser:
                assert (await browser.get("/")).status_code == status
    assert [(x.action, x.outcome) for x in Audit(world.store).lines()][-2:] == [
        ("sign out", "begun"), ("sign out", "done"),
    ]  # fmt: skip


async def test_a_session_survives_a_restart_and_a_changed_cookie_is_none(world: World) -> None:
    async with world.client() as client:
        await signed_in(world, client, Role.VIEWER)
        cookie = client.cookies["__Host-rollcage"].strip('"')
    again = create_app(world.url, Authority(tokens=world.tokens))
    for text, status in (
        (cookie, 200), (cookie[:-1] + "x", 303), ("x" + cookie, 303), ("", 303), (".", 303),
        (cookie.partition(".")[0], 303), ("é.é", 303),
    ):  # fmt: skip
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(again), base_url="https://localhost"
        ) as client:
            answer = await client.get("/", headers={b"Cookie": f"__Host-rollcage={text}".encode()})
        assert answer.status_code == status, text


async def test_a_one_time_token_signs_one_browser_in_once(world: World) -> None:
    once = OneTime("ada")
    app = create_app(world.url, Authority(once=once))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="https://localhost") as client:
        assert (await client.get("/login", params={"once": "wrong"})).status_code == 303
        assert (await client.get("/login", params={"once": once.text})).status_code == 200
        assert (await client.get("/runs")).status_code == 200
    async with httpx.AsyncClient(transport=transport, base_url="https://localhost") as client:
        assert (await client.get("/login", params={"once": once.text})).status_code == 303
        assert (await client.get("/runs")).status_code == 303


# --- JSON Web Tokens -----------------------------------------------------------------------------


class Party:
    """An issuer in memory, with keys that it can rotate."""

    def __init__(self) -> None:
        self.asked = 0
        self.keys: list[RSAKey] = []
        self.rotate("one")
        self.issuer = Issuer(ISSUER, "rollcage", fetch=self.fetch)

    def rotate(self, kid: str) -> RSAKey:
        key = RSAKey.generate_key(2048, {"kid": kid, "use": "sig"})
        self.keys = [key]
        return key

    def fetch(self, url: str) -> Any:
        if url.endswith("openid-configuration"):
            return {"issuer": ISSUER, "jwks_uri": f"{ISSUER}/keys"}
        self.asked += 1
        return KeySet(list(self.keys)).as_dict(private=False)

    def claims(self, **more: Any) -> dict[str, Any]:
        now = int(time.time())
        said = {"iss": ISSUER, "aud": "rollcage", "sub": "ada", "exp": now + 300, "iat": now}
        return {
            k: v for k, v in (said | {"rollcage_roles": ["viewer"]} | more).items() if v is not None
        }

    def token(self, key: Any = None, header: dict[str, Any] | None = None, **more: Any) -> str:
        key = key or self.keys[0]
        head = {"alg": "RS256", "kid": key.kid} | (header or {})
        return jwt.encode(
            {k: v for k, v in head.items() if v is not None},
            self.claims(**more),
            key,
            algorithms=[head["alg"]],
        )


@pytest.fixture(scope="module")
def party() -> Party:
    return Party()


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def part(said: dict[str, Any]) -> str:
    """A part of a token, as anybody can write one."""
    return encoded(orjson.dumps(said))


async def told(world: World, party: Party, token: str) -> httpx.Response:
    app = create_app(world.url, Authority(issuer=party.issuer))
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="https://localhost") as client:
        return await client.get("/api/v1/me", headers=bearer(token))


async def test_a_token_of_the_issuer_is_believed_with_the_roles_that_it_names(
    world: World, party: Party
) -> None:
    roles = ["approver", "root", 7, "viewer"]
    me = (await told(world, party, party.token(rollcage_roles=roles))).json()
    assert (me["name"], me["roles"]) == ("ada", ["approver", "viewer"])
    without = await told(world, party, party.token(rollcage_roles=None))
    assert without.status_code == 403


async def test_tokens_that_the_issuer_did_not_make_for_us_are_refused(
    world: World, party: Party
) -> None:
    own = party.keys[0]
    stranger = RSAKey.generate_key(2048, {"kid": str(own.kid)})
    body = part(party.claims())
    unsigned = f"{part({'alg': 'none', 'kid': own.kid})}.{body}."
    signed = f"{part({'alg': 'HS256', 'kid': own.kid})}.{body}"
    public = own.as_pem(private=False)
    confused = encoded(hmac.digest(public, signed.encode(), "sha256"))
    now = int(time.time())
    tampered = jws.serialize_compact(
        {"alg": "RS256", "kid": own.kid}, orjson.dumps(party.claims()), own
    ).split(".")
    tampered[1] = part(party.claims(rollcage_roles=["admin"]))
    refused = {
        "alg none": unsigned,
        "another key of that name": party.token(stranger),
        "the public key as a secret": f"{signed}.{confused}",
        "no kid": party.token(header={"kid": None}),
        "an unknown kid": party.token(header={"kid": "who"}),
        "wrong aud": party.token(aud="another"),
        "no aud": party.token(aud=None),
        "wrong iss": party.token(iss="https://evil.example"),
        "no iss": party.token(iss=None),
        "expired": party.token(exp=now - 3600),
        "no exp": party.token(exp=None),
        "not yet": party.token(nbf=now + 3600),
        "no sub": party.token(sub=None),
        "no name": party.token(sub="\u200b"),
        "tampered": ".".join(tampered),
        "no token": "a.b.c",
        "nothing": "..",
    }
    for why, token in refused.items():
        assert (await told(world, party, token)).status_code == 401, why


async def test_keys_that_are_rotated_are_taken_and_a_guesser_does_not_make_us_ask(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    party, now = Party(), [1000.0]
    monkeypatch.setattr("rollcage_server.oidc.time.monotonic", lambda: now[0])
    assert (await told(world, party, party.token())).status_code == 200
    old = party.token()
    party.rotate("two")
    for _ in range(20):
        await told(world, party, party.token(header={"kid": "guess"}))
    assert party.asked == 1
    now[0] += 20
    assert (await told(world, party, party.token())).status_code == 200
    assert party.asked == 2
    assert (await told(world, party, old)).status_code == 401


def test_a_principal_that_is_expired_may_nothing() -> None:
    assert Principal("ada", frozenset({Role.ADMIN}), time.time() - 1, "oidc", "").rights == set()


def test_an_issuer_is_reached_by_https(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="https"):
        Issuer("http://issuer.example", "rollcage")


class Elsewhere(http.server.BaseHTTPRequestHandler):
    """Answers with what its server holds under a path: a document, or an address to go to."""

    code = 302

    def do_GET(self) -> None:
        answers: dict[str, Any] = self.server.answers  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue] - set by the test
        found = answers.get(self.path)
        self.server.asked.append(self.path)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue] - set by the test
        body = b"" if isinstance(found, str) else orjson.dumps(found)
        self.send_response(self.code if isinstance(found, str) else 200)
        if isinstance(found, str):
            self.send_header("Location", found)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any, **__: Any) -> None:
        """Say nothing."""


@contextlib.contextmanager
def served(answers: dict[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """A server on this machine: its address, and what it was asked for."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere) as server:
        asked: list[str] = []
        server.answers, server.asked = answers, asked  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue] - of this test
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


_DISCOVERY = "/.well-known/openid-configuration"


@pytest.mark.parametrize("which", ["none", "discovery", "keys"])
def test_an_issuer_that_sends_us_elsewhere_for_its_keys_is_not_believed(
    party: Party, which: str
) -> None:
    keys = KeySet(list(party.keys)).as_dict(private=False)
    thieves: dict[str, Any] = {"/keys": keys}
    answers: dict[str, Any] = {"/keys": keys}
    with served(thieves) as (elsewhere, asked), served(answers) as (url, _):
        thieves[_DISCOVERY] = {"issuer": url, "jwks_uri": f"{elsewhere}/keys"}
        answers[_DISCOVERY] = {"issuer": url, "jwks_uri": f"{url}/keys"}
        redirected = {"none": "/nothing", "discovery": _DISCOVERY, "keys": "/keys"}[which]
        answers[redirected] = f"{elsewhere}{redirected}"
        issuer, token = Issuer(url, "rollcage"), party.token(iss=url)
        if which == "none":
            assert issuer.principal(token).name == "ada"
        else:
            with pytest.raises(Unauthenticated, match="can't be fetched"):
                issuer.principal(token)
    assert asked == []


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("to", ["{own}/b", "http://localhost:{port}/b", "file:///etc/issue", "/b"])
def test_no_redirect_is_followed(code: int, to: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: dict[str, Any] = {"/b": {"fine": True}}
    monkeypatch.setattr(Elsewhere, "code", code)
    with served(answers) as (own, asked):
        answers["/a"] = to.format(own=own, port=own.rpartition(":")[2])
        assert fetch_json(f"{own}/b") == {"fine": True}
        with pytest.raises(urllib.error.HTTPError):
            fetch_json(f"{own}/a")
    assert asked == ["/b", "/a"]
