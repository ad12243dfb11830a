"""`python -m rollcage_cli.forks.calling MODULE:FUNCTION`: calls it in the process of a fork.

Where it takes an argument, that is the input of the recorded run.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
from rollcage.trace import decode, read_run
from rollcage_views.both import open_store

from rollcage_cli.errors import UsageError

__all__ = ["call", "main"]


def call(spec: str) -> Any:
    """Call a function by its name, with the input of the run that this process is a fork of.

    Raises:
        UsageError: there is no such function, or the trace does not hold the input.
    """
    module, _, name = spec.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    function: Callable[..., Any] | None = getattr(importlib.import_module(module), name, None)
    if not callable(function):
        raise UsageError(f"{spec} is no function: write MODULE:FUNCTION")
    wanted = [
        each
        for each in inspect.signature(function).parameters.values()
        if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]
    arguments = [_input(spec)] if wanted else []
    made = function(*arguments)
    return asyncio.run(made) if inspect.iscoroutine(made) else made


def _input(spec: str) -> Any:
    asked = orjson.loads(Path(os.environ["ROLLCAGE_FORK"]).read_bytes())
    given = read_run(open_store(asked["store"]).read(asked["run"])).started.get("input")
    if given is None or "value" not in given:
        why = "had no input" if given is None else "had a large one, which its trace does not hold"
        raise UsageError(f"{spec} takes an argument, and run {asked['run']} {why}")
    return decode(given["value"])


def main() -> None:
    """Call what the command line names."""
    call(sys.argv[1])


if __name__ == "__main__":
    main()
