"""The suites pass on the reference harness: they ask for nothing impossible."""

import pytest

from rollcage_conformance import AdapterSuite, Harness
from rollcage_conformance.reference import ReferenceHarness


class TestReference(AdapterSuite):
    @pytest.fixture
    def harness(self) -> Harness:
        return ReferenceHarness()
