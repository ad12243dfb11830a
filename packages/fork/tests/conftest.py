"""What the tests of forks share with core's."""

from fixtures import every_trace_is_valid, python  # noqa: F401 - pytest finds them here
