"""Runs to look at: see core's `lab`."""

from command_line import (  # noqa: F401 - pytest finds them here
    evil,
    plain_environment,
    record,
    store,
    tools,
)
from hostile import hostile_disk, in_time, valid_logs  # noqa: F401 - as above
from incident import incident, view_files  # noqa: F401 - as above
