"""All that is recorded and told of some runs stays: see `tests.laws.whole`."""

from tests.laws.lab import folder
from tests.laws.whole import KEPT, whole


def test_some_runs_are_told_in_full_as_before() -> None:
    with folder() as root:
        assert whole(root).splitlines() == KEPT.read_text(encoding="utf-8").splitlines()
