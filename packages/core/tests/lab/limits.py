"""A stage of a third party: so many calls of a tool in a run, counted by its log."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rollcage import Stage, Verdict, refuse
from rollcage.calls.stage import Work
from rollcage.errors import SessionError

if TYPE_CHECKING:
    from rollcage.contract.contract import Contract
    from rollcage.replay.call import Call, Match
    from rollcage.trace.run import Event

__all__ = ["Limits"]


class Limits(Stage):
    """Denies the call of a tool that has begun so many times in this run.

    A call that begins again, in a resume or after a failure, counts once; one that failed or was
    undone counts; one that was denied, answered by a person, or found not to have happened doesn't.

    Args:
        most: by the tool's name, how many calls of it may begin.

    Raises:
        SessionError: a limit is negative.
    """

    def __init__(self, most: Mapping[str, int]) -> None:
        if any(limit < 0 for limit in most.values()):
            raise SessionError("a limit is a number of calls, from 0")
        self.most = dict(most)
        self._begun: defaultdict[str, set[str]] = defaultdict(set)
        self._steps: dict[int, tuple[str, str]] = {}
        self.folds = {"step": self._step, "outcome": self._outcome}

    def _step(self, line: Event) -> None:
        name = line["name"]
        if name in self.most and "waits" not in line and "answered" not in line:
            self._steps[line["step"]] = name, line["fingerprint"]
            self._begun[name].add(line["fingerprint"])

    def _outcome(self, line: Event) -> None:
        if line["outcome"] is None and line["step"] in self._steps:  # it did not happen
            name, mark = self._steps[line["step"]]
            self._begun[name].discard(mark)

    def concerns(self, contract: Contract) -> bool:
        """Whether calls of a tool are limited."""
        return contract.name in self.most

    def prepare(self, call: Call, match: Match) -> Work | None:
        """Deny a call that would be one too many."""
        if match.kind == "hit":
            return None
        name = call.contract.name
        most, begun = self.most[name], self._begun[name]
        if match.step is not None and match.step.fingerprint in begun:
            return None
        if len(begun) >= most:
            times = "once" if most == 1 else f"{most} times"
            raise refuse(
                call,
                Verdict(
                    "deny",
                    f"{name} may be called {times} in a run"
                    if most
                    else f"{name} may not be called",
                    "limit_reached",
                ),
            )
        return None

    def marks(self, call: Call) -> Event | None:
        """Count a call that begins, for a read is on record only once it has ended."""
        if call.supplied is None:
            self._begun[call.contract.name].add(call.event["fingerprint"])
        return None
