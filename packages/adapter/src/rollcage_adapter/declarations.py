"""What is declared of a framework's tools, kept apart from what they say themselves."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import pydantic
from rollcage import Contract, Session
from rollcage.errors import ContractError
from rollcage.session.adapters import Effect

from rollcage_adapter.exposing import expose
from rollcage_adapter.guards import guarding

__all__ = [
    "Declarations",
    "check_names",
    "declare",
    "declare_tool",
    "declared_contract",
    "guard_each",
    "required_contract",
    "type_hints",
]

T = TypeVar("T")

_INSTEAD: Final = (
    "as_tools makes one of a function declared with @rollcage.tool; what a provider runs itself "
    "can't be guarded"
)

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


def required_contract(function: Any) -> Contract:
    """The same, where there has to be one: for `as_tools`.

    Raises:
        ContractError: there is none.
    """
    contract = declared_contract(function)
    if contract is None:
        raise ContractError(f"{function!r} is not declared: decorate it with @rollcage.tool")
    return contract


def declare_tool(
    tool: Any,
    body: Callable[..., Any],
    parameters: Callable[[Contract | None], type[pydantic.BaseModel] | Mapping[str, Any]],
    *,
    framework: str,
    effect: Any = None,
    declared: Contract | Mapping[str, Any] | None = None,
    returns: Callable[[], Any] | None = None,
    raises: tuple[type[Exception], ...] = (),
) -> Contract:
    """The contract of a framework's tool around a function, which may be a declared one.

    Args:
        tool: has a `name` and a `description`.
        body: what it calls.
        parameters: gives the schema of the arguments that a model writes, from the contract that
            `@rollcage.tool` made of the body, if it did.
        framework: see `declare`, and so the others.
        effect: the same.
        declared: the same.
        returns: gives the type of the results; by default it is the body's annotation.
        raises: the same.

    Raises:
        ContractError: the declaration can't be used.
    """

    def own_contract() -> Contract:
        own = declared_contract(body)
        schema = parameters(own)
        if own is not None:
            return dataclasses.replace(own, parameters=schema)
        result = type_hints(body).get("return") if returns is None else returns()
        return Contract(
            name=tool.name, description=tool.description, parameters=schema, returns=result
        )

    return declare(
        own_contract,
        framework=framework,
        effect=effect,
        declared=declared,
        raises=raises,
        body=body,
    )


def declare(
    own_contract: Callable[[], Contract],
    *,
    framework: str,
    effect: Any = None,
    declared: Contract | Mapping[str, Any] | None = None,
    raises: tuple[type[Exception], ...] = (),
    body: Callable[..., Any] | None = None,
) -> Contract:
    """The contract of a framework's tool: what it says itself, then what is declared of it.

    Args:
        own_contract: makes the contract that the tool has of itself; not called if a whole one is
            declared.
        framework: whose tool it is.
        effect: overrides the effect; None leaves it.
        declared: a whole contract, or fields of one.
        raises: exceptions of the framework's own that come back as themselves too.
        body: the function that the tool calls; where a facade is to give the tool, its code is a
            part of what was approved. A whole contract that is declared says that itself.

    Raises:
        ContractError: the declaration can't be used.
    """
    # All at once: each copy of a contract is checked, and makes its validators anew.
    changes: dict[str, Any] = {"framework_raises": raises, "framework": framework}
    if isinstance(declared, Contract):
        contract, whole = declared, True
        annotated, on_drift = contract.annotated, contract.on_drift
    else:
        contract = own_contract()
        fields = dict(declared or {})
        unknown = fields.keys() - _FIELDS
        if unknown:
            known = ", ".join(sorted(_FIELDS))
            raise ContractError(
                f"{contract.name}: {sorted(unknown)} are not options of a tool; those are: {known}"
            )
        changes |= {name: _LISTS.get(name, lambda v: v)(each) for name, each in fields.items()}
        # The output contract of a tool of ours counts; annotations of the framework's own do not.
        ours, stated = contract.function is not None, "returns" in fields
        annotated = ours and contract.annotated and not stated
        on_drift = fields.get("on_drift", contract.on_drift)
        changes |= {"function": contract.function or body, "annotated": annotated}
        whole = ours or stated
    if whole and on_drift is None and not annotated:  # a declared type
        changes["on_drift"] = "error"
    if effect is not None:
        changes["effect"] = effect
    return dataclasses.replace(contract, **changes)


def guard_each(
    tools: Sequence[T],
    session: Session,
    effects: Mapping[str, Effect] | None,
    contracts: Declarations | None,
    *,
    framework: str,
    kinds: type | tuple[type, ...],
    instead: str = _INSTEAD,
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
        guard: guards a tool, with what is declared of it.

    Raises:
        ContractError: a name that no tool has, something that is no tool, or a tool that another
            session guards.
        ToolRefused: a tool that the session's facade does not give.
    """
    effects, contracts = effects or {}, contracts or {}
    for tool in tools:
        if not isinstance(tool, kinds):
            raise ContractError(f"{tool!r} is not a tool of {framework}: {instead}")
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
