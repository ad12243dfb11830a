"""LangGraph's own memory: what its checkpoints hold as done.

A graph with a checkpointer goes on from its last checkpoint and runs nothing that came before. A
guarded call stands in a task of a superstep, which runs from one checkpoint; the place of a call is
the path of those, from the outermost graph inwards. What was done in a superstep is held once a
later checkpoint descends from its own; of the superstep that is run again, what was done by those
tasks whose writes the checkpointer has kept.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from rollcage import Session
from rollcage.adapter import is_object

__all__ = ["follow_checkpoints"]

_CHECKPOINTER: Final = "__pregel_checkpointer"  # by this key nested graphs get it; a test holds it
_UNFINISHED: Final = frozenset({"__error__", "__interrupt__", "__resume__", "__scheduled__"})

Stored = CheckpointTuple | None
Looking = Generator[RunnableConfig, Stored, bool]
"""Decides by what is stored: gives the config of a checkpoint, and is sent what there is of it."""


def follow_checkpoints(session: Session) -> None:
    """Let a session look at LangGraph's checkpoints before each call in a graph that has them.

    So it knows what a graph that goes on by itself will not ask for again. `guard_tools`,
    `guard_model`, `RollcageMiddleware` and `tool_node_wrappers` do so themselves; it is for graphs
    whose nodes call functions declared with `@rollcage.tool`, or `session.call`, and nothing else.
    """
    session.follow(_Checkpoints())


class _Level(NamedTuple):
    """A task of a graph, and the checkpoint that its superstep runs from."""

    graph: str  # its namespace; empty for the outermost
    checkpoint: str
    task: str  # its name and id


class _Checkpoints:
    """What the checkpointers hold that the graphs of one session run with."""

    def __init__(self) -> None:
        # By thread, graph and checkpoint: the one before it, and the tasks whose writes were kept
        # when somebody looked first; what is run here after that is asked for, or left out.
        self.parents: dict[tuple[str, str, str], str] = {}
        self.kept: dict[tuple[str, str, str], frozenset[str]] = {}
        # Supersteps whose checkpoint was never stored, by thread and graph: they are run again.
        self.lost: dict[tuple[str, str, str], bool] = {}

    def here(self) -> _Place | None:
        """Where the graph stands whose node this is; None outside of one with a checkpointer."""
        config: Mapping[str, Any] = var_child_runnable_config.get() or {}
        given: Any = config.get("configurable")
        if not is_object(given):
            return None
        saver, thread = given.get(_CHECKPOINTER), given.get("thread_id")
        if not isinstance(saver, BaseCheckpointSaver) or thread is None:
            return None
        at: Any = given.get("checkpoint_map")
        namespace = str(given.get("checkpoint_ns") or "")
        levels = _levels(namespace, at) if is_object(at) else ()
        step = (config.get("metadata") or {}).get("langgraph_step", 0)
        return _Place(self, saver, str(thread), namespace, levels, step) if levels else None  # pyright: ignore[reportUnknownArgumentType] - a framework's own data


class _Place:
    """Where a graph stands; see `rollcage.adapter.Standing`."""

    def __init__(
        self,
        memory: _Checkpoints,
        saver: BaseCheckpointSaver[Any],
        thread: str,
        namespace: str,
        at: Sequence[_Level],
        step: int,
    ) -> None:
        self.conversation = thread
        self.checkpoint = f"{namespace}@{','.join(level.checkpoint for level in at)}#{step}"
        # A task of the functional API is called by another one: they are no superstep.
        called = len(at) > 1 and at[-1].checkpoint == at[-2].checkpoint
        self.at_once = "" if called else f"{at[-1].graph}@{at[-1].checkpoint}"
        self._memory = memory
        self._saver = saver
        self._at = at
        self._step = str(step)

    def is_beside(self, checkpoint: str) -> bool:
        """Whether a place is in another task of the same superstep."""
        namespace, _, at = checkpoint.rpartition("@")
        for own, its in zip(self._at, _read(namespace, at), strict=False):
            if own != its:
                lost = self._memory.lost.get((self.conversation, its.graph, its.checkpoint))
                same = own.checkpoint == its.checkpoint or bool(lost and self._step == _step(at))
                return same and own.graph == its.graph
        return False

    def held(self, places: Iterable[tuple[str, str]]) -> frozenset[tuple[str, str]]:
        """Those of the places at which everything is done."""
        done: list[tuple[str, str]] = []
        looking = self._held(places, done)
        found: Stored = None
        with contextlib.suppress(asyncio.InvalidStateError):  # it is to be awaited, in this thread
            while (config := _next(looking, found)) is not None:
                found = self._saver.get_tuple(config)
        return frozenset(done)

    async def aheld(self, places: Iterable[tuple[str, str]]) -> frozenset[tuple[str, str]]:
        """The same with a checkpointer that is awaited."""
        done: list[tuple[str, str]] = []
        looking = self._held(places, done)
        found: Stored = None
        while (config := _next(looking, found)) is not None:
            found = await self._saver.aget_tuple(config)
        return frozenset(done)

    # --- looking, sync and async -----------------------------------------------------------------

    def _held(
        self, places: Iterable[tuple[str, str]], done: list[tuple[str, str]]
    ) -> Generator[RunnableConfig, Stored, None]:
        for each in self._at:  # before anything is run from here
            yield from self._kept(self.conversation, each)
        ahead: set[str] = set()  # threads whose next recorded step is still to come
        for thread, place in places:
            namespace, _, at = place.rpartition("@")
            recorded = _read(namespace, at)
            if not recorded or thread in ahead:
                continue
            if (yield from self._is_done(thread, recorded)):
                done.append((thread, place))
            elif thread != self.conversation:
                ahead.add(thread)
            elif recorded[0].checkpoint != self._at[0].checkpoint:
                yield from self._look_for(recorded[0])
                return  # of a superstep that is still to come, and so is all that was behind it

    def _is_done(self, thread: str, recorded: Sequence[_Level]) -> Looking:
        here = self._at if thread == self.conversation else ()
        shared = 0
        while shared < min(len(here), len(recorded)) and here[shared] == recorded[shared]:
            shared += 1
        beside = shared < len(here) and shared < len(recorded)
        if beside and here[shared].checkpoint != recorded[shared].checkpoint:
            its = recorded[shared]
            if (thread, its.graph, its.checkpoint) not in self._memory.kept:
                return (yield from self._descends(thread, here[shared], its.checkpoint))
        for i, its in enumerate(recorded[shared:], shared):
            inside = i > shared or not beside
            if inside and (i == 0 or its.checkpoint != recorded[i - 1].checkpoint):
                stored = yield _config(thread, its.graph)  # another thread, or a task's own graph
                if stored is None:
                    return False
                latest = its._replace(checkpoint=_id(stored.config))
                if latest.checkpoint != its.checkpoint:
                    return (yield from self._descends(thread, latest, its.checkpoint))
            if its.task.rpartition(":")[2] in (yield from self._kept(thread, its)):
                return True
        return False

    def _look_for(self, level: _Level) -> Generator[RunnableConfig, Stored, None]:
        """Find out whether a checkpoint was stored at all."""
        place = self.conversation, level.graph, level.checkpoint
        if place not in self._memory.lost:
            stored = yield _config(*place)
            self._memory.lost[place] = stored is None

    def _kept(
        self, thread: str, level: _Level
    ) -> Generator[RunnableConfig, Stored, frozenset[str]]:
        """The ids of the tasks of a superstep whose writes are kept."""
        place = thread, level.graph, level.checkpoint
        known = self._memory.kept.get(place)
        if known is None:
            stored = yield _config(thread, level.graph, level.checkpoint)
            writes = (stored.pending_writes or ()) if stored is not None else ()
            known = frozenset(task for task, channel, _ in writes if channel not in _UNFINISHED)
            self._memory.kept[place] = known
        return known

    def _descends(self, thread: str, level: _Level, ancestor: str) -> Looking:
        """Whether a checkpoint comes, directly or not, from another one."""
        parents, at = self._memory.parents, level.checkpoint
        while True:
            place = thread, level.graph, at
            before = parents.get(place)
            if before is None:
                stored = yield _config(thread, level.graph, at)
                if stored is not None:
                    before = parents[place] = _id(stored.parent_config)
                elif at == level.checkpoint:  # not stored yet: it comes from the latest one that is
                    stored = yield _config(thread, level.graph)
                    before = _id(stored.config) if stored is not None else ""
            if before in ("", None, ancestor):
                return before == ancestor
            at = before


def _config(thread: str, graph: str, checkpoint: str = "") -> RunnableConfig:
    """Of a checkpoint; without one, of the latest that is stored."""
    given = {"thread_id": thread, "checkpoint_ns": graph}
    return {"configurable": given | ({"checkpoint_id": checkpoint} if checkpoint else {})}


def _next(looking: Generator[RunnableConfig, Stored, None], found: Stored) -> RunnableConfig | None:
    try:
        return looking.send(found)
    except StopIteration:
        return None


def _id(config: RunnableConfig | None) -> str:
    return "" if config is None else str(config["configurable"].get("checkpoint_id") or "")  # pyright: ignore[reportTypedDictNotRequiredAccess] - known to mypy


# --- places --------------------------------------------------------------------------------------


def _levels(namespace: str, at: Mapping[str, Any]) -> Sequence[_Level]:
    """The tasks that a namespace goes through, each with its superstep's checkpoint."""
    levels = [_Level(graph, str(at.get(graph, "")), task) for graph, task in _tasks(namespace)]
    return _of_graphs(levels) if all(level.checkpoint for level in levels) else ()


def _read(namespace: str, at: str) -> Sequence[_Level]:
    """The levels of a recorded place."""
    tasks = _tasks(namespace)
    return _of_graphs(
        [
            _Level(graph, checkpoint, task)
            for (graph, task), checkpoint in zip(
                tasks, at.partition("#")[0].split(","), strict=False
            )
        ]
    )


def _step(at: str) -> str:
    """The number of the superstep that a recorded place is in."""
    return at.partition("#")[2]


def _tasks(namespace: str) -> list[tuple[str, str]]:
    """`a:1|b:2` is task `b:2` of the graph that task `a:1` runs; `a:1|1|b:2`, of its second one."""
    parts = namespace.split("|")
    return [("|".join(parts[:i]), part) for i, part in enumerate(parts) if ":" in part]


def _of_graphs(levels: list[_Level]) -> Sequence[_Level]:
    """A task of the functional API runs in the superstep of the one that calls it."""
    for i in range(1, len(levels)):
        if levels[i].checkpoint == levels[i - 1].checkpoint:
            levels[i] = levels[i]._replace(graph=levels[i - 1].graph)
    return levels
