"""The tools that an agent is granted when its session opens, and the check of each call."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping
from hashlib import sha256
from types import CodeType, FunctionType
from typing import Any, Final, NamedTuple

from rollcage import Contract, Verdict
from rollcage.errors import FacadeMissing, ToolRefused
from rollcage.trace import jcs

from rollcage_governance.lifecycle import Governed, Lifecycle
from rollcage_governance.pin import changed, described, diff, digest_of
from rollcage_governance.source import Code

__all__ = ["FacadeSnapshot"]

_log: Final = logging.getLogger("rollcage")

_SEEN: Final = 4096  # contracts that are cached; beyond that, all are checked again
_FORMAT: Final = "rollcage-facade/1"

At = tuple[str, str]
"""The kind (`tool` or `model`) and the name of a tool."""


class _Seen(NamedTuple):
    """A contract that was checked, and its state at that time."""

    contract: Contract
    verdict: Verdict | None
    in_undo: Verdict | None
    function: Callable[..., Any] | None  # the only body that it may have; None: an adapter's own
    parts: tuple[tuple[FunctionType, CodeType], ...]
    validator: Any  # of its model; None for a JSON Schema
    schema: Any  # a copy of the schema

    def holds(self) -> bool:
        """Return whether it is unchanged; checked on each call, so nothing is hashed here."""
        for function, code in self.parts:
            if function.__code__ is not code:
                return False
        given: Any = self.contract.parameters
        if self.validator is not None:
            return given.__pydantic_validator__ is self.validator
        return bool(given == self.schema)


class FacadeSnapshot:
    """A facade at the opening of a session: the tools that its agent is granted.

    Attributes:
        name: its name.
        tools: the digest of each tool that it grants, by name.
        models: the same for models; None if no model is in its packs: then any model may be called.
        digest: the digest of both (SHA-256, hex).
        known: all tools and models of the registry, by kind and name.
        option: the option of commands that names its store: ` --store DIR`, or nothing.
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
        """Return the facade with a name, in its current state.

        Raises:
            FacadeMissing: there is no such facade; the message lists the ones in `where`.
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
                by, why = governed.last_change
                _log.warning("%s %s is deprecated by %s: %s", *at, by, why or "no reason given")
        models = pins["model"] if about_models else None
        return cls(name, pins["tool"], models, state.tools, option)

    @classmethod
    def recorded(
        cls, data: Mapping[str, Any], state: Lifecycle, option: str = ""
    ) -> FacadeSnapshot:
        """Return the facade from an attempt's line; `state` is the registry's current one."""
        return cls(str(data["name"]), data["tools"], data["models"], state.tools, option)

    def as_data(self) -> dict[str, Any]:
        """Return its form in a log."""
        return {
            "name": self.name, "digest": self.digest, "tools": self.tools, "models": self.models,
        }  # fmt: skip

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
        """Return a denial if a call must not be made; None if it may.

        A contract is checked when it is first seen. After that, a call costs a dict lookup and a
        check that its functions still have the same code.

        Args:
            contract: the tool's contract.
            body: the function that would be called, if the caller knows it.
            kind: `tool` or `model`.
            undo: whether the call undoes something: any tool that was ever approved may do that,
                because effects have to be undone even if the tool was frozen or changed since.
        """
        seen = self._seen.get((kind, id(contract)))
        try:
            if seen is None or seen.contract is not contract or not seen.holds():
                seen = self._look(contract, kind)
        except Exception as error:  # noqa: BLE001 - a tool that can't be checked is not approved
            _log.warning("%s %s can't be checked: %s", kind, contract.name, error)
            reason = f"The {kind} {contract.name} can't be compared with what was approved"
            return self._denied("tool_changed", reason)
        verdict = seen.in_undo if undo else seen.verdict
        if verdict is None and body is not None and seen.function not in (None, body):
            return self._denied(
                "tool_changed",
                f"The function of the {kind} {contract.name} is not the one that was approved",
            )  # fmt: skip
        return verdict

    def refusal(self, contract: Contract, verdict: Verdict, *, kind: str = "tool") -> ToolRefused:
        """Return the error for a caller that gives an agent this tool, with the next step."""
        differs = self.diff(contract, kind=kind) if verdict.code == "tool_changed" else ""
        message = f"{verdict.reason}, by the facade {self.name!r}."
        message += f"\n{differs}\n" if differs else " "
        message += f"Next: {self.next_step(contract.name, verdict.code, kind=kind)}"
        return ToolRefused(message, contract, verdict.code, differs)

    def diff(self, contract: Contract, *, kind: str = "tool") -> str:
        """Return a tool's differences from its approved form, by field; empty without one."""
        governed = self.known.get((kind, contract.name))
        if governed is None or governed.pin is None:
            return ""
        return diff(governed.pin.contract, described(contract)[0])

    def next_step(self, name: str, code: str, *, kind: str = "tool") -> str:
        """Return the command that helps with a tool that was denied with this code."""
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

    # --- checking a contract ---------------------------------------------------------------------

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
        """Return the verdicts on a contract, in a call and in an undo; and its code."""
        name = contract.name
        if kind == "model" and self.models is None:
            return None, None, ()
        try:
            fields, codes = described(contract)
        except Exception as error:  # noqa: BLE001 - a tool that can't be described is not approved
            reason = f"The {kind} {name} can't be compared with what was approved"
            _log.warning("%s %s can't be described: %s", kind, name, error)
            denied = self._denied("tool_changed", reason)
            return denied, denied, ()
        digest, governed = digest_of(fields), self.known.get((kind, name))
        if self._pin(kind, name) == digest:
            return None, None, codes
        denied = self._refusal(kind, name, fields)
        if denied.code == "tool_changed" and governed is not None and governed.pin is not None:
            differs = diff(governed.pin.contract, fields)
            _log.warning("%s %s is not what was approved:\n%s", kind, name, differs)
        then = governed is not None and digest in governed.approved
        return denied, None if then else denied, codes

    def _refusal(self, kind: str, name: str, fields: Mapping[str, Any]) -> Verdict:
        """Return the denial of a tool whose digest is not pinned."""
        governed = self.known.get((kind, name))
        pin = None if governed is None else governed.pin
        if governed is not None and governed.frozen:
            return self._denied("tool_frozen", f"The {kind} {name} is frozen")
        if self._pin(kind, name) is not None or (
            pin is not None and pin.digest != digest_of(fields)
        ):
            reason = f"The {kind} {name} is not what was approved"
            differs = [] if pin is None else changed(pin.contract, fields)
            if differs:
                reason += f": other {', '.join(differs)}"
            return self._denied("tool_changed", reason)
        if pin is not None:
            reason = f"The {kind} {name} is not one of this agent's"
            return self._denied("tool_outside_facade", reason)
        return self._denied("tool_unapproved", f"The {kind} {name} is not approved")

    def _denied(self, code: str, reason: str) -> Verdict:
        return Verdict("deny", reason, code, f"facade {self.name}", "Go on without it.")
