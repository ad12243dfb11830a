"""Runs in a schema of a PostgreSQL database, for workers on several machines.

**The fence** is the statement that inserts a line: it inserts only if the previous line has the
head that the writer knows, and the line's number is free. So it also refuses to write over a gap
that a standby without the last transactions leaves. The same statement reads the bell: its answer
shows every order that was acknowledged before the statement was sent.

**If the connection breaks**, the log makes a new one, checks which of its lines are on record, and
sends the others once more, under the same fence. It waits up to `store_timeout` for a database that
is down, and then refuses.

**An advisory lock** shows whether a run's writer lives: it ends with the writer's connection. The
server drops the connection of a machine that it can't reach in about 12 seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NoReturn, TypeVar

import psycopg
from rollcage.errors import (
    Fenced,
    Forked,
    RollcageError,
    RunInUse,
    RunNotFound,
    StoreError,
    TraceUnwritable,
)
from rollcage.trace.chain import HASH, ROOT
from rollcage.trace.keys import check_key, check_run
from rollcage.trace.processes import keep_from_children
from rollcage.trace.store import Ends

from rollcage_stores.database import parse
from rollcage_stores.link import Link, LinkLost

__all__ = ["Postgres", "PostgresLog"]

T = TypeVar("T")

_log: Final = logging.getLogger("rollcage")
_VERSION: Final = 1
_SCHEMA: Final = """
CREATE TABLE log_lines (run text COLLATE "C", seq bigint, line bytea NOT NULL,
    PRIMARY KEY (run, seq));
CREATE TABLE log_values (kind text COLLATE "C", key text COLLATE "C", value bytea NOT NULL,
    PRIMARY KEY (kind, key));
CREATE TABLE log_bell (rung bigint NOT NULL);
INSERT INTO log_bell VALUES (0);
CREATE TABLE log_version (version integer NOT NULL)"""
_APPEND: Final = """INSERT INTO log_lines SELECT $1::text, $2::bigint + 1, $3::bytea
WHERE $2::bigint = 0 OR EXISTS (SELECT 1 FROM log_lines WHERE run = $1::text AND seq = $2::bigint
    AND substr(line, length(line) - 66, 64) = $4::bytea)
ON CONFLICT DO NOTHING RETURNING (SELECT rung FROM log_bell)"""
_SWAPPED: Final = """WITH done AS ({} RETURNING 1),
rung AS (UPDATE log_bell SET rung = rung + 1 WHERE $1::text = 'orders')
SELECT count(*) FROM done"""
_PUT: Final = _SWAPPED.format(
    "INSERT INTO log_values VALUES ($1::text, $2::text, $3::bytea) ON CONFLICT DO NOTHING"
)
_CHANGE: Final = _SWAPPED.format(
    "UPDATE log_values SET value = $3::bytea"
    " WHERE kind = $1::text AND key = $2::text AND value = $4::bytea"
)
_DROP: Final = _SWAPPED.format(
    "DELETE FROM log_values WHERE kind = $1::text AND key = $2::text AND value = $3::bytea"
)
_RUNS: Final = """WITH RECURSIVE ids (run, n) AS (
    SELECT max(run), 1::bigint FROM log_lines{}
    UNION ALL
    SELECT (SELECT max(run) FROM log_lines WHERE run < ids.run), n + 1 FROM ids
    WHERE ids.run IS NOT NULL AND n < $1::bigint)
SELECT run, (SELECT line FROM log_lines WHERE run = ids.run AND seq = 1),
    (SELECT line FROM log_lines WHERE run = ids.run ORDER BY seq DESC LIMIT 1)
FROM ids WHERE run IS NOT NULL AND n <= $1::bigint"""
"""Steps from id to id by the primary key, and reads no line between the first and the last."""

_ENDS: Final = """SELECT (SELECT line FROM log_lines WHERE run = $1 AND seq = 1),
    (SELECT line FROM log_lines WHERE run = $1 ORDER BY seq DESC LIMIT 1)"""
_AT_ONCE: Final = 500  # lines in one statement
_LOCK: Final = "SELECT pg_try_advisory_lock($1::bigint)"
_HELD: Final = """ FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1
AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
AND classid::bigint = ($1::bigint >> 32) & 4294967295
AND objid::bigint = $1::bigint & 4294967295"""
_HOLDER: Final = (
    f"SELECT pg_terminate_backend(pid){_HELD} AND ($2::integer = 0 OR pid = $2::integer)"
)
_MOMENT: Final = 0.5  # seconds until the server notices a killed client
_left: Final[list[Link]] = []  # the parent's, in a forked child: never closed there


class PostgresLog:
    """The log of one run. See `Log` for what the methods promise."""

    is_at_once = False

    def __init__(self, store: Postgres, run: str, link: Link, key: int) -> None:
        self.where = f"{store.url}#{run}"
        self.last = b""
        self.bell = 0
        self._store = store
        self._run = run
        self._key = key
        self._link: Link | None = link
        self._pid = link.pid
        self._lock = threading.RLock()  # libpq's connections are for one thread at a time
        self._seq = 0
        self._head = ROOT
        self._sent: deque[tuple[int, bytes, bytes]] = deque()  # not known to be on record
        self._refusal: RollcageError | None = None
        weakref.finalize(self, _close, links := [link])
        self._links = links
        keep_from_children(self)

    def hear(self) -> Callable[[], int] | None:
        return None

    def read(self) -> list[bytes]:
        lines = self._store.lines(self._run)
        self._seq = len(lines)
        self.bell = self._store.bell()
        if lines:
            self.last = lines[-1]
            self._head = lines[-1][HASH]
        return lines

    def lines(self) -> Iterator[bytes]:
        yield from self.read()

    def append(self, line: bytes) -> None:
        if self._refusal is not None:
            raise self._refusal
        with self._lock:
            item = (self._seq, self._head, line)
            self._seq += 1
            self._head = line[HASH]
            self.last = line  # no signal is handled between these lines and the next one
            self._sent.append(item)
            self._send(item)

    def wait(self) -> None:
        with self._lock:
            while self._sent and self._refusal is None:
                try:
                    self._settle()
                except LinkLost as lost:
                    self._drop_link()
                    self._again(lost)
                except psycopg.Error as error:
                    self._drop_link()
                    raise self._refuse(
                        TraceUnwritable(f"{self.where} can't be written: {self._said(error)}")
                    ) from None
        if self._refusal is not None:
            raise self._refusal

    async def settled(self) -> None:
        await asyncio.to_thread(self.wait)

    def replace(self, lines: Sequence[bytes]) -> None:
        self.wait()
        try:
            is_replaced = self._store.replace(self._run, self._head, lines)
        except StoreError as error:
            raise self._refuse(
                TraceUnwritable(f"{self.where}: nobody knows whether it was replaced: {error}")
            ) from None
        if not is_replaced:
            raise self._refuse(
                Fenced(f"{self.where} is written by another session, which took its run over")
            )
        self._seq = len(lines)
        self.last = lines[-1] if lines else b""
        self._head = self.last[HASH] or ROOT

    def close(self) -> None:
        try:
            if self._refusal is None:
                self.wait()
                self._unlock()
        finally:
            self._refuse(TraceUnwritable(f"{self.where} is closed"))

    def forked(self) -> None:
        """Leave the connection to the parent process."""
        self._refusal = Forked(
            f"{self.where} is written by process {os.getppid()}, and this is a forked child of it: "
            f"open a session of its own here"
        )
        self._lock = threading.RLock()
        self._sent.clear()
        _left.extend(self._links)
        self._links.clear()
        self._link = None

    def _unlock(self) -> None:
        """Release the run now: the server notices a closed connection only after a while."""
        with self._lock:
            if self._link is not None:
                with contextlib.suppress(LinkLost, psycopg.Error):
                    self._link.end_pipeline()
                    self._link.ask("SELECT pg_advisory_unlock($1::bigint)", self._key)

    def _send(self, item: tuple[int, bytes, bytes]) -> None:
        seq, head, line = item
        if self._link is not None:
            try:
                self._link.send(self._run, seq, line, head)
            except BaseException as error:  # `wait` finds out the result
                self._drop_link()
                if not isinstance(error, LinkLost):
                    raise

    def _settle(self) -> None:
        if self._link is None:
            raise LinkLost("there is no connection")
        while self._sent:
            found = self._link.answer()
            if found is None:
                self._drop_link()
                self._lost_the_run()
            self.bell = _number(found[0])
            self._sent.popleft()

    def _again(self, lost: LinkLost) -> None:
        """Connect again, and send the lines that are not on record."""
        _log.warning("%s: the connection broke (%s); connecting again", self.where, lost)
        try:
            self._store.while_down(self._reconnect)
        except RollcageError as error:
            raise self._refuse(
                TraceUnwritable(
                    f"{self.where}: nobody knows whether its last {len(self._sent)} lines are on "
                    f"record: {error}"
                )
            ) from None

    def _reconnect(self) -> None:
        link = Link(self._store.database, "rollcage")
        self._link = link
        self._links.append(link)
        try:
            if not _is_true(link.ask(_LOCK, self._key)):
                # our own old connection, if it is still there
                link.ask(_HOLDER, self._key, self._pid)
                link.ask(_LOCK, self._key)  # a hint: the writer works without it
            self._pid = link.pid
            asked = "SELECT line FROM log_lines WHERE run = $1 AND seq > $2::bigint ORDER BY seq"
            found = link.ask(asked, self._run, self._sent[0][0])
            self.bell = _number(link.ask("SELECT rung FROM log_bell")[0][0])
            for (line,) in found:
                if not self._sent or line != self._sent[0][2]:
                    self._lost_the_run()
                self._sent.popleft()
            link.pipeline(_APPEND)
            for item in self._sent:
                link.send(self._run, item[0], item[2], item[1])
        except psycopg.Error as error:
            self._drop_link()
            raise self._store.database.failed(error) from None
        except BaseException:
            self._drop_link()
            raise

    def _lost_the_run(self) -> NoReturn:
        """Refuse all further lines, and say why the next line can't be appended."""
        first = self._sent[0][0] if self._sent else self._seq
        on_record = len(self._store.lines(self._run, -1)) and self._store.count(self._run)
        if on_record < first:
            raise self._refuse(
                TraceUnwritable(
                    f"{self.where}: its lines {on_record + 1} to {first} were on record, and are "
                    f"gone, as behind a failover to a standby that lacked them. Nothing is written "
                    f"over the gap; look at what the run has done since line {on_record}"
                )
            )
        raise self._refuse(
            Fenced(f"{self.where} is written by another session, which took its run over")
        )

    def _refuse(self, refusal: RollcageError) -> RollcageError:
        """Refuse all further lines, for this reason."""
        if self._refusal is None:
            self._refusal = refusal
        self._drop_link()
        return self._refusal

    def _drop_link(self) -> None:
        self._link = None
        _close(self._links)

    def _said(self, error: BaseException) -> str:
        return self._store.database.describe(error)


class Postgres:
    """The store in a schema of a PostgreSQL database. See `Store` for what the methods promise.

    Args:
        url: in libpq's form, with parameters of our own: `schema` (`rollcage`),
            `store_timeout` (30: how many seconds the database may be down before runs halt) and
            `silence_timeout` (10: after how many seconds a silent connection is given up).
    """

    def __init__(self, url: str) -> None:
        self.database: Final = parse(url)
        self.url: Final = self.database.url
        self._lock = threading.RLock()  # of the connection
        self._links: list[Link] = []  # one, once it is used
        self._is_made = False
        # when the database was found down, and the message
        self._away: tuple[float, str] | None = None
        weakref.finalize(self, _close, self._links)
        keep_from_children(self)

    def __repr__(self) -> str:
        return f"Postgres({self.url!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Postgres) and self.url == other.url

    def __hash__(self) -> int:
        return hash(self.url)

    def open(self, run: str, *, take: bool = False) -> PostgresLog:
        check_run(run)
        key = self.database.lock_key(run)
        self._do(self._make)

        def opened() -> PostgresLog:
            link = Link(self.database, "rollcage")
            try:
                if not self._has_lock(link, run, key, take=take):
                    raise RunInUse(
                        f"{self.url}#{run} has a live writer; its lock ends with its connection. To"
                        f" go on with it here all the same, take it over"
                    )
                link.pipeline(_APPEND)
            except BaseException:
                link.close()
                raise
            return PostgresLog(self, run, link, key)

        return self.while_down(opened)

    def read(self, run: str, after: int = 0) -> list[bytes]:
        check_run(run)
        lines = self.lines(run, after)
        if not lines and (after <= 0 or not self.lines(run, -1)):
            raise RunNotFound(f"there is no run {run} in {self.url}")
        return lines

    def runs(self, before: str = "", limit: int = 1000) -> list[Ends]:
        if limit < 1:
            return []
        bound = (limit, before) if before else (limit,)
        rows = self._ask(_RUNS.format(" WHERE run < $2" if before else ""), *bound)
        return [Ends((run or b"").decode(), first or b"", last or b"") for run, first, last in rows]

    def ends(self, run: str) -> Ends:
        check_run(run)
        rows = self._ask(_ENDS, run)
        first, last = rows[0] if rows else (None, None)
        if first is None or last is None:
            raise RunNotFound(f"there is no run {run} in {self.url}")
        return Ends(run, first, last)

    def is_live(self, run: str) -> bool:
        check_run(run)
        return bool(
            self._do(lambda link: link.ask(f"SELECT 1{_HELD}", self.database.lock_key(run)))
        )

    def get(self, kind: str, key: str) -> bytes | None:
        check_key(kind, key)
        rows = self._ask("SELECT value FROM log_values WHERE kind = $1 AND key = $2", kind, key)
        return rows[0][0] if rows else None

    def swap(self, kind: str, key: str, was: bytes | None, new: bytes | None) -> bool:
        check_key(kind, key)
        if was is None and new is None:
            return self.get(kind, key) is None
        tries = 0

        def swapped(link: Link) -> bool:
            nonlocal tries
            tries += 1
            self._make(link)
            if was is None:
                found = link.ask(_PUT, kind, key, new)
            elif new is None:
                found = link.ask(_DROP, kind, key, was)
            else:
                found = link.ask(_CHANGE, kind, key, new, was)
            return _number(found[0][0]) == 1

        # If the second try finds another value, the effect of the first try is unknown.
        return self._do(swapped) or (tries > 1 and self.get(kind, key) == new)

    def keys(self, kind: str, after: str = "", limit: int = 1000) -> list[str]:
        check_key(kind, after or "-")
        rows = self._ask(
            "SELECT key FROM log_values WHERE kind = $1 AND key > $2 ORDER BY key LIMIT $3::bigint",
            kind,
            after,
            limit,
        )
        return [(key or b"").decode() for (key,) in rows]

    def bell(self) -> int:
        rows = self._ask("SELECT rung FROM log_bell")
        return _number(rows[0][0]) if rows else 0

    def lines(self, run: str, after: int = 0) -> list[bytes]:
        """Return the lines of a run, like `read`; none if there is no such run."""
        asked = "SELECT line FROM log_lines WHERE run = $1 AND seq > $2::bigint ORDER BY seq"
        if after < 0:
            asked = "SELECT line FROM log_lines WHERE run = $1 ORDER BY seq DESC LIMIT -$2::bigint"
        lines = [line or b"" for (line,) in self._ask(asked, run, after)]
        return lines[::-1] if after < 0 else lines

    def count(self, run: str) -> int:
        """Return the number of a run's last line."""
        asked = "SELECT coalesce(max(seq), 0) FROM log_lines WHERE run = $1"
        rows = self._ask(asked, run)
        return _number(rows[0][0]) if rows else 0

    def replace(self, run: str, head: bytes, lines: Sequence[bytes]) -> bool:
        """Replace a run's lines, if the last one has this head; return whether it was done.

        The new lines are there already if the acknowledgement of a first try was lost.
        """
        tries = 0

        def replaced(link: Link) -> bool:
            nonlocal tries
            tries += 1
            asked = "SELECT line FROM log_lines WHERE run = $1 ORDER BY seq DESC LIMIT 1 FOR UPDATE"
            ends = "ROLLBACK"
            link.ask("BEGIN")
            try:
                found = link.ask(asked, run)
                last = (found[0][0] or b"") if found else b""
                if tries > 1 and last == (lines[-1] if lines else b""):
                    return True
                if (last[HASH] or ROOT) != head:
                    return False
                link.ask("DELETE FROM log_lines WHERE run = $1", run)
                for first in range(0, len(lines), _AT_ONCE):
                    _insert(link, run, first, lines[first : first + _AT_ONCE])
                ends = "COMMIT"
            finally:
                link.ask(ends)
            return True

        return self._do(replaced)

    def while_down(self, use: Callable[[], T]) -> T:
        """Return the result of `use`, once the database can be reached.

        Raises:
            StoreError: the database stays down longer than `store_timeout`.
        """
        deadline = time.monotonic() + self.database.timeout
        pause = 0.02
        while True:
            try:
                return use()
            except LinkLost as lost:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise StoreError(
                        f"the store {self.url} can't be reached for {self.database.timeout:g} "
                        f"seconds: {lost}"
                    ) from None
            time.sleep(min(pause, max(left, 0)))
            pause = min(2 * pause, 1)

    def forked(self) -> None:
        """Leave the connection to the parent process, and open a new one when needed."""
        _left.extend(self._links)
        self._links.clear()
        self._lock = threading.RLock()

    def _ask(self, text: str, *values: str | int) -> list[tuple[bytes | None, ...]]:
        """Return the rows of a reading statement; none if the store was never made."""
        return self._do(lambda link: link.ask(text, *values) if self._is_there(link) else [])

    def _do(self, use: Callable[[Link], T]) -> T:
        """Call `use` with the connection; if the connection breaks, reconnect and call it again.

        A caller that waits for the connection while another caller finds the database down gets
        that result: many callers wait no longer than one.
        """
        begun = time.monotonic()
        with self._lock:
            if self._away is not None and self._away[0] > begun:
                raise StoreError(self._away[1])
            try:
                return self.while_down(lambda: self._once(use))
            except StoreError as error:
                if not self._links:
                    self._away = time.monotonic(), str(error)
                raise

    def _once(self, use: Callable[[Link], T]) -> T:
        if not self._links:
            self._links.append(Link(self.database, "rollcage"))
        try:
            return use(self._links[0])
        except LinkLost:
            _close(self._links)
            raise
        except psycopg.Error as error:
            raise self.database.failed(error) from None

    def _is_there(self, link: Link) -> bool:
        """Return whether the store exists, in a known version."""
        if not self._is_made:
            name = f"{self.database.schema}.log_version"
            if link.ask("SELECT to_regclass($1)", name)[0][0] is None:
                return False
            version = _number(link.ask("SELECT max(version) FROM log_version")[0][0])
            if version > _VERSION:
                raise StoreError(
                    f"{self.url} is of version {version}, and this rollcage-stores knows "
                    f"{_VERSION}: update it (pip install --upgrade rollcage-stores)"
                )
            self._is_made = True
        return True

    def _make(self, link: Link) -> None:
        """Make the tables, unless they exist."""
        if self._is_there(link):
            return
        link.ask("BEGIN")
        try:
            link.ask("SELECT pg_advisory_xact_lock($1::bigint)", self.database.lock_key(""))
            if not self._is_there(link):  # no other worker was first
                link.ask(f"CREATE SCHEMA IF NOT EXISTS {self.database.schema}")
                for statement in _SCHEMA.split(";"):
                    link.ask(statement)
                link.ask("INSERT INTO log_version VALUES ($1::integer)", _VERSION)
            link.ask("COMMIT")
        except psycopg.Error:
            link.ask("ROLLBACK")
            raise
        self._is_made = True

    def _has_lock(self, link: Link, run: str, key: int, *, take: bool) -> bool:
        """Take the lock that shows that a run's writer lives."""
        if _is_true(link.ask(_LOCK, key)):
            return True
        if take:
            with contextlib.suppress(psycopg.Error):  # of another user: the run works without
                link.ask(_HOLDER, key, 0)
        count = self.count(run)
        until = time.monotonic() + _MOMENT
        while time.monotonic() < until:  # the server soon notices a killed client
            time.sleep(0.02)
            if _is_true(link.ask(_LOCK, key)):
                # A run that has grown was being written: the caller meant its earlier state.
                return take or self.count(run) == count
        return take


def _insert(link: Link, run: str, first: int, lines: Sequence[bytes]) -> None:
    """Insert lines of a run after line `first`."""
    rows = ", ".join(f"($1, {first + n + 1}, ${n + 2}::bytea)" for n in range(len(lines)))
    link.ask(f"INSERT INTO log_lines VALUES {rows}", run, *lines)


def _is_true(rows: list[tuple[bytes | None, ...]]) -> bool:
    return rows[0][0] == b"\x01"


def _number(value: bytes | None) -> int:
    return int.from_bytes(value or b"", signed=True)


def _close(links: list[Link]) -> None:
    while links:
        links.pop().close()
