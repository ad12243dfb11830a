"""Jinja templates that can neither reach into Python nor run without end.

Jinja's sandbox restricts access, but neither time nor output. So only the listed parts of the
language are accepted: no calls, no macros, no attributes of Python objects; every turn of a loop
and every output character is counted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from rollcage_toolbox.errors import InputRefused, LimitExceeded

if TYPE_CHECKING:
    from jinja2 import Environment, nodes

__all__ = ["render"]

_TEMPLATE: Final = 64 * 1024  # characters
_OUTPUT: Final = 2**20  # characters, including intermediate texts
_VALUES: Final = 2**20  # characters, as JSON
_TURNS: Final = 100_000  # of all loops
_WORK: Final = 2 * 10**6  # KiB for comparisons and slices in loops
_NODES: Final = frozenset({
    "Template", "Output", "TemplateData", "Name", "Const", "Getitem", "Getattr", "For", "If",
    "Assign", "Filter", "Test", "Compare", "Operand", "And", "Or", "Not", "CondExpr", "Add",
    "Sub", "Mul", "Div", "FloorDiv", "Mod", "Neg", "Pos", "Concat", "List", "Tuple", "Keyword",
    "Slice",
})  # fmt: skip
_FILTERS: Final = frozenset({
    "abs", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float",
    "int", "items", "join", "last", "length", "list", "lower", "max", "min", "replace",
    "reverse", "round", "sort", "string", "sum", "title", "tojson", "trim", "unique", "upper",
    "urlencode", "wordcount",
})  # fmt: skip
_TESTS: Final = frozenset({
    "boolean", "defined", "divisibleby", "even", "false", "float", "in", "integer", "iterable",
    "lower", "mapping", "none", "number", "odd", "sequence", "string", "true", "undefined",
    "upper",
})  # fmt: skip
_SCALARS: Final = (str, int, float, bool, type(None))


def render(template: str, values: Mapping[str, Any]) -> str:
    """Render a template with JSON values.

    Raises:
        InputRefused: the template is wrong, needs a missing value, or uses a part of the
            language that is not accepted.
        LimitExceeded: the template is too long, its output too large, or its loops too many.
    """
    import jinja2

    if len(template) > _TEMPLATE:
        raise LimitExceeded(f"a template has at most {_TEMPLATE} characters")
    copied = json.dumps(values)
    if len(copied) > _VALUES:
        raise LimitExceeded(f"a template's values have at most {_VALUES} characters as JSON")
    plain: dict[str, Any] = json.loads(copied)  # our own lists and dicts, nothing else
    work = _Work(len(copied) + len(template))
    environment = _environment(work)
    try:
        tree = _refined(environment.parse(template), environment)
        compiled = environment.from_string(tree)
        return "".join(compiled.generate(plain))
    except jinja2.TemplateError as error:
        raise InputRefused(f"the template can't be rendered: {error}") from None
    except (ArithmeticError, TypeError, ValueError, KeyError, RecursionError) as error:
        raise InputRefused(f"the template can't be rendered: {error!r}") from None


class _Work:
    """The remaining budget of one rendering."""

    def __init__(self, given: int) -> None:
        self.given = given  # characters of the template and its values
        self.turns = 0
        self.done = 0  # KiB
        self.made = 0  # characters

    def turn(self, linear: int) -> bool:
        """Count a turn of a loop, in which `linear` operations may each take linear time."""
        self.turns += 1
        self.done += linear * ((self.given + self.made) // 1024)
        if self.turns > _TURNS or self.done > _WORK:
            raise LimitExceeded(f"the template's loops do too much in {self.turns} turns")
        return True

    def take(self, characters: int) -> None:
        self.made += characters
        if self.made > _OUTPUT:
            raise LimitExceeded(f"the template makes more than {_OUTPUT} characters")

    # --- output ----------------------------------------------------------------------------------

    def shown(self, value: Any) -> str:
        """Return a value's text; containers have more than one form, so none."""
        if not isinstance(value, _SCALARS):
            import jinja2

            if isinstance(value, jinja2.Undefined):
                str(value)  # names the missing value
            raise InputRefused(
                f"a {type(value).__name__} has no one form as text: use join, tojson or its parts"
            )
        text = "" if value is None else str(value)
        self.take(len(text))
        return text

    def concat(self, *values: Any) -> str:
        return "".join(map(self.shown, values))

    def join(self, values: Any, d: Any = "") -> str:
        between = str(d)
        texts: list[str] = []
        for each in values:
            self.take(len(between))
            texts.append(self.shown(each))
        return between.join(texts)

    def replace(self, text: Any, old: str, new: str, count: int = -1) -> str:
        whole = self.shown(text)
        found = whole.count(str(old)) if count < 0 else min(count, whole.count(str(old)))
        self.take(len(whole) + found * len(str(new)))
        return whole.replace(str(old), str(new), count)

    def tojson(self, value: Any) -> str:
        """Return JSON of one of the values. Values hold no part twice, so their size bounds it."""
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        self.take(len(text))
        return text

    def bounded(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a Jinja filter whose result counts."""

        def run(*args: Any, **kwargs: Any) -> Any:
            self.take(sum(len(each) for each in args if isinstance(each, str | list | dict)))
            return function(*args, **kwargs)

        for mark in ("jinja_pass_arg",):
            if hasattr(function, mark):
                setattr(run, mark, getattr(function, mark))
        return run


def _environment(work: _Work) -> Environment:
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Bounded(ImmutableSandboxedEnvironment):
        """Finds names only in the values; numbers stay numbers."""

        turn = staticmethod(work.turn)  # what `_refined` puts into the template calls these
        concat_of = staticmethod(work.concat)
        intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%"})

        def getattr(self, obj: Any, attribute: str) -> Any:
            return self.getitem(obj, attribute)

        def getitem(self, obj: Any, argument: Any) -> Any:
            if isinstance(obj, dict | list | str | tuple):
                try:
                    found = cast("Any", obj)[argument]
                    if isinstance(found, str):
                        work.take(1)
                    return found
                except (KeyError, IndexError, TypeError):
                    pass
            if isinstance(obj, jinja2.runtime.LoopContext) and argument in _LOOP:
                return getattr(obj, str(argument))
            return self.undefined(obj=obj, name=argument)

        def is_safe_callable(self, obj: Any) -> bool:
            return obj in {work.turn, work.concat}

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            if operator == "+" and isinstance(left, str) and isinstance(right, str):
                return work.concat(left, right)
            if not (isinstance(left, int | float) and isinstance(right, int | float)):
                raise InputRefused(f"{operator} takes numbers; join texts by ~")
            result = super().call_binop(context, operator, left, right)
            if isinstance(result, int) and result.bit_length() > 1024:
                raise LimitExceeded("the template makes a number of more than 1024 bits")
            return result

    environment = Bounded(
        undefined=jinja2.StrictUndefined, autoescape=False, finalize=work.shown,
        keep_trailing_newline=True, cache_size=0,
    )  # fmt: skip
    environment.globals.clear()
    environment.filters = {n: work.bounded(environment.filters[n]) for n in sorted(_FILTERS)}
    environment.filters |= {
        "join": work.join, "replace": work.replace, "tojson": work.tojson, "string": work.shown,
    }  # fmt: skip
    environment.tests = {name: environment.tests[name] for name in sorted(_TESTS)}
    return environment


_LOOP: Final = frozenset({"index", "index0", "revindex", "first", "last", "length"})


def _refined(tree: nodes.Template, environment: Environment) -> nodes.Template:
    """Return the template with its loops and joined texts counted; refuse unlisted parts."""
    from jinja2 import nodes

    for node in tree.find_all(nodes.Node):
        kind = type(node).__name__
        if kind not in _NODES or (isinstance(node, nodes.For) and node.recursive):
            raise InputRefused(f"line {node.lineno}: a template here has no {kind}")
        constant = isinstance(node, nodes.List | nodes.Tuple) and all(
            isinstance(each, nodes.Const | nodes.Name) for each in node.items
        )
        if isinstance(node, nodes.List | nodes.Tuple) and not constant:
            raise InputRefused(f"line {node.lineno}: a list here holds constants only")
    for loop in [*tree.find_all(nodes.For)]:
        linear = sum(1 for _ in loop.find_all((nodes.Slice, nodes.Compare, nodes.Test)))
        counted = nodes.Call(
            nodes.EnvironmentAttribute("turn"), [nodes.Const(linear)], [], None, None
        ).set_lineno(loop.lineno)
        if loop.test is None:
            loop.body.insert(0, nodes.ExprStmt(counted).set_lineno(loop.lineno))
        else:  # omitted parts count as well
            loop.test = nodes.And(counted, loop.test).set_lineno(loop.lineno)
    _count_concats(tree)
    tree.set_environment(environment)
    return tree


def _count_concats(node: nodes.Node) -> None:
    from jinja2 import nodes

    for field, value in list(node.iter_fields()):
        children: list[Any] = value if isinstance(value, list) else [value]
        for at, child in enumerate(children):
            if not isinstance(child, nodes.Node):
                continue
            _count_concats(child)
            if isinstance(child, nodes.Concat):
                made = nodes.Call(
                    nodes.EnvironmentAttribute("concat_of"), child.nodes, [], None, None
                ).set_lineno(child.lineno)
                if isinstance(value, list):
                    value[at] = made
                else:
                    setattr(node, field, made)
