"""Makes the worlds of a recorded run again, from what its trace says was written (DESIGN §2).

By the format's definition, not with the code that wrote the trace. It follows runs that were
recorded without a source: the worlds of a resumed one follow from its source's, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256
from itertools import chain
from typing import Any, Final

__all__ = ["Worlds"]

_UNKNOWN: Final = sha256(b'{"status":"unknown"}').digest()


class _Line:
    """A branch: its worlds by position, and what the batch at the last of them has written."""

    def __init__(self, world: bytes) -> None:
        self.worlds = [world]
        self.links: list[bytes] = []
        # Links of the scopes without an end, by step: as unknown, where they were broken off.
        self.entered: dict[int, bytes] = {}

    def after(self, *, all_ended: bool = False) -> bytes:
        """The world after the present batch, as far as it is known."""
        links = self.links if all_ended else [*self.links, *self.entered.values()]
        world = self.worlds[-1]
        return sha256(world + b"".join(sorted(links))).digest() if links else world


class Worlds:
    """Holds the worlds that a trace claims against what was written before, event by event.

    Attributes:
        followed: whether the run is one whose worlds can be made again.
    """

    def __init__(self) -> None:
        self.followed = False
        self._strict = False
        self._lines: dict[str, _Line] = {}
        self._after: dict[str, tuple[str, ...]] = {}  # by branch, those that it comes after
        self._begun: set[str] = set()  # fingerprints
        self._open: dict[int, tuple[str, bytes]] = {}  # steps that advance: branch, fingerprint

    def follow(self, event: dict[str, Any]) -> str | None:
        """What is wrong with the world of the next event, which has passed the schema; or None."""
        kind = event["event"]
        if "undoes" in event:
            return None  # its world follows from the step that it undoes, attempt by attempt
        if kind == "run.started":
            self.followed = event["mode"] in ("record", "imported") and not event.get(
                "redacted", False
            )
            self._strict = event["chain"] == "all"
            self._lines[""] = _Line(sha256(b"rollcage/1 world" + event["seed"].encode()).digest())
        elif kind == "branch.forked":
            self._after.setdefault(  # the first one counts: a circle can't be described
                event["name"], tuple(n for n in event.get("after", ()) if n in self._after)
            )
        elif self.followed and kind in ("step.started", "branch.joined"):
            placed = self._placed(event)
            return self._joined(event) or placed if kind == "branch.joined" else placed
        elif self.followed and kind == "step.finished" and event["step"] in self._open:
            branch, fingerprint = self._open.pop(event["step"])
            line = self._lines[branch]
            line.entered.pop(event["step"], None)
            if event["outcome"]["status"] != "not_started":
                line.links.append(sha256(fingerprint + bytes.fromhex(event["digest"])).digest())
        return None

    def _placed(self, event: dict[str, Any]) -> str | None:
        step, name, world = event["step"], event.get("branch", ""), bytes.fromhex(event["world"])
        line, starts_well = self._lines.get(name), True
        if line is None:
            starts_well = world in self._starts(name)
            line = self._lines[name] = _Line(world)
        elif event["position"] == len(line.worlds) and (line.links or line.entered):
            line.worlds.append(line.after())
            line.links, line.entered = [], {}
        follows = starts_well and world == line.worlds[-1]
        line.worlds[-1] = world  # what comes after it may follow from that
        if event.get("kind") == "tool" and (self._strict or event["effect"] in ("write", "scope")):
            fingerprint = bytes.fromhex(event["fingerprint"])
            self._open[step] = name, fingerprint
            if event["effect"] == "scope":
                line.entered[step] = sha256(fingerprint + _UNKNOWN).digest()
        self._begun.add(event["fingerprint"])
        if follows and event["position"] == len(line.worlds) - 1:
            return None
        return f"step {step}: its world does not follow from what was written before it"

    def _joined(self, event: dict[str, Any]) -> str | None:
        ended = bytes.fromhex(event["digest"])
        link = sha256(bytes.fromhex(event["fingerprint"]) + ended).digest()
        self._lines[event.get("branch", "")].links.append(link)
        child = self._lines.get(event["name"])
        if child is not None and child.after(all_ended=True) == ended:
            return None
        return f"step {event['step']}: it is not in this world that branch {event['name']!r} ended"

    def _starts(self, name: str) -> Iterator[bytes]:
        """The worlds that a new branch can have started in, the likeliest first."""
        # From the branch up to one whose worlds are known: what stands around its world.
        forks: list[tuple[bytes, bytes]] = []
        while name not in self._lines and ("/" in name or not name.startswith("#")):
            ended = self._ended(self._after.get(name, ()))
            mark, rest = b"rollcage/1 branch", b""
            if ended:
                mark, rest = b"rollcage/1 branch after", len(ended).to_bytes(8, "big")
            name, _, own = name.rpartition("/")
            forks.append((mark, rest + b"".join(sorted(ended)) + own.encode()))
        line, begun = self._lines.get(name), name[1:]
        worlds: Iterator[bytes] = iter(())
        if line is not None:
            worlds = chain([line.after()], reversed(line.worlds))
        elif begun in self._begun:
            worlds = iter([sha256(bytes.fromhex(begun)).digest()])
        for world in worlds:
            for mark, rest in reversed(forks):
                world = sha256(mark + world + rest).digest()  # noqa: PLW2901 - it is led on
            yield world

    def _ended(self, names: Iterable[str]) -> set[bytes]:
        """The last worlds of branches; for one without writes, of those that it comes after."""
        found: set[bytes] = set()
        for name in names:
            line = self._lines.get(name)
            if line is not None and (len(line.worlds) > 1 or line.links):
                found.add(line.after(all_ended=True))
            else:
                found |= self._ended(self._after.get(name, ()))
        return found
