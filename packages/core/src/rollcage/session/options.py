"""The options of a session for the run that it records, checked when it is made."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any, Literal

from rollcage.contract.permissions import Enforce
from rollcage.errors import SessionError
from rollcage.gate import person
from rollcage.replay.fork import Fork, asked_for
from rollcage.session.job import Replay
from rollcage.session.lineage import MODES
from rollcage.session.scope import Unguarded
from rollcage.step.ledger import OnDivergence
from rollcage.store.jobs import job_name
from rollcage.store.url import RunSource

__all__ = ["Options", "fork_of", "person_acted_for"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """See `Session`, whose arguments these are.

    Raises:
        SessionError: one of them is none of its allowed values, or two of them contradict.
    """

    replay: Replay
    source: RunSource | None
    fork: Fork | None
    input: Any
    within: int | None  # µs
    chain: Literal["effects", "all"]
    durability: Literal["os", "disk"]
    on_divergence: OnDivergence
    seed: str
    retry_failed: bool | None
    enforce: Enforce
    unguarded: Unguarded | None
    secrets: Literal["declared", "detected"]
    actor: str
    before_resume: Callable[[str], None]
    imported: Mapping[str, Any] | None = None  # see `importing`

    def __post_init__(self) -> None:
        _check("replay", self.replay, tuple(MODES))
        _check("chain", self.chain, ("effects", "all"))
        _check("durability", self.durability, ("os", "disk"))
        _check("on_divergence", self.on_divergence, ("halt", "warn", "undo"))
        _check("enforce", self.enforce, ("off", "report", "strict"))
        _check("unguarded", self.unguarded, (None, "warn", "refuse"))
        _check("secrets", self.secrets, ("declared", "detected"))
        if self.fork is not None and (self.source is not None or self.replay != "auto"):
            raise SessionError("a fork names its run itself: it takes no source= and no replay=")
        if self.source is not None and self.replay == "off":
            raise SessionError('replay="off" starts a new run: it takes no source=')


def _check(field: str, value: Any, allowed: tuple[Any, ...]) -> None:
    if value not in allowed:
        raise SessionError(f"{field}={value!r} is not one of {', '.join(map(repr, allowed))}")


def fork_of(given: Fork | str | os.PathLike[str] | None, job: str, replay: Replay) -> Fork | None:
    """The fork that a session of this job is: the given one, or the one its process was started as.

    Raises:
        SessionError: its file can't be used, or it is a fork of another job's run.
    """
    if given is None:
        return None if replay in ("offline", "verify") else asked_for(job)
    fork = given if isinstance(given, Fork) else Fork.load(given)
    if fork.name and job_name(fork.name) != job:
        raise SessionError(f"the fork is one of a run of {fork.name!r}, not of {job!r}")
    return fork


def person_acted_for(actor: str) -> str:
    """The person that `actor=` names; empty if it names nobody.

    Raises:
        SessionError: the name can't be used.
    """
    if not actor:
        return ""
    try:
        return person(actor)
    except ValueError as error:
        raise SessionError(f"actor= has to name who the run acts for: {error}") from None
