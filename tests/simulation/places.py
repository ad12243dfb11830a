"""Where the store of a universe is, and what may befall it there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, cast

from rollcage.store import JsonlStore, RunInfo, Store, check_attested, system

from tests.simulation.client import ServerStore
from tests.simulation.database import Server
from tests.simulation.machine import Machine, View
from tests.simulation.scheduler import Process, Violation

if TYPE_CHECKING:
    from tests.simulation.universe import Universe

__all__ = ["Place", "places"]


class Place(ABC):
    """A store, what keeps it, and what may befall that."""

    durability: Literal["os", "disk"] = "os"
    prunes = False  # whether runs are pruned and copied here

    def __init__(self, universe: Universe) -> None:
        self.universe = universe
        self.damaged: set[str] = set()  # the runs of which something has rotted: that must be told

    @abstractmethod
    def enter(self) -> None:
        """Begin: from now on, the store is reached here."""

    @abstractmethod
    def enter_empty(self) -> None:
        """Go on in a place like this where nothing was."""

    @abstractmethod
    def store(self, process: Process | None) -> Store:
        """The store, as one process has it."""

    @abstractmethod
    def fault(self) -> None:
        """Something happens here."""

    @abstractmethod
    def heal(self) -> None:
        """Nothing will happen any more."""

    @abstractmethod
    def buried(self, process: Process) -> None:
        """A process has died."""

    @abstractmethod
    def recorded(self, run: str) -> bytes:
        """What is kept for sure of a run's trace, if its process dies now."""

    @abstractmethod
    def traces(self) -> set[str]:
        """The runs that have begun, by what lies there."""

    @abstractmethod
    def copy(self, store: Store, info: RunInfo) -> None:
        """Copy a run to somewhere else, as it is now."""

    @abstractmethod
    def look_at_copies(self) -> None:
        """Whether each of them is what was there once."""

    @abstractmethod
    def passes(self) -> None:
        """A little time has passed."""


class OnDisk(Place):
    """The directory store, on the disk of one machine with all processes."""

    prunes = True

    def __init__(self, universe: Universe) -> None:
        super().__init__(universe)
        random = universe.random
        self.machine = Machine(universe.scheduler)
        self.durability = random.choice(("os", "disk"))
        # What a disk has failed to write is seen until the power goes, and is then a hole in a
        # file, which is told: not both of them in one universe, for that job is not done any more.
        power = self.durability == "disk" and random.random() < 0.7
        kinds = [self._fills, self._power if power else self._fails, self._cuts_index]
        self._kinds = random.sample(kinds, random.randint(1, len(kinds)))
        self._rots_once = random.random() < 0.1
        self._until = 0  # the disk is full
        self._copied: dict[str, list[bytes]] = {}

    def enter(self) -> None:
        self._views: dict[Process | None, View] = {}
        self.universe.scheduler.switched = self._view
        self._view(None)

    def _view(self, process: Process | None) -> None:
        """Who runs now has files and locks of its own machine."""
        view = self._views.setdefault(process, View(self.machine))
        system.files = cast("system.Files", view)
        system.locks = cast("system.Locks", view)

    def enter_empty(self) -> None:
        self.machine = Machine(self.universe.scheduler)
        self.enter()

    def store(self, process: Process | None) -> Store:
        return JsonlStore("/store")

    # --- faults ----------------------------------------------------------------------------------

    def fault(self) -> None:
        if self._rots_once and self._rots():
            self._rots_once = False
        else:
            self.universe.random.choice(self._kinds)()

    def _rots(self) -> bool:
        """One byte of a trace changes, before its last line; whether there is such a one.

        Of a run that is not finished nobody can tell where it ended: a last line that has lost its
        end is one that was not written. And what the power takes is not there to be told.
        """
        names = [name for name in self.machine.names("/store/runs") if name.endswith(".jsonl")]
        name = self.universe.random.choice(names or [""])
        file = self.machine.file(f"/store/runs/{name}")
        last = self.recorded(name.removesuffix(".jsonl")).rfind(b"\n", 0, -1)
        if file is None or last < 1:
            return False
        at = self.universe.random.randrange(last)
        self.universe.scheduler.note(f"byte {at} of {name} rots")
        file.rot(at)
        self.damaged.add(name.removesuffix(".jsonl"))
        return True

    def _cuts_index(self) -> None:
        """The index, which is derived, is cut anywhere, by somebody or something."""
        file = self.machine.file("/store/index.jsonl")
        if file is not None and file.size:
            size = self.universe.random.randrange(file.size)
            self.universe.scheduler.note(f"the index is cut off at {size} bytes")
            file.change(size)
            file.changed = self.universe.scheduler.now

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

    # --- copies ----------------------------------------------------------------------------------

    def copy(self, store: Store, info: RunInfo) -> None:
        """Into another folder; of a live run, as far as it has come."""
        if info.run in self.universe.pruned or info.run in self.damaged:
            return
        trace = store.read(info.run)
        check_attested(trace)
        self.universe.scheduler.note(f"{info.run} is copied")
        self._copied.setdefault(info.run, []).append(trace.data)
        JsonlStore("/copies").restore(trace)

    def look_at_copies(self) -> None:
        copies = JsonlStore("/copies")
        copies.repair()
        for info in copies.runs():
            if (data := copies.read(info.run).data) not in self._copied[info.run]:
                raise Violation(f"the copy of {info.run} is {data!r}")

    # --- what is there ---------------------------------------------------------------------------

    def recorded(self, run: str) -> bytes:
        path = f"/store/runs/{run}.jsonl"
        if self.durability == "disk":
            return self.machine.is_safe(path)
        file = self.machine.file(path)
        return b"" if file is None else bytes(file.data)

    def traces(self) -> set[str]:
        names = self.machine.names("/store/runs")
        files = {
            n[:-6]: self.machine.file(f"/store/runs/{n}") for n in names if n.endswith(".jsonl")
        }
        return {run for run, file in files.items() if file is not None and b"\n" in file.data}


class OnServer(Place):
    """A store on a server, which each process reaches by a network."""

    def __init__(self, universe: Universe) -> None:
        super().__init__(universe)
        self.server = Server(universe.scheduler)
        self.server.buffered = universe.random.random() < 0.5
        kinds = [self._cuts, self._freezes, self._takes_lock, self._fails_over, self._goes_down]
        self._kinds = universe.random.sample(kinds, universe.random.randint(1, len(kinds)))

    def enter(self) -> None:
        """There is nothing to be put in place of anything."""

    def enter_empty(self) -> None:
        self.server = Server(self.universe.scheduler)

    def store(self, process: Process | None) -> Store:
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

    # --- copies ----------------------------------------------------------------------------------

    def copy(self, store: Store, info: RunInfo) -> None:
        """A simulated server's runs are copied nowhere."""

    def look_at_copies(self) -> None:
        """There are none."""

    # --- what is there ---------------------------------------------------------------------------

    def recorded(self, run: str) -> bytes:
        row = self.server.rows.get(run)
        return b"" if row is None else row.data

    def traces(self) -> set[str]:
        return set(self.server.rows)


places: dict[str, Callable[[Universe], Place]] = {"disk": OnDisk, "server": OnServer}
