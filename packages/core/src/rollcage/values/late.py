"""Import the names of a package when they are first asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

__all__ = ["imported_late"]


def imported_late(package: str, modules: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package, which imports a name's module on first access.

    Args:
        package: the name of the package.
        modules: by module of `rollcage`, the names that the package takes from it.
    """
    places = {name: module for module, names in modules.items() for name in names}

    def find(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = getattr(import_module(f"rollcage.{places[name]}"), name)
        setattr(sys.modules[package], name, found)
        return found

    return find
