"""One check of a plan: its form, its expressions, and the findings."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from rollcage_workflow.check import blocks
from rollcage_workflow.check.form import Mending
from rollcage_workflow.errors import PlanFinding, PlanInvalid
from rollcage_workflow.expressions import (
    Expression,
    ExpressionInvalid,
    expression,
    fill,
    templates,
)
from rollcage_workflow.files import Document, Path, read_file
from rollcage_workflow.graph import Checked, Graph
from rollcage_workflow.plan import Block, Plan, PlanStep
from rollcage_workflow.reading import Reading, of_template
from rollcage_workflow.schemas import (
    ANY,
    Shape,
    invalid,
    misfit,
    nearest,
    table,
    unusable,
)

__all__ = ["Around", "Checking", "Workflows"]

Workflows = Mapping[str, "Plan | Checked | str"]
"""The plans that `workflow:` steps name; each may be the path of a file."""


@dataclasses.dataclass(frozen=True)
class Around:
    """The surroundings of a block of steps.

    Attributes:
        variables: the variables of expressions, with the shape of each.
        optional: variables that may be null, because their step may be skipped.
        guarded: variables that a condition of this step, or of an enclosing one, checks.
        undone: why everything in it has to be undoable, if so.
        timed: the path of an enclosing time limit.
    """

    variables: Mapping[str, Shape]
    optional: frozenset[str] = frozenset()
    guarded: frozenset[str] = frozenset()
    undone: str = ""
    timed: bool = False

    def with_(self, variables: Mapping[str, Shape], **changed: Any) -> Around:
        """Return the surroundings with more variables."""
        return dataclasses.replace(self, variables={**self.variables, **variables}, **changed)


class Checking:
    """One check of a plan, and of the plans that it names."""

    def __init__(
        self,
        tools: Mapping[str, Callable[..., Any]],
        workflows: Workflows,
        above: tuple[str, ...],
    ) -> None:
        self.tools = tools
        self.workflows = workflows
        self.above = above
        self.name = ""  # the plan's name
        self.findings: dict[PlanFinding, None] = {}  # in their order, each once
        self.form = Mending()
        self.document = Document("<plan>", {}, {})

    def find(self, path: Path, code: str, reason: str) -> None:
        """Note a problem, unless it is only a consequence of a problem of the plan's form."""
        if not self.form.explains(path, code):
            self._note(self.form.at(path), code, reason)

    def _note(self, path: Path, code: str, reason: str) -> None:
        self.findings[self.document.finding(path, code, reason)] = None

    def of_plan_in(self, named: str | None = None) -> Checking:
        """Return the check of a named plan; a plan inside of itself is reported as a circle."""
        above = self.above if named is None else (*self.above, named)
        return Checking(self.tools, self.workflows, above)

    def plan(self, given: Plan | Document | str | Mapping[str, Any]) -> Checked:
        """See `check`."""
        try:
            return self._plan(given)
        except RecursionError:
            self._note((), "invalid", "nested too deep")
            raise self._invalid() from None

    def _invalid(self) -> PlanInvalid:
        """Return the error with the findings: of the plan's file, then of other ones."""
        here = self.document.where
        return PlanInvalid(
            sorted(self.findings, key=lambda each: (each.file != here, each.file, each.line))
        )

    def _plan(self, given: Plan | Document | str | Mapping[str, Any]) -> Checked:
        plan = self.read(given)
        graph: Graph | None = None
        if plan is not None:
            self.name = plan.name
            inputs = {name: self._input(plan, name) for name in plan.inputs}
            around = Around(
                {"inputs": ANY if self.form.is_mended(("inputs",)) else table(inputs)},
                undone="the plan rolls back" if plan.on_failure == "rollback" else "",
                timed=plan.time_limit is not None,
            )
            graph, results = self.block(plan.steps, ("steps",), around)
            # whoever runs the plan undoes it, as a whole
            graph = dataclasses.replace(graph, result=plan.output, undoes=False)
            seen = around.with_(results, optional=blocks.skippable(graph))
            self.template(plan.output, ("output",), seen)
        if self.findings or plan is None or graph is None:
            raise self._invalid()
        return Checked(plan, graph, self.document.where, self.tools)

    # --- form ------------------------------------------------------------------------------------

    def read(self, given: Plan | Document | str | Mapping[str, Any]) -> Plan | None:
        """Read a plan, mended if it does not have the form of one; None if it can't be mended."""
        if isinstance(given, Plan):
            self.document = Document(f"<{given.name}>", given.data(), {})
            return given
        if isinstance(given, Document):
            self.document = given
        elif isinstance(given, Mapping):
            self.document = Document("<plan>", given, {})
        else:
            self.document = read_file(given)
        self.form = Mending.of(self.document.data)
        for path, code, reason in self.form.findings:
            self._note(path, code, reason)
        return self.form.plan

    def _input(self, plan: Plan, name: str) -> Shape:
        shape = Shape.of(plan.inputs[name])
        path = ("inputs", name)
        why = unusable(plan.inputs[name])
        if why is not None:
            self.find(path, "invalid", why)
            return ANY
        if "default" in shape.schema:
            why = invalid(shape.schema["default"], shape)
            if why is not None:
                self.find((*path, "default"), "wrong_type", why)
        return shape

    def block(
        self, steps: Mapping[str, PlanStep], path: Path, around: Around, *, apart: bool = False
    ) -> tuple[Graph, dict[str, Shape]]:
        """See `blocks.block`."""
        return blocks.block(self, steps, path, around, apart=apart)

    def inner(
        self, block: Block, path: Path, around: Around, until: str | None = None
    ) -> tuple[Graph, Shape]:
        """See `blocks.inner`."""
        return blocks.inner(self, block, path, around, until)

    # --- expressions -----------------------------------------------------------------------------

    def template(self, template: Any, path: Path, around: Around) -> Shape:
        """Return the shape of a template's value; note problems in its expressions."""
        for at, source in templates(template, path):
            self.expression(f"={source}", at, around)
        try:
            if not list(templates(template)):
                fill(template, {})
        except Exception as error:  # noqa: BLE001 - whatever makes it no template
            self.find(path, "invalid", str(error))
        return of_template(template, around.variables)

    def expression(
        self,
        source: str,
        path: Path,
        around: Around,
        *,
        boolean: bool = False,
        takes_null: bool = True,
    ) -> Expression | None:
        """Return an expression; note its problems.

        Args:
            source: its text, with the `=`.
            path: its place.
            around: what it sees.
            boolean: whether it is a condition.
            takes_null: whether its value may be null.
        """
        if not source.startswith("=") or source.startswith("=="):
            self.find(path, "invalid", "an expression begins with =")
            return None
        try:
            found = expression(source[1:])
        except ExpressionInvalid as error:
            self.find(path, "bad_expression", str(error))
            return None
        variables = around.variables
        reading = Reading(
            found,
            variables,
            around.optional - around.guarded,
            takes_null=takes_null and not boolean,
        )
        missing = found.names - variables.keys() - self.form.unnamed - reading.no_variables
        for name in sorted(missing):
            message = f"no earlier step is called {name!r}{nearest(name, variables)}"
            self.find(path, "unknown_name", message)
        for problem in reading.problems:
            self.find(path, *problem)
        if boolean and found.names <= variables.keys():
            why = misfit(reading.shape, Shape.of({"type": "boolean"}))
            if why is not None:
                self.find(path, "wrong_type", f"a condition is true or false: {why}")
        return found
