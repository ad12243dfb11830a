"""Undo packs: a file's declarations of a server's tools, as fields of their contracts.

A pack is data. It names tools of the server: for observing a state, for undoing a call, for probing
an unknown outcome.
"""

from __future__ import annotations

import secrets
import tomllib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Final, Self

import pydantic
from rollcage import Compensation, DidNotHappen, Happened

from rollcage_mcp.contracts import text_of
from rollcage_mcp.errors import PackInvalid
from rollcage_mcp.messages import text_result
from rollcage_mcp.pack_file import (
    UNSEEN,
    PackFile,
    PackLook,
    PackProbe,
    PackTool,
    Tools,
    misfits,
    placeholders,
    root_of,
    wrong_names,
)
from rollcage_mcp.templates import Missing, filled

__all__ = ["BUILT_IN", "Pack", "Tools"]


BUILT_IN: Final = ("filesystem", "git", "memory", "sqlite")


class Pack:
    """A pack's declarations of a server's tools.

    Args:
        source: its name in errors.
        tools: by name.
    """

    def __init__(self, source: str, tools: Mapping[str, PackTool]) -> None:
        self.source = source
        self._tools = tools

    @classmethod
    def load(cls, named: str | Path) -> Self:
        """Load a pack that comes with the package, by its name; or a file.

        Raises:
            PackInvalid: the pack can't be read, or used; names each problem.
        """
        known = str(named) in BUILT_IN
        path = resources.files("rollcage_mcp.packs") / f"{named}.toml" if known else Path(named)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            listed = ", ".join(BUILT_IN)
            raise PackInvalid(
                f"the pack {str(named)!r} can't be read ({error}): name a file, or one of {listed}"
            ) from None
        return cls.parse(text, str(named))

    @classmethod
    def parse(cls, text: str, source: str) -> Self:
        """Parse the pack in a text.

        Raises:
            PackInvalid: the pack can't be used; names each problem.
        """
        try:
            file = PackFile.model_validate(tomllib.loads(text))
        except tomllib.TOMLDecodeError as error:
            raise PackInvalid(f"{source}: {error}") from None
        except pydantic.ValidationError as error:
            raise PackInvalid.several(
                source,
                [
                    f"{'.'.join(map(str, each['loc']))}: {each['msg']}"
                    for each in error.errors(include_url=False, include_input=False)
                ],
            ) from None
        pack = cls(source, file.tools)
        wrong = [
            message for name, tool in file.tools.items() for message in wrong_names(name, tool)
        ]
        if wrong:
            raise PackInvalid.several(source, wrong)
        return pack

    def check(self, listed: Mapping[str, Mapping[str, Any]]) -> None:
        """Compare the pack with the server's list: by a tool's name, its definition.

        Raises:
            PackInvalid: the pack names a missing tool or argument; names each.
        """
        wrong = [
            message for name, tool in self._tools.items() for message in misfits(name, tool, listed)
        ]
        if wrong:
            raise PackInvalid.several(self.source, wrong)

    def names(self) -> frozenset[str]:
        """Return the tools in the pack."""
        return frozenset(self._tools)

    def plans(self, name: str) -> dict[str, Any]:
        """Return a tool's observation, undo and probe as data: a part of its approved form."""
        tool = self._tools.get(name)
        which = {"let", "observe", "undo", "probe"}
        plans = None if tool is None else tool.model_dump(mode="json", include=which)
        return {} if plans is None or not any(plans.values()) else {"x-pack": plans}

    def declared(self, name: str, tools: Tools) -> dict[str, Any]:
        """Return the fields of a tool's contract; empty for a tool without a declaration.

        Args:
            name: the tool's name.
            tools: the tools of the server.
        """
        tool = self._tools.get(name)
        if tool is None:
            return {}
        fields: dict[str, Any] = {
            "effect": tool.effect,
            "idempotent": tool.idempotent,
            "risk": tool.risk,
            "labels": tool.labels,
            "secret": tool.secret,
        }
        if tool.observe:
            fields["observe"] = _observing(tool, tools)
        if tool.undo:
            fields["undo"] = _undoing(tool, tools)
        if tool.probe is not None:
            fields["probe"] = _probing(tool, tool.probe, tools)
        return fields


# --- the fields of a contract --------------------------------------------------------------------


def _observing(tool: PackTool, tools: Tools) -> Callable[..., Awaitable[dict[str, Any]]]:
    async def observe(args: dict[str, Any]) -> dict[str, Any]:
        state = {
            seen.resource(asked): seen.state(await tools.look(seen.tool, asked))
            for _, seen, asked in _looks(tool, _values(tool, args))
        }
        # For a call that can't be observed, no two states are the same.
        return state or {"not seen": secrets.token_hex(8)}

    return observe


def _undoing(tool: PackTool, tools: Tools) -> Callable[..., list[Compensation] | None]:
    def plan(values: dict[str, Any]) -> list[Compensation] | None:
        try:
            made = [each.made(values, tools) for each in tool.undo if each.holds(values)]
        except Missing:
            return None
        return made or None

    def known(args: dict[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
        values = _values(tool, args)
        seen = {
            name: before.get(each.resource(asked)) for name, each, asked in _looks(tool, values)
        }
        seen = {name: state for name, state in seen.items() if state != UNSEEN}
        return {**values, "before": seen}

    def before_only(args: dict[str, Any], before: Mapping[str, Any]) -> Any:
        return plan(known(args, before))

    def with_result(args: dict[str, Any], before: Mapping[str, Any], result: Any) -> Any:
        return plan(_picked(tool, {**known(args, before), "result": _shown(result)}))

    needs_result = any(root_of(path) == "result" for _, path in placeholders(tool))
    return with_result if needs_result else before_only


def _looks(
    tool: PackTool, values: Mapping[str, Any]
) -> Iterator[tuple[str, PackLook, dict[str, Any]]]:
    """Return the observations around a call: by name in the pack, with the arguments."""
    for name, seen in tool.observe.items():
        try:
            yield name, seen, {word: filled(each, values) for word, each in seen.args.items()}
        except Missing:
            continue  # not for this call: the argument is missing, or has another form


def _probing(tool: PackTool, probe: PackProbe, tools: Tools) -> Callable[..., Awaitable[Any]]:
    async def ask_whether(args: dict[str, Any]) -> Happened | DidNotHappen | None:
        try:
            values = _values(tool, args)
            asked = {name: filled(each, values) for name, each in probe.args.items()}
        except Missing:
            return None
        result = await tools.look(probe.tool, asked)
        if result.get("isError") is True:
            return None
        found = probe.state(result) is not None
        if found is not (probe.happened == "if"):
            return DidNotHappen()
        return Happened({"result": text_result("done")})

    return ask_whether


def _values(tool: PackTool, args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a call for placeholders, before the call is made."""
    return _picked(tool, {"args": args})


def _picked(tool: PackTool, values: dict[str, Any]) -> dict[str, Any]:
    """Return the values together with the values of `let`."""
    for name, let in tool.let.items():
        try:
            text = filled(let.source, values)
        except Missing:
            continue
        match = let.pick.search(text) if isinstance(text, str) else None
        if match is not None:
            values[name] = match[1]
    return values


def _shown(value: Any) -> Any:
    """Return a recorded result for placeholders: its structured content, else its text."""
    result: Mapping[str, Any] = value.get("result", {}) if isinstance(value, Mapping) else {}
    structured: Any = result.get("structuredContent")
    return {"text": text_of(result)} | (structured if isinstance(structured, dict) else {})
