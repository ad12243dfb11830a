"""The routes of actions: below `/api/v1` with JSON, and for the forms of pages."""

from __future__ import annotations

import inspect
from typing import Any
from urllib.parse import urlencode

import orjson
from fastapi import Request
from pydantic import ValidationError
from rollcage_views.html import UndoRow, undo_rows
from starlette.responses import RedirectResponse, Response

from rollcage_server import reading, undoing
from rollcage_server.access import Asking, AskingNow, Form, Routes
from rollcage_server.actions import ACTIONS, Action, carried_out
from rollcage_server.api import Data
from rollcage_server.errors import BadRequest
from rollcage_server.reading import check_run
from rollcage_server.rendering import page
from rollcage_server.roles import Right

__all__ = ["body_of", "link_of", "steering", "steering_api"]

steering = Routes()
steering_api = Routes("/api/v1", documented=True)


def _by_json(action: Action) -> Any:
    """Return the endpoint of an action with JSON."""
    name = action.path.split("{")[1].split("}")[0]

    def endpoint(asking: Asking, target: str, body: Any) -> Response:
        done = carried_out(action, asking, target, body)
        return Data(done, 202 if done.get("outcome") == "waiting" else 200)

    def called(**given: Any) -> Response:
        return endpoint(given["asking"], given[name], given["body"])

    parameters = (("asking", AskingNow), (name, str), ("body", action.body))
    called.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(each, inspect.Parameter.KEYWORD_ONLY, annotation=kind)
         for each, kind in parameters]
    )  # fmt: skip
    called.__name__ = f"{action.of}_{action.name}".replace("-", "_")
    called.__doc__ = f"{action.name} ({action.of})"
    return called


def _by_form(action: Action) -> Any:
    """Return the endpoint of an action with a form."""

    def called(asking: AskingNow, target: str) -> Response:
        done = carried_out(action, asking, target, body_of(action.body, asking.form))
        if action.name in ("undo", "undo-plan"):
            return RedirectResponse(link_of(f"/runs/{target}/undo", command=done["command"]), 303)
        back = "/inbox" if action.of == "approvals" else f"/runs/{target}"
        return RedirectResponse(back, 303)

    called.__name__ = f"form_{action.of}_{action.name}".replace("-", "_")
    return called


def link_of(path: str, **query: str) -> str:
    """Return the address of a page."""
    return f"{path}?{urlencode(query)}"


def body_of(kind: type[Any], form: Form) -> Any:
    """Return a form's data: fields that end in `_json` hold JSON, empty ones are left out.

    Raises:
        BadRequest: the data do not fit the action.
    """
    fields: dict[str, Any] = {}
    for name, text in form.items():
        if name == "csrf" or text == "":
            continue
        if name.endswith("_json"):
            try:
                fields[name.removesuffix("_json")] = orjson.loads(text)
            except orjson.JSONDecodeError as error:
                raise BadRequest(
                    f"{name.removesuffix('_json')} is not JSON: {error}; a text is written "
                    f"'\"in quotes\"'"
                ) from None
        else:
            fields[name] = text
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        at = ".".join(map(str, first["loc"]))
        raise BadRequest(f"{at}: {first['msg']}") from None


for _each in ACTIONS:
    steering_api.post(_each.path, _each.right)(_by_json(_each))
    steering.post(_each.path.replace("{approval}", "{target}").replace("{run}", "{target}"),
                  _each.right)(_by_form(_each))  # fmt: skip


@steering_api.get("/runs/{run}/commands/{key}", Right.VALUES)
def command(asking: AskingNow, run: str, key: str) -> Response:
    """Return the state of a command: the plan of an undo, or its result."""
    return Data(undoing.answer(asking.store, run, key))


@steering.get("/runs/{run}/undo", Right.VALUES)
def undo(request: Request, asking: AskingNow, run: str, command: str = "") -> Response:
    """Return the plan of an undo, to confirm; and its result."""
    asking.store.ends(check_run(run))
    answered = undoing.answer(asking.store, run, command) if command else None
    rows: list[UndoRow] = []
    if answered is not None and answered["data"]:
        seen = reading.whole(asking.store, run)
        rows = undo_rows(answered["data"], seen, asking.who.viewer)
    return page(request, "undo.html", asking, run=run, answered=answered, rows=rows)
