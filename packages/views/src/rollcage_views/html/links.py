"""The addresses of a page's links, given from outside: reports and a server share templates."""

from __future__ import annotations

__all__ = ["Links"]


class Links:
    """The links of a report, which stay in its one file.

    A server has a subclass with pages of its own. With an empty address, the text is shown without
    a link.

    Args:
        run: the run of the file; empty for several runs.
    """

    def __init__(self, run: str = "") -> None:
        self._run = run

    def run(self, run: str) -> str:
        """Return the address of a run's page."""
        del run
        return ""

    def step(self, run: str, step: int) -> str:
        """Return the address of a step on the page of its run."""
        return f"#step-{step}" if run == self._run else ""

    def approval(self, approval: str) -> str:
        """Return the address of a request for approval."""
        del approval
        return ""

    def resolve(self, run: str, step: int) -> str:
        """Return the address at which a person resolves a step."""
        del run, step
        return ""
