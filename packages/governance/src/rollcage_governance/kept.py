"""Chained lines in a store, to which any number of processes can add."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import orjson
from rollcage import Store
from rollcage.errors import RegistryCorrupt, StoreError
from rollcage.trace.chain import ROOT, chained

__all__ = ["KIND", "RegistryLines"]

_log: Final = logging.getLogger("rollcage")

KIND: Final = "registry"
_LINES: Final = "lines"
_END: Final = "end"


class _End(NamedTuple):
    """The end of the lines after the last addition: it shows lines that were cut off."""

    lines: int = 0
    hash: str = ROOT.decode()


class RegistryLines:
    """The lines of a registry, in two values of a store.

    `lines` holds all of them: an addition swaps the whole value, so a reader sees a transition
    entirely or not at all. `end` holds their number, and the hash of the last.

    Args:
        store: the store.
        begins: the `event` of the first line.

    Attributes:
        where: its name in errors.
    """

    def __init__(self, store: Store, begins: str) -> None:
        self._store = store
        self._begins = begins
        self.where = f"the registry of {store.url}"

    def read(self) -> list[dict[str, Any]]:
        """Return all lines, without their hashes; none if nothing was ever added.

        Raises:
            RegistryCorrupt: names the first changed or damaged line, or says that lines are
                missing.
            StoreError: the lines can't be read.
        """
        end = self._end()[1]  # read first, so that it is never ahead of the lines
        return self._checked(self._store.get(KIND, _LINES), end)[0]

    def append(
        self, make: Callable[[list[dict[str, Any]]], Sequence[dict[str, Any]]]
    ) -> list[dict[str, Any]]:
        """Add lines, and return them.

        Args:
            make: called with the lines on record, returns the lines to add. It is called
                again if another process has added lines since. Its exception ends this, and
                nothing is written.

        Raises:
            RegistryCorrupt: as in `read`; nothing is written.
            StoreError: the lines can't be written.
        """
        while True:
            end = self._end()[1]
            seen = self._store.get(KIND, _LINES)
            before, last = self._checked(seen, end)
            added = [*make(before)]
            lines = chained(added, last.encode())
            if self._store.swap(KIND, _LINES, seen, (seen or b"") + b"".join(lines)):
                break
        last = orjson.loads(lines[-1])["hash"] if lines else last
        self._note(_End(len(before) + len(added), last))
        return added

    def _checked(self, data: bytes | None, end: _End) -> tuple[list[dict[str, Any]], str]:
        """Return the lines, and the hash of the last, after comparing both with the end."""
        events: list[dict[str, Any]] = []
        hashes = [ROOT.decode()]
        for number, line in enumerate((data or b"").splitlines(keepends=True), 1):
            event, flaw = _parsed(line, hashes[-1])
            if not flaw and number == 1 and event.get("event") != self._begins:
                flaw = "it begins with another event"
            if flaw:
                raise RegistryCorrupt(self.where, number, flaw)
            hashes.append(event.pop("hash"))
            events.append(event)
        if len(events) < end.lines:
            flaw = f"there were {end.lines} lines, {len(events)} are left"
            raise RegistryCorrupt(self.where, len(events) + 1, flaw)
        if hashes[end.lines] != end.hash:
            flaw = f"its hash is not {end.hash[:12]}…, which is noted as the end"
            raise RegistryCorrupt(self.where, end.lines, flaw)
        return events, hashes[-1]

    def _end(self) -> tuple[bytes | None, _End]:
        data = self._store.get(KIND, _END)
        if data is None:
            return None, _End()
        try:
            fields: Any = orjson.loads(data)
            end = _End(int(fields["lines"]), str(fields["hash"]))
        except (ValueError, TypeError, LookupError) as error:
            flaw = f"the note of where it ends is damaged: {error}"
            raise RegistryCorrupt(self.where, 1, flaw) from None
        if end.lines < 0:
            raise RegistryCorrupt(self.where, 1, "the note of where it ends is damaged")
        return data, end

    def _note(self, end: _End) -> None:
        """Note the end, unless a later one is noted.

        A process that is killed before this leaves an earlier end, which fits the lines as well.
        """
        data = orjson.dumps(end._asdict())
        try:
            while True:
                seen, noted = self._end()
                if noted.lines >= end.lines or self._store.swap(KIND, _END, seen, data):
                    return
        except StoreError as error:
            _log.warning("the end of %s is not noted: %s", self.where, error)


def _parsed(line: bytes, before: str) -> tuple[dict[str, Any], str]:
    """Return a line's content, or its flaw."""
    try:
        event: Any = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        return {}, f"it is not JSON ({error})"
    if not isinstance(event, dict):
        return {}, "it is not a JSON object"
    fields = {name: value for name, value in event.items() if name != "hash"}
    if [line] != chained([fields], before.encode()):
        return {}, "it, or a line before it, was changed, cut out, added or moved: its hash differs"
    return event, ""
