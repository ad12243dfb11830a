"""Inspects a run without a writer, for the plan of an undo."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from rollcage.errors import StoreError
from rollcage.replay.recording import Lineage
from rollcage.step.requests import Consult, Flow, GetBlob, PutBlob, Raised, Recall, Returned
from rollcage.step.waiting import aconsult, consult, stepped, unwrap
from rollcage.store.protocol import Reader

__all__ = ["Looking"]


class Looking:
    """Performs the requests of an inspection; nothing is written, whatever it finds.

    `recall` reads what the run and its lineage hold.
    """

    def __init__(self, store: Reader, recall: Callable[[], Lineage]) -> None:
        self._store = store
        self._recall = recall
        self._blobs: dict[str, bytes] = {}  # large values that were made meanwhile

    def run(self, flow: Flow) -> Any:
        """Inspect, in this thread."""

        async def here(effect: Consult) -> Returned | Raised:
            return consult(effect)

        return unwrap(stepped(self._through(flow, here)))

    async def arun(self, flow: Flow) -> Any:
        """Inspect, in this task."""
        return unwrap(await self._through(flow, aconsult))

    async def _through(
        self, flow: Flow, ask: Callable[[Consult], Awaitable[Returned | Raised]]
    ) -> Returned | Raised:
        answer: Any = None
        while True:
            try:
                effect = flow.send(answer)
            except StopIteration as stop:
                ended: Returned | Raised = stop.value
                return ended
            match effect:
                case Consult():
                    answer = await ask(effect)
                case Recall():
                    answer = _found(self._recall)
                case GetBlob(digest=digest):
                    known = self._blobs.get(digest)
                    answer = _found(self._store.get_blob, digest) if known is None else known
                case PutBlob(digest=digest, data=data):
                    answer = self._blobs[digest] = data
                case _:
                    raise AssertionError(f"a look has no {type(effect).__name__}")


def _found(read: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return read(*arguments)
    except StoreError as error:
        return Raised(error)
