"""Routes and the right that each requires. A route that names no right does not exist."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, cast
from urllib.parse import parse_qs

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.routing import APIRoute
from rollcage import Store
from starlette.concurrency import run_in_threadpool

from rollcage_server.audit import Audit
from rollcage_server.auth import Authority, check_csrf
from rollcage_server.errors import BadRequest, Forbidden, Unauthenticated
from rollcage_server.events import Hub
from rollcage_server.roles import Principal, Right
from rollcage_server.sessions import COOKIE, Sessions, SignIn
from rollcage_server.stores import Stores

__all__ = [
    "Asking",
    "AskingNow",
    "Form",
    "FormNow",
    "Routes",
    "Services",
    "check_all_ruled",
    "means_of",
    "rights_of",
]

_SAFE: Final = ("GET", "HEAD")
_FIELDS: Final = 100  # of a form

Form = Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class Services:
    """The services of routes; `app.state.means`."""

    stores: Stores
    authority: Authority
    sessions: Sessions
    hub: Hub


@dataclasses.dataclass(frozen=True, slots=True)
class Asking:
    """One request, by a principal who holds the right that its route requires.

    Attributes:
        who: the principal.
        right: the right of the route.
        store: the store of the runs.
        form: the fields of a form.
        csrf: the token that forms of this session send; empty without a session.
    """

    who: Principal
    right: Right
    store: Store
    form: Form
    csrf: str

    @property
    def audit(self) -> Audit:
        """Return the log for actions."""
        return Audit(self.store)


def means_of(request: Request) -> Services:
    """Return the services of this request's application."""
    return cast("Services", request.app.state.means)


class Routes:
    """Routes, each with the right that it requires.

    Args:
        prefix: the prefix of their paths.
        documented: whether they are part of the published API.
    """

    def __init__(self, prefix: str = "", *, documented: bool = False) -> None:
        self.router = APIRouter(prefix=prefix)
        self._documented = documented

    def get(self, path: str, right: Right | None, **options: Any) -> Callable[[Any], Any]:
        """Add a route that shows something; `None` allows everybody."""
        return self._route("GET", path, right, options)

    def post(self, path: str, right: Right | None, **options: Any) -> Callable[[Any], Any]:
        """Add a route for an action."""
        return self._route("POST", path, right, options)

    def _route(
        self, method: str, path: str, right: Right | None, options: dict[str, Any]
    ) -> Callable[[Any], Any]:
        def add(endpoint: Any) -> Any:
            given = [] if right is None else [Depends(_needs(right))]
            self.router.add_api_route(
                path,
                endpoint,
                methods=[method],
                dependencies=given,
                include_in_schema=self._documented,
                openapi_extra={"x-rollcage-right": None if right is None else right.value},
                **options,
            )
            return endpoint

        return add


def rights_of(app: FastAPI) -> dict[tuple[str, str], Right | None]:
    """Return the right of each route, by method and path.

    Raises:
        AssertionError: a route names none.
    """
    found: dict[tuple[str, str], Right | None] = {}
    for route in app.routes:
        extra = getattr(route, "openapi_extra", None) or {}
        assert isinstance(route, APIRoute), f"{route!r} is no route that asks for a right"
        assert "x-rollcage-right" in extra, f"{route.path}: add it through Routes"
        right = extra["x-rollcage-right"]
        for method in route.methods or ():
            found[method, route.path] = None if right is None else Right(right)
    return found


def check_all_ruled(app: FastAPI) -> FastAPI:
    """Refuse to serve if a route names no right."""
    rights_of(app)
    return app


def _needs(right: Right) -> Callable[[Request], Any]:
    async def needs(request: Request) -> None:
        form = await _form(request)
        request.state.asking = await run_in_threadpool(_asking, request, right, form)

    return needs


def _asking(request: Request, right: Right, form: Form) -> Asking:
    means = means_of(request)
    who, session = _who(request, means)
    if session is not None and request.method not in _SAFE:
        if request.headers.get("origin") is None and not _is_same_origin(request):
            raise Forbidden("the request does not say from which site it comes")
        check_csrf(session, request.headers.get("x-csrf-token") or form.get("csrf", ""))
    if not who.may(right):
        named = ", ".join(sorted(who.roles)) or "none"
        raise Forbidden(f"this needs the right to {right.value}; the roles of {who.name}: {named}")
    store = means.stores.get()
    return Asking(who, right, store, form, "" if session is None else session.csrf)


def _who(request: Request, means: Services) -> tuple[Principal, SignIn | None]:
    given = request.headers.get("authorization")
    if given is not None:
        scheme, _, text = given.partition(" ")
        if scheme.lower() != "bearer":
            raise Unauthenticated("send the token as `Authorization: Bearer TOKEN`")
        return means.authority.bearer(text.strip()), None
    cookie = request.cookies.get(COOKIE)
    if cookie is None:
        raise Unauthenticated("sign in, or send a token as `Authorization: Bearer TOKEN`")
    session = means.authority.session(means.sessions, cookie)
    return session.principal, session


def _is_same_origin(request: Request) -> bool:
    return request.headers.get("sec-fetch-site") == "same-origin"


async def _form(request: Request) -> Form:
    """Return the fields of a form, the last of each name; none for other bodies."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if request.method in _SAFE or kind != "application/x-www-form-urlencoded":
        return {}
    try:
        text = (await request.body()).decode("ascii")
        found = parse_qs(text, keep_blank_values=True, max_num_fields=_FIELDS, errors="strict")
    except ValueError:
        raise BadRequest("the form can't be read") from None
    return {name: values[-1] for name, values in found.items()}


def _asking_now(request: Request) -> Asking:
    return cast("Asking", request.state.asking)


AskingNow = Annotated[Asking, Depends(_asking_now)]
"""The request that an endpoint serves."""

FormNow = Annotated[Form, Depends(_form)]
"""The form of a visitor who is not known yet."""
