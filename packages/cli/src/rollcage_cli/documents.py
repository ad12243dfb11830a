"""What a store keeps besides its runs, which is copied with them.

::

    registry    the tools of the store, as far as the other store does not have their lines
    signals     what was sent to an execution, and which wait took it
    holds       that one was paused or cancelled
    results     what became of commands: by whom an execution was started
    commands    what nobody has done yet: moved with its execution
    schedules   of workflows
    plans       outlines of the plans that executions had, by digest
    actions     who did what with a server; where the other store has such a log of its own, it says
                so and stays as it is

What belongs to a run, its large values, requests, claims and order, `rollcage_stores.copies` takes
along.
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
_SENT: Final = ("signals", "holds", _RESULTS)  # what is about one execution
_ALONE: Final = ("schedules", "actions")  # what is about none


class Beside(NamedTuple):
    """What became of something that belongs to no run."""

    kind: str
    key: str
    what: What
    error: RollcageError | None = None


def copy_beside(
    source: Store, target: Store, names: Collection[str] | None, *, move: bool
) -> Iterator[Beside]:
    """Copy what a store keeps besides its runs; yield what became of each.

    A command goes only where its execution goes on: it is moved with it.

    Args:
        source: where it is.
        target: where it goes.
        names: only what is about executions of these names; None for all.
        move: whether their runs were moved, not copied.
    """
    if names is None:
        yield from _registry_of(source, target)
    for kind in (_PLANS, *_SENT, *(_ALONE if names is None else ())):
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


def _registry_of(source: Store, target: Store) -> Iterator[Beside]:
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


def _kept(target: Store, kind: str, key: str, data: bytes) -> Beside:
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
    return unicodedata.normalize("NFC", str(content["execution"]))
