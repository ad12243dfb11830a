"""The `rollcage` command: the command line is a distribution of its own."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> int:
    """Run the command line, or say in one line how to install it."""
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
