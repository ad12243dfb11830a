"""Limits as data: calls, cost, tokens, time, rate, concurrency; and loop detection.

`rollcage_policy.meter` counts them.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal, NamedTuple, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    model_validator,
)

__all__ = ["Limit", "Limits", "Loops", "Rate", "Resource"]

Resource = Literal["calls", "cost", "tokens", "seconds", "rate", "concurrency"]
RESOURCES: Final[tuple[Resource, ...]] = (
    "calls", "cost", "tokens", "seconds", "rate", "concurrency",
)  # fmt: skip
_RATE: Final = re.compile(r"([0-9]{1,6}) ?/ ?([0-9]{1,6} ?)?([a-z]{1,7})")
_UNITS: Final = {
    word: seconds
    for words, seconds in (
        ("s sec second seconds", 1),
        ("m min minute minutes", 60),
        ("h hour hours", 3600),
        ("d day days", 86400),
    )
    for word in words.split()
}


class Rate(NamedTuple):
    """A number of calls in any span of a number of seconds."""

    calls: int
    seconds: int

    @classmethod
    def parse(cls, text: str) -> Rate:
        """Parse a rate as people write it: `10/min`, `1/s`, `100 / 15 min`, `1000/day`.

        Raises:
            ValueError: the text is not a rate.
        """
        found = _RATE.fullmatch(text.strip().lower())
        unit = _UNITS.get(found.group(3)) if found else None
        if found is None or unit is None:
            raise ValueError(f"{text!r} is not a rate: write 10/min, 1/s, 100/15 min or 1000/day")
        rate = cls(int(found.group(1)), int(found.group(2) or 1) * unit)
        if not rate.calls or not rate.seconds:
            raise ValueError(f"{text!r} allows nothing: leave the tool out, or deny it by a rule")
        return rate


def _check_rate(text: str) -> str:
    Rate.parse(text)
    return text


Count = Annotated[int, Field(ge=0, le=2**53)]
Globs = Annotated[
    tuple[Annotated[str, Field(min_length=1)], ...], Field(min_length=1, strict=False)
]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)


class Limit(_Model):
    """The resources that calls of these tools, by these agents, may use together.

    Each resource that is given is a limit of its own.

    Attributes:
        id: the name under which its verdicts are recorded.
        tools: globs over the names of tools and models.
        agents: globs over the names of agents; `""` is the name of an agent without a name.
        kinds: whether it counts tool calls, model calls, or both.
        per: the unit of the count: the whole run, or each tool or each agent separately.
        calls: how many calls.
        cost: how much, by the policy's prices, in their currency.
        tokens: how many tokens, input and output together.
        seconds: how long after the session was opened (`per="run"`), or after the first call of
            the tool or agent, calls may begin.
        rate: how many calls within a span of time, as `10/min`. Replayed calls do not count.
        concurrency: how many calls at the same time.
        failed: whether a failed call counts for `calls`, `rate` and cost (`count`), or not
            (`free`).
        decision: the decision on a call beyond the limit: `deny` or `ask`.
        reason: the reason; by default, which limit was reached.
        remedy: a suggestion for the model.
    """

    id: str = Field(min_length=1)
    tools: Globs = ("*",)
    agents: Annotated[tuple[str, ...], Field(min_length=1, strict=False)] = ("*",)
    kinds: Annotated[tuple[Literal["tool", "model"], ...], Field(min_length=1, strict=False)] = (
        "tool",
        "model",
    )
    per: Literal["run", "tool", "agent"] = "run"
    calls: Count | None = None
    cost: Annotated[FiniteFloat, Field(ge=0, le=1e9)] | None = None
    tokens: Count | None = None
    seconds: Annotated[FiniteFloat, Field(ge=0, le=1e9)] | None = None
    rate: Annotated[str, AfterValidator(_check_rate)] | None = None
    concurrency: Annotated[int, Field(ge=1)] | None = None
    failed: Literal["count", "free"] = "count"
    decision: Literal["deny", "ask"] = "deny"
    reason: str = ""
    remedy: str = ""

    @model_validator(mode="after")
    def _limits_something(self) -> Self:
        if all(getattr(self, each) is None for each in RESOURCES):
            raise ValueError(
                f"limit {self.id!r} limits nothing: give one of {', '.join(RESOURCES)}"
            )
        return self


class Loops(_Model):
    """Loop detection. Each agent is checked separately, in each branch.

    Attributes:
        id: the name under which its verdicts are recorded.
        same: how often the same call, arguments included, may be made in a row.
        within: if given, `same` is counted within this many of the agent's last calls instead.
        alternating: how often two calls may alternate: A-B is once, A-B-A-B twice.
        ignore: globs over the names of tools that are called repeatedly by design; their calls are
            ignored.
        decision: the decision on the next call of the loop: `deny` or `ask`.
        reason: the reason; by default, the detected loop.
        remedy: a suggestion for the model.
    """

    id: str = Field("loops", min_length=1)
    same: Annotated[int, Field(ge=1, le=1000)] | None = None
    within: Annotated[int, Field(ge=2, le=1000)] | None = None
    alternating: Annotated[int, Field(ge=1, le=500)] | None = None
    ignore: Annotated[tuple[str, ...], Field(strict=False)] = ()
    decision: Literal["deny", "ask"] = "deny"
    reason: str = ""
    remedy: str = ""

    @model_validator(mode="after")
    def _looks_for_something(self) -> Self:
        if self.same is None and self.alternating is None:
            raise ValueError("loops need same=, alternating=, or both")
        if self.within is not None and (self.same is None or self.within <= self.same):
            raise ValueError(
                "within= goes with same= and has to exceed it: same= is counted in the last "
                "within= calls"
            )
        return self


class Limits(_Model):
    """All the limits of a policy: its `[limits]`."""

    rules: Annotated[tuple[Limit, ...], Field(strict=False)] = ()
    loops: Loops | None = None

    @model_validator(mode="after")
    def _ids_differ(self) -> Self:
        ids = [each.id for each in self.rules] + ([self.loops.id] if self.loops else [])
        twice = sorted({each for each in ids if ids.count(each) > 1})
        if twice:
            raise ValueError(f"two limits are called {twice[0]!r}: an id says which one decided")
        return self

    def __bool__(self) -> bool:
        """Return whether there is anything to count."""
        return bool(self.rules) or self.loops is not None

    @classmethod
    def of(cls, data: Any) -> Limits:
        """Return the limits in data of a policy file.

        Raises:
            pydantic.ValidationError: the data are not limits.
        """
        return cls.model_validate(data)
