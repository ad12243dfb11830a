"""Governance of agents' tools: a registry, facades, and approved forms.

::

    from rollcage import Session
    from rollcage_governance import Facade, Registry

    registry = Registry(".rollcage")
    registry.propose(send_mail, by="ann")
    registry.approve("send_mail", by="bob")
    registry.activate("send_mail", "office", by="bob")
    registry.define_facade("assistant", ["office"], by="bob")

    with Session("weekly report", gate=[Facade("assistant")]):
        ...
"""

from rollcage_governance.facade import FacadeSnapshot
from rollcage_governance.lifecycle import Governed, Kind, Lifecycle, Pin, Proposal
from rollcage_governance.registry import Facade, FacadeStage, Registry

__all__ = [
    "Facade",
    "FacadeSnapshot",
    "FacadeStage",
    "Governed",
    "Kind",
    "Lifecycle",
    "Pin",
    "Proposal",
    "Registry",
]
