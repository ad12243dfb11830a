"""The command `rollcage fork`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.text import Text
from rollcage_views import Pair, Run, Step, align, first_difference, in_order, pair_data

from rollcage_cli.beside import print_beside
from rollcage_cli.errors import FAILED, PAUSED, UsageError
from rollcage_cli.forks.asking import ForkRequest, asked_fork
from rollcage_cli.forks.running import ForkResult, Program, run_fork, would_have
from rollcage_cli.lookup import find
from rollcage_cli.options import DEFAULT_STORE, OFF, JsonOption, RunArgument, StoreOption
from rollcage_cli.output import arguments_text, console, counted, print_json, value_text, visible

__all__ = ["fork"]

_ENDS: Final = {
    "ok": "it ran to its end",
    "would_write": "it ended before a write that it would have made",
    "would_ask": "it ended before a call that requires approval",
    "partial": "it never reached the step to change",
    "paused": "it waits",
}


def fork(
    run: RunArgument,
    program: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- PROGRAM]...",
            help="The program that made the run, as you run it: -- python my_agent.py.",
            show_default=False,
        ),
    ] = None,
    at: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="STEP", help="The step to change, or the first step of the change."
        ),
    ] = None,
    result: Annotated[
        str | None, typer.Option(metavar="JSON", help="A result for the step to return instead.")
    ] = None,
    args: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="Arguments to replace; the others stay."),
    ] = None,
    error: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Let the step raise a RuntimeError instead.")
    ] = None,
    policy: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Another policy, from the start.")
    ] = None,
    tools: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODULE[:TOOL]", help="Tools that run instead of the tools of the same names."
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Another model: the program reads fork_of(session).model."
        ),
    ] = None,
    answer: Annotated[
        list[str] | None,
        typer.Option(metavar="TOOL=JSON", help="The result of new calls of this tool."),
    ] = None,
    live: Annotated[
        bool, typer.Option("--live", help="Perform new writes, and ask for approvals.")
    ] = OFF,
    function: Annotated[
        str | None,
        typer.Option(
            "--run",
            metavar="MODULE:FUNCTION",
            help="A function instead of a program; it gets the run's input, if it takes one.",
        ),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Run nothing: write a file for ROLLCAGE_STAGE=fork:FILE python agent.py.",
        ),
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    as_json: JsonOption = OFF,
) -> None:
    """Fork a run: replay it with one thing changed ("what if?").

    The recording answers up to the step, and after it for each call that is the same. Reads and
    models that are not recorded run. A new write is never made without --live: --answer gives its
    result, or the fork ends there. The fork is a run of its own, which no session of the job
    resumes.
    """
    asked = asked_fork(
        find(store, run),
        at=at,
        result=result,
        args=args,
        error=error,
        model=model,
        policy=policy,
        tools=tools or (),
        answers=answer or (),
        live=live,
    )
    if save is not None:
        if program or function:
            raise UsageError("--save runs nothing: leave the program out")
        asked.write(save)
        console().print(f"ROLLCAGE_STAGE=fork:{save} makes it of the next run of the program.")
        return
    made = run_fork(asked, Program.of(program or (), function))
    pairs = align(in_order(asked.origin), in_order(made.run))
    if as_json:
        print_json(_data(asked, made, pairs))
    else:
        _print(console(), asked, made, pairs)
    if made.paused:
        raise typer.Exit(PAUSED)
    if made.failed:
        sys.stderr.write(made.stderr)
        raise typer.Exit(FAILED)


# --- for people ----------------------------------------------------------------------------------


def _print(out: Console, asked: ForkRequest, made: ForkResult, pairs: Sequence[Pair]) -> None:
    run = made.run
    out.print(Text(f"fork {run.id}", style="bold"))
    out.print(f"of {asked.found.run}: {_change_text(asked)}", soft_wrap=True)
    out.print()
    print_beside(out, pairs, ("recorded", "fork"))
    out.print()
    out.print(_sums(run))
    out.print(f"{run.status}: {_ENDS.get(run.status, 'it ended by an error')}")
    if made.paused:
        _print_wait(out, made)
    writes = would_have(run)
    if writes:
        out.print("It would have written:")
    for step in writes:
        called = f"  {visible(step.name)}({arguments_text(step.args)})"
        out.print(Text(called, style="magenta"), soft_wrap=True)
    for step in run.effects:
        if step.origin is None:
            called = f"It wrote: {visible(step.name)}({arguments_text(step.args)})"
            out.print(Text(called, style="bold yellow"), soft_wrap=True)
    out.print(f"More: rollcage show {run.id}{asked.found.at}", soft_wrap=True)


def _print_wait(out: Console, made: ForkResult) -> None:
    for text in (made.ended.get("reason") or made.error.get("message"), made.remedy):
        if text:
            out.print(Text(visible(str(text)), style="yellow"), soft_wrap=True)


def _change_text(asked: ForkRequest) -> str:
    data, at = asked.data, asked.data.get("at")
    step = asked.origin.step(at) if at else None
    where = "from its start" if step is None else f"from step {at} ({visible(step.name)}) on"
    named = f"step {at} ({visible(step.name)})" if step is not None else ""
    if "result" in data:
        return f"{named} gives {value_text(data['result'])}"
    if "error" in data:
        return f"{named} raises {visible(data['error'])!r}"
    if "args" in data:
        return f"{named} is called with {arguments_text(data['args'])}"
    for change in ("model", "policy"):
        if change in data:
            return f"{change} {visible(data[change])} {where}"
    tools = data.get("tools")
    return f"tools of {visible(', '.join(tools))} {where}" if tools else f"today's code {where}"


def _sums(run: Run) -> str:
    steps = [step for step in run.steps if step.kind != "branch"]
    counts = (
        (sum(s.state == "hit" for s in steps), "from the record"),
        (sum(s.assumed for s in steps), "of them assumed"),
        (sum(_is_given(s) for s in steps), "given"),
        (sum(s.state in ("ran", "failed") and s.simulated is None for s in steps), "ran"),
        (sum(s.state == "blocked" for s in steps) + len(run.refused), "blocked"),
    )
    listed = ", ".join(f"{n} {what}" for n, what in counts if n)
    return f"{counted(len(steps), 'step')}: {listed or 'none'}"


def _is_given(step: Step) -> bool:
    return step.simulated is not None and step.state != "hit"


# --- for machines --------------------------------------------------------------------------------


def _data(asked: ForkRequest, made: ForkResult, pairs: Sequence[Pair]) -> dict[str, Any]:
    run, first = made.run, first_difference(pairs)
    return {
        "run": run.id,
        "of": asked.found.run,
        "fork": run.started["fork"],
        "status": run.status,
        "program": made.code,
        "remedy": made.remedy,
        "first_difference": None if first is None else pair_data(first),
        "steps": [pair_data(pair) for pair in pairs],
        "would_write": [{"name": step.name, "args": step.args} for step in would_have(run)],
        "wrote": [
            {"name": step.name, "args": step.args, "step": step.step}
            for step in run.effects
            if step.origin is None
        ],
    }
