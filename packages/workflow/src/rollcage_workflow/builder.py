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
    """The options of any step, besides its kind; see `Step`."""

    after: Sequence[str]
    when: str
    on_failure: OnFailure
    retry: Retry | Mapping[str, Any]
    timeout: float
    next: Jump | Mapping[str, Any]


class Steps:
    """The steps of a block, in order: each method adds one, and returns the block."""

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
        """Compute a value, without a call."""
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
        """Run steps for each element of a list; see `Each`."""
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
        """Repeat steps until a condition holds; see `Repeat`."""
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
        time_limit: float | None = None,
        **options: Unpack[StepOptions],
    ) -> Self:
        """Run steps concurrently; see `Team`."""
        inner = {"members": members.data()}
        inner |= _given(mode=mode, quorum=quorum, max_concurrent=max_concurrent,
                        time_limit=time_limit)  # fmt: skip
        return self._add(name, {"team": inner}, options)

    def workflow(
        self,
        name: str,
        workflow: str | Plan,
        inputs: Mapping[str, Template] | None = None,
        /,
        **options: Unpack[StepOptions],
    ) -> Self:
        """Run another plan; see `check`'s `workflows`."""
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
        on_rejected: Literal["fail", "ask_again"] | None = None,
        seconds: float | None = None,
        until: str | None = None,
        **options: Unpack[StepOptions],
    ) -> Self:
        """Wait for a signal, an approval or a time; see `Wait`."""
        inner = _given(signal=signal, accepts=accepts, approval=approval, approvers=approvers,
                       expires=expires, on_rejected=on_rejected, seconds=seconds,
                       until=until)  # fmt: skip
        return self._add(name, {"wait": inner}, options)

    def data(self) -> dict[str, Any]:
        """Return the steps, in a plan's form."""
        return {name: dict(step) for name, step in self._steps.items()}

    def _add(self, name: str, does: dict[str, Any], options: StepOptions) -> Self:
        if name in self._steps:
            document = Document("<plan>", {}, {})
            raise PlanInvalid([document.finding((name,), "invalid", "is there twice")])
        self._steps[name] = does | {key: _plain(each) for key, each in options.items()}
        return self


class PlanBuilder(Steps):
    """A plan under construction; `build` completes it.

    Args:
        name: the name of the plan.
        inputs: the JSON Schema of each input, by name.
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
        """Set the result of an execution: a template."""
        self._fields["output"] = output
        return self

    def build(self) -> Plan:
        """Return the plan.

        Raises:
            PlanInvalid: the data do not have the form of a plan, with all problems. `check` finds
                further problems before the plan runs.
        """
        checking = Checking({}, {}, ())
        plan = checking.read({**self._fields, "steps": self.data()})
        if plan is None or checking.findings:
            raise PlanInvalid([*checking.findings])
        return plan


def steps() -> Steps:
    """Return the beginning of a block of steps, for `each`, `repeat` and `team`."""
    return Steps()


def literal(value: Template) -> Template:
    """Return a template for exactly this value: no text in it is an expression."""
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
    """Return a value in a file's form."""
    if isinstance(value, pydantic.BaseModel):
        return value.model_dump(mode="json", exclude_unset=True)
    if isinstance(value, Mapping):
        return dict(cast("Mapping[str, Any]", value))
    return list(value) if isinstance(value, tuple) else value
