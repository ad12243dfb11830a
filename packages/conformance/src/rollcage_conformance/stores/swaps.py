"""Values that are compared and swapped, and the keys that have one."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from rollcage import Store
from rollcage.errors import StoreInvalid

from rollcage_conformance.stores.base import ODD, StoreBase

__all__ = ["SwapSuite"]


class SwapSuite(StoreBase):
    """Values that are compared and swapped, and the keys that have one."""

    def test_a_value_is_swapped_for_what_was_seen(self, store: Store) -> None:
        assert store.get("names", "job") is None
        assert store.swap("names", "job", None, b"a")
        assert not store.swap("names", "job", None, b"b")
        assert not store.swap("names", "job", b"b", b"c")
        assert store.get("names", "job") == b"a"
        assert store.swap("names", "job", b"a", b"\0\n\xff" * 1000)
        assert store.get("names", "job") == b"\0\n\xff" * 1000
        assert store.swap("names", "job", b"\0\n\xff" * 1000, b"")
        assert store.get("names", "job") == b""
        assert not store.swap("names", "job", None, b"x")
        assert store.swap("names", "job", b"", None)
        assert store.get("names", "job") is None
        assert not store.swap("names", "job", b"", None)
        assert store.swap("names", "job", None, None)
        assert store.get("other", "job") is None

    @pytest.mark.parametrize("key", [*ODD, "k" * 1024, "É" * 500])
    def test_any_text_is_a_key(self, store: Store, key: str, tmp_path: Path) -> None:
        before = set(tmp_path.parent.iterdir())
        assert store.swap("names", key, None, b"a")
        assert store.keys("names") == [key]
        for wrong in set(ODD) - {key}:
            assert store.get("names", wrong) is None
        assert store.swap("names", key, b"a", None)
        assert store.keys("names") == []
        assert set(tmp_path.parent.iterdir()) == before

    @pytest.mark.parametrize("key", ["", "a\0", "x" * 1025, "\ud800"])
    @pytest.mark.parametrize("kind", ["names", "orders"])
    def test_a_key_that_no_store_can_keep_is_refused(
        self, store: Store, kind: str, key: str
    ) -> None:
        with pytest.raises(StoreInvalid):
            store.get(kind, key)
        with pytest.raises(StoreInvalid):
            store.swap(kind, key, None, b"a")

    @pytest.mark.parametrize("kind", ["", "..", "../runs", "a/b", "Names", "a\0", "n" * 41])
    def test_a_kind_is_a_word(self, store: Store, kind: str) -> None:
        for use in (
            lambda: store.get(kind, "a"),
            lambda: store.swap(kind, "a", None, b"a"),
            lambda: store.keys(kind),
        ):
            with pytest.raises(StoreInvalid):
                use()

    def test_keys_are_sorted_and_come_in_parts(self, store: Store) -> None:
        for key in ODD:
            assert store.swap("names", key, None, b"a")
        assert store.keys("names") == sorted(ODD)
        assert store.keys("others") == []
        found: list[str] = []
        while more := store.keys("names", found[-1] if found else "", 4):
            assert len(more) <= 4
            found += more
        assert found == sorted(ODD)

    def test_of_two_who_swap_at_once_one_wins(self, store: Store, url: str) -> None:
        with self.others(url, 3) as workers:
            for n, each in enumerate(workers):  # all of them run
                assert each.do("swap", kind="others", key=f"{n}", was=None, new="begun")
            for each in workers:
                each.ask("count_up", key="k", times=40)
            for each in workers:
                assert isinstance(each.answer(), int)
        assert store.get("counts", "k") == b"120"

    @pytest.mark.parametrize("seed", range(6))
    def test_values_are_those_of_a_dict(self, store: Store, seed: int) -> None:
        """Compare the store with a dict as the model, for any sequence of swaps."""
        chance = Random(seed)  # noqa: S311 - reproducible
        model: dict[str, bytes] = {}
        values = [None, b"a", b"b", b""]
        for _ in range(80):
            key = chance.choice(ODD[:8])
            was = model.get(key) if chance.random() < 0.5 else chance.choice(values)
            new = chance.choice(values)
            expected = model.get(key) == was
            assert store.swap("names", key, was, new) is expected
            if expected and new is not None:
                model[key] = new
            elif expected:
                model.pop(key, None)
            assert store.keys("names") == sorted(model)
        assert {key: store.get("names", key) for key in model} == model
