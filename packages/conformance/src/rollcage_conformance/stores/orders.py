"""Orders, and the bell that rings with each."""

from __future__ import annotations

import threading

from rollcage import Store, open_store

from rollcage_conformance.stores.base import Other, StoreBase, begun

__all__ = ["OrderSuite"]


class OrderSuite(StoreBase):
    """Orders, and the bell that rings with each."""

    def test_the_bell_rings_with_each_order_and_with_nothing_else(
        self, store: Store, url: str, other: Other
    ) -> None:
        heard = [store.bell()]
        was = None
        for new in ("a", "b", "a", None):
            assert other.do("swap", kind="orders", key="r1", was=was, new=new)
            heard.append(store.bell())
            was = new
        assert len(set(heard)) == len(heard)
        assert other.do("swap", kind="names", key="r1", was=None, new="a")
        begun(store).close()
        assert store.bell() == heard[-1] == open_store(url).bell()

    def test_an_order_that_was_acknowledged_is_seen_with_the_next_intent(
        self, store: Store, other: Other
    ) -> None:
        chain = begun(store)
        chain.wait()
        seen = chain.log.bell
        for n in range(20):
            chain.append({"n": n})
            chain.wait()
            assert chain.log.bell == seen
            was = None if n == 0 else str(n)
            assert other.do("swap", kind="orders", key="r1", was=was, new=str(n + 1))
            chain.append({"n": n})
            chain.wait()
            assert chain.log.bell != seen
            assert store.get("orders", "r1") == str(n + 1).encode()
            seen = chain.log.bell
        chain.close()

    def test_an_order_is_heard_without_any_look(self, store: Store, other: Other) -> None:
        chain = begun(store)
        told = chain.log.hear()
        if told is None:  # for a database on another machine
            chain.close()
            return
        heard = [told()]
        was = None
        for new in ("a", "b", "a", None):
            assert other.do("swap", kind="orders", key="r1", was=was, new=new)
            heard.append(told())
            was = new
        assert len(set(heard)) == len(heard)
        assert other.do("swap", kind="names", key="r1", was=None, new="a")
        chain.append({"n": 1})
        chain.close()
        assert told() == heard[-1]

    def test_orders_that_are_given_at_once_are_all_heard(self, store: Store, url: str) -> None:
        chain = begun(store)
        told = chain.log.hear()
        before = 0 if told is None else told()

        def give(name: str) -> None:
            mine = open_store(url)
            for n in range(20):
                assert mine.swap("orders", name, None, b"%d" % n)
                assert mine.swap("orders", name, b"%d" % n, None)

        threads = [threading.Thread(target=give, args=(name,)) for name in "abc"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert told is None or told() == before + 120
        chain.close()

    def test_an_order_that_is_refused_rings_all_the_same(self, store: Store) -> None:
        """The writer may have died before the bell rang; a repeated attempt rings it."""
        assert store.swap("orders", "r1", None, b"stop")
        before = store.bell()
        assert not store.swap("orders", "r1", None, b"stop")
        assert store.bell() != before
