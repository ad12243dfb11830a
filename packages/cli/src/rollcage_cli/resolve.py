"""`rollcage resolve`: a person records whether a write happened, and its result."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.text import Text
from rollcage import resolve_step

from rollcage_cli.errors import UsageError
from rollcage_cli.lookup import find_kept
from rollcage_cli.options import (
    DEFAULT_STORE,
    OFF,
    JsonOption,
    RunArgument,
    StoreOption,
    json_given,
    who,
)
from rollcage_cli.output import console, print_json, value_text, visible

__all__ = ["resolve"]


def resolve(
    run: RunArgument,
    step: Annotated[int, typer.Argument(min=1, metavar="STEP", show_default=False)],
    happened: Annotated[
        bool | None,
        typer.Option(
            "--happened/--did-not-happen", show_default=False, help="Whether it happened."
        ),
    ] = None,
    result: Annotated[
        str | None, typer.Option(metavar="JSON", help="The call's result, if known.")
    ] = None,
    undone: Annotated[
        bool,
        typer.Option("--undone", help="The step counts as undone: put right by hand, or accepted."),
    ] = OFF,
    by: Annotated[
        str | None, typer.Option(metavar="NAME", help="Who does this (by default, this user).")
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = OFF,
) -> None:
    """Record whether a step with an unknown outcome happened.

    Then its run can be resumed: a step that happened is replayed with its result, a step that did
    not happen runs again. For a performed write whose result has no encoding, --result records the
    value to replay. Find out first: this can't be undone.

    With --undone, a step that can't be undone automatically counts as undone: undos skip it, and
    the program may diverge from it.
    """
    if undone == (happened is not None):
        raise UsageError("pass --happened [--result JSON], --did-not-happen, or --undone")
    if not happened and result is not None:
        said = "--undone" if undone else "--did-not-happen"
        raise UsageError(f"{said} takes no --result")
    given = {} if result is None else {"result": json_given("--result", result)}
    own, where = find_kept(store, run, "resolve")
    name = who(by, required=False)
    if undone:
        tool = resolve_step(own, where, step, undone=True, by=name).name
        _print_undone(where, step, tool, as_json=as_json)
        return
    assert happened is not None
    found = resolve_step(own, where, step, happened=happened, by=name, **given)
    outcome: dict[str, Any] = {"status": "ok" if happened else "not_started"}
    if given:
        outcome["value"] = given["result"]
    if as_json:
        print_json({"run": where, "step": step, "name": found.name, "outcome": outcome})
        return
    out = console()
    what = "happened" if happened else "did not happen"
    text = Text(f"step {step} ({visible(found.name)}) {what}", style="green")
    if given:
        text.append(f", with the result {value_text(given['result'])}")
    out.print(text, soft_wrap=True)
    out.print("The next session of this name resumes from there.")


def _print_undone(run: str, step: int, tool: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"run": run, "step": step, "name": tool, "undone": True})
        return
    text = f"step {step} ({visible(tool)}) counts as undone"
    console().print(Text(text, style="green"), soft_wrap=True)
