"""Hostile calls and their benign twins through the real gate, as a table, by one command.

    python -m tests.hostile [--json]

It exits with 1 where a hostile call ran, or a benign one did not.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from tests.hostile.run import run, sound, table


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rollcage-hostile-") as folder:
        rows = run(Path(folder))
    print(json.dumps([row._asdict() for row in rows]) if given.json else table(rows))
    print(*(told for row in rows for told in row.wrong), sep="\n", file=sys.stderr)
    return 0 if sound(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
