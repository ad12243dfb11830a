"""Time a case: CPU of the whole process, every thread and the kernel's part included."""

from __future__ import annotations

import gc
import time
from collections.abc import Awaitable, Callable, Mapping

from benchmarks.workload import Mail, mail

WARM_UP = 200  # calls before the clock starts: caches, lazy imports, the interpreter's own adapting

_WARM_AGENTS = 5
AGENT_CALLS = 10  # calls of its tool that one agent makes, from its first message to its last


def cpu_per_call(call: Callable[[Mail], object], calls: int) -> float:
    """Return the microseconds of CPU of each of `calls` calls, after a warm-up."""
    todo = [mail(number) for number in range(WARM_UP + calls)]
    for arguments in todo[:WARM_UP]:
        call(arguments)
    start = time.process_time_ns()
    for arguments in todo[WARM_UP:]:
        call(arguments)
    return (time.process_time_ns() - start) / calls / 1000


async def cpu_per_await(call: Callable[[Mail], Awaitable[object]], calls: int) -> float:
    """Do the same as `cpu_per_call` for a coroutine function, in one event loop."""
    todo = [mail(number) for number in range(WARM_UP + calls)]
    for arguments in todo[:WARM_UP]:
        await call(arguments)
    start = time.process_time_ns()
    for arguments in todo[WARM_UP:]:
        await call(arguments)
    return (time.process_time_ns() - start) / calls / 1000


def cpu_of_agents(runs: Mapping[str, Callable[[int], object]], calls: int) -> dict[str, float]:
    """Return the microseconds of CPU that each agent took for each call of its tool.

    The agents run in turn, so that they find the same process, and a machine of the same speed. The
    garbage collector leaves objects of the warm-up alone: a look at all that a framework has
    imported takes it a tenth of a second, which would be counted to whichever agent runs then. Each
    of `runs` runs one agent of `AGENT_CALLS` calls to its end; it gets the number of its first
    call.
    """
    agents = max(1, calls // AGENT_CALLS)
    took = dict.fromkeys(runs, 0)
    for number in range(_WARM_AGENTS + agents):
        if number == _WARM_AGENTS:
            gc.collect()
            gc.freeze()
        for name, run in runs.items():
            start = time.process_time_ns()
            run(number * AGENT_CALLS)
            if number >= _WARM_AGENTS:
                took[name] += time.process_time_ns() - start
    return {name: each / (agents * AGENT_CALLS) / 1000 for name, each in took.items()}


def messages(first: int, together: int) -> list[list[Mail]]:
    """Return an agent's calls, message by message: `together` calls in each."""
    todo = [mail(number) for number in range(first, first + AGENT_CALLS)]
    return [todo[at : at + together] for at in range(0, AGENT_CALLS, together)]
