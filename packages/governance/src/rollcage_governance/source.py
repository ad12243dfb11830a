"""The source code of a function, proven to be the running code, for its approver.

A file may be edited after its import, and a function's code can be replaced while its name and file
stay. So a file's text of a function counts only if compiling it gives exactly the function's code;
otherwise the code is named by its digest.
"""

from __future__ import annotations

import functools
import inspect
import linecache
import sys
import textwrap
import types
import warnings
from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Any, Final, NamedTuple

__all__ = ["Code", "code_of"]

_DEEPEST: Final = 20  # wrappers that are unwrapped


class Code(NamedTuple):
    """The code of a function.

    Attributes:
        text: its source, and the source of the functions that it wraps (`__wrapped__`); empty for
            functions that are not written in Python.
        parts: the functions, each with its code at that time.
    """

    text: str
    parts: tuple[tuple[types.FunctionType, types.CodeType], ...]


def code_of(function: Callable[..., Any] | None) -> Code:
    """Return the code of a function, a method, a partial function or a callable object."""
    parts = tuple((each, each.__code__) for each in _functions(function))
    return Code("\n".join(_text(each, code) for each, code in parts), parts)


def _functions(thing: Any) -> Iterator[types.FunctionType]:
    for _ in range(_DEEPEST):
        if isinstance(thing, functools.partial):
            thing = thing.func
        elif inspect.ismethod(thing):
            thing = thing.__func__
        elif inspect.isfunction(thing):
            yield thing
            thing = vars(thing).get("__wrapped__")
        elif inspect.isfunction(call := inspect.getattr_static(type(thing), "__call__", None)):
            thing = call
        else:
            return


def _text(function: types.FunctionType, code: types.CodeType) -> str:
    linecache.checkcache(code.co_filename)
    lines = linecache.getlines(code.co_filename, function.__globals__)
    return _proven(code, code.co_filename, "".join(lines)) or _named(code)


@functools.lru_cache(maxsize=4096)
def _proven(code: types.CodeType, filename: str, file: str) -> str:
    """Return the source of some code in its file; empty if compiling it gives other code."""
    if code not in _compiled(file, filename):
        return ""
    block = inspect.getblock(file.splitlines(keepends=True)[code.co_firstlineno - 1 :])
    lines = textwrap.dedent("".join(block)).splitlines()
    return "\n".join(line.rstrip() for line in lines if line.strip()) + "\n"


@functools.lru_cache(maxsize=64)
def _compiled(file: str, filename: str) -> frozenset[types.CodeType]:
    """Return all the code in a file."""
    try:
        with warnings.catch_warnings():  # they were shown when it was imported
            warnings.simplefilter("ignore")
            whole = compile(file, filename, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return frozenset()
    return frozenset(_within(whole))


def _within(code: types.CodeType) -> Iterator[types.CodeType]:
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield each
            yield from _within(each)


def _named(code: types.CodeType) -> str:
    """Return a name for code without source, which differs for other code and other Pythons."""
    digest = sha256(_described(code).encode("utf-8", "surrogatepass")).hexdigest()
    version = ".".join(map(str, sys.version_info[:2]))
    return f"# {code.co_qualname}: no source; its bytecode (Python {version}) is {digest}\n"


def _described(each: Any) -> str:
    """Return a constant of some code as text, the same in every process."""
    if isinstance(each, types.CodeType):
        parts: list[Any] = [
            each.co_code, each.co_consts, each.co_names, each.co_varnames, each.co_freevars,
            each.co_cellvars, each.co_argcount, each.co_posonlyargcount, each.co_kwonlyargcount,
            each.co_flags, each.co_exceptiontable,
        ]  # fmt: skip
        return "\n".join(map(_described, parts))
    if isinstance(each, tuple):
        return f"({', '.join(map(_described, each))})"
    if isinstance(each, frozenset):
        return f"{{{', '.join(sorted(map(_described, each)))}}}"
    return repr(each)
