"""Policies and facades by the words that name them: a file, a name, what a trace holds."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

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
    """All that a session was given to decide by, in order; what is named is read."""
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
    """
    if isinstance(given, PolicyGuard):
        return given
    from rollcage.gate.policy import Policy

    return Policy.load(Path(given))


def _facade(name: str) -> NamedFacade:
    from rollcage.gate.registry import Facade

    return Facade(name)


def recorded_facade(store: Store, data: Mapping[str, Any]) -> FacadeGuard:
    """The facade that a run was given, by its trace."""
    from rollcage.gate.registry import Registry

    return Registry(store).recorded_facade(dict(data))
