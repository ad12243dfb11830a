"""What is given by the words that name it: a policy's file, a facade's name, what a trace holds.

Policies and facades come with packages of their own; the error without one names it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rollcage.errors import PackageMissing
from rollcage.gate.guard import FacadeGuard, Given, NamedFacade, PolicyGuard
from rollcage.gate.verdict import Rule
from rollcage.store.protocol import Store

__all__ = ["all_given", "policy_of", "recorded_facade"]


def all_given(
    gate: Iterable[Given],
    *,
    policy: PolicyGuard | str | os.PathLike[str] | None,
    facade: str | None,
    rules: Iterable[Rule],
) -> tuple[Given, ...]:
    """All that a session was given to decide by, in order; what is named is read.

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
    """A policy, or the one in a file.

    Raises:
        PolicyInvalid: the file can't be used.
        PackageMissing: what reads it is not installed.
    """
    if isinstance(given, PolicyGuard):
        return given
    try:
        from rollcage_policy import Policy
    except ImportError as error:
        raise _missing("policy", f"policy={os.fspath(given)!r}", error) from error
    return Policy.load(Path(given))


def _facade(name: str) -> NamedFacade:
    try:
        from rollcage_governance import Facade
    except ImportError as error:
        raise _missing("governance", f"facade={name!r}", error) from error
    return Facade(name)


def recorded_facade(store: Store, data: Mapping[str, Any]) -> FacadeGuard:
    """The facade that a run was given, by its trace.

    Raises:
        PackageMissing: nothing says here what was approved, so nothing can be undone.
    """
    try:
        from rollcage_governance import Registry
    except ImportError as error:
        raise _missing("governance", f"the run's facade {data['name']!r}", error) from error
    return Registry(store).recorded_facade(dict(data))


def _missing(extra: str, what: str, error: ImportError) -> PackageMissing:
    package = f"rollcage_{extra}"
    if error.name != package:  # it is there; something that it needs is not
        raise error
    return PackageMissing(
        f"{what} needs rollcage-{extra}, which is not installed: pip install 'rollcage[{extra}]'",
        extra,
    )
