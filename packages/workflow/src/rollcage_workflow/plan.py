"""A plan: the steps of a workflow as data. YAML, JSON and `PlanBuilder` give the same plan."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal, Self

import pydantic
from rollcage.trace import jcs

__all__ = [
    "KINDS",
    "Block",
    "Each",
    "Jump",
    "OnFailure",
    "Plan",
    "PlanStep",
    "Repeat",
    "Retry",
    "Team",
    "Wait",
]

KINDS: Final = ("call", "agent", "team", "each", "repeat", "workflow", "wait", "value")
"""The kinds of steps: exactly one of these fields is set."""

SINGLE: Final = frozenset({"call", "wait", "value"})
"""The kinds of steps without calls inside."""

OnFailure = Literal["stop", "rollback", "keep"]
"""The effect of a failed step.

`stop` ends what is around it: at last the execution. `rollback` undoes first: a step with calls
inside (`agent`, `each`, `repeat`, `team`, `workflow`) undoes these, any other step undoes the block
that it stands in. `keep` continues.
"""

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
RESERVED: Final = frozenset({"inputs", "item", "index", "round", "last"}) | {
    *("true", "false", "null", "in", "as", "break", "const", "continue", "else", "for", "function"),
    *("if", "import", "let", "loop", "package", "namespace", "return", "var", "void", "while"),
    *("int", "uint", "double", "bool", "string", "bytes", "list", "map", "null_type", "type"),
}
"""Reserved names of steps: variables of expressions, and words of CEL."""


def _check_id(name: str) -> str:
    if _NAME.fullmatch(name) is None:
        raise ValueError("a step's name is made of letters, digits and _, and begins with no digit")
    if name in RESERVED:
        raise ValueError(f"{name!r} has a meaning in expressions: give the step another name")
    return name


StepId = Annotated[str, pydantic.AfterValidator(_check_id)]
Template = Any
"""JSON; a text that begins with `=` is an expression, `==` stands for a text with one `=`."""

Seconds = Annotated[float, pydantic.Field(gt=0, le=10 * 365 * 86400)]


class _Part(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, strict=True)


class Retry(_Part):
    """Retries of a failed step. Only failures are retried: never an unknown outcome or a halt.

    Attributes:
        attempts: how often it is tried, the first time included.
        wait: seconds before the second attempt.
        factor: the factor by which each further wait is longer.
        on: names of the exception types that are worth another attempt; all by default.
    """

    attempts: int = pydantic.Field(ge=2, le=100)
    wait: Annotated[float, pydantic.Field(ge=0, le=86400)] = 0.0
    factor: Annotated[float, pydantic.Field(ge=1, le=10)] = 1.0
    on: tuple[str, ...] = ()

    @pydantic.field_validator("on", mode="before")
    @classmethod
    def _listed(cls, value: object) -> object:
        return _as_tuple(value)


class Jump(_Part):
    """A jump to another step: back, and all steps in between are repeated; or ahead, past them.

    Attributes:
        to: the step.
        when: the condition; in it, and in the repeated steps, `last` is the result
            of the step that jumps. Skipped steps have the result null.
        most: how many times, at the most; required for a jump back.
    """

    to: str
    when: str
    most: int | None = pydantic.Field(default=None, ge=1, le=10_000)


class Block(_Part):
    """A block of steps.

    Attributes:
        steps: by name.
        result: a template; by default the result of the last step.
    """

    steps: dict[StepId, PlanStep] = pydantic.Field(min_length=1)
    result: Template = None


class Each(Block):
    """Steps that run once for each element of a list.

    Attributes:
        over: an expression for the list.
        size: how many elements each pass gets, as a list (sharding); by default one, not in a list.
        max_concurrent: how many passes run at once.
    """

    over: str
    size: int | None = pydantic.Field(default=None, ge=1)
    max_concurrent: int = pydantic.Field(default=16, ge=1, le=10_000)


class Repeat(Block):
    """Repeated steps; `round` counts from 1, `last` is the last round's result.

    Attributes:
        until: ends the loop if it is true after a round; there, `last` is this round's result.
        most: how many rounds, at the most.
        then: if `until` never became true: `"fail"`, or `"go_on"` with the last round's result.
    """

    until: str
    most: int = pydantic.Field(ge=1, le=1_000_000)
    then: Literal["fail", "go_on"] = "fail"


class Team(_Part):
    """Concurrent steps, towards one result.

    Attributes:
        members: by name.
        mode: `all`: the results by name; `race`: the result of the first to succeed; `quorum`: the
            results of the first so many to succeed, by name.
        quorum: how many, for `quorum`.
        max_concurrent: how many run at once.
        time_limit: seconds that it may take, from when it was first reached, waits included.
            Members that have not ended by then are undone. With `all`, their results are null; a
            race or a quorum that is not decided by then fails.
    """

    members: dict[StepId, PlanStep] = pydantic.Field(min_length=1)
    mode: Literal["all", "race", "quorum"] = "all"
    quorum: int | None = pydantic.Field(default=None, ge=1)
    max_concurrent: int = pydantic.Field(default=16, ge=1, le=10_000)
    time_limit: Seconds | None = None


_OF_APPROVALS: Final = frozenset({"approvers", "expires", "on_rejected"})


class Wait(_Part):
    """A step's wait; the result is the event's.

    Attributes:
        signal: its name: `rollcage workflow signal ID NAME`.
        accepts: JSON Schema of a signal's data.
        seconds: how long, from when the step was first reached.
        until: an expression for a time (ISO 8601, with an offset).
        approval: the question for people: a template.
        approvers: who may approve, by name; by default anyone except the person for whom the
            execution
            runs.
        expires: how long an approval can be given (seconds).
        on_rejected: the effect of a rejection, or of no answer in time: the step fails, or people
            are asked again. An execution that is run once more asks again in either case.
    """

    signal: str | None = pydantic.Field(default=None, pattern=r"^[A-Za-z0-9_-]{1,64}$")
    accepts: dict[str, Any] | None = None
    seconds: Seconds | None = None
    until: str | None = None
    approval: str | None = pydantic.Field(default=None, min_length=1, max_length=2000)
    approvers: tuple[str, ...] = ()
    expires: Seconds = 7 * 86400.0
    on_rejected: Literal["fail", "ask_again"] = "fail"

    @pydantic.field_validator("approvers", mode="before")
    @classmethod
    def _listed(cls, value: object) -> object:
        return _as_tuple(value)

    @pydantic.model_validator(mode="after")
    def _one(self) -> Self:
        given = (self.signal, self.seconds, self.until, self.approval)
        if sum(each is not None for each in given) != 1:
            raise ValueError("a wait is for one of: signal, seconds, until, approval")
        if self.approval is None and _OF_APPROVALS & self.model_fields_set:
            raise ValueError("approvers:, expires: and on_rejected: are for an approval")
        if self.accepts is not None and self.signal is None:
            raise ValueError("accepts: is for a signal")
        return self


class PlanStep(_Part):
    """One step. Exactly one of `KINDS` sets its kind.

    Attributes:
        call: a tool's name.
        args: the arguments of the tool or the agent: templates by name.
        agent: an agent's name; a tool with the effect `scope`.
        team: concurrent steps.
        each: steps for each element of a list.
        repeat: steps that repeat until a condition holds.
        workflow: another plan, by name.
        inputs: the inputs of that plan.
        wait: a signal, a time or an approval.
        value: a template; there is no call.
        after: steps before this one, besides the steps whose results it uses.
        when: an expression; if it is false the step is skipped, and its result is null.
        on_failure: see `OnFailure`; by default the plan's. With `keep`, the result is
            `{"ok": true, "value": ...}` or `{"ok": false, "error": {"type": ..., "message": ...}}`.
        retry: its retries.
        timeout: seconds that an attempt may take.
        next: a jump to another step, on a condition.
    """

    call: str | None = None
    args: dict[str, Template] = {}
    agent: str | None = None
    team: Team | None = None
    each: Each | None = None
    repeat: Repeat | None = None
    workflow: str | None = None
    inputs: dict[str, Template] = {}
    wait: Wait | None = None
    value: Template = None
    after: tuple[str, ...] = ()
    when: str | None = None
    on_failure: OnFailure | None = None
    retry: Retry | None = None
    timeout: Seconds | None = None
    next: Jump | None = None

    @pydantic.field_validator("after", mode="before")
    @classmethod
    def _listed(cls, value: object) -> object:
        return _as_tuple(value)

    @pydantic.model_validator(mode="after")
    def _one_kind(self) -> Self:
        given = [kind for kind in KINDS if kind in self.model_fields_set]
        if len(given) != 1:
            found = f"this has {' and '.join(given)}" if given else "this has none of them"
            raise ValueError(f"a step has one of {', '.join(KINDS)}; {found}")
        if given[0] != "value" and getattr(self, given[0]) is None:
            raise ValueError(f"{given[0]}: is null")
        if self.args and given[0] not in ("call", "agent"):
            raise ValueError(f"args: is for call and agent, not for {given[0]}")
        if self.inputs and given[0] != "workflow":
            raise ValueError(f"inputs: is for workflow, not for {given[0]}")
        return self

    @functools.cached_property
    def kind(self) -> str:
        """Which of `KINDS` it is."""
        return next(kind for kind in KINDS if kind in self.model_fields_set)

    @property
    def undoes_itself(self) -> bool:
        """Whether its failure undoes the calls inside it."""
        return self.on_failure == "rollback" and self.kind not in SINGLE

    @property
    def undoes_its_block(self) -> bool:
        """Whether its failure undoes the block that it stands in."""
        return self.on_failure == "rollback" and self.kind in SINGLE

    def blocks(self) -> Iterator[tuple[tuple[str, ...], Mapping[str, PlanStep]]]:
        """Yield the steps inside it, with their place in it."""
        if self.team is not None:
            yield ("team", "members"), self.team.members
        if self.each is not None:
            yield ("each", "steps"), self.each.steps
        if self.repeat is not None:
            yield ("repeat", "steps"), self.repeat.steps


class Plan(_Part):
    """A workflow.

    Attributes:
        name: its name.
        description: for people.
        inputs: the JSON Schema of each input, by name; an input without a `default` has to be
            given.
        steps: by name. A step comes after the steps whose results it uses.
        output: a template: the result of an execution; by default the last step's.
        on_failure: the effect of a failed step without a setting of its own; `rollback` undoes all
            steps of the plan, also if it runs as a step of another plan.
        time_limit: seconds that all of it may take, from its first attempt on, waits included.
    """

    name: str = pydantic.Field(min_length=1, max_length=200)
    description: str = ""
    inputs: dict[str, dict[str, Any]] = {}
    steps: dict[StepId, PlanStep] = pydantic.Field(min_length=1)
    output: Template = None
    on_failure: Literal["stop", "rollback"] = "stop"
    time_limit: Seconds | None = None

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of the plan as data (RFC 8785)."""
        return hashlib.sha256(jcs(self.data())).hexdigest()

    @property
    def undoes(self) -> bool:
        """Whether a failure may undo all steps of the plan."""
        return self.on_failure == "rollback" or any(
            step.undoes_its_block for step in self.steps.values()
        )

    def data(self) -> dict[str, Any]:
        """Return the plan as JSON, without default values."""
        found: dict[str, Any] = self.model_dump(mode="json", exclude_unset=True)
        return found


def _as_tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


for _model in (Block, Each, Repeat, Team, PlanStep, Plan):
    _model.model_rebuild()
