"""A job: which run a session continues, by its name and its input."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Callable, Iterable
from typing import Any, Final, Literal

import orjson

from rollcage.errors import RunAbandoned, RunNotFound, RunTooOld, SessionError
from rollcage.fingerprint.identity import jcs
from rollcage.replay.fork import Fork
from rollcage.store.jobs import store_option
from rollcage.store.protocol import RunInfo, Store
from rollcage.store.url import RunSource
from rollcage.values.codec import encode
from rollcage.values.hiding import Seal, hidden

__all__ = ["JobRequest", "Replay", "encode_input", "microseconds"]

Replay = Literal["auto", "continue", "off", "resume", "offline", "verify"]
"""How a session treats what is recorded: see `Session`."""

_SHOWN: Final = 1000  # bytes of an input that the trace holds as it is


@dataclasses.dataclass(frozen=True, slots=True)
class JobRequest:
    """Which run a session continues, and how.

    Attributes:
        name: of the job.
        input: the digest of what it works on; None if it was given none.
        replay: what the session does with what is recorded.
        source: the run that is named, if one is.
        within: how old the last line of a run that is continued may be (µs); None: any age.
        clock: the time now (Unix, ns).
        fork: what a fork was asked to be; the run is the one that it names.
        before_resume: see `Session`.
    """

    name: str
    input: str | None
    replay: Replay
    source: RunSource | None
    within: int | None
    clock: Callable[[], int]
    fork: Fork | None = None
    before_resume: Callable[[str], None] = lambda _: None

    def newest(self, store: Store) -> RunInfo | None:
        """The run to be replayed, if any: the newest of the job, as far as the mode takes it.

        Raises:
            RunNotFound: there is none, and the mode needs one.
            RunAbandoned: it was set aside, and the mode would resume it.
        """
        found = store.newest(self.name, self.input)
        if found is None:
            if self.replay in ("auto", "continue"):
                return None
            raise RunNotFound(self._none(store.runs(name=self.name)))
        if found.status == "abandoned" and self.replay in ("auto", "continue"):
            return None
        if found.status == "ok" and self.replay == "auto":
            return None
        self.check(found, store)
        return found

    def check(self, info: RunInfo, store: Store) -> None:
        """Check that this run may be continued.

        Raises:
            RunAbandoned: it was set aside.
            SessionError: it is of another input.
        """
        if self.replay in ("offline", "verify"):
            return
        if info.status == "abandoned":
            raise RunAbandoned(
                f"run {info.run} was abandoned, so no session resumes it. Start a new run with "
                f'replay="off", or look at it: rollcage show {info.run}{store_option(store)}'
            )
        if info.input != self.input:
            raise SessionError(
                f"run {info.run} of {info.name!r} had {'another' if info.input else 'no'} input: "
                f"it is another job. Pass the input that it had, or start a new run with "
                f"replay='off'"
            )

    def check_age(self, run: str, time: int, store: Store) -> None:
        """Check that a run was last written to (at a `time`) recently enough to be continued.

        Only wall clocks can say. If one was set back since, the run may be from the future: it
        counts as new, because its effects must not be performed twice.

        Raises:
            RunTooOld: it was not.
        """
        if self.within is None:
            return
        age = self.clock() // 1000 - time
        if age > self.within:
            at = store_option(store)
            raise RunTooOld(
                f"run {run} of {self.name!r} was last written to {_span(age)} ago, and "
                f"resume_within={_span(self.within)}. To resume it all the same, pass a longer "
                f"resume_within=; to undo what it did: rollcage undo {run}{at}; to keep that and "
                f"start over: rollcage abandon {run}{at}"
            )

    def _none(self, runs: Iterable[RunInfo]) -> str:
        others = sum(info.mode in ("record", "resume") for info in runs)
        if not others:
            return f"the store has no run of {self.name!r} to replay"
        which = "without an input" if self.input is None else "with this input"
        return (
            f"the store has no run of {self.name!r} {which} to replay; {others} of it "
            f"{'has' if others == 1 else 'have'} another. Pass the input that it had as input=, or "
            f"the run's id as source="
        )


def encode_input(value: Any, seal: Seal, hmac: Callable[[str], str]) -> dict[str, Any]:
    """What `run.started` holds of an input: a keyed digest, and what is small as it is.

    Raises:
        Unencodable: a value without an encoding, with its path.
    """
    encoded = encode(value, seal, path="input")
    held = {"digest": hmac(jcs(["rollcage/1 input", encoded]).decode())}
    shown = hidden(encoded, seal).value
    return held | ({"value": shown} if len(orjson.dumps(shown)) <= _SHOWN else {})


def microseconds(within: dt.timedelta | float | None) -> int | None:
    """A span of time, given as such or in seconds.

    Raises:
        SessionError: it is none, or negative.
    """
    if within is None:
        return None
    try:
        span = within if isinstance(within, dt.timedelta) else dt.timedelta(0, within)
    except (TypeError, ValueError, OverflowError):
        span = dt.timedelta(-1)
    if span < dt.timedelta(0):
        raise SessionError(
            f"resume_within={within!r} is not a time span: pass a timedelta, or seconds from 0 up"
        )
    return span // dt.timedelta(microseconds=1)


def _span(span: int) -> str:
    return str(dt.timedelta(seconds=span // 1_000_000))
