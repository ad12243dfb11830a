"""A process whose children work at a job, or undo it, and are killed: `test_undo_crash.py`.

One order is a line of JSON on standard input; the answer is the worker's wait status. A worker is
forked off, and killed some microseconds after the effects have grown by some bytes.
"""

import contextlib
import json
import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import file_tools  # type: ignore[import-not-found]  # beside this script, where Python finds it
from rollcage import Diverged, UndoIncomplete, UnknownOutcome
from rollcage.session.finished import undo_run
from rollcage.session.session import Session
from rollcage.store import JsonlStore

FINISHED, UNKNOWN, LEFT, BROKEN = 0, 3, 4, 5


def job(session: Session, disk: Path, seed: int) -> None:
    """Some writes, alone, in turns, in scopes, and one block that is undone on its own."""
    chance = random.Random(seed)  # noqa: S311 - the same job in each generation
    for number in range(8):
        one, two = str(disk / chance.choice("abc")), str(disk / chance.choice("def"))
        match chance.choice(["put", "put", "append", "both", "turn", "block"]):
            case "put":
                file_tools.put_file(path=one, text=f"{number}" * chance.choice([1, 50, 70_000]))
            case "append":
                file_tools.append_file(path=one, text=f" and {number}")
            case "both":
                file_tools.both(one=one, two=two)
            case "turn":
                with session.turn():
                    file_tools.put_file(path=one, text=f"one of {number}")
                    file_tools.put_file(path=two, text=f"two of {number}")
            case _:
                with contextlib.suppress(KeyError), session.transaction():
                    file_tools.put_file(path=one, text=f"never {number}")
                    file_tools.append_file(path=two, text="never")
                    raise KeyError


def work(order: dict[str, Any]) -> int:
    disk = Path(order["disk"])
    try:
        if order["do"] == "work":
            with Session("job", store=order["store"], on_divergence="undo") as session:
                job(session, disk, order["seed"])
            return FINISHED
        newest = JsonlStore(order["store"]).runs()[-1]
        report = undo_run(order["store"], newest.run, in_doubt=order["in_doubt"])
        if report.complete:
            return FINISHED
        Path(order["said"]).write_text(str(report), encoding="utf-8")
        return LEFT
    except (UnknownOutcome, Diverged, UndoIncomplete) as error:
        Path(order["said"]).write_text(str(error), encoding="utf-8")
        return UNKNOWN
    except BaseException:  # noqa: BLE001 - told to the test, which fails
        Path(order["said"]).write_text(traceback.format_exc(), encoding="utf-8")
        return BROKEN


def size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def execute(order: dict[str, Any]) -> int:
    """Fork a worker, kill it when its time has come, and wait for it."""
    effects = Path(order["disk"], "effects")
    enough = size_of(effects) + order["bytes"]
    worker = os.fork()
    if not worker:
        code = BROKEN
        try:
            code = work(order)
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
            os.kill(worker, signal.SIGKILL)  # not reaped yet: the id is still its own
            return os.waitpid(worker, 0)[1]


signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
for line in sys.stdin:
    print(execute(json.loads(line)), flush=True)
