"""The inputs of an execution."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rollcage import Store
from rollcage.trace import jcs
from rollcage.trace.seal import StoreSeal

from rollcage_workflow.errors import InputsInvalid
from rollcage_workflow.expressions import plain
from rollcage_workflow.graph import Checked
from rollcage_workflow.schemas import Shape, invalid
from rollcage_workflow.state import Execution

__all__ = ["check_same_inputs", "digests_of", "given_inputs"]


def given_inputs(checked: Checked, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs of an execution, with the plan's defaults.

    Raises:
        InputsInvalid: the inputs do not match the declaration; the message lists all problems.
    """
    plan, wrong = checked.plan, []
    found: dict[str, Any] = {}
    for name in given.keys() - plan.inputs.keys():
        known = ", ".join(plan.inputs) or "it has none"
        wrong.append(f"{name}: the plan {plan.name!r} has no such input ({known})")
    for name, schema in plan.inputs.items():
        if name not in given and "default" not in schema:
            wrong.append(f"{name}: is missing")
            continue
        try:
            found[name] = plain(given[name] if name in given else schema["default"])
            _canonical(found[name])
        except ValueError as error:
            wrong.append(f"{name}: has no JSON form: {error}")
            continue
        why = invalid(found[name], Shape.of(schema))
        if why is not None:
            wrong.append(f"{name}: {why}")
    if wrong:
        raise InputsInvalid("; ".join(sorted(wrong)))
    return found


def _canonical(value: Any) -> bytes:
    """Return a value in one form; JCS lacks integers of more than 53 bits, which JSON allows.

    Raises:
        ValueError: the value is not JSON: it holds NaN, an infinity, or a lone surrogate.
    """
    try:
        return jcs(value)
    except ValueError:
        return json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False).encode()


def digests_of(
    store: Store, inputs: Mapping[str, Any], results: Mapping[str, Any]
) -> dict[str, str]:
    """Return a digest of each input and given result, under the store's key."""
    if not (inputs or results):
        return {}
    seal = StoreSeal(store)
    return {
        name: seal("rollcage workflow input" + _canonical(each).decode())
        for name, each in [*inputs.items(), *((f"result of {n}", r) for n, r in results.items())]
    }


def check_same_inputs(
    before: Execution,
    store: Store,
    given: Mapping[str, Any],
    results: Mapping[str, Any],
    *,
    given_now: bool,
    again: bool,
) -> None:
    """Refuse inputs that differ from the recorded ones, except new inputs of the plan.

    Raises:
        InputsInvalid: inputs differ, or some have to be given again.
    """
    if not before.plan:
        return
    if before.sealed and not given_now:
        names = ", ".join(before.sealed)
        raise InputsInvalid(
            f"the execution {before.id!r} was given secrets ({names}), which are not on record: "
            f"give it its inputs again"
        )
    now = digests_of(store, given, results)
    known = before.digests
    other = sorted(name for name in known.keys() & now.keys() if known[name] != now[name])
    if other and not again:
        raise InputsInvalid(
            f"the execution {before.id!r} was given other inputs before ({', '.join(other)}): "
            f"give it those, or give another id"
        )
