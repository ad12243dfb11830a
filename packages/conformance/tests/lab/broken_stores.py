"""A store of another package, `shelf://NAME/path`: sound, or with the one mistake of its name."""

import os
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

from rollcage import Store
from rollcage.errors import RollcageError, RunInUse
from rollcage.trace.folder import Ends
from rollcage_stores.sqlite import Sqlite

__all__ = ["STORES", "opened"]


class SoundLog:
    """A log of a SQLite file, as this store gives it."""

    def __init__(self, log: Any, store: "Sound", run: str) -> None:
        self.log, self.store, self.run = log, store, run

    def __getattr__(self, name: str) -> Any:
        return getattr(self.log, name)


class Sound(Sqlite):
    logs: type[SoundLog] = SoundLog

    def __init__(self, url: str) -> None:
        super().__init__("sqlite:///" + url.partition("://")[2].partition("/")[2])
        vars(self)["url"] = url

    def open(self, run: str, *, take: bool = False) -> Any:
        return self.logs(super().open(run, take=take), self, run)


# --- values ---


class Overwrites(Sound):
    def swap(self, kind: str, key: str, was: bytes | None, new: bytes | None) -> bool:
        return super().swap(kind, key, self.get(kind, key) if was is None else was, new)


class AnswersTwice(Sound):
    def swap(self, kind: str, key: str, was: bytes | None, new: bytes | None) -> bool:
        return super().swap(kind, key, was, new) or was is None


class Races(Sound):
    first = True

    def swap(self, kind: str, key: str, was: bytes | None, new: bytes | None) -> bool:
        if kind != "counts":
            return super().swap(kind, key, was, new)
        seen = self.get(kind, key)
        time.sleep(1 if self.first else 0.002)  # until all processes have begun
        self.first = False
        return seen == was and super().swap(kind, key, self.get(kind, key), new)


class Unsorted(Sound):
    def keys(self, kind: str, after: str = "", limit: int = 1000) -> list[str]:
        return super().keys(kind, after, limit)[::-1]


class Leaky(Sound):
    def keys(self, kind: str, after: str = "", limit: int = 1000) -> list[str]:
        return super().keys("names" if kind == "others" else kind, after, limit)


class FoldsCase(Sound):
    def get(self, kind: str, key: str) -> bytes | None:
        found = super().get(kind, key)
        return super().get(kind, key.upper()) if found is None else found


class KeepsNoBlobs(Sound):
    def swap(self, kind: str, key: str, was: bytes | None, new: bytes | None) -> bool:
        return kind == "blobs" or super().swap(kind, key, was, new)


class ClaimsTwice(Sound):
    def swap(self, kind: str, key: str, was: bytes | None, new: bytes | None) -> bool:
        return kind == "once" or super().swap(kind, key, was, new)


# --- orders ---


class RingsForAll(Sound):
    def swap(self, kind: str, key: str, was: bytes | None, new: bytes | None) -> bool:
        swapped = super().swap(kind, key, was, new)
        super().swap("orders", "-", None, None)
        return swapped


class RingsOnceDone(Sound):
    def swap(self, kind: str, key: str, was: bytes | None, new: bytes | None) -> bool:
        return self.get(kind, key) == was and super().swap(kind, key, was, new)


class HearsLate(Sound):
    class HearsLateLog(SoundLog):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self.heard = [self.log.bell]

        @property
        def bell(self) -> int:
            self.heard.append(self.log.bell)
            return int(self.heard[-2])

        def hear(self) -> None:
            """There is no such thing."""

    logs = HearsLateLog


# --- who writes ---


class LocksNobody(Sound):
    def open(self, run: str, *, take: bool = False) -> Any:
        return super().open(run, take=True)


class AsksByLocking(Sound):
    def is_live(self, run: str) -> bool:
        try:
            log = self.open(run)
        except RunInUse:
            return True
        time.sleep(0.05)
        log.close()
        return False


class SaysItEnded(Sound):
    def is_live(self, run: str) -> bool:
        return super().is_live(run) and False


class Unfenced(Sound):
    """It appends behind whatever is there."""

    class UnfencedLog(SoundLog):
        def append(self, line: bytes) -> None:
            self.log.read()
            self.log.append(line)

    logs = UnfencedLog


class ReplacesUnfenced(Sound):
    class ReplacesUnfencedLog(SoundLog):
        def replace(self, lines: Sequence[bytes]) -> None:
            self.log.read()
            self.log.replace(lines)

    logs = ReplacesUnfencedLog


class KnowsNoFork(Sound):
    class KnowsNoForkLog(SoundLog):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self.pid = os.getpid()

        def append(self, line: bytes) -> None:
            if os.getpid() == self.pid:
                self.log.append(line)

        def wait(self) -> None:
            if os.getpid() == self.pid:
                self.log.wait()

    logs = KnowsNoForkLog


# --- logs ---


class LosesAcknowledged(Sound):
    """What is appended is on record when the log is closed."""

    class LosesAcknowledgedLog(SoundLog):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self.kept: list[bytes] = []

        def append(self, line: bytes) -> None:
            self.kept.append(line)

        def close(self) -> None:
            for line in self.kept:
                self.log.append(line)
            self.kept.clear()
            self.log.close()

    logs = LosesAcknowledgedLog


class ForgetsTheLast(Sound):
    """What is appended is on record once the next line is."""

    class ForgetsTheLastLog(LosesAcknowledged.LosesAcknowledgedLog):
        def append(self, line: bytes) -> None:
            for each in self.kept:
                self.log.append(each)
            self.kept[:] = [line]

    logs = ForgetsTheLastLog


class ReplacesByParts(Sound):
    class ReplacesByPartsLog(SoundLog):
        def replace(self, lines: Sequence[bytes]) -> None:
            self.log.replace(lines[:3])
            for line in lines[3:]:
                self.log.append(line)

    logs = ReplacesByPartsLog


class ReadsOneMore(Sound):
    def read(self, run: str, after: int = 0) -> list[bytes]:
        return super().read(run, max(after - 1, 0) if after >= 0 else after)


class FindsAnything(Sound):
    def read(self, run: str, after: int = 0) -> list[bytes]:
        try:
            return super().read(run, after)
        except RollcageError:
            return []


class ListsTheOldest(Sound):
    def runs(self, before: str = "", limit: int = 1000) -> list[Ends]:
        return super().runs(before, 1000)[-limit:] if limit else []


class ListsWithoutEnd(Sound):
    """A list ends with the first line of each run."""

    def runs(self, before: str = "", limit: int = 1000) -> list[Ends]:
        return [Ends(each.run, each.first, each.first) for each in super().runs(before, limit)]


class ListsByReadingAll(Sound):
    def ends(self, run: str) -> Ends:
        return next(each for each in self._all() if each.run == run)

    def _all(self) -> Iterator[Ends]:
        for each in super().runs("", 10**6):
            lines = self.read(each.run)
            yield Ends(each.run, lines[0], lines[-1])


STORES: Final = {
    each.__name__.lower(): each
    for each in list(globals().values())
    if isinstance(each, type) and issubclass(each, Sound)
}


def opened(url: str) -> Store:
    return STORES[url.partition("://")[2].partition("/")[0]](url)
