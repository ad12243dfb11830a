"""Let a call wait for the decision that a guard asks for: now, or in another process a day later.

A waiting call is a step on record that has not begun: it has its place and its fingerprint. The id
of the request is made of these, so a resume asks about the same call under the same id, and an
undo, which gives the call another epoch, makes another request. `requested` and `decided` are lines
of the run; a decision from another process lies in the store (see `queue`) until the run's writer
puts it on record.

A decision belongs to a step: an edit changes the arguments of the body, not the key by which a
resume finds the step; a denial uses up its place. An approval is used up when the body has ended: a
call that runs again is asked about again, and a call that did not happen is not.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Callable, Generator, Mapping
from hashlib import sha256
from time import sleep
from typing import TYPE_CHECKING, Any, Final

import orjson

from rollcage.calls.beginning import let_go, refuse, reserve
from rollcage.calls.memory import put_back
from rollcage.calls.stage import Stage, Work
from rollcage.contract.compensation import holds_secret
from rollcage.errors import (
    ApprovalCorrupt,
    ApprovalInvalid,
    ApprovalRequired,
    ArgumentsInvalid,
    Blocked,
    Halt,
    NotReplayable,
    RollcageError,
    SessionError,
    SessionHalted,
    StoreError,
)
from rollcage.gate.approval import (
    DAY,
    Approval,
    ApprovalRequest,
    Approver,
    Pending,
    Refusal,
    Terms,
    judged,
    untimely,
)
from rollcage.gate.verdict import Verdict
from rollcage.replay.outcome import success
from rollcage.stages.queue import SKEW, ApprovalQueue
from rollcage.trace.run import Outcome
from rollcage.trace.threads import in_thread
from rollcage.undo.plan import consult
from rollcage.undo.program import take_back
from rollcage.values.decoding import decode

if TYPE_CHECKING:
    from rollcage.replay.call import Call, Match
    from rollcage.session.session import Session
    from rollcage.trace.run import Event, Step

__all__ = ["Approvals"]

_log: Final = logging.getLogger("rollcage")
_SOON: Final = 0.001  # seconds
_ID: Final = 16  # hex digits
_NO: Final = ("rejected", "refused")
_SORT: Final = orjson.OPT_SORT_KEYS


def later(_request: ApprovalRequest) -> Pending:
    """Leave a request to a person who decides later, in another process."""
    return Pending("nobody has decided yet")


class Approvals(Stage):
    """Let calls wait for a decision if a guard asks.

    Args:
        approver: decides, or returns `Pending`, which is the default. A nested session may have its
            own.
        approvers: the persons who may approve; None: anybody except the person for whom the run
            acts.
        expires: how long after its request an approval counts (seconds).
        pauses: exceptions by which a framework asks outside of the process: they are passed on, and
            the call goes on waiting at its place.
    """

    def __init__(
        self,
        approver: Approver | None = None,
        *,
        approvers: frozenset[str] | None = None,
        expires: float = DAY,
        pauses: tuple[type[BaseException], ...] = (),
    ) -> None:
        self.approver = approver or later
        self.approvers = approvers if approvers is None else frozenset(approvers)
        self.expires, self.pauses = expires, pauses
        self._halt: Halt | None = None
        self._queued: set[str] = set()
        self._actor = ""
        self._asked: dict[str, Event] = {}
        self._decided: dict[str, Event] = {}
        self._of: dict[int, str] = {}  # by step, the approval that it began with
        self._used: set[str] = set()
        self._roots: dict[int, int] = {}  # by step that ran again, the first at its place
        self._for: dict[int, set[str]] = {}  # by the first step at a place, its requests
        self._fresh: set[str] = set()  # decisions of an attempt that did not end
        self.folds = {
            "run": self._began,
            "step": self._step,
            "outcome": self._ended,
            "requested": self._requested,
            "decided": self._settled,
            "ended": lambda _: self._fresh.clear(),
        }

    def again(self) -> Approvals:
        """Return an instance for another run, with the same approver and terms."""
        return Approvals(
            self.approver, approvers=self.approvers, expires=self.expires, pauses=self.pauses
        )

    # --- the record -------------------------------------------------------------------------------

    def _began(self, line: Event) -> None:
        self._actor = line.get("actor", "")

    def _step(self, line: Event) -> None:
        approval = line.get("approval")
        if "again" in line:
            again: int = line["again"]
            self._roots[line["step"]] = self._roots.get(again, again)
        if approval is not None:
            self._of[line["step"]] = approval
            if "outcome" in line:
                self._used.add(approval)
            # Earlier approvals at this place count no longer: under another policy, a person may
            # have edited the call since.
            step: int = line["step"]
            given = self._for.get(self._roots.get(step, step), set[str]())
            self._used |= given - {approval}

    def _requested(self, line: Event) -> None:
        self._asked[line["id"]] = line
        step: int = line["step"]
        root = self._roots.get(step, step)
        self._for.setdefault(root, set()).add(line["id"])

    def _ended(self, line: Event) -> None:
        approval = self._of.get(line["step"])
        if approval is not None and line["outcome"] is not None:
            self._used.add(approval)

    def _settled(self, line: Event) -> None:
        self._decided[line["id"]] = line
        self._fresh.add(line["id"])

    # --- the seams -------------------------------------------------------------------------------

    def opened(self, session: Session) -> None:
        """Remove queued requests whose attempt died after their decision."""
        if session.attempt.log is not None:
            for approval in self._fresh:
                _drop(ApprovalQueue(session.store), approval)

    def prepare(self, call: Call, match: Match) -> Work | None:
        """Let a call wait until it is decided; refuse it if denied."""
        verdict, attempt, step = call.verdict, call.attempt, match.step
        if step is not None and step.in_doubt and match.kind != "hit":
            begun = self._decided.get(self._of.get(step.n, ""), {})
            if "args" in begun and (call.kept or {}).get("as") != begun["id"]:
                return self._edit(call, begun)  # a probe asks about what began
        if verdict is None or match.kind == "hit" or call.granted == verdict:
            return None
        if "edited" in (call.kept or ()):
            call.granted = verdict  # the editor has approved the edited call
            return None
        known = None if step is None else self._decided.get(self._id(call, step, verdict))
        if known is not None and known["decision"] in _NO:
            raise self._denied(call, match, known)
        if match.refusal is not None:
            return None
        if attempt.on_divergence == "undo" and any(each.acts for each in match.ahead):
            return take_back(attempt, match.ahead, why="divergence", is_async=call.is_async)
        if known is not None:
            return self._follow(call, known, verdict)
        if not call.waiting:
            step = reserve(attempt, call, match)
        assert step is not None
        return self._ask(call, step, verdict)

    def marks(self, call: Call) -> Event | None:
        """Return the approval with which a call begins."""
        if call.granted is None:
            return None
        approval = (call.kept or {}).get("approval") or self._of.get(call.waiting)
        if approval is None:
            return None
        return {"approval": approval} | ({} if call.supplied is None else {"answered": True})

    def closed(self, session: Session, error: BaseException | None) -> str | None:  # noqa: ARG002
        """Return `paused` for an attempt that waits for a decision."""
        return "paused" if self._halt is not None and session.halted is self._halt else None

    # --- requests --------------------------------------------------------------------------------

    def _id(self, call: Call, step: Step, verdict: Verdict) -> str:
        """Return the id of the request about a step: a new id once its approval is used up.

        A fork has ids of its own: an approval of the run that it copies counts in that run alone.
        """
        run = call.attempt.run
        epoch = run.epoch(step.branch) if step.effect == "pure" else step.epoch
        name = (
            f"{run.idempotency_key(step)} {epoch} {verdict.rule} {verdict.code} "
            f"{_policy(call.session)}{run.source and run.id}"
        )
        found = sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_ID]
        while found in self._used:
            found = sha256(found.encode()).hexdigest()[:_ID]
        return found

    def _request(self, call: Call, step: Step, line: Event) -> ApprovalRequest:
        run = call.attempt.run
        return ApprovalRequest(
            kind=call.kind,
            name=call.contract.name,
            args=orjson.loads(call.data),
            agent=call.place.agent,
            call_id=call.place.call_id,
            key=call.key,
            verdict=Verdict(**line["verdict"]),
            id=line["id"],
            idempotency_key=run.idempotency_key(step),
            policy=line["policy"],
            run=run.id,
            root=run.id,
            branch=call.place.branch,
            turn=step.turn,
            slot=step.slot,
            requested_by=line["requested_by"],
            at=line["time"],
            expires=line["expires"],
        )

    def _announce(self, call: Call, step: Step, verdict: Verdict) -> ApprovalRequest:
        """Put a request on record, once."""
        attempt, terms = call.attempt, self._terms(call.session)
        with attempt.lock:
            name = self._id(call, step, verdict)
            if name not in self._asked:
                now = attempt.options.clock.wall() // 1000
                shown = verdict if verdict.shadow is None else Verdict(**_flat(verdict))
                attempt.write(
                    {
                        "event": "requested", "id": name, "step": step.n,
                        "verdict": shown.as_data(), "policy": terms.policy,
                        "requested_by": terms.requested_by, "time": now,
                        "expires": now + int(terms.expires * 1_000_000),
                    }
                )  # fmt: skip
            return self._request(call, step, self._asked[name])

    def _terms(self, session: Session) -> Terms:
        """Return the terms under which approvals count, with the terms of outer sessions."""
        policy = _policy(session)
        terms = Terms(self._actor, policy, self.expires, self.approvers)
        for guard in session.gate.entries:
            own_terms = getattr(guard, "approval_terms", None)
            if own_terms is not None:
                seconds, approvers = own_terms
                expires = min(seconds, terms.expires)
                terms = Terms(self._actor, policy, expires, approvers, terms)
        around: list[Session] = []
        inner: Session | None = session
        while inner is not None:
            around.append(inner)
            inner = inner.around
        for each in reversed(around):
            own = each.approver if isinstance(each.approver, Approvals) else self
            expires = min(own.expires, terms.expires)
            actor = each.actor or self._actor
            terms = Terms(actor, policy, expires, own.approvers, terms)
        return terms

    # --- asking ----------------------------------------------------------------------------------

    def _ask(self, call: Call, step: Step, verdict: Verdict) -> Work:
        """Ask the approver, and put the decision on record."""
        attempt = call.attempt
        request, terms = self._announce(call, step, verdict), self._terms(call.session)
        queue = ApprovalQueue(attempt.store)
        with self._being_queued(request.id):
            if call.is_async:  # calls that were gathered with it are put on record, too
                yield lambda: asyncio.sleep(0)
            yield from attempt.settle(is_async=call.is_async)
            reply: object = yield _outside(call, lambda: _queued(queue, request, terms))
        now = attempt.options.clock.wall() // 1000
        reply = reply or untimely(request.at - SKEW, request.expires, now)
        if reply is None:
            try:
                reply = yield from self._reply(call, request, queue)
            except BaseException as error:
                passes: tuple[type[BaseException], ...] = (Halt, SessionHalted, *self.pauses)
                if isinstance(error, passes) or not isinstance(error, Exception):
                    self._put_back(call, step)
                    raise
                reply = _failed(error)
        found = judged(reply, request, self._terms(call.session))
        if isinstance(found, Approval) and found.decision != "rejected":
            now = attempt.options.clock.wall() // 1000
            found = untimely(request.at - SKEW, request.expires, now) or found
        if isinstance(found, Pending):
            while self._queued:  # together with the requests made at the same time
                yield (lambda: asyncio.sleep(_SOON)) if call.is_async else (lambda: sleep(_SOON))
            waits = ApprovalRequired(
                f"{call.contract.name} waits for a decision as {request.id}: {found.message}"
            )
            if attempt.halted is None:
                self._halt = waits
            raise attempt.halt(waits)
        if attempt.closed:
            yield _outside(call, lambda: _keep(queue, request, found, now))
            raise SessionError("the session was left before the call was decided on")
        self._decide(call, request, found)
        yield from attempt.settle(is_async=call.is_async)
        yield _outside(call, lambda: _drop(queue, request.id))

    @contextlib.contextmanager
    def _being_queued(self, request: str) -> Generator[None]:
        """Note that a request is on its way to the queue."""
        self._queued.add(request)
        try:
            yield
        finally:
            self._queued.discard(request)

    def _reply(self, call: Call, request: ApprovalRequest, queue: ApprovalQueue) -> Any:
        """Return the decision from the queue, or ask the approver."""
        decision = yield _outside(call, lambda: queue.decision(request))
        if decision is not None:
            if not request.at - SKEW <= decision.at <= request.expires:
                return Refusal("approval_expired", "it was not approved in time")
            if decision.at - SKEW > call.attempt.options.clock.wall() // 1000:
                return Refusal("approval_clock", "it was approved at a time that is yet to come")
            return decision.answer
        owner = self._owner(call)
        approver: Any = owner.approver or (self.approver if owner is call.session else later)
        if isinstance(approver, Approvals):
            approver = approver.approver
        here = call.is_async and self.pauses  # a framework asks in the call's own task
        answer = (
            yield (lambda: approver(request)) if here else consult(approver, call.is_async, request)
        )
        if inspect.isawaitable(answer):
            answer = yield lambda: answer
        return answer

    @staticmethod
    def _owner(call: Call) -> Session:
        """Return the outermost session whose gate asks: no nested session chooses its approver."""
        sessions = [call.session]
        while (around := sessions[-1].around) is not None:
            sessions.append(around)
        asks = (call.kept or {}).get("asked by")
        for session in reversed(sessions):
            verdict = session.gate.decide(call)
            if session is asks or (verdict is not None and verdict.decision == "ask"):
                return session
        return call.session

    def _put_back(self, call: Call, step: Step) -> None:
        """Let a call go on waiting at its place, for the next attempt to make it."""
        attempt = call.attempt
        with attempt.lock:
            let_go(attempt, call)
            if not (attempt.closed or attempt.halted):
                put_back(attempt, step)

    # --- decisions -------------------------------------------------------------------------------

    def _decide(self, call: Call, request: ApprovalRequest, reply: Approval | Refusal) -> None:
        """Put a decision on record."""
        attempt = call.attempt
        line: Event = {"event": "decided", "id": request.id, "step": call.waiting}
        if isinstance(reply, Approval):
            try:
                line |= self._effect(call, reply)
            except _Unusable as unusable:
                reason = f"the approval can't be used: {unusable.refusal.reason}"
                reply = unusable.refusal._replace(reason=reason)
            else:
                line |= {"decision": reply.decision, "by": reply.by, "reason": reply.reason}
        if isinstance(reply, Refusal):
            line |= {"decision": "refused", "code": reply.code, "reason": reply.reason}
        line["time"] = attempt.options.clock.wall() // 1000
        attempt.write(line)

    def _effect(self, call: Call, reply: Approval) -> Event:
        """Return the effect of an answer, as fields of its line."""
        if reply.args is not None:
            if call.kind != "tool" or not call.can_edit:
                raise _Unusable("approval_edit_unsupported", "its arguments can't be edited here")
            try:
                bound = call.contract.bind(_merged(call, reply.args), call.attempt.seal)
            except ArgumentsInvalid as error:
                raise _Unusable("approval_edit_invalid", str(error)) from None
            _check_edit(call, reply.args, bound.canonical)
            return {"args": orjson.loads(bound.digest_input)}
        if reply.response is not None:
            return {"outcome": orjson.loads(_answer(call, reply.response.value).data)}
        if call.has_changed():
            raise _Unusable("approval_other_call", "its arguments changed while somebody was asked")
        return {}

    def _follow(self, call: Call, line: Event, verdict: Verdict) -> Work | None:
        """Let a call go on as decided: with other arguments, or with an answer."""
        call.granted = verdict
        call.keep("approval", line["id"])
        if "outcome" in line:
            call.supplied = Outcome.of(line["outcome"])
        if "args" not in line:
            return None
        call.keep("edited", True)
        return self._edit(call, line) if (call.kept or {}).get("as") != line["id"] else None

    def _edit(self, call: Call, line: Event) -> Work:
        """Replace the call's arguments by the arguments of the decision."""
        try:
            call.edit(_merged(call, line["args"]), call.attempt.seal)
        except (ArgumentsInvalid, _Unusable, ValueError) as error:
            raise call.attempt.halt(
                NotReplayable(
                    f"{call} was approved with other arguments, which its tool does not take any "
                    f"more: {error}"
                )
            ) from None
        call.keep("as", line["id"])
        return _nothing()  # every guard decides on the edited call

    def _denied(self, call: Call, match: Match, line: Event) -> Blocked:
        """Refuse a denied call by its recorded decision; its place is used up."""
        attempt = call.attempt
        assert call.verdict is not None
        default = "the call was not approved"
        code = line.get("code") or "approval_rejected"
        refusal = Verdict("deny", line["reason"] or default, code, call.verdict.rule)
        if call.waiting:  # decided just now
            return refuse(call, refusal)
        reserve(attempt, call, match._replace(ahead=()))
        let_go(attempt, call)
        attempt.stats.blocked += 1
        return Blocked(refusal.message, rule=refusal.rule, code=refusal.code)


class _Unusable(Exception):
    """Reject a decision that can't be used, with its refusal."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.refusal = Refusal(code, reason)


def _nothing() -> Generator[Any, Any, None]:
    return
    yield


def _outside(call: Call, function: Callable[[], Any]) -> Callable[[], Any]:
    """Return a function that does I/O, sync or async as the session is."""
    return (lambda: in_thread(function)) if call.is_async else function


def _policy(session: Session) -> str:
    """Return the digests of the policies that decide on a session's calls; empty without any."""
    digests = [
        digest
        for guard in session.gate.entries
        if isinstance(digest := getattr(guard, "digest", None), str)
    ]
    if len(digests) <= 1:
        return "".join(digests)
    return sha256(" ".join(digests).encode()).hexdigest()


def _flat(verdict: Verdict) -> dict[str, Any]:
    return {name: value for name, value in verdict.as_data().items() if name != "shadow"}


def _failed(error: Exception) -> Refusal:
    """Return the refusal of an approver that raised, without the text of its error."""
    if isinstance(error, ApprovalCorrupt):
        return Refusal("approval_tampered", str(error))
    name = type(error).__name__
    code = "approval_unavailable" if isinstance(error, (StoreError, OSError)) else "approver_failed"
    return Refusal(code, f"the approver failed: {name}")


def _queued(queue: ApprovalQueue, request: ApprovalRequest, terms: Terms) -> Refusal | None:
    """Put a request into the queue; return the refusal if it can't be put there."""
    try:
        queue.ask(request, terms)
    except (ApprovalCorrupt, StoreError, OSError) as error:
        return _failed(error)
    return None


def _keep(queue: ApprovalQueue, request: ApprovalRequest, reply: object, now: int) -> None:
    """Keep an answer that came after the session was left, for the next attempt."""
    if isinstance(reply, Approval):
        try:
            queue.put(request, reply, now)
        except (ApprovalInvalid, StoreError):
            _log.exception("the decision on %s is lost: it will be asked for again", request.id)


def _drop(queue: ApprovalQueue, approval: str) -> None:
    try:
        queue.drop(approval)
    except RollcageError:
        _log.warning("the decided request %s could not be removed from the store", approval)


# --- what answers may change -------------------------------------------------------------------


def _merged(call: Call, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments with which an approver lets a call run; hidden secrets stay."""
    old, values = orjson.loads(call.data), call.values
    raw: dict[str, Any] = {}
    for name, value in given.items():
        if call.instead is not None and name not in {*call.contract.parameter_names, *values}:
            raise _Unusable("approval_edit_invalid", f"it has no argument {name!r}")
        if name in values and name in old and _same(value, old[name]):
            raw[name] = values[name]
            continue
        try:
            raw[name] = decode(value)
        except ValueError as error:
            raise _Unusable("approval_edit_invalid", f"argument {name}: {error}") from None
    for name, value in old.items():
        if name not in raw and holds_secret(value):
            raw[name] = values[name]
    return raw


def _check_edit(call: Call, given: Mapping[str, Any], canonical: Mapping[str, Any]) -> None:
    """Refuse an edit that changes a secret, or an argument declared as kept."""
    old = orjson.loads(call.data)
    for name, value in canonical.items():
        same = name in old and _same(value, old[name])
        if holds_secret(value) and not same:
            raise _Unusable(
                "approval_edit_secret", f"argument {name} holds a secret: it can't be edited"
            )
        if not same and name in given and name in old and _same(given[name], old[name]):
            raise _Unusable(
                "approval_edit_invalid", f"argument {name} is changed, but was not edited"
            )


def _answer(call: Call, value: Any) -> Outcome:
    """Return a person's answer in place of the tool, in the form of the tool's own result."""
    contract, attempt = call.contract, call.attempt
    code = "approval_response_invalid"
    instead = call.instead
    if call.kind != "tool" or (instead is not None and instead.answered is None):
        raise _Unusable(code, "it can't be answered in place of the tool")
    try:
        if instead is not None and instead.answered is not None:
            value = instead.answered(value)
        elif contract.typed:
            value = contract.revive(value)
        outcome = success(contract, value, attempt.seal, attempt.types)
    except Exception as error:  # noqa: BLE001 - validators of the user's own
        name = type(error).__name__
        raise _Unusable(code, f"{contract.name} gives no such result: {name}") from None
    found = orjson.loads(outcome.data)
    if "drift" in found:
        raise _Unusable(code, str(found["drift"].get("reason", "it is no such result")))
    if "lossy" in found:
        raise _Unusable(code, f"it can't be kept: {found['lossy']}")
    return outcome


def _same(one: Any, other: Any) -> bool:
    """Tell whether two values are the same JSON, with keys in any order."""
    try:
        return orjson.dumps(one, option=_SORT) == orjson.dumps(other, option=_SORT)
    except (TypeError, RecursionError):
        return False
