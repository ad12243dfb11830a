"""`rollcage resolve`: a person records whether a write happened, and what its result was."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text
from rollcage.store import Store, store_option
from rollcage.trace import read_run
from rollcage_views import lineage_of, standing, steering
from rollcage_views.both import heart_with

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
        str | None, typer.Option(metavar="JSON", help="Its result (null by default).")
    ] = None,
    undone: Annotated[
        bool,
        typer.Option("--undone", help="It counts as undone: put right by hand, or accepted."),
    ] = OFF,
    by: Annotated[
        str | None, typer.Option(metavar="NAME", help="In whose name (this user, by default).")
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = OFF,
) -> None:
    """Record whether a step of unknown outcome happened.

    Then its run can be resumed: a step that happened is replayed with its result, one that did not
    happen runs again. For a write that was performed and whose result has no encoding, --result
    records the value to replay. Find out first: this can't be undone. With @NAME, the step is
    looked up in all runs that the newest one builds on.

    With --undone, a step that an undo can't take back counts as undone: no undo does anything about
    it, and the program may go another way.
    """
    if undone == (happened is not None):
        raise UsageError("pass --happened [--result JSON], --did-not-happen, or --undone")
    if not happened and result is not None:
        said = "--undone" if undone else "--did-not-happen"
        raise UsageError(f"{said} takes no --result")
    given = {} if result is None else {"result": json_given("--result", result)}
    own, newest = find_kept(store, run, "resolve")
    where = _where_in_job(own, newest, step) if run.startswith("@") else newest
    name = who(by, required=False)
    if undone:
        tool = steering.accept_step(own, where, step, by=name)
        _print_undone(where, step, tool, as_json=as_json)
        return
    assert happened is not None
    found = steering.resolve_step(own, where, step, happened=happened, by=name, **given)
    if as_json:
        print_json({"run": where, "step": step} | found._asdict())
        return
    out = console()
    what = "happened" if happened else "did not happen"
    text = Text(f"step {step} ({visible(found.name)}) {what}", style="green")
    if happened:
        text.append(f", with the result {value_text(found.outcome['value'])}")
    out.print(text, soft_wrap=True)
    out.print("The next session of this name resumes from there.")


def _print_undone(run: str, step: int, tool: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"run": run, "step": step, "name": tool, "undone": True})
        return
    text = f"step {step} ({visible(tool)}) counts as undone"
    console().print(Text(text, style="green"), soft_wrap=True)


def _where_in_job(store: Store, newest: str, step: int) -> str:
    """The run of a job in which the step of this number waits for a word; else its newest.

    Raises:
        UsageError: there are several.
    """
    if heart_with(store, newest) is not None:  # until the old core goes: a job is one run
        return newest
    stands = standing(lineage_of(store, read_run(store.read(newest))))
    meant = [each for each in (*stands.unknown, *stands.lost) if each.step == step]
    if len(meant) > 1:
        at = store_option(store)
        listed = "".join(f"\n  rollcage resolve {each.run} {step}{at}" for each in meant)
        raise UsageError(f"step {step} may be that of {len(meant)} runs of the job:{listed}")
    return meant[0].run if meant else newest
