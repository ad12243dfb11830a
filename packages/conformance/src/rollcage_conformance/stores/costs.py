"""The cost of a store's answers: independent of the number of other runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from rollcage import Session, Store, list_runs, newest_run, run_info
from rollcage.trace.chain import Chain

from rollcage_conformance.stores.base import FIRST, StoreBase, store_note

__all__ = ["CostSuite"]

FEW: Final = 60
"""More than a list asks for at first, so that it has as many rows beside `MANY`."""

MANY: Final = 300
OFTEN: Final = 5  # warm-up calls, so that the store's caches are filled


def calls_of(ask: Callable[[], Any]) -> int:
    """Count the calls of a question in this thread, into C too: each row and line is one.

    Time is not measured, because it depends on the machine's load.
    """
    count = 0

    def called(_: FrameType, event: str, __: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    for _ in range(OFTEN):
        ask()
    before = sys.getprofile()
    sys.setprofile(called)
    try:
        ask()
    finally:
        sys.setprofile(before)
    return count


class CostSuite(StoreBase):
    """The cost of answers."""

    lists_by_name: bool = False
    """Whether a list reads the names of all runs, as for a folder."""

    def test_what_is_asked_for_costs_the_same_however_many_lie_beside(self, store: Store) -> None:
        def fill(numbers: range) -> None:
            for number in numbers:
                run = f"00000000-e587-7294-a93d-{number:012x}"
                chain = Chain(store.open(run))
                chain.append(FIRST | {"run": run, "name": "beside", "time": number})
                chain.close()
                assert store.swap("names", f"beside {number}", None, run.encode())

        def resume() -> None:
            with Session("asked", store=store, replay="continue"):
                store_note("one")

        with Session("asked", store=store) as session:
            store_note("one")
        one = session.run_id
        fill(range(FEW))
        questions: dict[str, Callable[[], Any]] = {
            "newest five": lambda: list_runs(store, limit=5),
            "newest of a job": lambda: newest_run(store, "asked"),
            "one": lambda: run_info(store, one),
            "is it live": lambda: store.is_live(one),
            "its lines": lambda: store.read(one),
            "a value": lambda: store.get("names", "asked"),
            "five keys": lambda: store.keys("names", "", 5),
            "an order": store.bell,
        }
        if self.lists_by_name:
            del questions["newest five"], questions["five keys"]
        few = {what: calls_of(ask) for what, ask in questions.items()}
        fill(range(FEW, MANY))
        many = {what: calls_of(ask) for what, ask in questions.items()}
        grown = {what: (few[what], many[what]) for what in few if many[what] > 1.5 * few[what]}
        assert not grown, f"calls with {FEW} runs and with {MANY}: {grown}"
        resume()
        assert newest_run(store, "asked") == run_info(store, one)
