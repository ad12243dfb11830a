"""The request for a fork, as the file that the program reads."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from rollcage.errors import SessionError
from rollcage_fork import Fork
from rollcage_views import Run, mapping_of, read_run

from rollcage_cli.errors import StepNotFound, UsageError
from rollcage_cli.logfile import LogFile
from rollcage_cli.lookup import Found
from rollcage_cli.options import json_given
from rollcage_cli.output import counted, visible

__all__ = ["ForkRequest", "asked_fork"]

_POLICY: Final = "rollcage_policy:Policy.load"  # loads a policy, in the program's process
_LEFT_OUT: Final[tuple[object, ...]] = (None, [], {}, False)


@dataclasses.dataclass(frozen=True, slots=True)
class ForkRequest:
    """A request for a fork.

    Attributes:
        found: the run, and its place.
        origin: the run, from its log.
        data: the content of the file that `ROLLCAGE_STAGE=fork:FILE` names.
    """

    found: Found
    origin: Run
    data: dict[str, Any]

    def write(self, path: Path) -> None:
        """Write the request to a file for the program, readable by this user only."""
        path.touch(mode=0o600)
        path.write_text(json.dumps(self.data, indent=2) + "\n", encoding="utf-8")


def asked_fork(
    found: Found,
    *,
    at: int | None = None,
    result: str | None = None,
    args: str | None = None,
    error: str | None = None,
    model: str | None = None,
    policy: Path | None = None,
    tools: Sequence[str] = (),
    answers: Sequence[str] = (),
    live: bool = False,
) -> ForkRequest:
    """Return the fork that the options request; nothing is run or written.

    Raises:
        UsageError: the options contradict each other, or are not valid.
        StepNotFound: the run has no such step.
    """
    origin = read_run(found.read())
    if at is not None and origin.step(at) is None:
        raise StepNotFound(
            f"run {found.run} has no step {at}; it has {counted(len(origin.steps), 'step')}"
        )
    changed: dict[str, Any] = {"at": at, "error": error, "model": model, "live": live}
    if args is not None:
        changed["args"] = _object("--args", args)
    if policy is not None:
        if not policy.is_file():
            raise UsageError(f"--policy {policy}: there is no such file")
        changed["policy"] = {"by": _POLICY, "file": str(policy.absolute())}
    if answers:
        changed["answers"] = dict(map(_answer, answers))
    changes = {name: each for name, each in changed.items() if each not in _LEFT_OUT}
    if result is not None:
        changes["result"] = json_given("--result", result)
    try:  # tools are loaded in the program's process
        checked = {name: each for name, each in changes.items() if name != "at" or not tools}
        fork = Fork(found.run, **checked)
    except SessionError as wrong:
        raise UsageError(str(wrong)) from None
    if tools and fork.changes != "code":
        raise UsageError("a fork changes one thing: leave --tools out, or the other change")
    if isinstance(found.store, LogFile):
        raise UsageError(
            f"run {found.run} is a file outside of a store, and its fork needs one: "
            f"rollcage import it first"
        )
    where = _absolute(found.store.url)
    data = {"store": where, "run": found.run, "name": origin.started["name"], **changes}
    return ForkRequest(found, origin, {**data, "tools": [*tools]} if tools else data)


def _absolute(url: str) -> str:
    return url if "://" in url or url.startswith("sqlite:") else str(Path(url).absolute())


def _object(option: str, text: str) -> dict[str, Any]:
    value = mapping_of(json_given(option, text))
    if value is None:
        raise UsageError(f'{option} wants the arguments by name, as {{"city": "Rome"}}')
    return value


def _answer(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"--answer {visible(text)!r} is not TOOL=JSON")
    return name, json_given(f"--answer {name}=", value)
