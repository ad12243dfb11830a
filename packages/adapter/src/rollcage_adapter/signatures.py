"""How a framework calls a body: which of its arguments are the call's, and which are injected."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["Signature"]


class Signature:
    """What a body takes: the arguments of the call, and what the framework injects in addition.

    What is injected (run config, state, stores, call ids) is no part of a call: it is another in
    each run, and no model writes it.

    Args:
        positional: the names of the parameters that may be given by place, in order.
        injected: the names of those that are no arguments of the call.
    """

    def __init__(self, positional: Sequence[str], injected: frozenset[str] = frozenset()) -> None:
        self.positional = positional
        self.injected = injected

    def named(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call, by name; those by a place that has none are its `args`."""
        named = dict(zip(self.positional, args, strict=False))
        if len(args) > len(self.positional):
            named["args"] = list(args[len(self.positional) :])
        named |= kwargs
        return {name: each for name, each in named.items() if name not in self.injected}

    def edited(
        self, body: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Callable[..., Any] | None:
        """The body with other arguments, by name, in the places of these; what is injected stays.

        None if it is unknown which of these is which.
        """
        if len(args) > len(self.positional):
            return None

        def edited(**values: Any) -> Any:
            given = [
                each if name in self.injected else values.pop(name)
                for name, each in zip(self.positional, args, strict=False)
            ]
            injected = {name: each for name, each in kwargs.items() if name in self.injected}
            return body(*given, **injected, **values)

        return edited
