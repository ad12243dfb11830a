"""Random plans of all kinds of steps, and what stands in the world when one has ended well."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

WHERE = "=inputs.where"
_DEEPEST = 3
_KINDS = ("call", "call", "call", "all", "race", "quorum", "each", "repeat", "workflow", "wait")
_OF_PEOPLE = ("timed", "saga", "ahead", "wait")
DAY = 86400
ACCEPTS = {"type": "object", "required": ["yes"], "properties": {"yes": {"type": "boolean"}}}


@dataclasses.dataclass(frozen=True)
class Expected:
    """Which effects stand after a step: those of `parts`, of all or of `chosen` of them.

    Attributes:
        label: of a single effect.
        parts: of a step with steps inside.
        chosen: how many of the parts stand, whole; nothing stands of the others. None: all.
        is_late: whether any number of them stands, whole.
        is_undone: whether effects may be made and undone, though nothing else fails.
    """

    label: str = ""
    parts: tuple[Expected, ...] = ()
    chosen: int | None = None
    is_late: bool = False
    is_undone: bool = False

    @property
    def labels(self) -> frozenset[str]:
        """All labels that may stand."""
        own = {self.label} if self.label else set[str]()
        return frozenset(own.union(*(part.labels for part in self.parts)))

    @property
    def kept(self) -> frozenset[str]:
        """The labels of effects that nothing in the plan undoes while nothing fails."""
        if self.chosen is not None or self.is_late or self.is_undone:
            return frozenset()
        own = {self.label} if self.label else set[str]()
        return frozenset(own.union(*(part.kept for part in self.parts)))

    def stands(self, found: Mapping[str, int]) -> bool:
        """Whether these effects, by label and how often, are right."""
        if self.label:
            return found.get(self.label) == 1
        whole = [part for part in self.parts if part.stands(found)]
        if self.chosen is None and not self.is_late:
            return len(whole) == len(self.parts)
        # a part without effects stands whole, whether it was chosen or not
        empty = [part for part in self.parts if not part.labels & {n for n in found if found[n]}]
        is_either = all(part in whole or part in empty for part in self.parts)
        if self.chosen is None:
            return is_either
        chosen = sum(part not in empty for part in whole)
        return is_either and chosen <= self.chosen <= len(whole)


def is_right(expected: Expected, found: Counter[str]) -> bool:
    """Whether what stands is what a plan that ended well leaves, and nothing else does."""
    return +found == found and expected.labels >= {*found} and expected.stands(found)


class Generator:
    """Makes one plan of a seed: teams, races, quorums, lists, loops, plans inside, waits.

    Args:
        seed: of all its choices.
        asks: whether some waits are for an approval.
        people: whether waits take days, signals have a form, and approvals may be rejected; and
            whether there are teams with a time limit, plans inside that fail and are undone, and
            jumps ahead.
    """

    def __init__(self, seed: int, *, asks: bool = False, people: bool = False) -> None:
        self.asks, self.people = asks, people
        self.chance = random.Random(seed)  # noqa: S311 - reproducible
        self.name = f"mixed{seed}"
        self.count = 0
        self.inner: dict[str, Any] = {}

    def plan(self) -> tuple[dict[str, Any], dict[str, Any], Expected]:
        """A plan, the plans that it names, and what stands when it has ended well."""
        steps, expected = self._block(0, "")
        last = [*steps]
        breaks = {"call": "breaks", "args": {"fails": "=inputs.fails"}}
        at = self.chance.choice(["end", "beside", "inside"])
        if at == "end":
            breaks["after"] = last
        elif at == "beside":
            breaks["after"] = [self.chance.choice(last)]
        else:
            breaks = {
                "each": {"over": "=[0, 1, 2]", "max_concurrent": 2, "steps": {"it": breaks}},
                "after": [self.chance.choice(last)],
            }
        steps["breaks"] = breaks
        inputs = {"where": {"type": "string"}, "fails": {"type": "boolean"}}
        whole = {"name": self.name, "inputs": inputs, "steps": steps, "on_failure": "rollback"}
        return whole, self.inner, expected

    def _block(self, depth: int, suffix: str) -> tuple[dict[str, Any], Expected]:
        """Some steps, each after some of those before it; and all that they leave."""
        steps: dict[str, Any] = {}
        parts: list[Expected] = []
        for _ in range(self.chance.randint(3, 5) if depth == 0 else self.chance.randint(1, 3)):
            if self.people and self.chance.random() < 0.15:
                more, leave = self._ahead(suffix)
                steps |= more
                parts += leave
                continue
            name, step, part = self._step(depth, suffix)
            before = [each for each in steps if self.chance.random() < 0.4]
            steps[name] = step | ({"after": before} if before else {})
            parts.append(part)
        return steps, Expected(parts=tuple(parts))

    def _step(self, depth: int, suffix: str) -> tuple[str, dict[str, Any], Expected]:
        """A step with a name of its own; `suffix` is CEL for what tells its passes apart."""
        self.count += 1
        name = f"s{self.count}"
        kinds = _KINDS + (_OF_PEOPLE if self.people else ())
        kind = "call" if depth >= _DEEPEST else self.chance.choice(kinds)
        if kind == "call":
            what = f"='{name}'{suffix}" if suffix else name
            args = {"where": WHERE, "what": what}
            return name, {"call": "mark", "args": args}, Expected(name)
        if kind == "wait":
            return name, self._wait(), Expected()
        if kind in ("all", "race", "quorum", "timed"):
            return name, *self._team(kind, depth, suffix)
        if kind == "saga":
            return name, *self._saga(name, depth, suffix)
        if kind == "workflow":
            return name, *self._inner(name, depth, suffix)
        return name, *self._passes(kind, name, depth, suffix)

    def start(self, plan: Mapping[str, Any], expected: Expected) -> tuple[dict[str, Any], Expected]:
        """A step to start at, with the results before it; and what stands after the rest."""
        steps = plan["steps"]
        possible = [name for name, step in steps.items() if name != "breaks" and step.get("after")]
        if not possible:
            return {}, expected
        start = self.chance.choice(possible)
        above, look = set[str](), [start]
        while look:
            before = {*steps[look.pop()].get("after", ())} - above
            above |= before
            look += before
        given = {name: "given" if "call" in steps[name] else {"x": 1} for name in above}
        named = zip((name for name in steps if name != "breaks"), expected.parts, strict=True)
        rest = Expected(parts=tuple(part for name, part in named if name not in above))
        return {"start": start, "given": given}, rest

    def _wait(self) -> dict[str, Any]:
        if self.people:
            return {"wait": self._of_people()}
        if self.asks and self.chance.random() < 0.3:
            return {"wait": {"approval": "go on?"}}
        if self.chance.random() < 0.5:
            return {"wait": {"signal": "go"}}
        return {"wait": {"seconds": self.chance.choice([0.01, 0.3])}}

    def _of_people(self) -> dict[str, Any]:
        """A wait for somebody, or for hours or days."""
        kind = self.chance.choice(["signal", "form", "seconds", "approval", "approval"])
        if kind == "signal":
            return {"signal": "go"}
        if kind == "form":
            return {"signal": self.chance.choice(["form", "go"]), "accepts": ACCEPTS}
        if kind == "seconds":
            return {"seconds": self.chance.choice([1, 3600, 30 * 3600, 3 * DAY])}
        asks: dict[str, Any] = {"approval": "go on?", "on_rejected": "ask_again"}
        if self.chance.random() < 0.5:
            asks["expires"] = self.chance.choice([3600, 2 * DAY])
        if self.chance.random() < 0.5:
            asks["approvers"] = ["bob"]
        return asks

    def _ahead(self, suffix: str) -> tuple[dict[str, Any], list[Expected]]:
        """A step that jumps ahead or does not, past one write, to another one."""
        self.count += 1
        first, jumps = f"s{self.count}", self.chance.random() < 0.5
        made = [self._step(_DEEPEST, suffix) for _ in range(2)]
        (skipped, over, part), (last, to, end) = made
        steps = {
            first: {"value": jumps, "next": {"to": last, "when": "=last"}},
            skipped: over | {"after": [first]},
            last: to | {"after": [skipped]},
        }
        return steps, [Expected(), Expected() if jumps else part, end]

    def _saga(self, name: str, depth: int, suffix: str) -> tuple[dict[str, Any], Expected]:
        """A plan inside, or a list, that fails, is undone and is kept as failed."""
        inside, expected = self._block(max(depth + 1, _DEEPEST - 1), f"{suffix} + inputs.part")
        del expected  # nothing stands
        inside["fails"] = {"call": "breaks", "args": {"fails": True}, "after": [*inside]}
        plan = f"{self.name}_{name}"
        inputs = {"where": {"type": "string"}, "part": {"type": "string"}}
        self.inner[plan] = {"name": plan, "inputs": inputs, "steps": inside}
        if self.chance.random() < 0.5:
            inside["fails"]["on_failure"] = "rollback"
        else:
            self.inner[plan]["on_failure"] = "rollback"
        part = f"=''{suffix}" if suffix else ""
        step = {"workflow": plan, "inputs": {"where": WHERE, "part": part}, "on_failure": "keep"}
        return step, Expected(is_undone=True)

    def _team(self, kind: str, depth: int, suffix: str) -> tuple[dict[str, Any], Expected]:
        made = [self._step(depth + 1, suffix) for _ in range(3)]
        team: dict[str, Any] = {"mode": kind, "members": {name: step for name, step, _ in made}}
        is_late = kind == "timed"
        if is_late:
            team |= {"mode": "all", "time_limit": self.chance.choice([3600, 2 * DAY])}
        chosen = {"race": 1, "quorum": 2}.get(kind)
        if kind == "quorum":
            team["quorum"] = chosen
        if self.chance.random() < 0.3:
            team["max_concurrent"] = 2
        parts = tuple(part for *_, part in made)
        return {"team": team}, Expected(parts=parts, chosen=chosen, is_late=is_late)

    def _inner(self, name: str, depth: int, suffix: str) -> tuple[dict[str, Any], Expected]:
        steps, expected = self._block(depth + 1, " + inputs.part")
        inputs = {"where": {"type": "string"}, "part": {"type": "string"}}
        plan = f"{self.name}_{name}"
        self.inner[plan] = {"name": plan, "inputs": inputs, "steps": steps}
        part = f"=''{suffix}" if suffix else ""
        return {"workflow": plan, "inputs": {"where": WHERE, "part": part}}, expected

    def _passes(
        self, kind: str, name: str, depth: int, suffix: str
    ) -> tuple[dict[str, Any], Expected]:
        """A list or a loop of two passes. Nothing in a pass has passes itself: `item` is one."""
        count = 2
        now = "item" if kind == "each" else "string(round)"
        steps, one = self._block(_DEEPEST, f"{suffix} + '/' + {now}")
        first = 0 if kind == "each" else 1
        passes = [_renamed(one, f"/{n}") for n in range(first, first + count)]
        if kind == "each":
            step: dict[str, Any] = {"each": {"over": "=['0', '1']", "steps": steps}}
        else:
            step = {"repeat": {"steps": steps, "until": "=round >= 2", "most": 3}}
        return step, Expected(parts=tuple(passes))


def _renamed(expected: Expected, ending: str) -> Expected:
    label = expected.label + ending if expected.label else ""
    parts = tuple(_renamed(part, ending) for part in expected.parts)
    return dataclasses.replace(expected, label=label, parts=parts)
