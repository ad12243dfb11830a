"""What the tests of the heart share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from rollcage.heart.trace import LogTrace
from rollcage.trace import read_run


@pytest.fixture(autouse=True)
def every_trace_is_valid(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whatever a test leaves in a folder passes the published schema, and readers take it.

    Unless it was damaged on purpose.
    """
    if "tmp_path" not in request.fixturenames:
        yield
        return
    folder: Path = request.getfixturevalue("tmp_path")
    yield
    if request.node.get_closest_marker("damaged") is not None:
        return
    for path in sorted(folder.rglob("logs/*.jsonl")):
        data = path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if b'\n{"event":"attempt",' in whole:  # otherwise nothing was done in it, or it is no run
            read_run(LogTrace(path.stem, str(path), whole))
