"""Check a line from outside before the fold takes it in.

A log is chained, not signed: a person who may write the file can put any lines there. So a line
that was read is checked against the lines before it, and a misfit is damage named by an error.
Lines that an attempt writes itself need no check.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rollcage.trace.run import Event, Run

__all__ = ["BAD", "PLAIN", "check_line"]

BAD: Final = (
    KeyError, TypeError, ValueError, AttributeError, IndexError, AssertionError, OverflowError,
    RecursionError,
)  # fmt: skip
"""The exceptions of a fold on a line that does not fit."""

_EFFECTS: Final = frozenset({"pure", "read", "write", "scope", "model", "branch"})
_NAMES: Final = ("version", "agent", "call_id", "framework", "approval")
_NUMBERS: Final = ("rank", "epoch")
_STEPS: Final = {
    "undoing": ("steps",), "undone": ("steps", "reopens", "places"), "rolled": ("steps",),
}  # fmt: skip
_TEXTS: Final = {
    "run": ("run",), "attempt": ("id",), "ended": ("status",), "held": ("status", "from"),
    "gone": ("status", "to"), "pruned": ("status",), "forked": ("run", "from"),
    "undoing": ("why",), "back": ("status",), "rolled": ("branch",),
}  # fmt: skip
PLAIN: Final = 14  # fields of the line of a step that has nothing else, with its hash
_ENDS: Final = ("ok", "error")
_BYTES: Final = 32  # of a hash


def check_line(run: Run, event: Event) -> None:
    """Refuse a line that can't follow the lines folded so far.

    Raises:
        ValueError, KeyError, TypeError, ...: see `BAD`.
    """
    kind = event["event"]
    if kind == "step":
        _check_step(run, event)
        if "outcome" in event:
            _check_outcome(run, event, event["effect"])
    elif kind == "outcome":
        step = run.steps[event["step"]]
        if event["outcome"] is not None:
            _check_outcome(run, event, step.effect)
    else:
        _check_rare(run, event, kind)
        if kind == "moved" and "pos" in event:
            _check_moved(run, event)
    if "replayed" in event:
        _check_spans(run, event["replayed"])
    if "left" in event:
        _check_spans(run, event["left"])


def _check_step(run: Run, event: Event) -> None:
    n, start, pos, turn = event["step"], event["start"], event["pos"], event["turn"]
    slot, branch, mark = event["slot"], event["branch"], event["fingerprint"]
    time = event["time"]
    if not type(n) is type(start) is type(pos) is type(turn) is type(slot) is type(time) is int:
        raise TypeError("step, start, pos, turn, slot and time are numbers")
    if start < 0 or pos < 0 or turn < 0 or slot < 0:
        raise ValueError("start, pos, turn and slot count from 0")
    if n < 1 or n in run.steps:
        raise ValueError(f"{n} is the number of a step that is there")
    if event["effect"] not in _EFFECTS or type(event["args"]) is not dict:
        raise ValueError("there is no such effect, or its arguments have no names")
    if len(bytes.fromhex(mark)) != _BYTES or len(event["key"]) != 2 * _BYTES:
        raise ValueError(f"a key and a fingerprint have {2 * _BYTES} digits")
    if branch and branch[0] == "#" and branch[1:] not in run.named:
        raise ValueError("it stands inside of a step that is not there")
    before = run.named.get(mark)
    if before is not None and before.branch != branch:
        raise ValueError(f"step {before.n} has its fingerprint, in another branch")
    if len(event) > PLAIN:
        _check_more(run, event)


def _check_more(run: Run, event: Event) -> None:
    """Check the fields that few steps have."""
    for name in ("again", "from", "retries"):
        if name in event:
            run.steps[event[name]]
    for name in _NUMBERS:
        if name in event and (type(event[name]) is not int or event[name] < 0):
            raise ValueError(f"{name} is a number from 0")
    for name in _NAMES:
        if type(event.get(name, "")) is not str:
            raise TypeError(f"{name} is text")
    if event["effect"] == "branch":
        for each in event.get("after", ()):
            run.steps[each]
        _check_spans(run, event.get("beyond", ()))
    if "once" in event:
        _check_once(event["once"])


def _check_outcome(run: Run, event: Event, effect: str) -> None:
    outcome = event["outcome"]
    if outcome["status"] not in _ENDS:
        raise ValueError("an outcome is ok or error")
    if effect == "branch" and outcome["value"] is not None:
        bytes.fromhex(outcome["value"])
    for n in event.get("unasked", ()):
        run.steps[n]


def _check_once(once: Any) -> None:
    if type(once) is not list or not 2 <= len(once) <= 3:
        raise ValueError("`once` names a claim, or where an effect was made")
    if type(once[0]) is not str or type(once[1]) is not (str if once[0] == "mine" else int):
        raise ValueError("`once` names a claim, or where an effect was made")


def _check_spans(run: Run, spans: Any) -> None:
    """Refuse a range longer than the run, which would take forever to expand."""
    for first, last in spans:
        if type(first) is not int or type(last) is not int or not 1 <= first <= last <= run.last:
            raise ValueError(f"{first!r:.99} to {last!r:.99} is no range of its steps")


def _check_moved(run: Run, event: Event) -> None:
    if type(event["pos"]) is not int or event["pos"] < 0:
        raise ValueError("pos counts from 0")
    if run.steps[event["step"]].effect != "branch":
        raise ValueError("only a block goes on at another position")


def _check_rare(run: Run, event: Event, kind: str) -> None:
    if (kind == "run") is bool(run.id):
        raise ValueError("a log begins with its one line `run`")
    if type(event.get("imported", {})) is not dict or type(event.get("call_id", "")) is not str:
        raise TypeError("`imported` says where a run comes from, and `call_id` is text")
    for name in _TEXTS.get(kind, ()):
        if type(event[name]) is not str:
            raise ValueError(f"{name} is text")
    for name in _STEPS.get(kind, ()):
        for n in event.get(name, ()) if name != "steps" else event[name]:
            run.steps[n]
    if kind == "undoing":
        event["forgive"]
        if "block" in event:
            run.steps[event["block"]]
    elif kind == "changed":
        if "step" not in event:
            _check_spans(run, event["remakes"])
            return
        step = run.steps[event["step"]]
        if "outcome" in event:
            _check_outcome(run, event, step.effect)
        else:
            event["args"].items()
