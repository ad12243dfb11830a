"""The lines of a registry as models, which validate lines when they are read.

They are imported when a registry is first read, because building models takes time, and a session
without a facade needs none.
"""

from __future__ import annotations

import functools
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

__all__ = [
    "FacadeDefined",
    "RegistryStarted",
    "ToolActivated",
    "ToolApproved",
    "ToolMoved",
    "ToolProposed",
    "adapter",
]

Kind = Literal["tool", "model"]
Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Name = Annotated[str, Field(min_length=1)]


class _Line(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, defer_build=True, frozen=True)

    time: int = Field(ge=0, description="Unix time in microseconds")


class RegistryStarted(_Line):
    """The first line."""

    event: Literal["registry.started"]
    format: Literal["rollcage-registry/1"]


class _Said(_Line):
    by: Name = Field(description="who did it")
    why: str


class _OfTool(_Said):
    kind: Kind
    tool: Name


class ToolProposed(_OfTool):
    """A proposal of a tool in its current form."""

    event: Literal["tool.proposed"]
    digest: Digest
    contract: dict[str, Any] = Field(description="what the digest is of")


class ToolApproved(_OfTool):
    """An approval by another person: the proposal's digest is pinned."""

    event: Literal["tool.approved"]
    digest: Digest


class ToolMoved(_OfTool):
    """A transition of a tool without further fields."""

    event: Literal["tool.rejected", "tool.frozen", "tool.unfrozen", "tool.deprecated"]


class ToolActivated(_OfTool):
    """A tool goes into a pack, or leaves it."""

    event: Literal["tool.activated", "tool.deactivated"]
    pack: Name


class FacadeDefined(_Said):
    """An agent's facade: the active tools of these packs."""

    event: Literal["facade.defined"]
    facade: Name
    packs: list[Name] = Field(min_length=1)


Event = Annotated[
    RegistryStarted | ToolProposed | ToolApproved | ToolMoved | ToolActivated | FacadeDefined,
    Field(discriminator="event"),
]


@functools.cache
def adapter() -> TypeAdapter[Any]:
    """Return the validator of a line; built on demand."""
    return TypeAdapter(Event)
