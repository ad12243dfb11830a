"""The seams of a session: `Stage` surrounds calls, and `Guard` decides on them.

A session calls the methods that are overridden, in the order of its stages; a session without a
stage has no part of any feature.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

if TYPE_CHECKING:
    from rollcage.contract.contract import Contract
    from rollcage.gate.verdict import Verdict
    from rollcage.replay.call import Call, Match, Place
    from rollcage.session.session import Session
    from rollcage.trace.run import Event, Fold, Outcome, Step

__all__ = ["Body", "Guard", "Hooks", "OfSession", "Stage", "Work"]

Work = Generator[Callable[[], Any], Any, None]
"""Work to be done before a call may begin: it yields functions without arguments, and is sent what
each returned; in an async session, what an awaitable gave. It runs outside of the session's lock.
"""

Body = Callable[[], Any]
"""A call's body with its arguments; in an async session it may return an awaitable."""


class Stage:
    """A feature of a session. Every method may be left out.

    Attributes:
        folds: by kind of line, a function that is told of each line, whether it was read or just
            written. A stage keeps no other state, so that a resumed run knows what it knew.
        is_about_recorded: whether `prepare` is only asked about calls that no step answers, where
            one has their place, or any call of the run may have happened though it failed.
        opens_in_context: whether `opened` sets what is to be current in the session's block: then
            it runs on an event loop. Otherwise it may look into the store, and async sessions call
            it in a thread.
    """

    folds: Mapping[str, Callable[[dict[str, Any]], None]] = {}
    is_about_recorded = opens_in_context = False

    def concerns(self, contract: Contract) -> bool:  # noqa: ARG002 - of those that override it
        """Whether the stage is asked about calls of a tool; it is called once for each contract."""
        return True

    def describes(self, session: Session) -> Event | None:
        """Return what the attempt's line says of it, before anything else; in `gate=` only."""

    def opening(self, session: Session) -> None:
        """Prepare before a run is read, and the attempt's line is written; in `stages=` only."""

    def opened(self, session: Session) -> None:
        """Prepare for an attempt that begins. All lines of the run were told.

        Of a stage in the gate of a session inside of another one: for that session, which is
        entered. Its `folds` are told of the lines from then on; `run.steps` has those before.
        """

    def resuming(self, session: Session, run: str) -> None:
        """Raise to refuse that a run is resumed, before anything is recorded; in a thread maybe."""

    def conceal(self, event: Event) -> Event:
        """Return a line as it may be hashed, told and written."""
        return event

    def arriving(self, place: Place, *, is_async: bool) -> Work | None:
        """Return work to be done before a call, or a block, gets its place; once for each.

        Args:
            place: where it is made.
            is_async: whether the work may be awaited; of a block, it may not.
        """

    def where(self, call: Call | None, place: Place) -> Place | None:
        """Return the place of a call that arrives, if a framework knows better; else None.

        Args:
            call: the call; None if it is a block that is opened.
            place: where it is made. `works` says of how many works around it a stage has taken
                account before: for the block, or the call, that it is inside of.
        """

    def prepare(self, call: Call, match: Match) -> Work | None:
        """Return work that has to be done before a call may begin, or None.

        It changes nothing itself. After the work, the call is decided and matched anew, and each
        stage is asked again. Raise to refuse the call.
        """

    def ready(self, call: Call) -> bool:  # noqa: ARG002 - of those that override it
        """Return whether a call may still begin, now that its intent is on record.

        If not, the intent is withdrawn, and the call is decided anew. Raise to refuse it.
        """
        return True

    def dropped(self, call: Call) -> Work | None:
        """Return work for a call that ends before it began: it was refused, cut off, or halted."""

    def begun(self, call: Call) -> Work | None:
        """Return work between the record of a write's intent and its body.

        Raise to have it be recorded that the call did not happen.
        """

    def around(self, call: Call, body: Body) -> Body:  # noqa: ARG002 - of those that override it
        """Return a body to run in place of this one."""
        return body

    def hit(self, call: Call, step: Step) -> Work | None:
        """Return work for a call that a recorded step answers, before it is given the outcome.

        It runs once the answer was told to the other stages, outside of the lock.
        """

    def inside(self, call: Call) -> AbstractContextManager[object]:
        """Return a context manager to enter around a body, in its own thread or task.

        A body of a stream is entered for each chunk. It is given no error.
        """
        raise NotImplementedError

    def marks(self, call: Call) -> Event | None:
        """Return fields of the line with which a call begins.

        The names of fields that are not of the published schema have a dot in them: `acme.budget`.
        """

    def shows(self, call: Call) -> Mapping[str, Any] | None:
        """Return fields of the view of a call that rules get, besides what core knows."""

    def settled(self, call: Call | None, outcome: Outcome, step: Step | None) -> Event | None:
        """Return fields of the line with which a call ends.

        Args:
            call: the call; None if nobody asked for the step, for a framework's memory holds it.
            outcome: how it ended.
            step: the recorded step that answered it; None if its body did.
        """

    def leaving(self, session: Session, *, is_async: bool) -> Work | None:
        """Return work to be done as a session is left without an error, before it ends."""

    def closed(self, session: Session, error: BaseException | None) -> str | None:
        """Return a status for an attempt that ends, in place of `ok`; else None."""


class Guard:
    """Decides on calls, in every round and under the session's lock: it must be quick and pure.

    A `Stage` may stand in a gate, too, and have these methods and attributes.

    Attributes:
        enforces: whether it blocks anything. If everything in a gate is False here, tools may run
            in threads that know no session.
        strict: whether arguments that would have to be coerced are refused.
        digest: the identity of its rules, to which approvals are bound; empty if it has none.
        approval_terms: for how many seconds an approval counts, and who may approve; None: others
            decide that.
    """

    enforces = True
    strict = False
    digest = ""
    approval_terms: tuple[float, frozenset[str] | None] | None = None

    def describes(self, session: Session) -> Event | None:  # noqa: ARG002 - of those that override it
        """Return what the attempt's line says of it; by default, the name of its class.

        It is called as the session is entered; in an async session, by a thread.
        """
        return {"guard": type(self).__qualname__}

    def screen(self, contract: Contract, body: Body | None, kind: str) -> Verdict | None:
        """Return a denial if nothing of a tool may run, its validators included.

        Args:
            contract: the tool's.
            body: the function that would be called, if the caller knows it.
            kind: `tool` or `model`.
        """

    def screen_undo(self, contract: Contract) -> Verdict | None:
        """Return a denial if an undo must not use a tool: call it, observe with it, or probe.

        A write is not begun whose plan names such a tool; an undo that needs one touches nothing.
        """

    def decide(self, call: Call) -> Verdict | None:
        """Return the verdict on a call, or None to abstain. One that raises denies."""

    def settled(self, call: Call | None, outcome: Outcome, step: Step | None) -> None:
        """Take notice of how a call ended. If it raises, it denies all calls from then on."""


@runtime_checkable
class OfSession(Protocol):
    """What may stand in `gate=` and has a state of its own in each session, as a policy."""

    def of_session(self) -> Guard | Stage:
        """Return what decides in one session."""
        ...


def overridden(each: Any, name: str, *bases: type) -> Any:
    """Return a method that a class defines in place of its base's; None if it does not."""
    return getattr(each, name) if _defines(type(each), name, *bases) else None


def _defines(kind: type, name: str, *bases: type) -> bool:
    found = getattr(kind, name, None)
    return found is not None and all(found is not getattr(base, name, None) for base in bases)


class Hooks:
    """The methods that a session's stages override, by seam, in their order.

    Attributes:
        contract: the contract that they concern; None: they are those of the session itself.
    """

    contract: Contract | None = None

    def __init__(self, stages: tuple[Stage, ...]) -> None:
        by_seam: dict[str, list[Any]] = {seam: [] for seam in _SEAMS}
        self.prepare_new: list[Callable[[Call, Match], Work | None]] = []
        self.folds: dict[str, list[Fold]] = {}
        for stage in stages:
            kind: Any = type(stage)  # mypy takes no class for a Hashable
            for seam in _seams_of(kind):
                by_seam[seam].append(getattr(stage, seam))
                if seam == "prepare" and not stage.is_about_recorded:
                    self.prepare_new.append(stage.prepare)
            for kind, fold in stage.folds.items():
                self.folds.setdefault(kind, []).append(fold)
        of = by_seam.__getitem__
        self.opening, self.opened, self.closed = of("opening"), of("opened"), of("closed")
        self.resuming, self.leaving = of("resuming"), of("leaving")
        self.arriving = of("arriving")
        self.where, self.prepare, self.around = of("where"), of("prepare"), of("around")
        self.ready, self.inside = of("ready"), of("inside")
        self.begun, self.dropped, self.hit = of("begun"), of("dropped"), of("hit")
        self.marks, self.settled, self.conceal = of("marks"), of("settled"), of("conceal")
        self.shows = of("shows")


_SEAMS: Final = (
    "arriving", "around", "begun", "closed", "conceal", "dropped", "hit", "inside", "leaving",
    "marks", "opened", "opening", "prepare", "ready", "resuming", "settled", "shows", "where",
)  # fmt: skip


@functools.lru_cache(maxsize=1024)
def _seams_of(kind: type[Stage]) -> tuple[str, ...]:
    """The seams that a class of stages has a method for."""
    return tuple(seam for seam in _SEAMS if _defines(kind, seam, Stage, Guard))
