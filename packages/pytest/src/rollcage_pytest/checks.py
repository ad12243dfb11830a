"""Assertions about recorded runs: plain functions, for tests with a cassette and for any trace."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import orjson
from rollcage import Contract, StepView, Verdict
from rollcage.trace import decode
from rollcage_views import Run, Step

from rollcage_pytest.cassette import Cassette, recording_at

__all__ = [
    "Recorded", "assert_cost", "assert_no_new_writes", "assert_no_writes_outside", "assert_policy",
    "assert_same_effects", "assert_undoable",
]  # fmt: skip

Recorded = Cassette | Run | str | os.PathLike[str]
"""A run: a test's, one that was read, or the path of its trace."""


def assert_same_effects(run: Recorded, other: Recorded) -> None:
    """Assert that both runs leave the same writes, in the same order in each branch.

    Writes of one turn have no order.
    """
    one, two = _effects(_run(run)), _effects(_run(other))
    if one != two:
        lines = difflib.unified_diff(two, one, "the other run", "this run", lineterm="", n=1)
        _fail("the runs have different effects", lines)


def assert_no_new_writes(run: Recorded) -> None:
    """Assert that no write ran in the last attempt: each was replayed, or blocked."""
    if isinstance(run, Cassette) and run.mode == "replay":
        return  # nothing runs
    made = _run(run)
    numbers = {n for attempt in made.attempts[-1:] for n in attempt.steps}
    fresh = [s for s in made.steps if s.step in numbers and _writes(s) and s.state != "blocked"]
    if fresh:
        _fail("writes ran that were not recorded", map(_line, fresh))


def assert_no_writes_outside(run: Recorded, tools: Iterable[str]) -> None:
    """Assert that only these tools have written: names, or patterns such as `send_*`."""
    patterns = [tools] if isinstance(tools, str) else list(tools)
    others = [
        step
        for step in _run(run).steps
        if _writes(step) and step.state not in ("blocked", "not_started")
        if not any(fnmatchcase(step.name, each) for each in patterns)
    ]
    if others:
        _fail(f"tools other than {', '.join(patterns)} wrote", map(_line, others))


def assert_cost(
    run: Recorded, *, calls: int | None = None, tokens: int | None = None,
    model_calls: int | None = None,
) -> None:  # fmt: skip
    """Assert limits on calls of tools, calls of models, and tokens, hits included."""
    steps = [s for s in _run(run).steps if s.kind != "branch" and s.state != "blocked"]
    models = [step for step in steps if step.kind == "model"]
    used = {
        "calls": (len(steps) - len(models), calls),
        "model_calls": (len(models), model_calls),
        "tokens": (sum(step.tokens for step in models), tokens),
    }
    above = [
        f"  {what}: {count}, allowed are {most}"
        for what, (count, most) in used.items()
        if most is not None and count > most
    ]
    if above:
        _fail("the run costs more than that", above)


def assert_policy(run: Recorded, *rules: Any) -> None:
    """Assert that these rules, or policies, would have allowed each tool call of the run.

    Args:
        run: the run.
        *rules: each as in `Session(gate=[…])`: a rule, or an object with `decide`.
    """
    wrong: list[str] = []
    for step in _run(run).steps:
        if step.kind != "tool" or step.state in ("blocked", "not_started"):
            continue
        effect: Any = step.effect
        contract = Contract(
            name=step.name, version=step.version, parameters={"type": "object"}, effect=effect
        )
        arguments = {name: decode(value) for name, value in step.args.items()}
        view = StepView(
            step.kind, contract, arguments, agent=step.agent, branch=step.branch, data=step.args
        )
        for rule in rules:
            decide: Callable[[StepView], Verdict | None] = getattr(rule, "decide", rule)
            verdict = decide(view)
            if verdict is not None and verdict.decision != "allow":
                wrong.append(f"{_line(step)}: {verdict.decision}: {verdict.reason}")
    if wrong:
        _fail("the policy would not have allowed", wrong)


def assert_undoable(run: Recorded) -> None:
    """Assert that every effect that the run leaves behind has a plan for its undo."""
    final = [step for step in _run(run).effects if step.kind == "tool" and not step.reversible]
    if final:
        _fail("these effects can't be undone", map(_line, final))


def _run(given: Recorded) -> Run:
    if isinstance(given, Run):
        return given
    if isinstance(given, Cassette):
        return given.run
    return recording_at(Path(given))


def _writes(step: Step) -> bool:
    return step.kind == "tool" and step.effect == "write"


def _effects(run: Run) -> list[str]:
    """Return the remaining effects, as lines; effects of one turn in the order of their texts."""
    placed = [
        (step.branch, step.turn, f"{step.branch}: {_call(step)}" if step.branch else _call(step))
        for step in run.effects
        if step.kind == "tool"
    ]
    return [line for _, _, line in sorted(placed)]


def _call(step: Step) -> str:
    arguments = ", ".join(f"{name}={_json(value)}" for name, value in sorted(step.args.items()))
    return f"{step.name}({arguments})"


def _line(step: Step) -> str:
    return f"  step {step.step}: {_call(step)}"


def _json(value: Any) -> str:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


def _fail(what: str, lines: Iterable[str]) -> None:
    __tracebackhide__ = True
    raise AssertionError("\n".join([f"{what}:", *lines]))
