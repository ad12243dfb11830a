"""Change one thing in one function: what is changed, what it is called, and how it is put in place.

Texts for people (messages, docstrings, what is logged, `__repr__`), types and `assert` stay as they
are. So does all outside of functions: it has run before a mutant is made.
"""

from __future__ import annotations

import ast
import itertools
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import singledispatch
from types import CodeType, FunctionType
from typing import Any

__all__ = ["Functions", "Mutant", "changed", "mutants", "put_in_place", "sample"]

Function = ast.FunctionDef | ast.AsyncFunctionDef
Functions = dict[tuple[str, str, int], list[FunctionType]]  # by file, qualified name and line

_COMPARED: dict[type[ast.cmpop], list[type[ast.cmpop]]] = {
    ast.Eq: [ast.NotEq],
    ast.NotEq: [ast.Eq],
    ast.Lt: [ast.LtE, ast.GtE],
    ast.LtE: [ast.Lt, ast.Gt],
    ast.Gt: [ast.GtE, ast.LtE],
    ast.GtE: [ast.Gt, ast.Lt],
    ast.Is: [ast.IsNot],
    ast.IsNot: [ast.Is],
    ast.In: [ast.NotIn],
    ast.NotIn: [ast.In],
}
_COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Add,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
_LONG, _AROUND = 90, 30  # characters
_TYPES = {"annotation", "returns", "decorator_list"}
_COMPOUND = (
    *(ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef, ast.If, ast.While, ast.For),
    *(ast.AsyncFor, ast.With, ast.AsyncWith, ast.Try, ast.ExceptHandler, ast.Match, ast.match_case),
)
_UNREAD = {"__repr__", "__str__"}
_TOLD = {"_log", "warnings", "assert_never", "cast", "TypeVar"}


@dataclass(frozen=True)
class Mutant:
    """Name a change.

    Attributes:
        file: below the package, as `trace/run.py`.
        function: its qualified name.
        change: the text before and after, as `a < b → a <= b`.
        lines: of what is changed, of the statement around it, and of the function.
        place: counts the mutants of the file.
    """

    file: str
    function: str
    change: str
    lines: tuple[range, range, range]
    place: int


@dataclass(frozen=True)
class _Site:
    """Hold a node, the place where it hangs in the tree, and what is around it."""

    node: ast.AST
    owner: ast.AST
    field: str
    index: int | None
    statement: ast.AST  # of a compound one: the expression at its head
    functions: tuple[Function | ast.ClassDef, ...]
    is_told: bool = False  # to people: no text in it is changed

    def put(self, node: ast.AST) -> None:
        if self.index is None:
            setattr(self.owner, self.field, node)
        else:
            getattr(self.owner, self.field)[self.index] = node

    @property
    def function(self) -> Function:
        """The outermost function."""
        return next(each for each in self.functions if isinstance(each, Function))

    @property
    def lines(self) -> tuple[range, range, range]:
        node, statement = self.node, self.statement
        if self.field in ("defaults", "kw_defaults"):  # they are used when a call has begun
            node, statement = self.function.body[0], self.function.body[-1]
        return _lines(node), _lines(statement), _lines(self.function)


def mutants(file: str, tree: ast.Module) -> Iterator[Mutant]:
    """Yield each mutant of a file."""
    known: Counter[tuple[str, str]] = Counter()
    before: dict[ast.AST, str] = {}
    for place, (site, instead) in enumerate(_changes(tree)):
        function = ".".join(each.name for each in site.functions)
        is_whole = site.statement is site.node
        if site.statement not in before:
            site.put(site.node)
            before[site.statement] = _text(site.statement)
            site.put(instead)
        change = _change(before[site.statement], _text(instead if is_whole else site.statement))
        known[function, change] += 1
        if (count := known[function, change]) > 1:
            change += f" ({count})"
        yield Mutant(file, function, change, site.lines, place)


def changed(tree: ast.Module, place: int) -> Function:
    """Make one of the changes to a tree, and return the function that has it."""
    site, instead = next(itertools.islice(_changes(tree), place, None))
    site.put(instead)
    return site.function


def _changes(tree: ast.Module) -> Iterator[tuple[_Site, ast.AST]]:
    """Yield each change of a tree. While it is yielded, the tree has it."""
    for site in list(_sites(_Site(tree, tree, "", None, tree, ()))):
        for instead in _instead(site):
            ast.fix_missing_locations(ast.copy_location(instead, site.node))
            site.put(instead)
            try:
                yield site, instead
            finally:
                site.put(site.node)


def _change(before: str, after: str) -> str:
    """Name a change: by all of the text, or by what is around the change if the text is long."""
    if len(before) > _LONG:
        same = _same(before, after)
        rest = _same(before[same:][::-1], after[same:][::-1])
        start, end = max(0, same - _AROUND), max(0, rest - _AROUND)
        before, after = (f"…{each[start : len(each) - end]}…" for each in (before, after))
    return f"{before} → {after}"


def _same(one: str, other: str) -> int:
    """Return how many characters two texts have in common at their beginning."""
    return sum(
        1
        for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    )


def _text(node: ast.AST) -> str:
    return ast.unparse(node).partition("\n")[0]


def _lines(node: ast.AST) -> range:
    first = getattr(node, "lineno", 0)
    return range(first, (getattr(node, "end_lineno", None) or first) + 1)


def _sites(around: _Site) -> Iterator[_Site]:
    """Yield all in the functions below a node that may be changed."""
    for field, value in ast.iter_fields(around.node):
        for index, node in enumerate(value if isinstance(value, list) else [value]):
            if not isinstance(node, ast.AST) or field in _TYPES or _is_left_alone(node):
                continue
            site = _Site(
                node,
                around.node,
                field,
                index if isinstance(value, list) else None,
                node if isinstance(around.node, _COMPOUND) else around.statement,
                around.functions,
                around.is_told or isinstance(node, ast.Raise),
            )
            if any(isinstance(each, Function) for each in site.functions):
                yield site
            if isinstance(node, Function | ast.ClassDef):
                site = replace(site, functions=(*site.functions, node))
            yield from _sites(site)


def _is_left_alone(node: ast.AST) -> bool:
    """Tell whether it is for people or for type checkers."""
    match node:
        case ast.FunctionDef(name=name) if name in _UNREAD:
            return True
        case ast.JoinedStr():
            return True
        case ast.IfExp(body=text) | ast.AugAssign(value=text) if _is_text(text):
            return True
        case ast.FunctionDef(decorator_list=[ast.Name("overload")]):
            return True
        case ast.FunctionDef(body=[*_, ast.Expr(ast.Constant())]):  # of a protocol: it never runs
            return True
        case ast.Expr(value=ast.Constant()) | ast.Assert():
            return True
        case ast.If(test=ast.Name("TYPE_CHECKING")):
            return True
        case ast.Call(func=ast.Name(name) | ast.Attribute(value=ast.Name(name))):
            return name in _TOLD
        case ast.Expr(value=ast.Call() as call):
            return _is_left_alone(call)
    return False


def _is_text(node: ast.expr) -> bool:
    """Tell whether a value, or the first of two, is a sentence or a part of one."""
    match node:
        case ast.JoinedStr(values):
            return any(map(_is_text, values))
        case ast.Constant(value=str(text)):
            return " " in text
        case ast.IfExp(body=body):
            return _is_text(body)
    return False


def _instead(site: _Site) -> Iterator[ast.AST]:
    """Yield what a node is replaced by, one after the other."""
    node = site.node
    if site.field == "test" and isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.BoolOp):
        yield ast.UnaryOp(ast.Not(), node)
    yield from _replaced(node, site)


@singledispatch
def _replaced(_node: ast.AST, _site: _Site) -> Iterator[ast.AST]:
    yield from ()


@_replaced.register
def _(node: ast.Compare, _site: _Site) -> Iterator[ast.AST]:
    for at, op in enumerate(node.ops):
        for other in _COMPARED[type(op)]:
            ops = [*node.ops[:at], other(), *node.ops[at + 1 :]]
            yield ast.Compare(node.left, ops, node.comparators)


@_replaced.register
def _(node: ast.BoolOp, _site: _Site) -> Iterator[ast.AST]:
    yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)


@_replaced.register
def _(node: ast.UnaryOp, _site: _Site) -> Iterator[ast.AST]:
    if isinstance(node.op, ast.Not | ast.USub):
        yield node.operand


@_replaced.register
def _(node: ast.BinOp, site: _Site) -> Iterator[ast.AST]:
    if type(node.op) in _COMPUTED and not site.is_told:
        yield ast.BinOp(node.left, _COMPUTED[type(node.op)](), node.right)


@_replaced.register
def _(node: ast.Constant, site: _Site) -> Iterator[ast.AST]:
    value = node.value
    if isinstance(value, bool):
        yield ast.Constant(not value)
    elif isinstance(value, int) and not site.is_told:
        yield ast.Constant(value + 1)
        if value > 0:
            yield ast.Constant(value - 1)
    elif isinstance(value, str | bytes) and value and not site.is_told:
        is_sentence = " " in str(value)
        if not is_sentence and not isinstance(site.owner, ast.MatchValue):
            yield ast.Constant(type(value)())


@_replaced.register
def _(node: ast.Call, site: _Site) -> Iterator[ast.AST]:
    for at, keyword in enumerate(node.keywords):
        if keyword.arg is not None and not site.is_told:
            others = [*node.keywords[:at], *node.keywords[at + 1 :]]
            yield ast.Call(node.func, node.args, others)


@_replaced.register
def _(node: ast.Return, _site: _Site) -> Iterator[ast.AST]:
    if node.value is not None and not isinstance(node.value, ast.Constant):
        yield ast.Return(ast.Constant(None))


@_replaced.register
def _(node: ast.Expr, _site: _Site) -> Iterator[ast.AST]:
    if isinstance(node.value, ast.Call | ast.Await):
        yield ast.Pass()


@_replaced.register
def _(node: ast.Assign, _site: _Site) -> Iterator[ast.AST]:
    if all(isinstance(each, ast.Attribute | ast.Subscript) for each in node.targets):
        yield ast.Pass()


@_replaced.register
def _(node: ast.AnnAssign, _site: _Site) -> Iterator[ast.AST]:
    if isinstance(node.target, ast.Attribute) and node.value is not None:
        yield ast.Pass()


@_replaced.register
def _(node: ast.AugAssign, _site: _Site) -> Iterator[ast.AST]:
    if type(node.op) in _COMPUTED:
        yield ast.AugAssign(node.target, _COMPUTED[type(node.op)](), node.value)
    yield ast.Pass()


@_replaced.register
def _(node: ast.Delete, _site: _Site) -> Iterator[ast.AST]:
    if not all(isinstance(each, ast.Name) for each in node.targets):  # a name keeps garbage alone
        yield ast.Pass()


@_replaced.register
def _(_node: ast.Continue, _site: _Site) -> Iterator[ast.AST]:
    yield ast.Break()


@_replaced.register
def _(_node: ast.Break, _site: _Site) -> Iterator[ast.AST]:
    yield ast.Continue()


@_replaced.register
def _(node: ast.ExceptHandler, _site: _Site) -> Iterator[ast.AST]:
    if node.type is not None:
        yield ast.ExceptHandler(ast.Tuple([], ast.Load()), node.name, node.body)


def sample(population: list[Mutant], seed: int) -> list[Mutant]:
    """Put mutants in an order in which each beginning has its share of every file."""
    chance = random.Random(seed)  # noqa: S311 - no secret
    files: dict[str, list[Mutant]] = {}
    for mutant in population:
        files.setdefault(mutant.file, []).append(mutant)
    placed = []
    for mine in files.values():
        chance.shuffle(mine)
        placed += [((at + chance.random()) / len(mine), each) for at, each in enumerate(mine)]
    return [mutant for _, mutant in sorted(placed, key=lambda one: one[0])]


def put_in_place(tree: ast.Module, function: Function, path: str, functions: Functions) -> bool:
    """Give the code of a changed tree to the functions made of it; tell whether it is another."""
    code = _code(tree, function, path)
    args, differs = function.args, False
    known = functions[path, code.co_qualname, code.co_firstlineno]
    if known and (lost := {*known[0].__code__.co_freevars} - {*code.co_freevars}):
        names = [ast.Expr(ast.Name(name, ast.Load())) for name in sorted(lost)]
        kept = ast.copy_location(ast.If(ast.Constant(False), [*names], []), function.body[0])
        function.body.append(ast.fix_missing_locations(kept))
        code = _code(tree, function, path)
    for each in known:
        defaults = _defaults(each.__defaults__ or (), args.defaults)
        kwdefaults = _defaults(
            (each.__kwdefaults__ or {}).values(), [node for node in args.kw_defaults if node]
        )
        named = dict(zip(each.__kwdefaults__ or (), kwdefaults, strict=True))
        differs = differs or code != each.__code__ or defaults != each.__defaults__
        each.__code__, each.__defaults__, each.__kwdefaults__ = code, defaults, named
    return differs


def _code(tree: ast.Module, function: Function, path: str) -> CodeType:
    """Return the code of a function in a tree."""
    first = min(node.lineno for node in (function, *function.decorator_list))
    return next(
        each
        for each in codes(compile(tree, path, "exec"))
        if each.co_firstlineno == first and each.co_name == function.name
    )


def codes(code: CodeType) -> Iterator[CodeType]:
    """Yield all code in a code, itself first."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes(constant)


def _defaults(values: Iterable[Any], nodes: Sequence[ast.expr]) -> tuple[Any, ...]:
    """Return these defaults, the literal ones as the tree has them."""
    return tuple(
        node.value if isinstance(node, ast.Constant) else value
        for value, node in zip(values, nodes, strict=True)
    )
