"""Everything that can be wrong with a plan, found before anything of it runs, all at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, cast

import pydantic
from rollcage import Contract
from rollcage.adapter import declared_contract

from rollcage_workflow.errors import Finding, PlanInvalid
from rollcage_workflow.expressions import (
    Expression,
    ExpressionInvalid,
    expression,
    fill,
    names_in,
    templates,
)
from rollcage_workflow.files import Document, Path, read_file
from rollcage_workflow.graph import (
    Checked,
    Graph,
    Node,
    ancestors,
    between,
    cycle,
    loops_of,
)
from rollcage_workflow.plan import KINDS, Block, Each, Plan, Repeat, Step, Team, Wait
from rollcage_workflow.schemas import (
    ANY,
    Shape,
    invalid,
    misfit,
    nearest,
    of_template,
    of_type,
    part,
    table,
    types,
)

__all__ = ["Tools", "Workflows", "check", "tools_by_name"]

Tools = Iterable[Callable[..., Any]] | Mapping[str, Callable[..., Any]]
"""Functions declared with `@rollcage.tool`, or any others: an undeclared one is a write."""

Workflows = Mapping[str, "Plan | Checked | str"]
"""Plans that a `workflow:` step names; each may be the path of a file."""

_MODELS: Final = (Plan, Step, Team, Each, Repeat, Block, Wait)
_FIELDS: Final = frozenset().union(*(model.model_fields for model in _MODELS)) | {
    *("attempts", "wait", "factor", "on", "to", "when", "most")
}
_MOST_CIRCLES: Final = 20
"""So many are told one by one; behind that, a step that waits for itself is cut free at once."""


def tools_by_name(tools: Tools) -> dict[str, Callable[..., Any]]:
    """The tools by the names under which a plan calls them.

    Raises:
        ContractError: one is none, or two have one name.
    """
    if isinstance(tools, Mapping):
        return dict(cast("Mapping[str, Callable[..., Any]]", tools))
    found: dict[str, Callable[..., Any]] = {}
    for tool in tools:
        name = contract_of(tool).name
        if found.setdefault(name, tool) is not tool:
            raise PlanInvalid(
                [Finding("<tools>", 0, "", "doubled_tool", f"two tools are called {name!r}")]
            )
    return found


def contract_of(tool: Callable[..., Any]) -> Contract:
    """A tool's contract; that of an undeclared function is a write's."""
    return declared_contract(tool) or Contract.of(tool)


def check(
    plan: Plan | Document | str | Mapping[str, Any],
    tools: Tools = (),
    workflows: Workflows | None = None,
) -> Checked:
    """A plan that can be run.

    Args:
        plan: a `Plan`, its data, or the path of its file.
        tools: what its steps call, agents included.
        workflows: the plans that its `workflow:` steps name.

    Raises:
        PlanInvalid: with everything that is wrong, each with its file and line.
        ContractError: a tool can't be used.
    """
    return _Checking(tools_by_name(tools), workflows or {}, ()).plan(plan)


@dataclasses.dataclass(frozen=True)
class _Around:
    """What surrounds a block of steps.

    Attributes:
        variables: what expressions see there, with the shape of each.
        optional: those of them that may be null, as their step may be skipped.
        guarded: those that a condition of this step, or of one around it, looks at.
        undone: why all that is written here has to be undoable, if it has to be.
        timed: the path of a time limit around this.
    """

    variables: Mapping[str, Shape]
    optional: frozenset[str] = frozenset()
    guarded: frozenset[str] = frozenset()
    undone: str = ""
    timed: bool = False

    def with_(self, variables: Mapping[str, Shape], **changed: Any) -> _Around:
        return dataclasses.replace(self, variables={**self.variables, **variables}, **changed)


class _Checking:
    """One check of a plan, and of those that it names."""

    def __init__(
        self,
        tools: Mapping[str, Callable[..., Any]],
        workflows: Workflows,
        above: tuple[str, ...],
    ) -> None:
        self.tools = tools
        self.workflows = workflows
        self.above = above
        self.findings: list[Finding] = []
        self.document = Document("<plan>", {}, {})

    def find(self, path: Path, code: str, reason: str) -> None:
        found = self.document.finding(path, code, reason)
        if found not in self.findings:
            self.findings.append(found)

    def plan(self, given: Plan | Document | str | Mapping[str, Any]) -> Checked:
        try:
            return self._plan(given)
        except RecursionError:
            raise PlanInvalid([self.document.finding((), "invalid", "nested too deep")]) from None

    def _plan(self, given: Plan | Document | str | Mapping[str, Any]) -> Checked:
        plan = self._read(given)
        graph: Graph | None = None
        if plan is not None:
            inputs = {name: self._input(plan, name) for name in plan.inputs}
            around = _Around(
                {"inputs": table(inputs)},
                undone="the plan rolls back" if plan.on_failure == "rollback" else "",
                timed=plan.time_limit is not None,
            )
            graph, results = self.block(plan.steps, ("steps",), around)
            graph = dataclasses.replace(graph, result=plan.output)
            self.template(plan.output, ("output",), around.with_(results))
        if self.findings or plan is None or graph is None:
            raise PlanInvalid(sorted(self.findings, key=lambda each: each.line))
        return Checked(plan, graph, self.document.where, self.tools)

    # --- form ------------------------------------------------------------------------------------

    def _read(self, given: Plan | Document | str | Mapping[str, Any]) -> Plan | None:
        if isinstance(given, Plan):
            self.document = Document(f"<{given.name}>", given.data(), {})
            return given
        if isinstance(given, Document):
            self.document = given
        elif isinstance(given, Mapping):
            self.document = Document("<plan>", given, {})
        else:
            self.document = read_file(given)
        try:
            return Plan.model_validate(self.document.data)
        except pydantic.ValidationError as error:
            for each in error.errors(include_url=False, include_input=False):
                self._form(each["loc"], each["type"], each["msg"])
            return None

    def _form(self, loc: Path, kind: str, said: str) -> None:
        path = tuple(part for part in loc if part != "[key]")
        if kind == "extra_forbidden":
            name = str(path[-1])
            near = nearest(name, _FIELDS) if len(path) > 1 else nearest(name, Plan.model_fields)
            self.find(path, "unknown_field", f"there is no such field{near}")
        elif kind == "missing":
            code = "unbounded_jump" if path[-2:] == ("next", "most") else "missing_field"
            why = "; a jump needs a bound" if code == "unbounded_jump" else ""
            self.find(path, code, f"is missing{why}")
        else:
            self.find(path, "invalid", said.removeprefix("Value error, "))

    def _input(self, plan: Plan, name: str) -> Shape:
        shape = Shape.of(plan.inputs[name])
        path = ("inputs", name)
        if "default" in shape.schema:
            why = invalid(shape.schema["default"], shape)
            if why is not None:
                self.find((*path, "default"), "wrong_type", why)
        else:
            why = invalid(None, shape)
            if why is not None and why.startswith("its schema"):
                self.find(path, "invalid", why)
        return shape

    # --- steps -----------------------------------------------------------------------------------

    def block(
        self, steps: Mapping[str, Step], path: Path, around: _Around, *, apart: bool = False
    ) -> tuple[Graph, dict[str, Shape]]:
        """The steps of a block; those of a team stand apart, and see nothing of each other."""
        for name in steps:
            if name in around.variables:
                self.find((*path, name), "shadowed", f"a step around this is called {name!r}, too")
        before = {
            name: () if apart else self._before(name, step, steps, (*path, name))
            for name, step in steps.items()
        }
        wanted = dict(before)
        order = self._order(before, path)
        results: dict[str, Shape] = {}
        nodes: dict[str, Node] = {}
        optional = around.optional
        above = ancestors(before)
        spans = [
            between(step.next.to, name, above)
            for name, step in steps.items()
            if step.next is not None and step.next.to in steps
        ]
        repeated: frozenset[str] = frozenset().union(*spans)
        rolling = {name for name, step in steps.items() if self._rolls_back(step)}
        for name in order:
            seen = around.with_({each: results.get(each, ANY) for each in wanted[name]})
            if name in repeated:
                seen = seen.with_({"last": ANY})
            undone = sorted(rolling if spans else rolling - above[name])
            if undone and not around.undone:
                seen = dataclasses.replace(seen, undone=f"{undone[0]} rolls back")
            seen = seen.with_(
                {each: results[each] for each in sorted(above[name]) if each in results},
                optional=optional,
            )
            nodes[name], results[name] = self.step(name, steps[name], before[name],
                                                   (*path, name), seen)  # fmt: skip
            if steps[name].when is not None:
                optional |= {name}
        ordered = {name: nodes[name] for name in steps if name in nodes}
        if self._jumps(steps, before, path):
            return Graph(loops_of(ordered), [*steps][-1]), results
        return Graph(tuple(ordered.values()), [*steps][-1]), results

    def _rolls_back(self, step: Step, above: tuple[str, ...] = ()) -> bool:
        """Whether a failure of a step, or inside it, undoes what was done before."""
        if step.on_failure is not None:
            return step.on_failure == "rollback"
        inner = [each for _, steps in step.blocks() for each in steps.values()]
        named = step.workflow
        if named is not None and named in self.workflows and named not in above:
            above = (*above, named)
            plan = self._plan_of(self.workflows[named])
            if plan is not None:
                if "on_failure" in plan.model_fields_set and plan.on_failure == "rollback":
                    return True
                inner += plan.steps.values()
        return any(self._rolls_back(each, above) for each in inner)

    def _plan_of(self, known: Plan | Checked | str) -> Plan | None:
        if isinstance(known, Checked):
            return known.plan
        try:
            return _Checking(self.tools, self.workflows, self.above)._read(known)  # noqa: SLF001
        except PlanInvalid:
            return None

    def _before(
        self, name: str, step: Step, steps: Mapping[str, Step], path: Path
    ) -> tuple[str, ...]:
        """What a step comes after: what it uses, and what it says."""
        found: list[str] = []
        for index, each in enumerate(step.after):
            if each in steps:
                found.append(each)
            else:
                self.find((*path, "after", index), "unknown_step",
                          f"there is no step {each!r}{nearest(each, steps)}")  # fmt: skip
        inside = {inner for _, block in step.blocks() for inner in block}
        for source in _sources(step):
            try:
                names = expression(source).names
            except ExpressionInvalid:
                continue
            found += [each for each in sorted(names) if each in steps and each not in inside]
        if step.next is not None:  # its condition looks at the step itself, too
            found = [each for each in found if each != name]
        return tuple(dict.fromkeys(found))

    def _order(self, before: dict[str, tuple[str, ...]], path: Path) -> list[str]:
        """The steps, each behind those that it comes after; what makes a circle is cut."""
        circles = 0
        while circle := cycle(before):
            circles += 1
            said = f"these steps wait for each other: {' -> '.join(circle)}"
            self.find((*path, circle[0]), "cycle", said)
            waits = circle[0]
            few = circles < _MOST_CIRCLES
            before[waits] = tuple(e for e in before[waits] if few and e != circle[1])
        above = ancestors(before)
        return sorted(before, key=lambda each: len(above[each]))

    def _jumps(
        self, steps: Mapping[str, Step], before: Mapping[str, Sequence[str]], path: Path
    ) -> bool:
        """Whether there are jumps, all of which can be done."""
        spans: dict[str, frozenset[str]] = {}
        above = ancestors(before)
        fine = True
        for name, step in steps.items():
            if step.next is None:
                continue
            to, at = step.next.to, (*path, name, "next", "to")
            if to not in steps:
                said = f"there is no step {to!r}{nearest(to, steps)}"
                self.find(at, "unknown_step", said)
                fine = False
                continue
            span = between(to, name, above)
            if not span:
                self.find(at, "bad_jump", f"{name} does not come after {to}: a jump goes back")
                fine = False
                continue
            for other, known in spans.items():
                if span & known and not (span < known or known < span):
                    said = f"what it does again overlaps with what {other} does again"
                    self.find(at, "bad_jump", said)
                    fine = False
            spans[name] = span
        return fine and bool(spans)

    def _retried(self, node: Node, path: Path) -> None:
        """Refuse another attempt at what would do again what it had done well."""
        if node.step.retry is None:
            return
        if node.step.kind != "call":
            said = f"a {node.step.kind} can't be tried again as a whole: put retry: on its steps"
            self.find((*path, "retry"), "bad_retry", said)
        elif node.contract is not None and node.contract.effect == "scope":
            said = f"{node.contract.name} makes calls of its own, which would all be made again"
            self.find((*path, "retry"), "bad_retry", said)

    def step(
        self, name: str, step: Step, before: tuple[str, ...], path: Path, around: _Around
    ) -> tuple[Node, Shape]:
        """A step, and the shape of its result."""
        if step.when is not None:
            self.expression(step.when, (*path, "when"), around, boolean=True)
            self._reachable(step.when, (*path, "when"))
            looked_at = names_in([_bare(step.when)])
            around = dataclasses.replace(around, guarded=around.guarded | looked_at)
        if step.on_failure == "rollback" and not around.undone:
            around = dataclasses.replace(around, undone=f"{name} rolls back")
        if step.timeout is not None:
            around = dataclasses.replace(around, timed=True)
        node = Node(name, step, before)
        node, shape = getattr(self, f"_{step.kind}")(node, path, around)
        self._retried(node, path)
        if step.on_failure == "keep":
            shape = table({"ok": Shape.of({"type": "boolean"}), "value": shape, "error": ANY})
            shape = Shape.of({**shape.schema, "required": ["ok"]})
        if step.next is not None:
            seen = around.with_({name: shape, "last": shape})
            self.expression(step.next.when, (*path, "next", "when"), seen, boolean=True)
        return node, shape

    def _reachable(self, source: str, path: Path) -> None:
        try:
            found = expression(_bare(source))
            if not found.names and found({}) is False:
                self.find(path, "unreachable", "is always false: the step is never reached")
        except Exception:  # noqa: BLE001 - told as what it is elsewhere
            return

    # --- kinds of steps --------------------------------------------------------------------------

    def _call(self, node: Node, path: Path, around: _Around) -> tuple[Node, Shape]:
        return self._tool(node, path, around, "call")

    def _agent(self, node: Node, path: Path, around: _Around) -> tuple[Node, Shape]:
        return self._tool(node, path, around, "agent")

    def _tool(self, node: Node, path: Path, around: _Around, kind: str) -> tuple[Node, Shape]:
        named = str(node.step.call if kind == "call" else node.step.agent)
        given = {name: self.template(each, (*path, "args", name), around)
                 for name, each in node.step.args.items()}  # fmt: skip
        tool = self.tools.get(named)
        if tool is None:
            said = f"there is no {'tool' if kind == 'call' else 'agent'} {named!r}"
            self.find((*path, kind), "unknown_tool", said + nearest(named, self.tools))
            return node, ANY
        contract = contract_of(tool)
        if kind == "agent" and contract.effect != "scope":
            said = f'{named!r} is no agent: declare it with @tool(effect="scope")'
            self.find((*path, kind), "unknown_tool", said)
        self._arguments(contract, node, given, path, around)
        self._effects(contract, path, around)
        shape = of_type(contract.returns)
        return dataclasses.replace(node, tool=tool, contract=contract), shape

    def _arguments(
        self,
        contract: Contract,
        node: Node,
        given: Mapping[str, Shape],
        path: Path,
        around: _Around,
    ) -> None:
        schema = Shape.of(contract.json_schema)
        fields = cast("Mapping[str, Any]", schema.schema.get("properties") or {})
        for name in schema.schema.get("required", ()):
            if name not in given:
                said = f"{contract.name} needs {name!r}"
                self.find((*path, "args"), "missing_argument", said)
        for name, shape in given.items():
            at = (*path, "args", name)
            if name not in fields:
                if not contract.accepts_more:
                    said = f"{contract.name} takes no {name!r}{nearest(name, fields)}"
                    self.find(at, "unknown_argument", said)
                continue
            taken = schema.inside(fields[name])
            why = misfit(shape, taken)
            if why is not None:
                self.find(at, "wrong_type", f"{contract.name} can't take this: {why}")
            elif "null" not in types(taken):
                self._null(contract.name, node.step.args[name], shape, at, around)

    def _null(self, tool: str, template: Any, given: Shape, path: Path, around: _Around) -> None:
        """Refuse a result that may be null where null is not taken, and no condition looks."""
        found = _path_of(template)
        if found is None or found[0] in around.guarded:
            return
        allowed = types(given)
        if found[0] in around.optional:
            code, said = "may_be_skipped", f"{found[0]} may be skipped"
        elif "null" in allowed and allowed != types(ANY):
            code, said = "may_be_null", f"{'.'.join(found)} may be null"
        else:
            return
        asks = found[0] if code == "may_be_skipped" else ".".join(found)
        said = f"{said}, and {tool} takes no null here: add when: ={asks} != null"
        self.find(path, code, said)

    def _effects(self, contract: Contract, path: Path, around: _Around) -> None:
        if contract.effect != "write":
            return
        if around.undone and contract.undo is None:
            said = f"{contract.name} can't be undone (it declares no undo=), and {around.undone}"
            self.find(path, "no_undo", said)
        if around.timed and contract.probe is None and not contract.idempotent:
            said = (
                f"{contract.name} has a time limit, after which nobody knows whether it happened: "
                f"declare probe= or idempotent=True, or drop the limit"
            )
            self.find(path, "unsafe_timeout", said)

    def _value(self, node: Node, path: Path, around: _Around) -> tuple[Node, Shape]:
        return node, self.template(node.step.value, (*path, "value"), around)

    def _wait(self, node: Node, path: Path, around: _Around) -> tuple[Node, Shape]:
        wait = node.step.wait
        assert wait is not None
        if wait.until is not None:
            self.expression(wait.until, (*path, "wait", "until"), around)
        if wait.accepts is not None:
            why = invalid(None, Shape.of(wait.accepts))
            if why is not None and why.startswith("its schema"):
                self.find((*path, "wait", "accepts"), "invalid", why)
        if wait.signal is None:
            return node, Shape.of({"type": "string"})
        return node, Shape.of(wait.accepts)

    def _team(self, node: Node, path: Path, around: _Around) -> tuple[Node, Shape]:
        team = node.step.team
        assert team is not None
        at = (*path, "team")
        if (team.quorum is None) == (team.mode == "quorum"):
            said = "says how many, where the mode is quorum" if team.quorum else "is missing"
            self.find((*at, "quorum"), "invalid", said)
        elif team.quorum is not None and team.quorum > len(team.members):
            self.find((*at, "quorum"), "invalid", f"there are only {len(team.members)} members")
        if team.mode != "all":
            around = dataclasses.replace(
                around, undone=f"in a {team.mode} what comes too late is undone"
            )
        graph, results = self.block(team.members, (*at, "members"), around, apart=True)
        for name, member in team.members.items():
            if member.next is not None or member.after:
                self.find((*at, "members", name), "invalid", "a member has no next: and no after:")
        if team.mode == "all":
            shape = table(results)
        elif team.mode == "race":
            winner = Shape.of({"type": "string", "enum": sorted(team.members)})
            shape = table({"winner": winner, "value": ANY})
        else:
            shape = Shape.of({"type": "object"})
        return dataclasses.replace(node, inner=graph), shape

    def _each(self, node: Node, path: Path, around: _Around) -> tuple[Node, Shape]:
        each = node.step.each
        assert each is not None
        at = (*path, "each")
        found = self.expression(each.over, (*at, "over"), around)
        shape = ANY if found is None else of_template(f"={found.source}", around.variables)
        if "array" not in types(shape):
            why = misfit(shape, Shape.of({"type": "array"}))
            self.find((*at, "over"), "wrong_type", str(why))
        shape = shape.resolved()
        item = shape.inside(shape.schema.get("items")) if each.size is None else shape
        inside = around.with_({"item": item, "index": Shape.of({"type": "integer"})})
        graph, result = self._inner(each, at, inside)
        return dataclasses.replace(node, inner=graph), Shape.of(
            {"type": "array", "items": dict(result.schema) if result.schema is result.root else {}}
        )

    def _repeat(self, node: Node, path: Path, around: _Around) -> tuple[Node, Shape]:
        repeat = node.step.repeat
        assert repeat is not None
        at = (*path, "repeat")
        inside = around.with_({"round": Shape.of({"type": "integer"}), "last": ANY})
        graph, result = self._inner(repeat, at, inside, until=repeat.until)
        return dataclasses.replace(node, inner=graph), result

    def _inner(
        self, block: Block, path: Path, around: _Around, until: str | None = None
    ) -> tuple[Graph, Shape]:
        graph, results = self.block(block.steps, (*path, "steps"), around)
        seen = around.with_(results)
        if block.result is not None:
            shape = self.template(block.result, (*path, "result"), seen)
        else:
            shape = results.get(graph.last, ANY)
        if until is not None:
            self.expression(until, (*path, "until"), seen.with_({"last": shape}), boolean=True)
        return dataclasses.replace(graph, result=block.result), shape

    def _workflow(self, node: Node, path: Path, around: _Around) -> tuple[Node, Shape]:
        named = str(node.step.workflow)
        given = {name: self.template(each, (*path, "inputs", name), around)
                 for name, each in node.step.inputs.items()}  # fmt: skip
        if named in self.above:
            circle = " -> ".join([*self.above, named])
            self.find((*path, "workflow"), "cycle", f"a plan within itself: {circle}")
            return node, ANY
        if named not in self.workflows:
            said = f"there is no workflow {named!r}{nearest(named, self.workflows)}"
            self.find((*path, "workflow"), "unknown_step", said)
            return node, ANY
        known = self.workflows[named]
        try:
            checked = _Checking(self.tools, self.workflows, (*self.above, named)).plan(
                known.plan if isinstance(known, Checked) else known
            )
        except PlanInvalid as error:
            self.findings += [each for each in error.findings if each not in self.findings]
            return node, ANY
        inputs = checked.plan.inputs
        for name, schema in inputs.items():
            if name not in given and "default" not in schema:
                self.find((*path, "inputs"), "missing_argument", f"{named} needs {name!r}")
        for name, shape in given.items():
            at = (*path, "inputs", name)
            if name not in inputs:
                said = f"{named} takes no {name!r}{nearest(name, inputs)}"
                self.find(at, "unknown_argument", said)
                continue
            why = misfit(shape, Shape.of(inputs[name]))
            if why is not None:
                self.find(at, "wrong_type", f"{named} can't take this: {why}")
        for contract in contracts_in(checked.graph):
            self._effects(contract, path, around)
        return dataclasses.replace(node, plan=checked), ANY

    # --- expressions -----------------------------------------------------------------------------

    def template(self, template: Any, path: Path, around: _Around) -> Shape:
        """The shape of a template's value; what is wrong in its expressions is found."""
        for at, source in templates(template, path):
            self.expression(f"={source}", at, around)
        try:
            if not list(templates(template)):
                fill(template, {})
        except Exception as error:  # noqa: BLE001 - whatever makes it no template
            self.find(path, "invalid", str(error))
        return of_template(template, around.variables)

    def expression(
        self, source: str, path: Path, around: _Around, *, boolean: bool = False
    ) -> Expression | None:
        """An expression; what is wrong in it is found."""
        if not source.startswith("=") or source.startswith("=="):
            self.find(path, "invalid", "an expression begins with =")
            return None
        try:
            found = expression(source[1:])
        except ExpressionInvalid as error:
            self.find(path, "bad_expression", str(error))
            return None
        variables = around.variables
        for name in sorted(found.names - variables.keys()):
            said = f"nothing that comes before this is called {name!r}{nearest(name, variables)}"
            self.find(path, "unknown_name", said)
        for chain in found.members:
            if chain[0] in variables:
                why = part(variables[chain[0]], chain[1:])[1]
                if why is not None:
                    code = "unknown_input" if chain[0] == "inputs" else "unknown_field"
                    self.find(path, code, f"{'.'.join(chain)}: {why}")
        if boolean and found.names <= variables.keys():
            why = misfit(of_template(source, variables), Shape.of({"type": "boolean"}))
            if why is not None:
                self.find(path, "wrong_type", f"a condition is true or false: {why}")
        return found


def contracts_in(graph: Graph) -> Iterable[Contract]:
    """The contracts of all that the steps of a block call."""
    waiting: list[Any] = list(graph.units)
    while waiting:
        unit = waiting.pop()
        if not isinstance(unit, Node):
            waiting += unit.units
            continue
        if unit.contract is not None:
            yield unit.contract
        for inner in (unit.inner, None if unit.plan is None else unit.plan.graph):
            if inner is not None:
                waiting += inner.units


def _bare(source: str) -> str:
    return source.removeprefix("=")


def _path_of(template: Any) -> tuple[str, ...] | None:
    """The chain of fields that a template is nothing but."""
    if isinstance(template, str) and template.startswith("=") and not template.startswith("=="):
        try:
            return expression(template[1:]).path
        except ExpressionInvalid:
            return None
    return None


def _sources(step: Step) -> Iterable[str]:
    """All expressions in a step, and in the steps inside it."""
    for kind in ("args", "inputs", "value"):
        yield from (source for _, source in templates(getattr(step, kind)))
    for said in (step.when, step.wait.until if step.wait else None):
        if said is not None:
            yield _bare(said)
    if step.next is not None:
        yield _bare(step.next.when)
    for block in (step.each, step.repeat):
        if block is not None:
            yield _bare(block.over if isinstance(block, Each) else block.until)
            yield from (source for _, source in templates(block.result))
    for _, steps in step.blocks():
        for inner in steps.values():
            yield from _sources(inner)


assert set(KINDS) == {name[1:] for name in vars(_Checking) if name[1:] in KINDS}
