"""The documents of a store besides its runs, which are copied with them.

::

    registry    the lines of the log, as far as the other store does not have them
    approvals   of a run: what was asked, decided and used; of an execution: what its waits asked
    signals     what was sent to an execution, and which wait took it
    holds       that one was paused or cancelled
    results     what became of commands: by whom an execution was started
    commands    what nobody has done yet; after all runs, or it would be done without them
    schedules   of workflows
    plans       outlines of the plans that executions had, by digest
    actions     who did what with a server; where the other store has such a log of its own, it says
                so and stays as it is

What is not copied is derived (`rollcage repair` rebuilds it), or ends with a process: locks.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Any, Final, Literal, NamedTuple

import orjson
from rollcage import Store as Heart
from rollcage.errors import RollcageError, RunConflict, RunInUse
from rollcage.heart import drop, every_key
from rollcage.store import Line, RunTrace, Store, job_name

__all__ = [
    "Beside",
    "Sent",
    "What",
    "copy_approvals",
    "copy_beside",
    "copy_commands",
    "copy_of_heart",
    "copy_plans",
    "put",
    "sent_in",
]

Sent = dict[tuple[str, str], bytes]
"""Documents by kind and key."""
What = Literal["copied", "moved", "already there", "in use", "elsewhere", "conflict", "unreadable"]

_REGISTRY: Final = "registry"
_APPROVALS: Final = "approvals"
_COMMANDS: Final = "commands"
_RESULTS: Final = "results"
_PLANS: Final = "plans"
_SCHEDULES: Final = "schedules"
_ACTIONS: Final = "actions"
_SENT: Final = ("signals", "holds", _RESULTS)  # what is about one execution
_WAITS: Final = "workflow.approval"  # what people are asked by a wait of one
_ASKED: Final = b'{"event":"approval.requested"'
_OF: Final = re.compile(r"([0-9a-f]+)(-[0-9]+)?\..*")  # a request's id, in the key of a document
_PLAN: Final = re.compile(rb'"digest":"([0-9a-f]{64})"')  # what an execution notes of its plan
_SEALED: Final = frozenset({"hash"})  # what a log adds to a line


class Beside(NamedTuple):
    """What became of something that belongs to no run."""

    kind: str
    key: str
    what: What
    error: RollcageError | None = None


def put(target: Store, kind: str, key: str, data: bytes, whose: str) -> bool:
    """Keep a document; whether it is new. Raises RunConflict where another one has its key."""
    if target.put_once(kind, key, data):
        if kind == _RESULTS:
            target.drop(_COMMANDS, key)  # it was copied when nobody had done it yet
        return True
    if target.get(kind, key) != data:
        raise RunConflict(
            f"{whose} {key} says something else in {target.url}: it was given or used in both "
            f"stores since it was copied"
        )
    return False


def copy_approvals(source: Store, target: Store, trace: RunTrace) -> bool:
    """Copy what was asked, decided and used of a run's requests; whether anything was new."""
    asked = {orjson.loads(line)["id"] for line in trace.data.splitlines() if _ASKED in line[:40]}
    if not asked:
        return False
    new = False
    for key in source.keys(_APPROVALS):
        found = _OF.fullmatch(key)
        if found is None or found[1] not in asked:
            continue
        data = source.get(_APPROVALS, key) or b""
        new = put(target, _APPROVALS, key, data, f"run {trace.run}: its approval") or new
    return new


def copy_plans(source: Store, target: Store, trace: RunTrace) -> None:
    """Copy the outlines of the plans that a run names; one that is there already stays."""
    kept = set(source.keys(_PLANS))
    named = {found.decode() for found in _PLAN.findall(trace.data)} if kept else set[str]()
    for digest in kept & named:
        outline = source.get(_PLANS, digest)
        if outline is not None:
            target.put_once(_PLANS, digest, outline)


def sent_in(store: Store) -> dict[str, Sent]:
    """By the execution that they are about: signals, holds, results, and what waits asked people.

    Those that can't be read have no name: they fail in the other store as they do here.
    """
    found: dict[str, Sent] = {"": {}}
    for kind in (*_SENT, _APPROVALS):
        for key in store.keys(kind):
            data = store.get(kind, key) or b""
            try:
                content = orjson.loads(data)
                if kind != _APPROVALS:
                    found.setdefault(_execution(content), {})[kind, key] = data
                elif content["part"] == "request" and content["name"] == _WAITS:
                    asked = key.removesuffix("request")
                    own = found.setdefault(job_name(str(content["args"]["execution"])), {})
                    own |= {(kind, each): store.get(kind, each) or b"" for each in store.keys(kind)
                            if each.startswith(asked)}  # fmt: skip
            except (ValueError, TypeError, LookupError):
                if kind != _APPROVALS:
                    found[""][kind, key] = data
    return found


def copy_beside(source: Store, target: Store, sent: dict[str, Sent]) -> Iterator[Beside]:
    """Copy the registry, schedules, who did what, what was `sent` to executions without runs."""
    try:
        lines = _copy_registry(source, target)
        if lines is not None:
            yield Beside("registry", "", "copied" if lines else "already there")
    except RollcageError as error:
        what: What = "conflict" if isinstance(error, RunConflict) else "unreadable"
        yield Beside("registry", "", what, error)
    alone = {(kind, key): source.get(kind, key) or b""
             for kind in (_SCHEDULES, _ACTIONS) for key in source.keys(kind)}  # fmt: skip
    for documents in (*sent.values(), alone):
        for (kind, key), data in documents.items():
            yield _put_beside(target, kind, key, data)


def copy_commands(
    source: Store, target: Store, copied: Collection[str], names: Collection[str] | None
) -> Iterator[Beside]:
    """Copy what nobody has done yet.

    A command stays where a run of what it is about did not come along (`copied`): a worker would
    begin from nothing what was begun in that run.

    Args:
        source: where they are.
        target: where they go.
        copied: the runs that are in the target.
        names: only those about executions of these names; None for all.
    """
    for key in source.keys(_COMMANDS):
        data = source.get(_COMMANDS, key)
        if data is None or target.get(_RESULTS, key) is not None:
            continue  # it was done, here or there
        try:
            name = _execution(orjson.loads(data))
        except (ValueError, TypeError, LookupError):
            name = ""
        if names is not None and name not in names:
            continue
        left = [info.run for info in source.runs(name=name) if info.run not in copied]
        if left:
            why = f"the command {key} about {name!r} stays, because run {left[-1]} was not copied"
            yield Beside(_COMMANDS, key, "in use", RunInUse(why))
        else:
            yield _put_beside(target, _COMMANDS, key, data)


def copy_of_heart(
    source: Heart, target: Heart, names: Collection[str] | None, *, move: bool
) -> Iterator[Beside]:
    """Copy what workflows of the heart keep beside their runs.

    A command goes only where its execution goes on: it is moved with it.

    Args:
        source: where it is.
        target: where it goes.
        names: only what is about executions of these names; None for all.
        move: whether their runs were moved, not copied.
    """
    if names is None:
        yield from _registry_of(source, target)
    for kind in (_PLANS, *_SENT, *((_SCHEDULES, _ACTIONS) if names is None else ())):
        for key in every_key(source, kind):
            data = source.get(kind, key)
            if data is not None and _is_about(kind, data, names):
                yield _kept(target, kind, key, data)
    for key in every_key(source, _COMMANDS) if move else ():
        data = source.get(_COMMANDS, key)
        if data is None or target.get(_RESULTS, key) is not None:
            continue  # it was done, here or there
        if _is_about(_COMMANDS, data, names):
            found = _kept(target, _COMMANDS, key, data)
            if found.error is None:
                drop(source, _COMMANDS, key)
            yield found


def _registry_of(source: Heart, target: Heart) -> Iterator[Beside]:
    """Copy the registry of tools, if the target's is an earlier state of it.

    Its lines are one value, chained by hashes, so an earlier state is the beginning of a later one;
    the note of where they end goes last, as it does when a line is added.
    """
    while True:
        own, end = source.get(_REGISTRY, "lines"), source.get(_REGISTRY, "end")
        if own is None:
            return
        there = target.get(_REGISTRY, "lines") or b""
        if there.startswith(own):
            yield Beside(_REGISTRY, "", "already there")
            return
        if not own.startswith(there):
            message = (
                f"the registry of tools in {target.url} has lines of its own: tools were proposed "
                f"or approved in both stores. The target's stays; see: rollcage tools log"
            )
            yield Beside(_REGISTRY, "", "conflict", RunConflict(message))
            return
        if target.swap(_REGISTRY, "lines", there or None, own):
            target.swap(_REGISTRY, "end", target.get(_REGISTRY, "end"), end)
            yield Beside(_REGISTRY, "", "copied")
            return


def _is_about(kind: str, data: bytes, names: Collection[str] | None) -> bool:
    if names is None or kind == _PLANS:
        return True
    try:
        return _execution(orjson.loads(data)) in names
    except (ValueError, TypeError, LookupError):
        return False


def _kept(target: Heart, kind: str, key: str, data: bytes) -> Beside:
    there = target.get(kind, key)
    if there is None and target.swap(kind, key, None, data):
        if kind == _RESULTS:
            drop(target, _COMMANDS, key)
        return Beside(kind, key, "copied")
    if (there or target.get(kind, key)) == data:
        return Beside(kind, key, "already there")
    message = f"the document of {kind} {key} says something else in the other store"
    return Beside(kind, key, "conflict", RunConflict(message))


def _execution(document: Any) -> str:
    """Which execution a document is about. Raises LookupError, TypeError."""
    content = document if "execution" in document else document["content"]  # a command is sealed
    content = content if "execution" in content else content["command"]  # and its result
    return job_name(str(content["execution"]))


def _put_beside(target: Store, kind: str, key: str, data: bytes) -> Beside:
    try:
        new = put(target, kind, key, data, f"the document of {kind}")
    except RunConflict as error:
        return Beside(kind, key, "conflict", error)
    return Beside(kind, key, "copied" if new else "already there")


def _copy_registry(source: Store, target: Store) -> int | None:
    """Add the lines that the target does not have; how many. None where there are none at all.

    Raises:
        RegistryCorrupt: one of the two is damaged.
        RunConflict: tools were proposed or approved in both.
    """
    begins = "registry.started"
    own = source.log("registry", begins).read()
    if not own:
        return None

    def missing(here: list[Line]) -> list[dict[str, Any]]:
        if own[: len(here)] != here[: len(own)]:
            raise RunConflict(
                f"the registry of tools in {target.url} has lines of its own: tools were proposed "
                f"or approved in both stores. The target's stays; see: rollcage tools log"
            )
        return [{name: value for name, value in line.items() if name not in _SEALED}
                for _, line in own[len(here) :]]  # fmt: skip

    return len(target.log("registry", begins).append(missing))
