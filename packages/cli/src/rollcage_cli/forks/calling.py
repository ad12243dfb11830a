"""`python -m rollcage_cli.forks.calling MODULE:FUNCTION`: call it in the process of a fork.

If the function takes an argument, it gets the input of the recorded run.
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
from rollcage import run_info
from rollcage.trace import decode

from rollcage_cli.errors import UsageError

__all__ = ["call", "main"]


def call(spec: str) -> Any:
    """Call a function by its name, with the input of the run that this process forks.

    Raises:
        UsageError: there is no such function, or the run had no input.
    """
    module, _, name = spec.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    function: Callable[..., Any] | None = getattr(importlib.import_module(module), name, None)
    if not callable(function):
        raise UsageError(f"{spec} is not a function: write MODULE:FUNCTION")
    wanted = [
        each
        for each in inspect.signature(function).parameters.values()
        if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]
    arguments = [_input(spec)] if wanted else []
    made = function(*arguments)
    return asyncio.run(made) if inspect.iscoroutine(made) else made


def _input(spec: str) -> Any:
    asked = orjson.loads(Path(os.environ["ROLLCAGE_STAGE"].removeprefix("fork:")).read_bytes())
    given = run_info(asked["store"], asked["run"]).given
    if given is None:
        raise UsageError(f"{spec} takes an argument, and run {asked['run']} had no input")
    return decode(given)


def main() -> None:
    """Call the function on the command line."""
    call(sys.argv[1])


if __name__ == "__main__":
    main()
