"""The tool registry: every transition of each tool, with its author and time; kept in the store."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from time import time_ns
from typing import TYPE_CHECKING, Any

import pydantic
from rollcage import Contract, Stage, Store, Verdict, open_store
from rollcage.errors import GovernanceError, RegistryCorrupt, RollcageError
from rollcage.gate import person
from rollcage.trace.store import store_option

from rollcage_governance.facade import FacadeSnapshot
from rollcage_governance.kept import RegistryLines
from rollcage_governance.lifecycle import (
    BEGINS,
    FORMAT,
    Governed,
    Kind,
    Lifecycle,
    NotAllowed,
)
from rollcage_governance.pin import described, diff, digest_of

if TYPE_CHECKING:
    from rollcage import Session
    from rollcage.replay.call import Call

__all__ = ["Facade", "FacadeStage", "Registry"]

Tool = Contract | Callable[..., Any]
"""A function declared with `@rollcage.tool`, or a contract."""


class Facade:
    """A facade by its name, for `Session(gate=[…])`; read from the registry of its store.

    ::

        with Session("case 7", gate=[Facade("support-agent")]):
            ...

    Attributes:
        name: its name in the registry.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._granted: Mapping[str, Any] | None = None

    @classmethod
    def recorded(cls, data: Mapping[str, Any]) -> Facade:
        """Return the facade of a recorded attempt, from its line.

        It grants the same tools as then, also on a machine whose registry does not know it.
        """
        facade = cls(str(data["name"]))
        facade._granted = data
        return facade

    def __repr__(self) -> str:
        return f"Facade({self.name!r})"

    def taken(self, store: Store) -> FacadeSnapshot:
        """Return its grants, from a store's registry in its current state.

        Raises:
            FacadeMissing: the registry has no such facade.
        """
        return Registry(store).facade(self.name)

    def of_session(self) -> FacadeStage:
        """Return the stage that holds one session to this facade."""
        return FacadeStage(self.name, self._granted)


class FacadeStage(Stage):
    """Lets only the tools of a facade run in a session, in their approved form.

    The facade is read from the registry when the session is entered. In a session inside of another
    one, both facades hold: a tool runs if both give it.

    Attributes:
        name: its name in the registry.
        facade: its grants; None before the session is entered.
    """

    enforces = True

    def __init__(self, name: str, recorded: Mapping[str, Any] | None = None) -> None:
        self.name = name
        self.facade: FacadeSnapshot | None = None
        self._recorded = recorded

    def describes(self, session: Session) -> dict[str, Any]:
        """Return its grants, for the record.

        Raises:
            FacadeMissing: the registry has no such facade.
        """
        self.facade = self.granted(session)
        return {"facade": self.facade.as_data()}

    def granted(self, session: Session) -> FacadeSnapshot:
        """Return its grants in a session; before the session is entered, its current grants.

        Raises:
            FacadeMissing: the registry has no such facade.
        """
        if self.facade is not None:
            return self.facade
        registry = Registry(session.store)
        if self._recorded is None:
            return registry.facade(self.name)
        return FacadeSnapshot.recorded(self._recorded, registry.state(), registry.option)

    def screen(
        self, contract: Contract, body: Callable[..., Any] | None, kind: str
    ) -> Verdict | None:
        """Return a denial of a tool that it does not give, or that was changed."""
        return self._check(contract, body, kind=kind)

    def screen_undo(self, contract: Contract) -> Verdict | None:
        """Return a denial of a tool whose current form was never approved."""
        return self._check(contract, None, kind="tool", undo=True)

    def decide(self, call: Call) -> Verdict | None:
        """Return the denial of a call; any tool that was ever approved may undo something."""
        undo = call.place.branch[:1] == "-"
        return self._check(call.contract, None, kind=call.kind, undo=undo)

    def _check(
        self, contract: Contract, body: Callable[..., Any] | None, *, kind: str, undo: bool = False
    ) -> Verdict | None:
        if self.facade is None:
            return Verdict("deny", "there is no facade yet", "tool_unapproved", self.name)
        return self.facade.check(contract, body, kind=kind, undo=undo)


class Registry:
    """The registry of a store: every transition of a tool is a line, with its author and reason.

    Each call reads the current lines, and any number of processes may add some. A transition that
    is not allowed raises, and nothing is written.

    Args:
        store: a folder, a URL, or a `Store` (see `rollcage.open_store`).

    Attributes:
        option: the option of commands that names the store: ` --store URL`, or nothing.
    """

    def __init__(self, store: str | os.PathLike[str] | Store) -> None:
        kept = open_store(store)
        self._lines = RegistryLines(kept, BEGINS)
        self.option = store_option(kept)

    @property
    def where(self) -> str:
        """Its name in messages."""
        return self._lines.where

    # --- reading ---------------------------------------------------------------------------------

    def state(self) -> Lifecycle:
        """Return the current state of every tool.

        Raises:
            RegistryCorrupt: names the first line that was changed or that is not allowed.
        """
        return self._followed(self._lines.read())

    def tool(self, name: str, *, kind: Kind = "tool") -> Governed:
        """Return the current state of a tool.

        Raises:
            GovernanceError: no tool of that name was proposed.
        """
        try:
            return self.state().known(kind, name)
        except NotAllowed as error:
            raise GovernanceError(str(error)) from None

    def history(self, name: str | None = None) -> list[dict[str, Any]]:
        """Return all transitions, or the transitions of one tool or facade, in order."""
        lines = self._lines.read()
        self._followed(lines)
        events = lines[1:]
        if name is None:
            return events
        return [event for event in events if name in (event.get("tool"), event.get("facade"))]

    def facade(self, name: str) -> FacadeSnapshot:
        """Return the tools that a facade grants now.

        Raises:
            FacadeMissing: there is no such facade.
        """
        return FacadeSnapshot.of(self.state(), name, self.where, self.option)

    def diff(self, name: str, tool: Tool | None = None, *, kind: Kind = "tool") -> str:
        """Return how a tool, or its proposal, differs from the approved description, by field.

        If none was approved, everything is new. Empty if nothing differs.
        """
        governed = self.tool(name, kind=kind)
        pinned = {} if governed.pin is None else governed.pin.contract
        if tool is not None:
            return diff(pinned, _described(tool))
        return diff(pinned, pinned if governed.proposal is None else governed.proposal.contract)

    def is_new(self, tool: Tool, *, kind: Kind = "tool") -> bool:
        """Return whether a tool's current form is neither approved nor proposed."""
        data = _described(tool)
        governed = self.state().tools.get((kind, data["name"]))
        if governed is None:
            return True
        digest = digest_of(data)
        return not any(
            each is not None and each.digest == digest for each in (governed.pin, governed.proposal)
        )

    # --- transitions -----------------------------------------------------------------------------

    def propose(self, tool: Tool, *, by: str, why: str = "", kind: Kind = "tool") -> Governed:
        """Propose a tool in its current form; a newer proposal replaces an older one.

        Args:
            tool: a function declared with `@rollcage.tool`, or a contract.
            by: the proposer.
            why: their reason.
            kind: `tool` or `model`.

        Raises:
            GovernanceError: the form is approved or proposed already.
        """
        data = _described(tool)
        fields = {"digest": digest_of(data), "contract": data}
        return self._moved("tool.proposed", data["name"], by, why, kind, fields)

    def approve(
        self, name: str, *, by: str, why: str = "", digest: str | None = None, kind: Kind = "tool"
    ) -> Governed:
        """Approve the proposal of a tool: from now on only this form is the tool.

        Args:
            name: the tool's name.
            by: the approver, who must not be the proposer.
            why: their reason.
            digest: the digest of the reviewed proposal (hex): any other is refused. None approves
                the current proposal, whatever it is.
            kind: `tool` or `model`.

        Raises:
            GovernanceError: there is no proposal, or it has another digest or the same proposer.
        """

        def seen(state: Lifecycle) -> dict[str, Any]:
            return {"digest": digest or _proposed_digest(state, kind, name)}

        return self._moved("tool.approved", name, by, why, kind, seen)

    def reject(self, name: str, *, by: str, why: str = "", kind: Kind = "tool") -> Governed:
        """Reject the proposal of a tool; its approved form stays."""
        return self._moved("tool.rejected", name, by, why, kind)

    def activate(
        self, name: str, pack: str, *, by: str, why: str = "", kind: Kind = "tool"
    ) -> Governed:
        """Add an approved tool to a pack; a pack exists once a tool is in it."""
        return self._moved("tool.activated", name, by, why, kind, {"pack": _named("pack", pack)})

    def deactivate(
        self, name: str, pack: str, *, by: str, why: str = "", kind: Kind = "tool"
    ) -> Governed:
        """Remove a tool from a pack."""
        return self._moved("tool.deactivated", name, by, why, kind, {"pack": _named("pack", pack)})

    def freeze(self, name: str, *, by: str, why: str = "", kind: Kind = "tool") -> Governed:
        """Withhold the tool from all sessions that open from now on, with any facade."""
        return self._moved("tool.frozen", name, by, why, kind)

    def unfreeze(self, name: str, *, by: str, why: str = "", kind: Kind = "tool") -> Governed:
        """Make a frozen tool available again in its packs."""
        return self._moved("tool.unfrozen", name, by, why, kind)

    def deprecate(self, name: str, *, by: str, why: str = "", kind: Kind = "tool") -> Governed:
        """Warn sessions that get the tool; it can't be added to further packs."""
        return self._moved("tool.deprecated", name, by, why, kind)

    def define_facade(
        self, name: str, packs: Sequence[str], *, by: str, why: str = ""
    ) -> FacadeSnapshot:
        """Define the packs that a facade grants, from the next session on.

        Raises:
            GovernanceError: a pack in which no tool is active, or no pack at all.
        """
        if isinstance(packs, str) or not packs:
            raise GovernanceError(f"a facade needs a list of packs, not {packs!r}")
        event = {"facade": _named("facade", name), "packs": sorted(set(packs))}
        state = self._write("facade.defined", by, why, lambda _: event)
        return FacadeSnapshot.of(state, name, self.where, self.option)

    def _moved(
        self,
        event: str,
        name: str,
        by: str,
        why: str,
        kind: Kind,
        fields: dict[str, Any] | Callable[[Lifecycle], dict[str, Any]] | None = None,
    ) -> Governed:
        def make(state: Lifecycle) -> dict[str, Any]:
            more = fields(state) if callable(fields) else fields or {}
            return {"kind": kind, "tool": name, **more}

        return self._write(event, by, why, make).tools[kind, name]

    def _write(
        self, event: str, by: str, why: str, make: Callable[[Lifecycle], dict[str, Any]]
    ) -> Lifecycle:
        """Write one transition, if the state allows it; return the new state."""
        signed: dict[str, Any] = {"by": _person(by), "why": _text("why", why)}
        state = Lifecycle()

        def lines(before: list[dict[str, Any]]) -> list[dict[str, Any]]:
            nonlocal state
            state = self._followed(before)
            now = time_ns() // 1000
            line = {"event": event, "time": now, **signed, **make(state)}
            flaw = _flaw(line)
            if flaw:
                raise GovernanceError(f"{event}: {flaw}")
            state.apply(line)
            begins = {"event": BEGINS, "time": now, "format": FORMAT}
            return [line] if before else [begins, line]

        try:
            self._lines.append(lines)
        except NotAllowed as error:
            raise GovernanceError(str(error)) from None
        return state

    def _followed(self, lines: list[dict[str, Any]]) -> Lifecycle:
        state = Lifecycle()
        for number, line in enumerate(lines, 1):
            flaw = _flaw(line)
            if flaw:
                raise RegistryCorrupt(self.where, number, flaw)
            try:
                state.apply(line)
            except NotAllowed as error:
                problem = f"a line that could not have been written: {error}"
                raise RegistryCorrupt(self.where, number, problem) from None
        return state


def _proposed_digest(state: Lifecycle, kind: Kind, name: str) -> str:
    proposal = state.known(kind, name).proposal
    return "0" * 64 if proposal is None else proposal.digest


def _described(tool: Tool) -> dict[str, Any]:
    contract = getattr(tool, "__rollcage_contract__", tool)
    if not isinstance(contract, Contract):
        raise GovernanceError(f"{tool!r} is not a tool: declare it with @rollcage.tool")
    try:
        return described(contract)[0]
    except (RollcageError, ValueError, TypeError, RecursionError) as error:
        raise GovernanceError(f"{contract.name} can't be described: {error}") from error


def _person(by: object) -> str:
    try:
        return person(by)
    except ValueError as error:
        raise GovernanceError(f"by= has to name a person: {error}") from None


def _named(what: str, text: str) -> str:
    if not _text(what, text).strip():
        raise GovernanceError(f"{what}= is empty, and the registry has to record it")
    return text


def _text(what: str, text: object) -> str:
    if isinstance(text, str):
        with contextlib.suppress(UnicodeEncodeError):
            text.encode()
            return text
    raise GovernanceError(f"{what}={text!r} is no text")


def _flaw(line: dict[str, Any]) -> str:
    """Return how a line differs from its model; empty if it does not."""
    from rollcage_governance.lines import adapter  # building models takes time

    try:
        adapter().validate_python(line)
    except pydantic.ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return ""
