"""The errors of a client's configuration."""

from __future__ import annotations

from rollcage_cli.errors import UsageError

__all__ = ["ConfigChanged", "ConfigInvalid"]


class ConfigInvalid(UsageError):
    """A client's configuration can't be used; the text says why. Nothing was written."""

    code = "config_invalid"


class ConfigChanged(UsageError):
    """A client's file was changed by others; the text names the change. Nothing was written."""

    code = "config_changed"
