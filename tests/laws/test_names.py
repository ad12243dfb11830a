"""Law: each step has the name that the page on the format says, by the lines before it alone.

A later version that names steps otherwise would answer no call of a run that is on record.
"""

from __future__ import annotations

import json
from collections import defaultdict
from hashlib import sha256
from itertools import product
from typing import Any

import orjson
import pytest
from hypothesis import example, given

from tests.laws.lab import Lab, folder
from tests.laws.law import LAW, chances, fewer, order, resumed
from tests.laws.programs import Branches, Op, Program, Turn, programs, seeds

pytestmark = pytest.mark.law

Event = dict[str, Any]
MOST = 12  # turns that ask for a key, slots, and identical calls of a slot, at most


class Reader:
    """Follow the worlds of each branch through the lines of a log."""

    def __init__(self, lines: list[bytes]) -> None:
        self.steps: dict[int, Event] = {}
        self.outcomes: dict[int, bytes] = {}
        self.seed = ""
        for line in lines:
            self.read(orjson.loads(line), line)

    def read(self, event: Event, line: bytes) -> None:
        match event["event"]:
            case "run":
                self.seed = event.get("seed", "")
            case "step":
                before = self.steps.pop(event.get("again", 0), None)
                if before is None:
                    self.named(event)
                else:  # it takes the place of that step, wherever it runs
                    assert event["fingerprint"] == before["fingerprint"]
                self.steps[event["step"]] = event
        if event.get("outcome") is not None:
            text = line.decode().partition('"outcome":')[2]
            _, end = json.JSONDecoder().raw_decode(text)
            self.outcomes[event["step"]] = text[:end].encode()

    def world(self, branch: str, pos: int) -> bytes:
        """Return the world of a branch at a position."""
        if not branch:
            world = sha256(b"rollcage/1 world" + self.seed.encode()).digest()
        else:
            inside = branch[0] == "#"
            world = sha256(bytes.fromhex(branch[1:]) if inside else branch.encode()).digest()
        batches: defaultdict[int, list[bytes]] = defaultdict(list)
        for n, step in self.steps.items():
            if step["branch"] == branch and step["pos"] < pos and self.changes(step):
                digest = sha256(self.outcomes[n]).digest()
                link = sha256(bytes.fromhex(step["fingerprint"]) + digest).digest()
                batches[step["pos"]].append(link)
        for _, links in sorted(batches.items()):
            world = sha256(world + b"".join(sorted(links))).digest()
        return world

    def changes(self, step: Event) -> bool:
        """Tell whether a step moves its branch on; a block does so through its calls."""
        if step["effect"] == "branch":
            return orjson.loads(self.outcomes[step["step"]])["value"] is not None
        return step["effect"] in ("write", "scope")

    def named(self, step: Event) -> None:
        """Check the name of a step: of some turn that asks for it, in its slot."""
        key, world = bytes.fromhex(step["key"]), self.world(step["branch"], step["pos"])
        for rank, again in product(range(MOST), range(MOST)):
            place = [rank, step["slot"], *([again] if again else [])]
            numbers = b"".join(each.to_bytes(8, "big") for each in place)
            if sha256(key + world + numbers).hexdigest() == step["fingerprint"]:
                return
        raise AssertionError(step)


@LAW
@given(programs(blocks=["outer", "scope", "turn", "branches", "inner"]), seeds)
def test_steps_of_any_program_are_named_as_the_format_says(program: Program, seed: int) -> None:
    chance = chances(seed)
    with folder() as root:
        lab = Lab(root)
        lab.through(program, **order(program, chance))
        Reader(lab.timeline.lines(lab.newest()))


WRITE, INNER = Op("write"), Op("outer", inner=(Op("write"), Op("write")))
A_NEW_BLOCK_BESIDE: Program = (
    Branches(
        (
            (WRITE, WRITE, Op("outer", inner=(WRITE,))),
            (Turn((WRITE, Op("read")), "slots"), INNER, INNER),
            (WRITE,),
        ),
        ("b0", "b1", "b2"),
        "turn",
    ),
)


@fewer(2)
@example(A_NEW_BLOCK_BESIDE, 1)  # its write was taken for a change of the program
@given(programs(does=["work", "fail"], blocks=["outer", "scope", "turn", "branches"]), seeds)
def test_also_where_it_was_cut(program: Program, seed: int) -> None:
    chance = chances(seed)
    with folder() as root:
        whole = Lab(root / "whole")
        whole.through(program, **order(program, chance))
        moment = chance.randint(1, len(whole.timeline.moments))
        lab = whole.at(root / "cut", moment, chances(chance.random()))
        resumed(lab, program, chance)
        Reader(lab.timeline.lines(lab.newest()))
