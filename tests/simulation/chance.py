"""Random programs of a lab, from a seed: the shapes of `strategies.py`, without a search."""

from __future__ import annotations

from random import Random

from programs import Block, Branches, Node, Op, Program, Turn

__all__ = ["flat", "program"]

DOES = ("work", "work", "work", "work", "work", "fail", "lose before", "lose after")


def program(random: Random) -> Program:
    """A program with all that programs are made of."""
    return tuple(_node(random, 2) for _ in range(random.randint(1, 4)))


def flat(random: Random) -> Program:
    """One whose calls come one after the other, so that it is known which effect was the last."""
    nodes: list[Node] = []
    for _ in range(random.randint(1, 4)):
        some = tuple(_op(random) for _ in range(random.randint(1, 4)))
        nodes += [Block(some, random.random() < 0.7)] if random.random() < 0.5 else some
    return tuple(nodes)


def _op(random: Random) -> Op:
    tool = random.choice(("write", "write", "plain", "read", "pure"))
    return Op(tool, random.randint(0, 1), random.choice(DOES))


def _some(random: Random, depth: int, least: int = 1) -> tuple[Node, ...]:
    return tuple(_node(random, depth) for _ in range(random.randint(least, 3)))


def _node(random: Random, depth: int) -> Node:
    kind = random.choice(("op", "op", "op", "op", "nested", "turn", "branches", "block"))
    if kind == "op" or not depth:
        return _op(random)
    if kind == "nested":
        tool = random.choice(("outer", "scope"))
        return Op(tool, random.randint(0, 1), "work", _some(random, depth - 1))
    if kind == "turn":
        together = (_beside(random, depth) for _ in range(random.randint(1, 3)))
        return Turn(tuple(together))
    if kind == "branches":
        lines = [_some(random, depth - 1, 0) for _ in range(random.randint(1, 3))]
        return Branches(tuple(lines), _after(random, len(lines)))
    return Block(_some(random, depth - 1), random.random() < 0.5)


def _after(random: Random, lines: int) -> tuple[frozenset[int], ...]:
    """By line, the earlier ones that it comes after; nothing where all begin at once."""
    if random.random() < 0.5:
        return ()
    return tuple(
        frozenset(each for each in range(line) if random.random() < 0.5) for line in range(lines)
    )


def _beside(random: Random, depth: int) -> Node:
    """What may stand in a turn: no turn, and no branches."""
    kind = random.choice(("op", "op", "nested", "block"))
    if kind == "nested":
        tool = random.choice(("outer", "scope"))
        return Op(tool, random.randint(0, 1), "work", _some(random, depth - 1))
    if kind == "block":
        return Block(_some(random, depth - 1), random.random() < 0.5)
    return _op(random)
