"""What core's tests share: see `lab/fixtures.py`."""

from fixtures import (  # noqa: F401 - pytest finds them here
    approve,
    core,
    disk,
    events,
    every_trace_is_valid,
    files,
    python,
    store,
    url,
)
