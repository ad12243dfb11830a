"""A call on its way: what is asked for, where it stands, and what is recorded of it."""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from rollcage.contract.arguments import Arguments
from rollcage.errors import ArgumentsInvalid
from rollcage.fingerprint.identity import key_digest
from rollcage.gate.approval import Instead
from rollcage.heart.run import CHANGES

if TYPE_CHECKING:
    from rollcage.contract.contract import Contract
    from rollcage.errors import Halt
    from rollcage.gate.verdict import StepView, Verdict
    from rollcage.heart.attempt import Attempt
    from rollcage.heart.outcome import Read
    from rollcage.heart.run import Event, Outcome, Step
    from rollcage.heart.session import Session
    from rollcage.heart.walk import Branch, Look, Turn
    from rollcage.values.hiding import Seal

__all__ = ["Call", "Match", "Place", "at", "here", "open_sessions", "refusal", "reset"]


class Place(NamedTuple):
    """Where calls are made.

    Attributes:
        attempt: the attempt that they are made in.
        session: the session that makes them: the attempt's, or one inside of it.
        branch: the branch in which they stand.
        turn: the turn that they are of, if it was stated.
        slot: the place in it of the next one, if it was stated.
        around: the call whose body makes them.
        agent: the name of the agent, if a framework provides it.
        call_id: a framework's id of the next call.
        works: how many works of a framework are around it: see `Stage.where`.
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


here: Final[ContextVar[Place | None]] = ContextVar("rollcage.heart.here", default=None)
"""Where calls of this context are made; None outside of every session."""

open_sessions: Final[weakref.WeakSet[Session]] = weakref.WeakSet()
"""The sessions of this process that are entered, for tools that are called without one."""


@dataclasses.dataclass(slots=True)
class Match:
    """What is recorded of a call.

    Attributes:
        kind: `hit`: a step answers it; `again`: a step has its place, and it runs there; `new`.
        step: the step.
        look: where it would stand; None for pure and model calls.
        refusal: why it can't go on like this, unless a stage finds a way.
        ahead: recorded steps that it would leave behind.
        asks: what an approver has to be asked before it may run: it may have happened already.
    """

    kind: Literal["hit", "again", "new"]
    step: Step | None
    look: Look | None
    refusal: Halt | None = None
    ahead: tuple[Step, ...] = ()
    asks: Verdict | None = None


class Call:
    """A call that arrived. Its turn, slot and branch are its own from then on.

    Attributes:
        attempt: the attempt in which it is made.
        session: the session that makes it.
        contract: what is declared of the tool or model.
        kind: `tool` or `model`.
        effect: as declared; `model` for a model's.
        changes: whether it advances the world.
        values: the arguments as the body receives them.
        arguments: the canonical ones, as the log shows them.
        data: these in bytes.
        key: what is asked for: it stays, whatever a stage puts in the place of the arguments.
        body: what runs.
        instead: what else an approver may make of a framework's call; None of other calls.
        raw: the arguments that a framework holds on to, and calls its body with; None if there is
            none, or if an approver has put others in their place.
        hooks: the methods of the stages that it concerns.
        is_async: whether the session awaits.
        place: where it is made.
        slot: its place in its turn; -1 until it has arrived.
        before: how many calls this attempt had made when it arrived, those that were replayed too.
        verdict: what the guards decided, if anything but to allow it.
        view: what rules see of it, in this round; None until one looks.
        today: the same, where what is recorded counts instead.
        granted: the verdict to ask that was answered with yes.
        supplied: the outcome that a stage gives in the place of the body's.
        made_at: of a supplied outcome, where the effect was made: the run and the step.
        kept: what stages keep with it between rounds.
        waiting: the number of the step that was recorded for it while it waits.
        is_prepared: whether something is done now before it may begin.
        claim: the recorded step that it will use up, while something has to be done before.
        recorded: the step that answered it.
        read: reads what a model answered off the body's value; None: it is no model, or nobody can.
        event: the line with which it began.
        began: when its body was entered, by the monotonic clock (ns).
        took: how long the body ran (ns).
        is_edited: whether a fork has put other arguments in the place of those asked for.
        simulates: whether something stands for it in a fork, and nothing is made.
        cut: whether its caller has been cut off while its body runs in a thread.
    """

    __slots__ = (
        "__dict__", "arguments", "attempt", "began", "body", "branch", "changes", "contract",
        "data", "effect", "event", "hooks", "is_async", "is_on_record", "is_prepared", "key",
        "kind", "place", "recorded", "session", "slot", "supplied", "took", "turn", "values",
        "verdict", "waiting",
    )  # fmt: skip

    # What few calls have, and takes no time in any other.
    is_edited = simulates = cut = False
    before = 0
    today: Verdict | None = None
    view: StepView | None = None
    granted: Verdict | None = None
    made_at: list[Any] | None = None
    kept: dict[str, Any] | None = None
    claim: Step | None = None
    rank: int | None = None
    read: Read | None = None
    instead: Instead | None = None
    raw: Mapping[str, Any] | None = None

    def __init__(
        self,
        place: Place,
        contract: Contract,
        bound: Arguments,
        body: Callable[..., Any],
        kind: Literal["tool", "model"],
        *,
        is_async: bool,
    ) -> None:
        self.attempt, self.session, self.place = place.attempt, place.session, place
        self.contract, self.body, self.kind, self.is_async = contract, body, kind, is_async
        session = place.session
        self.hooks = session.known_hooks.get(id(contract)) or session.hooks_of(contract)
        self.values, self.arguments = bound.values, bound.canonical
        self.data = data = bound.digest_input
        self.key = key_digest(kind, contract.name, contract.version, data).hex()
        self.effect: str = contract.effect if kind == "tool" else "model"
        self.changes = self.effect in CHANGES
        self.branch: Branch
        self.turn: Turn
        self.event: Event
        self.slot = -1
        self.waiting = self.began = self.took = 0
        self.is_on_record = self.is_prepared = False
        self.verdict: Verdict | None = None
        self.supplied: Outcome | None = None
        self.recorded: Step | None = None

    def edit(self, arguments: Mapping[str, Any], seal: Seal) -> None:
        """Put other arguments in the place of those that were asked for.

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
        self.values, self.arguments, self.data = bound.values, bound.canonical, bound.digest_input

    def adapt(self, raw: Mapping[str, Any], instead: Instead | None) -> None:
        """Make it a call of a framework's tool or model: see these attributes."""
        self.raw, self.instead = raw, instead or Instead()

    @property
    def can_edit(self) -> bool:
        """Whether other arguments than those that were asked for can reach its body."""
        return self.instead is None or self.instead.edited is not None

    def has_changed(self) -> bool:
        """Whether the arguments that a framework holds on to are not what was decided on."""
        if self.raw is None:
            return False
        takes, bound = self.contract.takes, Arguments(self.values, self.arguments, self.data)
        return takes.has_changed(self.raw, bound, self.attempt.seal)

    def run(self) -> Any:
        """Run the body."""
        return self.body(**self.values)

    def keep(self, name: str, value: Any) -> None:
        """Keep something with the call for the next round."""
        if self.kept is None:
            self.kept = {}
        self.kept[name] = value

    @property
    def streams(self) -> bool:
        """Whether its result comes in chunks, which its caller has before it ends."""
        return "chunks" in (self.kept or ())

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
    """Return the line of a call that was refused, but for its time.

    Args:
        tool: its contract; or the name that was asked for, if there is no such tool.
        kind: `tool` or `model`.
        arguments: as they were asked for, encoded.
        verdict: why it is refused.
        place: where it was made.
        turn: the number of its turn, if it has one.
        slot: its place in that.
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
    """Have the calls of a block be made at a place."""
    token = here.set(place)
    try:
        yield place
    finally:
        reset(token)


def reset(token: Token[Place | None]) -> None:
    """Have the calls of this context be made where they were before `here` was set."""
    try:
        here.reset(token)
    except ValueError:  # in another context: a generator closed from there
        return
