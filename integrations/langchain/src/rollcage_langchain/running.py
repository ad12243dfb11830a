"""Which bodies of one guarded object are running, so that what it does to itself is no new step."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any, Final

from langchain_core.runnables.config import var_child_runnable_config
from rollcage import current_step

__all__ = ["Running"]

_NOT_RUNNING: Final = object()


class Running:
    """The bodies of one guarded tool or model that are running now.

    An `_arun` that calls its own `_run`, or a `_generate` that streams, is one step, not two. A
    body that invokes its tool anew, an agent as a tool say, makes steps: by then LangChain has set
    another config around it.
    """

    def __init__(self) -> None:
        self._configs: dict[tuple[str, int], Any] = {}

    @property
    def here(self) -> bool:
        """Whether the caller is such a body."""
        step = current_step()
        if step is None:
            return False
        config = self._configs.get((step.run, step.number), _NOT_RUNNING)
        return config is var_child_runnable_config.get()

    @contextlib.contextmanager
    def body(self) -> Generator[None]:
        """Around a body, inside of its step."""
        step = current_step()
        assert step is not None
        at = step.run, step.number
        self._configs[at] = var_child_runnable_config.get()
        try:
            yield
        finally:
            self._configs.pop(at, None)
