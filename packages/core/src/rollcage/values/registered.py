"""Register the application's types as which recorded values are restored.

A trace names a type by its module and its qualified name. The name is looked up here, and nowhere
else: nothing that a trace names is imported.
"""

from __future__ import annotations

import dataclasses
import enum
import typing
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Final, Literal, get_args, get_origin

import pydantic

from rollcage.errors import ContractError
from rollcage.values.codec import BASES
from rollcage.values.natives import native_of

__all__ = ["REGISTERED", "Types", "named_in", "register"]

_FAMILIES: Final = frozenset({
    object, Exception, BaseException, enum.Enum, enum.IntEnum, enum.StrEnum, enum.Flag,
    enum.IntFlag, *BASES,
})  # fmt: skip
"""Types that can't be registered, because every class derived from them would be."""


class Types:
    """Hold the types as which recorded values are restored, with derived types.

    Args:
        types: classes of the application.
        around: where to look up types that are not among `types`.

    Raises:
        ContractError: an entry is no class, or its values have no form as data.
    """

    def __init__(self, types: Iterable[type] = (), *around: Types) -> None:
        self._around = around
        self._named: dict[tuple[str, str], type] = {}
        self._roots: list[type] = []
        for each in types:
            self.add(each)

    def add(self, kind: type) -> None:
        """Restore values of this class, and of derived classes, as themselves."""
        _check(kind)
        self._take_in(kind)

    def _take_in(self, kind: type) -> None:
        """Register a class, and the classes of its fields."""
        self._named[kind.__module__, kind.__qualname__] = kind
        for each in named_in(kind):
            if each not in self._roots:
                self._roots.append(each)
                self._named[each.__module__, each.__qualname__] = each

    def find(self, module: object, name: object) -> type | None:
        """Return the class with a name; None if the program has registered none."""
        if not (isinstance(module, str) and isinstance(name, str)):
            return None
        if module == "pydantic.networks":
            return _url_called(name)
        found = self._named.get((module, name)) or self._derived(module, name)
        if found is not None:
            return found
        return next(filter(None, (types.find(module, name) for types in self._around)), None)

    def knows(self, kind: type) -> bool:
        """Tell whether values of this exact class are restored as themselves."""
        return self.find(kind.__module__, kind.__qualname__) is kind

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """Return the registered exceptions."""
        own = [each for each in self._roots if issubclass(each, Exception)]
        return (*own, *(each for types in self._around for each in types.errors))

    def _derived(self, module: str, name: str) -> type | None:
        """Return a derived class that the program has defined; the last with that name."""
        found: type | None = None
        for root in list(self._roots):
            for each in _family(root):
                if (each.__module__, each.__qualname__) == (module, name):
                    found = each
        if found is not None:
            self._take_in(found)
        return found


def _url_called(name: str) -> type | None:
    """Return a Pydantic URL class by name; these are always restored as themselves."""
    from pydantic import networks  # loaded with the first URL

    several_hosts = networks.PostgresDsn.__bases__[0]  # it has no public name
    kind = vars(networks).get(name)
    is_url = isinstance(kind, type) and issubclass(kind, (networks.AnyUrl, several_hosts))
    return kind if is_url else None


def _family(root: type) -> Iterator[type]:
    subclasses: list[type] = type.__subclasses__(root)
    for each in subclasses:
        # A model's form for certain parameters is made on the fly: another process has none of it.
        if not getattr(each, "__pydantic_generic_metadata__", {}).get("origin"):
            yield each
        yield from _family(each)


def _check(kind: Any) -> None:
    if not isinstance(kind, type):
        raise ContractError(f"types= names {kind!r}, which is not a class")
    name = f"{kind.__module__}.{kind.__qualname__}"
    if _is_family(kind):
        raise ContractError(
            f"{name} can't be registered: that would register everything derived from it. Name "
            f"the classes themselves"
        )
    if not has_form(kind):
        raise ContractError(
            f"{name} can't be registered: its values have no form as data. What can be: a "
            f"dataclass, a named tuple, an enum, a Pydantic model, an attrs class, an exception, a "
            f"class derived from str, int, list, dict or the like; for any other, declare how it "
            f"is encoded and restored with rollcage.register_native"
        )


def _is_family(kind: type) -> bool:
    if kind.__module__.partition(".")[0] == "pydantic":  # by name: to load them takes a while
        return kind.__qualname__ in ("BaseModel", "RootModel")
    return kind in _FAMILIES


def has_form(kind: type) -> bool:
    """Tell whether values of a class can be encoded as their parts and restored from them."""
    if hasattr(kind, "__total__") and issubclass(kind, dict):
        return False  # a TypedDict has no instances
    return (
        issubclass(kind, (enum.Enum, pydantic.BaseModel, Exception, *BASES))
        or dataclasses.is_dataclass(kind)
        or hasattr(kind, "__attrs_attrs__")
        or native_of(kind) is not None
        or _is_url(kind)
    )


def _is_url(kind: type) -> bool:
    return any(base.__module__ == "pydantic.networks" for base in kind.__mro__)


REGISTERED: Final = Types()
"""The types that this process has registered."""


def register(*types: type) -> None:
    """Restore values of these classes as themselves, in each session of this process.

    A recorded result or error holds its type's name and its parts. It is restored as that type if
    the program has named the type: here, in `Options(types=[…])`, or in the return type of the tool
    itself. Classes derived from these count too. Dataclasses, named tuples, enums, Pydantic models,
    attrs classes, exceptions, and classes derived from a builtin such as `str` or `dict` can be
    registered. They are restored by their own constructor or validation.

    Raises:
        ContractError: an entry is no class, or its values have no form as data.
    """
    for each in types:
        REGISTERED.add(each)


# --- what an annotation names --------------------------------------------------------------------


def named_in(annotation: Any) -> list[type]:
    """Return the classes that an annotation names, with the classes of their fields."""
    found: dict[type, None] = {}
    _collect(annotation, found, set())
    return list(found)


def _collect(annotation: Any, found: dict[type, None], seen: set[int]) -> None:
    if id(annotation) in seen:
        return
    seen.add(id(annotation))
    origin = get_origin(annotation)
    if origin is Literal:
        inner: Iterable[Any] = map(type, get_args(annotation))
    elif origin is Annotated:
        inner = get_args(annotation)[:1]
    elif origin is not None:
        inner = (origin, *get_args(annotation))
    elif isinstance(annotation, type):
        if not _is_family(annotation) and has_form(annotation):
            found[annotation] = None
        inner = _annotations_of(annotation)
    elif isinstance(annotation, list):  # the parameters of a Callable
        inner = annotation
    else:
        # A TypeVar's bound and constraints, a NewType's base, what `type X = …` stands for.
        names = ("__bound__", "__supertype__", "__value__")
        inner = [getattr(annotation, name, None) for name in names]
        inner += getattr(annotation, "__constraints__", ())
    for each in inner:
        if each is not None:
            _collect(each, found, seen)


def _annotations_of(kind: type) -> Iterable[Any]:
    """Return the types of the fields of a class with fields."""
    if issubclass(kind, pydantic.BaseModel):
        fields: dict[str, Any] = getattr(kind, "__pydantic_fields__", {})
        return [field.annotation for field in fields.values()]
    has_fields = dataclasses.is_dataclass(kind) or hasattr(kind, "__attrs_attrs__")
    if not has_fields and not hasattr(kind, "_fields") and not hasattr(kind, "__total__"):
        return ()
    try:
        return typing.get_type_hints(kind).values()
    except Exception:  # noqa: BLE001 - a name that can't be resolved names nothing
        return ()
