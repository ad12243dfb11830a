"""Plans written in Python: the same data, and the same digest, as in YAML or JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Self, TypedDict, Unpack, cast

import pydantic

from rollcage_workflow.check.checking import Checking
from rollcage_workflow.errors import PlanInvalid
from rollcage_workflow.files import Document
from rollcage_workflow.plan import Jump, OnFailure, Plan, Retry, Template
from rollcage_workflow.tools import contract_of

__all__ = ["PlanBuilder", "StepOptions", "Steps", "literal", "steps"]

Tool = str | Callable[..., Any]
"""A tool, or its name."""


class StepOptions(TypedDict, total=False):
    """What any step may say besides what it does; see `Step`."""

    after: Sequence[str]
    when: str
    on_failure: OnFailure
    retry: Retry | Mapping[str, Any]
    timeout: float
    next: Jump | Mapping[str, Any]


class Steps:
    """The steps of a block, in order: each method adds one, and gives the block back."""

    def __init__(self) -> None:
        self._steps: dict[str, dict[str, Any]] = {}

    def call(
        self,
        name: str,
        tool: Tool,
        args: Mapping[str, Template] | None = None,
        /,
        **options: Unpack[StepOptions],
    ) -> Self:
        """Call a tool. `args` are templates: a text that begins with `=` is an expression."""
        return self._add(name, {"call": _named(tool), **_given(args=args)}, options)

    def agent(
        self,
        name: str,
        agent: Tool,
        args: Mapping[str, Template] | None = None,
        /,
        **options: Unpack[StepOptions],
    ) -> Self:
        """Call an agent: a tool with `effect="scope"`."""
        return self._add(name, {"agent": _named(agent), **_given(args=args)}, options)

    def value(self, name: str, value: Template, /, **options: Unpack[StepOptions]) -> Self:
        """Compute something; nothing is called."""
        return self._add(name, {"value": value}, options)

    def each(
        self,
        name: str,
        /,
        over: str,
        steps: Steps,
        *,
        result: Template = None,
        size: int | None = None,
        max_concurrent: int | None = None,
        **options: Unpack[StepOptions],
    ) -> Self:
        """Steps for each element of a list; see `Each`."""
        inner = {"over": over, "steps": steps.data()}
        inner |= _given(result=result, size=size, max_concurrent=max_concurrent)
        return self._add(name, {"each": inner}, options)

    def repeat(
        self,
        name: str,
        /,
        steps: Steps,
        *,
        until: str,
        most: int,
        result: Template = None,
        then: Literal["fail", "go_on"] | None = None,
        **options: Unpack[StepOptions],
    ) -> Self:
        """Steps until something is true; see `Repeat`."""
        inner = {"steps": steps.data(), "until": until, "most": most}
        return self._add(name, {"repeat": inner | _given(result=result, then=then)}, options)

    def team(
        self,
        name: str,
        /,
        members: Steps,
        *,
        mode: Literal["all", "race", "quorum"] | None = None,
        quorum: int | None = None,
        max_concurrent: int | None = None,
        **options: Unpack[StepOptions],
    ) -> Self:
        """Steps that are done at once; see `Team`."""
        inner = {"members": members.data()}
        inner |= _given(mode=mode, quorum=quorum, max_concurrent=max_concurrent)
        return self._add(name, {"team": inner}, options)

    def workflow(
        self,
        name: str,
        workflow: str | Plan,
        inputs: Mapping[str, Template] | None = None,
        /,
        **options: Unpack[StepOptions],
    ) -> Self:
        """Another plan; see `check`'s `workflows`."""
        named = workflow.name if isinstance(workflow, Plan) else workflow
        return self._add(name, {"workflow": named, **_given(inputs=inputs)}, options)

    def wait(
        self,
        name: str,
        /,
        *,
        signal: str | None = None,
        accepts: Mapping[str, Any] | None = None,
        approval: str | None = None,
        approvers: Sequence[str] | None = None,
        expires: float | None = None,
        seconds: float | None = None,
        until: str | None = None,
        **options: Unpack[StepOptions],
    ) -> Self:
        """Wait for a signal, an approval or a time; see `Wait`."""
        inner = _given(signal=signal, accepts=accepts, approval=approval, approvers=approvers,
                       expires=expires, seconds=seconds, until=until)  # fmt: skip
        return self._add(name, {"wait": inner}, options)

    def data(self) -> dict[str, Any]:
        """The steps, as plans have them."""
        return {name: dict(step) for name, step in self._steps.items()}

    def _add(self, name: str, does: dict[str, Any], options: StepOptions) -> Self:
        if name in self._steps:
            document = Document("<plan>", {}, {})
            raise PlanInvalid([document.finding((name,), "invalid", "is there twice")])
        self._steps[name] = does | {key: _plain(each) for key, each in options.items()}
        return self


class PlanBuilder(Steps):
    """A plan that is being written; `build` ends it.

    Args:
        name: of the plan.
        inputs: by name, the JSON Schema of each.
        description: for people.
        on_failure: see `Plan`.
        time_limit: see `Plan`.
    """

    def __init__(
        self,
        name: str,
        /,
        *,
        inputs: Mapping[str, Mapping[str, Any]] | None = None,
        description: str | None = None,
        on_failure: Literal["stop", "rollback"] | None = None,
        time_limit: float | None = None,
    ) -> None:
        super().__init__()
        self._fields: dict[str, Any] = {"name": name}
        self._fields |= _given(inputs=inputs, description=description, on_failure=on_failure,
                               time_limit=time_limit)  # fmt: skip

    def output(self, output: Template, /) -> Self:
        """Say what the result of an execution is: a template."""
        self._fields["output"] = output
        return self

    def build(self) -> Plan:
        """The plan.

        Raises:
            PlanInvalid: it has not the form of one, with all that is wrong. What `check` finds
                besides, it finds before the plan runs.
        """
        checking = Checking({}, {}, ())
        plan = checking.read({**self._fields, "steps": self.data()})
        if plan is None:
            raise PlanInvalid(checking.findings)
        return plan


def steps() -> Steps:
    """The beginning of a block of steps, for `each`, `repeat` and `team`."""
    return Steps()


def literal(value: Template) -> Template:
    """A value as a template that gives just that: no text in it is taken for an expression."""
    if isinstance(value, str):
        return f"={value}" if value.startswith("=") else value
    if isinstance(value, Mapping):
        fields = cast("Mapping[str, Any]", value)
        return {name: literal(each) for name, each in fields.items()}
    if isinstance(value, list | tuple):
        return [literal(each) for each in cast("Sequence[Any]", value)]
    return value


def _named(tool: Tool) -> str:
    return tool if isinstance(tool, str) else contract_of(tool).name


def _given(**fields: Any) -> dict[str, Any]:
    return {name: _plain(each) for name, each in fields.items() if each is not None}


def _plain(value: Any) -> Any:
    """As a file would have it."""
    if isinstance(value, pydantic.BaseModel):
        return value.model_dump(mode="json", exclude_unset=True)
    if isinstance(value, Mapping):
        return dict(cast("Mapping[str, Any]", value))
    return list(value) if isinstance(value, tuple) else value
