"""What goes wrong with a client's configuration."""

from __future__ import annotations

from rollcage_cli.errors import UsageError

__all__ = ["ConfigChanged", "ConfigInvalid"]


class ConfigInvalid(UsageError):
    """A client's configuration can't be used; the text says why. Nothing was written."""

    code = "config_invalid"


class ConfigChanged(UsageError):
    """Somebody else has changed a client's file; the text says what. Nothing was written."""

    code = "config_changed"
