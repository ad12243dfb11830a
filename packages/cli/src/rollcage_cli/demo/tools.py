"""The tools of the demo's last agent; `rollcage undo` finds them by the demo's pyproject.toml."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rollcage_cli.demo.job import Scene

__all__ = ["SETTING", "for_agents", "for_undo"]

SETTING = f'[tool.rollcage]\ntools = ["{__name__}:for_undo"]\n'
"""What says to `rollcage undo`, in the demo's folder, where its tools are."""


def for_agents(scene: Scene) -> list[Callable[..., Any]]:
    """What the agent gets."""
    from rollcage_toolbox import Workspace
    from rollcage_toolbox.sql import Database

    return [*Workspace(scene.workspace).tools(), *Database(_address(scene)).tools()]


def for_undo() -> list[Callable[..., Any]]:
    """The same tools, and those that take their calls back, in the working directory."""
    from rollcage_toolbox import Workspace
    from rollcage_toolbox.sql import Database

    scene = Scene(Path())
    return [*Workspace(scene.workspace), *Database(_address(scene))]


def _address(scene: Scene) -> str:
    return f"sqlite:///{scene.database}"
