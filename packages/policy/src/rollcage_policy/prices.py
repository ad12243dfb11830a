"""Prices of calls as data, and exact sums."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Any, Final, NamedTuple, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, model_validator
from rollcage.trace import tokens_of

__all__ = ["PICO", "ModelPrice", "Price", "Prices"]

PICO: Final = 10**12
"""Sums are kept in integers of 1/PICO of the currency's unit: ten times 0.1 is 1."""

P = TypeVar("P")
Amount = Annotated[FiniteFloat, Field(ge=0, le=1e9)]


class ModelPrice(BaseModel):
    """The price of a million tokens."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)

    input: Amount
    output: Amount


class Price(NamedTuple):
    """The price of one call, in 1/PICO: fixed, and for each token; None if unknown."""

    call: int
    input: int | None
    output: int | None

    def of_tokens(self, usage: Mapping[str, int] | None) -> tuple[int, int]:
        """Return the tokens in a model's usage, and their cost (1/PICO)."""
        read, written = tokens_of(usage)
        return read + written, read * (self.input or 0) + written * (self.output or 0)


class Prices(BaseModel):
    """The prices of a policy, in one currency: its `[prices]`.

    In a file, the prices of tools are written next to `models`: `"send_sms" = 0.05`.

    Attributes:
        calls: the price of each call, by a tool's or model's name or glob.
        models: the price of a million tokens, by a model's name or glob.

    If several globs match a name, the longest one counts; an exact name counts before all globs.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)

    calls: dict[str, Amount] = {}
    models: dict[str, ModelPrice] = {}

    @model_validator(mode="before")
    @classmethod
    def _tools_beside_models(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        given = cast("Mapping[str, Any]", data)
        calls = given.get("calls", {})
        if not isinstance(calls, Mapping):
            return {"calls": {k: v for k, v in given.items() if k != "models"},
                    "models": given.get("models", {})}  # fmt: skip
        others = {name: price for name, price in given.items() if name not in ("calls", "models")}
        return {"calls": {**calls, **others}, "models": given.get("models", {})}

    def of(self, kind: str, name: str) -> Price:
        """Return the price of a call of a tool or model. A tool without a price is free."""
        call = round((_find(self.calls, name) or 0.0) * PICO)
        if kind != "model":
            return Price(call, 0, 0)
        each = _find(self.models, name)
        if each is None:
            return Price(call, None, None)
        return Price(call, round(each.input * PICO / 1e6), round(each.output * PICO / 1e6))


def _find(named: Mapping[str, P], name: str) -> P | None:
    """Return the entry of this name, or of the longest glob that matches it."""
    if name in named:
        return named[name]
    globs = [glob for glob in named if fnmatchcase(name, glob)]
    return named[max(globs, key=len)] if globs else None
