"""The tools of the demo's last agent; `rollcage undo` finds them by the demo's pyproject.toml."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rollcage_cli.demo.job import Scene

__all__ = ["SETTING", "for_agents", "for_contracts", "for_undo"]

SETTING = f'[tool.rollcage]\ntools = ["{__name__}:for_undo"]\n'
"""The setting that tells `rollcage undo`, in the demo's folder, the place of its tools."""


def for_agents(scene: Scene) -> list[Callable[..., Any]]:
    """Return the agent's tools."""
    from rollcage_toolbox import Workspace
    from rollcage_toolbox.sql import Database

    return [*Workspace(scene.workspace).tools(), *Database(_address(scene)).tools()]


def for_contracts(scene: Scene) -> list[Callable[..., Any]]:
    """Return tools that declare their arguments and results."""
    from rollcage import tool

    @tool(effect="read", returns=float)
    def look_up_rate(currency: str) -> Any:
        """Look up an exchange rate: the service has begun to answer with texts."""
        return f"1,08 {currency}"

    @tool(effect="write")
    def send_reminder(to: str, text: str) -> str:
        """Send a reminder."""
        with (scene.workspace / "outbox" / "reminders.txt").open("a", encoding="utf-8") as file:
            file.write(f"{to}: {text}\n")
        return f"sent to {to}"

    return [look_up_rate, send_reminder]


def for_undo() -> list[Callable[..., Any]]:
    """Return the same tools, and the compensating ones, for the working directory."""
    from rollcage_toolbox import Workspace
    from rollcage_toolbox.sql import Database

    scene = Scene(Path())
    return [*Workspace(scene.workspace), *Database(_address(scene))]


def _address(scene: Scene) -> str:
    return f"sqlite:///{scene.database}"
