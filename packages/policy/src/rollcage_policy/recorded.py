"""Recorded calls, as a policy sees them, with the names of the values that the trace lacks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import orjson
from rollcage import Contract
from rollcage.errors import Halt, StoreError
from rollcage.gate import ALLOWED, Decision, Verdict
from rollcage.trace import TAG

if TYPE_CHECKING:
    from rollcage_views import Step

__all__ = ["Contracts", "Effect", "Figures", "Unknown", "arguments_of", "is_whole", "user_input_in",
           "verdict_of"]  # fmt: skip

Effect = Literal["pure", "read", "write", "scope"]
"""A tool's declaration: see `rollcage.Contract`."""

Unknown = Mapping[str, frozenset[str]]
"""The unknown fields of a call, by name of what conditions see (`args`, `tool`, …)."""

_MOST_MADE: Final = 4096
_MOST_DEEP: Final = 100
_UNDECLARED: Final = ("risk", "permissions", "idempotent")  # fields of a tool that no trace holds
_NOT_THERE: Final = ("redacted", "blob", "opaque")
_TEXT: Final = "<redacted>"  # written by an export over a quoted value


@dataclasses.dataclass(frozen=True, slots=True)
class Figures:
    """A `RunView` of constant figures.

    Attributes:
        id: the run's id.
        name: the job.
        calls: how many calls it has placed.
        tokens: what its model calls have used.
        cost: what its calls have cost, in the currency of the prices.
        elapsed: how long it has been open (seconds).
    """

    id: str = ""
    name: str = ""
    calls: int = 0
    tokens: int = 0
    cost: float = 0.0
    elapsed: float = 0.0


class Contracts:
    """The contracts of recorded calls, from the trace and the current tools.

    Args:
        tools: the current tools. A current tool is used for a recorded one with the same name,
            version and effect.
    """

    def __init__(self, tools: Iterable[Contract] = ()) -> None:
        self._tools = {each.name: each for each in tools}
        self._made: dict[tuple[str, str, str, str, bool], tuple[Contract, frozenset[str]]] = {}

    def of(self, step: Step) -> tuple[Contract, frozenset[str]]:
        """Return the contract of a call, and its unknown fields.

        Raises:
            ContractError: the name is not a valid tool name.
        """
        kind, name, version = step.kind, step.name, step.version
        effect = cast("Effect", step.effect)
        tool = self._tools.get(name)
        if tool is not None and kind == "tool" and (tool.version, tool.effect) == (version, effect):
            return tool, frozenset()
        undone = step.reversible
        at = kind, name, version, effect, undone
        made = self._made.get(at)
        if made is None:
            if len(self._made) >= _MOST_MADE:
                self._made.clear()
            made = self._made[at] = _contract(kind, name, version, effect, undone=undone)
        return made

    def knows(self, contract: Contract) -> bool:
        """Return whether a contract is one of the current tools."""
        return self._tools.get(contract.name) is contract


def _contract(
    kind: str, name: str, version: str, effect: Effect, *, undone: bool
) -> tuple[Contract, frozenset[str]]:
    undo = _some_undo if undone and effect == "write" else None
    contract = Contract(
        name=name, version=version, effect=effect, parameters={"type": "object"}, undo=undo
    )
    if kind == "model" and effect == "read":
        return contract, frozenset()  # as each adapter declares a model, with nothing else
    unknown = {*_UNDECLARED}
    if effect == "write" and not undone:
        unknown.add("reversible")  # its undo may have returned None for this call
    return contract, frozenset(unknown)


def _some_undo() -> None:
    """Stand for an undo that is only known as declared."""


def arguments_of(
    step: Step, get_blob: Callable[[str], bytes], *, redacted: bool
) -> tuple[dict[str, Any], frozenset[str]]:
    """Return the arguments of a call, large values included, and the names of the incomplete ones.

    Args:
        step: the call.
        get_blob: returns a large value; raises StoreError if it can't.
        redacted: whether an export has removed values from the trace.
    """
    arguments: dict[str, Any] = dict(step.args)
    missing: set[str] = set()

    def whole(value: Any) -> Any:
        held = type(value) is dict and value.get(TAG) == "blob"
        return orjson.loads(get_blob(str(value.get("sha256")))) if held else value

    for name, value in step.args.items():
        try:
            arguments[name] = whole(value)
            if step.kind == "model" and name == "messages" and type(arguments[name]) is list:
                arguments[name] = [whole(each) for each in arguments[name]]
        except (StoreError, orjson.JSONDecodeError):
            missing.add(name)
        if redacted and not is_whole(arguments[name]):
            missing.add(name)
    return arguments, frozenset(missing)


def is_whole(encoded: Any, depth: int = 0) -> bool:
    """Return whether nothing was removed from an encoded value."""
    kind: type[Any] = type(encoded)
    if kind is str:
        return _TEXT not in encoded
    if kind is list:
        return depth < _MOST_DEEP and all(is_whole(each, depth + 1) for each in encoded)
    if kind is not dict:
        return True
    if encoded.get(TAG) in _NOT_THERE or depth >= _MOST_DEEP:
        return False
    return all(is_whole(each, depth + 1) for each in encoded.values())


# --- decisions -----------------------------------------------------------------------------------


def _codes_of(kind: type[Halt]) -> set[str]:
    return {kind.code}.union(*map(_codes_of, kind.__subclasses__()))


_NO_RULE: Final = frozenset({"capture_failed"} | _codes_of(Halt)) - {"approval_required"}
_ASKED: Final = ("approval_", "approver_")  # prefixes of the codes that follow from an ask


def verdict_of(step: Step) -> Verdict:
    """Return the gate's verdict on a recorded call; for a call that an approver rejected, `ask`.

    A call that was refused for another reason than a rule was allowed.
    """
    recorded: Mapping[str, Any] = step.verdict or {}
    decision: Decision = recorded.get("decision", "allow")
    if step.origin is not None and decision == "deny":
        return ALLOWED  # the verdict is the resume's own, the outcome was replayed
    code: str = recorded.get("code", "")
    if step.state == "waiting":
        decision = "ask"
    elif step.state == "blocked":
        if step.approval or code.startswith(_ASKED):
            decision = "ask"
        elif code in _NO_RULE:
            return ALLOWED
    elif step.approval:
        decision = "ask"
    return Verdict(decision, recorded.get("reason", ""), code, recorded.get("rule", ""))


def user_input_in(started: Mapping[str, Any], get_blob: Callable[[str], bytes]) -> list[str] | None:
    """Return the user input from `run.started`; None if unknown."""
    recorded = started.get("user_input")
    if isinstance(recorded, dict):
        try:
            recorded = orjson.loads(get_blob(str(cast("dict[str, Any]", recorded).get("sha256"))))
        except (StoreError, ValueError):
            return None
    if not isinstance(recorded, list):
        return None
    words = cast("list[object]", recorded)
    return [each for each in words if isinstance(each, str)] if is_whole(words) else None
