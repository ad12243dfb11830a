"""The actions on runs and approvals: each requires a right and writes lines to the audit log.

An action is one function, which the API calls with JSON and pages call with a form.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Literal

import orjson
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue
from rollcage import Approval, RollcageError, abandon_run, resolve_step
from rollcage.errors import ApprovalInvalid, OrderRefused, StoreError
from rollcage.gate import holds_secret
from rollcage.stages import orders
from rollcage_views import Requests, queued_data

from rollcage_server import undoing
from rollcage_server.access import Asking
from rollcage_server.errors import BadRequest
from rollcage_server.reading import check_run
from rollcage_server.roles import Right

__all__ = ["ACTIONS", "Action", "Body", "carried_out"]

_LONGEST: Final = 3000  # bytes of a text, as JSON: so much fits into each store, in any script


def _kept(text: str) -> str:
    if len(orjson.dumps(text.encode("utf-8", "replace").decode())) > _LONGEST:
        raise ValueError(f"it takes more than {_LONGEST:,} bytes: use fewer words")
    return text


Text = Annotated[str, Field(max_length=2000), AfterValidator(_kept)]


class Body(BaseModel):
    """The body of an action's request."""

    model_config = ConfigDict(extra="forbid")


class Reason(Body):
    """Why."""

    reason: Text = ""


class Approving(Reason):
    """An approval of a call, unchanged or with other arguments."""

    args: dict[str, JsonValue] | None = None


class Responding(Reason):
    """The answer to a call in place of its tool's result."""

    value: JsonValue


class Resolving(Body):
    """The resolution of a step."""

    step: int = Field(ge=1)
    happened: bool
    result: JsonValue = None
    given: bool = Field(True, description="False: nothing is known of its result")


@dataclasses.dataclass(frozen=True, slots=True)
class Action:
    """An action.

    Attributes:
        name: its name in the audit log, and the end of its path.
        of: the kind of its target; the part of its path before the id.
        right: the right that it requires.
        body: the model of its request's body.
        do: carries it out; its result is the answer.
    """

    name: str
    of: Literal["approvals", "runs"]
    right: Right
    body: type[BaseModel]
    do: Callable[[Asking, str, Any], Mapping[str, Any]]

    @property
    def path(self) -> str:
        """Its path."""
        return f"/{self.of}/{{{'approval' if self.of == 'approvals' else 'run'}}}/{self.name}"


def carried_out(action: Action, asking: Asking, target: str, body: BaseModel) -> Mapping[str, Any]:
    """Carry out an action, and log its beginning and its result.

    Raises:
        RollcageError: the action was refused, or can't be carried out.
    """
    return audited(asking, action.name, target, lambda: action.do(asking, target, body))


def audited(
    asking: Asking, name: str, target: str, do: Callable[[], Mapping[str, Any]]
) -> Mapping[str, Any]:
    """Do something between two lines of the audit log.

    Raises:
        RollcageError: it was refused, or failed; or it can't be logged, and then it is not done.
    """
    role = asking.who.role_for(asking.right)
    asking.audit.add(asking.who, role, name, target, "begun")
    try:
        done = do()
    except RollcageError as error:
        refused = isinstance(error, OrderRefused) or not isinstance(error, StoreError)
        outcome = "refused" if refused else "failed"
        asking.audit.add(asking.who, role, name, target, outcome, error.code)
        raise
    except Exception:
        asking.audit.add(asking.who, role, name, target, "failed", "unexpected")
        raise
    asking.audit.add(asking.who, role, name, target, "done")
    return done


# --- approvals -----------------------------------------------------------------------------------


def _approve(asking: Asking, approval: str, body: Approving) -> Mapping[str, Any]:
    if body.args is not None:
        _check_secrets_stay(asking, approval, body.args)
    return _decide(asking, approval, Approval(True, asking.who.name, body.reason, body.args))


def _respond(asking: Asking, approval: str, body: Responding) -> Mapping[str, Any]:
    verdict = Approval.respond(body.value, by=asking.who.name, reason=body.reason)
    return _decide(asking, approval, verdict)


def _reject(asking: Asking, approval: str, body: Reason) -> Mapping[str, Any]:
    return _decide(asking, approval, Approval.reject(body.reason, by=asking.who.name))


def _decide(asking: Asking, approval: str, verdict: Approval) -> Mapping[str, Any]:
    now = time.time_ns() // 1000
    return queued_data(Requests(asking.store).decide(_id(approval), verdict, now=now), now)


def _check_secrets_stay(asking: Asking, approval: str, args: Mapping[str, Any]) -> None:
    queued = Requests(asking.store).get(_id(approval))
    shown = {} if queued is None else queued.request.args
    for name, value in shown.items():
        if holds_secret(value) and args.get(name, value) != value:
            raise BadRequest(f"argument {name} holds a secret: it can't be edited")


def _id(approval: str) -> str:
    """Return the id of a request, from a path."""
    if not approval.replace("-", "").isalnum() or len(approval) > 32 or not approval.isascii():
        raise ApprovalInvalid("there is no such request")
    return approval


# --- runs ----------------------------------------------------------------------------------------


def _stop(asking: Asking, run: str, body: Reason) -> Mapping[str, Any]:
    orders.stop_run(asking.store, check_run(run), by=asking.who.name, reason=body.reason)
    return {"run": run, "stopped": True}


def _lift(asking: Asking, run: str, _: Body) -> Mapping[str, Any]:
    orders.lift_stop(asking.store, check_run(run))
    return {"run": run, "stopped": False}


def _pause(asking: Asking, run: str, body: Reason) -> Mapping[str, Any]:
    orders.pause_run(asking.store, check_run(run), by=asking.who.name, reason=body.reason)
    return {"run": run, "paused": True}


def _unpause(asking: Asking, run: str, _: Body) -> Mapping[str, Any]:
    orders.unpause_run(asking.store, check_run(run))
    return {"run": run, "paused": False}


def _resolve(asking: Asking, run: str, body: Resolving) -> Mapping[str, Any]:
    given: dict[str, Any] = {"result": body.result} if body.happened and body.given else {}
    name = asking.who.name
    found = resolve_step(
        asking.store, check_run(run), body.step, happened=body.happened, by=name, **given
    )
    outcome: dict[str, Any] = {"status": "not_started"}
    if body.happened:
        outcome = {"status": "ok", "value": given.get("result")}
    return {"run": run, "step": body.step, "name": found.name, "outcome": outcome}


def _abandon(asking: Asking, run: str, body: Reason) -> Mapping[str, Any]:
    abandon_run(asking.store, check_run(run), by=asking.who.name, reason=body.reason)
    return {"run": run, "abandoned": True}


ACTIONS: Final = (
    Action("approve", "approvals", Right.DECIDE, Approving, _approve),
    Action("respond", "approvals", Right.DECIDE, Responding, _respond),
    Action("reject", "approvals", Right.DECIDE, Reason, _reject),
    Action("stop", "runs", Right.OPERATE, Reason, _stop),
    Action("lift", "runs", Right.OPERATE, Body, _lift),
    Action("pause", "runs", Right.OPERATE, Reason, _pause),
    Action("unpause", "runs", Right.OPERATE, Body, _unpause),
    Action("resolve", "runs", Right.OPERATE, Resolving, _resolve),
    Action("abandon", "runs", Right.OPERATE, Reason, _abandon),
    Action("undo-plan", "runs", Right.OPERATE, undoing.Planning, undoing.plan),
    Action("undo", "runs", Right.OPERATE, undoing.Confirming, undoing.confirm),
)
"""All actions on approvals and runs."""
