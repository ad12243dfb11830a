"""Test agents from recorded runs: a recorded run is the cassette of a test.

::

    def test_it_sends_the_news(cassette):
        with cassette.session() as session:
            run_agent(session)
        assert_no_writes_outside(cassette, ["send_*"])

The plugin is active once this is installed: `pytest --rollcage-record=once` records.
"""

from rollcage_pytest.cassette import Cassette
from rollcage_pytest.checks import (
    assert_cost,
    assert_no_new_writes,
    assert_no_writes_outside,
    assert_policy,
    assert_same_effects,
    assert_undoable,
)

__all__ = [
    "Cassette",
    "assert_cost",
    "assert_no_new_writes",
    "assert_no_writes_outside",
    "assert_policy",
    "assert_same_effects",
    "assert_undoable",
]
