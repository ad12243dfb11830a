"""Where the store of a universe is, and what may befall it there."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal
from unittest.mock import patch

from rollcage import Store
from rollcage.trace import folder

from tests.simulation.client import ServerStore
from tests.simulation.database import Server
from tests.simulation.machine import Machine, System
from tests.simulation.scheduler import Process

if TYPE_CHECKING:
    from tests.simulation.universe import Universe

__all__ = ["Place", "places"]


class Place(ABC):
    """A store, what keeps it, and what may befall that."""

    def __init__(self, universe: Universe) -> None:
        self.universe = universe
        self.damaged: set[str] = set()  # the runs of which something has rotted: that must be told

    @contextlib.contextmanager
    def there(self) -> Iterator[None]:
        """Have the store be reached here."""
        yield

    @abstractmethod
    def empty(self) -> None:
        """Go on in a place like this where nothing was."""

    @abstractmethod
    def store(self) -> Store:
        """Return the store, as one process has it."""

    @abstractmethod
    def fault(self) -> None:
        """Have something happen here."""

    @abstractmethod
    def heal(self) -> None:
        """Have nothing happen any more."""

    @abstractmethod
    def buried(self, process: Process) -> None:
        """Let go of what a process had that has died."""

    @abstractmethod
    def recorded(self, run: str) -> bytes:
        """Return what is kept for sure of a run's log, if its process dies now."""

    @abstractmethod
    def passes(self) -> None:
        """Let a little time pass."""


class OnDisk(Place):
    """The folder, on the disk of one machine with all processes."""

    def __init__(self, universe: Universe) -> None:
        super().__init__(universe)
        random = universe.random
        self.machine = Machine(universe.scheduler)
        self.durability: Literal["os", "disk"] = random.choice(("os", "disk"))
        # What a disk has failed to write is seen until the power goes, and is then a hole in a
        # file, which is told: not both of them in one universe, for that job is not done any more.
        power = self.durability == "disk" and random.random() < 0.7
        kinds = [self._fills, self._power if power else self._fails]
        self._kinds = random.sample(kinds, random.randint(1, len(kinds)))
        self._rots_once = random.random() < 0.1
        self._until = 0  # the disk is full

    @contextlib.contextmanager
    def there(self) -> Iterator[None]:
        own = _Files(self)
        system = System(os, own)
        with (
            patch.object(folder, "os", system),
            patch.object(folder, "fcntl", System(fcntl, own)),
            patch.object(folder, "open", own.reading, create=True),
            patch.object(folder, "_sync_data", own.sync_data),
            patch.object(folder, "ring_at", lambda _: None),  # a session without a loop asks os
            patch.object(folder, "heard_at", lambda _: None),
        ):
            yield

    def empty(self) -> None:
        self.machine = Machine(self.universe.scheduler, self.machine.latest)

    def store(self) -> Store:
        return folder.Folder("/store", durability=self.durability)

    # --- faults ----------------------------------------------------------------------------------

    def fault(self) -> None:
        if self._rots_once and self._rots():
            self._rots_once = False
        else:
            self.universe.random.choice(self._kinds)()

    def _rots(self) -> bool:
        """Change one byte of a log before its last line; return whether there is such a one.

        Of a run that is not finished nobody can tell where it ended: a last line that has lost its
        end is one that was not written. And what the power takes is not there to be told.
        """
        names = [name for name in self.machine.names("/store/logs") if name.endswith(".jsonl")]
        name = self.universe.random.choice(names or [""])
        file = self.machine.file(f"/store/logs/{name}")
        last = self.recorded(name.removesuffix(".jsonl")).rfind(b"\n", 0, -1)
        if file is None or last < 1:
            return False
        at = self.universe.random.randrange(last)
        self.universe.scheduler.note(f"byte {at} of {name} rots")
        file.rot(at)
        self.damaged.add(name.removesuffix(".jsonl"))
        return True

    def _power(self) -> None:
        self.machine.power_cut()

    def _fills(self) -> None:
        seconds = self.universe.random.random() * 3
        self.universe.scheduler.note(f"the disk is full for {seconds:.1f} s")
        self.machine.full = True
        self._until = self.universe.scheduler.now + int(seconds * 1e9)

    def _fails(self) -> None:
        self.universe.scheduler.note("the disk begins to fail")
        self.machine.failing = 0.3

    def passes(self) -> None:
        if self.machine.full and self.universe.scheduler.now > self._until:
            self.universe.scheduler.note("the disk has room again")
            self.machine.full = False

    def heal(self) -> None:
        self.machine.full = False
        self.machine.failing = 0

    def buried(self, process: Process) -> None:
        self.machine.release(process)

    def recorded(self, run: str) -> bytes:
        path = f"/store/logs/{run}.jsonl"
        if self.durability == "disk":
            return self.machine.is_safe(path)
        file = self.machine.file(path)
        return b"" if file is None else bytes(file.data)


class _Files:
    """The files of the machine that is there now."""

    def __init__(self, place: OnDisk) -> None:
        self._place = place

    def reading(self, fd: int, *_: object, **__: object) -> io.BytesIO:
        return self._place.machine.reader(fd)

    def sync_data(self, fd: int) -> None:
        self._place.machine.fsync(fd)

    def __getattr__(self, name: str) -> Any:
        if name in _REAL:
            raise AttributeError(name)
        return getattr(self._place.machine, name)


_REAL = ("path", "fspath", "getcwd", "SEEK_CUR", "getppid", "file", "names", "random", "full")
"""What a machine lacks, or calls by a name of its own."""


class OnServer(Place):
    """A store on a server, which each process reaches by a network."""

    def __init__(self, universe: Universe) -> None:
        super().__init__(universe)
        self.server = Server(universe.scheduler)
        kinds = [self._cuts, self._freezes, self._takes_lock, self._fails_over, self._goes_down]
        self._kinds = universe.random.sample(kinds, universe.random.randint(1, len(kinds)))

    def empty(self) -> None:
        self.server = Server(self.universe.scheduler)

    def store(self) -> Store:
        return ServerStore(self.server)

    # --- faults ----------------------------------------------------------------------------------

    def fault(self) -> None:
        self.universe.random.choice(self._kinds)()

    def _someone(self) -> Process:
        return self.universe.random.choice(self.universe.living())

    def _cuts(self) -> None:
        process, when = self._someone(), self.universe.random.choice(("before", "after"))
        self.universe.scheduler.note(f"the next request of {process.name} is cut {when} it is done")
        self.server.cuts[process] = when

    def _freezes(self) -> None:
        process, seconds = self._someone(), self.universe.random.random() * 40
        self.universe.scheduler.note(f"{process.name} hears nothing for {seconds:.1f} s")
        self.server.frozen[process] = self.universe.scheduler.now + int(seconds * 1e9)

    def _takes_lock(self) -> None:
        if self.server.locks:
            name = self.universe.random.choice(sorted(self.server.locks))
            self.universe.scheduler.note(f"the lock of {name} is lost, its connection lives")
            del self.server.locks[name]

    def _fails_over(self) -> None:
        self.universe.scheduler.note("another server takes over: no connection and no lock is left")
        for connection in list(self.server.connections):
            self.server.drop(connection)

    def _goes_down(self) -> None:
        seconds = self.universe.random.random() * 30
        self._fails_over()
        self.universe.scheduler.note(f"there is no server for {seconds:.1f} s")
        self.server.down_until = self.universe.scheduler.now + int(seconds * 1e9)

    def passes(self) -> None:
        self.server.passes()

    def heal(self) -> None:
        self.server.frozen.clear()
        self.server.cuts.clear()
        self.server.down_until = 0

    def buried(self, process: Process) -> None:
        self.server.buried(process)

    def recorded(self, run: str) -> bytes:
        return b"".join(self.server.logs.get(run, []))


places: dict[str, Callable[[Universe], Place]] = {"disk": OnDisk, "server": OnServer}
