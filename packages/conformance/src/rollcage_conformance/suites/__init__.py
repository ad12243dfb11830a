"""The suites: each class is one side of what an adapter promises."""

from rollcage_conformance.suites.approval import ApprovalSuite
from rollcage_conformance.suites.gate import GateSuite
from rollcage_conformance.suites.isolation import IsolationSuite
from rollcage_conformance.suites.model import ModelSuite
from rollcage_conformance.suites.outcome import OutcomeSuite
from rollcage_conformance.suites.replay import ReplaySuite
from rollcage_conformance.suites.secrets import SecretSuite
from rollcage_conformance.suites.trace import TraceSuite
from rollcage_conformance.suites.values import ValueSuite

__all__ = [
    "AdapterSuite",
    "ApprovalSuite",
    "GateSuite",
    "IsolationSuite",
    "ModelSuite",
    "OutcomeSuite",
    "ReplaySuite",
    "SecretSuite",
    "TraceSuite",
    "ValueSuite",
]


class AdapterSuite(
    ReplaySuite,
    GateSuite,
    ApprovalSuite,
    OutcomeSuite,
    ValueSuite,
    SecretSuite,
    IsolationSuite,
    ModelSuite,
    TraceSuite,
):
    """All suites at once: what an adapter subclasses."""
