"""A stage of a test's own: its session begins a copy of a run, as a what-if does."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from rollcage import Session, SessionError, Stage
from rollcage.session.adapters import Event, Run, RunSource


@dataclasses.dataclass(eq=False)
class Copy(Stage):
    """Begins a copy of a run, which must not write unless it is live; a step may be changed."""

    run: RunSource
    at: int = 0
    change: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    live: bool = False

    @property
    def copies(self) -> RunSource:
        return self.run

    def copied(self, session: Session, run: Run, lines: list[Event]) -> list[Event]:
        first = lines[0]
        first["fork"] = "live" if self.live else "dry"
        forked = {name: first[name] for name in ("run", "name")} | {"from": first["copied"]}
        begins: list[Event] = [{"event": "forked", **forked} | ({} if self.live else {"dry": True})]
        if self.at and self.at not in run.steps:
            raise SessionError(f"there is no step {self.at}")
        if self.at:
            begins.append({"event": "changed", "step": self.at, **self.change})
        return begins
