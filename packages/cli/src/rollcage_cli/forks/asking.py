"""What is asked of a fork, as the file that a program gets."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from rollcage.errors import SessionError
from rollcage.replay.fork import Fork
from rollcage.trace import Run, read_run
from rollcage_views import mapping_of
from rollcage_views.lineage import is_log

from rollcage_cli.errors import StepNotFound, UsageError
from rollcage_cli.lookup import Found
from rollcage_cli.options import json_given
from rollcage_cli.output import counted, visible

__all__ = ["ForkRequest", "asked_fork"]

_NOT_OF_A_LOG: Final = ("model", "policy", "answers")
_OPTIONS: Final = {"answers": "answer"}
_LEFT_OUT: Final[tuple[object, ...]] = (None, [], {}, False)


@dataclasses.dataclass(frozen=True, slots=True)
class ForkRequest:
    """A fork that is asked for.

    Attributes:
        found: the run, and where it lies.
        origin: the run, as its trace tells.
        data: as `rollcage.Fork.load` reads it.
    """

    found: Found
    origin: Run
    data: dict[str, Any]

    def write(self, path: Path) -> None:
        """Write it where a program finds it, for this user only."""
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
    """The fork that options of a command line ask for; nothing is run or written.

    Raises:
        UsageError: they contradict, or are not what they should be.
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
        changed["policy"] = str(policy.absolute())
    if answers:
        changed["answers"] = dict(map(_answer, answers))
    changes = {name: each for name, each in changed.items() if each not in _LEFT_OUT}
    if result is not None:
        changes["result"] = json_given("--result", result)
    try:  # tools are loaded where the program is
        fork = Fork(found.run, **changes)
    except SessionError as wrong:
        raise UsageError(str(wrong)) from None
    if tools and fork.change != "code":
        raise UsageError("a fork changes one thing: leave --tools out, or the other change")
    if is_log(origin):
        _as_log(origin, at, changes, tools)
    where = str(getattr(found.reader, "url", ""))
    data = {"store": _absolute(where), "run": found.run, "name": origin.started["name"], **changes}
    return ForkRequest(found, origin, {**data, "tools": [*tools]} if tools else data)


def _as_log(origin: Run, at: int | None, changes: dict[str, Any], tools: Sequence[str]) -> None:
    """Have the changes be those of a fork of a log: all arguments of its step.

    Raises:
        UsageError: a session of the heart can't be such a fork.
    """
    other = ["tools"] if tools else [name for name in _NOT_OF_A_LOG if name in changes]
    if other:
        option = _OPTIONS.get(other[0], other[0])
        raise UsageError(
            f"run {origin.id} has the format rollcage/2, of which a fork changes the result, the "
            f"arguments or the error of a step, or only the code: leave out --{option}"
        )
    step = None if at is None else origin.step(at)
    if step is not None and "args" in changes:
        changes["args"] = {**step.args, **changes["args"]}


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
