"""Conditions in CEL: compiled once, evaluated on a view of the step, within bounds.

Passing the arguments is most of a condition's cost: four microseconds for a map of two, against
a third of a microsecond for the evaluation. So only the arguments that a tool's conditions use are
passed, once for all conditions, in a reused context (`Sight`). If all of them are used by name
and present, each is passed as a variable of its own: 1.3 microseconds for the same two.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pydantic_core
from rollcage.errors import RollcageError
from rollcage.gate import StepView

from rollcage_policy.condition_values import (
    MOST_CHARACTERS,
    MOST_ELEMENTS,
    SCALARS,
    TOO_LARGE,
    ConditionFailed,
    Room,
)
from rollcage_policy.expression import Expression, variable
from rollcage_policy.expression_reader import read_expression
from rollcage_policy.functions import FUNCTIONS
from rollcage_policy.sql import load_parser
from rollcage_policy.tokens import ConditionInvalid

if TYPE_CHECKING:
    import cel  # half a second to import, most of it for its command line: only a policy needs it

__all__ = ["MOST_NANOSECONDS", "NO_BOOL", "Condition", "Sight", "failed"]

MOST_NANOSECONDS: Final = 300_000_000
"""The maximal cost of one evaluation, by `Expression.cost`."""

Program: TypeAlias = "Callable[[cel.Context], object]"
"""Evaluates a condition in a context of `Sight`. Only True and False are answers."""

_FREE_ELEMENTS: Final = 64  # up to so many elements, no condition is too costly
_FREE_CHARACTERS: Final = 4096


NO_BOOL: Final = ConditionFailed("it returns no bool")
"""The failure of a condition that returned another value; it is never raised."""


class Condition:
    """One condition, ready to be evaluated.

    Attributes:
        expression: its text, with the names that it uses.
        execute: evaluates the condition, with the arguments as a map. Pass its exception to
            `failed`.

    Raises:
        ConditionInvalid: the text is not CEL, or uses a name that does not exist.
    """

    __slots__ = ("_named", "execute", "expression")

    def __init__(self, source: str, constants: Mapping[str, Any] | None = None) -> None:
        import cel

        self.expression: Expression = read_expression(source, constants or {}, FUNCTIONS)
        for pattern in self.expression.patterns:
            _regex(pattern)
        if "sql_reads_only" in self.expression.functions:
            _load_parser()
        try:
            program = cel.compile(self.expression.inner)
        except Exception as error:  # noqa: BLE001 - whatever the parser raises
            raise ConditionInvalid(_syntax(str(error))) from None
        self.execute: Program = program.execute
        self._named: Program | None = None

    def named(self) -> Program | None:
        """Return the program with a variable for each argument; None if there can't be one.

        It is compiled at the first call of a tool, because compiling takes a millisecond.
        """
        if self._named is None and self.expression.named is not None:
            import cel

            self._named = cel.compile(self.expression.named).execute
        return self._named


def failed(error: BaseException) -> ConditionFailed:
    """Return the error of an evaluation, as a failure of the condition.

    Pass any exception to it: a panic of the library is not an `Exception`.

    Raises:
        BaseException: an exception that concerns the process, not the condition, is raised again.
    """
    if isinstance(error, ConditionFailed):
        return error
    if isinstance(error, (KeyboardInterrupt, SystemExit, GeneratorExit)):
        raise error
    return ConditionFailed(_why(error))


class Sight:
    """The fields of one contract's calls that conditions see: only the fields that they use.

    Any number of threads may use it: each has a context of its own while it decides. There
    are as many contexts as there ever were decisions at once.
    """

    __slots__ = ("_agent", "_args", "_constants", "_costly", "_functions", "_kept", "_labels",
                 "_named", "_run", "_tool")  # fmt: skip

    def __init__(
        self, conditions: Iterable[Condition], view: StepView, constants: Mapping[str, Any]
    ) -> None:
        seen: dict[str, set[str] | None] = {}
        functions: set[str] = set()
        conditions = tuple(conditions)
        self._costly = tuple(condition.expression for condition in conditions)
        for expression in self._costly:
            functions |= expression.functions
            for name, fields in expression.fields.items():
                known = seen.setdefault(name, set())
                seen[name] = None if known is None or fields is None else known | fields
        if any(expression.patterns for expression in self._costly):
            functions.add("Matches")
        self._functions = {name: _CALLABLE[name] for name in sorted(functions)}
        args = _names(seen, "args")
        self._args = None if args is None else {name: name for name in args}
        self._named: dict[str, str] | None = None
        if args and all(condition.named() for condition in conditions):
            self._named = {name: variable(name) for name in args}
        self._run = _names(seen, "run", _RUN)
        self._labels = "labels" in seen
        self._tool = {n: _TOOL[n](view) for n in _names(seen, "tool", _TOOL) or ()}
        self._agent = {"name": view.agent} if "agent" in seen else None
        self._constants = {n: constants[n] for n in _names(seen, "const", constants) or ()}
        self._kept: tuple[list[cel.Context], ...] = ([], [])  # as a map, by name

    def programs(self, condition: Condition) -> tuple[Program, Program]:
        """Return the programs of a condition: with the arguments as a map, and by name."""
        named = condition.named() if self._named else None
        return condition.execute, named or condition.execute

    def of(self, view: StepView) -> tuple[cel.Context, bool]:
        """Return the context for a call, and whether it has the arguments by name.

        Return it with `give_back` after evaluating the conditions.

        Raises:
            ConditionFailed: the arguments are too large, or of kinds that CEL does not have.
        """
        data, names = view.data, self._named
        by_name = names is not None and names.keys() <= data.keys()
        try:
            context = self._kept[by_name].pop()
        except IndexError:
            context = self._fresh()
        try:
            if by_name:
                for name, value in self._arguments(data, names).items():
                    context.add_variable(name, value)
            elif self._args != {}:
                context.add_variable("args", self._arguments(data, self._args))
            if self._run:
                context.add_variable("run", {name: _RUN[name](view) for name in self._run})
            if self._labels:
                context.add_variable("labels", sorted(view.labels))
        except BaseException as error:  # noqa: BLE001 - `failed` lets through what has to
            raise failed(error) from None
        return context, by_name

    def evaluate(self, condition: Condition, view: StepView) -> object:
        """Evaluate a condition on a call; pass its exception to `failed`."""
        context, by_name = self.of(view)
        return self.programs(condition)[by_name](context)

    def give_back(self, context: cel.Context, *, by_name: bool) -> None:
        """Return a context of `of`, to be used for another call."""
        self._kept[by_name].append(context)

    def _fresh(self) -> cel.Context:
        import cel

        named = {"tool": self._tool, "agent": self._agent, "const": self._constants}
        variables = {"Const" if n == "const" else n: v for n, v in named.items() if v}
        return cel.Context(variables, self._functions)

    def _arguments(
        self, data: Mapping[str, Any], names: Mapping[str, str] | None
    ) -> dict[str, Any]:
        """Return the used arguments, under these names, as CEL values."""
        found: dict[str, Any] = {}
        elements = characters = 0
        for name in data if names is None else names:
            if name in data:
                value = data[name]
                kind = type(value)
                if kind is str:
                    characters += len(value)
                elif kind not in SCALARS:
                    room = Room()
                    value = room.plain(value, 0)
                    elements += MOST_ELEMENTS - room.elements
                    characters += MOST_CHARACTERS - room.characters
                elements += 1
                found[name if names is None else names[name]] = value
        if elements > _FREE_ELEMENTS or characters > _FREE_CHARACTERS:
            self._bounded(elements, characters)
        return found

    def _bounded(self, elements: int, characters: int) -> None:
        if elements > MOST_ELEMENTS or characters > MOST_CHARACTERS:
            raise ConditionFailed(TOO_LARGE)
        if any(each.cost(elements, characters) > MOST_NANOSECONDS for each in self._costly):
            raise ConditionFailed(TOO_LARGE)


_TOOL: Final[Mapping[str, Callable[[StepView], Any]]] = {
    "name": lambda view: view.contract.name,
    "version": lambda view: view.contract.version,
    "effect": lambda view: view.contract.effect,
    "risk": lambda view: view.contract.risk,
    "reversible": lambda view: view.contract.reversible,
    "idempotent": lambda view: view.contract.idempotent,
    "permissions": lambda view: list(view.contract.permissions),
    "kind": lambda view: view.kind,
}
_RUN: Final[Mapping[str, Callable[[StepView], Any]]] = {
    "id": lambda view: view.run.id if view.run else "",
    "name": lambda view: view.run.name if view.run else "",
    "calls": lambda view: view.run.calls if view.run else view.calls,
    "tokens": lambda view: view.run.tokens if view.run else 0,
    "cost": lambda view: float(view.run.cost) if view.run else 0.0,
    "elapsed": lambda view: float(view.run.elapsed) if view.run else 0.0,
}


def _names(
    seen: Mapping[str, set[str] | None], root: str, every: Iterable[str] | None = None
) -> tuple[str, ...] | None:
    """Return the used fields; all of `every` if any may be used."""
    fields = seen.get(root, ())
    if fields is None:
        return None if every is None else tuple(every)
    return tuple(sorted(fields))


# --- matches ------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1024)
def _regex(pattern: str) -> Callable[[object], bool]:
    """Return a matcher for a pattern in Rust's regex engine, which is linear-time, as in CEL."""
    schema = pydantic_core.core_schema.str_schema(
        pattern=pattern, regex_engine="rust-regex", strict=True
    )
    try:
        return pydantic_core.SchemaValidator(schema).isinstance_python
    except pydantic_core.SchemaError as error:
        last = str(error).strip().splitlines()[-1].strip()
        raise ConditionInvalid(
            f"the pattern {pattern[:60]!r} is not a regular expression: {last[:200]}"
        ) from None


def _load_parser() -> None:
    try:
        load_parser()
    except ImportError:
        raise ConditionInvalid(
            "sql_reads_only needs sqlglot: pip install 'rollcage[sql]'"
        ) from None


def _matches(text: object, pattern: str) -> bool:
    if type(text) is not str:
        raise ValueError("matches takes a text")
    return _regex(pattern)(text)


# --- errors --------------------------------------------------------------------------------------


def _syntax(message: str) -> str:
    """Return the parser's first error."""
    for line in message.splitlines():
        _, found, rest = line.partition("ERROR: <input>:")
        if found:
            row, _, after = rest.partition(":")
            column, _, reason = after.partition(": ")
            where = f"column {column}" if row == "1" else f"its line {row}, column {column}"
            return f"{where}: {reason.split(' expecting {')[0][:200]}"
    return message[:200]


_FAILURES: Final[Mapping[type[BaseException], str]] = {
    TypeError: "an operation does not take values of these kinds",
    IndexError: "a list has no such element",
    OverflowError: "a number is beyond 64 bits",
    ZeroDivisionError: "a division by zero",
}
_NO_ANSWER: Final = object()  # not a value of CEL
_last: Final = threading.local()  # the last error of a Rollcage function


def _called(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function to fail silently: the library would log its arguments."""

    def call(*given: object) -> object:
        try:
            return function(*given)
        except BaseException as error:  # noqa: BLE001 - reported by `_why`, which denies
            _last.error = (name, error)
            return _NO_ANSWER

    return call


_CALLABLE: Final[Mapping[str, Callable[..., Any]]] = {
    name: _called(name, function) for name, function in {**FUNCTIONS, "Matches": _matches}.items()
}


def _why(error: BaseException) -> str:
    """Describe an error without any values."""
    if isinstance(error, KeyError):
        return f"there is no {str(error.args[0])[:80]!r}; ask `has(…)` first"
    if isinstance(error, RuntimeError):
        name, failed = _last.__dict__.pop("error", ("", None))
        if failed is not None:
            if not isinstance(failed, Exception):
                raise failed  # the user pressed Ctrl-C
            own = isinstance(failed, ValueError | RollcageError)  # the message is Rollcage's
            message = str(failed) if own else f"it failed ({type(failed).__name__})"
            named = message.startswith((f"{name} ", f"{name}:")) or name == "Matches"
            return message[:200] if named else f"{name}: {message[:200]}"
    return _FAILURES.get(type(error), f"it failed ({type(error).__name__})")
