"""What policies' tests share: see `lab/fixtures.py`."""

from pathlib import Path
from typing import Any

import pytest
from cores import KINDS, Core
from fixtures import approve, events, every_trace_is_valid, files, python, resolve, store  # noqa: F401 - pytest finds them here


@pytest.fixture(params=KINDS, ids=lambda kind: kind.name)
def core(request: Any, tmp_path: Path) -> Core:
    """Sessions of either core: what holds for one holds for the other."""
    made: Core = request.param(tmp_path)
    return made
