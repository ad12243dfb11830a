"""A fork: a recorded run in which one step is another, to see what would have come of it.

Its log is a copy of the run's, two lines, and an attempt. `forked` makes all steps so far
*borrowed*: they answer, but are not this run's to take back. `changed` puts another outcome, or
other arguments, in the place of those of one step, and reopens the calls around it.

A dry fork ends before its first new write, also when it is resumed. A live one writes: with keys,
claims and undo of its own. A fork of a fork is the same. A run that goes on from another one
(`source=`) is a live fork of which nothing was changed, and which is the newest of its job.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from rollcage.errors import RollcageError, SessionError
from rollcage.heart.log import FORMAT
from rollcage.heart.store import open_store
from rollcage.values.codec import encode
from rollcage.values.exceptions import encode_exception

if TYPE_CHECKING:
    from rollcage.heart.run import Event, Run
    from rollcage.heart.store import Store

__all__ = ["ENVIRONMENT", "Fork", "asked_for", "copied_lines", "forked_lines"]

ENVIRONMENT: Final = "ROLLCAGE_FORK"
"""The environment variable that names the file of a fork which the sessions of a program become."""

_OTHER: Final = ("model", "policy", "tools", "answers")  # what only the old core's forks change


class Fork(NamedTuple):
    """A recorded run in which one step is another: a what-if.

    Attributes:
        run: the run.
        step: the step that is another; 0: none is.
        change: what it is, as the log has it: `{"outcome": {"status": "ok", "value": …}}`, which is
            given without its body; or `{"args": {…}}`, all of them: where the program asks for the
            step, it is performed with these.
        live: whether the fork may write; otherwise it ends before the first new write.
    """

    run: str
    step: int = 0
    change: Mapping[str, Any] = {}
    live: bool = False


def asked_for(name: str, store: Store) -> Fork | None:
    """Return the fork that the sessions of this process are to be, if there is one.

    The environment variable `ROLLCAGE_FORK` names its file, as `rollcage fork` writes it.

    Raises:
        SessionError: the file can't be used, or is of another job or store; nothing may run then.
    """
    path = os.environ.get(ENVIRONMENT)
    if not path:
        return None
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - a Path is slow to make
            data: Any = orjson.loads(file.read())
        run, job, step = str(data["run"]), data.get("name", ""), data.get("at") or 0
        other = next((each for each in _OTHER if data.get(each)), "")
        lies = open_store(str(data["store"])).url
        change = _change_in(data)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RollcageError) as error:
        raise SessionError(
            f"the fork in {path} can't be used: {type(error).__name__}: {error}"
        ) from None
    process = f"this process is to be a fork of run {run} ({ENVIRONMENT}={path})"
    if job and job != name:
        raise SessionError(
            f"{process}, which is one of {job!r}, and opens a session of {name!r}: nothing of that "
            f"runs. Fork a run of that job, or unset {ENVIRONMENT}"
        )
    if lies != store.url:
        raise SessionError(f"{process} in {lies}, and its session is one in {store.url}")
    if other:
        raise SessionError(f"{process} with another {other}, which a session of it can't have")
    return Fork(run, step if change else 0, change, live=bool(data.get("live")))


def _change_in(data: Mapping[str, Any]) -> dict[str, Any]:
    """What the file of a fork changes, as a log has it."""
    if data.get("args") is not None:
        return {"args": dict(data["args"])}
    if data.get("error"):
        raised = encode_exception(RuntimeError(str(data["error"])), str)
        return {"outcome": {"status": "error", "error": raised}}
    if "result" in data:
        value = encode(data["result"], str, path="result")
        return {"outcome": {"status": "ok", "value": value}}
    return {}


def copied_lines(events: list[Event], run: str, name: str, fork: Fork | None) -> list[Event]:
    """Return the lines of a run for the log of another one.

    The first says that it is a copy, so that one that was cut off is not taken for the run itself,
    and whether it is a fork, for lists.
    """
    source = events[0]
    first: Event = {"event": "run", "format": FORMAT, "run": run, "name": name}
    kept = ("time", "input", "actor", "seed")
    first.update((field, source[field]) for field in kept if field in source)
    first["copied"] = source["run"]
    if fork is not None:
        first["fork"] = "live" if fork.live else "dry"
    rest = [{field: each[field] for field in each if field != "hash"} for each in events[1:]]
    return [first, *rest]


def forked_lines(found: Run, fork: Fork | None, source: str, run: str, name: str) -> list[Event]:
    """Return the lines with which a fork of a run begins; without a fork, it goes on from that run.

    Raises:
        SessionError: there is no such step to change, or it can't be changed like this.
    """
    forked: Event = {"event": "forked", "run": run, "name": name, "from": source}
    if fork is None:
        return [{**forked, "continues": True}]
    if not fork.live:
        forked["dry"] = True
    if not fork.step:
        if fork.change:
            raise SessionError("a fork names the step that it changes")
        return [forked]
    where = f"step {fork.step} of run {source}"
    step = found.steps.get(fork.step)
    if step is None:
        raise SessionError(f"run {source} has no step {fork.step} to change")
    if step.gone or step.rolled:
        by = f": step {step.replacement} ran it again" if step.replacement else f" ({step.gone})"
        raise SessionError(f"{where} does not hold any more{by if step.gone else ' (rolled back)'}")
    if step.effect == "branch" or step.branch[:1] == "-":
        raise SessionError(f"{where} is no call of the program: it can't be changed")
    if set(fork.change) == {"outcome"}:
        outcome = fork.change["outcome"]
        needs = {"ok": "value", "error": "error"}.get(outcome.get("status", ""), "")
        if needs not in outcome:
            raise SessionError(
                f"an outcome is ok with a value or an error with an error: {outcome}"
            )
    elif set(fork.change) != {"args"}:
        raise SessionError(
            f"a fork changes either the outcome or the args of a step: not {sorted(fork.change)}"
        )
    return [forked, {"event": "changed", "step": fork.step, **fork.change}]
