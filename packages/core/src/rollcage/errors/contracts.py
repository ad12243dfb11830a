"""Errors about a tool: its declaration, its arguments, its output, and values of its calls."""

from __future__ import annotations

from typing import Any

from rollcage.errors.root import RollcageError

__all__ = [
    "ArgumentsInvalid",
    "ContractError",
    "DetectorMissing",
    "OutputDrift",
    "PackageMissing",
    "PermissionUndeclared",
    "ReplayedError",
    "ToolRefused",
    "Unencodable",
]


class ContractError(RollcageError):
    """A tool's declaration can't be used; raised where it is declared, before any call."""

    code = "contract_invalid"


class ToolRefused(ContractError):
    """A tool that was to be given to an agent is none of those of the session's facade.

    Attributes:
        contract: the tool's, as it would have been called.
        verdict_code: why, for machines: `tool_unapproved`, `tool_changed`, `tool_frozen` or
            `tool_outside_facade`.
        diff: how it differs from what was approved, by field; empty where nothing was.
    """

    code = "tool_refused"

    def __init__(self, message: str, contract: Any, verdict_code: str, diff: str) -> None:
        super().__init__(message)
        self.contract = contract
        self.verdict_code = verdict_code
        self.diff = diff


class ArgumentsInvalid(RollcageError):
    """The arguments do not pass the tool's own schema; nothing happened."""

    code = "arguments_invalid"


class OutputDrift(RollcageError):
    """The tool ran, and its output breaks what its contract promises; the trace keeps the output.

    Attributes:
        tool: the tool's name.
        drift_code: `output_not_json`, `output_wrong_type`, `output_missing_field`, `output_empty`
            or `output_too_large`.
        path: the place in the output, from `$`.
        reason: what is wrong there; it holds none of the output's values.
        performed: whether the tool is a write: its effects remain.
    """

    code = "output_drift"

    def __init__(
        self, tool: str, drift_code: str, path: str, reason: str, *, performed: bool
    ) -> None:
        stands = " The call was performed, and its effects remain." if performed else ""
        super().__init__(
            f"{tool}: its output is not what it declares ({drift_code} at {path}): "
            f"{reason}.{stands}"
        )
        self.tool = tool
        self.drift_code = drift_code
        self.path = path
        self.reason = reason
        self.performed = performed


class PermissionUndeclared(RollcageError):
    """A tool's body was about to do what its contract does not declare; that was not done.

    It is no `OSError`: much code takes those for "nothing there", and a refusal is not to pass for
    an answer.

    Attributes:
        needs: the permission that it would have taken, as it is declared.
    """

    code = "permission_undeclared"

    def __init__(self, message: str, needs: str) -> None:
        super().__init__(message)
        self.needs = needs


class Unencodable(RollcageError):
    """A value that no encoding of the trace can hold; `path` says where it stands."""

    code = "value_unencodable"

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class ReplayedError(RollcageError):
    """A recorded exception whose type is neither a builtin nor declared in `raises=`.

    Attributes:
        type_name: the full name of the recorded type.
        message: its text.
    """

    code = "replayed_error"

    def __init__(self, type_name: str, message: str) -> None:
        super().__init__(f"{type_name}: {message}")
        self.type_name = type_name
        self.message = message


class DetectorMissing(RollcageError):
    """Credentials are to be found in texts, and the library for it is not installed."""

    code = "detector_missing"


class PackageMissing(RollcageError):
    """A session was given something that comes with a package which is not installed.

    Attributes:
        extra: of `rollcage`, which brings that package.
    """

    code = "package_missing"

    def __init__(self, message: str, extra: str) -> None:
        super().__init__(message)
        self.extra = extra
