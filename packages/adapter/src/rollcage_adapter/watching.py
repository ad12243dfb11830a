"""Calls that are checked before they run, if a framework has no hook around them.

Methods of its classes are replaced by methods that check first. Without an objection, they do
exactly the same as the originals.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from typing import Any, Final

from rollcage_adapter.guards import GUARD

__all__ = ["watch_methods"]

_WATCHED: Final = "__rollcage_watched__"

Look = Callable[..., Any]


def watch_methods(
    root: Any, names: Sequence[str], look: Look, *, streams: Collection[str] = ()
) -> None:
    """Check each call of these methods, of a class and of all its subclasses, present and future.

    Args:
        root: the class.
        names: its methods; of a subclass, its own ones.
        look: called like the method; its result is the answer, and the method does not run.
            None: it runs.
        streams: the methods that return async iterators: they answer with a stream of one.
    """

    def watch(cls: Any) -> None:
        own: dict[str, Any] = dict(vars(cls))
        if GUARD in own:
            return
        for name in names:
            method = own.get(name)
            if inspect.isfunction(method) and not hasattr(method, _WATCHED):
                setattr(cls, name, _watched(method, look, streams=name in streams))

    for cls in _and_below(root):
        watch(cls)
    own: Any = vars(root).get("__init_subclass__")

    def __init_subclass__(cls: Any, /, **options: Any) -> None:  # noqa: N807 - it becomes one
        above: Any = super(root, cls).__init_subclass__ if own is None else own.__get__(None, cls)
        above(**options)
        watch(cls)

    root.__init_subclass__ = classmethod(__init_subclass__)


def _and_below(cls: Any) -> Iterator[Any]:
    yield cls
    for each in cls.__subclasses__():
        yield from _and_below(each)


def _watched(method: Callable[..., Any], look: Look, *, streams: bool) -> Any:
    @functools.wraps(method)
    async def awaited(self: Any, *args: Any, **options: Any) -> Any:
        answer = look(self, *args, **options)
        return await method(self, *args, **options) if answer is None else answer

    @functools.wraps(method)
    def called(self: Any, *args: Any, **options: Any) -> Any:
        answer = look(self, *args, **options)
        if answer is None:
            return method(self, *args, **options)
        return _only(answer) if streams else answer

    watched: Any = awaited if inspect.iscoroutinefunction(method) else called
    setattr(watched, _WATCHED, True)
    return watched


async def _only(answer: Any) -> AsyncIterator[Any]:
    yield answer
