"""Carry a call on its way: its arguments, its place, and the recorded step that matches."""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from rollcage.contract.arguments import Arguments, ModelRequest
from rollcage.errors import ArgumentsInvalid, SessionError
from rollcage.fingerprint.identity import key_digest
from rollcage.gate.approval import Instead
from rollcage.trace.run import CHANGES
from rollcage.values.copies import own_copy

if TYPE_CHECKING:
    from rollcage.calls.attempt import Attempt
    from rollcage.contract.contract import Contract
    from rollcage.errors import Halt
    from rollcage.fingerprint.transcript import Question
    from rollcage.gate.verdict import StepView, Verdict
    from rollcage.replay.outcome import Read
    from rollcage.replay.walk import Branch, Look, Turn
    from rollcage.session.session import Session
    from rollcage.trace.run import Event, Outcome, Step
    from rollcage.values.hiding import Seal

__all__ = [
    "Call", "Match", "Place", "at", "check_acts", "here", "open_sessions", "refusal", "reset",
]  # fmt: skip


@dataclasses.dataclass(slots=True, eq=False)  # what a call reads often: a tuple's fields are slow
class Place:
    """Say where calls are made.

    Attributes:
        attempt: the attempt in which calls are made.
        session: the session that makes the calls: the attempt's own, or a session nested in it.
        branch: the branch in which the calls stand.
        turn: the turn, if it was stated.
        slot: the slot of the next call in its turn, if it was stated.
        around: the call whose body makes the calls.
        agent: the name of the agent, if a framework provides a name.
        call_id: the framework's id of the next call.
        works: how many pieces of a framework's work are around the place: see `Stage.where`.
        looks: the function of a tool that looks at the world here, as "observe of book": its calls
            are no steps, and no recorded step answers them. Empty elsewhere.
    """

    attempt: Attempt
    session: Session
    branch: str = ""
    turn: Turn | None = None
    slot: int | None = None
    around: Call | None = None
    agent: str = ""
    call_id: str = ""
    works: int = 0
    looks: str = ""


here: Final[ContextVar[Place | None]] = ContextVar("rollcage.replay.call.here", default=None)
"""The place of calls in this context; None outside of every session."""

open_sessions: Final[weakref.WeakSet[Session]] = weakref.WeakSet()
"""The entered sessions of this process, for tools that are called without a session."""


class Match(NamedTuple):
    """Describe the recorded match of a call.

    Attributes:
        kind: `hit`: a step answers the call; `again`: the call runs at the place of a step; `new`.
        step: the matching step.
        look: the place of the call; None for pure and model calls, and for a call that waits at
            its place.
        refusal: why the call can't go on, unless a stage finds a way.
        ahead: recorded steps that the call would leave behind.
        asks: the question to an approver before the call may run, because it may have happened.
    """

    kind: Literal["hit", "again", "new"]
    step: Step | None
    look: Look | None
    refusal: Halt | None = None
    ahead: tuple[Step, ...] = ()
    asks: Verdict | None = None


class Call:
    """Hold a call that has arrived. Its turn, slot and branch are fixed from then on.

    Attributes:
        attempt: the attempt in which the call is made.
        session: the session that makes the call.
        contract: the declaration of the tool or model.
        kind: `tool` or `model`.
        effect: the declared effect; `model` for a model.
        changes: whether the call advances the world.
        values: the arguments as the body receives them.
        arguments: the canonical arguments, as the log shows them.
        asked: the request of a model whose messages are known from earlier ones; its parts are
            shared with these: see `shown`.
        key: the identity of the requested call; it stays even if a stage replaces the arguments.
        body: the function to run.
        instead: the other decisions that an approver may take on a framework's call; else None.
        raw: the arguments that a framework holds and calls its body with; None for other calls, and
            once an approver has replaced them.
        hooks: the methods of the stages that apply to the call.
        is_async: whether the session awaits the call.
        place: where the call is made.
        slot: the place in the turn; -1 before arrival.
        before: how many calls, replayed ones included, this attempt had made on arrival.
        verdict: the verdict of the guards, unless it is to allow.
        view: the call as rules see it in this round; None until a rule looks.
        today: the same view, where recorded facts count instead.
        granted: the verdict to ask that an approver has answered with yes.
        supplied: the outcome that a stage supplies in place of the body.
        made_at: of a supplied outcome, the run and step that made the effect.
        kept: notes that stages keep with the call between rounds.
        arrived: the notes from its arrival, which no later round makes.
        waiting: the number of the step recorded for the call while it waits.
        is_prepared: whether preparation is under way before the call may begin.
        claim: the recorded step that the call will use up after preparation.
        recorded: the step that answered the call.
        read: extracts a model's answer from the value of the body; None for tools, and for models
            without such a function.
        event: the line with which the call began.
        began: when the body was entered, by the monotonic clock (ns).
        took: how long the body ran (ns).
        is_edited: whether a fork has replaced the requested arguments.
        simulates: whether a fork supplies the outcome, and no body runs.
        streams: whether its result comes in chunks, which its caller has before it ends.
        cut: whether the caller has been cut off while the body runs in a thread.
        is_entered: whether its body has begun; False while it waits for a thread.
        is_ended: whether what became of it is on record, or the session was halted for that.
    """

    __slots__ = (
        "__dict__", "_data", "arguments", "attempt", "before", "began", "body", "branch", "changes",
        "contract", "effect", "event", "hooks", "is_async", "is_on_record", "kept", "key",
        "kind", "place", "read", "recorded", "session", "slot", "supplied", "took", "turn",
        "values", "verdict", "waiting",
    )  # fmt: skip

    branch: Branch
    turn: Turn
    event: Event
    began: int
    took: int

    # Class attributes: few calls set these, and few are asked for them.
    is_edited = simulates = cut = is_ended = streams = is_prepared = False
    is_entered = True
    today: Verdict | None = None
    view: StepView | None = None
    granted: Verdict | None = None
    made_at: list[Any] | None = None
    claim: Step | None = None
    rank: int | None = None
    instead: Instead | None = None
    raw: Mapping[str, Any] | None = None
    asked: Question | None = None
    arrived: dict[str, Any] | None = None

    def __init__(
        self,
        place: Place,
        contract: Contract,
        bound: Arguments,
        body: Callable[..., Any],
        kind: Literal["tool", "model"],
        *,
        is_async: bool,
        asked: Question | None = None,
    ) -> None:
        self.attempt, self.session, self.place = place.attempt, place.session, place
        self.contract, self.body, self.kind, self.is_async = contract, body, kind, is_async
        session = self.session
        self.hooks = session.known_hooks.get(id(contract)) or session.hooks_of(contract)
        self.values, self.arguments, self._data = bound
        if asked is None:
            self.key = key_digest(kind, contract.name, contract.version, self._data).hex()
        else:
            self.asked, self.key = asked, asked.key().hex()
        self.effect: str = contract.effect if kind == "tool" else "model"
        self.changes = self.effect in CHANGES
        self.slot = -1
        self.before = self.waiting = 0
        self.is_on_record = False
        self.verdict: Verdict | None = None
        self.supplied: Outcome | None = None
        self.recorded: Step | None = None
        self.read: Read | None = None
        self.kept: dict[str, Any] | None = None

    def edit(self, arguments: Mapping[str, Any], seal: Seal) -> None:
        """Replace the requested arguments.

        The call keeps its key, by which a resume finds it.

        Raises:
            ArgumentsInvalid: they do not match the tool's schema, or can't reach a framework's
                body.
        """
        if not self.can_edit:
            raise ArgumentsInvalid(f"{self.contract.name}: its arguments can't be edited here")
        bound = self.contract.bind(arguments, seal)
        if self.instead is not None and self.instead.edited is not None:
            self.body, self.raw = self.instead.edited, None
        self.values, self.arguments, self._data = bound
        self.asked = None

    @property
    def data(self) -> bytes:
        """Return the canonical arguments in bytes."""
        return self._data if self.asked is None else bytes(self.asked)

    def shown(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the values and the canonical arguments for code that may change them."""
        if self.asked is None:
            return self.values, self.arguments
        copied: tuple[dict[str, Any], dict[str, Any]] = own_copy((self.values, self.arguments))
        return copied

    def adapt(self, raw: Mapping[str, Any], instead: Instead | None) -> None:
        """Turn the call into a call of a framework's tool or model: see these attributes."""
        self.raw, self.instead = raw, instead or Instead()

    @property
    def can_edit(self) -> bool:
        """Tell whether replaced arguments can reach the body."""
        return self.instead is None or self.instead.edited is not None

    def has_changed(self) -> bool:
        """Tell whether the arguments held by a framework differ from the arguments decided on."""
        if self.raw is None:
            return False
        if self.asked is not None and isinstance(self.raw, ModelRequest):
            return self.raw.has_changed()
        takes, bound = self.contract.takes, Arguments(self.values, self.arguments, self.data)
        return takes.has_changed(self.raw, bound, self.attempt.seal)

    def run(self) -> Any:
        """Run the body."""
        return self.body(**self.values)

    def keep(self, name: str, value: Any) -> None:
        """Keep a value with the call for the next round."""
        if self.kept is None:
            self.kept = {}
        self.kept[name] = value

    def forget(self) -> None:
        """Forget what stages have found out since the arrival: another round finds it out anew."""
        self.kept = None if self.arrived is None else {**self.arrived}
        self.granted = None
        if not self.simulates:
            self.supplied = self.made_at = None

    def __str__(self) -> str:
        shown = self.data.decode("utf-8", "replace")
        return f"{self.contract.name}({shown if len(shown) <= 200 else shown[:200] + '…'})"


def refusal(
    tool: Contract | str,
    kind: str,
    arguments: Any,
    verdict: Verdict,
    place: Place,
    *,
    turn: int = 0,
    slot: int | None = None,
) -> Event:
    """Return the line of a refused call, without its time.

    Args:
        tool: the contract; or the requested name, if there is no such tool.
        kind: `tool` or `model`.
        arguments: the requested arguments, encoded.
        verdict: why the call is refused.
        place: where the call was made.
        turn: the number of its turn, if it has a turn.
        slot: the place in the turn.
    """
    event: Event = {
        "event": "refused", "name": tool if isinstance(tool, str) else tool.name, "kind": kind,
        "args": arguments, "verdict": verdict.as_data(), "branch": place.branch,
    }  # fmt: skip
    if not isinstance(tool, str):
        event["effect"] = tool.effect if kind == "tool" else "model"
        if tool.version:
            event["version"] = tool.version
    if turn:
        event["turn"] = turn
    if slot is not None:
        event["slot"] = slot
    if place.agent:
        event["agent"] = place.agent
    if place.call_id:
        event["call_id"] = place.call_id
    return event


@contextlib.contextmanager
def at(place: Place) -> Iterator[Place]:
    """Make the calls of a block at a place."""
    token = here.set(place)
    try:
        yield place
    finally:
        reset(token)


def check_acts(place: Place | None, refused: str) -> None:
    """Refuse what changes a run in a function of a tool that looks at the world.

    Raises:
        SessionError: such a function runs at the place.
    """
    if place is not None and place.looks:
        raise SessionError(f"{refused} in the {place.looks}: it only looks at the world")


def reset(token: Token[Place | None]) -> None:
    """Make the calls of this context at the place in force before `here` was set."""
    try:
        here.reset(token)
    except ValueError:  # a generator was closed from another context
        return
