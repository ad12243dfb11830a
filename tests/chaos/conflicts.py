"""Conflicts: somebody else changes a file, row or item between our write and our undo.

The undo must refuse, change nothing at all and say what differs. What is there is looked at by the
harness: content, modes, inodes and times of the whole folder, the bytes of the database, the
service's own list. Twin runs, in which nobody interferes or somebody changes what is beside, must
be undone whole.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import hashlib
import json
import multiprocessing
import random
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from rollcage import Options, Session, UndoIncomplete, UndoReport, list_runs, plan_undo, undo_run
from rollcage_toolbox.http import Http, delete_location

from tests.chaos import service
from tests.chaos.clashes import CASES, NOTES, Case
from tests.chaos.place import Place, Tool, name_of
from tests.chaos.work import Op

WAYS: Final = ("session", "awaited", "later", "transaction")
"""`undo` in the session, `aundo` in it, `undo_run` when it is over, a transaction that raises."""


class GaveUp(Exception):
    """What the agent raises in its transaction."""


@dataclasses.dataclass
class Ended:
    """What came of one run."""

    number: int  # of the case
    wrong: str  # a violation
    told: str  # how the undo refused; "undone" where it did not

    @property
    def case(self) -> Case:
        """Which case it is."""
        return CASES[self.number]


def conflicts(*, runs: int, at_once: int, seed: int) -> tuple[dict[str, Any], list[str]]:
    """Do each case `runs` times, each time in another way; the figures, and the violations."""
    began = time.monotonic()
    with service.serving() as port, tempfile.TemporaryDirectory(prefix="conflicts") as folder:
        orders = [
            (number, case, WAYS[(number + case) % len(WAYS)], seed, port, folder)
            for number in range(runs)
            for case in range(len(CASES))
        ]
        with multiprocessing.get_context("fork").Pool(at_once) as pool:
            ended = list(pool.imap_unordered(_run, orders, chunksize=4))
    clashes = [each for each in ended if each.case.resource]
    twins = [each for each in ended if not each.case.resource]
    figures = {
        "runs": len(ended),
        "at once": at_once,
        "seed": seed,
        "somebody interferes": len(clashes),
        "refused, unchanged, told": sum(not each.wrong for each in clashes),
        "twins": len(twins),
        "undone whole": sum(not each.wrong for each in twins),
        "refused, by how": dict(collections.Counter(each.told for each in clashes)),
        "as it must be, by write and interference": _by_case(ended),
        "seconds": round(time.monotonic() - began, 1),
    }
    return figures, [
        f"{each.case.write} / {each.case.theirs}: {each.wrong}" for each in ended if each.wrong
    ]


def _by_case(ended: list[Ended]) -> dict[str, str]:
    made = collections.Counter(each.number for each in ended)
    well = collections.Counter(each.number for each in ended if not each.wrong)
    return {
        f"{case.write:<14} {case.theirs}": f"{well[number]}/{made[number]}"
        for number, case in enumerate(CASES)
    }


# --- a run ---------------------------------------------------------------------------------------


def _run(order: tuple[int, int, str, int, int, str]) -> Ended:
    number, which, way, seed, port, folder = order
    case, name = CASES[which], f"{seed}-{number}-{which}"
    place = Place(Path(folder, name), port)
    twin = Place(Path(folder, f"{name}-twin"), port)  # only they work there
    for each in (place, twin):
        each.fill()
    chance = random.Random(name)  # noqa: S311 - the same run again
    try:
        undone = _Undone(place, case, _plan(case, chance), way)
        undone.carry_out()
        wrong = undone.wrong() if case.resource else undone.wrong_twin(_expected(case, twin))
        told = undone.told
    except Exception:  # noqa: BLE001 - told as a violation
        wrong, told = traceback.format_exc(), "an error of the harness"
    place.remove()
    twin.remove()
    return Ended(which, f"{way}: {wrong}" if wrong else "", told)


def _plan(case: Case, chance: random.Random) -> list[Op]:
    """The write among others, which must stay as they are when it can't be undone."""
    others = [
        Op("write_file", {"path": "ours.txt", "content": f"ours {chance.random()}"}),
        Op("sql_insert", {"table": "people", "rows": [{"name": "Ours", "age": 1}]}),
        Op("delete_file", {"path": "d/e/big.bin"}),
        Op("http_post", {"text": f"ours {chance.random()}"}),
    ]
    if case.op.tool == NOTES:
        others.pop()  # it would be in what that one observes
    chance.shuffle(others)
    at = len(others) if case.status == "failed" else chance.randint(0, len(others))
    return [*others[:at], *case.first, case.op, *others[at:]]


def _expected(case: Case, twin: Place) -> dict[str, Any]:
    """What is to be there in the end: what was before, and what somebody else did beside."""
    case.interfere(twin)
    return twin.digest()


class _Undone:
    """A run, what somebody else does behind it, and its undo."""

    def __init__(self, place: Place, case: Case, plan: list[Op], way: str) -> None:
        self._place = place
        self._case = case
        self._plan = plan
        self._way = way
        self._tools: Mapping[str, Tool] = {**place.tools(), **_notes(place)}
        self._then: dict[str, Any] = {}
        self._reports: list[UndoReport] = []
        self._error: Exception | None = None
        self._foreseen = True

    @property
    def told(self) -> str:
        """How it refused."""
        if self._reports:
            report = self._reports[-1]
            return "undone" if report.complete else report.steps[-1].status
        return "undone" if self._error is None else type(self._error).__name__

    def carry_out(self) -> None:
        """Do all of it; an undo that refuses is asked twice."""
        options = Options(tools=self._tools)
        session = Session("ours", store=self._place.store, replay="off", options=options)
        if self._way == "transaction":
            self._in_transaction(session)
        elif self._way == "later":
            with session:
                self._work(session)
            self._meanwhile()
            self._try(lambda: undo_run(self._place.store, session.run_id, tools=self._tools))
        elif self._way == "awaited":
            asyncio.run(self._awaited(session))
        else:
            with session:
                self._work(session)
                self._meanwhile()
                self._try(session.undo)

    def _in_transaction(self, session: Session) -> None:
        try:
            with session, session.transaction():
                self._work(session)
                self._meanwhile()
                raise GaveUp
        except GaveUp:
            return
        except UndoIncomplete as error:
            self._error = error

    async def _awaited(self, session: Session) -> None:
        async with session:
            for op in self._plan:
                arguments = self._place.arguments(op.tool, op.args)
                await session.acall(self._tools[op.tool], **arguments)
            self._meanwhile()
            for _ in range(2):
                try:
                    self._reports.append(await session.aundo())
                except Exception as error:  # noqa: BLE001 - judged below
                    self._error = error

    def _work(self, session: Session) -> None:
        for op in self._plan:
            session.call(self._tools[op.tool], **self._place.arguments(op.tool, op.args))

    def _meanwhile(self) -> None:
        self._case.interfere(self._place)
        self._then = _look(self._place)
        (run,) = list_runs(self._place.store)
        if self._way != "transaction" and self._case.status == "conflict":
            plan = plan_undo(self._place.store, run.run, tools=self._tools)
            self._foreseen = plan.conflicts

    def _try(self, undo: Callable[[], UndoReport]) -> None:
        for _ in range(2):
            try:
                self._reports.append(undo())
            except Exception as error:  # noqa: BLE001 - judged below
                self._error = error

    # --- what came of it -------------------------------------------------------------------------

    def wrong(self) -> str:
        """What is wrong where somebody interfered."""
        late = self._case.status == "failed"  # it tried, so directories have another time
        changed = _differing(self._then, _look(self._place), but=("stamps",) if late else ())
        if changed:
            return f"something was changed\n{changed}\n{self._said()}"
        if not self._foreseen:
            return "plan_undo foresaw no conflict"
        if not late and b'{"event":"undoing"' in self._log():
            return "it began to undo something"
        case, said = self._case, self._said()
        if case.resource not in said or not all(field in said for field in case.fields):
            return f"it does not say that {case.resource} {case.fields} differs: {said}"
        if self._error is not None:
            refused = self._way == "transaction" or case.status == type(self._error).__name__
            return "" if refused else f"it raised: {said}"
        for report in self._reports:
            statuses = [step.status for step in report.steps]
            if statuses != [case.status]:
                return f"wanted {case.status}: {statuses}: {said}"
            if len(report.left) != len(self._plan) - 1:
                return f"what was left was not listed: {report.left}"
        return ""

    def wrong_twin(self, expected: dict[str, Any]) -> str:
        """What is wrong where nobody changed what we had."""
        changed = _differing(expected, self._place.digest())
        if changed:
            return f"not as it was before\n{changed}\n{self._said()}"
        if self._error is not None or not all(each.complete for each in self._reports):
            return f"the undo was not complete: {self._said()}"
        return ""

    def _said(self) -> str:
        """What a user is told."""
        if self._reports:
            return str(self._reports[0])
        return "" if self._error is None else "".join(traceback.format_exception(self._error))

    def _log(self) -> bytes:
        (log,) = self._place.store.glob("logs/*.jsonl")
        return log.read_bytes()


def _differing(wanted: dict[str, Any], found: dict[str, Any], but: tuple[str, ...] = ()) -> str:
    """What of two looks differs, in words; empty where nothing does."""
    told = (
        f"  {what}: wanted {wanted[what]}\n  {what}: there is {found[what]}"
        for what in wanted
        if what not in but and wanted[what] != found[what]
    )
    return "\n".join(told)


def _look(place: Place) -> dict[str, Any]:
    """All that can be told of what is there, without asking any of our tools."""
    paths = [place.work, *sorted(place.work.rglob("*"))]
    stamps = {str(path): (path.lstat().st_ino, path.lstat().st_mtime_ns) for path in paths}
    return {
        **place.digest(),
        "stamps": stamps,
        "database": hashlib.sha256(place.database.read_bytes()).hexdigest(),
        "kept": json.dumps(service.asked(place.port, place.namespace), sort_keys=True),
    }


def _notes(place: Place) -> dict[str, Tool]:
    """Posts that observe the whole list, with who is in it."""

    def observe(args: Mapping[str, Any]) -> dict[str, Any]:
        return {"items": service.asked(place.port, place.namespace)["items"]}

    http = Http(
        name="notes",
        allowed_hosts=[],
        allow_private=[f"127.0.0.1:{place.port}"],
        methods=["POST"],
        compensation={"POST": delete_location},
        observe={"POST": observe},
    )
    return {name_of(each): each for each in http}
