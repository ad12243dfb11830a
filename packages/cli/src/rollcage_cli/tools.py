"""The tools that an undo calls, from `--tools` or from the project's own setting."""

from __future__ import annotations

import importlib
import inspect
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Final, cast

from rollcage import Contract
from rollcage.errors import RollcageError
from rollcage_adapter import guarded_contract, plain_body
from rollcage_views import items_of

from rollcage_cli.errors import ToolsUnusable
from rollcage_cli.output import visible

__all__ = ["any_async", "contracts_of", "load_tools"]

Source = Callable[..., Any] | Contract

_FILES: Final = (".toml", ".json")  # files that name MCP servers
_GROUP: Final = "rollcage.tools"


def load_tools(named: Sequence[str] | None) -> list[Source]:
    """Load the named tools (`module:attribute` or `module`), or else the project's.

    A file that ends in `.toml` or `.json` names MCP servers, whose tools are loaded; `file:server`
    is one of the servers.

    The project's tools are in `tool.rollcage.tools` of the `pyproject.toml` in the working
    directory. Modules are also searched there.

    Raises:
        ToolsUnusable: a name can't be loaded, or is no tool; the message names it.
    """
    specs = list(named or _setting(Path("pyproject.toml")))
    here = str(Path.cwd())
    if specs and here not in sys.path:
        sys.path.insert(0, here)
    return [tool for spec in specs for tool in _load(spec)]


def contracts_of(tools: Iterable[Source]) -> list[Contract]:
    """Return the contracts of tools."""
    found: Iterable[Any] = tools
    return [getattr(each, "__rollcage_contract__", each) for each in found]


def any_async(tools: Iterable[Source]) -> bool:
    """Return whether a tool, or a function in its contract, has to be awaited."""
    for each in tools:
        contract: Any = getattr(each, "__rollcage_contract__", each)
        body: Any = plain_body(each) if callable(each) else each
        if any(map(inspect.iscoroutinefunction, (body, contract.observe, contract.probe))):
            return True
    return False


def _setting(path: Path) -> list[str]:
    try:
        data: Any = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise ToolsUnusable(f"{path} can't be read: {error}") from None
    specs = items_of(data.get("tool", {}).get("rollcage", {}).get("tools", []))
    if specs is None or not all(isinstance(each, str) for each in specs):
        raise ToolsUnusable(f"tool.rollcage.tools in {path} is not a list of module:attribute")
    return specs


def _load(spec: str) -> list[Source]:
    module_name, _, attribute = spec.partition(":")
    if Path(module_name).suffix in _FILES:
        return _from_file(module_name, attribute)
    try:
        module: Any = importlib.import_module(module_name)
        if not attribute:
            named = cast("dict[str, Any]", vars(module))
            return [_source(each) for each in named.values() if _is_tool(each)]
        found: Any = module
        for name in attribute.split("."):
            found = getattr(found, name)
        if callable(found) and not _is_tool(found):
            found = found()  # a function that makes the tools
    except RollcageError:
        raise
    except Exception as error:
        why = visible(f"{type(error).__name__}: {error}")
        if isinstance(error, ModuleNotFoundError) and error.name == module_name.split(".")[0]:
            why += "; run this in the folder that holds the module, or install it"
        raise ToolsUnusable(f"tools {visible(spec)!r} can't be loaded: {why}") from error
    return _several(spec, found)


def _from_file(path: str, server: str) -> list[Source]:
    """Load the tools of a file's servers, or of one, by the package for such files."""
    brought = metadata.entry_points(group=_GROUP).select(name="servers")
    if not brought:
        raise ToolsUnusable(
            f"tools {visible(path)!r}: a file that names MCP servers needs rollcage-mcp: "
            f"pip install 'rollcage[mcp]'"
        )
    return _several(path, brought["servers"].load()(path, server))


def _is_tool(each: object) -> bool:
    return (
        isinstance(each, Contract)
        or isinstance(getattr(each, "__rollcage_contract__", None), Contract)
        or guarded_contract(each) is not None
    )


def _source(each: Any) -> Source:
    """Return a tool; for a tool that an adapter guards, its contract."""
    guarded: Source | None = guarded_contract(each)
    source: Source = each
    return source if guarded is None else guarded


def _several(spec: str, found: Any) -> list[Source]:
    if _is_tool(found):
        return [_source(found)]
    if isinstance(found, Mapping):
        found = cast("Mapping[object, Any]", found).values()
    several = isinstance(found, Iterable)
    tools: list[Any] = [*cast("Iterable[Any]", found)] if several else [found]
    wrong = [each for each in tools if not _is_tool(each)]
    if wrong:
        raise ToolsUnusable(
            f"tools {visible(spec)!r}: {visible(repr(wrong[0])[:80])} is not a tool; declare it "
            f"with "
            f"@rollcage.tool"
        )
    return [_source(each) for each in tools]
