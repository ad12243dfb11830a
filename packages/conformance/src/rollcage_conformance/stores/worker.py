"""A process that uses a store on command, line by line, as a worker does beside others.

It may be frozen, killed and forked between any two of its steps; `stop_at` freezes it at a call of
the standard library.
"""

import json
import os
import signal
import sys
from typing import Any

from rollcage.errors import RollcageError
from rollcage.trace.chain import Chain
from rollcage.trace.store import open_store


class Worker:
    """The commands of a worker process."""

    def __init__(self, url: str) -> None:
        self.store = open_store(url)
        self.chain: Chain

    def open(self, run: str, *, take: bool = False) -> int:
        self.chain = Chain(self.store.open(run, take=take))
        return len(self.chain.read())

    def append(self, **event: Any) -> None:
        self.chain.append(event)

    def write(self, **event: Any) -> None:
        """Append an event, as a session does before a body."""
        self.chain.append(event)
        self.chain.wait()

    def bell_rang(self) -> int:
        return self.chain.log.bell

    def close(self) -> None:
        self.chain.close()

    def swap(self, kind: str, key: str, was: str | None, new: str | None) -> bool:
        old, value = (None if each is None else each.encode() for each in (was, new))
        return self.store.swap(kind, key, old, value)

    def count_up(self, key: str, times: int) -> int:
        """Increment a number so often by swaps; return how often another process was first."""
        lost = 0
        while times:
            was = self.store.get("counts", key)
            new = b"%d" % (int(was or 0) + 1)
            if self.store.swap("counts", key, was, new):
                times -= 1
            else:
                lost += 1
        return lost

    def stop_at(self, name: str, nth: int = 1) -> None:
        """Freeze before the nth call of a function of `os`, and continue when woken."""
        call = getattr(os, name)
        left = [nth]

        def frozen(*given: Any) -> Any:
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGSTOP)
            return call(*given)

        setattr(os, name, frozen)

    def freeze(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)

    def fork(self, **event: Any) -> str:
        """Fork, append in the child, and return the child's result."""
        read, write = os.pipe()
        if not os.fork():
            try:
                self.write(**event)
                said = "appended"
            except RollcageError as error:
                said = type(error).__name__
            os.write(write, said.encode())
            os._exit(0)
        os.close(write)
        os.wait()
        return os.read(read, 100).decode()


def main() -> None:
    """Carry out each line of the input, and answer in a line."""
    worker = Worker(sys.argv[1])
    for asked in sys.stdin:
        name, given = json.loads(asked)
        try:
            answer = {"gave": getattr(worker, name)(**given)}
        except RollcageError as error:
            answer = {"error": type(error).__name__, "said": str(error)}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
