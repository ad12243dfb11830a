"""Hold a tool's undo as data: compensating calls, observed states, and the results of probes.

A plan names tools that were declared with `@rollcage.tool`, never closures: any process with the
same tools can carry it out, on another machine too (DESIGN §6).
"""

from __future__ import annotations

import dataclasses
import functools
import weakref
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from types import EllipsisType
from typing import Any, Final, NamedTuple, Protocol, TypeGuard, cast

import orjson

from rollcage.contract.contract import Contract, plain_body
from rollcage.errors import ContractError, ToolMissing, Unencodable
from rollcage.fingerprint.identity import jcs
from rollcage.values.codec import TAG, encode
from rollcage.values.decoding import decode
from rollcage.values.hiding import STAND_IN, Seal, hidden, keyed_hash

__all__ = [
    "NOTHING",
    "Compensation",
    "Declarations",
    "DidNotHappen",
    "Digest",
    "Digests",
    "Happened",
    "KnownTools",
    "Observed",
    "PlannedCall",
    "State",
    "Tool",
    "ToolSource",
    "arguments_of",
    "compensate",
    "declared_tools",
    "differing",
    "keyed_digest",
    "plan_from",
    "recorded_states",
    "states_of",
]  # fmt: skip

_FIELDS: Final = (
    64  # fields of a state that are compared one by one; a larger state is compared as a whole
)


@dataclasses.dataclass(frozen=True, slots=True)
class Compensation:
    """Describe a call that undoes an effect; made by `compensate`.

    Attributes:
        tool: the name of a declared tool.
        arguments: the arguments.
        function: the tool itself, if given instead of a name.
    """

    tool: str
    arguments: Mapping[str, Any]
    function: Callable[..., Any] | None = dataclasses.field(default=None, compare=False, repr=False)


def compensate(tool: Callable[..., Any] | str, /, **arguments: Any) -> Compensation:
    """Describe a call that undoes an effect; to be returned by a tool's `undo` function.

    Args:
        tool: a function declared with `@rollcage.tool`, or the name of one.
        **arguments: the arguments. They are kept in the trace, so none can be a secret.

    Raises:
        ContractError: `tool` is not a declared tool.
    """
    if isinstance(tool, str):
        return Compensation(tool, arguments)
    contract = getattr(tool, "__rollcage_contract__", None)
    if not isinstance(contract, Contract):
        name = getattr(tool, "__name__", repr(tool))
        raise ContractError(f"{name} can't compensate: declare it with @rollcage.tool")
    return Compensation(contract.name, arguments, tool)


@dataclasses.dataclass(frozen=True, slots=True)
class Happened:
    """Answer a probe: the call was performed, with this result."""

    result: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class DidNotHappen:
    """Answer a probe: the call was not performed."""


# --- tools by name -------------------------------------------------------------------------------


class Tool(NamedTuple):
    """Hold a declared tool; `body` is None if only its contract is known."""

    contract: Contract
    body: Callable[..., Any] | None


ToolSource = Callable[..., Any] | Contract
"""A function declared with `@rollcage.tool`, or the contract of a framework's tool."""

Declarations = dict[str, dict[str, weakref.ref[Callable[..., Any]]]]

declared_tools: Final[Declarations] = {}
"""The functions declared with `@rollcage.tool` in this process, by the tool's name.

Then by the place in the source, so that a repeated declaration replaces the first.
"""


class KnownTools:
    """Find the tools that plans can name: given tools, or all tools declared in this process.

    Args:
        declared: the declared tools, if not the functions of `@rollcage.tool`.
        tools: functions declared with `@rollcage.tool`, or contracts; the keys of a mapping are
            additional names. With `...` among them, all tools declared in this process can be named
            as well; of two tools of the same name and version, the given one counts.

    Raises:
        ContractError: an entry is neither.
    """

    def __init__(
        self,
        tools: Mapping[str, ToolSource] | Iterable[ToolSource | EllipsisType] | None = None,
        declared: Declarations | None = None,
    ) -> None:
        self._declared = declared_tools if declared is None else declared
        self._own: dict[str, list[Tool]] = {}
        self._alone = tools is not None
        if isinstance(tools, Mapping):
            for name, each in cast("Mapping[str, ToolSource]", tools).items():
                self.add(each, name)
            return
        for every in tools or ():
            if isinstance(every, EllipsisType):
                self._alone = False
            else:
                self.add(every)

    def add(self, source: ToolSource, name: str | None = None) -> None:
        """Add a tool; of several with one name and version, none is found."""
        tool = _tool_of(source)
        for called in {tool.contract.name, name or tool.contract.name}:
            self._put(called, tool)

    def join(self, other: KnownTools) -> None:
        """Add the tools that were given to a nested session."""
        for name, tools in other._own.items():
            for each in tools:
                self._put(name, each)

    def _put(self, name: str, tool: Tool) -> None:
        known = self._own.setdefault(name, [])
        for each in known:
            if _undoes_alike(each.contract, tool.contract):
                if tool.body is None and each.body is not None:
                    return  # a contract alone does not hide the tool itself
                known.remove(each)
                break
        known.append(tool)

    def find(self, name: str, version: str | None = None, *, callable_: bool = False) -> Tool:
        """Return the tool with a name, and with a version if given.

        Raises:
            ToolMissing: there is no such tool, or another version, or more than one.
        """
        found = self._own.get(name, [])
        if not self._alone and not any(_fits(each, version, callable_) for each in found):
            alive = [made() for made in self._declared.get(name, {}).values()]
            found = [*found, *(_tool_of(each) for each in alive if each is not None)]
        fitting = [each for each in found if _fits(each, version, callable_)]
        if len(fitting) == 1:
            return fitting[0]
        if fitting:
            raise ToolMissing(
                f"there are {len(fitting)} tools named {name!r} here, and a step does not tell "
                f"which of them it is of: choose one with tools=[…], or give them versions",
                name,
            )
        versions = sorted({repr(each.contract.version) for each in found})
        if version is not None and versions:
            message = f"tool {name!r} is declared as version {', '.join(versions)}, not {version!r}"
        elif found:
            message = f"only the contract of tool {name!r} is known: pass its function in tools="
        else:
            message = f"no tool named {name!r} is declared: pass its function in tools="
        raise ToolMissing(message, name)


def _undoes_alike(one: Contract, other: Contract) -> bool:
    """Tell whether two contracts are of one tool, which a factory may have made twice."""
    return one is other or (one.version == other.version and _codes(one) == _codes(other))


def _codes(contract: Contract) -> list[Any]:
    """Return the code of a tool's own functions, without their closures and instances."""
    found: list[Any] = []
    for each in (contract.function, contract.undo, contract.observe, contract.probe):
        function: Any = each
        while isinstance(function, functools.partial):
            function = function.func
        function = getattr(function, "__func__", function)
        found.append(getattr(function, "__code__", type(function)))
    return found


def _fits(tool: Tool, version: str | None, callable_: bool) -> bool:  # noqa: FBT001 - private
    return (version is None or tool.contract.version == version) and (
        tool.body is not None or not callable_
    )


def _tool_of(source: object) -> Tool:
    if isinstance(source, Contract):
        return Tool(source, None)
    contract = getattr(source, "__rollcage_contract__", None)
    if not isinstance(contract, Contract) or not callable(source):
        raise ContractError(f"{source!r} is not a tool: declare it with @rollcage.tool")
    return Tool(contract, plain_body(source))


# --- plans ---------------------------------------------------------------------------------------


class PlannedCall(NamedTuple):
    """Hold a compensating call as in the trace: a tool's name and version, canonical arguments."""

    name: str
    version: str
    args: dict[str, Any]

    def as_data(self) -> dict[str, Any]:
        """Return the form in the trace."""
        return {"name": self.name, "version": self.version, "args": self.args}


def plan_from(
    made: object, tools: KnownTools, seal: Seal, allow: Callable[[Tool], None] = lambda _: None
) -> list[PlannedCall] | None:
    """Return the result of a tool's `undo` as data; None if the call can't be undone.

    `allow` refuses a tool by raising.

    Raises:
        ContractError: the result is no list of compensations, or one can't be carried out later.
        RollcageError: the arguments of a call do not match its tool's schema.
    """
    if made is None:
        return None
    if not isinstance(made, list | tuple):
        raise ContractError(f"undo returned a {type(made).__name__}, not a list of compensations")
    return [_planned(each, tools, seal, allow) for each in cast("list[object]", made)]


def _planned(
    each: object, tools: KnownTools, seal: Seal, allow: Callable[[Tool], None]
) -> PlannedCall:
    if not isinstance(each, Compensation):
        raise ContractError(
            f"undo returned {each!r}, not a compensation: create it with compensate()"
        )
    if each.function is not None:
        tools.add(each.function)
        tool = _tool_of(each.function)
    else:
        tool = tools.find(each.tool, callable_=True)
    allow(tool)
    contract = tool.contract
    if contract.streams:
        raise ContractError(
            f"{contract.name} can't compensate: it is a generator, and nothing would read its "
            f"chunks"
        )
    bound = contract.bind(each.arguments, seal)
    if contract.secret & bound.canonical.keys() or holds_secret(bound.canonical):
        raise ContractError(
            f"an argument of the compensation {contract.name} is a secret, and a plan is kept in "
            f"the trace: let the tool look it up itself"
        )
    again = contract.bind(arguments_of(bound.canonical), seal)
    if again.digest_input != bound.digest_input:
        raise ContractError(
            f"the arguments of the compensation {contract.name} can't be restored from the trace "
            f"as they are"
        )
    copied: dict[str, Any] = orjson.loads(bound.digest_input)
    return PlannedCall(contract.name, contract.version, copied)


def arguments_of(canonical: Mapping[str, Any]) -> dict[str, Any]:
    """Return recorded arguments as values, for a contract to validate again."""
    return {name: decode(value) for name, value in canonical.items()}


def holds_secret(encoded: object) -> bool:
    """Tell whether an encoded value contains a sealed secret."""
    if isinstance(encoded, dict):
        mapping = cast("dict[str, object]", encoded)
        return mapping.get(TAG) == "secret" or any(map(holds_secret, mapping.values()))
    if isinstance(encoded, str):
        return STAND_IN.search(encoded) is not None
    return isinstance(encoded, list) and any(map(holds_secret, cast("list[object]", encoded)))


# --- states --------------------------------------------------------------------------------------

_KEYED: Final = "hmac:"
"""The prefix of the digest of a state with a secret, whose plain digest could be guessed."""


class State:  # noqa: PLW1641 - it equals digests of several forms, and has no hash
    """Hold a state with its value, and not by its digest only.

    It equals an equal state, and each digest of it, keyed or not.
    """

    __slots__ = ("_seal", "_value")

    def __init__(self, value: Any, seal: Seal) -> None:
        self._value, self._seal = value, seal

    def __eq__(self, other: object) -> bool:
        if isinstance(other, State):
            return jcs(self._value) == jcs(other._value)
        if isinstance(other, str) and other.startswith(_KEYED):
            return _keyed(self._value, self._seal) == other
        if isinstance(other, dict):
            return self.fields == other
        return _digest(self._value) == other

    @property
    def fields(self) -> dict[str, State] | None:
        """Return the fields, if the state has few enough."""
        if not _has_fields(self._value):
            return None
        return {name: State(value, self._seal) for name, value in self._value.items()}


Digest = str | dict[str, str]
"""The SHA-256 of a state (hex), or of each field; `hmac:` and an HMAC for a quoted secret."""
Digests = Mapping[str, Digest | State]
"""By resource: the SHA-256 (hex) of its state, or of each of its fields."""


class Sealed(Protocol):
    """Own a seal, which may be replaced once there is a secret."""

    seal: Seal


@dataclasses.dataclass(frozen=True, slots=True)
class Observed:
    """Hold the result of a tool's `observe`, encoded and copied: the states by resource.

    Attributes:
        shown: the states in the form for the record.
        states: the true states.
        keyed: the digests of the states in which a secret is concealed.
    """

    shown: dict[str, Any]
    states: dict[str, State]
    keyed: dict[str, Digest]

    @property
    def digests(self) -> dict[str, Digest]:
        """Return the digests for the record."""
        return {name: self.keyed.get(name) or _digest(value) for name, value in self.shown.items()}


def states_of(observed: object, sealed: Sealed) -> Observed:
    """Return the result of a tool's `observe`, encoded and copied: the states by resource.

    Raises:
        ContractError: it is not a mapping with text keys, or a state has no encoding.
    """
    if not isinstance(observed, Mapping):
        raise ContractError(
            f"observe returned a {type(observed).__name__}, not a mapping by resource"
        )
    values: dict[str, Any] = {}
    for resource, state in cast("Mapping[object, object]", observed).items():
        if not isinstance(resource, str):
            raise ContractError(f"observe names a resource by {resource!r}, which is not a text")
        try:
            values[resource] = orjson.loads(jcs(encode(state, sealed.seal, path=resource)))
        except (Unencodable, ValueError) as error:
            raise ContractError(f"observe returned a state that has no encoding: {error}") from None
    seal = sealed.seal  # a secret in a state may have changed the seal
    shown: dict[str, Any] = {}
    keyed: dict[str, Digest] = {}
    for resource, value in values.items():
        name = hidden(resource, seal).value
        if name != resource:
            raise ContractError(
                f"observe names a resource by a text that quotes a secret: {name!r}. Names are "
                f"recorded: name it by something else"
            )
        shown[resource] = hidden(value, seal).value
        if shown[resource] != value:
            keyed[resource] = keyed_digest(value, shown[resource], seal)
    return Observed(shown, {name: State(value, seal) for name, value in values.items()}, keyed)


def recorded_states(
    shown: Mapping[str, Any], keyed: Mapping[str, Digest], seal: Seal
) -> dict[str, Digest | State]:
    """Return recorded states, and the digests of the states in which a secret is concealed."""
    return {name: keyed.get(name) or State(value, seal) for name, value in shown.items()}


def keyed_digest(value: Any, shown: Any, seal: Seal) -> Digest:
    """Return the digest of a state; a keyed digest for the parts with a concealed secret."""
    if not (_has_fields(value) and _has_fields(shown) and shown.keys() == value.keys()):
        return _keyed(value, seal)
    return {
        name: sha256(jcs(each)).hexdigest() if shown[name] == each else _keyed(each, seal)
        for name, each in value.items()
    }


def is_keyed(digests: Digests | None) -> bool:
    """Tell whether a secret is concealed in a recorded state."""
    return any(
        isinstance(each, str) and each.startswith(_KEYED)
        for state in (digests or {}).values()
        for each in (state.values() if isinstance(state, dict) else (state,))
    )


def _keyed(value: Any, seal: Seal) -> str:
    return _KEYED + keyed_hash(seal, f"state:{jcs(value).decode()}")


def _has_fields(state: Any) -> TypeGuard[dict[str, Any]]:
    return isinstance(state, dict) and TAG not in state and 0 < len(state) <= _FIELDS


def _digest(state: Any) -> Digest:
    if _has_fields(state):
        return {name: sha256(jcs(value)).hexdigest() for name, value in state.items()}
    return sha256(jcs(state)).hexdigest()


NOTHING: Final = _digest(None)
"""The digest of a missing resource."""


def differing(one: Digests, other: Digests) -> dict[str, list[str]]:
    """Return the resources whose states differ, each with the differing fields if known."""
    found: dict[str, list[str]] = {}
    for resource in sorted({*one, *other}):
        was, now = one.get(resource), other.get(resource)
        if was == now:
            continue
        mine, its = _fields_of(was), _fields_of(now)
        fields: list[str] = []
        if mine is not None and its is not None:
            fields = sorted(n for n in {*mine, *its} if mine.get(n) != its.get(n))
        found[resource] = fields
    return found


def _fields_of(state: Digest | State | None) -> Mapping[str, str | State] | None:
    if isinstance(state, State):
        return state.fields
    return state if isinstance(state, dict) else None
