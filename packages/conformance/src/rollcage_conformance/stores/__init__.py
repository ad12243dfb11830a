"""The promises of every store: logs, writers, values, orders, and sessions that rely on them.

::

    from rollcage_conformance import StoreSuite


    class TestMyStore(StoreSuite):
        @pytest.fixture
        def url(self, tmp_path: Path) -> str:
            return f"mystore://{tmp_path}/runs"
"""

from rollcage_conformance.stores.costs import CostSuite
from rollcage_conformance.stores.crashes import CrashSuite
from rollcage_conformance.stores.listing import ListingSuite
from rollcage_conformance.stores.logs import LogSuite
from rollcage_conformance.stores.loops import LoopSuite
from rollcage_conformance.stores.orders import OrderSuite
from rollcage_conformance.stores.sessions import SessionSuite
from rollcage_conformance.stores.swaps import SwapSuite
from rollcage_conformance.stores.writers import WriterSuite

__all__ = ["StoreSuite"]


class StoreSuite(
    LogSuite,
    WriterSuite,
    SwapSuite,
    OrderSuite,
    LoopSuite,
    ListingSuite,
    CostSuite,
    CrashSuite,
    SessionSuite,
):
    """Subclass it, and return the URL of a new store for each test from the fixture `url`.

    With the fixture `tamper` it tests more: see `StoreBase`.
    """
