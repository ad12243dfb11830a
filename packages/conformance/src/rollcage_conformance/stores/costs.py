"""What a store's answers cost: the same, however many other runs there are."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

import pytest
from rollcage.session.abandon import abandon_run
from rollcage.session.session import Session
from rollcage.store import Store
from rollcage.store.url import open_store
from rollcage.trace import check_events

from rollcage_conformance.stores.base import StoreBase, note

__all__ = ["CostSuite"]

FEW: Final = 20
MANY: Final = 400
OFTEN: Final = 5  # times a question is asked first: what a store keeps at hand, it has by then


def calls_of(ask: Callable[[], Any]) -> int:
    """How many calls a question takes in this thread, into C too: each row, line and file is one.

    No time: that depends on what else the machine does.
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
    """What answers cost."""

    def test_what_is_asked_for_costs_the_same_however_many_lie_beside(
        self, store: Store, origin: Store
    ) -> None:
        with Session("began", store=origin) as session:
            pass
        started = check_events(origin.read(session.run_id).data, "")[0]
        del started["hash"]

        def begin(number: int, name: str, status: str = "") -> str:
            run = f"01a201da-e587-7294-a93d-{number:012x}"
            with store.opening():
                writer = store.create(started | {"run": run, "name": name, "root": run})
            if status:
                writer.attest(status)
            writer.close()
            return run

        def fill(numbers: range, name: str, status: str) -> None:
            for number in numbers:
                begin(number, name, status)

        fill(range(5), "asked", "error")
        one, dead = begin(MANY, "asked", "error"), begin(MANY + 1, "dead")
        fill(range(5, FEW), "other", "ok")
        questions: dict[str, Callable[[], Any]] = {
            "by status": lambda: store.runs(status="error", limit=5),
            "unfinished": lambda: store.runs(status="unfinished", limit=5),
            "by name": lambda: store.runs(name="asked", limit=5),
            "by both": lambda: store.runs(name="asked", status="error", limit=5),
            "newest five": lambda: store.runs(limit=5),
            "newest of a job": lambda: store.newest("asked", None),
            "one": lambda: store.info(one),
        }
        few = {what: calls_of(ask) for what, ask in questions.items()}
        assert [info.run for info in questions["unfinished"]()] == [dead]
        fill(range(FEW, MANY), "other", "ok")
        many = {what: calls_of(ask) for what, ask in questions.items()}
        assert len(store.runs(status="error", limit=5)) == 5
        assert {info.status for info in questions["by both"]()} == {"error"}
        grown = {what: (few[what], many[what]) for what in few if many[what] > 2 * few[what]}
        assert not grown, f"calls with {FEW} runs and with {MANY}: {grown}"

    @pytest.mark.parametrize("then", ["noted", "killed"])
    def test_a_run_that_goes_on_after_its_end_is_found_by_how_it_stands(
        self, store: Store, url: str, then: str
    ) -> None:
        with Session("job", store=url):
            note("hello")
        with Session("other", store=url) as other:
            note("hello")
        abandon_run(url, other.run_id, by="ann", reason="")
        abandoned = check_events(store.read(other.run_id).data, "")[-1]
        with Session("job", store=url, replay="off") as session:
            note("hello")
        again = open_store(url)

        def found(status: str) -> bool:
            asked = [again.runs(status=status, limit=2) for _ in range(OFTEN)]
            return session.run_id in [info.run for info in asked[-1]]

        assert found("ok")
        writer = store.reopen(session.run_id)
        assert found("ok")
        writer.append({name: value for name, value in abandoned.items() if name != "hash"})
        writer.sync()
        if then == "noted":
            writer.attest("abandoned")
        writer.close()
        assert found("abandoned")
        assert not found("ok")
        assert not found("unfinished")
