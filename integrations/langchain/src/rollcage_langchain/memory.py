"""LangGraph's own memory: the steps in its checkpoints, and its running tasks.

A graph with a checkpointer continues from its last checkpoint and repeats nothing before it. A
guarded call is made in a task of a superstep, which runs from one checkpoint; a call's place is the
path of these, from the outermost graph inwards. The calls of a superstep are held once a later
checkpoint descends from its own; of a superstep that runs again, the calls of tasks whose writes
the checkpointer has kept.

Concurrent tasks of a superstep are branches, with or without a checkpointer. A task that a retry
policy, or an answered interrupt, starts over requests the same calls again.

When the session is left, each thread that it continued is checked: if a task of its latest
checkpoint was interrupted and has not ended since, the run is paused.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import weakref
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from rollcage import Session
from rollcage_adapter import (
    FrameworkMemory,
    FrameworkWork,
    Spot,
    Standing,
    follow,
    is_object,
    session_here,
    stepped,
)

from rollcage_langchain.levels import Level, levels_of, read_levels, round_of, tasks_of
from rollcage_langchain.private import (
    INTERRUPT,
    UNFINISHED,
    attempt_in,
    checkpointer_in,
    task_in,
    tasks_beside,
)

__all__ = ["Checkpoints", "follow_checkpoints", "followed", "note_attempt"]

_log: Final = logging.getLogger("rollcage")

_NOTED: Final = 1024  # tasks whose starts are counted

Stored = CheckpointTuple | None
Read = Callable[[RunnableConfig], Awaitable[Stored]]
"""A checkpointer's data for a config; a sync one is read at once, and never waits."""


def follow_checkpoints(session: Session) -> None:
    """Let a session read LangGraph's checkpoints before each call in a graph that has them.

    So it knows the calls that a continuing graph does not repeat. `guard_tools`, `guard_model`,
    `RollcageMiddleware` and `tool_node_wrappers` do so themselves; it is for graphs whose nodes
    only call functions declared with `@rollcage.tool`, or `session.call`.
    """
    follow(session, followed(session))


def followed(session: Session) -> Checkpoints:
    """Return the checkpoints known to a session, or to the outermost one around it."""
    found = _FOLLOWED.get(session) or _FOLLOWED.get(session.outermost)
    if found is None:
        found = _FOLLOWED.setdefault(session.outermost, Checkpoints(session.outermost))
    return _FOLLOWED.setdefault(session, found)


def note_attempt() -> None:
    """Tell the session around a starting runnable the attempt at its task."""
    session = session_here()
    if session is not None:
        followed(session).note()


class Checkpoints(FrameworkMemory):
    """The checkpointers of the graphs of one session."""

    def __init__(self, session: Session) -> None:
        self._session = weakref.ref(session)
        self._threads: dict[tuple[str, int], _Thread] = {}  # by name and checkpointer
        self._interrupted: set[str] = set()  # guarded calls, by their ids
        self._noted: OrderedDict[str, FrameworkWork] = OrderedDict()  # the latest, by task
        # By thread, graph and checkpoint: the one before it, and the tasks whose writes were kept
        # at the first look; later calls are either requested, or left out.
        self.parents: dict[tuple[str, str, str], str] = {}
        self.kept: dict[tuple[str, str, str], frozenset[str]] = {}

    def here(self) -> Standing | None:
        """Return the place of this node's graph; None outside of one with a checkpointer."""
        config: Mapping[str, Any] = var_child_runnable_config.get() or {}
        given: Any = config.get("configurable")
        if not is_object(given):
            return None
        saver, thread = checkpointer_in(given), given.get("thread_id")
        if not isinstance(saver, BaseCheckpointSaver) or thread is None:
            return None
        self.goes_on(str(thread), saver)  # pyright: ignore[reportUnknownArgumentType] - a framework's own data
        at: Any = given.get("checkpoint_map")
        namespace = str(given.get("checkpoint_ns") or "")
        levels = levels_of(namespace, at) if is_object(at) else ()
        step = (config.get("metadata") or {}).get("langgraph_step", 0)
        return _Place(self, saver, str(thread), namespace, levels, step) if levels else None  # pyright: ignore[reportUnknownArgumentType] - a framework's own data

    # --- running tasks ---------------------------------------------------------------------------

    def works(self) -> Sequence[FrameworkWork]:
        """Return the tasks around this context, the outermost first."""
        own = self.note()
        if own is None:
            return ()
        around: list[FrameworkWork] = []
        for graph, task in tasks_of(own.name)[:-1]:
            name = f"{graph}|{task}" if graph else task
            around.append(self._noted.get(name) or FrameworkWork(name, None, 0))
        return [*around, own]

    def note(self) -> FrameworkWork | None:
        """Note the attempt at its task: an inner graph has no other way to know."""
        config: Mapping[str, Any] = var_child_runnable_config.get() or {}
        given: Any = config.get("configurable")
        found = attempt_in(given)
        name = "" if found is None else str(given.get("checkpoint_ns") or "")
        if found is None or not name:
            return None
        # A retry continues the counters of the attempt before; a resume begins with new ones.
        known = self._noted.get(name)
        if known is not None and known.by is found[0] and known.number == found[1]:
            return known
        metadata: Mapping[str, Any] = config.get("metadata") or {}
        work = self._noted[name] = self._work(name, given, metadata, *found)
        while len(self._noted) > _NOTED:
            self._noted.popitem(last=False)
        return work

    @staticmethod
    def _work(
        name: str, given: Mapping[str, Any], metadata: Mapping[str, Any], by: object, number: int
    ) -> FrameworkWork:
        graph, _ = tasks_of(name)[-1]
        task = task_in(metadata)
        beside = tasks_beside(given)
        at: Any = given.get("checkpoint_map")
        checkpoint = at.get(graph, "") if is_object(at) else ""
        around = f"{graph}|" if graph else ""
        return FrameworkWork(
            name,
            by,
            number,
            round=f"{around}@{checkpoint}#{metadata.get('langgraph_step', 0)}",
            apart=task.is_called or len(beside) > 1,
            task=task.name,
            slot=task.slot if task.is_push else _index(beside, task.name),
            beside=() if task.is_called else beside,
        )

    def goes_on(self, thread: str, saver: BaseCheckpointSaver[Any]) -> None:
        """Note that a graph continues a thread, or that the job's recording has steps of it."""
        if (place := (thread, id(saver))) not in self._threads:
            self._threads[place] = _Thread(thread, saver)

    # --- waits -----------------------------------------------------------------------------------

    def interrupted(self, call: str) -> None:
        """Note that a guarded call (its id; empty for a model) has interrupted its graph."""
        self._interrupted.add(call)
        if (session := self._session()) is not None:
            session.pause("the graph was interrupted")

    def came_back(self, call: str) -> None:
        """Note that a guarded call has ended: it no longer waits."""
        if call in self._interrupted:
            self._interrupted.remove(call)
            self._none_waits()

    def _none_waits(self) -> None:
        session = self._session()
        if not self._interrupted and session is not None:
            session.go_on()

    def waits(self) -> str | None:
        """Return the threads that wait for an answer, when the session is left."""
        return stepped(self._waits_by(_Thread.read))

    async def awaits(self) -> str | None:
        """Do the same as `waits`, with checkpointers that are awaited."""
        return await self._waits_by(_Thread.aread)

    async def _waits_by(self, read: Callable[[_Thread], Awaitable[Stored]]) -> str | None:
        found = [await each.waits(read) for each in self._threads.values()]
        waiting = [
            repr(each.name)
            for each, waits in zip(self._threads.values(), found, strict=True)
            if waits
        ]
        if waiting:
            return f"an answer to the interrupt of LangGraph's thread {', '.join(waiting)}"
        if self._interrupted and None not in found:  # an answer never came, and none is awaited
            self._interrupted.clear()
            self._none_waits()
        return None


_FOLLOWED: Final[WeakKeyDictionary[Session, Checkpoints]] = WeakKeyDictionary()


class _Thread(NamedTuple):
    """A thread of a checkpointer."""

    name: str
    saver: BaseCheckpointSaver[Any]

    async def waits(self, read: Callable[[_Thread], Awaitable[Stored]]) -> bool | None:
        """Return whether a task of it was interrupted and has not ended since; None if unknown."""
        try:
            return _waits(await read(self))
        except Exception as error:  # noqa: BLE001 - of whatever stores it
            _log.warning(
                "whether LangGraph's thread %r waits for an answer can't be read as the session is "
                "left, so its run does not end paused: close the checkpointer after the session, "
                "and leave the session of an async one by `async with`: %s (%s)",
                self.name,
                type(self.saver).__name__,
                repr(error),
            )
            return None

    async def read(self) -> Stored:
        """Return its latest checkpoint, read at once."""
        loop: Any = getattr(self.saver, "loop", None)
        if isinstance(loop, asyncio.AbstractEventLoop) and not loop.is_running():
            raise asyncio.InvalidStateError("its event loop has stopped")
        return self.saver.get_tuple(_config(self.name, ""))

    async def aread(self) -> Stored:
        """Do the same as `read`, with a checkpointer that is awaited."""
        try:
            return await self.saver.aget_tuple(_config(self.name, ""))
        except NotImplementedError:  # it is sync
            return await self.read()


def _waits(stored: Stored) -> bool:
    """Return whether a task of a checkpoint was interrupted, and has not ended since."""
    writes = (stored.pending_writes or ()) if stored is not None else ()
    asked = {task for task, channel, _ in writes if channel == INTERRUPT}
    return not asked <= {task for task, channel, _ in writes if channel not in UNFINISHED}


def _index(beside: Sequence[str], name: str) -> int:
    return beside.index(name) if name in beside else 0


class _Place:
    """The place of a graph; see `rollcage_adapter.Standing`."""

    def __init__(
        self,
        memory: Checkpoints,
        saver: BaseCheckpointSaver[Any],
        thread: str,
        namespace: str,
        at: Sequence[Level],
        step: int,
    ) -> None:
        self.spot: Spot = thread, f"{namespace}@{','.join(each.checkpoint for each in at)}#{step}"
        self._memory = memory
        self._saver = saver
        self._at = at

    def round_of(self, spot: Spot) -> str:
        """Name the superstep of a place, the same in each attempt."""
        return round_of(*spot)

    def held(self, spots: Iterable[Spot]) -> frozenset[Spot]:
        """Return the places at which everything is done."""

        async def read(config: RunnableConfig) -> Stored:
            return self._saver.get_tuple(config)

        done: list[Spot] = []
        with contextlib.suppress(asyncio.InvalidStateError):  # it must be awaited, in this thread
            stepped(self._held(spots, done, read))
        return frozenset(done)

    async def aheld(self, spots: Iterable[Spot]) -> frozenset[Spot]:
        """Do the same as `held`, for a checkpointer that is awaited."""
        done: list[Spot] = []
        await self._held(spots, done, self._saver.aget_tuple)
        return frozenset(done)

    # --- reading, sync and async -----------------------------------------------------------------

    async def _held(self, spots: Iterable[Spot], done: list[Spot], read: Read) -> None:
        own, _ = self.spot
        spots = [*spots]
        for thread in {thread for thread, _ in spots}:
            self._memory.goes_on(thread, self._saver)
        for each in self._at:  # before anything runs from here
            await self._kept(own, each, read)
        ahead: set[str] = set()  # threads whose next recorded step is still to come
        for thread, place in spots:
            namespace, _, at = place.rpartition("@")
            recorded = read_levels(namespace, at)
            if not recorded or thread in ahead:
                continue
            if await self._is_done(thread, recorded, read):
                done.append((thread, place))
            elif thread != own or recorded[0].checkpoint != self._at[0].checkpoint:
                ahead.add(thread)  # of a later superstep, like everything after it

    async def _is_done(self, thread: str, recorded: Sequence[Level], read: Read) -> bool:
        here = self._at if thread == self.spot[0] else ()
        shared = 0
        while shared < min(len(here), len(recorded)) and here[shared] == recorded[shared]:
            shared += 1
        beside = shared < len(here) and shared < len(recorded)
        if beside and here[shared].checkpoint != recorded[shared].checkpoint:
            its = recorded[shared]
            if (thread, its.graph, its.checkpoint) not in self._memory.kept:
                return await self._descends(thread, here[shared], its.checkpoint, read)
        for i, its in enumerate(recorded[shared:], shared):
            inside = i > shared or not beside
            if inside and (i == 0 or its.checkpoint != recorded[i - 1].checkpoint):
                stored = await read(
                    _config(thread, its.graph)
                )  # another thread, or a task's own graph
                if stored is None:
                    return False
                latest = its._replace(checkpoint=_id(stored.config))
                if latest.checkpoint != its.checkpoint:
                    return await self._descends(thread, latest, its.checkpoint, read)
            if its.task.rpartition(":")[2] in await self._kept(thread, its, read):
                return True
        return False

    async def _kept(self, thread: str, level: Level, read: Read) -> frozenset[str]:
        """Return the ids of a superstep's tasks whose writes are kept."""
        place = thread, level.graph, level.checkpoint
        known = self._memory.kept.get(place)
        if known is None:
            stored = await read(_config(thread, level.graph, level.checkpoint))
            writes = (stored.pending_writes or ()) if stored is not None else ()
            known = frozenset(task for task, channel, _ in writes if channel not in UNFINISHED)
            self._memory.kept[place] = known
        return known

    async def _descends(self, thread: str, level: Level, ancestor: str, read: Read) -> bool:
        """Return whether a checkpoint descends, directly or not, from another one."""
        parents, at = self._memory.parents, level.checkpoint
        while True:
            place = thread, level.graph, at
            before = parents.get(place)
            if before is None:
                stored = await read(_config(thread, level.graph, at))
                if stored is not None:
                    before = parents[place] = _id(stored.parent_config)
                # not stored yet: it descends from the latest stored one
                elif at == level.checkpoint:
                    stored = await read(_config(thread, level.graph))
                    before = _id(stored.config) if stored is not None else ""
            if before in ("", None, ancestor):
                return before == ancestor
            at = before


def _config(thread: str, graph: str, checkpoint: str = "") -> RunnableConfig:
    """Return the config of a checkpoint; without one, of the latest stored."""
    given = {"thread_id": thread, "checkpoint_ns": graph}
    return {"configurable": given | ({"checkpoint_id": checkpoint} if checkpoint else {})}


def _id(config: RunnableConfig | None) -> str:
    return "" if config is None else str(config["configurable"].get("checkpoint_id") or "")  # pyright: ignore[reportTypedDictNotRequiredAccess] - known to mypy
