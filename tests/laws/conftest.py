"""What every law holds besides."""

from collections.abc import Iterator

import pytest

from tests.laws.timeline import INVALID


@pytest.fixture(autouse=True)
def every_line_is_valid() -> Iterator[None]:
    """Whatever a law writes passes the published schema."""
    INVALID.clear()
    yield
    assert INVALID[:1] == []
