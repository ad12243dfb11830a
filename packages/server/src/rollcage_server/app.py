"""The application: routes behind a shield, and the response for each error."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Iterable
from importlib import metadata
from typing import Any, Final
from urllib.parse import quote

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from rollcage.errors import RollcageError
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

from rollcage_server.access import Services, check_all_ruled
from rollcage_server.api import Data, api
from rollcage_server.auth import Authority
from rollcage_server.errors import Unauthenticated, status_of
from rollcage_server.events import Hub
from rollcage_server.governed import governed, governed_api
from rollcage_server.live import renderer
from rollcage_server.pages import pages
from rollcage_server.rendering import page, rows
from rollcage_server.roles import Right
from rollcage_server.searching import searching, searching_api
from rollcage_server.sessions import Sessions
from rollcage_server.shield import Shield
from rollcage_server.signing import signing
from rollcage_server.steering import steering, steering_api
from rollcage_server.stores import Stores
from rollcage_server.workflows import workflows, workflows_api

__all__ = ["create_app"]

_ROUTES: Final = (
    signing, pages, steering, workflows, governed, searching,
    api, steering_api, workflows_api, governed_api, searching_api,
)  # fmt: skip
_log: Final = logging.getLogger(__name__)


def create_app(
    store: str, authority: Authority, *, hosts: Iterable[str] = (), viewers: int = 500
) -> FastAPI:
    """Return the server of a store, as an ASGI application.

    Args:
        store: a folder or a URL, as in `rollcage.open_store`. It need not exist yet.
        authority: authenticates users; nobody else sees anything.
        hosts: the names of the server, besides `localhost`.
        viewers: how many may follow live runs at once.

    Raises:
        StoreInvalid: the URL names no store.
    """
    stores = Stores(store)
    stores.open()
    app = FastAPI(
        title="Rollcage",
        version=metadata.version("rollcage-server"),
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    for each in _ROUTES:
        app.router.routes.extend(each.router.routes)
    hub = Hub(stores.get, renderer(rows), most=viewers)
    sessions = Sessions(lambda: hmac.digest(stores.key(), b"rollcage server", "sha256"), stores.get)
    app.state.means = Services(stores, authority, sessions, hub)
    app.add_exception_handler(RollcageError, _error_of_page)
    app.add_exception_handler(HTTPException, _error_of_page)
    app.add_exception_handler(RequestValidationError, _error_of_page)
    app.add_exception_handler(Exception, _error_of_page)
    app.add_middleware(Shield, hosts=tuple(hosts))
    return check_all_ruled(app)


def _error_of_page(request: Request, error: Exception) -> Response:
    """Return an error in its reader's form: JSON for programs, a page for people."""
    code, status, message, headers = _what(request, error)
    for_page = not request.url.path.startswith("/api/")
    if isinstance(error, Unauthenticated) and for_page and request.method == "GET":
        return RedirectResponse(f"/login?next={quote(request.url.path)}", 303)
    if for_page:
        answer: Response = page(request, "error.html", None, status, code=code, message=message)
    else:
        answer = Data({"error": {"code": code, "message": message}}, status)
    for name, value in headers.items():
        answer.headers[name] = value
    return answer


def _what(request: Request, error: Exception) -> tuple[str, int, str, dict[str, str]]:
    """Return the code of an error, its status, its text and its headers."""
    asking: Any = getattr(request.state, "asking", None)
    match error:
        case RollcageError():
            status = status_of(error)
            headers = {"Retry-After": "5"} if status == 503 else {}
            if status == 401:
                headers["WWW-Authenticate"] = "Bearer"
            # Its text may quote a value, or name something in the store.
            known = asking is not None and asking.who.may(Right.VALUES)
            public = known or error.__class__.__module__.startswith("rollcage_server.")
            message = str(error) if public else error.code.replace("_", " ")
            if status == 503 and not public:
                message = (
                    "the store can't be reached, and pages that are open show old data. Try again"
                )
            return error.code, status, message, headers
        case HTTPException():
            return "http", error.status_code, str(error.detail), dict(error.headers or {})
        case RequestValidationError():
            first: Any = error.errors()[0]
            at = ".".join(map(str, first["loc"]))
            return "bad_request", 422, f"{at}: {first['msg']}", {}
        case _:
            _log.error("a request failed", exc_info=error)
            return (
                "unexpected",
                500,
                "something unexpected happened; the server's log says what",
                {},
            )
