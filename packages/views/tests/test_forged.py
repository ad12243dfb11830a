"""Logs that somebody has forged: readers fold each, or name its line in an error."""

import random
import signal
from typing import Any

import pytest
from hostile import MUTANTS, SECONDS, mutated
from rollcage.errors import TraceCorrupt
from rollcage.trace.recorded import LogTrace
from rollcage_views import read_run


@pytest.mark.usefixtures("in_time")
@pytest.mark.parametrize("schema", [False, True])
@pytest.mark.parametrize("which", range(4))
def test_forged_logs_are_read_or_name_their_line(
    which: int, schema: bool, valid_logs: list[list[dict[str, Any]]]
) -> None:
    chance = random.Random(which)  # noqa: S311 - no secret
    read = 0
    named: list[tuple[int, int]] = []
    for _ in range(MUTANTS):
        lines = mutated(valid_logs[which], chance)
        if not lines or not lines[0].startswith(b'{"event":"run","format":"rollcage/2"'):
            continue
        signal.alarm(SECONDS)
        try:
            run = read_run(LogTrace("", "it", b"".join(lines)), schema=schema)
        except TraceCorrupt as error:
            named.append((error.line, len(lines)))
        else:
            read += 1
            assert run.totals.steps == len(run.steps)
        signal.alarm(0)
    assert all(1 <= line <= of for line, of in named)
    assert read > MUTANTS / 20
    assert len(named) > MUTANTS / 20
