"""Values of a framework that are made of few named parts, as neutral data and back."""

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
        take: its parts by name; those that are None are left out.
        make: makes the value of them again, by the framework's own validating constructor.
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
        """Carries a Pydantic model, which validates its own parts; `dump` is for `model_dump`."""

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
        """Carries a value whose constructor takes what its attributes hold, by the same names.

        Args:
            name: see `Parts`.
            make: that constructor; it validates.
            attributes: by a part's name, the attribute's; one that a value has not is left out.
            portable: see `Parts`.
        """

        def take(value: Any) -> dict[str, Any]:
            return {part: getattr(value, each, None) for part, each in attributes.items()}

        def made(**parts: Any) -> Any:
            return make(**{attributes[part]: each for part, each in parts.items()})

        return cls(name, take, made, portable=portable)

    def project(self, value: Any) -> dict[str, Any]:
        """Its parts."""
        return {name: each for name, each in self._take(value).items() if each is not None}

    def revive(self, data: Any) -> Any:
        """The value of these parts, which are hostile input.

        Raises:
            ValueError: they are none of this kind.
        """
        if not is_object(data):
            raise ValueError(f"a recorded {self.name} is an object")
        try:
            return self._make(**{str(name): each for name, each in data.items()})
        except (TypeError, KeyError) as error:
            raise ValueError(f"no {self.name}: {error}") from None


def register_parts(natives: Mapping[type, Parts]) -> None:
    """Teach the trace types of a framework, each carried by its parts."""
    for cls, native in natives.items():
        register_native([cls], native)
