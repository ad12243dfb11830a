"""Runs to look at, and the command line to look at them with: see core's `lab`."""

import pytest
from command_line import (  # noqa: F401 - pytest finds them here
    cli,
    dead,
    died,
    edit,
    evil,
    payment,
    plain_environment,
    record,
    store,
    tools,
)


@pytest.fixture(autouse=True)
def every_trace_is_valid() -> None:
    """Not here: some of these tests damage a trace, to see what is said of it."""
