"""Mission Control: the runs of a store in a browser and over HTTP."""

from typing import TYPE_CHECKING, Any

from rollcage_server.auth import Authority
from rollcage_server.roles import ROLES, Principal, Right, Role

if TYPE_CHECKING:
    from rollcage_server.app import create_app

__all__ = ["ROLES", "Authority", "Principal", "Right", "Role", "create_app"]


def __getattr__(name: str) -> Any:
    """Import the application on demand: `rollcage token` does without it."""
    if name != "create_app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from rollcage_server.app import create_app

    return create_app
