"""The kinds of steps: the check of each before a plan runs, and its work.

A new kind is a field of `plan.Step`, a name in `plan.KINDS` and a module here with two functions,
`check` and `run`, that is named in `KINDS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from rollcage_workflow.kinds import each, repeat, team, tools, value, wait, workflow

if TYPE_CHECKING:
    from rollcage_workflow.check.checking import Around, Checking
    from rollcage_workflow.files import Path
    from rollcage_workflow.flow import BlockPlace
    from rollcage_workflow.graph import Node
    from rollcage_workflow.interpret import Interpreter
    from rollcage_workflow.schemas import Shape

__all__ = ["KINDS", "Kind"]


class Kind(Protocol):
    """The module of a kind of step."""

    def check(
        self, checking: Checking, node: Node, path: Path, around: Around
    ) -> tuple[Node, Shape]:
        """Find a step's problems; return the step, ready to run, and its result's shape."""
        ...

    async def run(self, interpreter: Interpreter, node: Node, place: BlockPlace) -> Any:
        """Run a step; return its result."""
        ...


KINDS: Final[Mapping[str, Kind]] = {
    "call": tools,
    "agent": tools,
    "team": team,
    "each": each,
    "repeat": repeat,
    "workflow": workflow,
    "wait": wait,
    "value": value,
}
"""By the field of `plan.Step` for the kind."""
