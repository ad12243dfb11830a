"""Undo packs: what a file says of a server's tools, as fields of their contracts.

A pack is data. It names tools of the server: to observe a state, to undo a call, to tell whether
one of unknown outcome has happened.
"""

from __future__ import annotations

import re
import secrets
import tomllib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Final, Literal, Protocol, Self

import orjson
import pydantic
from rollcage import Compensation, DidNotHappen, Happened, compensate
from rollcage.adapter import Effect

from rollcage_mcp.contracts import text_of
from rollcage_mcp.errors import PackInvalid
from rollcage_mcp.messages import text_result
from rollcage_mcp.templates import Missing, filled, names_in, value_at

__all__ = ["BUILT_IN", "Pack", "Tools"]


class Tools(Protocol):
    """The tools of a server, for a pack."""

    async def look(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The result of a tool that changes nothing: it is called past the session."""
        ...

    def function(self, name: str) -> Callable[..., Any]:
        """A tool as a function with its contract, for a compensation."""
        ...


BUILT_IN: Final = ("filesystem", "git", "memory", "sqlite")

_UNSEEN: Final = {"isError": True}  # the state of what could not be looked at
_TAKES: Final = re.compile(r"text|result|structured(\.[A-Za-z_][\w-]*)*")


class _Part(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, strict=True)


class _Called(_Part):
    """A call of one of the server's tools."""

    tool: str
    args: dict[str, Any] = {}


class _Seen(_Called):
    """A call that looks, and what is taken of its result."""

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
        """What is taken; None where there is nothing, `_UNSEEN` where the tool gives an error."""
        if result.get("isError") is True:
            return dict(_UNSEEN)
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
        """What is looked at, by one name for all tools that look at it so."""
        how = [self.tool, asked, self.take, self.unordered, self.pick and self.pick.pattern]
        return f"{self.tool} {orjson.dumps(how[1:], option=orjson.OPT_SORT_KEYS).decode()}"


class _Let(_Part):
    """A part of an argument's text, under a name."""

    source: str = pydantic.Field(alias="from")
    pick: re.Pattern[str]

    @pydantic.field_validator("pick", mode="before")
    @classmethod
    def _compiled(cls, value: Any) -> Any:
        return _pattern(value)


class _Undo(_Called):
    """A compensating call."""

    if_: str | None = pydantic.Field(default=None, alias="if")
    unless: str | None = None

    def made(self, values: Mapping[str, Any], tools: Tools) -> Compensation:
        """The call itself. Raises `Missing`."""
        arguments = {name: filled(each, values) for name, each in self.args.items()}
        return compensate(tools.function(self.tool), **arguments)

    def holds(self, values: Mapping[str, Any]) -> bool:
        """Whether it is to be made: `if` has a value, and `unless` has none.

        What could not be looked at has no value, and it is not certain that it has none.
        """
        wanted = self.if_ is None or _given(self.if_, values)
        return wanted and (self.unless is None or _lacking(self.unless, values))


class _Probe(_Seen):
    """How to tell whether a call has happened: something is taken of the result, or nothing."""

    happened: Literal["if", "unless"] = "if"


class _Tool(_Part):
    """What is said of one tool."""

    effect: Effect
    idempotent: bool = False
    risk: str = ""
    labels: tuple[str, ...] = ()
    secret: frozenset[str] = frozenset()
    let: dict[str, _Let] = {}
    observe: dict[str, _Seen] = {}
    undo: tuple[_Undo, ...] = ()
    probe: _Probe | None = None

    @pydantic.field_validator("labels", "undo", mode="before")
    @classmethod
    def _as_tuple(cls, value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value

    @pydantic.field_validator("secret", mode="before")
    @classmethod
    def _as_set(cls, value: Any) -> Any:
        return frozenset(value) if isinstance(value, list) else value


class _File(_Part):
    tools: dict[str, _Tool]


class Pack:
    """What a pack says of a server's tools.

    Args:
        source: what an error calls it.
        tools: by name.
    """

    def __init__(self, source: str, tools: Mapping[str, _Tool]) -> None:
        self.source = source
        self._tools = tools

    @classmethod
    def load(cls, named: str | Path) -> Self:
        """A pack that comes with the package, by its name; or a file.

        Raises:
            PackInvalid: it can't be read, or used; names each place that is wrong.
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
        """The pack that a text holds.

        Raises:
            PackInvalid: it can't be used; names each place that is wrong.
        """
        try:
            file = _File.model_validate(tomllib.loads(text))
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
        wrong = [said for name, tool in file.tools.items() for said in _wrong_names(name, tool)]
        if wrong:
            raise PackInvalid.several(source, wrong)
        return pack

    def check(self, listed: Mapping[str, Mapping[str, Any]]) -> None:
        """Hold the pack against what the server lists: by a tool's name, its definition.

        Raises:
            PackInvalid: it speaks of a tool or an argument that is not there; names each.
        """
        wrong: list[str] = []
        for name, tool in self._tools.items():
            if name not in listed:
                wrong.append(f"tools.{name}: the server has no such tool")
                continue
            own = _properties(listed[name])
            for place, path in _placeholders(tool):
                parts = re.split(r"[.\[]", path)
                if parts[0] == "args" and len(parts) > 1 and parts[1] not in own:
                    wrong.append(f"tools.{name}.{place}: {name} has no argument {parts[1]!r}")
            unknown = sorted(tool.secret - own)
            wrong += [f"tools.{name}.secret: {name} has no argument {each!r}" for each in unknown]
            for place, called in _calls(tool):
                wrong += [f"tools.{name}.{place}: {said}" for said in _unfit(called, listed)]
        if wrong:
            raise PackInvalid.several(self.source, wrong)

    def names(self) -> frozenset[str]:
        """The tools that it speaks of."""
        return frozenset(self._tools)

    def declared(self, name: str, tools: Tools) -> dict[str, Any]:
        """The fields of a tool's contract; empty of one that the pack does not name.

        Args:
            name: the tool's.
            tools: those of the server.
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


# --- what a contract is given --------------------------------------------------------------------


def _observing(tool: _Tool, tools: Tools) -> Callable[..., Awaitable[dict[str, Any]]]:
    async def observe(args: dict[str, Any]) -> dict[str, Any]:
        state = {
            seen.resource(asked): seen.state(await tools.look(seen.tool, asked))
            for _, seen, asked in _looks(tool, _values(tool, args))
        }
        # Of a call of which nothing can be seen, no two states are the same.
        return state or {"not seen": secrets.token_hex(8)}

    return observe


def _undoing(tool: _Tool, tools: Tools) -> Callable[..., list[Compensation] | None]:
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
        seen = {name: state for name, state in seen.items() if state != _UNSEEN}
        return {**values, "before": seen}

    def before_only(args: dict[str, Any], before: Mapping[str, Any]) -> Any:
        return plan(known(args, before))

    def with_result(args: dict[str, Any], before: Mapping[str, Any], result: Any) -> Any:
        return plan(_picked(tool, {**known(args, before), "result": _shown(result)}))

    needs_result = any(_root(path) == "result" for _, path in _placeholders(tool))
    return with_result if needs_result else before_only


def _looks(tool: _Tool, values: Mapping[str, Any]) -> Iterator[tuple[str, _Seen, dict[str, Any]]]:
    """What is looked at around a call: by its name in the pack, with the arguments."""
    for name, seen in tool.observe.items():
        try:
            yield name, seen, {word: filled(each, values) for word, each in seen.args.items()}
        except Missing:
            continue  # this call has nothing there: no such argument, or not of that form


def _sorted(value: Any) -> Any:
    """The value with each of its lists in an order that says nothing."""
    if isinstance(value, dict):
        return {name: _sorted(each) for name, each in value.items()}
    if isinstance(value, list):
        items = [_sorted(each) for each in value]
        return sorted(items, key=lambda each: orjson.dumps(each, option=orjson.OPT_SORT_KEYS))
    return value


def _probing(tool: _Tool, probe: _Probe, tools: Tools) -> Callable[..., Awaitable[Any]]:
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


def _values(tool: _Tool, args: Mapping[str, Any]) -> dict[str, Any]:
    """What placeholders may name of a call, before it is made."""
    return _picked(tool, {"args": args})


def _picked(tool: _Tool, values: dict[str, Any]) -> dict[str, Any]:
    """The values with what `let` takes of them."""
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
    """A recorded result as placeholders name it: its structured content, else its text."""
    result: Mapping[str, Any] = value.get("result", {}) if isinstance(value, Mapping) else {}
    structured: Any = result.get("structuredContent")
    return {"text": text_of(result)} | (structured if isinstance(structured, dict) else {})


def _given(template: str, values: Mapping[str, Any]) -> bool:
    try:
        return filled(template, values) is not None
    except Missing:
        return False


def _lacking(template: str, values: Mapping[str, Any]) -> bool:
    """Whether it is certain that there is no value."""
    try:
        return filled(template, values) is None
    except Missing:
        return all(_root(path) != "before" for path in names_in(template))


def _root(path: str) -> str:
    return re.split(r"[.\[]", path, maxsplit=1)[0]


def _at(path: str, values: Mapping[str, Any]) -> Any:
    try:
        return value_at(path, values)
    except Missing:
        return None


# --- what is wrong with it -----------------------------------------------------------------------


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


def _calls(tool: _Tool) -> Iterator[tuple[str, _Called]]:
    """The calls that a pack makes of a tool's, each with its place."""
    for name, seen in tool.observe.items():
        yield f"observe.{name}", seen
    for index, each in enumerate(tool.undo):
        yield f"undo[{index}]", each
    if tool.probe is not None:
        yield "probe", tool.probe


def _placeholders(tool: _Tool) -> Iterator[tuple[str, str]]:
    """All placeholders of what is said of a tool, each with its place."""
    for name, let in tool.let.items():
        yield from ((f"let.{name}", path) for path in names_in(let.source))
    for place, called in _calls(tool):
        conditions = [called.if_, called.unless] if isinstance(called, _Undo) else []
        for template in (called.args, *conditions):
            yield from ((place, path) for path in names_in(template))


def _wrong_names(name: str, tool: _Tool) -> Iterator[str]:
    """What is wrong with a tool's placeholders, as far as the pack alone tells."""
    if tool.effect != "write" and (tool.observe or tool.undo or tool.probe is not None):
        yield f"tools.{name}: a {tool.effect} changes nothing: observe, undo, probe are for writes"
    own = {"args", "item", *tool.let}
    try:
        found = list(_placeholders(tool))
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


def _unfit(called: _Called, listed: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Why the server would not take a call."""
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
