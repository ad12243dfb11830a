"""Define the seams of a session: `Stage` surrounds calls, `Guard` decides on them.

A session calls the overridden methods, in the order of its stages; a session without a stage pays
for no feature.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from rollcage.errors import SessionError

if TYPE_CHECKING:
    from rollcage.calls.gate import Entry
    from rollcage.contract.contract import Contract
    from rollcage.gate.verdict import Verdict
    from rollcage.replay.call import Call, Match, Place
    from rollcage.replay.source import RunSource
    from rollcage.session.session import Session
    from rollcage.trace.run import Event, Fold, Outcome, Run, Step

__all__ = ["Body", "Guard", "Hooks", "OfSession", "Stage", "Work", "from_environment"]

Work = Generator[Callable[[], Any], Any, None]
"""Work before a call may begin: a generator that yields functions without arguments.

It is sent the result of each; in an async session, the result of an awaitable. Work runs outside of
the session's lock.
"""

Body = Callable[[], Any]
"""The body of a call with its arguments; in an async session, it may return an awaitable."""


class Stage:
    """Add a feature to a session. Every method is optional.

    Attributes:
        folds: by kind of line, a function that receives each line, read or just written. A stage
            keeps no other state, so a resumed run has the same state.
        is_about_recorded: whether `prepare` skips plain calls: it is asked only if no step answers
            the call, and a step has its place, or any failed call of the run may have happened.
        opens_in_context: whether `opened` sets context for the session's block: then it runs on an
            event loop. Otherwise it may read the store, and async sessions call it in a thread.
    """

    folds: Mapping[str, Callable[[dict[str, Any]], None]] = {}
    is_about_recorded = opens_in_context = False

    def concerns(self, contract: Contract) -> bool:  # noqa: ARG002 - of those that override it
        """Tell whether the stage applies to calls of a tool; asked once for each contract."""
        return True

    def describes(self, session: Session) -> Event | None:
        """Return a description for the attempt's line, before anything else; in `gate=` only."""

    @property
    def copies(self) -> RunSource | None:
        """Return the run to copy, if the session begins a copy; in `stages=` only.

        With `run=`, the session goes on with such a copy.
        """
        return None

    def copied(self, session: Session, run: Run, lines: list[Event]) -> list[Event]:
        """Return the first lines of a copy, behind the copied lines.

        The first one is `forked`: it makes all steps so far borrowed, and with `dry` the copy must
        not write.

        Args:
            session: the session, which is not entered yet.
            run: the fold of the copied lines.
            lines: the copied lines. The stage may add fields to the first one.
        """
        raise NotImplementedError

    def gating(self, entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
        """Return the entries of the session's own gate; in `stages=` only."""
        return entries

    def opening(self, session: Session) -> None:
        """Prepare before a run is read and the attempt's line is written; in `stages=` only."""

    def opened(self, session: Session) -> None:
        """Prepare for an attempt that begins, after all lines of the run were folded.

        In the gate of a nested session: prepare for that session. Its `folds` receive the lines
        from then on; `run.steps` has the earlier steps.
        """

    def resuming(self, session: Session, run: str) -> None:
        """Raise to refuse that a run is resumed, before anything is recorded; in a thread maybe."""

    def conceal(self, event: Event) -> Event:
        """Return a line in the form to be hashed, folded and written."""
        return event

    def arriving(self, place: Place, *, is_async: bool) -> Work | None:
        """Return work to do before a call, or a block, gets its place; asked once for each.

        Args:
            place: where the call is made.
            is_async: whether the work may be awaited; for a block, it may not.
        """

    def where(self, call: Call | None, place: Place) -> Place | None:
        """Return the place of an arriving call or block, if a framework knows better; else None.

        Args:
            call: the call; None for a block.
            place: where it is made. `works` counts the pieces of a framework's work around it that
                a stage has already accounted for.
        """

    def prepare(self, call: Call, match: Match) -> Work | None:
        """Return work that has to be done before a call may begin, or None.

        It changes nothing itself. After the work, the call is decided and matched anew, and each
        stage is asked again. It is asked about hits, too (`match.kind`), unless the stage
        `is_about_recorded`; for a read or a pure call it is the last seam before the body. To
        refuse the call, raise what `rollcage.refuse` returns.
        """

    def ready(self, call: Call) -> bool:  # noqa: ARG002 - of those that override it
        """Tell whether a write or a scope may still begin, with its intent on record.

        If not, the intent is withdrawn, and the call is decided anew. Raise to refuse the call.
        """
        return True

    def dropped(self, call: Call) -> Work | None:
        """Return work for a call that ends before it began: refused, cut off, or halted.

        Or it begins afresh, behind an undo or a pause: all that stages kept is forgotten, except
        for what `where` kept, and `prepare` is asked as for the first time.
        """

    def begun(self, call: Call) -> Work | None:
        """Return work between the record of an intent, of a write or a scope, and the body.

        Raise to record that the call did not happen.
        """

    def around(self, call: Call, body: Body) -> Body:  # noqa: ARG002 - of those that override it
        """Return a body to run in place of the given one."""
        return body

    def hit(self, call: Call, step: Step) -> Work | None:
        """Return work for a call that a recorded step answers, before the caller gets the outcome.

        The work runs after the other stages were notified of the answer, outside of the lock.
        """

    def inside(self, call: Call) -> AbstractContextManager[object]:
        """Return a context manager to enter around a body, in the body's own thread or task.

        For a stream, it is entered for each chunk. It receives no error. A read that a tool's own
        function makes (`call.place.looks`) is no step, and has no `event`.
        """
        raise NotImplementedError

    def marks(self, call: Call) -> Event | None:
        """Return fields for the line with which a call begins.

        Fields outside of the published schema have a dot in their names: `acme.budget`.
        """

    def shows(self, call: Call) -> Mapping[str, Any] | None:
        """Return fields for a rule's view of a call, besides the fields of the core."""

    def settled(self, call: Call | None, outcome: Outcome, step: Step | None) -> Event | None:
        """Return fields for the line with which a call ends.

        Args:
            call: the call; None for a step in a framework's memory, which nothing asked for.
            outcome: how the call ended.
            step: the recorded step that answered the call; None if the body ran.
        """

    def leaving(self, session: Session, *, is_async: bool) -> Work | None:
        """Return work to do before a session that is left without an error ends."""

    def closed(self, session: Session, error: BaseException | None) -> str | None:
        """Return a status for an ending attempt, in place of `ok`; else None."""


class Guard:
    """Decide on calls, in every round and under the session's lock: be quick and pure.

    A `Stage` may stand in a gate, too, and have these methods and attributes.

    Attributes:
        enforces: whether the guard blocks anything. If False for the whole gate, tools may run in
            threads without a session.
        strict: whether arguments that need coercion are refused.
        digest: the identity of the guard's rules, to which approvals are bound; empty without one.
        approval_terms: for how many seconds an approval counts, and who may approve; None: no
            terms.
    """

    enforces = True
    strict = False
    digest = ""
    approval_terms: tuple[float, frozenset[str] | None] | None = None

    def describes(self, session: Session) -> Event | None:  # noqa: ARG002 - of those that override it
        """Return a description for the attempt's line; by default, the name of the class.

        Called on entering the session; in an async session, by a thread.
        """
        return {"guard": type(self).__qualname__}

    def screen(self, contract: Contract, body: Body | None, kind: str) -> Verdict | None:
        """Return a denial if nothing of a tool may run, validators included.

        Args:
            contract: the contract of the tool.
            body: the function to be called, if the caller knows it.
            kind: `tool` or `model`.
        """

    def screen_undo(self, contract: Contract) -> Verdict | None:
        """Return a denial if an undo must not call a tool, observe with it, or probe with it.

        A write whose plan names such a tool is not begun; an undo that needs one touches nothing.
        """

    def decide(self, call: Call) -> Verdict | None:
        """Return the verdict on a call, or None to abstain. A guard that raises denies."""

    def settled(self, call: Call | None, outcome: Outcome, step: Step | None) -> None:
        """Take notice of an ended call. A guard that raises here denies all later calls."""


@runtime_checkable
class OfSession(Protocol):
    """Make an instance for each session: a gate entry with state per session, such as a policy."""

    def of_session(self) -> Guard | Stage:
        """Return the guard or stage for one session."""
        ...


def from_environment(session: Session) -> tuple[Stage, ...]:
    """Return the stage that `ROLLCAGE_STAGE=NAME:TEXT` adds to each session of the process.

    The entry point `NAME` of the group `rollcage.stages` makes the stage from the text and the
    session.

    Raises:
        SessionError: no installed package has such a stage.
    """
    said = os.environ.get("ROLLCAGE_STAGE")
    if not said:
        return ()
    from importlib.metadata import entry_points

    name, _, text = said.partition(":")
    for found in entry_points(group="rollcage.stages", name=name):
        return (found.load()(text, session),)
    raise SessionError(
        f"ROLLCAGE_STAGE={said}: no installed package brings a stage {name!r}, so nothing runs. "
        f"Install rollcage-{name} beside this program, or unset ROLLCAGE_STAGE"
    )


def overridden(each: Any, name: str, *bases: type) -> Any:
    """Return the method that a class defines in place of its base's; None without one."""
    return getattr(each, name) if _defines(type(each), name, *bases) else None


def _defines(kind: type, name: str, *bases: type) -> bool:
    found = getattr(kind, name, None)
    return found is not None and all(found is not getattr(base, name, None) for base in bases)


class Hooks:
    """Hold the methods that a session's stages override, by seam, in order.

    Attributes:
        contract: the contract to which they apply; None: the session itself.
        prepare_new: `prepare` of the stages that are not about recorded steps alone.
    """

    contract: Contract | None = None

    def __init__(self, stages: Iterable[Stage]) -> None:
        none: tuple[Any, ...] = ()
        self.opening = self.resuming = self.opened = self.leaving = self.closed = none
        self.arriving = self.where = self.prepare = self.prepare_new = self.marks = none
        self.begun = self.ready = self.dropped = self.around = self.inside = none
        self.hit = self.settled = self.conceal = self.shows = none
        self.folds: dict[str, list[Fold]] = {}
        for stage in stages:
            kind: Any = type(stage)  # mypy takes no class for a Hashable
            for seam in _seams_of(kind):
                setattr(self, seam, (*getattr(self, seam), getattr(stage, seam)))
                if seam == "prepare" and not stage.is_about_recorded:
                    self.prepare_new += (stage.prepare,)
            for kind, fold in stage.folds.items():
                self.folds.setdefault(kind, []).append(fold)


_SEAMS: Final = tuple(seam for seam in vars(Hooks(())) if seam != "folds")


@functools.lru_cache(maxsize=1024)
def _seams_of(kind: type[Stage]) -> tuple[str, ...]:
    """Return the seams for which a class of stages has a method."""
    return tuple(seam for seam in _SEAMS if _defines(kind, seam, Stage, Guard))
