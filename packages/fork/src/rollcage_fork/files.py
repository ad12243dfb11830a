"""Read the file written by `rollcage fork`, which makes a fork of a program."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import orjson
from rollcage import Contract, RollcageError, SessionError, open_store

from rollcage_fork.fork import Fork

if TYPE_CHECKING:
    from rollcage import Session

__all__ = ["from_file"]


def from_file(path: str, session: Session) -> Fork:
    """Return the fork of a file, which `ROLLCAGE_STAGE=fork:FILE` names for a session.

    Raises:
        SessionError: the file can't be used, or is for another job or store; nothing may run then.
    """
    try:
        data: Any = orjson.loads(Path(path).read_bytes())
        run, job = str(data["run"]), data.get("name", "")
        lies = open_store(str(data["store"])).url
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RollcageError) as error:
        raise _unusable(path, error) from None
    process = f"this process is to be a fork of run {run} (ROLLCAGE_STAGE=fork:{path})"
    if job and job != session.name:
        raise SessionError(
            f"{process}, which is one of {job!r}, and opens a session of {session.name!r}: nothing "
            f"of that runs. Fork a run of that job, or unset ROLLCAGE_STAGE"
        )
    if lies != session.store.url:
        raise SessionError(f"{process} in {lies}, and its session is one in {session.store.url}")
    try:
        words = {word: data[word] for word in _WORDS if data.get(word) is not None}
        if "result" in data:
            words["result"] = data["result"]
        words["tools"] = [tool for spec in data.get("tools", ()) for tool in _tools_of(spec)]
        if "policy" in data:
            words["policy"] = _loaded(data["policy"])
        return Fork(run, **words)
    except Exception as error:
        raise _unusable(path, error) from error


_WORDS: Final = ("at", "live", "error", "args", "model", "answers")


def _unusable(path: str, error: Exception) -> SessionError:
    return SessionError(f"the fork in {path} can't be used: {type(error).__name__}: {error}")


def _loaded(data: Mapping[str, str]) -> Any:
    """Load a policy: `by` names the loader, as `module:Class.method`, of a `file`."""
    module, _, path = data["by"].partition(":")
    load: Any = importlib.import_module(module)
    for name in path.split("."):
        load = getattr(load, name)
    return load(data["file"])


def _tools_of(spec: str) -> list[Callable[..., Any]]:
    """Return the declared tools of a module, `module` or `module:function`."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    module_name, _, attribute = spec.partition(":")
    named = vars(importlib.import_module(module_name))
    found = [named[attribute]] if attribute else named.values()
    tools = [t for t in found if isinstance(getattr(t, "__rollcage_contract__", None), Contract)]
    if not tools:
        raise ValueError(f"{spec} has no tools: declare them with @rollcage.tool")
    return cast("list[Callable[..., Any]]", tools)
