"""Blocks are undone by their names, with all that came after them."""

import itertools
import random
from pathlib import Path
from typing import Any

import pytest
from rollcage import Session, SessionError, compensate, plan_undo, tool, undo_run

Node = tuple[str, str, list[Any]]  # what, its name, and what is inside
world: list[str] = []
looked: list[str] = []


@pytest.fixture(autouse=True)
def empty() -> None:
    world.clear()
    looked.clear()


@tool(name="blocks.drop", idempotent=True)
def drop(name: str) -> None:
    if name in world:
        world.remove(name)


@tool(name="blocks.put", undo=lambda args: [compensate(drop, name=args["name"])])
def put(name: str) -> None:
    world.append(name)


@tool(name="blocks.look", effect="read")
def look(name: str) -> str:
    looked.append(name)
    return name


class Job:
    """A program of writes, reads, blocks and scopes, one after the other."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.names = (f"{n}" for n in itertools.count())
        self.program = self.nodes(0)

    def nodes(self, depth: int) -> list[Node]:
        kinds = ["put", "put", "look"] + ["block", "scope"] * (depth < 3)
        return [
            (kind, next(self.names), self.nodes(depth + 1) if kind in ("block", "scope") else [])
            for kind in self.chance.choices(kinds, k=self.chance.randint(1, 4))
        ]

    def run(self, session: Session, nodes: list[Node] | None = None) -> None:
        for kind, name, inside in self.program if nodes is None else nodes:
            match kind:
                case "put":
                    put(name)
                case "look":
                    look(name)
                case "block":
                    with session.branch(f"b{name}"):
                        self.run(session, inside)
                case _:

                    @tool(name=f"blocks.scope{name}", effect="scope")
                    def scope(inside: list[Node] = inside) -> None:
                        self.run(session, inside)

                    session.call(scope)

    def lines(
        self, nodes: list[Node], around: list[tuple[str, int]], number: Any
    ) -> list[tuple[str, str, int, list[tuple[str, int]]]]:
        """Return what is recorded: kind, name, number, and the kinds and numbers around it."""
        found = []
        for kind, name, inside in nodes:
            n = next(number)
            found.append((kind, name, n, around))
            found += self.lines(inside, [(kind, n), *around], number)
        return found


def paths(lines: list[Any], n: int) -> list[str]:
    """The names by which a block can be asked for: its own, and its paths."""
    named = {number: name for kind, name, number, _ in lines if kind == "block"}
    around = next(each for _, _, number, each in lines if number == n)
    blocks = [n, *(number for kind, number in around if kind == "block")]
    names = [f"b{named[each]}" for each in blocks]
    return ["/".join(reversed(names[: count + 1])) for count in range(len(names))]


@pytest.mark.parametrize("seed", range(60))
def test_what_is_in_a_block_goes_with_all_behind_it(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - no secret
    job = Job(chance)
    with Session("job", store=tmp_path) as session:
        job.run(session)
    lines = job.lines(job.program, [], itertools.count(1))
    whole = [name for kind, name, *_ in lines if kind == "put"]
    assert world == whole
    blocks = [n for kind, _, n, _ in lines if kind == "block"]
    if not blocks:
        with pytest.raises(SessionError, match="has no branch 'b0' that holds"):
            undo_run(tmp_path, session.run_id, branch="b0")
        return
    block = chance.choice(blocks)
    to = chance.choice([None, chance.randint(1, len(lines))])

    def goes(n: int, around: list[tuple[str, int]]) -> bool:
        stays = any(kind == "scope" and at <= (to or 0) for kind, at in around)
        return n >= block and n > (to or 0) and not stays

    left = [name for kind, name, n, around in lines if kind == "put" and not goes(n, around)]
    name = chance.choice(paths(lines, block))
    plan = plan_undo(tmp_path, session.run_id, branch=name, to=to)
    assert world == whole
    gone = [n for kind, _, n, around in lines if kind == "put" and goes(n, around)]
    assert [step.step for step in plan.steps] == gone[::-1]
    assert undo_run(tmp_path, session.run_id, branch=name, to=to, expected=plan).complete
    assert world == left
    looked.clear()
    with Session("job", store=tmp_path) as again:
        job.run(again)
    assert sorted(world, key=int) == whole
    reads = {name: n for kind, name, n, around in lines if kind == "look" and goes(n, around)}
    assert {name for name, n in reads.items() if n > min(gone, default=n)} <= {*looked} <= {*reads}
    with Session("job", store=tmp_path, replay="offline", run=session.run_id) as offline:
        job.run(offline)
    assert offline.stats.misses == 0
