"""What policies' tests share: see `lab/fixtures.py`."""

from fixtures import approve, core, events, every_trace_is_valid, files, python, store  # noqa: F401 - pytest finds them here
