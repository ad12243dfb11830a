"""Whether an undo would do what somebody has seen of it: its plan, or all the rest of that."""

from __future__ import annotations

from collections.abc import Collection

import orjson

from rollcage.undo.report import PlannedStep, UndoPlan

__all__ = ["changes", "stays_undone"]

Origin = tuple[str, int]


def changes(expected: UndoPlan | str, now: UndoPlan) -> list[str]:
    """What an undo would do now and was not expected, in words; empty where it is what was.

    Of a plan, the rest may be left: an undo that was cut off goes on. Nothing is ever done that
    nobody has seen.

    Args:
        expected: the plan that was seen; or its digest, by which nothing can be told of it.
        now: the plan as it is now.
    """
    if isinstance(expected, str):
        return [] if expected == now.digest else ["it is another plan than that of the digest"]
    known = {_origin(each): each for each in expected.steps}
    found = [_change(known.get(_origin(each)), each, now.run) for each in now.steps]
    said = [each for each in found if each]
    if expected.run != now.run or expected.to != now.to:
        said.append("it was the plan of another undo")
    if said:
        return said
    left = iter(expected.steps)
    in_order = all(any(_origin(each) == _origin(one) for one in left) for each in now.steps)
    return [] if in_order else ["the steps would be undone in another order"]


def stays_undone(expected: UndoPlan | str, undone: Collection[Origin]) -> str:
    """What became of an undo that is refused, in words: nothing, or what one before it did.

    Args:
        expected: the plan that was seen, or its digest.
        undone: the steps whose undo was begun, or is done.
    """
    if isinstance(expected, str):
        return "nothing was undone but what was before" if undone else "nothing was undone"
    before = [each.step for each in expected.steps if _origin(each) in undone]
    if not before:
        return "nothing was undone"
    named = f"step{'s' * (len(before) > 1)} {', '.join(map(str, before))}"
    return f"an earlier undo of {named} had begun, and what it did stays; nothing more was undone"


def _change(seen: PlannedStep | None, now: PlannedStep, run: str) -> str:
    """How what would be done with a step differs from what was seen."""
    where = "" if now.run == run else f" of run {now.run}"
    named = f"step {now.step}{where} ({now.name})"
    if seen is None:
        return f"{named} is to be undone now, too"
    if _plain(seen) == _plain(now):
        return ""
    if seen.state != now.state:
        said = f"{named} was {seen.state} and is {now.state} now"
        return said + (f" ({', '.join(sorted(now.differs))} differs)" if now.differs else "")
    if _calls(seen) != _calls(now):
        return f"{named} would be undone by other calls"
    return f"{named}: there is something else to say of it now"


def _origin(each: PlannedStep) -> Origin:
    return each.run, each.step


def _plain(each: PlannedStep) -> bytes:
    """A step in a form that is the same after it was JSON."""
    return orjson.dumps(each.as_data(), option=orjson.OPT_SORT_KEYS)


def _calls(each: PlannedStep) -> list[bytes]:
    return [orjson.dumps(call.as_data(), option=orjson.OPT_SORT_KEYS) for call in each.calls]
