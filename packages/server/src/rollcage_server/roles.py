"""Who may do what: rights, the roles that hold them, and who asks."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final

from rollcage_views import Viewer

__all__ = ["ROLES", "Principal", "Right", "Role", "roles_of"]


class Right(StrEnum):
    """What can be done. A route asks for one of them."""

    SEE = "see"  # names, states, times: no value
    VALUES = "values"  # arguments, results, messages, reasons
    DECIDE = "decide"  # on approvals, but on none of one's own
    OPERATE = "operate"  # stop, pause, resolve, abandon, undo, workflows
    AUDIT = "audit"  # who did what


class Role(StrEnum):
    """What somebody is given. Several add up; none contains another one's duties by accident."""

    OBSERVER = "observer"
    VIEWER = "viewer"
    APPROVER = "approver"
    OPERATOR = "operator"
    ADMIN = "admin"


ROLES: Final[Mapping[Role, frozenset[Right]]] = {
    Role.OBSERVER: frozenset({Right.SEE}),
    Role.VIEWER: frozenset({Right.SEE, Right.VALUES}),
    Role.APPROVER: frozenset({Right.SEE, Right.VALUES, Right.DECIDE}),
    Role.OPERATOR: frozenset({Right.SEE, Right.VALUES, Right.OPERATE}),
    Role.ADMIN: frozenset(Right),
}
"""The rights of each role."""


def roles_of(names: Iterable[object]) -> frozenset[Role]:
    """The roles that are named; what is no role is none."""
    known = {role.value: role for role in Role}
    return frozenset(known[name] for name in names if isinstance(name, str) and name in known)


@dataclasses.dataclass(frozen=True, slots=True)
class Principal:
    """Who asks.

    Attributes:
        name: of the person or program, as the audit log and approvals have it.
        roles: what they were given.
        expires: until when that holds (Unix, seconds).
        via: how they were recognised: `token`, `oidc` or `once`.
        key: which token, session or subject that was; never the secret itself.
    """

    name: str
    roles: frozenset[Role]
    expires: float
    via: str
    key: str

    @property
    def rights(self) -> frozenset[Right]:
        """All that their roles hold; nothing once it has expired."""
        if time.time() >= self.expires:
            return frozenset()
        return frozenset(right for role in self.roles for right in ROLES[role])

    def may(self, right: Right) -> bool:
        """Whether they hold a right."""
        return right in self.rights

    def role_for(self, right: Right) -> str:
        """The role by which they hold a right, the narrowest one; empty where they do not."""
        able = [role for role in self.roles if right in ROLES[role]]
        return min(able, key=lambda role: (len(ROLES[role]), role), default="")

    @property
    def viewer(self) -> Viewer:
        """What they may see of what is recorded."""
        return Viewer(values=self.may(Right.VALUES))
