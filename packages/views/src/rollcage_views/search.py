"""Which steps of a run are asked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from rollcage.trace import Step

from rollcage_views.steps import call_text, outcome_text
from rollcage_views.text import arguments_text

__all__ = ["StepFilter"]


@dataclasses.dataclass(frozen=True, slots=True)
class StepFilter:
    """What steps have to be like; an empty part asks for nothing.

    Attributes:
        tools: globs over the names of tools, models and branches.
        states: of `rollcage.trace.STATES`, or `undone`.
        agents: globs over the names of agents.
        since: from when on they began (Unix, µs).
        text: what is in the arguments, the outcome or the name, in capitals or not.
    """

    tools: Sequence[str] = ()
    states: Sequence[str] = ()
    agents: Sequence[str] = ()
    since: int | None = None
    text: str = ""

    def __contains__(self, step: Step) -> bool:
        return (
            _is_one_of(step.name, self.tools)
            and _is_one_of(step.agent, self.agents)
            and (self.since is None or step.time >= self.since)
            and (not self.states or bool(_states(step) & set(self.states)))
            and (not self.text or self.text.casefold() in _told(step).casefold())
        )

    @property
    def asks(self) -> bool:
        """Whether anything is asked for."""
        return self != StepFilter()

    def of(self, steps: Iterable[Step]) -> list[Step]:
        """Those that are like it."""
        return [step for step in steps if step in self]


def _is_one_of(name: str, globs: Sequence[str]) -> bool:
    return not globs or any(fnmatchcase(name, glob) for glob in globs)


def _states(step: Step) -> set[str]:
    undone = step.undone in ("verified", "compensated")
    return {step.state, "undone"} if undone else {step.state}


def _told(step: Step) -> str:
    parts = (step.name, step.agent, arguments_text(step.args), call_text(step), outcome_text(step))
    return "\n".join(parts)
