"""The `rollcage` command: the command line is a distribution of its own.

`rollcage --agents-md` needs none of it: it prints `AGENTS.md`, which lies beside this file and says
to a coding agent how Rollcage is used.
"""

from __future__ import annotations

import sys
from pathlib import Path

__all__ = ["main"]


def main() -> int:
    """Run the command line, or say in one line how to install it."""
    if sys.argv[1:] == ["--agents-md"]:
        sys.stdout.write(Path(__file__).with_name("AGENTS.md").read_text(encoding="utf-8"))
        return 0
    try:
        from rollcage_cli import app
    except ModuleNotFoundError as error:
        if error.name != "rollcage_cli":
            raise
        sys.stderr.write(
            'rollcage: the command line is not installed: pip install "rollcage[cli]"\n'
        )
        return 2
    return int(app.main())


if __name__ == "__main__":
    sys.exit(main())
