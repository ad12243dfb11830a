"""The data of a store besides its runs, which is copied with them.

::

    registry    the tools of the store, if the other store lacks their lines
    signals     messages to an execution, and the waits that took them
    holds       pauses and cancellations of an execution
    results     results of commands, with the person who started an execution
    commands    open commands: moved with their execution
    schedules   of workflows
    plans       outlines of the executions' plans, by digest
    servers     what was accepted of MCP servers
    conversations   the runs of each conversation, whose labels later runs know
    actions     the audit log of a server; if the other store has an audit log of its own, the copy
                reports it and leaves it unchanged

The data of a run (its large values, requests, claims and order) is copied by
`rollcage_stores.copies`.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson
from rollcage import Store
from rollcage.errors import RollcageError, RunConflict
from rollcage.trace.store import drop, every_key

if TYPE_CHECKING:
    from rollcage_stores.copies import What

__all__ = ["Beside", "copy_beside"]

_COMMANDS: Final = "commands"
_RESULTS: Final = "results"
_PLANS: Final = "plans"
_REGISTRY: Final = "registry"
_SENT: Final = ("signals", "holds", _RESULTS)  # data about one execution
_ALONE: Final = ("schedules", "actions")  # data about no execution
# without these, the other store would trust more
_ALWAYS: Final = (_PLANS, "servers", "conversations")


class Beside(NamedTuple):
    """The result of copying something that belongs to no run."""

    kind: str
    key: str
    what: What
    error: RollcageError | None = None


def copy_beside(
    source: Store, target: Store, names: Collection[str] | None, *, move: bool
) -> Iterator[Beside]:
    """Copy a store's data besides its runs; yield the result for each.

    A command is moved only with its execution.

    Args:
        source: the source.
        target: the target.
        names: only data about executions with these names; None for all.
        move: whether their runs were moved, not copied.
    """
    if names is None:
        yield from _registry_of(source, target)
    for kind in (*_ALWAYS, *_SENT, *(_ALONE if names is None else ())):
        for key in every_key(source, kind):
            data = source.get(kind, key)
            if data is not None and _is_about(kind, data, names):
                yield _kept(target, kind, key, data)
    for key in every_key(source, _COMMANDS) if move else ():
        data = source.get(_COMMANDS, key)
        if data is None or target.get(_RESULTS, key) is not None:
            continue  # the command is done, here or there
        if _is_about(_COMMANDS, data, names):
            found = _kept(target, _COMMANDS, key, data)
            if found.error is None:
                drop(source, _COMMANDS, key)
            yield found


def _registry_of(source: Store, target: Store) -> Iterator[Beside]:
    """Copy the registry of tools, if the target's is an earlier state of it.

    Its lines are one value, chained by hashes, so an earlier state is the beginning of a later one;
    the note of their end is copied last, as when a line is added.
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
    if names is None or kind in _ALWAYS:
        return True
    try:
        return _execution(orjson.loads(data)) in names
    except (ValueError, TypeError, LookupError):
        return False


def _kept(target: Store, kind: str, key: str, data: bytes) -> Beside:
    there = target.get(kind, key)
    if there is None and target.swap(kind, key, None, data):
        if kind == _RESULTS:
            drop(target, _COMMANDS, key)
        return Beside(kind, key, "copied")
    there = there or target.get(kind, key)
    if there is not None and _said(kind, there) == _said(kind, data):
        return Beside(kind, key, "already there")
    message = f"the document of {kind} {key} says something else in the other store"
    return Beside(kind, key, "conflict", RunConflict(message))


def _said(kind: str, data: bytes) -> Any:
    """Return what a document says: of a schedule, without how far each store's workers are."""
    if kind != "schedules":
        return data
    try:
        fields = orjson.loads(data)
        return {name: each for name, each in fields.items() if name != "progress"}
    except (ValueError, AttributeError):  # it is damaged
        return data


def _execution(document: Any) -> str:
    """Return the execution of a document. Raises LookupError, TypeError."""
    content = document if "execution" in document else document["content"]  # a command is sealed
    content = content if "execution" in content else content["command"]  # and its result
    return unicodedata.normalize("NFC", str(content["execution"]))
