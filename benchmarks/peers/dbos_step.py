"""Measure DBOS: a step of a workflow, kept in SQLite.

The hit is a fork of the finished workflow from behind its last step: each step is found done.
"""

from __future__ import annotations

from pathlib import Path

from dbos import DBOS, SetWorkflowID

from benchmarks.timing import WARM_UP, cpu_per_call
from benchmarks.workload import send_mail

_sent = DBOS.step(name="send_mail")(send_mail)
_taken: list[float] = []


@DBOS.workflow()
def job(calls: int) -> int:
    """Make each call a step, and leave the time they took in `_taken`."""
    _taken.append(cpu_per_call(lambda arguments: _sent(**arguments), calls))
    return calls


def write(calls: int, folder: Path) -> dict[str, float]:
    """Measure a step that runs and is kept."""
    return _run(calls, folder)[0]


def hit(calls: int, folder: Path) -> dict[str, float]:
    """Measure a step that is found done."""
    return _run(calls, folder)[1]


def _run(calls: int, folder: Path) -> tuple[dict[str, float], dict[str, float]]:
    DBOS(
        config={
            "name": "bench",
            "system_database_url": f"sqlite:///{folder}/dbos.sqlite",
            "log_level": "ERROR",
        }
    )
    DBOS.launch()
    try:
        with SetWorkflowID("timed"):
            job(calls)
        size = sum(file.stat().st_size for file in folder.glob("dbos.sqlite*"))
        DBOS.fork_workflow("timed", WARM_UP + calls + 1).get_result()
    finally:
        DBOS.destroy()
    written, found = _taken
    return (
        {"cpu_us": written, "bytes": size / (WARM_UP + calls)},
        {"cpu_us": found, "bytes": 0.0},
    )
