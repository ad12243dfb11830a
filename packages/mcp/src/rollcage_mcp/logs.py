"""The logs of a proxy, on standard error, where its client may keep or show them."""

from __future__ import annotations

import logging
import sys

from rollcage_views import visible

__all__ = ["log_to_stderr"]


class _Plain(logging.Formatter):
    """Messages that can't act on a terminal: they may quote a client or a server."""

    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(map(visible, super().format(record).split("\n")))


def log_to_stderr() -> None:
    """Write all warnings and errors there, each as `rollcage: …`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Plain("rollcage: %(message)s"))
    logging.basicConfig(handlers=[handler])
