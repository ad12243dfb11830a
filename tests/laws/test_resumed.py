"""What answers a call of another program than the recorded one, and what is written, stays.

The rows are small, and many: see `tests.laws.resumed`. A change of them is one that users notice.
"""

import pytest

from tests.laws.resumed import kept, told

KEPT = kept()


@pytest.mark.parametrize("row", KEPT)
def test_a_program_is_resumed_as_before(row: str) -> None:
    assert told(row).splitlines() == KEPT[row].splitlines()
