"""Rights, the roles that hold them, and principals."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final

from rollcage_views import Viewer

__all__ = ["ROLES", "Principal", "Right", "Role", "roles_of"]


class Right(StrEnum):
    """The rights. A route requires one of them."""

    SEE = "see"  # names, states, times: no value
    VALUES = "values"  # arguments, results, messages, reasons
    DECIDE = "decide"  # about approvals, except one's own
    OPERATE = "operate"  # stop, pause, resolve, abandon, undo, workflows
    AUDIT = "audit"  # read the audit log


class Role(StrEnum):
    """The roles of a principal. Several add up; none includes another by accident."""

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
    """Return the roles with these names; unknown names are ignored."""
    known = {role.value: role for role in Role}
    return frozenset(known[name] for name in names if isinstance(name, str) and name in known)


@dataclasses.dataclass(frozen=True, slots=True)
class Principal:
    """A person or program that makes requests.

    Attributes:
        name: their name in the audit log and in approvals.
        roles: their roles.
        expires: until when this holds (Unix, seconds).
        via: how they were authenticated: `token`, `oidc` or `once`.
        key: the token, session or subject; never the secret itself.
    """

    name: str
    roles: frozenset[Role]
    expires: float
    via: str
    key: str

    @property
    def rights(self) -> frozenset[Right]:
        """The rights of their roles; none after expiry."""
        if time.time() >= self.expires:
            return frozenset()
        return frozenset(right for role in self.roles for right in ROLES[role])

    def may(self, right: Right) -> bool:
        """Return whether they hold a right."""
        return right in self.rights

    def role_for(self, right: Right) -> str:
        """Return the narrowest role by which they hold a right; empty without one."""
        able = [role for role in self.roles if right in ROLES[role]]
        return min(able, key=lambda role: (len(ROLES[role]), role), default="")

    @property
    def viewer(self) -> Viewer:
        """Return their view of recorded values."""
        return Viewer(values=self.may(Right.VALUES))
