"""Measure failcore: a call through its run context, as `run()` sets it up, traced to a JSONL file.

Its run context replays nothing, so there is no hit.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path

from failcore import run

from benchmarks.timing import WARM_UP, cpu_per_call
from benchmarks.workload import send_mail


def write(calls: int, folder: Path) -> dict[str, float]:
    """Measure a traced call."""
    os.environ["FAILCORE_PROJECT_ROOT"] = str(folder)  # otherwise it writes beside our own sources
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # failcore's own use of its executor
        context = run(trace="trace.jsonl", auto_ingest=False)
    with context as ctx:
        ctx.tool(send_mail)
        cpu = cpu_per_call(lambda arguments: ctx.call("send_mail", **arguments), calls)
        assert ctx.trace_path is not None
        size = Path(ctx.trace_path).stat().st_size
    return {"cpu_us": cpu, "bytes": size / (WARM_UP + calls)}
