"""`call:` and `agent:` call a tool; an agent is a tool with the effect `scope`."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from rollcage import Contract
from rollcage.session.adapters import plain_body

from rollcage_workflow.errors import StepFailed
from rollcage_workflow.expressions import ExpressionInvalid, expression, fill, plain
from rollcage_workflow.files import Path, written
from rollcage_workflow.flow import breakable
from rollcage_workflow.schemas import ANY, Shape, misfit, nearest, of_type, types
from rollcage_workflow.tools import contract_of

if TYPE_CHECKING:
    from rollcage_workflow.check.checking import Around, Checking
    from rollcage_workflow.flow import BlockPlace
    from rollcage_workflow.graph import Node
    from rollcage_workflow.interpret import Interpreter

__all__ = ["check", "check_effects", "run"]


def check(checking: Checking, node: Node, path: Path, around: Around) -> tuple[Node, Shape]:
    """See `Kind.check`."""
    kind = node.step.kind
    named = str(node.step.call if kind == "call" else node.step.agent)
    given = {name: checking.template(each, (*path, "args", name), around)
             for name, each in node.step.args.items()}  # fmt: skip
    tool = checking.tools.get(named)
    if tool is None:
        message = f"there is no {'tool' if kind == 'call' else 'agent'} {named!r}"
        checking.find((*path, kind), "unknown_tool", message + nearest(named, checking.tools))
        return node, ANY
    contract = contract_of(tool)
    if contract.streams:
        message = f"{named!r} is a generator, and a step has one result: let it return that"
        checking.find((*path, kind), "unknown_tool", message)
    if kind == "agent" and contract.effect != "scope":
        message = f'{named!r} is not an agent: declare it with @tool(effect="scope")'
        checking.find((*path, kind), "unknown_tool", message)
    _check_arguments(checking, contract, node, given, path, around)
    check_effects(checking, contract, path, around)
    body = plain_body(tool)
    node = dataclasses.replace(node, contract=contract, body=body)
    shape, why = of_type(contract.returns)
    if why is not None:
        message = (
            f"nothing is known of what {contract.name} returns, {contract.returns!r:.80}: {why}"
        )
        checking.find((*path, kind), "unknown_result", message)
    return node, shape


def _check_arguments(
    checking: Checking,
    contract: Contract,
    node: Node,
    given: Mapping[str, Shape],
    path: Path,
    around: Around,
) -> None:
    schema = Shape.of(contract.json_schema)
    fields = cast("Mapping[str, Any]", schema.schema.get("properties") or {})
    for name in schema.schema.get("required", ()):
        if name not in given:
            message = f"{contract.name} needs {name!r}"
            checking.find((*path, "args"), "missing_argument", message)
    for name, shape in given.items():
        at = (*path, "args", name)
        if name not in fields:
            if not contract.accepts_more:
                message = f"{contract.name} takes no {name!r}{nearest(name, fields)}"
                checking.find(at, "unknown_argument", message)
            continue
        taken = schema.inside(fields[name])
        why = misfit(shape, taken)
        if why is not None:
            checking.find(at, "wrong_type", f"{contract.name} can't take this: {why}")
        elif "null" not in types(taken):
            _check_null(checking, contract.name, node.step.args[name], shape, at, around)


def _check_null(
    checking: Checking, tool: str, template: Any, given: Shape, path: Path, around: Around
) -> None:
    """Refuse a result that may be null if null is not accepted, and no condition checks it."""
    found = _path_of(template)
    if found is None or found[0] in around.guarded:
        return
    allowed = types(given)
    if found[0] in around.optional and len(found) == 1:
        code, message = "may_be_skipped", f"{found[0]} may be skipped"
    elif "null" in allowed and allowed != types(ANY):
        code, message = "may_be_null", f"{written(found)} may be null"
    else:
        return
    asks = found[0] if code == "may_be_skipped" else written(found)
    message = f"{message}, and {tool} takes no null here: add when: ={asks} != null"
    checking.find(path, code, message)


def check_effects(checking: Checking, contract: Contract, path: Path, around: Around) -> None:
    """Find writes that can't be undone, or not be timed, if the plan requires it."""
    if contract.effect != "write":
        return
    if around.undone and contract.undo is None:
        message = f"{contract.name} can't be undone (it declares no undo=), and {around.undone}"
        checking.find(path, "no_undo", message)
    if around.timed and contract.probe is None and not contract.idempotent:
        message = (
            f"{contract.name} has a time limit, after which its outcome is unknown: "
            f"declare probe= or idempotent=True, or drop the limit"
        )
        checking.find(path, "unsafe_timeout", message)


def _path_of(template: Any) -> Path | None:
    """Return the chain of fields and elements of a template that is nothing else."""
    if isinstance(template, str) and template.startswith("=") and not template.startswith("=="):
        try:
            return expression(template[1:]).path
        except ExpressionInvalid:
            return None
    return None


async def run(interpreter: Interpreter, node: Node, place: BlockPlace) -> Any:
    """See `Kind.run`. A call that changes nothing may be interrupted."""
    assert node.body is not None
    assert node.contract is not None
    arguments = fill(node.step.args, place.variables)
    session = interpreter.session
    call_id = "" if node.step.retry is not None else place.call_id(node.name)
    with session.place(call_id=call_id) if call_id else contextlib.nullcontext():
        call = session.arun_call(node.contract, arguments, node.body)
        if node.contract.effect in ("write", "scope"):
            value = await call
        else:
            value = await breakable(call, place.flow)
    try:
        return plain(value)
    except ValueError as error:
        message = (
            f"{node.contract.name} returned a value without a JSON form; let it return plain data"
        )
        raise StepFailed(f"{place.path}{node.name}: {message}: {error}") from None
