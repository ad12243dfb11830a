"""What the server refuses, each with the HTTP status that says so.

::

    RollcageError
    └── ServerError         a request that is refused              (server)
        ├── Unauthenticated nobody known asks                      (unauthenticated)
        ├── Forbidden       their roles do not allow it            (forbidden)
        ├── BadRequest      the request makes no sense             (bad_request)
        ├── NotFound        there is no such thing                 (not_found)
        ├── Conflict        somebody else was faster, or it stands (conflict)
        ├── TooMany         the cap on live viewers is reached     (too_many)
        └── AuditCorrupt    the audit log's chain does not hold    (audit_corrupt)
"""

from __future__ import annotations

from typing import ClassVar, Final

from rollcage.errors import (
    ApprovalCorrupt,
    ApprovalInvalid,
    GovernanceError,
    OrderRefused,
    RollcageError,
    RunInUse,
    RunNotFound,
    SessionError,
    StoreError,
    TraceCorrupt,
)
from rollcage_workflow.errors import WorkflowError

__all__ = [
    "AuditCorrupt",
    "BadRequest",
    "Conflict",
    "Forbidden",
    "NotFound",
    "ServerError",
    "TokensInvalid",
    "TooMany",
    "Unauthenticated",
    "status_of",
]


class ServerError(RollcageError):
    """A request that is refused; the message says what would do."""

    code = "server"
    status: ClassVar[int] = 400


class TokensInvalid(ServerError):
    """A file of tokens can't be used."""

    code = "tokens_invalid"
    status = 503


class Unauthenticated(ServerError):
    """Nobody known asks."""

    code = "unauthenticated"
    status = 401


class Forbidden(ServerError):
    """The roles of who asks do not allow it, or the request may be somebody else's doing."""

    code = "forbidden"
    status = 403


class BadRequest(ServerError):
    """The request makes no sense as it stands."""

    code = "bad_request"


class NotFound(ServerError):
    """There is no such thing."""

    code = "not_found"
    status = 404


class Conflict(ServerError):
    """Somebody else was faster, or how it stands does not allow it."""

    code = "conflict"
    status = 409


class TooMany(ServerError):
    """As many viewers follow runs as the server serves at once."""

    code = "too_many"
    status = 503


class AuditCorrupt(ServerError):
    """The audit log was changed, or lines of it are gone."""

    code = "audit_corrupt"
    status = 500


_STATUS: Final[tuple[tuple[type[RollcageError], int], ...]] = (
    (RunNotFound, 404),
    (RunInUse, 409),
    (OrderRefused, 409),
    (ApprovalInvalid, 409),
    (ApprovalCorrupt, 409),
    (TraceCorrupt, 500),
    (StoreError, 503),
    (SessionError, 409),
    (GovernanceError, 409),
    (WorkflowError, 409),
)


def status_of(error: RollcageError) -> int:
    """The HTTP status that says what an error says."""
    if isinstance(error, ServerError):
        return error.status
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 400)
