"""A conversation's knowledge of its server's tools: their contracts, page by page."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from rollcage import Contract
from rollcage_adapter import ServerPins

from rollcage_mcp.contracts import tool_contract
from rollcage_mcp.pack import Pack, Tools

__all__ = ["Listing", "ServerDeclarations", "definitions_of"]

_LOST: Final = object()  # no page follows the last page read


@dataclasses.dataclass(frozen=True)
class ServerDeclarations:
    """Declarations of a server's tools besides the server's own.

    Attributes:
        pack: another declaration of them; it counts first.
        trust: whether the server's own statement about effects counts.
        name: the server's name in the user's configuration.
        pins: the accepted declarations of the server; None: every declaration, because a facade
            decides, or no server is there.
    """

    pack: Pack | None = None
    trust: bool = False
    name: str = ""
    pins: ServerPins | None = None


class Listing:
    """The tools that a server lists.

    Args:
        declared: the declarations besides the server's own.
        server: calls them, for a pack.

    Attributes:
        contracts: by the server's names; while a list is read, earlier ones as well.
        is_whole: whether all pages were read, in their order, and the pack fits them.
    """

    def __init__(self, declared: ServerDeclarations, server: Tools) -> None:
        self.contracts: dict[str, Contract] = {}
        self.is_whole = False
        self._declared = declared
        self._server = server
        self._definitions: dict[str, Mapping[str, Any]] = {}
        self._awaited: object = _LOST  # the cursor of the next page

    def learn(self, cursor: object, page: Mapping[str, Any]) -> None:
        """Make the contracts of the tools on a page.

        Args:
            cursor: the cursor of the page; None for the first one.
            page: the result of `tools/list`.

        Raises:
            PackInvalid: it was the last page, and the pack does not fit the list.
        """
        follows = cursor is None or cursor == self._awaited
        if cursor is None:
            self.forget()
            self._definitions = {}
        for each in definitions_of(page):
            self._definitions[each["name"]] = each
            self.contracts[each["name"]] = self.contract_of(each)
        self._awaited = page.get("nextCursor") if follows else _LOST
        if follows and self._awaited is None:
            if self._declared.pack is not None:
                self._declared.pack.check(self._definitions)
            self.contracts = {name: self.contracts[name] for name in self._definitions}
            self.is_whole = True

    def is_of(self, tool: Mapping[str, Any]) -> bool:
        """Return whether a contract belongs to this definition, not to another of that name."""
        return bool(self.contracts[tool["name"]].json_schema.get("x-mcp-tool") == tool)

    def definition_of(self, name: str) -> Mapping[str, Any] | None:
        """Return the definition of a tool that is listed now; None if it is not."""
        contract = self.contracts.get(name)
        return None if contract is None else contract.json_schema["x-mcp-tool"]

    def forget(self) -> None:
        """Note that the list has changed: it will be read again."""
        self.is_whole = False
        self._awaited = _LOST

    def contract_of(self, tool: Mapping[str, Any]) -> Contract:
        """Return the contract of a tool by its definition."""
        declared = self._declared
        more = {} if declared.pack is None else declared.pack.declared(tool["name"], self._server)
        plans = {} if declared.pack is None else declared.pack.plans(tool["name"])
        return tool_contract(tool, trust=declared.trust, declared=more, plans=plans)


def definitions_of(
    page: Mapping[str, Any], field: str = "tools", name: str = "name"
) -> list[dict[str, Any]]:
    """Return the entries on a page of a server's list that have a name.

    Args:
        page: the result of a request, such as `tools/list`.
        field: its field with the entries.
        name: the field of an entry that names it.
    """
    entries: Any = page.get(field)
    return [
        each
        for each in (entries if isinstance(entries, list) else [])
        if isinstance(each, dict) and isinstance(each.get(name), str) and each[name]
    ]
