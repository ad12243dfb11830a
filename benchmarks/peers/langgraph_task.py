"""Measure LangGraph: a `@task` in an `@entrypoint`, kept by the SQLite checkpointer.

The job fails at its end, so that a second `invoke` of the same thread finds every task done. The
whole `invoke` is timed, because the checkpointer writes in threads of its own.
"""

from __future__ import annotations

import time
from pathlib import Path

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.func import entrypoint, task

from benchmarks.timing import WARM_UP
from benchmarks.workload import mail, send_mail


class Crash(Exception):
    """End the job before it is done."""


def write(calls: int, folder: Path) -> dict[str, float]:
    """Measure a task that runs and is kept."""
    return _run(calls, folder)[0]


def hit(calls: int, folder: Path) -> dict[str, float]:
    """Measure a task that is found done."""
    return _run(calls, folder)[1]


def _run(calls: int, folder: Path) -> tuple[dict[str, float], dict[str, float]]:
    ran: list[int] = []
    crashing = True
    sent = task(send_mail)

    path = folder / "checkpoints.sqlite"
    with SqliteSaver.from_conn_string(str(path)) as saver:

        @entrypoint(checkpointer=saver)
        def job(count: int) -> int:
            for number in range(count):
                sent(**mail(number)).result()
            ran.append(count)
            if crashing:
                raise Crash
            return count

        def invoke(thread: str, given: int | None) -> float:
            """Return the microseconds of CPU of one invocation."""
            config: RunnableConfig = {"configurable": {"thread_id": thread}}
            start = time.process_time_ns()
            try:
                job.invoke(given, config)
            except Crash:
                if not crashing:
                    raise
            return (time.process_time_ns() - start) / 1000

        invoke("warm-up", WARM_UP)
        written = invoke("timed", calls)
        size = sum(file.stat().st_size for file in folder.glob("checkpoints.sqlite*"))
        crashing = False
        invoke("warm-up", None)
        found = invoke("timed", None)
    if ran != [WARM_UP, calls, WARM_UP, calls]:
        raise AssertionError(f"not what was to be measured: {ran}")
    taken = {"cpu_us": written / calls, "bytes": size / (WARM_UP + calls)}
    return taken, {"cpu_us": found / calls, "bytes": 0.0}
