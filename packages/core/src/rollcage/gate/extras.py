"""Loads policies and facades that are given by file, by name, or by a trace.

They come with packages of their own; if one is missing, the error names it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rollcage.errors import PackageMissing
from rollcage.gate.guard import Given, PolicyGuard
from rollcage.gate.verdict import Rule

__all__ = ["all_given", "policy_of", "recorded_facade"]


def all_given(
    gate: Iterable[Given],
    *,
    policy: PolicyGuard | str | os.PathLike[str] | None,
    facade: str | None,
    rules: Iterable[Rule],
) -> tuple[Given, ...]:
    """All guards of a session, in order; policies given by file and facades by name are loaded.

    Raises:
        PolicyInvalid: the policy's file can't be used.
        PackageMissing: the package that reads it is not installed.
    """
    named: list[Given] = []
    if policy is not None:
        named.append(policy_of(policy))
    if facade is not None:
        named.append(_facade(facade))
    return *named, *gate, *rules


def policy_of(given: PolicyGuard | str | os.PathLike[str]) -> PolicyGuard:
    """A policy, loaded if it is given by its file.

    Raises:
        PolicyInvalid: the file can't be used.
        PackageMissing: the package that reads it is not installed.
    """
    if isinstance(given, PolicyGuard):
        return given
    try:
        from rollcage_policy import Policy
    except ImportError as error:
        raise _missing("policy", f"policy={os.fspath(given)!r}", error) from error
    return Policy.load(Path(given))


def _facade(name: str) -> Any:
    try:
        from rollcage_governance import Facade
    except ImportError as error:
        raise _missing("governance", f"facade={name!r}", error) from error
    return Facade(name)


def recorded_facade(data: Mapping[str, Any]) -> Any:
    """Return what holds a session to the facade that an attempt's line tells of.

    Raises:
        PackageMissing: without the package nothing is known to be approved, so nothing is undone.
    """
    try:
        from rollcage_governance import Facade
    except ImportError as error:
        raise _missing("governance", f"the run's facade {data['name']!r}", error) from error
    return Facade.recorded(data)


def _missing(extra: str, what: str, error: ImportError) -> PackageMissing:
    package = f"rollcage_{extra}"
    if error.name != package:  # it is installed; something that it needs is not
        raise error
    return PackageMissing(
        f"{what} needs rollcage-{extra}, which is not installed: pip install 'rollcage[{extra}]'",
        extra,
    )
