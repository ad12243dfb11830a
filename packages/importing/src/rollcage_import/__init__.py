"""Runs that other tools recorded, as runs of Rollcage: to look at, to replay offline and to fork.

::

    from rollcage_import import import_file

    for run in import_file("spans.json", store=".rollcage").runs:
        print(run.run, run.steps)

OpenTelemetry's GenAI spans as OTLP (JSON, or protobuf), and the exports of Langfuse and LangSmith.
`import_old_runs` makes logs from runs that earlier versions of Rollcage have recorded.
"""

from rollcage_import.files import Format, Unreadable
from rollcage_import.old import Converted, import_old_runs
from rollcage_import.recording import ImportedRun, Imports, import_file

__all__ = [
    "Converted", "Format", "ImportedRun", "Imports", "Unreadable", "import_file",
    "import_old_runs",
]  # fmt: skip
