"""`rollcage policy replay`: what a policy would change in recorded runs. No tool runs."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.progress import track
from rich.text import Text
from rollcage.errors import RollcageError
from rollcage_cli.errors import CORRUPT, DIFFERENT
from rollcage_cli.options import DEFAULT_STORE, OFF, StoreOption
from rollcage_cli.output import arguments_text, console, counted, is_terminal, visible
from rollcage_cli.tools import contracts_of, load_tools

from rollcage_policy import Judged, Policy, Rerun
from rollcage_policy.commands.meant import Recorded, runs_meant
from rollcage_policy.commands.options import (
    PolicyArgument,
    ResolveOption,
    ToolsOption,
    UserInputOption,
    decision_text,
    plain_table,
    shown_arguments,
    verdict_data,
)

__all__ = ["replay"]

_LONGEST: Final = 60  # characters of a call's arguments in a line


@dataclasses.dataclass(slots=True)
class _Summary:
    """The counts; complete when the last run was added."""

    runs: int = 0
    calls: int = 0
    apart: int = 0
    changes: Counter[tuple[str, str]] = dataclasses.field(default_factory=Counter[tuple[str, str]])
    hits: dict[str, Counter[str]] = dataclasses.field(default_factory=dict[str, Counter[str]])
    unknown: int = 0
    missing: Counter[str] = dataclasses.field(default_factory=Counter[str])
    would_run: int = 0
    damaged: list[tuple[str, str, str]] = dataclasses.field(
        default_factory=list[tuple[str, str, str]]
    )

    def add(self, judged: Judged) -> None:
        """Count a call."""
        self.calls += 1
        if judged.apart:
            self.apart += 1
        elif judged.now is None:
            self.unknown += 1
            self.missing.update(judged.unknown)
        else:
            self.hits.setdefault(judged.now.rule, Counter())[judged.now.decision] += 1
            if judged.changes:
                self.changes[judged.was.decision, judged.now.decision] += 1
                self.would_run += not judged.made and judged.now.decision == "allow"


@dataclasses.dataclass(frozen=True, slots=True)
class _Damaged:
    run: str
    code: str
    reason: str


def replay(
    policy: PolicyArgument,
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN]...",
            help="As in every command; by default all runs of the store.",
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        list[str] | None, typer.Option(metavar="GLOB", help="Only runs of these jobs.")
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="List each call, not only those that would change.")
    ] = OFF,
    user_input: UserInputOption = None,
    resolve: ResolveOption = OFF,
    tools: ToolsOption = None,
    store: StoreOption = DEFAULT_STORE,
    as_json: Annotated[
        bool, typer.Option("--json", help="Write JSON Lines, for machines; a summary comes last.")
    ] = OFF,
) -> None:
    """Show the recorded calls that a policy would decide differently.

    No tool runs, and no host is looked up without --resolve. Limits count the recorded
    calls, tokens and times. Values that the trace does not hold are unknown, and not guessed.
    Exits with 1 if something would change; a run that can't be read is reported, and exits with 3.
    """
    contracts = contracts_of(load_tools(tools))
    loaded = Policy.load(policy)
    rerun = Rerun(loaded, tools=contracts, user_input=user_input, resolver=resolve)
    meant = runs_meant(store, runs or (), name or ())
    summary, out = _Summary(), console()
    shown = is_terminal(sys.stderr) and not is_terminal(sys.stdout)
    followed = track(
        meant, "replaying", console=console(error=True), transient=True, disable=not shown
    )
    for run, item in _judged(rerun, followed, summary):
        if isinstance(item, _Damaged):
            message = f"rollcage: run {item.run} can't be replayed: {item.reason}"
            console(error=True).print(visible(message), soft_wrap=True)
        elif every or (not item.apart and item.changes is not False):
            if as_json:
                _print_line(_judged_data(run, item))
            elif every or item.changes:
                out.print(_line(run, item), soft_wrap=True)
    if as_json:
        _print_line(_summary_data(loaded, summary))
    else:
        _print_summary(out, loaded, summary)
    if summary.damaged:
        raise typer.Exit(CORRUPT)
    if summary.changes:
        raise typer.Exit(DIFFERENT)


def _judged(
    rerun: Rerun, followed: Iterable[Recorded], summary: _Summary
) -> Iterator[tuple[str, Judged | _Damaged]]:
    """Yield each call of each run, or the error of a run that can't be read.

    It holds one run in memory at a time.
    """
    for each in followed:
        summary.runs += 1
        try:
            found = [*rerun.over(each.read(), each.blob)]
        except RollcageError as error:
            damaged = _Damaged(each.run, error.code, str(error))
            summary.damaged.append((damaged.run, damaged.code, damaged.reason))
            yield each.run, damaged
            continue
        for judged in found:
            summary.add(judged)
            yield each.run, judged


# --- for people ----------------------------------------------------------------------------------


def _line(run: str, judged: Judged) -> Text:
    """Return a call in a line: `…e306f29 step 4  buy(item="gold")  allow → deny  too-dear`."""
    view, now = judged.view, judged.now
    step = f"step {judged.step}" if judged.step else "refused"
    args = arguments_text(shown_arguments(judged))
    args = args if len(args) <= _LONGEST else f"{args[:_LONGEST]}…"
    line = Text(f"…{run[-8:]} {step}  {visible(view.name)}({args})  ")
    line.append_text(decision_text(judged.was.decision)).append(" → ")
    line.append_text(decision_text(None if now is None else now.decision))
    if judged.apart:
        return line.append(f"  {judged.apart}")
    if now is None:
        return line.append(f"  not known: {visible(', '.join(judged.unknown))}")
    message = f": {visible(now.message)}" if now.message and now.decision != "allow" else ""
    return line.append(f"  {visible(now.rule)}{message}")


def _print_summary(out: Console, policy: Policy, summary: _Summary) -> None:
    table = plain_table("rule", "allow", "ask", "deny")
    for rule in sorted(summary.hits, key=lambda each: -summary.hits[each].total()):
        counts = summary.hits[rule]
        shown = (str(counts[each] or "") for each in ("allow", "ask", "deny"))
        table.add_row(Text(visible(rule)), *map(Text, shown))
    if summary.hits:
        out.print(table)
    if summary.unknown:
        out.print(
            f"{counted(summary.unknown, 'call')} can't be decided (--all lists them):",
            soft_wrap=True,
        )
    for missing, count in summary.missing.most_common():
        line = f"    {visible(missing)} in {count}: {_why(missing)}"
        out.print(Text(line, style="yellow"), soft_wrap=True)
    if summary.would_run:
        line = f"{counted(summary.would_run, 'call')} would run that did not"
        out.print(f"{line}: their usage is not counted", soft_wrap=True)
    if _looks_at_files(policy):
        out.print("within() looked at the present files of this machine", soft_wrap=True)
    changes = ", ".join(f"{n} {a} → {b}" for (a, b), n in sorted(summary.changes.items()))
    parts = (
        (1, f"{counted(summary.runs, 'run')}, {counted(summary.calls, 'call')}"),
        (1, changes or "nothing changes"),
        (summary.unknown, f"{summary.unknown} not known"),
        (summary.apart, f"{summary.apart} refused by a facade"),
        (len(summary.damaged), f"{counted(len(summary.damaged), 'run')} can't be read"),
    )
    out.print(", ".join(line for count, line in parts if count), soft_wrap=True)


def _why(missing: str) -> str:
    root = missing.partition(".")[0]
    return {
        "tool": "not in the trace; --tools provides it, for tools that are the same",
        "args": "it was redacted, or is gone",
        "labels": "the labels of the tool's results were not recorded; --tools may provide them",
        "named()": "the session was opened without user_input=; --user-input provides it",
        "public_host()": "hosts are not resolved; --resolve does that",
    }.get(root, "not in the trace")


def _looks_at_files(policy: Policy) -> bool:
    rules = (rule.condition for rule in policy.rules)
    return any(each is not None and "within" in each.expression.functions for each in rules)


# --- for machines --------------------------------------------------------------------------------


def _print_line(data: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(data).replace("\x7f", "\\u007f") + "\n")


def _judged_data(run: str, judged: Judged) -> dict[str, Any]:
    view = judged.view
    return {
        "kind": "call",
        "run": run,
        "step": judged.step or None,
        "time": judged.time,
        "call": view.kind,
        "name": view.name,
        "agent": view.agent,
        "made": judged.made,
        "was": verdict_data(judged.was),
        "now": verdict_data(judged.now),
        "changes": judged.changes,
        "unknown": judged.unknown,
        "apart": judged.apart or None,
    }


def _summary_data(policy: Policy, summary: _Summary) -> dict[str, Any]:
    return {
        "kind": "summary",
        "policy": {"name": policy.name, "digest": policy.digest, "mode": policy.mode},
        "runs": summary.runs,
        "calls": summary.calls,
        "changes": [
            {"was": was, "now": now, "calls": n} for (was, now), n in summary.changes.items()
        ],
        "rules": {rule: dict(counts) for rule, counts in summary.hits.items()},
        "unknown": {"calls": summary.unknown, "missing": dict(summary.missing)},
        "would_run": summary.would_run,
        "apart": summary.apart,
        "damaged": [
            {"run": run, "code": code, "reason": reason} for run, code, reason in summary.damaged
        ],
        "looks_at_files": _looks_at_files(policy),
    }
