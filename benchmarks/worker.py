"""Make one measurement, in a process of its own: `python -m benchmarks.worker CASE CALLS FOLDER`.

So neither memory nor the garbage collector's state of one case touches another case. The measures
go to stdout as one line of JSON, the last.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks.cases import ALL


def main() -> None:
    """Run the case that the command line names."""
    name, calls, folder = sys.argv[1:]
    print(json.dumps(ALL[name].load()(int(calls), Path(folder))))


if __name__ == "__main__":
    main()
