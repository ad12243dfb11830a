"""What a tool declares of its undoing, as data: compensating calls, states, and what a probe says.

A plan names tools that were declared with `@rollcage.tool`, never closures: whoever has the same
tools can carry it out, in another process or on another machine (DESIGN §6).
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from typing import Any, Final, NamedTuple, cast

import orjson

from rollcage.contract.contract import Contract
from rollcage.errors import ContractError, ToolMissing, Unencodable
from rollcage.fingerprint.identity import jcs
from rollcage.values.codec import TAG, encode
from rollcage.values.decoding import decode
from rollcage.values.hiding import STAND_IN, Seal, hidden

__all__ = [
    "Captured",
    "Compensation",
    "DidNotHappen",
    "Digests",
    "Happened",
    "KnownTools",
    "PlannedCall",
    "Tool",
    "ToolSource",
    "arguments_of",
    "compensate",
    "declared_tools",
    "differing",
    "digests_of",
    "plan_from",
    "states_of",
]  # fmt: skip

_FIELDS: Final = (
    64  # of a state whose fields are distinguished; of a larger one, only that it differs
)


@dataclasses.dataclass(frozen=True, slots=True)
class Compensation:
    """A call that undoes an effect; made by `compensate`.

    Attributes:
        tool: the name of a declared tool.
        arguments: its arguments.
        function: the tool itself, where that was given.
    """

    tool: str
    arguments: Mapping[str, Any]
    function: Callable[..., Any] | None = dataclasses.field(default=None, compare=False, repr=False)


def compensate(tool: Callable[..., Any] | str, /, **arguments: Any) -> Compensation:
    """A call that undoes an effect: for what a tool declares as its `undo`.

    Args:
        tool: a function declared with `@rollcage.tool`, or the name of one.
        **arguments: its arguments. They are kept in the trace, so none of them can be a secret.

    Raises:
        ContractError: it is no declared tool.
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
    """What a probe says of a call that was performed, with the result that it gave."""

    result: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class DidNotHappen:
    """What a probe says of a call that was not performed."""


# --- tools by name -------------------------------------------------------------------------------


class Tool(NamedTuple):
    """A declared tool; `body` is None where only its contract is known."""

    contract: Contract
    body: Callable[..., Any] | None


ToolSource = Callable[..., Any] | Contract
"""A function declared with `@rollcage.tool`, or the contract of a framework's tool."""

declared_tools: Final[dict[str, dict[str, weakref.ref[Callable[..., Any]]]]] = {}
"""Every function of this process that was declared with `@rollcage.tool`: by its tool's name, then
by where it was written, so that one that is declared anew takes its own place."""


class KnownTools:
    """The tools that plans can name: those that are given, else those that this process declared.

    Args:
        tools: functions declared with `@rollcage.tool`, or contracts; a mapping's own keys are
            further names of them.

    Raises:
        ContractError: something else is among them.
    """

    def __init__(
        self, tools: Mapping[str, ToolSource] | Iterable[ToolSource] | None = None
    ) -> None:
        self._own: dict[str, list[Tool]] = {}
        self._alone = tools is not None
        if isinstance(tools, Mapping):
            for name, each in cast("Mapping[str, ToolSource]", tools).items():
                self.add(each, name)
        else:
            for each in tools or ():
                self.add(each)

    def add(self, source: ToolSource, name: str | None = None) -> None:
        """Take a tool in; the latest of a name and version counts."""
        tool = _tool_of(source)
        for called in {tool.contract.name, name or tool.contract.name}:
            known = self._own.setdefault(called, [])
            same = [each for each in known if each.contract.version == tool.contract.version]
            for each in same:
                if tool.body is None and each.body is not None:
                    return  # a contract alone does not hide the tool itself
                known.remove(each)
            known.append(tool)

    def find(self, name: str, version: str | None = None, *, callable_: bool = False) -> Tool:
        """The tool of a name, and of a version where that is given.

        Raises:
            ToolMissing: there is none, or another version, or more than one.
        """
        found = self._own.get(name, [])
        if not self._alone and not any(_fits(each, version, callable_) for each in found):
            alive = [made() for made in declared_tools.get(name, {}).values()]
            found = [*found, *(_tool_of(each) for each in alive if each is not None)]
        fitting = [each for each in found if _fits(each, version, callable_)]
        if len(fitting) == 1:
            return fitting[0]
        if fitting:
            raise ToolMissing(
                f"{len(fitting)} tools of this process are called {name!r}: say which with tools=",
                name,
            )
        versions = sorted({repr(each.contract.version) for each in found})
        if version is not None and versions:
            said = f"tool {name!r} is here as version {', '.join(versions)}, not {version!r}"
        elif found:
            said = f"of tool {name!r} only the contract is here, not its function"
        else:
            said = f"no tool called {name!r} is here: pass the function in tools="
        raise ToolMissing(said, name)


def _fits(tool: Tool, version: str | None, callable_: bool) -> bool:  # noqa: FBT001 - private
    return (version is None or tool.contract.version == version) and (
        tool.body is not None or not callable_
    )


def _tool_of(source: object) -> Tool:
    if isinstance(source, Contract):
        return Tool(source, None)
    contract = getattr(source, "__rollcage_contract__", None)
    if not isinstance(contract, Contract) or not callable(source):
        raise ContractError(f"{source!r} is no tool: declare it with @rollcage.tool")
    return Tool(contract, getattr(source, "__wrapped__", source))


# --- plans ---------------------------------------------------------------------------------------


class PlannedCall(NamedTuple):
    """A compensating call as the trace holds it: a tool's name and version, canonical arguments."""

    name: str
    version: str
    args: dict[str, Any]

    def as_data(self) -> dict[str, Any]:
        """The form in which the trace holds it."""
        return {"name": self.name, "version": self.version, "args": self.args}


class Captured:
    """What is kept of a call before it runs, for its undo.

    Attributes:
        before: the states that it will change, as plain values, for its plan.
        marks: what `step.started` says of it.
    """

    __slots__ = ("before", "marks")

    def __init__(self, before: Mapping[str, Any], marks: dict[str, Any]) -> None:
        self.before = before
        self.marks = marks


def plan_from(
    made: object, tools: KnownTools, seal: Seal, allow: Callable[[Tool], None] = lambda _: None
) -> list[PlannedCall] | None:
    """What a tool's `undo` gave, as data; None where it says that this call can't be undone.

    `allow` refuses a tool by raising.

    Raises:
        ContractError: it is no list of compensations, or one that could not be carried out later.
        RollcageError: the arguments of one do not pass its tool's schema.
    """
    if made is None:
        return None
    if not isinstance(made, list | tuple):
        raise ContractError(f"undo gave a {type(made).__name__}, not a list of compensations")
    return [_planned(each, tools, seal, allow) for each in cast("list[object]", made)]


def _planned(
    each: object, tools: KnownTools, seal: Seal, allow: Callable[[Tool], None]
) -> PlannedCall:
    if not isinstance(each, Compensation):
        raise ContractError(f"undo gave {each!r} for a compensation: make it by compensate(...)")
    if each.function is not None:
        tools.add(each.function)
        tool = _tool_of(each.function)
    else:
        tool = tools.find(each.tool, callable_=True)
    allow(tool)
    contract = tool.contract
    if contract.streams:
        raise ContractError(
            f"{contract.name} can't compensate: it is a generator, and nobody reads its chunks"
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
            f"the arguments of the compensation {contract.name} do not come back from the trace "
            f"as they are"
        )
    copied: dict[str, Any] = orjson.loads(bound.digest_input)
    return PlannedCall(contract.name, contract.version, copied)


def arguments_of(canonical: Mapping[str, Any]) -> dict[str, Any]:
    """Recorded arguments as values, for a contract to validate again."""
    return {name: decode(value) for name, value in canonical.items()}


def holds_secret(encoded: object) -> bool:
    """Whether something in an encoded value stands for a secret."""
    if isinstance(encoded, dict):
        mapping = cast("dict[str, object]", encoded)
        return mapping.get(TAG) == "secret" or any(map(holds_secret, mapping.values()))
    if isinstance(encoded, str):
        return STAND_IN.search(encoded) is not None
    return isinstance(encoded, list) and any(map(holds_secret, cast("list[object]", encoded)))


# --- states --------------------------------------------------------------------------------------

Digests = dict[str, str | dict[str, str]]
"""By resource: the SHA-256 (hex) of its state, or those of its fields."""


def states_of(observed: object, seal: Seal) -> dict[str, Any]:
    """What a tool's `observe` gave, encoded and copied: by resource, its state.

    Raises:
        ContractError: it is no mapping by text, or holds what the trace can't.
    """
    if not isinstance(observed, Mapping):
        raise ContractError(f"observe gave a {type(observed).__name__}, not a mapping by resource")
    states: dict[str, Any] = {}
    for resource, state in cast("Mapping[object, object]", observed).items():
        if not isinstance(resource, str):
            raise ContractError(f"observe names a resource by {resource!r}, which is no text")
        try:
            encoded = hidden(encode(state, seal, path=resource), seal).value
            states[resource] = orjson.loads(jcs(encoded))
        except (Unencodable, ValueError) as error:
            raise ContractError(f"observe gave a state that has no encoding: {error}") from None
    return states


def digests_of(states: Mapping[str, Any]) -> Digests:
    """The digests of encoded states; of each field, where a state has few enough."""
    return {resource: _digest(state) for resource, state in states.items()}


def _digest(state: Any) -> str | dict[str, str]:
    if isinstance(state, dict) and TAG not in state and 0 < len(state) <= _FIELDS:
        fields = cast("dict[str, Any]", state)
        return {name: sha256(jcs(value)).hexdigest() for name, value in fields.items()}
    return sha256(jcs(state)).hexdigest()


def differing(one: Digests, other: Digests) -> dict[str, list[str]]:
    """The resources whose states differ, each with the fields in which they do, where told."""
    found: dict[str, list[str]] = {}
    for resource in sorted({*one, *other}):
        was, now = one.get(resource), other.get(resource)
        if was == now:
            continue
        fields: list[str] = []
        if isinstance(was, dict) and isinstance(now, dict):
            fields = sorted(n for n in {*was, *now} if was.get(n) != now.get(n))
        found[resource] = fields
    return found
