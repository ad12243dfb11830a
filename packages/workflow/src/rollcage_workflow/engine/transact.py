"""DBOS Transact as scheduler: when a command is taken, and by which worker. Only this imports it.

A workflow of DBOS is "take the command KEY", and nothing more: no step of DBOS, no value in its
database except keys. Lost commands are sent to it again from the store; the lock of the run fences
duplicates. DBOS allows one instance per process, and so does this class.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import threading
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast
from urllib.parse import parse_qsl, urlencode

import dbos
from dbos import DBOS, Serializer
from rollcage.errors import StoreError

from rollcage_workflow.engine.board import Board
from rollcage_workflow.engine.limits import Limit
from rollcage_workflow.engine.worker import Worker, is_live
from rollcage_workflow.errors import WorkflowError
from rollcage_workflow.orders import Command

__all__ = ["Transact"]

_log: Final = logging.getLogger("rollcage.workflow")
_APPLICATION: Final = "rollcage"
_VERSION: Final = "1"  # the version of the data in DBOS's database, not of any code
_QUEUE: Final = "rollcage"
_UNFINISHED: Final = ["ENQUEUED", "DELAYED", "PENDING"]
_KEPT: Final = 3600.0  # seconds for which finished workflows stay in the database
_BATCH: Final = 1000
_SURE: Final = 10  # looks in a row, at each of which a worker did not have the lock

_serving: Transact | None = None


class _Json(Serializer):
    """Keeps DBOS's values as JSON; by default it pickles them."""

    def serialize(self, data: Any) -> str:
        return json.dumps(data, default=_plain, separators=(",", ":"))

    def deserialize(self, serialized_data: str) -> Any:
        return json.loads(serialized_data)

    def name(self) -> str:
        return "rollcage_json"


def _plain(value: object) -> str:
    if isinstance(value, dt.datetime):
        return value.isoformat()
    if isinstance(value, BaseException):
        return f"{type(value).__name__}: {value}"
    raise TypeError(f"a {type(value).__name__} has no place in the engine's database")


@DBOS.workflow(name="rollcage.take")
async def _take(key: str) -> str:
    assert _serving is not None
    return await _serving.worker.take(key)


class Transact:
    """A worker whose commands are handed out by DBOS.

    Args:
        url: the URL of DBOS's database: `sqlite:///FILE` or `postgresql://HOST/DB`, with
            `?schema=NAME`.
        worker: carries out the commands.
        concurrency: how many one worker takes at once.
        limits: by plan, the limits over all workers.
        every: seconds between two looks for new commands.
    """

    def __init__(
        self,
        url: str,
        worker: Worker,
        *,
        concurrency: int,
        limits: Mapping[str, Limit],
        every: float,
    ) -> None:
        self.worker = worker
        self._url, self._schema = _database(url)
        self._concurrency = concurrency
        self._limits = dict(limits)
        self._every = every
        self._board = Board(worker)
        self._executor = uuid.uuid4().hex
        self._suspects: dict[tuple[str, str | None], int] = {}
        self._swept = 0.0

    def serve(self, stop: threading.Event, *, grace: float) -> None:
        """Take commands until `stop` is set; then attempts end at their next step."""
        global _serving  # noqa: PLW0603 - DBOS finds its functions by name, in the module
        if _serving is not None:
            raise WorkflowError("this process has an engine that serves already: it can have one")
        _serving = self
        try:
            self._launch()
            while not stop.is_set():
                self.sweep()
                stop.wait(self._every)
        finally:
            self.worker.end("the worker ends")
            DBOS.destroy(workflow_completion_timeout_sec=max(int(grace), 1))
            _serving = None

    def _launch(self) -> None:
        DBOS(
            config={
                "name": _APPLICATION,
                "system_database_url": self._url,
                "dbos_system_schema": self._schema,
                "application_version": _VERSION,
                "executor_id": self._executor,
                "serializer": _Json(),
                "log_level": "CRITICAL",
            }
        )
        DBOS.listen_queues([_QUEUE, *(f"{_QUEUE}.{plan}" for plan in self._limits)])
        DBOS.launch()
        common: dict[str, Any] = {
            "worker_concurrency": self._concurrency,
            "polling_interval_sec": self._every,
            "on_conflict": "always_update",
        }
        DBOS.register_queue(_QUEUE, **common)
        for plan, limit in self._limits.items():
            most = limit.concurrency
            own = dict(common)
            if most is not None:
                own |= {"worker_concurrency": min(most, self._concurrency)}
                own |= {"global_concurrency": most}
            rate = None if limit.starts is None else {"limit": limit.starts, "period": limit.per}
            DBOS.register_queue(f"{_QUEUE}.{plan}", limiter=cast("Any", rate), **own)

    # --- from the store to DBOS ------------------------------------------------------------

    def sweep(self) -> None:
        """Take over abandoned commands, and hand out open ones."""
        try:
            flying = self._take_over(self._unfinished())
            for command in self._board.look(without=flying):
                self._enqueue(command)
            if time.monotonic() - self._swept > _KEPT / 10:
                self._swept = time.monotonic()
                self._forget()
        except StoreError as error:
            self.worker.warn("", str(error))
        except Exception:  # noqa: BLE001 - the database is away: what is open stays so until it is back
            _log.warning("the engine's database can't be used", exc_info=True)

    def _unfinished(self) -> Sequence[dbos.WorkflowStatus]:
        return DBOS.list_workflows(
            name="rollcage.take", status=_UNFINISHED, load_input=False, load_output=False
        )

    def _take_over(self, unfinished: Iterable[dbos.WorkflowStatus]) -> set[str]:
        """Give back commands that are pending at a worker without the run's lock.

        Not at once: between taking a command and getting the lock there is a moment. If it was a
        long one, and the worker lives, one of the two workers finds the run in use.

        Returns:
            The keys of the commands that have a worker.
        """
        flying: set[str] = set()
        suspects: dict[tuple[str, str | None], int] = {}
        for each in unfinished:
            key = each.workflow_id.rpartition(":")[0]
            mark = (each.workflow_id, each.executor_id)
            if each.status != "PENDING" or each.executor_id == self._executor:
                flying.add(key)
                continue
            command = self.worker.commands.get(key)
            if command is None or not is_live(self.worker.store, command.execution):
                if self._suspects.get(mark, 0) == _SURE:
                    DBOS.cancel_workflow(each.workflow_id)
                    continue
                suspects[mark] = self._suspects.get(mark, 0) + 1
            flying.add(key)
        self._suspects = suspects
        return flying

    def _enqueue(self, command: Command) -> None:
        plan = self.worker.plan_of(command) if self._limits else ""
        options: dbos.EnqueueOptions = {
            "workflow_name": "rollcage.take",
            "queue_name": f"{_QUEUE}.{plan}" if plan in self._limits else _QUEUE,
            "workflow_id": f"{command.key}:{uuid.uuid4().hex}",
            "deduplication_id": command.key,
            "duplication_policy": "return-existing",
            "app_version": _VERSION,
        }
        if not self._board.is_due(command):
            options["delay_seconds"] = max(command.at - time.time(), 0.0)
        DBOS.enqueue_workflow_with_options(options, command.key)

    def _forget(self) -> None:
        """Remove old finished workflows, so that the database does not grow."""
        until = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=self._kept())
        ended = DBOS.list_workflows(
            status=["SUCCESS", "ERROR", "CANCELLED"], completed_before=until.isoformat(),
            limit=_BATCH, load_input=False, load_output=False,
        )  # fmt: skip
        if ended:
            DBOS.delete_workflows([each.workflow_id for each in ended])

    def _kept(self) -> float:
        """Return how long finished workflows are kept (seconds); a rate limit counts them, too."""
        return max([_KEPT, *(2 * limit.per for limit in self._limits.values())])


def _database(url: str) -> tuple[str, str]:
    """Split a database's URL into DBOS's form and the schema."""
    place, _, query = url.partition("?")
    given = dict(parse_qsl(query, keep_blank_values=True))
    schema = given.pop("schema", "rollcage_engine")
    if not place.startswith(("sqlite:///", "postgresql://", "postgres://")):
        raise WorkflowError(
            f"{place!r} is not an engine's URL: sqlite:///FILE or postgresql://HOST/DB"
        )
    return (f"{place}?{urlencode(given)}" if given else place), schema
