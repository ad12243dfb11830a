"""What the table of runs says, held against their lines, from which it is made again."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from rollcage.errors import TraceCorrupt
from rollcage.store import stubs
from rollcage.store.keyfile import key_gone
from rollcage.store.protocol import Repair, is_run_id
from rollcage.store.sql import SqlStore
from rollcage.trace.reader import ended, read_events

__all__ = ["SqlRepair"]

_FIELDS: Final = ("run", "name", "mode", "source", "time", "input")
_ROWS: Final = (
    f"SELECT place, {', '.join(_FIELDS)}, status, count FROM runs WHERE run NOT IN"  # noqa: S608
    " (SELECT key FROM documents WHERE kind = 'pruned') ORDER BY place"
)
_UNLISTED: Final = (
    "SELECT DISTINCT place FROM lines WHERE place NOT IN (SELECT place FROM runs) ORDER BY place"
)
_STUBS: Final = (
    "SELECT key, data FROM documents WHERE kind = 'pruned' AND key IN (SELECT run FROM runs)"
    " ORDER BY key"
)
_MEND_STUB: Final = "UPDATE documents SET data = ? WHERE kind = 'pruned' AND key = ?"
_CHANGE: Final = (
    "UPDATE runs SET run = ?, name = ?, mode = ?, source = ?, time = ?, input = ? WHERE place = ?"
)


class SqlRepair(SqlStore):
    """A store in a SQL database that is looked through for damage, and repaired."""

    own_place: ClassVar[str] = ""  # what lets a row be put at the place that its lines have

    def check(self) -> Repair:
        """Look for damage. What the database itself can't read comes from a backup.

        Raises:
            StoreError: it can't be read.
        """
        with self._sql.reading() as db:
            return self._examined(db)

    def repair(self) -> Repair:
        """Make the rows of runs again that are lost, or say something else than their lines.

        And what is left of pruned runs, where it is damaged: by their rows.

        Raises:
            StoreError: it can't be read, or the store can't be written.
        """
        found = self.check()
        if found.lost or found.outdated or found.stubs:
            with self._sql.changing() as db:
                self._mend(db)
            self._on_disk()
        return found

    def _examined(self, db: Any) -> Repair:
        runs: int = db.execute("SELECT count(*) FROM runs").fetchone()[0]
        unattested: list[str] = []
        outdated: list[str] = []
        keyed = False
        for place, *fields, status, count in db.execute(_ROWS).fetchall():
            run, keyed = fields[0], keyed or fields[-1] is not None
            if status is not None and count is None:
                unattested.append(run)
            began, how = self._read_off(db, place, status, count)
            if began not in (None, tuple(fields)) or how != status:
                outdated.append(run)
        lost = [
            began[0]
            for place in self._unlisted(db)
            if (began := self._read_off(db, place, None, None)[0]) is not None
        ]
        return Repair(
            runs=runs,
            lost=tuple(lost),
            outdated=tuple(outdated),
            unattested=tuple(unattested),
            stubs=tuple(self._damaged_stubs(db)),
            unreadable=tuple(self._key_lost(db, keyed=keyed)),
        )

    def _mend(self, db: Any) -> None:
        for place, *fields, status, count in db.execute(_ROWS).fetchall():
            began, how = self._read_off(db, place, status, count)
            if began not in (None, tuple(fields)):
                db.execute(_CHANGE, (*began, place))
            if how != status:
                db.execute("UPDATE runs SET status = ? WHERE place = ?", (how, place))
        for place in self._unlisted(db):
            began = self._read_off(db, place, None, None)[0]
            if began is not None:
                names = f"place, {', '.join(_FIELDS)}"
                made = f"INSERT INTO runs ({names}) {self.own_place} VALUES (?, ?, ?, ?, ?, ?, ?)"  # noqa: S608
                db.execute(f"{made} ON CONFLICT DO NOTHING", (place, *began))

        for run in self._damaged_stubs(db):
            stub = stubs.stub_of(self._info(db, self._row(db, run)))
            db.execute(_MEND_STUB, (stub, run))

    @staticmethod
    def _damaged_stubs(db: Any) -> list[str]:
        return [run for run, stub in db.execute(_STUBS).fetchall() if stubs.is_damaged(stub)]

    @staticmethod
    def _unlisted(db: Any) -> list[int]:
        return [row[0] for row in db.execute(_UNLISTED).fetchall()]

    def _read_off(
        self, db: Any, place: int, status: str | None, count: int | None
    ) -> tuple[tuple[Any, ...] | None, str | None]:
        """What the lines of a run say: how it began, as far as they do, and how it ended.

        Where lines stand after what was attested, whoever asks looks at them in any case.
        """
        data = self._data(db, place)
        first = data[: data.find(b"\n") + 1]
        try:
            event = next(read_events(first, "", restore=False))[1]
        except (StopIteration, TraceCorrupt):
            return None, status
        began = tuple(event.get(field) for field in _FIELDS[:-1])
        given = event.get("input")
        if not is_run_id(str(began[0])):
            return None, status
        attested = status is not None and count == data.count(b"\n")
        how = (ended(data) or status) if attested else status
        return (*began, given["digest"] if given else None), how

    def _key_lost(self, db: Any, *, keyed: bool) -> list[str]:
        row = db.execute("SELECT value FROM kept WHERE name = 'key'").fetchone()
        if row is None:
            return [key_gone(self.url)] if keyed else []
        if len(row[0]) != 32:
            return [f"the key in {self.url} is not 32 bytes long; restore it from a backup"]
        return []
