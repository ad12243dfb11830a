"""How somebody is asked to approve a call, and what becomes of the answer: parts of flows.

Whatever goes wrong here denies: the call then counts as refused, with a code that says why.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any, Final, NoReturn

import orjson

from rollcage.contract.arguments import Arguments
from rollcage.errors import ArgumentsInvalid, ForkEnded, NotReplayable, StoreError, Unencodable
from rollcage.fingerprint.identity import idempotency_key
from rollcage.gate import (
    Approval,
    ApprovalRequest,
    AskContext,
    Pending,
    Refusal,
    Response,
    Verdict,
    judged,
)
from rollcage.replay.path import Entry
from rollcage.step.call import Call, Progress
from rollcage.step.capture import LARGE, Setting, keep_large, revived
from rollcage.step.requests import (
    BeginAsking,
    Consult,
    EndAsking,
    Note,
    Raised,
    Request,
    Returned,
    Stop,
)
from rollcage.trace import constructors as make
from rollcage.undo.compensation import holds_secret
from rollcage.values.codec import encode, encode_result
from rollcage.values.copies import own_copy
from rollcage.values.decoding import decode

__all__ = ["approved", "changed", "edited_again", "in_place"]

_ID: Final = 16  # hex digits of an idempotency key that name a request
_SORT: Final = orjson.OPT_SORT_KEYS

VerdictFlow = Generator[Request, Any, tuple[Verdict, BaseException | None]]


class _Unusable(Exception):
    """A decision that can't be used, with its refusal."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.refusal = Refusal(code, reason)


def approved(
    progress: Progress, verdict: Verdict, asked: AskContext, setting: Setting
) -> VerdictFlow:
    """Ask; the verdict after that, or the pause that ends this attempt.

    The call is then the one that was approved: with other arguments, or a person's answer.
    """
    ask = progress.ask
    assert ask is not None
    request = _request(progress, verdict, asked, setting)
    progress.consent = progress.consent._replace(request=request)
    yield from _announced(progress, request)
    answer: Returned | Raised = yield Consult(
        ask.approver, "the approver", (request,), here=bool(ask.pauses)
    )
    if isinstance(answer, Raised):
        if isinstance(answer.error, ask.pauses) or not isinstance(answer.error, Exception):
            return verdict, answer.error
        reply: Approval | Pending | Refusal = _failed(answer.error)
    else:
        reply = judged(answer.value, request, setting.terms())
    if isinstance(reply, Pending):
        progress.consent = progress.consent._replace(waits=reply.message)
        return verdict, None
    if isinstance(reply, Approval):
        try:
            return (yield from _followed(progress, request, reply, setting)), None
        except _Unusable as unusable:
            reply = unusable.refusal._replace(reason=f"the approval can't be used: {unusable}")
    yield from _decided(request, "refused", code=reply.code, reason=reply.reason)
    return Verdict("deny", reply.reason, reply.code, verdict.rule), None


def edited_again(
    progress: Progress, verdict: Verdict, entry: Entry, setting: Setting
) -> VerdictFlow:
    """Give a call the arguments that it was recorded with after an approver had edited them.

    The gate decides on those: a deny wins over what is recorded.
    """
    reason = "with these arguments, it is another call now"
    try:
        given = yield from revived(entry.args)
        arguments = _merged(progress, given, setting)
    except (ValueError, _Unusable) as error:
        arguments, reason = None, str(error)
    if arguments is not None:
        yield from _edit(progress, arguments)
        if progress.call.key.hex() == entry.key:
            now = setting.decide(progress)
            asks = verdict.decision == "ask" and now.decision != "deny"
            return verdict if asks else now, None
    halt = NotReplayable(
        f"step {entry.step} of run {entry.run} ({entry.name}) ran with arguments that an approver "
        f"had edited, and can't be replayed: {reason}"
    )
    yield Stop(halt)
    return Verdict("deny", str(halt), halt.code), halt


def changed(progress: Progress, given: Mapping[str, Any], setting: Setting) -> VerdictFlow:
    """Give a call the arguments that a fork has for it; those that are not named stay.

    The gate decides on the changed call.
    """
    call, reason = progress.call, "its arguments can't be changed here"
    if call.kind == "tool" and (call.instead is None or call.instead.edited is not None):
        reason = "these are the arguments that it had"
        canonical = dict(call.arguments.canonical)
        try:
            for name, value in given.items():
                canonical[name] = encode(value, setting.seal, path=f"args.{name}")
            yield from _edit(progress, _merged(progress, canonical, setting))
        except (Unencodable, _Unusable) as error:
            reason = str(error)
    if progress.is_edited:
        return setting.decide(progress), None
    halt = ForkEnded(f"the fork can't call {call.contract.name} like that: {reason}", "halted")
    yield Stop(halt)
    return Verdict("deny", str(halt), halt.code), halt


def in_place(call: Call, value: Any, setting: Setting) -> Any:
    """An answer in place of a tool, as the tool would give it.

    Raises:
        ValueError: it gives no such value, and why.
    """
    if call.kind == "model":
        if call.contract.framework:
            raise ValueError("the answer of a framework's model can't be made of data")
        return value
    try:
        return _answer(call, value, setting)
    except _Unusable as unusable:
        raise ValueError(str(unusable)) from None


# --- asking --------------------------------------------------------------------------------------


def _request(
    progress: Progress, verdict: Verdict, asked: AskContext, setting: Setting
) -> ApprovalRequest:
    call = progress.call
    identity = idempotency_key(setting.root, asked.branch, asked.fingerprint, setting.epoch)
    terms = setting.terms()
    return ApprovalRequest(
        kind=call.kind,
        name=call.contract.name,
        args=own_copy(progress.compared),
        agent=call.agent,
        call_id=call.call_id,
        key=call.key.hex(),
        verdict=verdict,
        id=identity[:_ID],
        idempotency_key=identity,
        policy=terms.policy,
        run=asked.run,
        root=setting.root,
        branch=asked.branch,
        turn=asked.turn,
        slot=asked.slot,
        requested_by=terms.requested_by,
        at=asked.at,
        expires=asked.at + int(terms.expires * 1_000_000),
    )


def _announced(progress: Progress, request: ApprovalRequest) -> Generator[Request, Any, None]:
    """Record that somebody is asked: once, however often a framework makes the call again."""
    fresh: bool = yield BeginAsking(request.id)
    if not fresh:
        return
    yield Note(
        make.approval_requested(
            id_=request.id,
            idempotency_key=request.idempotency_key,
            policy=request.policy,
            kind=request.kind,
            name=request.name,
            version=progress.call.contract.version,
            args=progress.shown,
            key=request.key,
            branch=request.branch,
            turn=request.turn,
            slot=request.slot,
            agent=request.agent,
            call_id=request.call_id,
            verdict=request.verdict.as_data(),
            requested_by=request.requested_by,
            expires=request.expires,
        )
    )


def _decided(
    request: ApprovalRequest, decision: str, *, by: str = "", **more: Any
) -> Generator[Request, Any, None]:
    """Record the decision."""
    yield EndAsking(request.id)
    yield Note(
        make.approval_decided(
            id_=request.id,
            idempotency_key=request.idempotency_key,
            policy=request.policy,
            decision=decision,
            by=by,
            **more,
        )
    )


def _failed(error: Exception) -> Refusal:
    """An approver that raised; the text of its error may hold anything, and is left out."""
    name = type(error).__name__
    code = "approval_unavailable" if isinstance(error, (StoreError, OSError)) else "approver_failed"
    return Refusal(code, f"the approver failed: {name}")


# --- following the answer ------------------------------------------------------------------------


def _followed(
    progress: Progress, request: ApprovalRequest, reply: Approval, setting: Setting
) -> Generator[Request, Any, Verdict]:
    """Change the call as decided; its verdict then."""
    call = progress.call
    more: dict[str, Any] = {}
    progress.decide(approval=request.id)
    if reply.decision == "rejected":
        progress.decide(rejected_by=reply.by)
        yield from _decided(request, reply.decision, by=reply.by, reason=reply.reason)
        reason = reply.reason or "the call was not approved"
        return Verdict("deny", reason, "approval_rejected", request.verdict.rule)
    if reply.args is not None:
        if call.kind != "tool" or (call.instead is not None and call.instead.edited is None):
            _refuse("approval_edit_unsupported", "its arguments can't be edited here")
        yield from _edit(progress, _merged(progress, reply.args, setting))
        more = {"args": progress.shown, "key": progress.call.key.hex()}
    elif reply.response is None and progress.has_changed(setting.seal):
        _refuse("approval_other_call", "its arguments changed while somebody was asked")
    elif reply.response is not None:
        progress.answer(Response(_answer(call, reply.response.value, setting)))
    progress.decide(approved_by=reply.by)
    yield from _decided(request, reply.decision, by=reply.by, reason=reply.reason, **more)
    progress.consent = progress.consent._replace(approved=reply)
    if reply.response is not None:
        return request.verdict
    now = setting.decide(progress)
    return now if now.decision == "deny" else request.verdict  # whoever has approved it


def _edit(progress: Progress, arguments: Arguments) -> Generator[Request, Any, None]:
    progress.edit(arguments)
    if len(arguments.digest_input) >= LARGE:
        progress.shown = progress.compared = yield from keep_large(arguments.canonical)


def _merged(progress: Progress, given: Mapping[str, Any], setting: Setting) -> Arguments:
    """The arguments with which an approver lets a call run; those that are not edited stay.

    Secrets were not shown, so they are kept, and can't be edited.
    """
    call = progress.call
    old = call.arguments
    raw: dict[str, Any] = {}
    kept: set[str] = set()
    for name, value in given.items():
        if call.contract.framework and name not in {*call.contract.parameter_names, *old.values}:
            _refuse("approval_edit_invalid", f"it has no argument {name!r}")  # frameworks drop it
        shown = [part[name] for part in (old.canonical, progress.compared) if name in part]
        if name in old.values and any(_same(value, each) for each in shown):
            raw[name] = old.values[name]
            kept.add(name)
            continue
        try:
            raw[name] = decode(value)
        except ValueError as error:
            _refuse("approval_edit_invalid", f"argument {name}: {error}")
    for name, value in old.canonical.items():
        if holds_secret(value) and name not in raw:
            raw[name] = old.values[name]
            kept.add(name)
    try:
        arguments = call.contract.bind(raw, setting.seal)
    except ArgumentsInvalid as error:
        _refuse("approval_edit_invalid", str(error))
    for name, value in arguments.canonical.items():
        same = name in old.canonical and _same(value, old.canonical[name])
        if holds_secret(value) and not same:
            _refuse("approval_edit_secret", f"argument {name} holds a secret: it can't be edited")
        if name in kept and not same:
            _refuse("approval_edit_invalid", f"argument {name} is changed, but was not edited")
    return arguments


def _answer(call: Call, value: Any, setting: Setting) -> Any:
    """A person's answer in place of the tool, in the form of the tool's own result."""
    contract, instead = call.contract, call.instead
    code = "approval_response_invalid"
    if call.kind != "tool" or (instead is not None and instead.answered is None):
        _refuse(code, "it can't be answered in place of the tool")
    try:
        if instead is not None and instead.answered is not None:
            value = instead.answered(value)
        elif contract.typed:
            value = contract.revive(value)
        flaws = encode_result(value, setting.seal, typed=contract.typed).flaws
        if contract.promise is not None:
            drift = contract.promise.broken_by(value, setting.seal)
            flaws = flaws if drift is None else [drift.reason]
    except Exception as error:  # noqa: BLE001 - validators of the user's own
        _refuse(code, f"{contract.name} gives no such result: {type(error).__name__}")
    if flaws:
        _refuse(code, f"it can't be kept: {flaws[0]}")
    return value


def _refuse(code: str, reason: str) -> NoReturn:
    raise _Unusable(code, reason)


def _same(one: Any, other: Any) -> bool:
    """Whether two values are the same JSON, in whatever order their keys are."""
    try:
        return orjson.dumps(one, option=_SORT) == orjson.dumps(other, option=_SORT)
    except (TypeError, RecursionError):
        return False
