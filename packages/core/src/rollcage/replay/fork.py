"""What somebody asks of a fork: the run, the step, the one thing that is changed."""

from __future__ import annotations

import dataclasses
import enum
import importlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, cast

import orjson

from rollcage.contract.body import plain_body
from rollcage.contract.contract import Contract
from rollcage.errors import SessionError
from rollcage.store.url import RunSource

__all__ = ["ENVIRONMENT", "Change", "Fork", "Replacement", "asked_for"]

ENVIRONMENT: Final = "ROLLCAGE_FORK"
"""The environment variable that names the file of a fork which the sessions of a program become."""

Change = Literal["result", "args", "error", "model", "policy", "tools", "code"]
"""What is another one; `code`: nothing but the agent's own code."""

_CHANGES: Final[tuple[Change, ...]] = ("result", "args", "error", "model", "policy", "tools")
_AT_STEP: Final = ("result", "args", "error")
_WRITTEN: Final = ("at", "result", "error", "args", "model", "policy", "answers", "live")


class _Unchanged(enum.Enum):
    UNCHANGED = "unchanged"

    def __repr__(self) -> str:
        return "<unchanged>"


_UNCHANGED: Final = _Unchanged.UNCHANGED


class Replacement(NamedTuple):
    """A function that stands for a recorded tool."""

    contract: Contract
    function: Callable[..., Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Fork:
    """A recorded run with one thing changed, from a step on: see `Session(fork=...)`.

    What is recorded answers up to the step, and after it wherever the same call is made. Of what
    is not recorded, reads and models run; a write is answered by `answers`, or ends the fork.

    Args:
        run: the run: its id, the path of its trace, or `(store, id)`.
        at: the step that is changed, by its number in that run; or from which on another model or
            other tools are used. None: from the start.
        result: what the step gives instead: data, as the tool would give it.
        error: what the step raises instead; a text is raised as a `RuntimeError`.
        args: the arguments that the step has instead; those that are not named stay. What is not
            recorded of that call is found out, or answered, as of any other.
        model: the name of the model that is used instead. The session only passes it on (see
            `Session.fork`): the program makes that model, and every call of it runs.
        policy: decides instead of the policy of the session, from the start.
        tools: functions declared with `@rollcage.tool`: each runs instead of the tool of its name,
            unless it is a write itself.
        answers: by the name of a tool, what stands for a call of it that is not recorded: a value,
            or a function of its arguments.
        live: new writes are performed, and approvals asked for.
        name: the job that the run must be of; empty: any.

    Raises:
        SessionError: two things are changed, or `at` is missing, or no number of a step.
    """

    run: RunSource
    at: int | None = None
    _: dataclasses.KW_ONLY
    result: Any = _UNCHANGED
    error: BaseException | str | None = None
    args: Mapping[str, Any] | None = None
    model: str | None = None
    policy: Any = None
    tools: Iterable[Callable[..., Any]] = ()
    answers: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    live: bool = False
    name: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "tools", tuple(self.tools))
        object.__setattr__(self, "answers", MappingProxyType(dict(self.answers)))
        changed = self._changed()
        if len(changed) > 1:
            raise SessionError(
                f"a fork changes one thing, not {' and '.join(changed)}: fork the fork to change "
                f"another one"
            )
        if self.at is not None and (type(self.at) is not int or self.at < 1):
            raise SessionError(f"at={self.at!r} is not a step; steps count from 1")
        if changed and changed[0] in _AT_STEP and self.at is None:
            raise SessionError(f"{changed[0]}= changes one step: say which with at=")
        if self.policy is not None and self.at is not None:
            raise SessionError("another policy decides from the start: leave at= out")
        _ = self.replaced

    def _changed(self) -> list[Change]:
        fields = {each: getattr(self, each) is not None for each in _CHANGES}
        fields |= {"result": self.result is not _UNCHANGED, "tools": bool(self.tools)}
        return [each for each in _CHANGES if fields[each]]

    @property
    def change(self) -> Change:
        """What is changed."""
        changed = self._changed()
        return changed[0] if changed else "code"

    @property
    def replaced(self) -> Mapping[str, Replacement]:
        """The functions of `tools`, by the names of the tools that they stand for.

        Raises:
            SessionError: one is not declared.
        """
        found: dict[str, Replacement] = {}
        for each in self.tools:
            contract = getattr(each, "__rollcage_contract__", None)
            if not isinstance(contract, Contract):
                raise SessionError(
                    f"{getattr(each, '__name__', each)!r} is not a tool: declare it with "
                    f"@rollcage.tool"
                )
            found[contract.name] = Replacement(contract, plain_body(each))
        return found

    def as_data(self, run: str, policy: str = "") -> dict[str, Any]:
        """What the trace holds of it: see `ForkData` in `trace.models`."""
        named = {"model": self.model or "", "policy": policy, "tools": ", ".join(self.replaced)}
        fields: dict[str, Any] = {"run": run, "change": self.change}
        if self.at is not None:
            fields["step"] = self.at
        if to := named.get(self.change):
            fields["to"] = to
        if self.live:
            fields["live"] = True
        return fields

    # --- files -----------------------------------------------------------------------------------

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Fork:
        """A fork as `rollcage fork --save` has written it.

        Raises:
            SessionError: the file can't be read, or is no such file.
        """
        try:
            data: Any = orjson.loads(Path(path).read_bytes())
            given = {field: data[field] for field in _WRITTEN if field in data}
            run: RunSource = (str(data["store"]), str(data["run"]))
            tools = [tool for spec in data.get("tools", ()) for tool in _tools_of(spec)]
            return cls(run, **given, tools=tools, name=data.get("name", ""))
        except (OSError, ValueError, LookupError, TypeError, AttributeError, ImportError) as error:
            raise SessionError(
                f"the fork in {os.fspath(path)} can't be used: {type(error).__name__}: {error}"
            ) from None


def asked_for(name: str) -> Fork | None:
    """The fork that the sessions of this process are to be, if any: see `ENVIRONMENT`.

    Raises:
        SessionError: its file can't be used; or it is one of another job than `name`, of which
            nothing may run then.
    """
    path = os.environ.get(ENVIRONMENT)
    if not path:
        return None
    fork = Fork.load(path)
    if fork.name and fork.name != name:
        raise SessionError(
            f"this process is to be a fork of a run of {fork.name!r} ({ENVIRONMENT}={path}), and "
            f"opens a session of {name!r}: nothing of that runs. Fork a run of that job, or unset "
            f"{ENVIRONMENT}"
        )
    return fork


def _tools_of(spec: str) -> list[Callable[..., Any]]:
    """The declared tools of a module, `module` or `module:function`."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    module_name, _, attribute = spec.partition(":")
    named = vars(importlib.import_module(module_name))
    found = [named[attribute]] if attribute else named.values()
    tools = [t for t in found if isinstance(getattr(t, "__rollcage_contract__", None), Contract)]
    if not tools:
        raise ValueError(f"{spec} has no tools: declare them with @rollcage.tool")
    return cast("list[Callable[..., Any]]", tools)
