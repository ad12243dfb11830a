"""The tools that an agent gets, as they stand when its session opens, and whether a call is one."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping
from hashlib import sha256
from types import CodeType, FunctionType
from typing import Any, Final, NamedTuple

from rollcage import Contract
from rollcage.errors import FacadeMissing, ToolRefused
from rollcage.gate import FacadeGuard, Verdict
from rollcage.trace import jcs

from rollcage_governance.lifecycle import Governed, Lifecycle
from rollcage_governance.pin import changed, described, diff, digest_of
from rollcage_governance.source import Code

__all__ = ["FacadeSnapshot"]

_log: Final = logging.getLogger("rollcage")

_SEEN: Final = 4096  # contracts that are remembered; then all are looked at anew
_FORMAT: Final = "rollcage-facade/1"

At = tuple[str, str]
"""The kind (`tool` or `model`) and the name of a tool."""


class _Seen(NamedTuple):
    """A contract that was looked at, and what it was then."""

    contract: Contract
    verdict: Verdict | None
    in_undo: Verdict | None
    function: Callable[..., Any] | None  # the one body that it may have; None: an adapter's own
    parts: tuple[tuple[FunctionType, CodeType], ...]
    validator: Any  # of its model; None where it has a JSON Schema
    schema: Any  # a copy of that

    def holds(self) -> bool:
        """Whether it still is that: for each call, so nothing is hashed here."""
        for function, code in self.parts:
            if function.__code__ is not code:
                return False
        given: Any = self.contract.parameters
        if self.validator is not None:
            return given.__pydantic_validator__ is self.validator
        return bool(given == self.schema)


class FacadeSnapshot(FacadeGuard):
    """What an agent gets of a registry: a snapshot, which a session takes when it opens.

    Attributes:
        name: its name.
        tools: by name, the digest of each tool that it gives.
        models: the same of models; None where it says nothing of models: none is in its packs.
        digest: of both (SHA-256, hex).
        known: all that the registry knows, by kind and name.
        option: what a command needs to find its store: ` --store DIR`, or nothing.
    """

    def __init__(
        self,
        name: str,
        tools: Mapping[str, str],
        models: Mapping[str, str] | None = None,
        known: Mapping[At, Governed] | None = None,
        option: str = "",
    ) -> None:
        self.name = name
        self.tools = dict(sorted(tools.items()))
        self.models = None if models is None else dict(sorted(models.items()))
        self.digest = sha256(
            jcs([_FORMAT, {"tools": self.tools, "models": self.models}])
        ).hexdigest()
        self.option = option
        self.known = dict(known or {})
        self._seen: dict[tuple[str, int], _Seen] = {}

    @classmethod
    def of(cls, state: Lifecycle, name: str, where: str, option: str = "") -> FacadeSnapshot:
        """The facade of this name, as things stand.

        Raises:
            FacadeMissing: none is called so; says which there are, `where`.
        """
        packs = state.facades.get(name)
        if packs is None:
            listed = ", ".join(sorted(state.facades)) or "none"
            raise FacadeMissing(
                f"no facade in {where} is called {name!r}; there are: {listed}. Define it with: "
                f"rollcage tools facade {name} PACK{option}"
            )
        pins: dict[str, dict[str, str]] = {"tool": {}, "model": {}}
        about_models = False
        for at, governed in state.tools.items():
            if governed.pin is None or not governed.packs & set(packs):
                continue
            about_models = about_models or governed.kind == "model"
            if governed.frozen:
                continue
            pins[governed.kind][governed.name] = governed.pin.digest
            if governed.deprecated:
                by, why = governed.said
                _log.warning("%s %s is deprecated by %s: %s", *at, by, why or "no reason said")
        models = pins["model"] if about_models else None
        return cls(name, pins["tool"], models, state.tools, option)

    @classmethod
    def recorded(
        cls, data: Mapping[str, Any], state: Lifecycle, option: str = ""
    ) -> FacadeSnapshot:
        """The facade that a run was given, by its trace; `state` says what was approved else."""
        return cls(str(data["name"]), data["tools"], data["models"], state.tools, option)

    def as_data(self) -> dict[str, Any]:
        """The form in which a trace holds it."""
        return {
            "name": self.name, "digest": self.digest, "tools": self.tools, "models": self.models,
        }  # fmt: skip

    def within(self, outer: FacadeGuard) -> FacadeSnapshot:
        """What a session inside another one gets: what both give."""
        if not isinstance(outer, FacadeSnapshot):
            raise TypeError(f"{outer!r} has nothing in common with a facade of a registry")
        tools = {n: pin for n, pin in self.tools.items() if outer.tools.get(n) == pin}
        one, other = self.models, outer.models
        if one is None or other is None:
            models = other if one is None else one
        else:
            models = {n: pin for n, pin in one.items() if other.get(n) == pin}
        known = {**outer.known, **self.known}
        return FacadeSnapshot(self.name, tools, models, known, self.option)

    def _pin(self, kind: str, name: str) -> str | None:
        return self.tools.get(name) if kind == "tool" else (self.models or {}).get(name)

    # --- a call ----------------------------------------------------------------------------------

    def check(
        self,
        contract: Contract,
        body: Callable[..., Any] | None = None,
        *,
        kind: str = "tool",
        undo: bool = False,
    ) -> Verdict | None:
        """Why a call must not be made; None where it may.

        A contract is looked at when it is first seen. From then on it costs a look into a dict, and
        whether its functions still have the code that they had.

        Args:
            contract: the tool's.
            body: the function that would be called, where the caller knows it.
            kind: `tool` or `model`.
            undo: it undoes something: whatever was approved once may do that, for what it had
                done has to be undone even where the tool was frozen or changed since.
        """
        seen = self._seen.get((kind, id(contract)))
        try:
            if seen is None or seen.contract is not contract or not seen.holds():
                seen = self._look(contract, kind)
        except Exception as error:  # noqa: BLE001 - what can't be looked at was not approved
            _log.warning("%s %s can't be looked at: %s", kind, contract.name, error)
            said = f"The {kind} {contract.name} can't be compared with what was approved"
            return self._denied("tool_changed", said)
        verdict = seen.in_undo if undo else seen.verdict
        if verdict is None and body is not None and seen.function not in (None, body):
            return self._denied(
                "tool_changed",
                f"The function of the {kind} {contract.name} is not the one that was approved",
            )  # fmt: skip
        return verdict

    def refusal(self, contract: Contract, verdict: Verdict, *, kind: str = "tool") -> ToolRefused:
        """The error that says so to whoever wants to give an agent this tool, and what to do."""
        differs = self.diff(contract, kind=kind) if verdict.code == "tool_changed" else ""
        said = f"{verdict.reason}, by the facade {self.name!r}."
        said += f"\n{differs}\n" if differs else " "
        said += f"Next: {self.next_step(contract.name, verdict.code, kind=kind)}"
        return ToolRefused(said, contract, verdict.code, differs)

    def diff(self, contract: Contract, *, kind: str = "tool") -> str:
        """How a tool differs from what was approved, by field; empty where nothing is known."""
        governed = self.known.get((kind, contract.name))
        if governed is None or governed.pin is None:
            return ""
        return diff(governed.pin.contract, described(contract)[0])

    def next_step(self, name: str, code: str, *, kind: str = "tool") -> str:
        """What somebody can do for a tool that was denied with this code."""
        model, at = " --model" if kind == "model" else "", self.option
        governed = self.known.get((kind, name))
        if code == "tool_frozen":
            return f"rollcage tools unfreeze {name}{model}{at}"
        if code == "tool_outside_facade":
            return f"rollcage tools activate {name} PACK{model}{at}; PACK is one of {self.name}"
        if governed is not None and governed.proposal is not None:
            return f"rollcage tools approve {name}{model}{at}"
        given = f"{name}{model}" if model else "MODULE:FUNCTION"
        return f"rollcage tools propose {given}{at}; then let another person approve it"

    # --- looking at a contract -------------------------------------------------------------------

    def _look(self, contract: Contract, kind: str) -> _Seen:
        verdict, in_undo, codes = self._compared(contract, kind)
        given: Any = contract.parameters
        validator = getattr(given, "__pydantic_validator__", None)
        schema = copy.deepcopy(given) if validator is None else None
        function = None if contract.framework else contract.function
        parts = tuple(part for code in codes for part in code.parts)
        seen = _Seen(contract, verdict, in_undo, function, parts, validator, schema)
        if len(self._seen) >= _SEEN:
            self._seen.clear()
        self._seen[kind, id(contract)] = seen
        return seen

    def _compared(
        self, contract: Contract, kind: str
    ) -> tuple[Verdict | None, Verdict | None, tuple[Code, ...]]:
        """What is said of a contract, then in an undo; and the code that it has."""
        name = contract.name
        if kind == "model" and self.models is None:
            return None, None, ()
        try:
            fields, codes = described(contract)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is not what was approved
            said = f"The {kind} {name} can't be compared with what was approved"
            _log.warning("%s %s can't be described: %s", kind, name, error)
            denied = self._denied("tool_changed", said)
            return denied, denied, ()
        digest, governed = digest_of(fields), self.known.get((kind, name))
        if self._pin(kind, name) == digest:
            return None, None, codes
        denied = self._refusal(kind, name, fields)
        if denied.code == "tool_changed" and governed is not None and governed.pin is not None:
            told = diff(governed.pin.contract, fields)
            _log.warning("%s %s is not what was approved:\n%s", kind, name, told)
        then = governed is not None and digest in governed.approved
        return denied, None if then else denied, codes

    def _refusal(self, kind: str, name: str, fields: Mapping[str, Any]) -> Verdict:
        """Why something is not given, whose digest is not among the pins."""
        governed = self.known.get((kind, name))
        pin = None if governed is None else governed.pin
        if governed is not None and governed.frozen:
            return self._denied("tool_frozen", f"The {kind} {name} is frozen")
        if self._pin(kind, name) is not None or (
            pin is not None and pin.digest != digest_of(fields)
        ):
            said = f"The {kind} {name} is not what was approved"
            differs = [] if pin is None else changed(pin.contract, fields)
            if differs:
                said += f": other {', '.join(differs)}"
            return self._denied("tool_changed", said)
        if pin is not None:
            said = f"The {kind} {name} is not one of those that this agent has"
            return self._denied("tool_outside_facade", said)
        return self._denied("tool_unapproved", f"The {kind} {name} is not approved")

    def _denied(self, code: str, said: str) -> Verdict:
        return Verdict("deny", said, code, f"facade {self.name}", "Go on without it.")
