"""Values of a framework that consist of a few named parts, as neutral data and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pydantic
from rollcage.session.adapters import register_native

from rollcage_adapter.shapes import is_object

__all__ = ["Parts", "register_parts"]


class Parts:
    """Carries such a value; see `rollcage.trace.Native`.

    Args:
        name: "<framework>.<kind>".
        take: returns its parts by name; None is left out.
        make: makes the value from them, by the framework's own validating constructor.
        portable: whether the parts are of use in other frameworks too.
    """

    def __init__(
        self,
        name: str,
        take: Callable[[Any], Mapping[str, Any]],
        make: Callable[..., Any],
        *,
        portable: bool = True,
    ) -> None:
        self.name = name
        self.portable = portable
        self._take = take
        self._make = make

    @classmethod
    def of_model(cls, name: str, model: type[pydantic.BaseModel], **dump: Any) -> Parts:
        """Return parts for a Pydantic model, which validates them; `dump` is for `model_dump`."""

        def make(**parts: Any) -> Any:
            return model.model_validate(parts)

        return cls(name, lambda value: value.model_dump(mode="json", **dump), make)

    @classmethod
    def of_attributes(
        cls,
        name: str,
        make: Callable[..., Any],
        attributes: Mapping[str, str],
        *,
        portable: bool = True,
    ) -> Parts:
        """Return parts for a value whose constructor takes its attributes by the same names.

        Args:
            name: see `Parts`.
            make: the constructor; it validates.
            attributes: by a part's name, the attribute's; a missing one is left out.
            portable: see `Parts`.
        """

        def take(value: Any) -> dict[str, Any]:
            return {part: getattr(value, each, None) for part, each in attributes.items()}

        def made(**parts: Any) -> Any:
            return make(**{attributes[part]: each for part, each in parts.items()})

        return cls(name, take, made, portable=portable)

    def project(self, value: Any) -> dict[str, Any]:
        """Return its parts."""
        return {name: each for name, each in self._take(value).items() if each is not None}

    def revive(self, data: Any) -> Any:
        """Return the value of these parts, which are hostile input.

        Raises:
            ValueError: the parts are of another kind.
        """
        if not is_object(data):
            raise ValueError(f"a recorded {self.name} is an object")
        try:
            return self._make(**{str(name): each for name, each in data.items()})
        except (TypeError, KeyError) as error:
            raise ValueError(f"no {self.name}: {error}") from None


def register_parts(natives: Mapping[type, Parts]) -> None:
    """Register types of a framework for the trace, each carried by its parts."""
    for cls, native in natives.items():
        register_native([cls], native)
