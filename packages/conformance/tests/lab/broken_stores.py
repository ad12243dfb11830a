"""A store of another package, `shelf://NAME/path`: sound, or with the one mistake of its name."""

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, Final
from unittest import mock

from rollcage.errors import RunInUse
from rollcage.store import Pruned, RunInfo, RunTrace, StopOrder, Store, stubs
from rollcage.store.postgres import PostgresStore
from rollcage.store.protocol import Line
from rollcage.store.sql_log import SqlLog
from rollcage.store.sqlite import SqliteStore
from rollcage.store.sqlite_database import RunLock
from rollcage.store.sqlite_writer import SqliteWriter

__all__ = ["STORES", "opened"]


class Sound(SqliteStore):
    def __init__(self, url: str) -> None:
        super().__init__(url.partition("://")[2].partition("/")[2])
        self.url = url

    def create(self, started: dict[str, Any], order: StopOrder | None = None) -> SqliteWriter:
        return self.written(super().create(started, order))

    def written(self, writer: SqliteWriter) -> SqliteWriter:
        """A writer as this store gives it."""
        return writer


class Overwrites(Sound):
    def put_once(self, kind: str, key: str, data: bytes) -> bool:
        self.drop(kind, key)
        return super().put_once(kind, key, data)


class AnswersTwice(Sound):
    def put_once(self, kind: str, key: str, data: bytes) -> bool:
        super().put_once(kind, key, data)
        return True


class Unsorted(Sound):
    def keys(self, kind: str) -> list[str]:
        return super().keys(kind)[::-1]


class Leaky(Sound):
    def keys(self, kind: str) -> list[str]:
        return [*super().keys("approvals"), *super().keys(kind)] if kind == "others" else []


class LocksNobody(Sound):
    def _locked(self, run: str) -> tuple[int, RunLock]:
        try:
            return super()._locked(run)
        except RunInUse:
            return 1, RunLock(os.open(os.devnull, os.O_RDONLY))


class OpensAtOnce(Sound):
    @contextlib.contextmanager
    def opening(self) -> Generator[None]:
        with self._database.using():
            yield

    def newest(self, name: str, of: str | None) -> RunInfo | None:
        found = super().newest(name, of)
        time.sleep(0.05)
        return found


class AsksByLocking(Sound):
    def live(self, run: str) -> bool:
        try:
            lock = self.lock(run)
        except RunInUse:
            return True
        time.sleep(0.2)
        lock.release()
        return False


class LosesAcknowledged(Sound):
    def written(self, writer: SqliteWriter) -> SqliteWriter:
        kept: list[dict[str, Any]] = []
        append, attest = writer.append, writer.attest

        def at_the_end(status: str) -> None:
            for event in kept:
                append(event)
            attest(status)

        vars(writer).update(append=kept.append, attest=at_the_end)
        return writer


class AttestsNothing(Sound):
    def written(self, writer: SqliteWriter) -> SqliteWriter:
        vars(writer).update(attest=lambda _: None)
        return writer


class StopsLate(Sound):
    def written(self, writer: SqliteWriter) -> SqliteWriter:
        ask = writer.stop_order
        seen: list[Any] = [None]

        def late(*, closely: bool = False) -> Any:
            seen.append(ask(closely=closely))
            return seen[-4] if len(seen) > 3 else None

        vars(writer).update(stop_order=late)
        return writer


class StopsOneAlone(Sound):
    @staticmethod
    def _built_on(db: Any, run: str) -> list[tuple[int, str | None]]:
        return []


class ChecksNoLog(Sound):
    def log(self, name: str, begins: str) -> SqlLog:
        import orjson

        class Unchecked(SqlLog):
            def read(self) -> list[Line]:
                with self._sql.reading() as db:
                    rows = db.execute("SELECT number, line FROM logs ORDER BY number").fetchall()
                return [(number, orjson.loads(line)) for number, line in rows]

        return Unchecked(self._database, name, begins)


class LogsAtOnce(Sound):
    def log(self, name: str, begins: str) -> SqlLog:
        class Racing(SqlLog):
            def append(self, make: Callable[..., Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
                events = list(make(self.read()))
                time.sleep(0.01)
                return super().append(lambda _: events)

        return Racing(self._database, name, begins)


class ReadsOneMore(Sound):
    def read(self, run: str, *, after: int = 0) -> RunTrace:
        trace = super().read(run, after=max(after - 1, 0))
        return dataclasses.replace(trace, after=after)


class NewestByTheClock(Sound):
    def newest(self, name: str, of: str | None) -> RunInfo | None:
        found = [info for info in self.runs(name=name) if info.input == of]
        return max(found, key=lambda info: info.time, default=None)


class ListsByTheClock(Sound):
    def runs(self, **asked: Any) -> list[RunInfo]:
        return sorted(super().runs(**asked), key=lambda info: info.time)


class ListsTheOldest(Sound):
    def runs(self, *, limit: int | None = None, **asked: Any) -> list[RunInfo]:
        return super().runs(**asked)[:limit]


class SaysItEnded(Sound):
    def info(self, run: str) -> RunInfo:
        info = super().info(run)
        return dataclasses.replace(info, status=info.status or "ok")


class CountsOneLess(Sound):
    def read(self, run: str, *, after: int = 0) -> RunTrace:
        trace = super().read(run, after=after)
        if trace.info is None or trace.info.count is None:
            return trace
        return dataclasses.replace(
            trace, info=dataclasses.replace(trace.info, count=trace.info.count - 1)
        )


class ChecksNoBlob(Sound):
    def get_blob(self, digest: str) -> bytes:
        own = "SELECT data FROM blobs WHERE digest = ?"
        with self._database.using() as db:
            row = db.execute(own, (digest,)).fetchone()
        return super().get_blob(digest) if row is None else bytes(row[0])


class PrunesSources(Sound):
    def prune(self, run: str, *, by: str, time: int, skeleton: bytes = b"") -> None:
        with mock.patch.object(stubs, "check_unneeded"):
            super().prune(run, by=by, time=time, skeleton=skeleton)


class PrunesUnfinished(Sound):
    def prune(self, run: str, *, by: str, time: int, skeleton: bytes = b"") -> None:
        def left(info: RunInfo, by: str, time: int) -> RunInfo:
            pruned = Pruned(time, by, info.count or 0, info.head or "")
            return dataclasses.replace(info, status=info.status or "ok", pruned=pruned)

        with mock.patch.object(stubs, "pruned_of", left):
            super().prune(run, by=by, time=time, skeleton=skeleton)


class ForgetsPruned(Sound):
    def prune(self, run: str, *, by: str, time: int, skeleton: bytes = b"") -> None:
        super().prune(run, by=by, time=time, skeleton=skeleton)
        with self._database.changing() as db:
            db.execute("DELETE FROM runs WHERE run = ?", (run,))


class RestoresTwice(Sound):
    def restore(self, trace: RunTrace) -> bool:
        super().restore(trace)
        return True


class RestoresOver(Sound):
    def restore(self, trace: RunTrace) -> bool:
        def over(trace: RunTrace, here: bytes, where: str) -> bytes | None:
            return trace.data[len(here) :] or None

        with mock.patch.object(stubs, "goes_on", over):
            return super().restore(trace)


class KeepsLoopsWaiting(Sound):
    waits = False


class NewKeys(Sound):
    def secret_key(self) -> bytes:
        return os.urandom(32)


class MadeByLooking(Sound):
    def exists(self) -> bool:
        with self._database.using():
            return super().exists()


class Unfenced(PostgresStore):
    """It takes a run over without the row that keeps its old writer out."""

    def __init__(self, url: str) -> None:
        super().__init__(Path(url.partition("://")[2].partition("/")[2]).read_text())
        self.url = url

    def lock(self, run: str) -> Any:
        lock = super().lock(run)
        with self._sql.changing() as db:
            db.execute("DELETE FROM lines WHERE place = ? AND fence", (self._place(db, run),))
        return lock


STORES: Final = {
    each.__name__.lower(): each
    for each in list(globals().values())
    if isinstance(each, type) and issubclass(each, Sound | Unfenced)
}


def opened(url: str) -> Store:
    return STORES[url.partition("://")[2].partition("/")[0]](url)
