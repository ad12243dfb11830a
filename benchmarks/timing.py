"""How a case is timed: CPU of the whole process, every thread and the kernel's part included."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from benchmarks.workload import Mail, mail

WARM_UP = 200  # calls before the clock starts: caches, lazy imports, the interpreter's own adapting


def cpu_per_call(call: Callable[[Mail], object], calls: int) -> float:
    """Microseconds of CPU that each of `calls` calls took, after a warm-up."""
    todo = [mail(number) for number in range(WARM_UP + calls)]
    for arguments in todo[:WARM_UP]:
        call(arguments)
    start = time.process_time_ns()
    for arguments in todo[WARM_UP:]:
        call(arguments)
    return (time.process_time_ns() - start) / calls / 1000


async def cpu_per_await(call: Callable[[Mail], Awaitable[object]], calls: int) -> float:
    """`cpu_per_call` for a coroutine function, one call after another in one event loop."""
    todo = [mail(number) for number in range(WARM_UP + calls)]
    for arguments in todo[:WARM_UP]:
        await call(arguments)
    start = time.process_time_ns()
    for arguments in todo[WARM_UP:]:
        await call(arguments)
    return (time.process_time_ns() - start) / calls / 1000
