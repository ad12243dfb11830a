"""`rollcage mcp ops`: runs, undo and approvals as tools, for an agent or an IDE.

Each tool but `approve_call` is a command of `rollcage`, run as a process of its own, with that
command's rights. A model may call the tools: so the person at the client is asked before an
approval, a resolution and an undo, which let effects happen. The person's name is set when the
server is started, never by the client.
"""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import orjson
from rollcage import UndoPlan
from rollcage.errors import RollcageError

from rollcage_mcp.confirming import confirm_resolution, confirm_undo
from rollcage_mcp.dialog import through
from rollcage_mcp.messages import text_result
from rollcage_mcp.queued import approve_queued
from rollcage_mcp.serving import ServedTool

__all__ = ["SCOPES", "Scope", "ops_tools"]

Scope = Literal["read", "undo", "approve", "resolve"]
SCOPES: Final[tuple[Scope, ...]] = ("read", "undo", "approve", "resolve")

_RUN: Final = {
    "type": "string",
    "description": "A run's id, its beginning or end, @NAME (the newest so named), or latest.",
}
_TO: Final = {"type": "integer", "minimum": 1, "description": "Undo only the steps after this."}
_LINES: Final = 60_000  # characters of an answer


@dataclasses.dataclass(frozen=True)
class _Operation:
    """A tool: its parameters, and the command made from them."""

    scope: Scope
    description: str
    properties: Mapping[str, Any]
    required: tuple[str, ...]
    words: Callable[[Mapping[str, Any]], list[str]]
    """The command, its options and its arguments; of a tool that asks a person, the command."""


def _option(name: str, given: Mapping[str, Any], field: str) -> list[str]:
    return [] if given.get(field) is None else [f"--{name}={given[field]}"]


_OPERATIONS: Final[Mapping[str, _Operation]] = {
    "list_runs": _Operation(
        "read",
        "List the runs of the store, newest first: id, job, status, when.",
        {
            "name": {"type": "string", "description": "Only runs of this job."},
            "status": {"type": "string", "description": "Only with this status."},
            "limit": {
                "type": "integer",
                "minimum": 1,
                "description": "At most this many, the newest first.",
            },
        },
        (),
        lambda a: [
            "runs",
            *_option("name", a, "name"),
            *_option("status", a, "status"),
            f"--limit={a.get('limit', 20)}",
        ],
    ),
    "show_run": _Operation(
        "read",
        "Show the steps of a run: what was called with what, and what came of it.",
        {"run": _RUN},
        ("run",),
        lambda a: ["show", "--", a["run"]],
    ),
    "diff_runs": _Operation(
        "read",
        "Compare two runs step by step.",
        {"a": _RUN, "b": _RUN},
        ("a", "b"),
        lambda a: ["diff", "--", a["a"], a["b"]],
    ),
    "plan_undo": _Operation(
        "read",
        "Say what an undo of a run would do, and what stands in its way. Changes nothing.",
        {"run": _RUN, "to": _TO},
        ("run",),
        lambda a: ["undo", "--plan", *_option("to", a, "to"), "--", a["run"]],
    ),
    "undo_run": _Operation(
        "undo",
        "Have the person at this client asked whether to undo what a run did, the newest effect "
        "first, and verify it. Look at plan_undo before.",
        {"run": _RUN, "to": _TO},
        ("run",),
        lambda a: ["undo", "--plan", *_option("to", a, "to"), "--", a["run"]],
    ),
    "list_approvals": _Operation(
        "read", "List the calls that wait for approval.", {}, (), lambda _: ["approvals"]
    ),
    "approve_call": _Operation(
        "approve",
        "Have the person at this client asked whether a call that waits may run, once.",
        {"id": {"type": "string"}},
        ("id",),
        lambda _: ["approve"],
    ),
    "reject_call": _Operation(
        "approve",
        "Reject a call that waits; its agent reads the reason.",
        {"id": {"type": "string"}, "reason": {"type": "string"}},
        ("id", "reason"),
        lambda a: ["reject", *_option("reason", a, "reason"), "--", a["id"]],
    ),
    "resolve_step": _Operation(
        "resolve",
        "Have the person at this client asked to confirm whether a write of unknown outcome "
        "happened. Find out first: this can't be undone.",
        {
            "run": _RUN,
            "step": {"type": "integer", "minimum": 1},
            "happened": {"type": "boolean"},
            "result": {"type": "string", "description": "Its result as JSON, if it happened."},
        },
        ("run", "step", "happened"),
        lambda _: ["resolve"],
    ),
}
_TYPES: Final[Mapping[str, type]] = {"string": str, "integer": int, "boolean": bool}


def ops_tools(
    scopes: Sequence[Scope], *, store: str, by: str | None, tools: Sequence[str] = ()
) -> list[ServedTool]:
    """Return the tools of these scopes.

    Args:
        scopes: the client's rights.
        store: the store of the runs.
        by: the person at the client, who is asked to approve and to confirm, if that is a scope.
        tools: the tools of an undo, as `--tools` names them.
    """
    desk = _Desk(store, by or "", tools)

    def served(name: str, operation: _Operation) -> ServedTool:
        async def call(arguments: Mapping[str, Any]) -> dict[str, Any]:
            wrong = _wrong(operation, arguments)
            if wrong:
                return text_result(f"{name}: {wrong}", is_error=True)
            try:
                return await desk.do(name, operation.words(arguments), arguments)
            except RollcageError as error:
                return text_result(str(error), is_error=True)

        schema = {
            "type": "object",
            "properties": dict(operation.properties),
            "required": list(operation.required),
            "additionalProperties": False,
        }
        hints = {"readOnlyHint": operation.scope == "read", "openWorldHint": False}
        return ServedTool(name, operation.description, schema, call, hints)

    return [served(name, each) for name, each in _OPERATIONS.items() if each.scope in scopes]


@dataclasses.dataclass(frozen=True)
class _Desk:
    """A store, and the person at the client."""

    store: str
    by: str
    tools: Sequence[str]

    async def do(
        self, name: str, words: Sequence[str], arguments: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the result of an operation; raise `RollcageError` if it is refused."""
        match name:
            case "approve_call":
                decided = await approve_queued(self.store, arguments["id"], by=self.by)
                approved = decided["decision"]["decision"] == "approved"
                return text_result(orjson.dumps(decided).decode(), is_error=not approved)
            case "resolve_step":
                said = await confirm_resolution(self.store, arguments, by=self.by)
                return (await self._run(*words, *said)).result
            case "undo_run":
                return await self._undo(words)
            case "reject_call":  # needs no dialog: a rejected call does not run
                command, *rest = words
                return (await self._run(command, f"--by={through('the agent')}", *rest)).result
            case _:
                return (await self._run(*words)).result

    async def _undo(self, words: Sequence[str]) -> dict[str, Any]:
        """Plan an undo, and carry the plan out if the person at the client confirms it."""
        planned = await self._run(*words)
        if planned.failed:
            return planned.result
        plan = UndoPlan.from_data(orjson.loads(planned.out)["plan"])
        if not plan.steps or plan.conflicts:
            return planned.result
        confirmed = await confirm_undo(self.store, plan)
        return (await self._run("undo", *confirmed)).result

    async def _run(self, command: str, *words: str) -> _Ran:
        """Run a command to its end, with the options that every command gets."""
        own = ["--json", f"--store={self.store}"]
        if command == "undo":
            own += [f"--tools={each}" for each in self.tools]
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "rollcage",
            command,
            *own,
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, error = await process.communicate()
        return _Ran(process.returncode or 0, out, error)


class _Ran(NamedTuple):
    """A command that has ended: its exit code and its output."""

    code: int
    out: bytes
    error: bytes

    @property
    def failed(self) -> bool:
        """Whether nothing was done; with 1, something is left or differs."""
        return self.code not in (0, 1) or not self.out

    @property
    def result(self) -> dict[str, Any]:
        """The output for a client; if the command failed, its error."""
        text = (self.out or self.error).decode(errors="replace").strip()
        if len(text) > _LINES:
            text = f"{text[:_LINES]}\n… cut: {len(text)} characters; ask for less"
        return text_result(text or "done", is_error=self.failed)


def _wrong(operation: _Operation, arguments: Mapping[str, Any]) -> str:
    """Return the problem of the arguments; empty without one."""
    unknown = [each for each in arguments if each not in operation.properties]
    if unknown:
        return f"no argument {unknown[0]!r}; it has {', '.join(operation.properties) or 'none'}"
    missing = [each for each in operation.required if each not in arguments]
    if missing:
        return f"the argument {missing[0]!r} is missing"
    for name, value in arguments.items():
        wanted = operation.properties[name]["type"]
        if type(value) is not _TYPES[wanted]:
            return f"the argument {name!r} has to be of type {wanted}"
        if isinstance(value, str) and "\0" in value:
            return f"the argument {name!r} holds a NUL"
        if operation.properties[name] is not _RUN:
            continue
        if "/" in str(value) or str(value).endswith(".jsonl"):
            return f"{value!r} would be a file: only runs of the store can be named here"
    return ""
