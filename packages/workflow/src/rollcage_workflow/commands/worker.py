"""`rollcage worker`: a process that takes commands: executions, resumes, undos."""

from __future__ import annotations

import importlib
import logging
import signal
import sys
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.text import Text
from rollcage_cli.errors import ToolsUnusable, UsageError
from rollcage_cli.options import DEFAULT_STORE, OFF, StoreOption
from rollcage_cli.output import console, visible
from rollcage_cli.tools import contracts_of, load_tools

from rollcage_workflow.check import check
from rollcage_workflow.engine import Engine, Limit
from rollcage_workflow.engine.ticking import LeftOut
from rollcage_workflow.graph import Checked
from rollcage_workflow.plan import Plan

__all__ = ["load_plans", "worker"]

_FILES: Final = (".yaml", ".yml", ".json")


def worker(
    plans: Annotated[
        list[str] | None,
        typer.Option(
            "--plans",
            metavar="MODULE[:NAME]|FILE",
            help="A module with plans and their tools, or a plan's file.",
            show_default=False,
        ),
    ] = None,
    tools: Annotated[
        list[str] | None,
        typer.Option(
            "--tools",
            metavar="MODULE[:NAME]",
            help="More tools, for plans in files and for the undo of other runs.",
            show_default=False,
        ),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            "--engine",
            envvar="ROLLCAGE_ENGINE",
            metavar="URL",
            help="The scheduler's database: sqlite:///FILE or postgresql://HOST/DB. Without one, "
            "there are no limits over all workers.",
            show_default=False,
        ),
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    concurrency: Annotated[int, typer.Option(min=1, help="How many attempts at once.")] = 20,
    limit: Annotated[
        list[str] | None,
        typer.Option(
            "--limit",
            metavar="PLAN=N[/STARTS/SECONDS]",
            help="Limit a plan over all workers: attempts at once, starts per time.",
            show_default=False,
        ),
    ] = None,
    every: Annotated[float, typer.Option(min=0.01, help="Seconds between two looks.")] = 1.0,
    once: Annotated[
        bool, typer.Option("--once", help="End when nothing is due; without an engine.")
    ] = OFF,
    grace: Annotated[
        float, typer.Option(min=0, help="Seconds that steps in flight have, on SIGTERM.")
    ] = 30.0,
) -> None:
    """Run a worker of workflows, until SIGTERM or SIGINT.

    Then it ends each execution at its next step, for other workers to continue. A worker that is
    killed loses nothing: the next worker continues its executions.
    """
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING)
    found, declared = load_plans(plans or (), tools)
    made = Engine(
        engine,
        store=store,
        plans=found,
        tools=declared,
        concurrency=concurrency,
        limits=_limits(limit or ()),
        every=every,
    )
    stop = threading.Event()
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, lambda *_: stop.set())
    names = ", ".join(sorted(made.plans)) or "no plans"
    console(error=True).print(f"worker for {visible(names)}", soft_wrap=True)
    made.serve(stop, grace=grace, once=once, left_out=_print_left_out)


def _print_left_out(found: LeftOut) -> None:
    console(error=True).print(Text(visible(str(found))), soft_wrap=True)


def load_plans(plans: Iterable[str], tools: list[str] | None) -> tuple[list[Checked], list[Any]]:
    """Load the plans, checked with the tools of their modules and the named tools; return both.

    Raises:
        PlanInvalid: a plan has problems.
        ToolsUnusable: a module can't be loaded.
    """
    found: list[Any] = []
    modules = [spec.partition(":")[0] for spec in plans if not spec.endswith(_FILES)]
    declared = load_tools([*modules, *(tools or ())]) if modules or tools else load_tools(None)
    unique: list[Any] = list({contract.name: tool for contract, tool in
                   zip(contracts_of(declared), declared, strict=True)}.values())  # fmt: skip
    for spec in plans:
        found.extend([spec] if spec.endswith(_FILES) else _in_module(spec))
    names: dict[str, Any] = {Path(each).stem: each for each in found if isinstance(each, str)}
    names |= {each.name: each for each in found if isinstance(each, Plan)}
    checked = [each if isinstance(each, Checked) else check(each, unique, names) for each in found]
    return checked, unique


def _in_module(spec: str) -> list[Any]:
    """Return the plans of a module, or of a name in it."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    module_name, _, name = spec.partition(":")
    try:
        module: Any = importlib.import_module(module_name)
        held: Any = getattr(module, name) if name else None
    except Exception as error:
        message = f"plans {visible(spec)!r} can't be loaded: {type(error).__name__}: {error}"
        raise ToolsUnusable(message) from error
    if not name:
        return [each for each in vars(module).values() if isinstance(each, Plan | Checked)]
    if callable(held) and not isinstance(held, Plan | Checked):
        held = held()
    if isinstance(held, Plan | Checked | str) or (isinstance(held, Mapping) and "steps" in held):
        return [held]
    return [*(held.values() if isinstance(held, Mapping) else held)]


def _limits(given: Iterable[str]) -> dict[str, Limit]:
    found: dict[str, Limit] = {}
    for each in given:
        plan, _, limits = each.partition("=")
        parts = limits.split("/")
        try:
            numbers = [float(part) for part in parts]
            if len(numbers) not in (1, 3):
                raise ValueError
        except ValueError:
            raise UsageError(
                f"--limit {visible(each)}: give it as PLAN=5, or as PLAN=5/100/60"
            ) from None
        starts, per = (int(numbers[1]), numbers[2]) if len(numbers) == 3 else (None, 60.0)
        found[plan] = Limit(int(numbers[0]), starts, per)
    return found
