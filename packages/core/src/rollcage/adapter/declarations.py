"""What is declared of a framework's tools, and how that is told from what they say themselves."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from rollcage.adapter.exposing import expose
from rollcage.contract.contract import Contract, Effect
from rollcage.errors import ContractError
from rollcage.session.session import Session

__all__ = [
    "Declarations",
    "check_names",
    "declare",
    "declared_contract",
    "guard_each",
    "type_hints",
]

T = TypeVar("T")

Declarations = Mapping[str, Contract | Mapping[str, Any]]
"""By a tool's name: its contract, or the fields of one that are to be declared."""

_FIELDS: Final = frozenset(f.name for f in dataclasses.fields(Contract) if f.init) - {
    "framework", "framework_raises", "function",
}  # fmt: skip
_LISTS: Final[dict[str, Callable[[Any], Any]]] = {
    "secret": lambda value: frozenset([value] if isinstance(value, str) else value),
    "raises": lambda value: (value,) if isinstance(value, type) else tuple(value),
    "unknown_on": lambda value: (value,) if isinstance(value, type) else tuple(value),
    "permissions": tuple,
    "labels": lambda value: (value,) if isinstance(value, str) else tuple(value),
}


def declared_contract(body: Any) -> Contract | None:
    """What `@rollcage.tool` attached to a function.

    Raises:
        ContractError: it is a stream, which no framework takes from a tool.
    """
    found = getattr(body, "__rollcage_contract__", None)
    if not isinstance(found, Contract):
        return None
    if found.streams:
        raise ContractError(
            f"{found.name} is a generator, and a framework takes one value from a tool: declare a "
            f"function that collects its chunks, and returns them"
        )
    return found


def declare(
    said: Callable[[], Contract],
    *,
    framework: str,
    effect: Any = None,
    declared: Contract | Mapping[str, Any] | None = None,
    raises: tuple[type[Exception], ...] = (),
    body: Callable[..., Any] | None = None,
) -> Contract:
    """The contract of a framework's tool: what it says itself, then what is declared of it.

    Args:
        said: makes the contract that the tool itself says; not asked where a whole one is declared.
        framework: whose tool it is.
        effect: overrides the effect; None leaves it.
        declared: a whole contract, or fields of one.
        raises: exceptions of the framework's own that come back as themselves too.
        body: the function that the tool calls; where a facade is to give the tool, its code is a
            part of what was approved. A whole contract that is declared says that itself.

    Raises:
        ContractError: the declaration can't be used.
    """
    whole = isinstance(declared, Contract)
    if isinstance(declared, Contract):
        contract = declared
    else:
        contract = said()
        fields = dict(declared or {})
        unknown = fields.keys() - _FIELDS
        if unknown:
            known = ", ".join(sorted(_FIELDS))
            raise ContractError(
                f"{contract.name}: {sorted(unknown)} can't be declared; what can: {known}"
            )
        fields = {name: _LISTS.get(name, lambda v: v)(each) for name, each in fields.items()}
        contract = dataclasses.replace(
            contract, **fields, function=contract.function or body, annotated=False
        )
        whole = "returns" in fields
    if whole and contract.on_drift is None and not contract.annotated:  # it is said to be one
        contract = dataclasses.replace(contract, on_drift="error")
    if effect is not None:
        contract = dataclasses.replace(contract, effect=effect)
    return dataclasses.replace(contract, framework_raises=raises, framework=framework)


def guard_each(
    tools: Sequence[T],
    session: Session,
    effects: Mapping[str, Effect] | None,
    contracts: Declarations | None,
    *,
    framework: str,
    kinds: type | tuple[type, ...],
    instead: str,
    guarding: Callable[[T], Session | None],
    guard: Callable[[T, Effect | None, Contract | Mapping[str, Any] | None], T],
) -> list[T]:
    """What each adapter's `guard_tools` does; a tool that this session guards already stays.

    Args:
        tools: the framework's own.
        session: is to guard them.
        effects: by a tool's name.
        contracts: by a tool's name.
        framework: how it calls itself, for the error's message.
        kinds: the classes of the framework's tools.
        instead: what to do with something else, for the same.
        guarding: gives the session that guards a tool.
        guard: guards a tool, with what is declared of it.

    Raises:
        ContractError: a name that no tool has, something that is no tool, or a tool that another
            session guards.
        ToolRefused: a tool that the session's facade does not give.
    """
    effects, contracts = effects or {}, contracts or {}
    for tool in tools:
        if not isinstance(tool, kinds):
            raise ContractError(f"{tool!r} is no tool of {framework}: {instead}")
    names = [str(getattr(tool, "name")) for tool in tools]  # noqa: B009 - all of them have it
    check_names(names, effects=effects, contracts=contracts)
    guarded: list[T] = []
    for name, tool in zip(names, tools, strict=True):
        own, effect, declared = guarding(tool), effects.get(name), contracts.get(name)
        if own is None:
            guarded.append(guard(tool, effect, declared))
        elif own is session and effect is None and declared is None:
            guarded.append(tool)
        else:
            whose = "this" if own is session else "another"
            raise ContractError(
                f"{name} is guarded by {whose} session already: guard the original, and declare it "
                f"there"
            )
    expose(session, guarded)
    return guarded


def check_names(tools: Iterable[str], **mappings: Mapping[str, Any]) -> None:
    """Refuse declarations of tools that do not exist.

    Args:
        tools: the names of those that do.
        **mappings: by the argument's name, what was declared by a tool's name.

    Raises:
        ContractError: names what is unknown, and what is known.
    """
    known = set(tools)
    for what, mapping in mappings.items():
        unknown = sorted(mapping.keys() - known)
        if unknown:
            listed = ", ".join(sorted(known)) or "none"
            raise ContractError(f"{what}= names {', '.join(unknown)}; the tools are: {listed}")


_UNRESOLVED: Final = (NameError, TypeError, AttributeError, SyntaxError)


def type_hints(body: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of a function, a partial one or an object that can be called.

    Resolved, as far as they can be: one that can't is left out, not all of them.
    """
    function: Any = body
    while isinstance(function, functools.partial):
        function = function.func
    if not hasattr(function, "__annotations__"):
        function = type(function).__call__
    try:
        return typing.get_type_hints(function, include_extras=True)
    except _UNRESOLVED:
        pass
    hints: dict[str, Any] = {}
    for name, annotation in getattr(function, "__annotations__", {}).items():
        one = types.SimpleNamespace(__annotations__={name: annotation})
        with contextlib.suppress(*_UNRESOLVED):
            around = getattr(function, "__globals__", None)
            hints |= typing.get_type_hints(one, around, include_extras=True)
    return hints
