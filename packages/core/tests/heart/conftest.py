"""What the tests of the heart share."""

import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from rollcage.heart.log import parse


@pytest.fixture(autouse=True)
def every_trace_is_valid(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whatever a test leaves in a folder can be read, unless it was damaged on purpose."""
    if "tmp_path" not in request.fixturenames:
        yield
        return
    folder: Path = request.getfixturevalue("tmp_path")
    yield
    if request.node.get_closest_marker("damaged") is not None:
        return
    for path in sorted(folder.rglob("logs/*.jsonl")):
        data = path.read_bytes()
        parse(io.BytesIO(data[: data.rfind(b"\n") + 1]).readlines(), str(path))
