"""A framework's calls of a body: the call's arguments, and the injected values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["Signature"]


class Signature:
    """The parameters of a body: the arguments of the call, and the injected values.

    Injected values (run config, state, stores, call ids) are not part of a call: they differ in
    each run, and no model writes them.

    Args:
        positional: the names of the parameters that may be given by position, in order.
        injected: the names of the injected parameters.
    """

    def __init__(self, positional: Sequence[str], injected: frozenset[str] = frozenset()) -> None:
        self.positional = positional
        self.injected = injected

    def named(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call, by name; unnamed positional ones are its `args`."""
        named = dict(zip(self.positional, args, strict=False))
        if len(args) > len(self.positional):
            named["args"] = list(args[len(self.positional) :])
        named |= kwargs
        return {name: each for name, each in named.items() if name not in self.injected}

    def edited(
        self, body: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Callable[..., Any] | None:
        """Return the body with other arguments, by name; injected values stay.

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
