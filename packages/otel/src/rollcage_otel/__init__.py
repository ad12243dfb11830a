"""OpenTelemetry for Rollcage: spans and metrics of runs, live and from finished traces.

::

    from rollcage import Session
    from rollcage_otel import Spans

    with Session("weekly report", observers=[Spans()]):
        ...

`rollcage_otel.export` needs the SDK: `pip install "rollcage-otel[export]"`.
"""

from rollcage_otel.spans import Spans

__all__ = ["Spans"]
