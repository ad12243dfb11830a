"""The processes of the quickstart's agents.

Run as `python -m rollcage_cli.quickstart.program FRAMEWORK` in the folder of the quickstart; it
imports the framework and plays the acts that it reads (see `demo.process`): `without` or `with`
Rollcage, and with `-dies` after it, the process is killed in the ninth step. `yours` is a run to
look at.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rollcage import Session

from rollcage_cli.demo.process import serve
from rollcage_cli.quickstart.frameworks import ALL, PLAIN
from rollcage_cli.quickstart.job import OUTBOX, YOURS

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """Play the acts from stdin."""
    warnings.simplefilter("ignore")  # frameworks warn of their own actions
    (framework,) = (each for each in (*ALL, PLAIN) if each.key == arguments[0])
    for module in framework.needs:
        importlib.import_module(module)
    agent: Any = importlib.import_module(f"rollcage_cli.quickstart.{framework.key}")

    def play(act: str, _tell: object) -> str:
        act, _, dies = act.partition("-")
        if act == "without":
            return str(agent.run(Path("without") / framework.key, None, dies=bool(dies)))
        with Session(YOURS if act == YOURS else framework.job) as session:
            return str(agent.run(Path(OUTBOX), session, dies=bool(dies)))

    return serve(play)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
