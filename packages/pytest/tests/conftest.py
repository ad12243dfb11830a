"""The store of core's tests: see `lab/fixtures.py`."""

from fixtures import store  # noqa: F401 - pytest finds it here
