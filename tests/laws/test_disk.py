"""What a folder asks of the operating system stays, and its order: see `tests.laws.disk`."""

from tests.laws.disk import KEPT, asked
from tests.laws.lab import folder


def test_a_folder_asks_for_the_same_as_before() -> None:
    with folder() as root:
        assert asked(root).splitlines() == KEPT.read_text(encoding="utf-8").splitlines()
