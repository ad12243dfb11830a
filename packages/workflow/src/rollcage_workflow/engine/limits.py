"""How many executions of a plan run at once, over all workers."""

from __future__ import annotations

import dataclasses

from rollcage_workflow.errors import WorkflowError

__all__ = ["Limit"]


@dataclasses.dataclass(frozen=True, slots=True)
class Limit:
    """The limits of a plan, over all workers of an engine.

    Attributes:
        concurrency: how many attempts at once.
        starts: how many attempts may begin in each `per` seconds.
        per: seconds.

    Raises:
        WorkflowError: a number is not valid.
    """

    concurrency: int | None = None
    starts: int | None = None
    per: float = 60.0

    def __post_init__(self) -> None:
        for name in ("concurrency", "starts"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise WorkflowError(f"a limit's {name} is 1 or more, not {value}")
        if self.per <= 0:
            raise WorkflowError(f"a limit's per is more than 0 seconds, not {self.per}")
