"""Copy and drop what persons say beside a run's log: its order, and requests with decisions."""

from __future__ import annotations

from collections.abc import Iterator

import orjson
from rollcage.trace.store import Store

from rollcage_stores.blobs import keys_of

__all__ = ["copy_beside", "drop_beside"]


def copy_beside(source: Store, target: Store, run: str) -> None:
    """Copy the order of a run, its requests for approval and their decisions."""
    order = source.get("orders", run)
    while order is not None and not target.swap("orders", run, target.get("orders", run), order):
        pass  # somebody has given another one there
    for key, request in _requests(source, run):
        decision = source.get("decisions", key)
        if decision is not None:
            target.swap("decisions", key, None, decision)
        target.swap("requests", key, None, request)


def drop_beside(store: Store, run: str) -> None:
    """Remove the order of a run, its requests for approval and their decisions."""
    order = store.get("orders", run)
    if order is not None:
        store.swap("orders", run, order, None)
    for key, request in _requests(store, run):
        decision = store.get("decisions", key)
        if decision is not None:
            store.swap("decisions", key, decision, None)
        store.swap("requests", key, request, None)


def _requests(store: Store, run: str) -> Iterator[tuple[str, bytes]]:
    """Yield the requests of a run, each with its id; an unreadable request is of no run."""
    for key in list(keys_of(store, "requests")):
        data = store.get("requests", key)
        try:
            if data is not None and orjson.loads(data)["run"] == run:
                yield key, data
        except (orjson.JSONDecodeError, KeyError, TypeError):
            continue
