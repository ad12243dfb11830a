"""Make the lines with which a fork begins, behind the copied lines."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final

import orjson
from rollcage import SessionError
from rollcage.session.adapters import encode, encode_exception, spans_of

if TYPE_CHECKING:
    from rollcage.session.adapters import Seal
    from rollcage.trace.run import Event, Run, Step

    from rollcage_fork.fork import Fork

__all__ = ["HARMLESS", "UNCHANGED", "begin", "check_same"]

HARMLESS: Final = frozenset({"pure", "read"})
"""The effects of tools that may run in place of a replaced tool."""


class Unchanged(enum.Enum):
    UNCHANGED = "unchanged"

    def __repr__(self) -> str:
        return "<unchanged>"


UNCHANGED: Final = Unchanged.UNCHANGED


def begin(fork: Fork, run: Run, lines: list[Event], seal: Seal) -> list[Event]:
    """Return the first lines of a fork, behind the copied lines.

    Args:
        fork: the fork.
        run: the run folded from the copied lines.
        lines: the copied lines. The first one is marked `dry` or `live`, for lists of runs.
        seal: hides the secrets in the change.

    Raises:
        SessionError: the step does not exist, or can't be changed like this.
    """
    source = lines[0]["copied"]
    lines[0]["fork"] = "live" if fork.live else "dry"
    forked: Event = {
        "event": "forked", "run": lines[0]["run"], "name": lines[0]["name"], "from": source,
        **_described(fork),
    }  # fmt: skip
    if fork.at and fork.at not in run.steps:
        raise SessionError(f"run {source} has no step {fork.at} to change")
    if fork.changes_a_step:
        step = _changeable(run, fork.at, source)
        return [forked, {"event": "changed", "step": step.n, **_change_of(fork, lines, seal)}]
    asked = _asked_again(run, fork)
    return [forked, {"event": "changed", "remakes": asked}] if asked else [forked]


def check_same(fork: Fork, run: str, lines: list[Event], seal: Seal) -> None:
    """Refuse another fork than the fork that a log was begun with.

    Tools, answers and policies are compared by their names, which are all that a log has of them.

    Args:
        fork: the fork, of the run that was copied.
        run: the run whose log it is.
        lines: the log.
        seal: hides the secrets in the change.

    Raises:
        SessionError: it is another one.
    """
    begun = max(n for n, line in enumerate(lines) if line["event"] == "forked")
    kept = ("dry", "change", "at", "to", "answers")
    was = {name: lines[begun][name] for name in kept if name in lines[begun]}
    now: Event = _described(fork)
    if fork.changes_a_step and was == now:
        was = {name: lines[begun + 1].get(name) for name in ("outcome", "args")}
        now = {"outcome": None, "args": None, **_change_of(fork, lines, seal)}
    if was != now:
        raise SessionError(
            f"run {run} was begun as another fork: its log has {_as_text(was)}, and this one is "
            f"{_as_text(now)}. Leave run= out to begin this one"
        )


def _described(fork: Fork) -> Event:
    """Return the fields of a fork in its line."""
    described: Event = {} if fork.live else {"dry": True}
    if fork.changes != "code" or fork.answers:
        described |= fork.as_data()
    return described


def _as_text(fields: Event) -> str:
    return orjson.dumps(fields, option=orjson.OPT_SORT_KEYS).decode()


def _changeable(found: Run, n: int, source: str) -> Step:
    """Return a step that can be changed.

    Raises:
        SessionError: the step can't be changed.
    """
    where, step = f"step {n} of run {source}", found.steps[n]
    if step.gone or step.rolled:
        by = f": step {step.replacement} ran it again" if step.replacement else f" ({step.gone})"
        raise SessionError(f"{where} does not hold any more{by if step.gone else ' (rolled back)'}")
    if step.effect == "branch" or step.branch[:1] == "-":
        raise SessionError(f"{where} is no call of the program: it can't be changed")
    return step


def _change_of(fork: Fork, lines: list[Event], seal: Seal) -> Event:
    """Return the change of a step in the form of a log.

    Raises:
        SessionError: the change is invalid.
    """
    if fork.result is not UNCHANGED:
        return {"outcome": {"status": "ok", "value": encode(fork.result, seal, path="result")}}
    if fork.error is not None:
        error = RuntimeError(fork.error) if isinstance(fork.error, str) else fork.error
        known = (type(error),) if isinstance(error, Exception) else ()
        raised = encode_exception(error, seal, known)
        return {"outcome": {"status": "error", "error": raised}}
    if fork.args is not None:
        given = {name: encode(each, seal, path=name) for name, each in fork.args.items()}
        recorded = next(
            each["args"] for each in lines if each["event"] == "step" and each["step"] == fork.at
        )
        args = {**recorded, **given}
        if args == recorded:
            raise SessionError(f"these are the arguments that step {fork.at} had: change one")
        return {"args": args}
    change = dict(fork.change)
    if set(change) == {"outcome"}:
        outcome = change["outcome"]
        needs = {"ok": "value", "error": "error"}.get(outcome.get("status", ""), "")
        if needs not in outcome:
            raise SessionError(
                f"an outcome is ok with a value or an error with an error: {outcome}"
            )
    elif set(change) != {"args"}:
        raise SessionError(
            f"a fork changes either the outcome or the args of a step: not {sorted(change)}"
        )
    return change


def _asked_again(found: Run, fork: Fork) -> list[list[int]]:
    """Return the steps that do not answer, because another model or tool is asked."""
    replaced = {name for name, each in fork.replaced.items() if each.contract.effect in HARMLESS}
    return spans_of(
        step.n
        for step in found.steps.values()
        if step.n >= fork.at and not (step.gone or step.rolled)
        if (fork.model if step.effect == "model" else step.name in replaced)
    )
