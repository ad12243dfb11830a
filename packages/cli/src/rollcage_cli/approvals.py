"""`rollcage approvals`, `approve`, `reject` and `respond`: the durable queue of approvals."""

from __future__ import annotations

from time import time_ns
from typing import Annotated, Any, Final, cast

import typer
from rich.text import Text
from rollcage import Approval, ApprovalCorrupt, ApprovalInvalid
from rollcage.trace import TAG
from rollcage_views import Requests, queued_data, time_text
from rollcage_views.requests import Queued

from rollcage_cli.errors import CORRUPT, UsageError
from rollcage_cli.lookup import named, opened
from rollcage_cli.options import DEFAULT_STORE, OFF, JsonOption, StoreOption, json_given, who
from rollcage_cli.output import arguments_text, console, print_json, value_text, visible
from rollcage_cli.table import Table

__all__ = ["approvals", "approve", "reject", "respond"]

_WIDE: Final = 100  # columns from which on the requester and the expiry have room

_STYLES = {"waiting": "yellow", "decided": "green", "expired": "red", "damaged": "red"}

IdArgument = Annotated[
    str,
    typer.Argument(metavar="ID", help="A request's id, or its beginning.", show_default=False),
]
ByOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="Who does this (by default, this user).")
]
ReasonOption = Annotated[str | None, typer.Option(metavar="TEXT", help="Why.")]


def approvals(
    approval: Annotated[
        str | None,
        typer.Argument(metavar="[ID]", help="One request, in full.", show_default=False),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Also expired requests.")] = OFF,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = OFF,
) -> None:
    """List the calls that wait for approval, oldest first.

    A request that was changed or damaged is marked: its call does not run.
    """
    own = opened(store)
    queue = Requests(own)
    if approval is not None:
        _one(queue, _id(queue, approval), as_json=as_json)
        return
    found, damaged = _read(queue)
    now = time_ns() // 1000
    shown = [each for each in found if every or each.state(now) in ("waiting", "decided")]
    if as_json:
        requests = [queued_data(each, now) for each in shown]
        print_json({"store": named(own, store), "approvals": requests, "damaged": damaged})
    else:
        _list(shown, damaged, now)
    if damaged:
        raise typer.Exit(CORRUPT)


def approve(
    approval: IdArgument,
    edit: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="All the arguments to run it with instead."),
    ] = None,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=JSON", help="One argument to change."),
    ] = None,
    reason: ReasonOption = None,
    by: ByOption = None,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = OFF,
) -> None:
    """Let a call run, once, optionally with other arguments.

    Edited arguments make a different call: its tool's schema validates them and the policy decides
    about the call when the run comes to it. Arguments that hold a secret can't be edited.
    """
    queue = Requests(opened(store))
    name = _id(queue, approval)
    args = _edited(queue, name, edit, change or [])
    _decide(queue, name, Approval(True, who(by), reason or "", args), as_json=as_json)


def reject(
    approval: IdArgument,
    reason: ReasonOption = None,
    by: ByOption = None,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = OFF,
) -> None:
    """Reject a call; the model reads the reason."""
    queue = Requests(opened(store))
    decision = Approval.reject(reason or "", by=who(by, required=False))
    _decide(queue, _id(queue, approval), decision, as_json=as_json)


def respond(
    approval: IdArgument,
    value: Annotated[
        str, typer.Option(metavar="JSON", help="The result that the call gets.", show_default=False)
    ],
    reason: ReasonOption = None,
    by: ByOption = None,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = OFF,
) -> None:
    """Answer a call in place of its tool, which then does not run."""
    queue = Requests(opened(store))
    decision = Approval.respond(json_given("--value", value), by=who(by), reason=reason or "")
    _decide(queue, _id(queue, approval), decision, as_json=as_json)


# --- deciding ------------------------------------------------------------------------------------


def _decide(queue: Requests, approval: str, decision: Approval, *, as_json: bool) -> None:
    queued = queue.decide(approval, decision)
    if as_json:
        print_json(queued_data(queued, time_ns() // 1000))
        return
    out = console()
    text = Text(f"{visible(queued.request.name)} is {decision.decision}", style="green")
    out.print(text.append(f" by {visible(decision.by)}" if decision.by else ""), soft_wrap=True)
    out.print(f"The next session that resumes run {queued.request.run} applies that.")


def _edited(
    queue: Requests, approval: str, edit: str | None, changes: list[str]
) -> dict[str, Any] | None:
    """Return the arguments given by the options; None without any."""
    if edit is None and not changes:
        return None
    queued = queue.get(approval)
    if queued is None:
        raise ApprovalInvalid(f"there is no request {approval}")
    shown = dict(queued.request.args)
    args: Any = shown if edit is None else json_given("--edit", edit)
    if not isinstance(args, dict):
        raise UsageError("--edit is not a JSON object: pass all the arguments, by name")
    made = dict(cast("dict[str, Any]", args))
    for change in changes:
        name, equals, value = change.partition("=")
        if not equals:
            raise UsageError(f"--set {visible(change)} is not NAME=JSON")
        made[name] = json_given(f"--set {visible(name)}", value)
    for name, value in made.items():
        if _is_secret(shown.get(name)) and value != shown[name]:
            raise UsageError(f"argument {visible(name)} holds a secret: it can't be edited")
    return made


def _is_secret(value: Any) -> bool:
    return isinstance(value, dict) and cast("dict[str, Any]", value).get(TAG) == "secret"


def _id(queue: Requests, part: str) -> str:
    """Return the one request whose id begins so."""
    ids = queue.ids()
    if part in ids:
        return part
    found = [each for each in ids if part and each.startswith(part.lower())]
    if not found:
        raise ApprovalInvalid(
            f"no request begins with {visible(part)!r}; `rollcage approvals` lists them"
        )
    if len(found) > 1:
        raise ApprovalInvalid(f"{visible(part)!r} means {len(found)} requests: {', '.join(found)}")
    return found[0]


# --- showing -------------------------------------------------------------------------------------


def _read(queue: Requests) -> tuple[list[Queued], dict[str, str]]:
    """Return all requests, oldest first, and the untrusted ones with the reason."""
    found: list[Queued] = []
    damaged: dict[str, str] = {}
    for name in queue.ids():
        try:
            queued = queue.get(name)
        except ApprovalCorrupt as error:
            damaged[name] = str(error)
            continue
        if queued is not None:
            found.append(queued)
    return sorted(found, key=lambda each: (each.request.at, each.id)), damaged


def _one(queue: Requests, approval: str, *, as_json: bool) -> None:
    queued, now = queue.get(approval), time_ns() // 1000
    if queued is None:
        raise ApprovalInvalid(f"there is no request {approval}")
    if as_json:
        print_json(queued_data(queued, now))
        return
    out, request, decision = console(), queued.request, queued.decision
    lines = {
        "id": queued.id,
        "state": queued.state(now),
        "call": f"{request.name}({arguments_text(request.args)})",
        "why": f"{request.verdict.reason} ({request.verdict.rule})",
        "run": f"{request.run}, turn {request.turn}, slot {request.slot}",
        "asked by": request.requested_by,
        "asked": time_text(request.at),
        "expires": time_text(request.expires),
    }
    if decision is not None:
        lines["decision"] = f"{decision.decision} by {decision.by}, {time_text(queued.decided_at)}"
        if decision.reason:
            lines["reason"] = decision.reason
        if decision.args is not None:
            lines["edited"] = arguments_text(decision.args)
        if decision.response is not None:
            lines["response"] = value_text(decision.response.value)
    if queued.use:
        lines["use"] = queued.use
    for title, text in lines.items():
        out.print(Text(f"{title:<9} {visible(text)}"), soft_wrap=True)


def _list(shown: list[Queued], damaged: dict[str, str], now: int) -> None:
    out = console()
    if not shown and not damaged:
        out.print("Nothing waits for approval.")
        return
    every = ("id", "state", "call", "why", "asked by", "expires")
    titles = every if out.width >= _WIDE else every[:4]
    table = Table()
    for title in titles:
        table.add_column(title, no_wrap=title not in ("call", "why"))
    for each in shown:
        request, state = each.request, each.state(now)
        cells = (
            Text(each.id),
            Text(state, style=_STYLES.get(state, "")),
            Text(f"{visible(request.name)}({arguments_text(request.args)})"),
            Text(visible(request.verdict.reason)),
            Text(visible(request.requested_by)),
            Text(time_text(request.expires)),
        )
        table.add_row(*cells[: len(titles)])
    if shown:
        out.print(table)
    for why in damaged.values():
        out.print(Text("damaged: ", style=_STYLES["damaged"]).append(visible(why)), soft_wrap=True)
