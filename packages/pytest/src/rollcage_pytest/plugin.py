"""The plugin: options, the marker, the fixture, and the comparison after a test."""

from __future__ import annotations

import contextlib
import difflib
import os
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:  # only tests with a cassette import it
    from rollcage_pytest.cassette import Cassette

__all__ = ["cassette"]

MARK: Final = "rollcage"
_KEY: Final = pytest.StashKey["Cassette"]()
_NEAR: Final = 0.8


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("rollcage", "tests from recorded runs")
    group.addoption(
        "--rollcage-record",
        choices=("none", "once", "new", "rewrite"),
        default="none" if os.environ.get("CI") else "once",
        help="none: replay only, the default where CI is set; once: record what is not recorded "
        "yet, the default elsewhere; new: also run and add calls that are not recorded; rewrite: "
        "record anew",
    )
    group.addoption(
        "--rollcage-live",
        action="store_true",
        help="run the tests of recordings live: nothing is replayed, compared or recorded",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "rollcage(strict=False): of tests with the fixture `cassette`; strict: every recorded step "
        "has to be asked for, not only writes",
    )


def pytest_report_header(config: pytest.Config) -> str:
    live = config.getoption("--rollcage-live")
    return "rollcage: live" if live else f"rollcage: record={config.getoption('--rollcage-record')}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse marks without an effect.

    Raises:
        UsageError: a mark is misspelt, has an unknown option, or is on a test without
            the fixture.
    """
    for item in items:
        for mark in item.iter_markers():
            near = difflib.SequenceMatcher(None, mark.name, MARK).ratio() >= _NEAR
            if near and mark.name != MARK:
                raise pytest.UsageError(
                    f"{item.nodeid}: is the mark {mark.name!r} meant to be {MARK!r}?"
                )
            if mark.name != MARK:
                continue
            if mark.args or mark.kwargs.keys() - {"strict"}:
                raise pytest.UsageError(f"{item.nodeid}: the mark takes strict= only: {mark}")
            if "cassette" not in getattr(item, "fixturenames", ()):
                raise pytest.UsageError(
                    f"{item.nodeid} has the mark rollcage and no argument `cassette`: it would run "
                    f"live"
                )


@pytest.fixture
def cassette(request: pytest.FixtureRequest) -> Iterator[Cassette]:
    """Yield the recorded run of this test: `with cassette.session() as session`."""
    from rollcage_pytest.cassette import Cassette, cassette_path

    item: Any = request.node
    option: Any = request.config.getoption
    mark = item.get_closest_marker(MARK)
    name = item.nodeid.partition("::")[2]
    made = Cassette(
        cassette_path(item.path, name),
        f"{item.path.name}::{name}",
        item.nodeid,
        option("--rollcage-record"),
        strict=bool(mark and mark.kwargs.get("strict")),
        live=option("--rollcage-live"),
    )
    item.stash[_KEY] = made
    yield made
    made.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Run a test of a recording, then compare the two, or keep the new recording."""
    made = item.stash.get(_KEY, None)
    if made is None:
        return (yield)
    from rollcage_pytest.sockets import refused

    offline = refused(made.refuse) if made.mode == "replay" else contextlib.nullcontext()
    try:
        with offline:
            result = yield
    except BaseException as error:
        made.explain(error)
        raise
    made.conclude()
    return result
