"""Where a page's links lead: given from outside, so that reports and a server share templates."""

from __future__ import annotations

__all__ = ["Links"]


class Links:
    """The links of a report: it is one file, so they stay in it.

    A server has a subclass with pages of its own. An empty address is no link: its text is shown
    there alone.

    Args:
        run: the run that the file is about; empty if it is about several.
    """

    def __init__(self, run: str = "") -> None:
        self._run = run

    def run(self, run: str) -> str:
        """The page of a run."""
        del run
        return ""

    def step(self, run: str, step: int) -> str:
        """A step on the page of its run."""
        return f"#step-{step}" if run == self._run else ""

    def approval(self, approval: str) -> str:
        """A request for approval, to answer it."""
        del approval
        return ""

    def resolve(self, run: str, step: int) -> str:
        """Where somebody says what became of a step."""
        del run, step
        return ""
