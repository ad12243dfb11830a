"""Lists of a store's runs."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import pytest
from rollcage import Clock, Options, Session, Store, abandon_run, resolve_step, tool
from rollcage.errors import RunNotFound, UnknownOutcome
from rollcage.trace.chain import FORMAT, Chain
from rollcage.trace.listing import RunInfo, list_runs, newest_run, run_info
from rollcage_fork import Fork

from rollcage_conformance.stores.base import StoreBase

__all__ = ["ListingSuite"]


@tool(effect="write")
def listed_write(text: str) -> str:
    """Return the text; `lost` ends with an unknown outcome."""
    if text == "lost":
        raise TimeoutError("nobody knows")
    return text


def _run(store: Store, name: str, *texts: str, at: int = 1000, **given: Any) -> str:
    """Write these texts in a session; return its run. A session that writes `lost` halts."""
    session = Session(
        name, store=store, options=Options(clock=Clock(wall=lambda: at * 10**9)), **given
    )
    with contextlib.suppress(UnknownOutcome), session:
        for text in texts:
            session.call(listed_write, text=text)
    return session.run_id


class ListingSuite(StoreBase):
    """Lists of a store's runs."""

    def test_a_store_that_is_not_there_has_no_runs(self, store: Store) -> None:
        assert list_runs(store) == []
        assert newest_run(store, "a") is None
        with pytest.raises(RunNotFound):
            run_info(store, "r1")

    def test_a_list_says_how_runs_began_and_ended(self, store: Store, url: str) -> None:
        one = _run(store, "a", "x", at=1000, actor="ann")
        two = _run(store, "b", "lost", at=1001, input={"of": 1})
        assert list_runs(url) == [
            RunInfo(
                two, "b", 1_001_000_000, "halted", 1_001_000_000, 1, given={"of": 1}, last="ended"
            ),
            RunInfo(one, "a", 1_000_000_000, "ok", 1_000_000_000, 1, actor="ann", last="ended"),
        ]
        assert run_info(url, one) == list_runs(url)[1]
        resolve_step(store, two, 1, happened=True, result="lost")
        assert run_info(store, two).status == "halted"
        assert run_info(store, two).last == "outcome"
        assert _run(store, "b", "lost", at=1002, input={"of": 1}) == two
        assert run_info(store, two).status == "ok"
        assert (run_info(store, two).attempts, run_info(store, two).ended) == (2, 1_002_000_000)

    def test_a_run_that_has_not_ended_has_no_status(self, store: Store) -> None:
        run_id = ""
        for attempts in (1, 2, 3):
            session = Session("a", store=store)
            session.__enter__()
            run_id = session.run_id
            for n in range(3):
                session.call(listed_write, text=str(n))
            found = run_info(store, session.run_id)
            assert (found.status, found.ended, found.attempts) == (None, None, attempts)
            assert store.is_live(found.run)
            with pytest.raises(ZeroDivisionError):
                session.__exit__(ZeroDivisionError, error := ZeroDivisionError(), None)
                raise error
            found = run_info(store, session.run_id)
            assert (found.status, found.attempts) == ("error", attempts)
            until = time.monotonic() + 5
            while store.is_live(found.run):  # PostgreSQL soon notices that a client has gone
                assert time.monotonic() < until
        abandon_run(store, run_id)
        assert (run_info(store, run_id).status, run_info(store, run_id).attempts) == (
            "abandoned", 3,
        )  # fmt: skip

    def test_an_attempt_of_many_lines_is_found(self, store: Store) -> None:
        session = Session("b", store=store)
        session.__enter__()
        for n in range(100):
            session.call(listed_write, text=str(n))
        assert run_info(store, session.run_id).attempts == 1
        assert run_info(store, session.run_id).status is None
        session.__exit__(None, None, None)
        assert run_info(store, session.run_id).status == "ok"

    def test_forks_and_runs_that_go_on_name_their_origin(self, store: Store) -> None:
        one = _run(store, "a", "x", "lost")
        dry = _run(store, "a", "x", at=1001, stages=[Fork(one)])
        live = _run(store, "a", "x", at=1002, stages=[Fork(one, live=True)])
        goes_on = _run(store, "a", "x", at=1003, source=one)
        found = [
            (each.run, each.origin, each.fork, each.status, each.attempts)
            for each in list_runs(store)
        ]
        assert found == [
            (goes_on, one, "", "ok", 1), (live, one, "live", "ok", 1),
            (dry, one, "dry", "ok", 1), (one, "", "", "halted", 1),
        ]  # fmt: skip
        newest = newest_run(store, "a")
        assert newest is not None
        assert newest.run == goes_on

    def test_lists_are_filtered(self, store: Store) -> None:
        runs = [
            _run(store, name, *texts, at=at)
            for name, texts, at in (
                ("a", "x", 1000), ("b", ("lost",), 1001), ("a", "xy", 1002), ("c", "x", 1003),
                ("a", "z", 1004),
            )
        ]  # fmt: skip

        def listed(**filters: Any) -> list[int]:
            return [runs.index(each.run) for each in list_runs(store, **filters)]

        assert listed() == [4, 3, 2, 1, 0]
        assert listed(name="a") == [4, 2, 0]
        assert listed(name="nobody") == []
        assert listed(status="halted") == [1]
        assert listed(status="unfinished") == []
        assert listed(since=1_001_000_000, before=1_004_000_000) == [3, 2, 1]
        assert listed(limit=2) == [4, 3]
        assert listed(limit=0) == []
        assert listed(name="a", before=1_004_000_000, limit=1) == [2]

    def test_runs_of_a_job_stay_in_order_where_clocks_go_back(self, store: Store) -> None:
        """Also runs that begin within a millisecond, whose ids end in random digits."""
        runs = [_run(store, "a", "x", at=at) for at in (1000, 900, 900, 5, 5, 2000, 1)]
        found = list_runs(store, name="a")
        assert [each.run for each in found] == runs[::-1]
        assert [each.begun for each in found][::-1] == [
            at * 1_000_000 for at in (1000, 900, 900, 5, 5, 2000, 1)
        ]

    def test_the_newest_run_is_that_of_the_job(self, store: Store) -> None:
        for n in range(3):
            _run(store, "a", "x", input={"of": n})
            _run(store, "b", "x")
        for n in range(3):
            found = newest_run(store, "a", {"of": n})
            assert found is not None
            assert found.given == {"of": n}
            assert found.input == run_info(store, found.run).input
        assert len({each.input for each in list_runs(store, name="a")}) == 3
        assert newest_run(store, "a") is None

    def test_many_runs_come_in_pages(self, store: Store) -> None:
        for n in range(180):
            chain = Chain(store.open(f"{n:04}"))
            chain.append({"event": "run", "format": FORMAT, "run": f"{n:04}", "time": n})
            chain.close()
        assert [each.begun for each in list_runs(store)] == list(range(180))[::-1]
        assert [each.begun for each in list_runs(store, limit=70)] == list(range(110, 180))[::-1]

    def test_a_run_that_cannot_be_read_keeps_no_list_away(self, store: Store) -> None:
        one = _run(store, "a", "x")
        for name, first in (("zz", {"event": "run"}), ("zy", {"format": "rollcage/9"})):
            chain = Chain(store.open(name))
            chain.append(first)
            chain.close()
        assert [(each.run, each.status) for each in list_runs(store)] == [
            ("zz", "damaged"), ("zy", "damaged"), (one, "ok"),
        ]  # fmt: skip
