"""What every store does: crashes, forks, two resumes at once, stop orders, documents, logs, damage.

::

    from rollcage_conformance import StoreSuite


    class TestMyStore(StoreSuite):
        @pytest.fixture
        def url(self, tmp_path: Path) -> str:
            return f"mystore://{tmp_path}/runs"
"""

from rollcage_conformance.stores.beside import BesideSuite
from rollcage_conformance.stores.copies import CopySuite
from rollcage_conformance.stores.costs import CostSuite
from rollcage_conformance.stores.crashes import CrashSuite
from rollcage_conformance.stores.looking import LookingSuite
from rollcage_conformance.stores.sessions import SessionSuite

__all__ = ["StoreSuite"]


class StoreSuite(LookingSuite, CostSuite, CrashSuite, BesideSuite, CopySuite, SessionSuite):
    """Subclass it, and say with the fixture `url` where a new store of each test's own is.

    With the fixtures `tamper` and `lose_locks` it tests more: see `StoreBase`.
    """
