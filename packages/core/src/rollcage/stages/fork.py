"""Fork a recorded run: change one thing, and see the consequences.

The log of a fork is a copy of the run's log, then `forked`, the `changed` parts, and an attempt.
`forked` makes all steps so far *borrowed*: they answer calls, but this run must not take them back.
`changed` sets another outcome or other arguments for a step, and reopens the calls around it; or
names the steps that do not answer, because another model or tool is asked.

A dry fork ends before its first new write, even when resumed. A live fork writes, with its own
keys, claims and undo. A fork can be forked again. A run that goes on from another run (`source=`)
is a live fork without a change, and the newest run of its job. `rollcage.stages.whatif` supplies
the answers in a fork.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import orjson

from rollcage.contract.body import plain_body
from rollcage.contract.contract import Contract
from rollcage.errors import RollcageError, SessionError
from rollcage.trace.chain import FORMAT
from rollcage.trace.run import spans_of
from rollcage.trace.store import open_store
from rollcage.values.codec import encode
from rollcage.values.exceptions import encode_exception

if TYPE_CHECKING:
    from rollcage.replay.source import RunSource
    from rollcage.trace.run import Event, Run, Step
    from rollcage.trace.store import Store
    from rollcage.values.hiding import Seal

__all__ = ["ENVIRONMENT", "Fork", "Replacement", "asked_for", "copied_lines", "forked_lines"]

ENVIRONMENT: Final = "ROLLCAGE_FORK"
"""The environment variable with the file of a fork, which the sessions of a program become."""

HARMLESS: Final = frozenset({"pure", "read"})
"""The effects of tools that may run in place of a replaced tool."""


class _Unchanged(enum.Enum):
    UNCHANGED = "unchanged"

    def __repr__(self) -> str:
        return "<unchanged>"


_UNCHANGED: Final = _Unchanged.UNCHANGED
_CHANGES: Final = ("change", "result", "error", "args", "model", "policy", "tools")
_OF_A_STEP: Final = ("change", "result", "error", "args")


class Replacement(NamedTuple):
    """Hold a function that replaces a recorded tool."""

    contract: Contract
    function: Callable[..., Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Fork:
    """Describe a what-if: a recorded run with one change, for `Session(fork=...)`.

    Recorded steps answer calls up to the changed step, and after it wherever the same call is made.
    Unrecorded reads and models run; an unrecorded write is answered by `answers`, or ends the fork.

    Args:
        run: the run: its id, the path of its log, or `(store, id)`.
        at: the changed step; or the step from which another model or other tools are used. 0: from
            the start.
        change: the change in the form of the log, in place of the following arguments: `{"outcome":
            {"status": "ok", "value": …}}`, or `{"args": {…}}` with all arguments.
        live: whether new writes are performed, and approvals requested.
        result: another result of the step, as data in the form of the tool's result.
        error: an error of the step; a text is raised as a `RuntimeError`.
        args: other arguments of the step; arguments that are not named stay.
        model: the name of another model. The session passes it on (`Session.fork`): the program
            makes that model, and each call of it runs.
        policy: the policy that decides from the start, in place of the gate's entry of its class:
            any entry of a gate.
        tools: functions declared with `@rollcage.tool`: each runs in place of the tool of its name,
            unless it is a write.
        answers: by name of a tool, the answer to an unrecorded call: a value, or a function of the
            arguments.

    Raises:
        SessionError: more than one change is given; `at` is missing, or no step.
    """

    run: RunSource
    at: int = 0
    change: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    live: bool = False
    _: dataclasses.KW_ONLY
    result: Any = _UNCHANGED
    error: BaseException | str | None = None
    args: Mapping[str, Any] | None = None
    model: str = ""
    policy: Any = None
    tools: Iterable[Callable[..., Any]] = ()
    answers: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        object.__setattr__(self, "tools", tuple(self.tools))
        object.__setattr__(self, "answers", dict(self.answers))
        if type(self.at) is not int or self.at < 0:
            raise SessionError(f"at={self.at!r} is not a step; steps count from 1")
        changed = self._changed()
        if len(changed) > 1:
            raise SessionError(
                f"a fork changes one thing, not {' and '.join(changed)}: fork the fork to change "
                f"another one"
            )
        if changed and changed[0] in _OF_A_STEP and not self.at:
            raise SessionError(f"{changed[0]}= changes one step: say which with at=")
        if self.at and not changed:
            raise SessionError(f"at={self.at} names a step: say what is changed there")
        if self.policy is not None and self.at:
            raise SessionError("another policy decides from the start: leave at= out")
        _ = self.replaced

    def _changed(self) -> list[str]:
        has: dict[str, bool] = {name: bool(getattr(self, name)) for name in _CHANGES}
        has |= {"result": self.result is not _UNCHANGED, "args": self.args is not None}
        has |= {"error": self.error is not None, "policy": self.policy is not None}
        return [name for name in _CHANGES if has[name]]

    @property
    def changes(self) -> str:
        """Return the kind of the change: `result`, `args` and so on; `code`: only the program."""
        changed = (self._changed() or ["code"])[0]
        if changed != "change":
            return changed
        outcome = self.change.get("outcome")
        return (
            "args" if outcome is None else {"error": "error"}.get(outcome.get("status"), "result")
        )

    @property
    def changes_a_step(self) -> bool:
        """Tell whether a step is changed."""
        return self.changes in ("result", "error", "args")

    @property
    def replaced(self) -> Mapping[str, Replacement]:
        """Return the functions of `tools`, by the names of the tools that they replace.

        Raises:
            SessionError: a function is not declared.
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

    def entries_of(self, gate: Iterable[Any]) -> tuple[Any, ...]:
        """Return the entries of a session's gate in this fork, with its policy."""
        if self.policy is None:
            return tuple(gate)
        kind = type(self.policy)
        return (*(each for each in gate if type(each) is not kind), self.policy)

    def as_data(self) -> Event:
        """Return the fork in the form of the log, without the changes to steps."""
        data: Event = {"change": self.changes}
        if self.at:
            data["at"] = self.at
        named = {
            "model": self.model,
            "policy": str(getattr(self.policy, "name", "") or type(self.policy).__name__),
            "tools": ", ".join(self.replaced),
        }
        if to := named.get(self.changes):
            data["to"] = to
        if self.answers:
            data["answers"] = sorted(self.answers)
        return data


# --- files ---------------------------------------------------------------------------------------


def asked_for(name: str, store: Store) -> Fork | None:
    """Return the fork that the sessions of this process are to be; None without one.

    The environment variable `ROLLCAGE_FORK` names the file written by `rollcage fork`.

    Raises:
        SessionError: the file can't be used, or is for another job or store; nothing may run then.
    """
    path = os.environ.get(ENVIRONMENT)
    if not path:
        return None
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - a Path is slow to make
            data: Any = orjson.loads(file.read())
        run, job = str(data["run"]), data.get("name", "")
        lies = open_store(str(data["store"])).url
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RollcageError) as error:
        raise _unusable(path, error) from None
    process = f"this process is to be a fork of run {run} ({ENVIRONMENT}={path})"
    if job and job != name:
        raise SessionError(
            f"{process}, which is one of {job!r}, and opens a session of {name!r}: nothing of that "
            f"runs. Fork a run of that job, or unset {ENVIRONMENT}"
        )
    if lies != store.url:
        raise SessionError(f"{process} in {lies}, and its session is one in {store.url}")
    try:
        words = {word: data[word] for word in _WORDS if data.get(word) is not None}
        if "result" in data:
            words["result"] = data["result"]
        words["tools"] = [tool for spec in data.get("tools", ()) for tool in _tools_of(spec)]
        if "policy" in data:
            words["policy"] = _loaded(data["policy"])
        return Fork(run, **words)
    except Exception as error:
        raise _unusable(path, error) from error


_WORDS: Final = ("at", "live", "error", "args", "model", "answers")


def _unusable(path: str, error: Exception) -> SessionError:
    return SessionError(f"the fork in {path} can't be used: {type(error).__name__}: {error}")


def _loaded(data: Mapping[str, str]) -> Any:
    """Load a policy: `by` names the loader, as `module:Class.method`, of a `file`."""
    module, _, path = data["by"].partition(":")
    load: Any = importlib.import_module(module)
    for name in path.split("."):
        load = getattr(load, name)
    return load(data["file"])


def _tools_of(spec: str) -> list[Callable[..., Any]]:
    """Return the declared tools of a module, `module` or `module:function`."""
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


# --- lines ---------------------------------------------------------------------------------------


def copied_lines(events: list[Event], run: str, name: str, fork: Fork | None) -> list[Event]:
    """Return the lines of a run for the log of another run.

    The first line says that the log is a copy, so that an interrupted copy is not taken for the run
    itself, and whether it is a fork, for lists.
    """
    source = events[0]
    first: Event = {"event": "run", "format": FORMAT, "run": run, "name": name}
    kept = ("time", "input", "actor", "seed", "imported")
    first.update((field, source[field]) for field in kept if field in source)
    first["copied"] = source["run"]
    if fork is not None:
        first["fork"] = "live" if fork.live else "dry"
    rest = [{field: each[field] for field in each if field != "hash"} for each in events[1:]]
    return [first, *rest]


def forked_lines(
    found: Run, copied: list[Event], fork: Fork | None, source: str, name: str, seal: Seal
) -> list[Event]:
    """Return the first lines of a fork; without a fork, of a run that goes on from another run.

    Args:
        found: the run folded from the copied lines.
        copied: see `copied_lines`.
        fork: the fork.
        source: the id of the original run.
        name: the job.
        seal: hides the secrets in the change.

    Raises:
        SessionError: there is no such step to change, or it can't be changed like this; or the run
            was imported, and the fork would write.
    """
    if found.imported is not None and (fork is None or fork.live):
        raise SessionError(
            f"run {source} was imported, so nobody knows which of its writes were made: a fork of "
            f"it can't be live, and no session goes on from it"
        )
    forked: Event = {"event": "forked", "run": copied[0]["run"], "name": name, "from": source}
    if fork is None:
        return [{**forked, "continues": True}]
    if not fork.live:
        forked["dry"] = True
    if fork.changes != "code" or fork.answers:
        forked |= fork.as_data()
    if fork.at and fork.at not in found.steps:
        raise SessionError(f"run {source} has no step {fork.at} to change")
    if fork.changes_a_step:
        step = _changeable(found, fork.at, source)
        return [forked, {"event": "changed", "step": step.n, **_change_of(fork, copied, seal)}]
    asked = _asked_again(found, fork)
    return [forked, {"event": "changed", "remakes": asked}] if asked else [forked]


def _changeable(found: Run, n: int, source: str) -> Step:
    """Return a step that can be changed.

    Raises:
        SessionError: the step can't be changed.
    """
    where, step = f"step {n} of run {source}", found.steps[n]
    if step.gone or step.rolled:
        by = f": step {step.replacement} ran it again" if step.replacement else f" ({step.gone})"
        raise SessionError(f"{where} does not hold any more{by if step.gone else ' (rolled back)'}")
    if step.effect == "branch" or step.branch[:1] == "-":
        raise SessionError(f"{where} is no call of the program: it can't be changed")
    return step


def _change_of(fork: Fork, copied: list[Event], seal: Seal) -> Event:
    """Return the change of a step in the form of a log.

    Raises:
        SessionError: the change is invalid.
    """
    if fork.result is not _UNCHANGED:
        return {"outcome": {"status": "ok", "value": encode(fork.result, seal, path="result")}}
    if fork.error is not None:
        error = RuntimeError(fork.error) if isinstance(fork.error, str) else fork.error
        known = (type(error),) if isinstance(error, Exception) else ()
        raised = encode_exception(error, seal, known)
        return {"outcome": {"status": "error", "error": raised}}
    if fork.args is not None:
        given = {name: encode(each, seal, path=name) for name, each in fork.args.items()}
        recorded = next(
            each["args"] for each in copied if each["event"] == "step" and each["step"] == fork.at
        )
        args = {**recorded, **given}
        if args == recorded:
            raise SessionError(f"these are the arguments that step {fork.at} had: change one")
        return {"args": args}
    change = dict(fork.change)
    if set(change) == {"outcome"}:
        outcome = change["outcome"]
        needs = {"ok": "value", "error": "error"}.get(outcome.get("status", ""), "")
        if needs not in outcome:
            raise SessionError(
                f"an outcome is ok with a value or an error with an error: {outcome}"
            )
    elif set(change) != {"args"}:
        raise SessionError(
            f"a fork changes either the outcome or the args of a step: not {sorted(change)}"
        )
    return change


def _asked_again(found: Run, fork: Fork) -> list[list[int]]:
    """Return the steps that do not answer, because another model or tool is asked."""
    replaced = {name for name, each in fork.replaced.items() if each.contract.effect in HARMLESS}
    return spans_of(
        step.n
        for step in found.steps.values()
        if step.n >= fork.at and not (step.gone or step.rolled)
        if (fork.model if step.effect == "model" else step.name in replaced)
    )
