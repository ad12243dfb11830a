"""Logs to forge: see core's `lab`."""

from hostile import hostile_disk, in_time, valid_logs  # noqa: F401 - pytest finds them here
