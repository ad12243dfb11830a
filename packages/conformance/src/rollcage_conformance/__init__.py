"""The pytest suites that every Rollcage adapter passes, as classes to subclass.

::

    from rollcage_conformance import AdapterSuite, Capabilities, Harness


    class TestMyFramework(AdapterSuite):
        capabilities = Capabilities(streaming=False)

        @pytest.fixture
        def harness(self) -> Harness:
            return MyHarness()
"""

import pytest

pytest.register_assert_rewrite("rollcage_conformance.stores", "rollcage_conformance.suites")

from rollcage_conformance.golden import answers, load_golden, normalise, normalise_log  # noqa: E402 - see above
from rollcage_conformance.scenario import (  # noqa: E402 - see above
    Capabilities,
    Harness,
    Message,
    Performance,
    Result,
    Scenario,
    Script,
    ToolCall,
    ToolSpec,
)
from rollcage_conformance.stage import Mode, Played, Stage  # noqa: E402 - see above
from rollcage_conformance.stores import StoreSuite  # noqa: E402 - see above
from rollcage_conformance.suite import Suite, needs  # noqa: E402 - see above
from rollcage_conformance.suites import (  # noqa: E402 - see above
    AdapterSuite,
    ApprovalSuite,
    FacadeSuite,
    FlowSuite,
    GateSuite,
    IsolationSuite,
    LimitSuite,
    MemorySuite,
    ModelSuite,
    OtherProgramSuite,
    OutcomeSuite,
    OutputSuite,
    PolicySuite,
    ReplaySuite,
    SecretSuite,
    TraceSuite,
    ValueSuite,
)
from rollcage_conformance.witness import Witness  # noqa: E402 - see above

__all__ = [
    "AdapterSuite",
    "ApprovalSuite",
    "Capabilities",
    "FacadeSuite",
    "FlowSuite",
    "GateSuite",
    "Harness",
    "IsolationSuite",
    "LimitSuite",
    "MemorySuite",
    "Message",
    "Mode",
    "ModelSuite",
    "OtherProgramSuite",
    "OutcomeSuite",
    "OutputSuite",
    "Performance",
    "Played",
    "PolicySuite",
    "ReplaySuite",
    "Result",
    "Scenario",
    "Script",
    "SecretSuite",
    "Stage",
    "StoreSuite",
    "Suite",
    "ToolCall",
    "ToolSpec",
    "TraceSuite",
    "ValueSuite",
    "Witness",
    "answers",
    "load_golden",
    "needs",
    "normalise",
    "normalise_log",
]
