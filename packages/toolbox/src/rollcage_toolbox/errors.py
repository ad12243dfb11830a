"""Every error of the toolbox's own. What Python has an exception for is raised as that.

::

    ToolboxError               code: what a program goes by
    ├── PathRefused            a path, or what is there, that no tool of a workspace touches
    ├── LimitExceeded          more than a tool takes, gives or goes through (limit_exceeded)
    ├── NotText                bytes that are no UTF-8, or text that is no base64 (not_text)
    ├── EditRefused            what is to be replaced is not there exactly once (edit_refused)
    ├── ArchiveRefused         an archive that can't be unpacked safely (archive_refused)
    ├── Changed                what would be undone is not what was made (changed)
    ├── InputRefused           text, template, JSON or time that a tool can't take (input_refused)
    ├── sql.SqlRefused         a statement that is not carried out here (sql_refused)
    ├── sql.SqlFailed          the database could not carry out a statement (sql_failed)
    ├── http.AddressRefused    a URL, name or address that may not be reached (address_refused)
    └── http.HttpFailed        a request not made, or an answer not taken (http_failed)

`http.NoAnswer` is a `TimeoutError`: a write that nobody answered is of unknown outcome.

Files that are missing or in the way are `FileNotFoundError`, `FileExistsError`,
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
        code: what a program goes by; the message is for people and models.
    """

    code = "refused"

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        if code:
            self.code = code


class PathRefused(ToolboxError):
    """A path, or what is there, that no tool of a workspace touches.

    Codes: `path_absolute`, `path_parent`, `path_empty`, `path_name`, `path_encoded`,
    `path_unicode`, `path_too_long`, `path_reserved`; of what is there: `path_symlink`,
    `path_hard_link`, `path_special`, `path_case`, `path_store`.
    """

    code = "path_refused"


class LimitExceeded(ToolboxError):
    """More than a tool takes, gives or goes through; the message names the limit."""

    code = "limit_exceeded"


class NotText(ToolboxError):
    """Bytes that are no UTF-8, or text that is no base64."""

    code = "not_text"


class EditRefused(ToolboxError):
    """The text to be replaced does not occur exactly once."""

    code = "edit_refused"


class ArchiveRefused(ToolboxError):
    """An archive that can't be unpacked safely, or is none."""

    code = "archive_refused"


class Changed(ToolboxError):
    """What would be undone is not what was made: somebody else changed it."""

    code = "changed"


class InputRefused(ToolboxError):
    """Text, a template, JSON or a time that a tool can't take."""

    code = "input_refused"
