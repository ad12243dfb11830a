"""Signing in and out, and public resources: scripts, styles, the health check."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from importlib.resources import files
from typing import Any, Final

from fastapi import Request
from rollcage_views.html import script, stylesheet
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response

from rollcage_server.access import AskingNow, FormNow, Routes, means_of
from rollcage_server.actions import audited
from rollcage_server.audit import Audit
from rollcage_server.errors import NotFound, Unauthenticated
from rollcage_server.rendering import page
from rollcage_server.roles import Principal, Right
from rollcage_server.sessions import COOKIE, SignIn

__all__ = ["STATIC", "signing"]

signing = Routes()

STATIC: Final = {
    "htmx-2.0.11.min.js": "text/javascript",
    "htmx-ext-sse-2.2.4.min.js": "text/javascript",
    "icon.svg": "image/svg+xml",
    "page.js": "text/javascript",
    "rollcage.css": "text/css",
}
"""The static files, and no others: files of this package, and files of reports."""


def _bytes_of(name: str) -> bytes:
    if name == "page.js":
        return script().encode()
    own = (files("rollcage_server") / "static" / name).read_bytes()
    return stylesheet().encode() + own if name == "rollcage.css" else own


_content = {name: _bytes_of(name) for name in STATIC}
_tags = {name: f'"{sha256(data).hexdigest()[:32]}"' for name, data in _content.items()}


@signing.get("/static/{name}", None)
async def static(request: Request, name: str) -> Response:
    """Return a script or a style, without a thread."""
    if name not in STATIC:
        raise NotFound("there is no such file")
    headers = {"ETag": _tags[name], "Cache-Control": "public, max-age=3600"}
    if request.headers.get("if-none-match") == _tags[name]:
        return Response(status_code=304, headers=headers)
    return Response(_content[name], media_type=STATIC[name], headers=headers)


@signing.get("/healthz", None)
def health(request: Request) -> Response:
    """Return whether the server is up, and reaches its store."""
    means_of(request).stores.check()
    return PlainTextResponse("ok\n")


@signing.get("/login", None)
def login(request: Request, once: str = "") -> Response:
    """Return the form to sign in; with a one-time token, sign in."""
    if once:
        return _signed_in(request, once)
    return page(request, "login.html", message="")


@signing.post("/login", None)
def sign_in(request: Request, form: FormNow) -> Response:
    """Sign in with a token."""
    try:
        return _signed_in(request, form.get("token", "").strip())
    except Unauthenticated as error:
        return page(request, "login.html", None, 401, message=str(error))


@signing.post("/logout", Right.SEE)
def sign_out(request: Request, asking: AskingNow) -> Response:
    """End the session: its cookie is worthless from now on, as is every copy."""

    def end() -> Mapping[str, Any]:
        if asking.csrf:
            means_of(request).sessions.end(SignIn(asking.who, asking.csrf))
        return {}

    audited(asking, "sign out", "", end)
    answer = RedirectResponse("/login", 303)
    answer.delete_cookie(COOKIE, path="/", secure=True, httponly=True, samesite="strict")
    return answer


def _signed_in(request: Request, token: str) -> Response:
    means = means_of(request)
    who: Principal = means.authority.signing_in(token)
    value, seconds = means.sessions.cookie(who)
    Audit(means.stores.get()).add(who, who.role_for(Right.SEE), "sign in", "", "done")
    # A page, not a redirect: a browser that comes from another site sends no strict cookie with
    # one.
    answer = HTMLResponse(
        '<!doctype html><html lang="en"><meta http-equiv="refresh" content="0;url=/">'
        '<title>Signed in</title><p><a href="/">You are signed in: go on</a></p></html>'
    )
    answer.set_cookie(
        COOKIE, value, max_age=seconds, path="/", secure=True, httponly=True, samesite="strict"
    )
    return answer
