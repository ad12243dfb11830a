"""The suites: each class is one side of an adapter's promises."""

from rollcage_conformance.suites.approval import ApprovalSuite
from rollcage_conformance.suites.facade import FacadeSuite
from rollcage_conformance.suites.flow import FlowSuite
from rollcage_conformance.suites.gate import GateSuite
from rollcage_conformance.suites.isolation import IsolationSuite
from rollcage_conformance.suites.limits import LimitSuite
from rollcage_conformance.suites.memory import MemorySuite
from rollcage_conformance.suites.model import ModelSuite
from rollcage_conformance.suites.outcome import OutcomeSuite
from rollcage_conformance.suites.outputs import OutputSuite
from rollcage_conformance.suites.policies import PolicySuite
from rollcage_conformance.suites.programs import OtherProgramSuite
from rollcage_conformance.suites.replay import ReplaySuite
from rollcage_conformance.suites.secrets import SecretSuite
from rollcage_conformance.suites.trace import TraceSuite
from rollcage_conformance.suites.values import ValueSuite

__all__ = [
    "AdapterSuite",
    "ApprovalSuite",
    "FacadeSuite",
    "FlowSuite",
    "GateSuite",
    "IsolationSuite",
    "LimitSuite",
    "MemorySuite",
    "ModelSuite",
    "OtherProgramSuite",
    "OutcomeSuite",
    "OutputSuite",
    "PolicySuite",
    "ReplaySuite",
    "SecretSuite",
    "TraceSuite",
    "ValueSuite",
]


class AdapterSuite(
    ReplaySuite,
    GateSuite,
    PolicySuite,
    ApprovalSuite,
    LimitSuite,
    FlowSuite,
    FacadeSuite,
    OutputSuite,
    OutcomeSuite,
    OtherProgramSuite,
    ValueSuite,
    SecretSuite,
    IsolationSuite,
    ModelSuite,
    MemorySuite,
    TraceSuite,
):
    """All suites at once, for an adapter to subclass."""
