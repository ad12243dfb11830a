"""What stores in a SQL database share: the same tables, asked and written by the same statements.

A statement has `?` for a parameter. What differs is the database itself: how it locks, commits and
tells of orders (see `sqlite` and `postgres`).
"""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from hashlib import sha256
from typing import Any, Final

from rollcage.errors import RunInUse, RunNotFound, StoreError, TraceCorrupt
from rollcage.store import reopened, stubs
from rollcage.store.jobs import store_option
from rollcage.store.pausing import not_pausable
from rollcage.store.protocol import (
    Lock,
    Measured,
    OrderKind,
    RunInfo,
    RunTrace,
    StopOrder,
    check_order,
    is_run_id,
)
from rollcage.store.sql_listing import SqlListing
from rollcage.store.sql_log import SqlLog
from rollcage.trace.reader import tail_of

__all__ = [
    "ATTEST",
    "BEGIN",
    "SqlStore",
    "ends_again",
    "fields_of",
    "goes_on",
    "order_of",
    "put_order",
]

BEGIN: Final = "INSERT INTO runs (run, name, mode, source, time, input) VALUES (?, ?, ?, ?, ?, ?)"
"""Puts a run after all others."""

ATTEST: Final = "UPDATE runs SET status = ?, count = ?, head = ? WHERE place = ?"
"""Notes how a run ended: status, count and head, and its place."""

_GOES_ON: Final = (
    "INSERT INTO documents SELECT ?, run, ? FROM runs WHERE place = ? AND status IS NOT NULL"
    " ON CONFLICT DO NOTHING"
)
_STARTED: Final = ("run", "name", "mode", "source", "time")
_ORDER: Final = (
    "INSERT INTO orders (place, run, said_by, reason, time, kind) VALUES (?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (place) DO UPDATE SET run = excluded.run, said_by = excluded.said_by,"
    " reason = excluded.reason, time = excluded.time, kind = excluded.kind"
    " WHERE excluded.kind = 'stop' OR orders.kind = 'pause'"
)
_ABOVE: Final = (  # of those that a run builds on, a stop before a pause, the nearest first
    "WITH RECURSIVE earlier (run, source, mode, far) AS ("
    "SELECT run, source, mode, 0 FROM runs WHERE place = ? UNION "
    "SELECT runs.run, runs.source, runs.mode, far + 1 FROM runs JOIN earlier"
    " ON runs.run = earlier.source WHERE earlier.mode = 'resume' AND far < 100000)"
    " SELECT orders.run, said_by, reason, time, kind FROM orders"
    " WHERE place IN (SELECT place FROM runs JOIN earlier USING (run) WHERE far > 0)"
    " ORDER BY kind DESC, place DESC LIMIT 1"
)
_KEEP: Final = (
    "INSERT INTO kept VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
)


class SqlStore(SqlListing):
    """Runs in a SQL database. What is not here, a subclass has: locks, and what writes runs."""

    waits = True

    def opening(self) -> AbstractContextManager[None]:
        """Held while a session looks for its source and creates its run, across processes."""
        raise NotImplementedError

    def lock(self, run: str) -> Lock:
        """Keep a run from being written or resumed by others; RunInUse where it is."""
        raise NotImplementedError

    def log(self, name: str, begins: str) -> SqlLog:
        return SqlLog(self._sql, name, begins)

    # --- reading ---------------------------------------------------------------------------------

    def info(self, run: str) -> RunInfo:
        self._check_there(run)
        with self._sql.reading() as db:
            return self._info(db, self._row(db, run))

    def read(self, run: str, *, after: int = 0) -> RunTrace:
        self._check_there(run)
        where = f"run {run} of {self.url}"
        with self._sql.reading() as db:
            row = self._row(db, run)
            place, lines = row[0], row[-1] or 0
            if lines < after:
                self._check_pruned(db, run)
                raise TraceCorrupt(where, lines, f"there were {after} lines, {lines} are left")
            data = self._data(db, place, after, lines)
            info = None if after else self._info(db, row, data)
            if not data and not after:
                self._check_pruned(db, run)
            return RunTrace(run, where, data, b"", info, after)

    def stop_order(self, run: str) -> StopOrder | None:
        self._check_there(run)
        with self._sql.using() as db:
            return order_of(db, self._place(db, run))

    def _check_there(self, run: str) -> None:
        if not is_run_id(run):
            raise RunNotFound(f"{run!r} is not a run id")
        if not self._sql.is_there:
            raise self._not_found(run)

    def _not_found(self, run: str) -> RunNotFound:
        return RunNotFound(f"there is no run {run} in {self.url}")

    @staticmethod
    def _in_use(run: str) -> RunInUse:
        return RunInUse(f"run {run} is being written or resumed by another session")

    def _place(self, db: Any, run: str) -> int:
        """The place of a run among all. Raises RunNotFound."""
        row = db.execute("SELECT place FROM runs WHERE run = ?", (run,)).fetchone()
        if row is None:
            raise self._not_found(run)
        place: int = row[0]
        return place

    def _row(self, db: Any, run: str) -> tuple[Any, ...]:
        row: tuple[Any, ...] | None = db.execute(f"{self._runs} WHERE run = ?", (run,)).fetchone()
        if row is None:
            raise self._not_found(run)
        return row

    # --- what is made of traces ------------------------------------------------------------------

    def measure(self, run: str) -> Measured:
        self._check_there(run)
        with self._sql.reading() as db:
            row = self._row(db, run)
            data = self._data(db, row[0], 0, row[-1] or 0)
        return Measured(sha256(data).hexdigest(), tail_of(data).head.hex())

    def head(self, run: str) -> str:
        self._check_there(run)
        last = f"place = ? {self.is_line} ORDER BY number DESC LIMIT 1"
        with self._sql.using() as db:
            own = (self._place(db, run),)
            row = db.execute(f"SELECT line FROM lines WHERE {last}", own).fetchone()
        return "" if row is None else tail_of(row[0]).head.hex()

    def get_steps(self, run: str) -> bytes | None:
        with contextlib.suppress(StoreError), self._sql.using() as db:
            own = "SELECT value FROM kept WHERE name = ?"
            row = db.execute(own, (f"steps {run}",)).fetchone()
            return None if row is None else bytes(row[0])
        return None

    def put_steps(self, run: str, data: bytes | None) -> None:
        with contextlib.suppress(StoreError), self._sql.changing() as db:
            if data is None:
                db.execute("DELETE FROM kept WHERE name = ?", (f"steps {run}",))
            else:
                db.execute(_KEEP, (f"steps {run}", data))

    # --- writing ---------------------------------------------------------------------------------

    @staticmethod
    def _begun(started: dict[str, Any]) -> RunInfo:
        """What is known of a new run. Raises RunNotFound."""
        if not is_run_id(started["run"]):
            raise RunNotFound(f"{started['run']!r} is not a run id")
        given = started["input"]["digest"] if "input" in started else None
        return RunInfo(**{name: started[name] for name in _STARTED}, input=given)

    def _insert(self, db: Any, info: RunInfo) -> int:
        """Put a run after all others; its place."""
        db.execute(BEGIN, fields_of(info))
        return self._place(db, info.run)

    def stop(self, order: StopOrder) -> None:
        check_order(order)
        self._check_there(order.run)
        with self._sql.changing() as db:  # first: whoever opens now, sees it
            self._check_pruned(db, order.run)
            place = self._place(db, order.run)
            if not put_order(db, place, order):
                raise not_pausable(order.run, order_of(db, place), store_option(self))
            self._notify(db)
        with self.opening(), self._sql.changing() as db:
            for other, ended_ in self._built_on(db, order.run):
                if ended_ is None:  # it may be live; what is dead sees it where it is resumed
                    put_order(db, other, order)
            self._notify(db)
        self._on_disk()
        self._notified()

    def lift(self, run: str, kind: OrderKind | None = None) -> bool:
        self._check_there(run)
        of = (run, kind or "stop", kind or "pause")
        with self._sql.changing("orders") as db:
            self._check_pruned(db, run)
            found = self._lift(db, "place = ?", (self._place(db, run), *of))
        with self.opening(), self._sql.changing("orders") as db:
            self._lift(db, "TRUE", of)
            self._notify(db)
        self._on_disk()
        self._notified()
        return found

    @staticmethod
    def _lift(db: Any, where: str, values: tuple[Any, ...]) -> bool:
        """Lift orders; what holds by another run that one builds on, stays. Whether one was.

        Nobody else gives or lifts any until this is committed.
        """
        lifted = f"SELECT place FROM orders WHERE {where} AND run = ? AND kind IN (?, ?)"
        places = sorted(place for (place,) in db.execute(lifted, values).fetchall())
        for place in places:  # what a run builds on stands before it
            db.execute("DELETE FROM orders WHERE place = ?", (place,))
            above = db.execute(_ABOVE, (place,)).fetchone()
            if above is not None:
                put_order(db, place, StopOrder(*above))
        return bool(places)

    def _notify(self, db: Any) -> None:
        """Let all who write runs know, with this transaction, that orders have changed."""

    def _notified(self) -> None:
        """See that those in this process know."""

    @staticmethod
    def _built_on(db: Any, run: str) -> list[tuple[int, str | None]]:
        """The runs that resume this one, transitively: place and status."""
        found: list[tuple[int, str | None]] = db.execute(
            "WITH RECURSIVE later (run) AS (VALUES (?) UNION"
            " SELECT runs.run FROM runs JOIN later ON runs.source = later.run"
            " WHERE runs.mode = 'resume')"
            " SELECT place, status FROM runs JOIN later USING (run) WHERE run != ?",
            (run, run),
        ).fetchall()
        return found

    # --- copying and pruning ---------------------------------------------------------------------

    def restore(self, trace: RunTrace) -> bool:
        info = trace.info
        assert info is not None
        with self.opening(), contextlib.ExitStack() as locked:
            with contextlib.suppress(RunNotFound):
                if self.info(trace.run).pruned or info.pruned:
                    return False
                locked.callback(self.lock(trace.run).release)
            with self._sql.changing() as db:
                row = db.execute(f"{self._runs} WHERE run = ?", (trace.run,)).fetchone()
                here = None if row is None else self._info(db, row)
                place = self._insert(db, info) if row is None else row[0]
                data = stubs.goes_on(trace, self._data(db, place), self.url)
                unattested = info.count is not None and (here is None or here.count is None)
                if data is None and row is not None and not unattested:
                    return False
                self._write(db, place, data or b"")
                if info.status is not None and (info.count is not None or info.pruned is not None):
                    db.execute(ATTEST, (info.status, info.count, info.head, place))
                    if trace.data.count(b"\n") != (info.count or 0):
                        goes_on(db, place)
                if info.pruned is not None:
                    stub = (stubs.KIND, trace.run, stubs.stub_of(info))
                    db.execute("INSERT INTO documents VALUES (?, ?, ?)", stub)
            self._on_disk()
        return True

    def prune(self, run: str, *, by: str, time: int, skeleton: bytes = b"") -> None:
        if self.info(run).pruned is not None:
            return
        with self.opening():  # nobody begins to build on it meanwhile
            self._prune(run, by, time, skeleton)

    def _prune(self, run: str, by: str, time: int, skeleton: bytes) -> None:
        lock = self.lock(run)
        try:
            left = stubs.pruned_of(self.info(run), by, time)
            stubs.check_unneeded(run, self.runs(source=run))
            with self._sql.changing() as db:
                place = self._place(db, run)
                stub = (stubs.KIND, run, stubs.stub_of(left))
                db.execute("INSERT INTO documents VALUES (?, ?, ?)", stub)
                db.execute("DELETE FROM lines WHERE place = ?", (place,))
                db.execute("DELETE FROM orders WHERE place = ?", (place,))
                db.execute("DELETE FROM kept WHERE name = ?", (f"steps {run}",))
                self._write(db, place, skeleton)
                tail = tail_of(skeleton)
                kept = (tail.lines, tail.head.hex()) if skeleton else (None, None)
                db.execute(ATTEST, (left.status, *kept, place))
            self._on_disk()
        finally:
            lock.release()

    @staticmethod
    def _write(db: Any, place: int, data: bytes) -> None:
        """Add lines after those that are there; nobody else writes the run."""
        last = db.execute("SELECT max(number) FROM lines WHERE place = ?", (place,)).fetchone()[0]
        for number, line in enumerate(data.splitlines(keepends=True), 1 + (last or 0)):
            add = "INSERT INTO lines (place, number, line) VALUES (?, ?, ?)"
            db.execute(add, (place, number, line))

    def _check_pruned(self, db: Any, run: str) -> None:
        """Raises RunPruned."""
        stub = "SELECT 1 FROM documents WHERE kind = ? AND key = ?"
        if db.execute(stub, (stubs.KIND, run)).fetchone() is not None:
            raise stubs.gone(self._info(db, self._row(db, run)))


def fields_of(info: RunInfo) -> tuple[Any, ...]:
    """What the table of runs has of a new one, as `BEGIN` takes it."""
    return (*(getattr(info, name) for name in _STARTED), info.input)


def goes_on(db: Any, place: int) -> None:
    """Note that a run which had ended is opened again: its status may be another one by now."""
    db.execute(_GOES_ON, (reopened.KIND, b"", place))


def ends_again(db: Any, run: str) -> None:
    """Its end was noted anew."""
    db.execute("DELETE FROM documents WHERE kind = ? AND key = ?", (reopened.KIND, run))


def order_of(db: Any, place: int) -> StopOrder | None:
    """The order that was given to a run; in a store of the first schema it has no kind."""
    row = db.execute("SELECT * FROM orders WHERE place = ?", (place,)).fetchone()
    return None if row is None else StopOrder(*row[1:])


def put_order(db: Any, place: int, order: StopOrder) -> bool:
    """Give a run an order; whether it has that now: no pause replaces a stop."""
    by, reason = _writable(order.by), _writable(order.reason)
    given = (place, order.run, by, reason, order.time, order.kind)
    changed: int = db.execute(_ORDER, given).rowcount
    return changed > 0


def _writable(text: str) -> str:
    """A text without what UTF-8 can't hold (lone surrogates), or a database (NUL)."""
    return text.encode("utf-8", "replace").decode().replace("\0", " ")
