"""Laws 8 and 9 where a database keeps the runs: SQLite, and, in `nox -s laws`, a PostgreSQL server.

A cut is a copy of the store in which the run ends behind one of the lines that were committed.
"""

import os
from collections.abc import Iterator

import pytest
from cuts import LAW, resumed_at_cuts, undone_at_cuts
from databases import InPostgres, InSqlite
from hypothesis import given, settings
from programs import Program
from strategies import programs, seeds

pytestmark = [pytest.mark.law, pytest.mark.slow]

MANY = settings().max_examples
SOME = settings(LAW, max_examples=max(1, MANY // 10))
FEW = settings(LAW, max_examples=max(1, MANY // 100))  # each case makes a dozen schemas


@pytest.fixture(autouse=True)
def calls_that_wait_look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollcage.step.pausing._FIRST", 0.001)  # seconds


@pytest.fixture(scope="module")
def schemas() -> Iterator[None]:
    profile, store = os.environ.get("HYPOTHESIS_PROFILE"), os.environ.get("ROLLCAGE_TEST_STORE")
    if profile != "laws" and store != "postgres":
        pytest.skip("each case takes seconds: `nox -s laws` tries it")
    with InPostgres.schemas():
        yield


@SOME
@given(programs, seeds)
def test_8_in_sqlite(program: Program, seed: int) -> None:
    resumed_at_cuts(InSqlite, program, seed)


@SOME
@given(programs, seeds)
def test_9_in_sqlite(program: Program, seed: int) -> None:
    undone_at_cuts(InSqlite, program, seed)


@pytest.mark.usefixtures("schemas")
@FEW
@given(programs, seeds)
def test_8_in_postgres(program: Program, seed: int) -> None:
    resumed_at_cuts(InPostgres, program, seed)


@pytest.mark.usefixtures("schemas")
@FEW
@given(programs, seeds)
def test_9_in_postgres(program: Program, seed: int) -> None:
    undone_at_cuts(InPostgres, program, seed)
