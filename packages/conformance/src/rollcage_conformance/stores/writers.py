"""The writer of a run: its live writer, or the writer that takes it over, and no other."""

from __future__ import annotations

import contextlib

import pytest
from rollcage import Store
from rollcage.errors import Fenced, RunInUse
from rollcage.trace.chain import Chain

from rollcage_conformance.stores.base import Other, StoreBase, begun, numbers

__all__ = ["WriterSuite"]


class WriterSuite(StoreBase):
    """The writer of a run: its live writer, or the writer that takes it over, and no other."""

    def test_a_live_writer_is_left_alone(self, store: Store, other: Other) -> None:
        chain = begun(store)
        with pytest.raises(RunInUse):
            store.open("r1")
        assert other.do("open", run="r1") == "RunInUse"
        assert other.do("open", run="r2") == 0
        chain.append({"n": 1})
        chain.close()
        assert other.do("open", run="r1") == 2

    def test_a_writer_that_was_taken_over_is_refused(self, store: Store) -> None:
        old = begun(store)
        old.append({"n": 1})
        old.wait()
        new = begun(store, take=True)
        new.append({"n": 2})
        new.wait()
        for _ in range(2):  # the result stays the same
            with pytest.raises(Fenced):
                old.append({"n": 3})
                old.wait()
        new.append({"n": 4})
        new.close()
        with contextlib.suppress(Fenced):
            old.close()
        assert numbers(store) == [1, 2, 4]

    def test_what_the_old_writer_appended_before_it_was_taken_over_is_read(
        self, store: Store
    ) -> None:
        old = begun(store)
        log = store.open("r1", take=True)
        new = Chain(log)
        # Either its first line decides, or its opening: both are correct.
        try:
            old.append({"n": 1})
            old.wait()
            expected = [1, 2]
        except Fenced:
            expected = [2]
        assert len(new.read()) == len(expected)
        new.append({"n": 2})
        new.close()
        assert numbers(store) == expected

    def test_of_many_who_take_over_one_goes_on(self, store: Store) -> None:
        chains = [begun(store)]
        for n in range(1, 5):
            chains.append(begun(store, take=True))
            chains[-1].append({"n": n})
            chains[-1].wait()
        for old in chains[:-1]:
            with pytest.raises(Fenced):
                old.append({"n": 0})
                old.wait()
        chains[-1].append({"n": 5})
        chains[-1].wait()
        assert numbers(store) == [1, 2, 3, 4, 5]

    def test_who_took_over_is_left_alone_by_others(self, store: Store, other: Other) -> None:
        old = begun(store)
        new = begun(store, take=True)
        new.append({"n": 1})
        new.wait()
        assert other.do("open", run="r1") == "RunInUse"
        with contextlib.suppress(Fenced):
            old.close()
        assert other.do("open", run="r1") == "RunInUse"
        new.append({"n": 2})
        new.close()
        assert other.do("open", run="r1") == 3

    def test_a_frozen_writer_is_refused_when_it_wakes(self, store: Store, other: Other) -> None:
        begun(store).close()
        assert other.do("open", run="r1") == 1
        assert other.do("write", n=1) is None
        other.freeze()
        with pytest.raises(RunInUse):
            store.open("r1")
        new = begun(store, take=True)
        new.append({"n": 2})
        new.wait()
        other.wake()
        assert other.do("write", n=3) == "Fenced"
        assert other.do("write", n=4) == "Fenced"
        new.append({"n": 5})
        new.close()
        assert numbers(store) == [1, 2, 5]

    def test_a_killed_writer_leaves_its_lines_and_lets_go(self, store: Store, url: str) -> None:
        begun(store).close()
        for n in range(5):
            with self.others(url, 1) as (other,):
                assert other.do("open", run="r1") == 1 + n
                assert other.do("write", n=n) is None
                other.kill()
                self.until_free(store)
        assert numbers(store) == [0, 1, 2, 3, 4]

    @pytest.mark.parametrize("told", [1, 9, 30])
    def test_what_was_acknowledged_before_a_kill_is_on_record(
        self, store: Store, url: str, told: int
    ) -> None:
        begun(store).close()
        with self.others(url, 1) as (other,):
            assert other.do("open", run="r1") == 1
            for n in range(40):
                other.ask("write", n=n)
            for _ in range(told):
                assert other.answer() is None
            other.kill()
            self.until_free(store)
        found = numbers(store)
        assert found == list(range(len(found)))
        assert len(found) >= told
        chain = begun(store)
        chain.append({"n": len(found)})
        chain.close()
        assert numbers(store) == list(range(len(found) + 1))

    def test_a_forked_child_is_refused_and_its_parent_goes_on(
        self, store: Store, other: Other
    ) -> None:
        begun(store).close()
        assert other.do("open", run="r1") == 1
        assert other.do("write", n=1) is None
        assert other.do("fork", n=2) == "Forked"
        assert other.do("write", n=3) is None
        with pytest.raises(RunInUse):
            store.open("r1")
        assert other.do("close") is None
        assert numbers(store) == [1, 3]
