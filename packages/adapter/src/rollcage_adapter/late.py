"""Tools that become known after the session has opened: each is guarded when it is first seen."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rollcage import Session
from rollcage.errors import ContractError
from rollcage.session.adapters import Effect

from rollcage_adapter.declarations import Declarations
from rollcage_adapter.guards import guarding

__all__ = ["LateTools"]


class LateTools:
    """Guards the tools that a framework brings later (such as another middleware's), each once.

    Args:
        session: the session that guards the calls.
        guard: the adapter's `guard_tools`.
        effects: their declared effects; unknown names are not an error yet.
        contracts: their declared contracts, likewise.
    """

    def __init__(
        self,
        session: Session,
        guard: Callable[..., list[Any]],
        effects: Mapping[str, Effect] | None = None,
        contracts: Declarations | None = None,
    ) -> None:
        self.session = session
        self._guard = guard
        self._effects = effects or {}
        self._contracts = contracts or {}
        self._made: dict[int, tuple[Any, Any]] = {}  # by the original, which it keeps alive
        self._lock = threading.Lock()
        self._met: set[str] = set()

    def meet(self, tools: Iterable[Any]) -> None:
        """Guard offered tools, each name once: an undo may need one before it is called.

        A tool that can't be guarded is refused when it is called.
        """
        for tool in tools:
            if tool.name not in self._met:
                self._met.add(tool.name)
                with contextlib.suppress(ContractError):
                    self.guarded(tool)

    def guarded(self, tool: Any) -> Any:
        """Return the guarded form of a tool; a tool that the session guards is returned itself.

        Raises:
            ContractError: another session guards it, or it can't be guarded.
            ToolRefused: the session's facade does not give it.
        """
        own = guarding(tool)
        if own is self.session:
            return tool
        if own is not None:
            raise ContractError(f"{tool.name} is guarded by another session than its agent")
        with self._lock:
            found = self._made.get(id(tool))
            if found is None:
                name = tool.name
                guarded = self._guard(
                    [tool],
                    self.session,
                    effects={n: each for n, each in self._effects.items() if n == name},
                    contracts={n: each for n, each in self._contracts.items() if n == name},
                )
                found = self._made[id(tool)] = tool, guarded[0]
            return found[1]
