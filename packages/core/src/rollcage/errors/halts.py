"""Errors that halt a session: nothing runs after one, even if it is swallowed."""

from __future__ import annotations

from rollcage.errors.root import RollcageError

__all__ = [
    "ApprovalRequired",
    "ControlLost",
    "Diverged",
    "Fenced",
    "ForkEnded",
    "Halt",
    "NotReplayable",
    "ReplayMiss",
    "RunStopped",
    "TraceUnwritable",
    "UndoIncomplete",
    "UnknownOutcome",
]


class Halt(RollcageError):
    """A condition that stops the run: the session stays halted even if this error is swallowed."""

    code = "halted"


class ApprovalRequired(Halt):
    """A rule asks for approval and there is no answer yet; the tool did not run."""

    code = "approval_required"


class ReplayMiss(Halt):
    """Replay found no recorded step for a call that may not run live; nothing ran."""

    code = "replay_miss"


class NotReplayable(Halt):
    """A recorded write whose result can't be returned, and which is not silently run again."""

    code = "not_replayable"


class Diverged(Halt):
    """The run is about to leave its recorded path with recorded effects still ahead.

    `orphans` lists them as (run id, step).
    """

    code = "diverged"

    def __init__(self, message: str, orphans: tuple[tuple[str, int], ...]) -> None:
        super().__init__(message)
        self.orphans = orphans


class UndoIncomplete(Halt):
    """A transaction could not be undone completely; the message lists the remaining steps."""

    code = "undo_incomplete"


class ForkEnded(Halt):
    """A fork reached a call that it must not make; the call did not happen.

    Attributes:
        status: how the fork ends: `would_write`, before a write that is not recorded; `would_ask`,
            before a call that requires an approval.
        name: the tool's name.
    """

    code = "fork_ended"

    def __init__(self, message: str, status: str = "would_write", name: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.name = name


class RunStopped(Halt):
    """The run was stopped: nothing runs in it, nor in a resume of it, until the stop is lifted.

    Attributes:
        run: the run that was stopped.
        by: the person who stopped it.
        reason: why.
    """

    code = "run_stopped"

    def __init__(self, run: str, by: str, reason: str, at: str = "") -> None:
        who = f" by {by}" if by else ""
        super().__init__(
            f"run {run} was stopped{who}: {reason or 'no reason was given'}. To let it go on: "
            f"rollcage stop {run} --lift{at}"
        )
        self.run = run
        self.by = by
        self.reason = reason


class ControlLost(Halt):
    """The file for orders to a live run was removed, cut or replaced, so it can't be stopped.

    Attributes:
        run: the run.
    """

    code = "control_lost"

    def __init__(self, run: str, reason: str) -> None:
        super().__init__(
            f"run {run} could no longer be stopped, so nothing more runs in it: {reason}. Leave "
            f"the files of a live run alone; the next session of its name resumes it"
        )
        self.run = run


class UnknownOutcome(Halt):
    """A write may have happened or not; a person has to resolve it."""

    code = "outcome_unknown"

    def __init__(self, message: str, run: str, step: int) -> None:
        super().__init__(message)
        self.run = run
        self.step = step


class TraceUnwritable(Halt):
    """The trace can't be written, so nothing more may run."""

    code = "trace_unwritable"


class Fenced(TraceUnwritable):
    """The run's log goes on without this writer: another session has taken the run over."""

    code = "run_taken_over"
