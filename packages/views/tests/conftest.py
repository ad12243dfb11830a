"""Runs to look at: see core's `lab`."""

from command_line import (  # noqa: F401 - pytest finds them here
    plain_environment,
    record,
    store,
    tools,
)
