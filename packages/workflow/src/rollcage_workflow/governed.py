"""Plans under governance: proposed, approved by digest, and put into packs, as tools are.

Where a session is given a facade, an execution starts only if that gives its plan, and each plan
that is a step in it. What it puts on record beside its calls is then given, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rollcage import Contract
from rollcage.gate import FacadeGuard, NamedFacade, all_given
from rollcage.store import Store

from rollcage_workflow.graph import Checked, Loop, blocks_in
from rollcage_workflow.plan import Plan
from rollcage_workflow.records import OWN

__all__ = ["governed", "plan_contract"]


def plan_contract(plan: Plan) -> Contract:
    """A plan as what a registry knows: `Registry.propose(plan_contract(plan), by="ann")`.

    Its name is `plan.NAME`, its version the plan's digest: of a changed plan, it is another one.
    """
    needed = [name for name, schema in plan.inputs.items() if "default" not in schema]
    return Contract(
        name=f"plan.{plan.name}",
        version=plan.digest,
        description=plan.description,
        parameters={
            "type": "object",
            "properties": dict(plan.inputs),
            "required": needed,
            "additionalProperties": False,
        },
        effect="scope",
    )


def governed(checked: Checked, options: Mapping[str, Any], store: Store) -> dict[str, Any]:
    """What an attempt's session is given, where a facade is among that.

    Raises:
        ToolRefused: the facade does not give the plan, or one inside it; nothing was run.
        FacadeMissing: there is no such facade.
    """
    given = dict(options)
    guards = all_given(given.get("gate", ()), policy=None, facade=given.get("facade"), rules=())
    named = next((each for each in guards if isinstance(each, NamedFacade)), None)
    if named is None:
        return given
    contracts = [plan_contract(plan) for plan in _plans(checked)]
    _check(named.taken(store), contracts)
    given.pop("facade", None)
    given["gate"] = [_OfPlan(named, contracts) if each is named else each for each in guards]
    return given


def _check(facade: FacadeGuard, contracts: list[Contract]) -> None:
    for contract in contracts:
        verdict = facade.check(contract)
        if verdict is not None:
            raise facade.refusal(contract, verdict)


def _plans(checked: Checked) -> Iterator[Plan]:
    """A plan, and all those that are steps in it."""
    yield checked.plan
    for block in blocks_in(checked.graph):
        waiting = [*block.units]
        while waiting:
            unit = waiting.pop()
            if isinstance(unit, Loop):
                waiting.extend(unit.units)
            elif unit.plan is not None:
                yield unit.plan.plan


class _OfPlan(NamedFacade):
    """A facade that gives what an execution of a plan puts on record, if it gives the plan."""

    def __init__(self, named: NamedFacade, contracts: list[Contract]) -> None:
        self.name = named.name
        self._named = named
        self._contracts = contracts

    def taken(self, store: Store) -> FacadeGuard:
        """As it is now.

        Raises:
            ToolRefused: it does not give the plan any more.
        """
        from rollcage_governance import FacadeSnapshot
        from rollcage_governance.pin import described, digest_of

        found = self._named.taken(store)
        _check(found, self._contracts)
        if not isinstance(found, FacadeSnapshot):
            raise TypeError(f"the facade {self.name!r} is of no registry, and can't give plans")
        own = {contract.name: digest_of(described(contract)[0]) for contract in OWN}
        return FacadeSnapshot(
            found.name, {**found.tools, **own}, found.models, found.known, found.option
        )
