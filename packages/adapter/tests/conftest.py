"""What the tests here share: see `lab/fixtures.py`."""

from fixtures import every_trace_is_valid  # noqa: F401 - pytest finds it here
