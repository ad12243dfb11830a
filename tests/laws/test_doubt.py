"""What becomes of a write that fails stays: see `tests.laws.doubt`."""

import pytest

from tests.laws.doubt import CASES, kept, told

KEPT = kept()


@pytest.mark.parametrize("name", CASES)
def test_a_write_that_fails_is_treated_as_before(name: str) -> None:
    assert told(CASES[name]).splitlines() == KEPT[name].splitlines()
