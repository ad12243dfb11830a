"""The content of a pack's file, and its problems."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Literal, Protocol

import orjson
import pydantic
from rollcage import Compensation, compensate
from rollcage_adapter import Effect

from rollcage_mcp.contracts import text_of
from rollcage_mcp.templates import Missing, filled, names_in, value_at

__all__ = [
    "UNSEEN",
    "PackFile",
    "PackLook",
    "PackProbe",
    "PackTool",
    "Tools",
    "misfits",
    "placeholders",
    "root_of",
    "wrong_names",
]


class Tools(Protocol):
    """The tools of a server, for a pack."""

    async def look(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the result of a tool that changes nothing: it is called outside of the session."""
        ...

    def function(self, name: str) -> Callable[..., Any]:
        """Return a tool as a function with its contract, for a compensation."""
        ...


UNSEEN: Final = {"isError": True}  # the state of a failed observation
_TAKES: Final = re.compile(r"text|result|structured(\.[A-Za-z_][\w-]*)*")


class _Part(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, strict=True)


class PackCall(_Part):
    """A call of one of the server's tools."""

    tool: str
    args: dict[str, Any] = {}


class PackLook(PackCall):
    """An observing call, and the part that is taken of its result."""

    take: str = "structured"
    pick: re.Pattern[str] | None = None
    unordered: bool = False

    @pydantic.field_validator("pick", mode="before")
    @classmethod
    def _compiled(cls, value: Any) -> Any:
        return _pattern(value)

    @pydantic.field_validator("take")
    @classmethod
    def _known(cls, value: str) -> str:
        if not _TAKES.fullmatch(value):
            raise ValueError("it is text, result, structured, or structured.NAME")
        return value

    def state(self, result: Mapping[str, Any]) -> Any:
        """Return the observed part; None without one, `UNSEEN` if the tool returns an error."""
        if result.get("isError") is True:
            return dict(UNSEEN)
        taken: Any = result
        if self.take == "text":
            taken = text_of(result)
        elif self.take != "result":
            taken = _at("structuredContent" + self.take.removeprefix("structured"), result)
        if self.pick is None or not isinstance(taken, str):
            return _sorted(taken) if self.unordered else taken
        match = self.pick.search(taken)
        return None if match is None else match[1]

    def resource(self, asked: Mapping[str, Any]) -> str:
        """Return the name of the observed resource, the same for all tools that observe it so."""
        how = [self.tool, asked, self.take, self.unordered, self.pick and self.pick.pattern]
        return f"{self.tool} {orjson.dumps(how[1:], option=orjson.OPT_SORT_KEYS).decode()}"


class PackLet(_Part):
    """A part of an argument's text, under a name."""

    source: str = pydantic.Field(alias="from")
    pick: re.Pattern[str]

    @pydantic.field_validator("pick", mode="before")
    @classmethod
    def _compiled(cls, value: Any) -> Any:
        return _pattern(value)


class PackUndo(PackCall):
    """A compensating call."""

    if_: str | None = pydantic.Field(default=None, alias="if")
    unless: str | None = None

    def made(self, values: Mapping[str, Any], tools: Tools) -> Compensation:
        """Return the call itself. Raises `Missing`."""
        arguments = {name: filled(each, values) for name, each in self.args.items()}
        return compensate(tools.function(self.tool), **arguments)

    def holds(self, values: Mapping[str, Any]) -> bool:
        """Return whether the call is to be made: `if` has a value, and `unless` has none.

        A failed observation counts as neither.
        """
        wanted = self.if_ is None or _given(self.if_, values)
        return wanted and (self.unless is None or _lacking(self.unless, values))


class PackProbe(PackLook):
    """A probe: whether its result has a value tells whether a call has happened."""

    happened: Literal["if", "unless"] = "if"


class PackTool(_Part):
    """The declaration of one tool."""

    effect: Effect
    idempotent: bool = False
    risk: str = ""
    labels: tuple[str, ...] = ()
    secret: frozenset[str] = frozenset()
    let: dict[str, PackLet] = {}
    observe: dict[str, PackLook] = {}
    undo: tuple[PackUndo, ...] = ()
    probe: PackProbe | None = None

    @pydantic.field_validator("labels", "undo", mode="before")
    @classmethod
    def _as_tuple(cls, value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value

    @pydantic.field_validator("secret", mode="before")
    @classmethod
    def _as_set(cls, value: Any) -> Any:
        return frozenset(value) if isinstance(value, list) else value


class PackFile(_Part):
    """The content of a pack: the declaration of each tool, by its name."""

    tools: dict[str, PackTool]


# --- values --------------------------------------------------------------------------------------


def _sorted(value: Any) -> Any:
    """Return the value with each of its lists in a canonical order."""
    if isinstance(value, dict):
        return {name: _sorted(each) for name, each in value.items()}
    if isinstance(value, list):
        items = [_sorted(each) for each in value]
        return sorted(items, key=lambda each: orjson.dumps(each, option=orjson.OPT_SORT_KEYS))
    return value


def _given(template: str, values: Mapping[str, Any]) -> bool:
    try:
        return filled(template, values) is not None
    except Missing:
        return False


def _lacking(template: str, values: Mapping[str, Any]) -> bool:
    """Return whether it is certain that there is no value."""
    try:
        return filled(template, values) is None
    except Missing:
        return all(root_of(path) != "before" for path in names_in(template))


def root_of(path: str) -> str:
    """Return the name that a placeholder's path begins with."""
    return re.split(r"[.\[]", path, maxsplit=1)[0]


def _at(path: str, values: Mapping[str, Any]) -> Any:
    try:
        return value_at(path, values)
    except Missing:
        return None


# --- its problems --------------------------------------------------------------------------------


def _pattern(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        pattern = re.compile(value)
    except re.error as error:
        raise ValueError(f"no regular expression: {error}") from None
    if pattern.groups < 1:
        raise ValueError("it picks nothing: put what is to be taken in parentheses")
    return pattern


def _calls(tool: PackTool) -> Iterator[tuple[str, PackCall]]:
    """Yield the calls in a tool's declaration, each with its place."""
    for name, seen in tool.observe.items():
        yield f"observe.{name}", seen
    for index, each in enumerate(tool.undo):
        yield f"undo[{index}]", each
    if tool.probe is not None:
        yield "probe", tool.probe


def placeholders(tool: PackTool) -> Iterator[tuple[str, str]]:
    """Yield all placeholders in a tool's declaration, each with its place."""
    for name, let in tool.let.items():
        yield from ((f"let.{name}", path) for path in names_in(let.source))
    for place, called in _calls(tool):
        conditions = [called.if_, called.unless] if isinstance(called, PackUndo) else []
        for template in (called.args, *conditions):
            yield from ((place, path) for path in names_in(template))


def wrong_names(name: str, tool: PackTool) -> Iterator[str]:
    """Yield the problems of a tool's placeholders, as far as the pack alone shows."""
    if tool.effect != "write" and (tool.observe or tool.undo or tool.probe is not None):
        yield f"tools.{name}: a {tool.effect} changes nothing: observe, undo, probe are for writes"
    own = {"args", "item", *tool.let}
    try:
        found = list(placeholders(tool))
    except ValueError as error:
        yield f"tools.{name}: {error}"
        return
    for place, path in found:
        root, *rest = re.split(r"[.\[]", path)
        known = own | ({"before", "result"} if place.startswith("undo") else set())
        known |= {"result"} if place.startswith("let") else set()
        if root not in known:
            yield f"tools.{name}.{place}: {{{path}}} names nothing: {', '.join(sorted(known))}"
        elif root == "before" and (not rest or rest[0] not in tool.observe):
            seen = ", ".join(tool.observe) or "nothing"
            yield f"tools.{name}.{place}: {{{path}}} was not observed: observe has {seen}"


def _properties(definition: Mapping[str, Any]) -> frozenset[str]:
    schema: Any = definition.get("inputSchema")
    found: Any = schema.get("properties") if isinstance(schema, Mapping) else None
    return frozenset(found) if isinstance(found, Mapping) else frozenset()


def _unfit(called: PackCall, listed: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Return why the server would not accept a call."""
    definition = listed.get(called.tool)
    if definition is None:
        yield f"the server has no tool {called.tool!r}"
        return
    own = _properties(definition)
    yield from (
        f"{called.tool} has no argument {each!r}" for each in called.args if each not in own
    )
    schema: Any = definition.get("inputSchema", {})
    required: Any = schema.get("required") or [] if isinstance(schema, Mapping) else []
    missing = [each for each in required if each not in called.args]
    yield from (f"{called.tool} wants the argument {each!r}" for each in missing)


def misfits(name: str, tool: PackTool, listed: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield the misfits between a tool's declaration and the server's list."""
    if name not in listed:
        yield f"tools.{name}: the server has no such tool"
        return
    own = _properties(listed[name])
    for place, path in placeholders(tool):
        parts = re.split(r"[.\[]", path)
        if parts[0] == "args" and len(parts) > 1 and parts[1] not in own:
            yield f"tools.{name}.{place}: {name} has no argument {parts[1]!r}"
    for each in sorted(tool.secret - own):
        yield f"tools.{name}.secret: {name} has no argument {each!r}"
    for place, called in _calls(tool):
        yield from (f"tools.{name}.{place}: {message}" for message in _unfit(called, listed))
