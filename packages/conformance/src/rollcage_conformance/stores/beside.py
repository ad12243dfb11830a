"""What a store keeps besides traces: documents, logs, large values, and damage to all of it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from typing import Any

import pytest
from rollcage import Approval, ApprovalRequired, StepView, Verdict
from rollcage.errors import (
    RegistryCorrupt,
    StoreError,
    TraceCorrupt,
)
from rollcage.gate import ApprovalQueue, QueueApprover
from rollcage.session.session import Session
from rollcage.store import Store
from rollcage.store.url import open_store
from rollcage.trace import check_events
from rollcage_governance import Registry

from rollcage_conformance.stores.base import StoreBase, note

__all__ = ["BesideSuite"]


Tamper = Callable[[bytes, bytes], None]


def _given(tamper: Tamper | None) -> Tamper:
    if tamper is None:
        pytest.skip("the fixture `tamper` does not say how what is kept is changed")
    return tamper


def _asks(view: StepView) -> Verdict | None:
    return Verdict.ask("is that so?") if view.args.get("text") == "ask" else None


class BesideSuite(StoreBase):
    """What a store keeps besides traces: documents, logs, large values, and damage to all of it."""

    def test_a_document_is_written_once_by_one(self, store: Store, url: str) -> None:
        def put(number: int) -> bool:
            return open_store(url).put_once("approvals", "a.b-c_1", b"%d" % number)

        with ThreadPoolExecutor(8) as pool:
            won = [number for number, new in enumerate(pool.map(put, range(24))) if new]
        assert len(won) == 1
        assert store.get("approvals", "a.b-c_1") == b"%d" % won[0]
        assert store.put_once("approvals", "Z", b"")
        assert not store.put_once("approvals", "Z", b"again")
        assert store.get("approvals", "Z") == b""
        assert list(store.keys("approvals")) == ["Z", "a.b-c_1"]
        assert list(store.keys("others")) == []
        for _ in range(2):
            store.drop("approvals", "a.b-c_1")
        assert list(store.keys("approvals")) == ["Z"]
        assert store.get("approvals", "a.b-c_1") is None

    def test_a_log_of_many_writers_is_one_chain(self, store: Store, url: str) -> None:
        def add(number: int) -> None:
            log = open_store(url).log("registry", "registry.started")
            log.append(
                lambda lines: [
                    {
                        "event": "registry.started" if not lines else "more",
                        "number": number,
                        "before": len(lines),
                    }
                ]
            )

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(add, range(12)))
        log = store.log("registry", "registry.started")
        lines = log.read()
        assert [number for number, _ in lines] == list(range(1, 13))
        assert sorted(event["number"] for _, event in lines) == list(range(12))
        assert [event["before"] for _, event in lines] == list(range(12))

        def refuse(lines: Any) -> Any:
            raise KeyError(len(lines))

        with pytest.raises(KeyError, match="12"):
            log.append(refuse)
        assert len(log.read()) == 12

    def test_an_approval_is_asked_here_and_decided_there(self, store: Store, url: str) -> None:
        approver = QueueApprover(url)

        def job() -> str:
            with Session("job", store=url, rules=[_asks], approver=approver) as session:
                note("one")
                note("ask")
            return session.run_id

        with pytest.raises(ApprovalRequired):
            job()
        queue = ApprovalQueue(open_store(url))
        (waiting,) = queue.ids()
        queue.decide(waiting, Approval(True, by="bob"))
        job()
        queued = queue.get(waiting)
        assert queued is not None
        assert queued.use == "used"
        assert [info.status for info in store.runs()] == ["paused", "ok"]

    def test_the_registry_of_tools(self, store: Store, url: str) -> None:
        registry = Registry(url)
        registry.propose(note, by="ann")
        registry.approve("store_suite.note", by="bob")
        registry.activate("store_suite.note", "pack", by="bob")
        Registry(open_store(url)).define_facade("agent", ["pack"], by="bob")
        assert [each["event"] for each in registry.history()]
        with Session("job", store=url, facade="agent"):
            assert note("one") == "one"
        assert store.runs()[0].status == "ok"

    def test_blobs_are_listed_and_dropped(self, store: Store) -> None:
        assert list(store.blobs()) == []
        one, two = (sha256(text).hexdigest() for text in (b"one", b"two"))
        store.put_blob(one, b"one")
        store.put_blob(two, b"two")
        assert list(store.blobs()) == sorted([one, two])
        store.drop_blob(one)
        store.drop_blob(one)
        assert list(store.blobs()) == [two]
        for name in ("", "../key", one.upper()):
            with pytest.raises(StoreError):
                store.drop_blob(name)

    # --- damage ----------------------------------------------------------------------------------

    @pytest.mark.usefixtures("store")
    def test_a_changed_line_of_a_trace_is_found(self, url: str, tamper: Tamper | None) -> None:
        tamper = _given(tamper)
        with Session("job", store=url) as session:
            note("the first note")
        tamper(b"the first note", b"the other note")
        trace = open_store(url).read(session.run_id)
        with pytest.raises(TraceCorrupt):
            check_events(trace.data, trace.where)
        with pytest.raises(TraceCorrupt), Session("job", store=url, replay="offline"):
            pytest.fail("a changed trace is replayed")
        tamper(b"the other note", b"the first note")
        with Session("job", store=url, replay="offline"):
            assert note("the first note") == "the first note"

    def test_a_changed_large_value_is_found(self, store: Store, tamper: Tamper | None) -> None:
        tamper = _given(tamper)
        digest = sha256(b"the first note").hexdigest()
        store.put_blob(digest, b"the first note")
        assert store.get_blob(digest) == b"the first note"
        tamper(b"the first note", b"the other note")
        with pytest.raises(TraceCorrupt, match=digest):
            store.get_blob(digest)
        store.drop_blob(digest)

    def test_a_changed_line_of_a_log_is_found(
        self, store: Store, url: str, tamper: Tamper | None
    ) -> None:
        tamper = _given(tamper)
        for event in ("registry.started", "more", "more"):
            log = store.log("registry", "registry.started")
            log.append(lambda lines, event=event: [{"event": event, "text": f"at {len(lines)}"}])  # type: ignore[misc]
        tamper(b"at 1", b"at 7")
        again = open_store(url).log("registry", "registry.started")
        with pytest.raises(RegistryCorrupt):
            again.read()
        with pytest.raises(RegistryCorrupt):
            again.append(lambda _: [{"event": "more"}])
        tamper(b"at 7", b"at 1")
        assert [event["text"] for _, event in again.read()] == ["at 0", "at 1", "at 2"]
