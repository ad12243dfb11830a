"""Facts about a machine for an agent: nothing that names it, its users or its secrets."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from typing import Any, Final

import rollcage

__all__ = ["TOOLS", "system_info"]


@rollcage.tool(effect="read", version="1", risk="low", permissions=["system:read"])
def system_info() -> dict[str, Any]:
    """Tell the operating system, the processor's kind and number, and Python's version."""
    return {
        "system": platform.system(),
        "release": platform.release(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
    }


TOOLS: Final[list[Callable[..., Any]]] = [system_info]
"""All tools of this module."""
