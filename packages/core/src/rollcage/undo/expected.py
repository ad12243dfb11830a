"""Compare an undo with its reviewed plan, or with the rest of that plan."""

from __future__ import annotations

from collections.abc import Collection

import orjson

from rollcage.undo.report import PlannedStep, UndoPlan

__all__ = ["changes", "stays_undone"]

Origin = tuple[str, int]


def changes(expected: UndoPlan | str, now: UndoPlan) -> list[str]:
    """Return how an undo would differ from the expected plan, as messages; empty if it does not.

    A part of the plan may already be done, if an earlier undo was cut off. Nothing outside the
    reviewed plan is ever done.

    Args:
        expected: the reviewed plan; or its digest, which can only match or not.
        now: the current plan.
    """
    if isinstance(expected, str):
        return [] if expected == now.digest else ["the plan does not have the expected digest"]
    known = {_origin(each): each for each in expected.steps}
    found = [_change(known.get(_origin(each)), each, now.run) for each in now.steps]
    changed = [each for each in found if each]
    if expected.run != now.run or expected.to != now.to:
        changed.append("the expected plan is of another undo")
    if changed:
        return changed
    left = iter(expected.steps)
    in_order = all(any(_origin(each) == _origin(one) for one in left) for each in now.steps)
    return [] if in_order else ["the steps would be undone in another order"]


def stays_undone(expected: UndoPlan | str, undone: Collection[Origin]) -> str:
    """Describe what is undone after a refused undo: nothing, or the work of an earlier undo.

    Args:
        expected: the reviewed plan, or its digest.
        undone: the steps whose undo has begun or is complete.
    """
    if isinstance(expected, str):
        return "nothing more was undone than before" if undone else "nothing was undone"
    before = [each.step for each in expected.steps if _origin(each) in undone]
    if not before:
        return "nothing was undone"
    named = f"step{'s' * (len(before) > 1)} {', '.join(map(str, before))}"
    return f"an earlier undo of {named} had begun, and its effects stay; nothing more was undone"


def _change(seen: PlannedStep | None, now: PlannedStep, run: str) -> str:
    """Describe how the plan for one step differs from the reviewed one; empty if it does not."""
    where = "" if now.run == run else f" of run {now.run}"
    named = f"step {now.step}{where} ({now.name})"
    if seen is None:
        return f"{named} would be undone now, too"
    if _plain(seen) == _plain(now):
        return ""
    if seen.state != now.state:
        change = f"{named} was {seen.state} and is {now.state} now"
        return change + (f" ({', '.join(sorted(now.differs))} differs)" if now.differs else "")
    if _calls(seen) != _calls(now):
        return f"{named} would be undone by other calls"
    return f"{named}: its entry in the plan differs"


def _origin(each: PlannedStep) -> Origin:
    return each.run, each.step


def _plain(each: PlannedStep) -> bytes:
    """Return a step in a form that survives a round trip through JSON."""
    return orjson.dumps(each.as_data(), option=orjson.OPT_SORT_KEYS)


def _calls(each: PlannedStep) -> list[bytes]:
    return [orjson.dumps(call.as_data(), option=orjson.OPT_SORT_KEYS) for call in each.calls]
