"""The declarations of a framework's tools, besides the tools' own."""

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
    "as_tools makes one of a function declared with @rollcage.tool; a tool that the provider runs "
    "can't be guarded"
)

Declarations = Mapping[str, Contract | Mapping[str, Any]]
"""By a tool's name: its contract, or the declared fields of it."""

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
    """Return the contract that `@rollcage.tool` attached to a function.

    Raises:
        ContractError: the function is a stream, which no framework accepts from a tool.
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
    """Return the attached contract of a function, which has to have one: for `as_tools`.

    Raises:
        ContractError: the function has none.
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
    """Return the contract of a framework's tool around a function, which may be declared.

    Args:
        tool: an object with a `name` and a `description`.
        body: the function.
        parameters: returns the schema of the model's arguments, from the contract that
            `@rollcage.tool` made of the body, if there is one.
        framework: see `declare`.
        effect: see `declare`.
        declared: see `declare`.
        returns: returns the type of the results; by default the body's annotation.
        raises: see `declare`.

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
    """Return the contract of a framework's tool: its own, overridden by the declaration.

    Args:
        own_contract: makes the tool's own contract; not called if a whole one is
            declared.
        framework: the framework of the tool.
        effect: overrides the effect; None leaves it.
        declared: a whole contract, or fields of one.
        raises: further exceptions, of the framework's own, that are restored.
        body: the tool's function; if a facade gives the tool, the function's code is a
            part of the approved form. A whole declared contract names its own.

    Raises:
        ContractError: the declaration can't be used.
    """
    # All at once: each copy of a contract is checked, and makes its validators again.
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
        # The output contract of a declared tool counts; a framework's own annotations don't.
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
    """Guard tools for an adapter's `guard_tools`; a tool that this session guards stays.

    Args:
        tools: the framework's own tools.
        session: the session that guards them.
        effects: by a tool's name.
        contracts: by a tool's name.
        framework: its name, for the error's message.
        kinds: the classes of the framework's tools.
        instead: the advice for any other object, for the error's message.
        guard: guards a tool, with its declaration.

    Raises:
        ContractError: an unknown name, an object that is no tool, or a tool that another
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
        tools: the names of the existing tools.
        **mappings: by the argument's name, the declarations by a tool's name.

    Raises:
        ContractError: names the unknown and the known tools.
    """
    known = set(tools)
    for what, mapping in mappings.items():
        unknown = sorted(mapping.keys() - known)
        if unknown:
            listed = ", ".join(sorted(known)) or "none"
            raise ContractError(f"{what}= names {', '.join(unknown)}; the tools are: {listed}")


_UNRESOLVED: Final = (NameError, TypeError, AttributeError, SyntaxError)


def type_hints(body: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations of a function, a partial function or a callable object.

    They are resolved as far as possible: only an unresolvable one is left out.
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
