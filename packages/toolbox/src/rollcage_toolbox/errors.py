"""The toolbox's own errors. Conditions with a Python exception raise that exception.

::

    ToolboxError               code: for programs
    ├── PathRefused            a path, or a file, that the tools of a workspace refuse
    ├── LimitExceeded          a limit on input, output or work (limit_exceeded)
    ├── NotText                bytes that are no UTF-8, or text that is no base64 (not_text)
    ├── EditRefused            the text to replace does not occur exactly once (edit_refused)
    ├── ArchiveRefused         an archive that can't be unpacked safely (archive_refused)
    ├── Changed                the state to undo was changed since (changed)
    ├── InputRefused           text, template, JSON or time that a tool can't use (input_refused)
    ├── sql.SqlRefused         a statement that is not carried out here (sql_refused)
    ├── sql.SqlFailed          the database could not carry out a statement (sql_failed)
    ├── http.AddressRefused    a URL, name or address that may not be reached (address_refused)
    └── http.HttpFailed        a request not made, or an answer not accepted (http_failed)

`http.NoAnswer` is a `TimeoutError`: a write without an answer has an unknown outcome.

Missing files, and existing ones in the way, are `FileNotFoundError`, `FileExistsError`,
`IsADirectoryError` and `NotADirectoryError`, as everywhere in Python.
"""

from __future__ import annotations

__all__ = [
    "ArchiveRefused",
    "Changed",
    "EditRefused",
    "InputRefused",
    "LimitExceeded",
    "NotText",
    "PathRefused",
    "ToolboxError",
]


class ToolboxError(Exception):
    """A tool refused; nothing was changed.

    Attributes:
        code: for programs; the message is for people and models.
    """

    code = "refused"

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        if code:
            self.code = code


class PathRefused(ToolboxError):
    """A path, or a file, that the tools of a workspace refuse.

    Codes: `path_absolute`, `path_parent`, `path_empty`, `path_name`, `path_encoded`,
    `path_unicode`, `path_too_long`, `path_reserved`; for existing files: `path_symlink`,
    `path_hard_link`, `path_special`, `path_case`, `path_store`.
    """

    code = "path_refused"


class LimitExceeded(ToolboxError):
    """A limit on input, output or work; the message names the limit."""

    code = "limit_exceeded"


class NotText(ToolboxError):
    """Bytes that are no UTF-8, or text that is no base64."""

    code = "not_text"


class EditRefused(ToolboxError):
    """The text to be replaced does not occur exactly once."""

    code = "edit_refused"


class ArchiveRefused(ToolboxError):
    """A file that is not an archive, or can't be unpacked safely."""

    code = "archive_refused"


class Changed(ToolboxError):
    """The state to undo was changed by others since."""

    code = "changed"


class InputRefused(ToolboxError):
    """Text, a template, JSON or a time that a tool can't use."""

    code = "input_refused"
