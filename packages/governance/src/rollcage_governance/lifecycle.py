"""Every transition of a governed tool, and the resulting state (DESIGN §5).

::

    proposed ──> approved ──> active in a pack ──> exposed by a facade of that pack
        └─────> rejected          frozen <──> unfrozen, deprecated

A tool that is proposed again keeps its pin until the new proposal is approved. The state results
from all lines of the registry; a line that the registry would not have written is refused when it
is read, too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from rollcage.gate import looks_like, same_person

from rollcage_governance.pin import digest_of

__all__ = [
    "BEGINS",
    "FORMAT",
    "Governed",
    "Kind",
    "Lifecycle",
    "NotAllowed",
    "Pin",
    "Proposal",
    "Status",
]

FORMAT: Final = "rollcage-registry/1"
BEGINS: Final = "registry.started"

Kind = Literal["tool", "model"]
Status = Literal["proposed", "rejected", "approved", "active", "frozen", "deprecated"]
"""The status of a tool: `approved` in no pack, or `active` in one; the last two override these."""


class NotAllowed(ValueError):
    """A transition that the state does not allow; the message says why, and what is required."""


# --- the state -----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Proposal:
    """A proposal without a decision.

    Attributes:
        digest: the digest of `contract`.
        contract: the description of the tool, by field.
        by: the proposer.
        why: their reason.
        time: when (Unix, µs).
    """

    digest: str
    contract: Mapping[str, Any]
    by: str
    why: str
    time: int


@dataclasses.dataclass(frozen=True, slots=True)
class Pin:
    """The approved description of a tool.

    Attributes:
        digest: the digest of `contract`.
        contract: the pinned description, by field.
        proposed_by: the proposer.
        approved_by: the approver.
        time: the time of approval (Unix, µs).
    """

    digest: str
    contract: Mapping[str, Any]
    proposed_by: str
    approved_by: str
    time: int


@dataclasses.dataclass(frozen=True, slots=True)
class Governed:
    """A tool as the registry knows it.

    Attributes:
        kind: `tool` or `model`.
        name: its name.
        pin: its approved description; None if none was ever approved.
        proposal: its undecided proposal; None if there is none.
        packs: the packs in which it is active.
        frozen: whether no session gets it until it is unfrozen.
        deprecated: whether it can't be added to packs, and sessions with it warn.
        approved: the digests of all its descriptions that were ever approved.
        last_change: the author of its last transition, and their reason.
    """

    kind: Kind
    name: str
    pin: Pin | None = None
    proposal: Proposal | None = None
    packs: frozenset[str] = frozenset()
    frozen: bool = False
    deprecated: bool = False
    approved: frozenset[str] = frozenset()
    last_change: tuple[str, str] = ("", "")

    @property
    def status(self) -> Status:
        """Its status; see `Status`."""
        if self.pin is None:
            return "rejected" if self.proposal is None else "proposed"
        if self.frozen:
            return "frozen"
        if self.deprecated:
            return "deprecated"
        return "active" if self.packs else "approved"


class Lifecycle:
    """The state of a registry.

    Attributes:
        tools: the tools, by kind and name.
        facades: the packs of each facade, by name.
        lines: how many lines were applied.
    """

    def __init__(self) -> None:
        self.tools: dict[tuple[str, str], Governed] = {}
        self.facades: dict[str, tuple[str, ...]] = {}
        self.lines = 0

    @property
    def packs(self) -> dict[str, list[Governed]]:
        """Return the packs, each with its active tools."""
        found: dict[str, list[Governed]] = {}
        for governed in self.tools.values():
            for pack in sorted(governed.packs):
                found.setdefault(pack, []).append(governed)
        return dict(sorted(found.items()))

    def apply(self, line: Mapping[str, Any]) -> None:
        """Apply a line that its model has validated.

        Raises:
            NotAllowed: the state does not allow it; nothing is changed.
        """
        _TRANSITIONS[line["event"]](self, line)
        self.lines += 1

    def known(self, kind: str, name: str) -> Governed:
        """Return a tool of the registry.

        Raises:
            NotAllowed: there is no tool of that name; the message lists the existing ones.
        """
        found = self.tools.get((kind, name))
        if found is None:
            names = sorted(other for each, other in self.tools if each == kind)
            listed = ", ".join(names) or "none"
            raise NotAllowed(f"no {kind} called {name!r} was proposed; there are: {listed}")
        return found

    # --- transitions -----------------------------------------------------------------------------

    def _start(self, line: Mapping[str, Any]) -> None:
        """Begin the registry: the first line has no transition."""

    def _propose(self, line: Mapping[str, Any]) -> None:
        name, digest, contract = line["tool"], line["digest"], line["contract"]
        if digest_of(contract) != digest or contract.get("name") != name:
            raise NotAllowed(f"the digest of {name!r} is not the digest of the proposal")
        old = self.tools.get((line["kind"], name)) or Governed(line["kind"], name)
        if old.pin is not None and old.pin.digest == digest and not old.deprecated:
            raise NotAllowed(
                f"{name!r} is approved already, and has not changed: there is nothing to propose"
            )
        if old.proposal is not None and old.proposal.digest == digest:
            raise NotAllowed(f"{name!r} is proposed already, by {old.proposal.by}")
        proposal = Proposal(digest, contract, line["by"], line["why"], line["time"])
        self._set(old, line, proposal=proposal)

    def _approve(self, line: Mapping[str, Any]) -> None:
        name, by = line["tool"], line["by"]
        old, proposal = self._proposed(line)
        if proposal.digest != line["digest"]:
            raise NotAllowed(
                f"{name!r} is proposed as {proposal.digest[:12]}…, and {line['digest'][:12]}… was "
                f"reviewed: review it again"
            )
        if same_person(proposal.by, by):
            raise NotAllowed(f"{by} proposed {name!r}: another person has to approve it")
        if looks_like(proposal.by, by):
            raise NotAllowed(
                f"the name {by!a} looks like the name of the person who proposed {name!r}: "
                "another person has to approve it"
            )
        pin = Pin(proposal.digest, proposal.contract, proposal.by, by, line["time"])
        approved = old.approved | {pin.digest}
        self._set(old, line, pin=pin, proposal=None, deprecated=False, approved=approved)

    def _reject(self, line: Mapping[str, Any]) -> None:
        self._set(self._proposed(line)[0], line, proposal=None)

    def _activate(self, line: Mapping[str, Any]) -> None:
        old, pack = self._approved(line), line["pack"]
        if pack in old.packs:
            raise NotAllowed(f"{old.name!r} is already active in the pack {pack!r}")
        if old.frozen or old.deprecated:
            raise NotAllowed(f"{old.name!r} is {old.status}: it goes into no further pack")
        self._set(old, line, packs=old.packs | {pack})

    def _deactivate(self, line: Mapping[str, Any]) -> None:
        old, pack = self._approved(line), line["pack"]
        if pack not in old.packs:
            raise NotAllowed(f"{old.name!r} is not active in the pack {pack!r}")
        self._set(old, line, packs=old.packs - {pack})

    def _freeze(self, line: Mapping[str, Any]) -> None:
        old = self._approved(line)
        if old.frozen:
            raise NotAllowed(f"{old.name!r} is already frozen")
        self._set(old, line, frozen=True)

    def _unfreeze(self, line: Mapping[str, Any]) -> None:
        old = self._approved(line)
        if not old.frozen:
            raise NotAllowed(f"{old.name!r} is not frozen")
        self._set(old, line, frozen=False)

    def _deprecate(self, line: Mapping[str, Any]) -> None:
        old = self._approved(line)
        if old.deprecated:
            raise NotAllowed(f"{old.name!r} is already deprecated")
        self._set(old, line, deprecated=True)

    def _define(self, line: Mapping[str, Any]) -> None:
        known, packs = self.packs, tuple(sorted(set(line["packs"])))
        unknown = [pack for pack in packs if pack not in known]
        if unknown:
            listed = ", ".join(known) or "none"
            raise NotAllowed(
                f"no tool is active in the pack {unknown[0]!r}; the packs are: {listed}"
            )
        if self.facades.get(line["facade"]) == packs:
            raise NotAllowed(f"the facade {line['facade']!r} is already defined like this")
        self.facades[line["facade"]] = packs

    def _proposed(self, line: Mapping[str, Any]) -> tuple[Governed, Proposal]:
        old = self.known(line["kind"], line["tool"])
        if old.proposal is None:
            raise NotAllowed(f"nothing is proposed for {old.name!r}: it is {old.status}")
        return old, old.proposal

    def _approved(self, line: Mapping[str, Any]) -> Governed:
        old = self.known(line["kind"], line["tool"])
        if old.pin is None:
            raise NotAllowed(f"{old.name!r} is {old.status}: it has to be approved first")
        return old

    def _set(self, old: Governed, line: Mapping[str, Any], **changes: Any) -> None:
        change = line["by"], line["why"]
        self.tools[line["kind"], old.name] = dataclasses.replace(old, last_change=change, **changes)


_TRANSITIONS: Final[dict[str, Callable[[Lifecycle, Mapping[str, Any]], None]]] = {
    BEGINS: Lifecycle._start,  # noqa: SLF001 - the table of its own transitions
    "tool.proposed": Lifecycle._propose,  # noqa: SLF001 - the same
    "tool.approved": Lifecycle._approve,  # noqa: SLF001 - the same
    "tool.rejected": Lifecycle._reject,  # noqa: SLF001 - the same
    "tool.activated": Lifecycle._activate,  # noqa: SLF001 - the same
    "tool.deactivated": Lifecycle._deactivate,  # noqa: SLF001 - the same
    "tool.frozen": Lifecycle._freeze,  # noqa: SLF001 - the same
    "tool.unfrozen": Lifecycle._unfreeze,  # noqa: SLF001 - the same
    "tool.deprecated": Lifecycle._deprecate,  # noqa: SLF001 - the same
    "facade.defined": Lifecycle._define,  # noqa: SLF001 - the same
}
