"""Runs to look at, and the command line to look at them with: see core's `lab`."""

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
