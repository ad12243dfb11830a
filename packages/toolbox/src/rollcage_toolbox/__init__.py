"""Tools for agents, governed and undoable."""

from rollcage_toolbox import clock, system, text
from rollcage_toolbox.errors import (
    ArchiveRefused,
    Changed,
    EditRefused,
    InputRefused,
    LimitExceeded,
    NotText,
    PathRefused,
    ToolboxError,
)
from rollcage_toolbox.workspace import Limits, Workspace

__all__ = [
    "ArchiveRefused",
    "Changed",
    "EditRefused",
    "InputRefused",
    "LimitExceeded",
    "Limits",
    "NotText",
    "PathRefused",
    "ToolboxError",
    "Workspace",
    "clock",
    "system",
    "text",
]
