"""Executions of workflows: their states, and commands for workers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field, JsonValue
from rollcage_views import Viewer
from rollcage_workflow import Execution, execution, executions
from rollcage_workflow.orders import Commands
from rollcage_workflow.signals import Signals
from starlette.responses import RedirectResponse, Response

from rollcage_server.access import Asking, AskingNow, Routes
from rollcage_server.actions import audited
from rollcage_server.api import Data, Limit
from rollcage_server.drawing import drawing_of, outline_of
from rollcage_server.errors import NotFound
from rollcage_server.reading import PAGE
from rollcage_server.rendering import page
from rollcage_server.roles import Right
from rollcage_server.steering import body_of, link_of

__all__ = ["workflows", "workflows_api"]

workflows = Routes()
workflows_api = Routes("/api/v1", documented=True)

Id = Annotated[str, Field(min_length=1, max_length=500)]


class Named(BaseModel):
    """An execution's id."""

    model_config = ConfigDict(extra="forbid")

    id: Id
    reason: Annotated[str, Field(max_length=2000)] = ""


class Starting(Named):
    """The start of an execution."""

    plan: Id
    inputs: dict[str, JsonValue] = Field(default_factory=dict)


class Signalling(Named):
    """The data of a signal."""

    name: Annotated[str, Field(min_length=1, max_length=64)]
    data: JsonValue = None
    once: Annotated[str, Field(max_length=200)] = ""


class Cancelling(Named):
    """The cancellation of an execution."""

    rollback: bool = False


def _start(asking: Asking, body: Starting) -> Mapping[str, Any]:
    commands = Commands(asking.store)
    return {"started": commands.start(body.plan, body.inputs, id=body.id, by=asking.who.name)}


def _pause(asking: Asking, body: Named) -> Mapping[str, Any]:
    _known(asking, body.id)
    Commands(asking.store).pause(body.id, by=asking.who.name, reason=body.reason)
    return {}


def _resume(asking: Asking, body: Named) -> Mapping[str, Any]:
    _known(asking, body.id)
    Commands(asking.store).resume(body.id, by=asking.who.name)
    return {}


def _cancel(asking: Asking, body: Cancelling) -> Mapping[str, Any]:
    _known(asking, body.id)
    given: dict[str, Any] = {"reason": body.reason, "rollback": body.rollback}
    Commands(asking.store).cancel(body.id, by=asking.who.name, **given)
    return {}


def _signal(asking: Asking, body: Signalling) -> Mapping[str, Any]:
    _known(asking, body.id)
    signals = Signals(asking.store, body.id)
    return {"sent": signals.send(body.name, body.data, by=asking.who.name, once=body.once)}


Do = Callable[[Asking, Any], Mapping[str, Any]]
"""Gives an order, with the data of its form."""
_ORDERS: Final[Mapping[str, tuple[type[Named], Do]]] = {
    "start": (Starting, _start),
    "pause": (Named, _pause),
    "resume": (Named, _resume),
    "cancel": (Cancelling, _cancel),
    "signal": (Signalling, _signal),
}


def _carried_out(name: str, asking: Asking, body: Any) -> dict[str, Any]:
    """Give an order, and return the execution's state."""
    do = _ORDERS[name][1]
    done = audited(asking, f"workflow {name}", body.id, lambda: do(asking, body))
    return {**done, "execution": _data(execution(asking.store, body.id), asking.who.viewer)}


def _add(name: str, kind: Any) -> None:
    """Add the routes of an order: with JSON, and with a form."""

    def by_json(asking: AskingNow, body: Any) -> Response:
        return Data(_carried_out(name, asking, body))

    def by_form(asking: AskingNow) -> Response:
        body = body_of(kind, asking.form)
        _carried_out(name, asking, body)
        return RedirectResponse(link_of("/workflow", id=body.id), 303)

    by_json.__annotations__["body"] = kind
    by_json.__name__, by_form.__name__ = f"workflow_{name}", f"form_workflow_{name}"
    by_json.__doc__ = f"{name} an execution of a workflow"
    workflows_api.post(f"/workflows/{name}", Right.OPERATE)(by_json)
    workflows.post(f"/workflows/{name}", Right.OPERATE)(by_form)


for _name, (_kind, _) in _ORDERS.items():
    _add(_name, _kind)


@workflows_api.get("/workflows", Right.SEE)
def listed(asking: AskingNow, limit: Limit = PAGE) -> Response:
    """List executions, the newest first."""
    found = executions(asking.store, limit=limit)
    return Data({"executions": [_data(each, asking.who.viewer) for each in found]})


@workflows_api.get("/workflow", Right.SEE)
def told(asking: AskingNow, id: str) -> Response:  # noqa: A002 - what it is called everywhere
    """Return the state of an execution, with its steps."""
    found = _known(asking, id)
    viewer = asking.who.viewer
    steps = [dataclasses.asdict(each) for each in found.steps]
    outline = outline_of(asking.store, found, viewer)
    drawn = None if outline is None else outline.model_dump(mode="json", exclude_defaults=True)
    return Data(_data(found, viewer) | {"steps": steps, "outline": drawn})


@workflows.get("/workflows", Right.SEE)
def shown(request: Request, asking: AskingNow) -> Response:
    """Return the executions."""
    found = [_data(each, asking.who.viewer) for each in executions(asking.store, limit=PAGE)]
    return page(request, "workflows.html", asking, executions=found)


@workflows.get("/workflow", Right.SEE)
def one(request: Request, asking: AskingNow, id: str) -> Response:  # noqa: A002
    """Return an execution: its plan as a graph, and its steps with their states."""
    found = _known(asking, id)
    viewer, after = asking.who.viewer, None
    if found.status == "running":
        after = len(asking.store.read(found.run))
    return page(request, "workflow.html", asking, found=_data(found, viewer), after=after,
                drawing=drawing_of(asking.store, found, viewer), steps=found.steps)  # fmt: skip


def _known(asking: Asking, id: str) -> Execution:  # noqa: A002
    found = execution(asking.store, id)
    if not found.plan and Commands(asking.store).started(id) is None:
        raise NotFound("there is no such execution")
    return found


def _data(found: Execution, viewer: Viewer) -> dict[str, Any]:
    """Return an execution without its steps, for a viewer."""
    plain = ("id", "status", "plan", "digest", "run", "attempts", "began", "ended", "start")
    values = ("inputs", "output", "error", "waits", "sealed")
    return {name: getattr(found, name) for name in (*plain, *(values if viewer.values else ()))}
