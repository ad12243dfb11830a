"""Mission Control: the runs of a store in a browser and over HTTP."""

from rollcage_server.app import create_app
from rollcage_server.auth import Authority
from rollcage_server.roles import ROLES, Principal, Right, Role

__all__ = ["ROLES", "Authority", "Principal", "Right", "Role", "create_app"]
