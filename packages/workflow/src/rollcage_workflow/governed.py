"""Plans under governance: proposed, approved by digest, and put into packs, like tools.

With a facade, an execution starts only if the facade gives its plan, and each plan inside it. The
execution's own records are then given, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from rollcage import Contract, Session, Stage, Store

from rollcage_workflow.graph import Checked, Loop, blocks_in
from rollcage_workflow.plan import Plan
from rollcage_workflow.records import OWN

if TYPE_CHECKING:
    from rollcage_governance import FacadeSnapshot

__all__ = ["governed", "plan_contract"]


@runtime_checkable
class FacadeByName(Protocol):
    """The entry of a registry's facade in a gate, as `rollcage_governance.Facade`."""

    name: str

    def taken(self, store: Store) -> FacadeSnapshot:
        """Return the facade's grants, from a store's registry as it is now."""
        ...


def plan_contract(plan: Plan) -> Contract:
    """Return a plan's contract for a registry: `Registry.propose(plan_contract(plan), by="ann")`.

    Its name is `plan.NAME`, its version the plan's digest: a changed plan is another version.
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
    """Return the options of an attempt's session, if a facade is among them.

    Raises:
        ToolRefused: the facade does not give the plan, or a plan inside it; nothing ran.
        FacadeMissing: there is no such facade.
    """
    given = dict(options)
    gate = [*given.get("gate", ())]
    named = next((each for each in gate if isinstance(each, FacadeByName)), None)
    if named is None:
        return given
    contracts = [plan_contract(plan) for plan in _plans(checked)]
    _check(named.taken(store), contracts)
    given["gate"] = [_OfPlan(named, contracts) if each is named else each for each in gate]
    return given


def _check(facade: FacadeSnapshot, contracts: list[Contract]) -> None:
    for contract in contracts:
        verdict = facade.check(contract)
        if verdict is not None:
            raise facade.refusal(contract, verdict)


def _plans(checked: Checked) -> Iterator[Plan]:
    """Yield a plan, and all plans that are steps in it."""
    yield checked.plan
    for block in blocks_in(checked.graph):
        waiting = [*block.units]
        while waiting:
            unit = waiting.pop()
            if isinstance(unit, Loop):
                waiting.extend(unit.units)
            elif unit.plan is not None:
                yield unit.plan.plan


class _OfPlan:
    """A facade that also gives an execution's own records, if it gives the plan."""

    def __init__(self, named: FacadeByName, contracts: list[Contract]) -> None:
        self._named = named
        self._contracts = contracts

    def of_session(self) -> Stage:
        """Return the stage that holds one session to it."""
        from rollcage_governance import FacadeSnapshot, FacadeStage
        from rollcage_governance.pin import described, digest_of

        contracts = self._contracts

        class OfPlan(FacadeStage):
            """A facade, with the execution's own records."""

            def describes(self, session: Session) -> dict[str, Any]:
                """Return the facade's grants.

                Raises:
                    ToolRefused: the facade no longer gives the plan.
                """
                granted = super().describes(session)
                found = self.facade
                assert found is not None
                _check(found, contracts)
                own = {contract.name: digest_of(described(contract)[0]) for contract in OWN}
                self.facade = FacadeSnapshot(
                    found.name, {**found.tools, **own}, found.models, found.known, found.option
                )
                return granted

        return OfPlan(self._named.name)
