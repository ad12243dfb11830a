"""What holds for every test of the workspace: how many cases Hypothesis tries, and which.

`HYPOTHESIS_PROFILE` chooses: `ci` (fewer, new each time; what replays a failure is printed),
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
settings.register_profile("ci", deadline=None, max_examples=30, database=None, print_blob=True)
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
    """Leave to the night what suites repeat of adapters that takes long.

    Sync calls in a running event loop are tried with the reference adapter, and async calls with
    that and AutoGen's. A turn of a crew or a graph takes many times that of another agent.
    """
    for item in items:
        if item.path.match("integrations/*/tests/test_conformance.py"):
            slow = "sync-in-async" if "autogen" in item.path.parts else "async"
            if slow in item.name.partition("[")[2]:
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
