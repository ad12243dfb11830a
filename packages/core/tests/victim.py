"""A process whose children work at a job and are killed at it; a script, driven by `test_crash.py`.

One order is a line of JSON on standard input: where to work, and after how many bytes of effects,
and how many microseconds more, the worker gets which signal. The answer is its wait status.
A worker is forked off, so that a few hundred of them take seconds.
"""

import contextlib
import contextvars
import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rollcage import UnknownOutcome, current_step, tool
from rollcage.session.session import Session

FINISHED, UNKNOWN, INTERRUPTED, BROKEN = 0, 3, 4, 5
TURNS = 10


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Let Ctrl-C wait, here and in threads that begin here.

    Inside of Python's own executor it may leave a lock of the executor's taken for ever.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Job:
    """Some turns of calls. Each write leaves one line in a file of effects: it can be counted."""

    def __init__(self, effects: Path) -> None:
        self.effects = os.open(effects, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        write = tool(effect="write")(self.write)
        read = tool(effect="read")(self.read)

        @tool(effect="write")
        def outer(name: str) -> str:
            said = [write(f"{name}, first"), read(name), write(f"{name}, second")]
            assert said[0] == f"{name}, first"
            return self.write(name)

        self.tools = {"write": write, "read": read, "outer": outer}

    def write(self, name: str) -> str:
        step = current_step()
        assert step is not None
        os.write(self.effects, f"{step.idempotency_key} {name}\n".encode())
        return name

    def read(self, name: str) -> str:
        return f"seen {name}"

    def run(self, session: Session, seed: int) -> list[Any]:
        chance = random.Random(seed)  # noqa: S311 - the same job in each generation
        results: list[Any] = []
        with ThreadPoolExecutor(4) as pool:
            for turn in range(TURNS):
                shape = chance.choice(["write", "same", "read", "outer", "parallel", "parallel"])
                if shape == "parallel":
                    results.append(self.parallel(session, pool, turn))
                elif shape == "same":
                    results += [self.tools["write"]("again") for _ in range(2)]
                else:
                    results.append(self.tools[shape](f"turn {turn} of {len(results)}"))
        return results

    def parallel(self, session: Session, pool: ThreadPoolExecutor, turn: int) -> list[str]:
        """Four calls at once, two of them identical."""
        names = [f"turn {turn} one", f"turn {turn} two", "twin", "twin"]
        with session.turn() as stated, uninterrupted():

            def placed(slot: int, name: str) -> str:
                with stated.slot(slot):
                    return str(self.tools["write"](name))

            contexts = [contextvars.copy_context() for _ in names]
            futures = [
                pool.submit(context.run, placed, slot, name)
                for slot, (context, name) in enumerate(zip(contexts, names, strict=True))
            ]
            return [future.result() for future in futures]


def work(order: dict[str, Any]) -> int:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    job = Job(Path(order["effects"]))
    said: Any
    try:
        with Session("job", store=order["store"], replay=order["replay"]) as session:
            said, code = job.run(session, order["seed"]), FINISHED
    except UnknownOutcome as error:
        said, code = [error.run, error.step], UNKNOWN
    except KeyboardInterrupt:
        said, code = None, INTERRUPTED
    except BaseException:  # noqa: BLE001 - told to the test, which fails
        said, code = traceback.format_exc(), BROKEN
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Path(order["said"]).write_text(json.dumps(said), encoding="utf-8")
    return code


def size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def execute(order: dict[str, Any]) -> int:
    """Fork a worker, send it its signal when its time has come, and wait for it."""
    effects = Path(order["effects"])
    enough = size_of(effects) + order["bytes"]
    worker = os.fork()
    if not worker:
        code = BROKEN
        try:
            code = work(order)
        except KeyboardInterrupt:  # before the session was entered, or after it was left
            code = INTERRUPTED
        finally:
            os._exit(code)
    due: int | None = None
    while True:
        ended, status = os.waitpid(worker, os.WNOHANG)
        if ended:
            return status
        if due is None and size_of(effects) >= enough:
            due = time.monotonic_ns() + order["microseconds"] * 1000
        signal.sigtimedwait([signal.SIGCHLD], 0.0001)  # leaves the processor to the worker
        if due is not None and time.monotonic_ns() >= due:
            os.kill(worker, order["signal"])  # not reaped yet: the id is still its own
            return os.waitpid(worker, 0)[1]


def warm_up() -> None:
    """Do once what each worker would otherwise do anew: imports, schemas."""
    with tempfile.TemporaryDirectory(prefix="rollcage-victim-") as folder:
        job = Job(Path(folder, "effects"))
        with Session("warm up", store=Path(folder, "store")) as session:
            job.run(session, 0)
        os.close(job.effects)


warm_up()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
for line in sys.stdin:
    print(execute(json.loads(line)), flush=True)
