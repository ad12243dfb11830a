"""Governed file tools for one folder."""

from rollcage_toolbox.workspace.images import Limits
from rollcage_toolbox.workspace.workspace import Workspace

__all__ = ["Limits", "Workspace"]
