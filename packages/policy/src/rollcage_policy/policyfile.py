"""The models of a policy file; unknown fields are refused."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, Literal, Self

import pydantic
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
)
from rollcage.errors import PolicyProblem
from rollcage.gate import Decision, person

from rollcage_policy.limits import Limit, Limits, Loops
from rollcage_policy.lines import Document, Path
from rollcage_policy.presets import PRESETS
from rollcage_policy.prices import ModelPrice, Prices

__all__ = ["ApprovalTerms", "Flow", "Mode", "PolicyFile", "RuleData", "problems_of"]

Mode = Literal["enforce", "shadow"]
"""`shadow` decides and records, but blocks nothing: for a dry run of a policy."""

Flow = Literal["value", "run", "off"]
"""How labels of results follow into later calls; see `rollcage_policy.labels.FlowMode`."""

# Patterns are of Rust's engine, where `$` is the end of the text, and no line end may follow.
_Visible = StringConstraints(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f\x7f]+$")
Glob = Annotated[str, _Visible]
Person = Annotated[str, AfterValidator(person)]
Globs = Annotated[list[Glob], Field(min_length=1)]
AgentGlobs = Annotated[
    list[Annotated[str, StringConstraints(max_length=256)]], Field(min_length=1)
]  # the empty glob is for agents without a name
Word = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.:/-]*$", max_length=128)]
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=128)]
Text = Annotated[str, StringConstraints(max_length=2000)]

_SPAN: Final = re.compile(r"([0-9]{1,6}) ?(s|min|h|d)")
_SECONDS: Final = {"s": 1, "min": 60, "h": 3600, "d": 86400}


class _Data(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class RuleData(_Data):
    """A rule: which calls it matches, and its decision about them.

    Attributes:
        id: the name under which its verdicts are recorded.
        tools: globs over the names of tools and models.
        agents: globs over the names of agents; `""` is the name of an agent without a name.
        kinds: whether it matches tool calls, model calls, or both.
        effects: the effects of the tools that it matches; by default all.
        when: a condition in CEL; without one, the rule always holds.
        decision: the decision on calls for which the rule holds.
        code: machine-readable; by default `allowed`, `approval_required` or `denied`.
        reason: short and factual; a model reads it. Required if the rule denies or asks.
        remedy: a suggestion for the model.
    """

    id: Word
    tools: Globs = ["*"]
    agents: AgentGlobs = ["*"]
    kinds: Annotated[list[Literal["tool", "model"]], Field(min_length=1)] = ["tool", "model"]
    effects: (
        Annotated[list[Literal["pure", "read", "write", "scope"]], Field(min_length=1)] | None
    ) = None
    when: Annotated[str, StringConstraints(min_length=1)] | None = None
    decision: Decision
    code: Word | None = None
    reason: Text = ""
    remedy: Text = ""

    @pydantic.model_validator(mode="after")
    def _gives_a_reason(self) -> Self:
        if self.decision != "allow" and not self.reason.strip():
            raise ValueError(f"a rule that decides {self.decision!r} has to give a reason")
        return self


def _check_span(text: str) -> str:
    found = _SPAN.fullmatch(text.strip())
    if found is None or not int(found[1]):
        raise ValueError(f"{text!r} is not a span of time: write 90 s, 15 min, 24 h or 7 d")
    return text


class ApprovalTerms(_Data):
    """Who may approve, and for how long an approval counts.

    Attributes:
        expires: how long after the request, as `24h`.
        approvers: who may approve; by default anybody but the requester.
    """

    expires: Annotated[str, AfterValidator(_check_span)] = "24h"
    approvers: Annotated[list[Person], Field(min_length=1)] | None = None

    @property
    def seconds(self) -> float:
        """`expires` in seconds."""
        found = _SPAN.fullmatch(self.expires.strip())
        return float(int(found[1]) * _SECONDS[found[2]]) if found else 0.0


def _check_version(value: object) -> int:
    if type(value) is not int or value != 1:  # True and 1.0 equal 1 as well
        raise ValueError(f"should be 1, not {value!r}: it is the version of the format")
    return value


class PolicyFile(_Data):
    """One file. An omitted setting is inherited from included files, or has its default."""

    version: Annotated[int, BeforeValidator(_check_version)]
    name: Annotated[str, _Visible] | None = None
    default: Decision | None = None
    mode: Mode | None = None
    strict: bool | None = None
    include: list[Annotated[str, _Visible]] = []
    flow: Flow | None = None
    constants: dict[Name, Any] = {}
    rules: list[RuleData] = []
    presets: list[dict[str, Any]] = []
    limits: Limits | None = None
    labels: dict[Glob, Annotated[list[Word], Field(min_length=1)]] = {}
    approval: ApprovalTerms | None = None
    prices: Prices | None = None


_KNOWN: Final[Mapping[Path, Iterable[str]]] = {
    (): PolicyFile.model_fields,
    ("rules",): RuleData.model_fields,
    ("limits",): Limits.model_fields,
    ("limits", "rules"): Limit.model_fields,
    ("limits", "loops"): Loops.model_fields,
    ("approval",): ApprovalTerms.model_fields,
    ("prices", "models", "*"): ModelPrice.model_fields,
    **{("presets", name): preset.model_fields for name, preset in PRESETS.items()},
}
"""The allowed names at each place, to suggest the nearest one for a mistyped name."""


def problems_of(
    document: Document,
    error: pydantic.ValidationError,
    at: Path = (),
    known: Path | None = None,
    names: Mapping[Path, Iterable[str]] | None = None,
) -> list[PolicyProblem]:
    """Convert Pydantic's errors into problems, with lines and sorted by them.

    Args:
        document: the file.
        error: the errors.
        at: the place of the data that were validated.
        known: the place whose names the data may have; `at` if None.
        names: the names at each place; the names of a policy if None.
    """
    problems: list[PolicyProblem] = []
    for each in error.errors(include_url=False, include_context=False):
        found = _shown(each["loc"])
        place = (*(at if known is None else known), *(p for p in found if isinstance(p, str)))
        problems.append(document.problem((*at, *found), _reason(each, place, names or _KNOWN)))
    return sorted(problems, key=lambda problem: problem.line)


def _shown(found: Path) -> Path:
    """Return the place in the file; Pydantic adds a step for keys and for prices of calls."""
    if found[:2] == ("prices", "calls"):
        found = ("prices", *found[2:])
    return tuple(part for part in found if part != "[key]")


def _reason(found: Any, place: Path, known: Mapping[Path, Iterable[str]]) -> str:
    message = (
        str(found["msg"]).removeprefix("Value error, ").replace("Input should be", "should be")
    )
    if found["type"] == "missing":
        return "is missing"
    if found["type"] == "extra_forbidden":
        around = place[:-1] if place[:2] != ("prices", "models") else ("prices", "models", "*")
        near = difflib.get_close_matches(str(place[-1]), list(known.get(around, ())), 1)
        return f"unknown key{f'; did you mean {near[0]!r}?' if near else ''}"
    value: object = found.get("input")
    if isinstance(value, str | int | float) and not message.endswith(repr(value)):
        return f"{message}, not {repr(value)[:60]}" if found["type"] != "value_error" else message
    return message
