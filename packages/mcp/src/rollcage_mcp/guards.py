"""The guards that a command line names."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from rollcage.errors import PackageMissing

__all__ = ["named_guards"]


def named_guards(
    *, policy: str | os.PathLike[str] | None = None, facade: str | None = None
) -> tuple[Any, ...]:
    """Return the guards of a policy's file and of a facade's name, for `gate=`.

    Raises:
        PolicyInvalid: the policy's file can't be used.
        PackageMissing: the package that reads it is not installed.
    """
    found: list[Any] = []
    if policy is not None:
        try:
            from rollcage_policy import Policy
        except ImportError as error:
            raise _missing("policy", f"policy={os.fspath(policy)!r}", error) from error
        found.append(Policy.load(Path(policy)))
    if facade is not None:
        try:
            from rollcage_governance import Facade
        except ImportError as error:
            raise _missing("governance", f"facade={facade!r}", error) from error
        found.append(Facade(facade))
    return tuple(found)


def _missing(extra: str, what: str, error: ImportError) -> PackageMissing:
    package = f"rollcage_{extra}"
    if error.name != package:  # the package is installed; one of its libraries is not
        raise error
    return PackageMissing(
        f"{what} needs rollcage-{extra}, which is not installed: pip install 'rollcage[{extra}]'",
        extra,
    )
