"""What holds for every test of the workspace: how many cases Hypothesis tries, and which.

`HYPOTHESIS_PROFILE` chooses: `ci` (half as many, new each time; what replays a failure is printed),
`laws` (many; `nox -s laws`), else `local`, which remembers failures in `.hypothesis`. A property
sets no number of its own; one whose cases cost next to nothing takes a multiple of the profile's:
`@settings(max_examples=20 * settings().max_examples)`.
"""

import gc
import itertools
import os
from collections.abc import Generator
from typing import Any

import pytest
from coverage import Coverage
from hypothesis import Phase, settings

# No timing assertion, so no deadline.
settings.register_profile("local", deadline=None, max_examples=100)
settings.register_profile("ci", deadline=None, max_examples=50, database=None, print_blob=True)
settings.register_profile("laws", deadline=None, max_examples=3_000, database=None, print_blob=True)
settings.register_profile(
    "mutants", deadline=None, max_examples=20, database=None, derandomize=True,
    phases=[Phase.explicit, Phase.generate],
)  # fmt: skip
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if "CI" in os.environ else "local"))


def pytest_configure() -> None:
    """Start a PostgreSQL server where all tests are to keep their runs in one."""
    if os.environ.get("ROLLCAGE_TEST_STORE") == "postgres":
        from postgres import server

        server()  # from now on, ROLLCAGE_TEST_POSTGRES says where it is


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Try sync calls in a running event loop with the reference adapter; with others, at night."""
    for item in items:
        is_adapters = item.path.match("integrations/*/tests/test_conformance.py")
        if is_adapters and "sync-in-async" in item.name:
            item.add_marker(pytest.mark.nightly)


_ended = itertools.count(1)


def pytest_collection_finish() -> None:
    """Have no garbage collection look at what was imported by now: it is most of what there is.

    Collections are cheap then, and come sooner: a process that stays small is forked in no time.
    """
    gc.collect()
    gc.freeze()


def pytest_runtest_teardown() -> None:
    """Now and then, close the connections of stores that no test has any more: they are few."""
    if os.environ.get("ROLLCAGE_TEST_STORE") == "postgres" and next(_ended) % 20 == 0:
        gc.collect()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Don't measure what comes by the same lines again: that takes two thirds of its time more.

    A property does so with each case; what is covered only by chance is not covered. So does an
    adapter's conformance suite: the adapter's own tests cover what it covers.
    """
    measured = Coverage.current()
    again = any(item.get_closest_marker(mark) for mark in ("hypothesis", "law"))
    again = again or item.path.match("integrations/*/tests/test_conformance.py")
    if measured is None or not again:
        return (yield)
    measured.stop()
    try:
        return (yield)
    finally:
        measured.start()
