"""What core's tests share: see `lab/fixtures.py`."""

from fixtures import approve, core, disk, events, every_trace_is_valid, files, python, resolve, store, url  # noqa: F401 - pytest finds them here
