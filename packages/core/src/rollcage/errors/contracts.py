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
    """A tool's declaration can't be used; raised when it is declared, before any call."""

    code = "contract_invalid"


class ToolRefused(ContractError):
    """A tool can't be given to an agent: the session's facade does not grant it.

    Attributes:
        contract: the tool's contract.
        verdict_code: the machine-readable reason: `tool_unapproved`, `tool_changed`, `tool_frozen`
            or `tool_outside_facade`.
        diff: how it differs from the approved tool, by field; empty if none was approved.
    """

    code = "tool_refused"

    def __init__(self, message: str, contract: Any, verdict_code: str, diff: str) -> None:
        super().__init__(message)
        self.contract = contract
        self.verdict_code = verdict_code
        self.diff = diff


class ArgumentsInvalid(RollcageError):
    """The arguments do not match the tool's own schema; the tool did not run."""

    code = "arguments_invalid"


class OutputDrift(RollcageError):
    """The tool ran, and its output breaks its contract; the trace keeps the output.

    Attributes:
        tool: the tool's name.
        drift_code: `output_not_json`, `output_wrong_type`, `output_missing_field`, `output_empty`
            or `output_too_large`.
        path: the field of the output, from `$`.
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
    """A tool's body tried to do something that its contract does not declare; it was refused.

    It is not an `OSError`: much code reads those as "nothing there", and a refusal must not be
    mistaken for an answer.

    Attributes:
        needs: the missing permission, as the contract would declare it.
    """

    code = "permission_undeclared"

    def __init__(self, message: str, needs: str) -> None:
        super().__init__(message)
        self.needs = needs


class Unencodable(RollcageError):
    """A value has no encoding in the trace; `path` says where in the arguments or result it is."""

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
    """Credential detection is on, and the library for it is not installed."""

    code = "detector_missing"


class PackageMissing(RollcageError):
    """A session was given something that needs a package which is not installed.

    Attributes:
        extra: the extra of `rollcage` that installs the package.
    """

    code = "package_missing"

    def __init__(self, message: str, extra: str) -> None:
        super().__init__(message)
        self.extra = extra
