"""The server's refusals, each with its HTTP status.

::

    RollcageError
    └── ServerError         a request that is refused              (server)
        ├── Unauthenticated the request is not authenticated       (unauthenticated)
        ├── Forbidden       the roles do not allow it              (forbidden)
        ├── BadRequest      the request makes no sense             (bad_request)
        ├── NotFound        there is no such thing                 (not_found)
        ├── Conflict        another request was faster, or the     (conflict)
        │                   state does not allow it
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
    """A request that is refused; the message says what would be accepted."""

    code = "server"
    status: ClassVar[int] = 400


class TokensInvalid(ServerError):
    """A file of tokens can't be used."""

    code = "tokens_invalid"
    status = 503


class Unauthenticated(ServerError):
    """The request is not authenticated."""

    code = "unauthenticated"
    status = 401


class Forbidden(ServerError):
    """The roles of the principal do not allow it, or the request may be forged."""

    code = "forbidden"
    status = 403


class BadRequest(ServerError):
    """The request makes no sense."""

    code = "bad_request"


class NotFound(ServerError):
    """There is no such thing."""

    code = "not_found"
    status = 404


class Conflict(ServerError):
    """Another request was faster, or the state does not allow it."""

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
    """Return the HTTP status of an error."""
    if isinstance(error, ServerError):
        return error.status
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 400)
